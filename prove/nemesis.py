"""A process beside the workers: it owns the servers, or the network before them, and makes trouble when told to.

It is a process rather than a thread, since workers are forked while it works.
"""

from __future__ import annotations

import os
import random
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from prove.attack import Attack, Failure, Tally, add_round, run_round
from prove.checks import Judgement
from prove.faults import Fault
from prove.round import Round, Told
from prove.shrink import readable, shrink
from prove.stream import Stream
from prove.worker import Conditions, Notes, receive, send

#: How long a failure is made smaller.
SHRINK_SECONDS: Final = 600.0
#: Longer than for workers alone: breakers wait for up to ten seconds, and so they do after every strike.
PATIENCE_SECONDS: Final = 120.0


class Nemesis:
    """The other end of such a process. It does one thing at a time, and answers when that is done."""

    def __init__(self, parent: socket.socket, pid: int) -> None:
        """Take the connection to it."""
        self._socket, self._pid = parent, pid

    def ask(self, what: str, **given: Any) -> Any:
        """Tell it what to do, and return its answer."""
        send(self._socket, [what, given])
        answer = receive(self._socket)
        if answer is None:
            raise RuntimeError("the process that makes trouble has died; its error is above")
        return answer[0]

    def close(self) -> None:
        """End it, and whatever it has started."""
        self._socket.close()
        os.waitpid(self._pid, 0)


@contextmanager
def beside(live: Callable[[socket.socket], None]) -> Iterator[Nemesis]:
    """Run a function in a process of its own, with a socket over which it is asked until that is closed."""
    ours, theirs = socket.socketpair()
    # It ends with its socket, in order, however the run ends: what it has mounted must be unmounted.
    pid = os.fork()
    if not pid:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        ours.close()
        code = 1
        try:
            live(theirs)
            code = 0
        except BaseException:  # noqa: BLE001 - a forked process must never return into what its parent was doing
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(code)
    theirs.close()
    nemesis = Nemesis(ours, pid)
    try:
        yield nemesis
    finally:
        nemesis.close()


# --- servers to which things happen by a plan ------------------------------------------------------------


@dataclass(frozen=True)
class Trouble:
    """What befalls a server, or several."""

    #: A word of the part's own.
    kind: str
    #: Seconds since the one before it was over.
    after: float
    #: From 0 to 1: for how long, or where, or to which of them.
    how: float

    def __str__(self) -> str:
        """Say it in words."""
        return f"{self.kind} after {self.after:g} s ({self.how:g})"


class Servers(Protocol):
    """Servers that things can be done to."""

    @property
    def url(self) -> str:
        """Where the ledger is."""
        ...

    def strike(self, trouble: Trouble) -> None:
        """Do it, and return once that is over."""
        ...

    def calm(self) -> None:
        """Put everything in order."""
        ...


@contextmanager
def troubled(running: Callable[[], AbstractContextManager[Servers]]) -> Iterator[Nemesis]:
    """Run servers in a process of their own, in which things happen to them by a plan."""
    with beside(partial(_trouble, running)) as nemesis:
        yield nemesis


def _trouble(running: Callable[[], AbstractContextManager[Servers]], control: socket.socket) -> None:
    with running() as servers:
        while (asked := receive(control)) is not None:
            what, given = asked
            if what == "calm":
                servers.calm()
            send(control, [servers.url])
            if what == "begin":
                _strike(servers, [Trouble(**one) for one in given["troubles"]], Path(given["notes"]), control)


def _strike(servers: Servers, troubles: Sequence[Trouble], path: Path, control: socket.socket) -> None:
    notes = Notes(path)
    for trouble in troubles:
        is_over, _, _ = select.select([control], [], [], trouble.after)
        if is_over:
            return
        notes.write("trouble", str(trouble).replace(" ", "_"))
        servers.strike(trouble)


# --- rounds with a nemesis -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Siege:
    """Rounds of workers, and what is done beside them."""

    plan: Attack
    nemesis: Nemesis
    #: Draws what a round has in store: faults of workers, and dataclasses that the nemesis knows, which say themselves
    #: in words.
    draw: Callable[[random.Random], Sequence[Any]]
    workers: int = 2
    #: Leases, one of which each round has.
    leases: tuple[float, ...] = (0.3, 1.5)
    #: For how long deliveries go on to arrive.
    spread_seconds: float = 0.0
    #: How long a round may take beyond that before it counts as stuck.
    patience_seconds: float = PATIENCE_SECONDS
    #: Which promises a judgement shows broken; some settings promise less.
    verdict: Callable[[Judgement], dict[str, int]] = lambda judgement: judgement.broken

    def troubles(self, name: str) -> list[Any]:
        """Return what befalls a round."""
        return list(self.draw(random.Random(f"{self.plan.seed} {name}")))

    def run(self, name: str, troubles: Sequence[Any]) -> tuple[dict[str, int], Judgement, Told, Stream, list[str]]:
        """Run a round, and say what was broken in it."""
        lease = random.Random(name).choice(self.leases)

        def drive(conditions: Conditions, stream: Stream, given: Sequence[Any], seed: int) -> Told:
            faults = [one for one in given if isinstance(one, Fault)]
            own = [asdict(one) for one in given if not isinstance(one, Fault)]
            self.nemesis.ask("begin", notes=str(conditions.notes), troubles=own)
            try:
                return Round(
                    conditions, stream, faults, seed, self.workers,
                    spread_seconds=self.spread_seconds, patience_seconds=self.patience_seconds,
                ).run()  # fmt: skip
            finally:
                self.nemesis.ask("calm")

        plan = replace(self.plan, drive=drive, lease_seconds=lease)
        judgement, told, stream, history = run_round(plan, name, troubles)
        return self.verdict(judgement), judgement, told, stream, history


def besiege(siege: Siege, is_enough: Callable[[Tally], bool], *, seconds: float) -> Iterator[Tally]:
    """Run rounds until it is enough, something broke, or the time is over; yield the tally after each."""
    tally, begun = Tally(), time.monotonic()
    while not is_enough(tally) and not tally.failures and time.monotonic() - begun < seconds:
        name = f"{siege.plan.seed}-{tally.rounds}"
        troubles = siege.troubles(name)
        broken, judgement, told, stream, history = siege.run(name, troubles)
        add_round(tally, judgement, told, stream, history, broken=broken)
        if broken:
            tally.failures.append(Failure(name, broken, [str(one) for one in troubles], history))
        tally.seconds = time.monotonic() - begun
        yield tally


def smallest(siege: Siege, failure: Failure) -> list[str]:
    """Find the fewest troubles that still break something, and tell what happened."""
    seen, give_up = [failure.history], time.monotonic() + SHRINK_SECONDS

    def breaks(fewer: Sequence[Any]) -> bool:
        if time.monotonic() > give_up:
            return False
        broken, _, _, _, history = siege.run(failure.name, fewer)
        if broken:
            seen.append(history)
        return bool(broken)

    few = shrink(siege.troubles(failure.name), breaks)
    head = [f"seed {siege.plan.seed}, round {failure.name}: {failure.broken}", *(f"trouble: {one}" for one in few)]
    return head + readable(seen[-1])
