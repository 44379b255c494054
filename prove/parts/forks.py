"""Forks before and after use, in handlers, from threads, and beside a sink's connections.

Each repetition has a ledger and a process of its own, which uses one bridge, forks, and goes on beside its children.
Handlers write down what took effect, and the ledger's calls are watched: whoever had an effect settles it, and nobody
else does. No lease runs out, so nothing may happen twice anywhere.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import select
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from oncebridge import Bridge, Event, Settings
from oncebridge.errors import BatchOfParent, LedgerRefused
from oncebridge.settings import load_settings
from prove import exact
from prove.outcome import Options, Outcome
from prove.places import kind_of, place_beside, place_of, prepare
from prove.round import Child, in_child
from prove.worker import Notes, Strikes, watch

#: Longer than a repetition may take: whoever waits for a claim that nobody works on hangs, and is found.
LEASE_SECONDS: Final = 300.0
THREADS: Final = 3
FEW: Final = 4
BATCH: Final = 16
REPETITION_SECONDS: Final = 60.0
HANGS: Final = "a side that hangs, or has died"
WRONG: Final = "a side that was answered wrongly"
WENT_ON: Final = "a handler's child that went on with the batch"
NOT_ITS_OWN: Final = "settled by another process than had the effect"


def forks(options: Options) -> Outcome:
    """Fork in every way, in turn, until there were so many forks."""
    outcome, begun, number = Outcome(), time.monotonic(), 0
    done: Counter[str] = Counter()
    ledger = kind_of(options.ledger)
    with place_of(options.ledger, options.folder) as url:
        if ledger == "dynamodb":
            in_child(lambda: prepare(url))
        while outcome.tried < options.amount and time.monotonic() - begun < options.seconds and not outcome.broken:
            way = list(WAYS)[number % len(WAYS)]
            name = f"forks_{options.seed}_{number}"
            own = place_beside(url, options.folder, name)
            if ledger != "dynamodb":
                in_child(lambda own=own: prepare(own))
            repetition = Repetition(own, name, way, options.folder)
            outcome.broken, outcome.history, came_to = tried(repetition)
            outcome.tried += came_to["forks"]
            done.update({f"forks {way}": came_to["forks"], "children that were refused": came_to["refused"]})
            number += 1
            if options.progress:
                options.progress(outcome.tried)
    outcome.lost, outcome.doubled = outcome.broken.get("lost", 0), outcome.broken.get("doubled", 0)
    outcome.figures = {"repetitions": number, **done}
    if outcome.tried < options.amount and not outcome.broken:
        outcome.notes.append(f"ended early: {outcome.tried:,} of {options.amount:,} forks")
    return outcome


@dataclass
class Repetition:
    """One bridge on a ledger of its own, and how it forks."""

    url: str
    name: str
    way: str
    folder: Path
    #: How often each event must take effect.
    wanted: Counter[str] = field(default_factory=Counter)
    forks: int = 0
    #: Children that SQLite refused, because their parent was in a transaction.
    refused: int = 0

    def __post_init__(self) -> None:
        """Draw what the seed decides."""
        self.dice = random.Random(self.name)
        self.in_transaction = kind_of(self.url) in exact.LEDGERS and self.way != SINK and self.dice.random() < 0.5
        self.path = self.folder / f"{self.name}.notes"

    def make_bridge(self) -> Bridge:
        """Make a bridge that writes down what took effect, and which ends the ledger took."""
        self.notes = Notes(self.path)
        settings = load_settings() if self.way == SINK else Settings(lease_seconds=LEASE_SECONDS)
        bridge = Bridge(self.url, settings=settings)
        watch(bridge.ledger, Strikes(None, self.notes), self.notes)
        return bridge

    def handle(self, bridge: Bridge, then: Callable[[str], None] = lambda _: None) -> None:
        """Handle every event of a bridge, and do something else in its handler afterwards."""
        notes, write = self.notes, exact.writer(self.url, self.name) if self.in_transaction else None

        def plain(event: Event) -> None:
            notes.write("effect", event.body["eventId"], f"{event.key}/own")
            then(event.body["eventId"])

        def in_transaction(event: Event, transaction: Any) -> None:
            if write is not None:
                write(transaction, number_of(event.body["eventId"]))
            plain(event)

        bridge.on("*", name="own")(in_transaction if write else plain)

    def named(self, who: str, number: int = FEW) -> list[str]:
        """Name new events, each of which must take effect once."""
        names = [f"{self.name}-{who}-{at}" for at in range(number)]
        self.wanted.update(names)
        return names

    def child(self, work: Callable[[], Any]) -> Any:
        """Fork a child that does this."""
        from children import Child as Asserting

        self.forks += 1
        return Asserting(work)

    def attempt(self, bridge: Bridge, names: Sequence[str]) -> bool:
        """Bring events to their end; return whether this process was allowed to, which only SQLite may deny."""
        from children import bring_to_end

        try:
            bring_to_end(bridge, names)
        except LedgerRefused:
            if self.in_transaction and kind_of(self.url) == "sqlite":
                return False
            raise
        return True


# --- ways of forking: each returns when both sides have done their work ---------------------------------------------


def before_use(repetition: Repetition, bridge: Bridge) -> None:
    """Fork with a bridge that was made, and not used."""
    repetition.handle(bridge)
    shared = repetition.named("shared")
    works = [repetition.named(f"child-{at}") for at in range(2)]
    children = [repetition.child(lambda own=own: repetition.attempt(bridge, [*own, *shared])) for own in works]
    repetition.attempt(bridge, [*repetition.named("parent"), *shared])
    assert all(child.result() for child in children)


def after_use(repetition: Repetition, bridge: Bridge) -> None:
    """Use it in threads, fork, and go on everywhere, with events of each side's own and shared ones."""
    from children import CHILDREN, use_on_both_sides

    repetition.handle(bridge)
    repetition.wanted.update(use_on_both_sides(bridge))
    repetition.forks += CHILDREN


def in_handlers(repetition: Repetition, bridge: Bridge) -> None:
    """Fork in handlers of a batch; the child works, closes, ends, or leaves the handler in some way."""
    from children import delivery

    batch, parent = repetition.named("batch", BATCH), os.getpid()
    ends = {name: repetition.dice.choice(list(ENDS)) for name in repetition.dice.sample(batch, FEW)}
    owns = {name: repetition.named(f"of-{name.rpartition('-')[2]}") for name, end in ends.items() if end == "works"}

    def then(name: str) -> None:
        end = ends.pop(name, "")  # the child forks no more
        if end == "works":
            repetition.refused += not repetition.child(lambda: repetition.attempt(bridge, owns[name])).result()
        elif end == "closes":
            repetition.child(bridge.close).result()
        elif end:
            repetition.forks += 1
            if pid := os.fork():
                os.waitpid(pid, 0)
            else:
                ENDS[end]()

    repetition.handle(bridge, then)
    what = "nothing"
    try:
        results = bridge.process_many([delivery(name) for name in batch])
    except BaseException as error:
        if os.getpid() == parent:
            raise
        what = type(error).__name__
    if os.getpid() != parent:
        repetition.notes.write("came-back", what)
        os._exit(0)
    assert [result.column for result in results] == ["processed"] * BATCH, [result.column for result in results]
    repetition.attempt(bridge, [name for names in owns.values() for name in names])


def from_threads(repetition: Repetition, bridge: Bridge) -> None:
    """Fork in threads that use the bridge, beside others that do."""
    repetition.handle(bridge)

    def work(number: int) -> list[tuple[list[str], bool]]:
        came_to = []
        for turn in range(2):
            repetition.attempt(bridge, names[f"thread-{number}-{turn}"])
            own = names[f"child-{number}-{turn}"]
            came_to.append((own, repetition.child(lambda own=own: repetition.attempt(bridge, own)).result()))
        return came_to

    whos = [f"{who}-{number}-{turn}" for who in ("thread", "child") for number in range(THREADS) for turn in range(2)]
    names = {who: repetition.named(who) for who in whos}
    with ThreadPoolExecutor(THREADS) as pool:
        for came_to in pool.map(work, range(THREADS)):
            for own, allowed in came_to:
                repetition.refused += not allowed
                repetition.attempt(bridge, own)


def beside_a_sink(repetition: Repetition, bridge: Bridge) -> None:
    """Send by a webhook before and after, on connections that are kept open."""
    repetition.attempt(bridge, repetition.named("before"))
    works = [repetition.named(f"child-{at}") for at in range(3)]
    children = [repetition.child(lambda own=own: repetition.attempt(bridge, own)) for own in works]
    repetition.attempt(bridge, repetition.named("parent"))
    assert all(child.result() for child in children)


SINK: Final = "beside a sink"
WAYS: Final[dict[str, Callable[[Repetition, Bridge], None]]] = {
    "before use": before_use,
    "after use": after_use,
    "in handlers": in_handlers,
    "from threads": from_threads,
    SINK: beside_a_sink,
}

#: How the child of a handler goes on. One that works or closes the bridge ends at once after that.
ENDS: Final[dict[str, Callable[[], Any]]] = {
    "works": lambda: None,
    "closes": lambda: None,
    "returns": lambda: None,
    "raises": lambda: int("x"),
    "exits": lambda: sys.exit(3),
    "ends": lambda: os._exit(3),
}

# --- one repetition, and who judges it ------------------------------------------------------------------------------


def tried(repetition: Repetition) -> tuple[dict[str, int], list[str], dict[str, int]]:
    """Run one in a process of its own; return what it broke, its history, and how many forks and refusals it had."""
    came_to = _in_time(repetition)
    text = came_to["failed"]
    lines = repetition.path.read_text().splitlines() if repetition.path.exists() else []
    if text:
        broken = {HANGS if "it hangs" in text else WRONG: 1}
        came_to["forks"] = 1
    else:
        rows = in_child(lambda: _committed(repetition)) if repetition.in_transaction else None
        broken = judged(lines, came_to["wanted"], rows if rows is None else dict(rows))
    history = [f"{repetition.name}, {repetition.way}, in_transaction={repetition.in_transaction}", *lines]
    return broken, [*history, *text.splitlines()] if broken else [], came_to


def _in_time(repetition: Repetition) -> dict[str, Any]:
    """Run one; end it, with all that it forked, if that takes too long."""
    nothing = {"wanted": {}, "forks": 0, "refused": 0}

    def work() -> dict[str, Any]:
        os.setsid()
        try:
            return _repeat(repetition)
        except BaseException:  # noqa: BLE001 - whatever it is, it is told
            return {**nothing, "failed": traceback.format_exc()}

    child = Child(work)
    if not select.select([child], [], [], REPETITION_SECONDS)[0]:
        _end_all(child.pid)
    try:
        came_to: dict[str, Any] = child.answer()
    except RuntimeError:
        came_to = {**nothing, "failed": "it hangs, or has died"}
    if came_to["failed"]:
        _end_all(child.pid)
    return came_to


def _end_all(session: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(session, signal.SIGKILL)


def _committed(repetition: Repetition) -> list[tuple[int, int]]:
    return list(exact.counted(repetition.url, repetition.name).items())


def _repeat(repetition: Repetition) -> dict[str, Any]:
    if repetition.way == SINK:
        from servers.receiver import running_receiver

        own = repetition.folder / repetition.name
        own.mkdir()
        os.chdir(own)
        with running_receiver() as receiver:
            Path("oncebridge.toml").write_text(
                f'lease_seconds = {LEASE_SECONDS}\n[sinks.crm]\nurl = "{receiver.url}"\nprivate_addresses = true\n'
            )
            _on_both_sides(repetition)
            for request in receiver.requests:
                repetition.notes.write("effect", json.loads(request.body)["id"], "")
    else:
        _on_both_sides(repetition)
    return {"wanted": repetition.wanted, "forks": repetition.forks, "refused": repetition.refused, "failed": ""}


def _on_both_sides(repetition: Repetition) -> None:
    from children import bring_to_end

    with closing(repetition.make_bridge()) as bridge:
        WAYS[repetition.way](repetition, bridge)
        known = [*repetition.wanted]
        last = repetition.named("last", 2)
        found = repetition.child(lambda: bring_to_end(bridge, [*known, last[0]])).result()
        assert found == {"redelivery": len(known), "fresh": 1}, found
        assert bring_to_end(bridge, [*known, *last]) == {"redelivery": len(known) + 1, "fresh": 1}
        assert bridge.books.as_dict()["balanced"], "books out of balance"


def number_of(name: str) -> int:
    """Return the number of an event in the table of effects."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "big") >> 1


def judged(lines: Sequence[str], wanted: dict[str, int], rows: dict[int, int] | None) -> dict[str, int]:
    """Say what was broken, from what handlers and the watched ledger wrote down, and what was committed."""
    effects: Counter[str] = Counter()
    had: dict[str, set[str]] = {}
    settled: list[tuple[str, str]] = []
    broken: Counter[str] = Counter()
    for line in lines:
        _, process, what, *words = line.split(" ")
        if what == "effect":
            effects[words[0]] += 1
            had.setdefault(words[1], set()).add(process)
        elif what == "settled":
            settled.append((words[0], process))
        elif what == "came-back" and words[0] not in (BatchOfParent.__name__, "SystemExit"):
            broken[WENT_ON] += 1
    broken[NOT_ITS_OWN] = sum(key in had and process not in had[key] for key, process in settled)
    numbers = Counter({name: effects[name] for name in wanted})
    broken["lost"] = sum(numbers[name] < times for name, times in wanted.items())
    broken["doubled"] = sum(numbers[name] > times for name, times in wanted.items())
    if rows is not None:
        expected: Counter[int] = Counter()
        for name, times in wanted.items():
            expected[number_of(name)] += times
        broken["lost"] += sum(rows.get(number, 0) < times for number, times in expected.items())
        broken["doubled"] += sum(rows.get(number, 0) > times for number, times in expected.items())
    return dict(+broken)
