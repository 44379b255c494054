"""Forked children of a test: each does something with what its parent has used before, beside the others."""

import json
import os
import select
import signal
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HANG_SECONDS = 60.0

#: Something to be done in a child; returns what JSON can hold.
Work = Callable[[], Any]


class Child:
    """One forked child, which does its work and ends at once."""

    def __init__(self, work: Work) -> None:
        """Fork; the child never returns from here."""
        self._read, write = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # that there are threads is what is tried here
            self._pid = os.fork()
        if not self._pid:
            try:
                answer = json.dumps(["did", work()])
            except BaseException:  # noqa: BLE001 - whatever it is, the parent is told
                answer = json.dumps(["failed", traceback.format_exc()])
            with os.fdopen(write, "w") as told:
                told.write(answer)
            sys.stderr.flush()
            os._exit(0)
        os.close(write)

    def result(self) -> Any:
        """Wait for the child, and return what its work returned; one that hangs is killed, and fails the test."""
        try:
            if not select.select([self._read], [], [], HANG_SECONDS)[0]:
                os.kill(self._pid, signal.SIGABRT)  # faulthandler shows where
            with os.fdopen(self._read) as told:
                text = told.read()
        finally:
            os.waitpid(self._pid, 0)
        how, what = json.loads(text or '["failed", "it hangs, or has died"]')
        assert how == "did", what
        return what


def in_children(*works: Work) -> list[Any]:
    """Do all of this at once, each in a child of its own; return what each returned."""
    return [child.result() for child in [Child(work) for work in works]]


# --- a bridge that is used on both sides -----------------------------------------------------------------

THREADS = 4
CHILDREN = 3
OWN = 12
SHARED = 8


def delivery(name: str) -> bytes:
    """Make one delivery of an event of this name."""
    return json.dumps({"id": name, "detail-type": "T", "detail": {"eventId": name}}).encode()


class Effects:
    """A file that handlers of all processes write a line into."""

    def __init__(self, directory: Path) -> None:
        """Begin without any."""
        self._path = directory / "effects"
        self._path.touch()

    def write(self, name: str) -> None:
        """Write one down."""
        with self._path.open("a") as file:
            file.write(f"{name}\n")

    def count(self) -> Counter[str]:
        """Count them by name."""
        return Counter(self._path.read_text().split())


def bring_to_end(bridge: Any, names: Iterable[str]) -> Counter[str]:
    """Deliver each of these until it is acknowledged; return how often each verdict came last."""
    verdicts: Counter[str] = Counter()
    for name in names:
        result = bridge.process(delivery(name))
        while not result.acknowledged:
            result = bridge.process(delivery(name))
        verdicts[result.verdict] += 1
    return verdicts


def use_on_both_sides(bridge: Any) -> Counter[str]:
    """Use a bridge in threads, fork, and go on in the parent and in children; return how often each must take effect.

    Each child has new events of its own, and others that all children and the parent get.
    """
    before = [f"before-{number}" for number in range(OWN)]
    with ThreadPoolExecutor(THREADS) as pool:
        assert sum(pool.map(lambda name: bring_to_end(bridge, [name]), before), Counter()) == {"fresh": OWN}
    shared = [f"shared-{number}" for number in range(SHARED)]
    own = [[f"own-{child}-{number}" for number in range(OWN)] for child in range(CHILDREN + 1)]

    def work(names: list[str]) -> dict[str, int]:
        verdicts = bring_to_end(bridge, names)
        assert verdicts == {"fresh": OWN}, "new events are fresh"
        assert bring_to_end(bridge, [*names, *before]) == {"redelivery": 2 * OWN}, "known events are not"
        return bring_to_end(bridge, shared)

    children = [Child(lambda names=names: work(names)) for names in own[1:]]
    mine = work(own[0])
    found = sum((Counter(child.result()) for child in children), Counter(mine))
    assert found == {"fresh": SHARED, "redelivery": SHARED * CHILDREN}
    assert bring_to_end(bridge, [*before, *shared, *own[-1]]) == {"redelivery": 2 * OWN + SHARED}
    return Counter([*before, *shared, *(name for names in own for name in names)])
