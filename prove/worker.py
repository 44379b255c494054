"""A worker, in a process of its own: takes batches through a socket, and writes down every effect as it happens.

What it writes goes into a file that it can only append to, a line in one system call. A worker that is killed has
written it or has not; nothing that it does later can take it back.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from oncebridge import Bridge, Event, Settings
from oncebridge.claim import SETTLED, Outcome, Settlement
from oncebridge.errors import LedgerUnavailable
from oncebridge.identity import key_bytes
from oncebridge.ledgers.loan import Loan
from oncebridge.retry import RetryPolicy
from prove.exact import writer
from prove.faults import HARMLESS, Fault, Where
from prove.stream import number_in

if TYPE_CHECKING:
    from oncebridge.engine.result import Result
    from oncebridge.ledgers.protocol import Ledger

LENGTH: Final = 4
PAUSE_SECONDS: Final = 0.05
#: Longer than any run, whatever befalls its clocks.
RETENTION_US: Final = 86_400_000_000
#: Of all events, where handlers fail.
FAILING: Final = 5
PLAIN: Final = "plain"
EXACT: Final = "exact"
#: The way in of programs that ask for claims over HTTP.
CLAIMS: Final = "claims"


#: Processes a batch of deliveries, and says of each whether it may be acknowledged.
Process = Callable[[list[bytes]], Any]
Program = Callable[["Conditions", "Strikes", "Notes"], AbstractContextManager[Process]]


class FailedOnPurpose(RuntimeError):
    """What a handler raises because it is to fail."""


@dataclass(frozen=True)
class Conditions:
    """What all workers of a round have in common."""

    url: str
    #: The round's name, which no other has.
    name: str
    notes: Path
    lease_seconds: float = 0.3
    #: Whether a second handler takes each event, and writes in the transaction that settles it.
    exact: bool = False
    #: Changes the program before it is used: for showing that a broken one is caught.
    spoil: Callable[[Bridge], None] | None = None
    way_in: str = "process_many"
    #: Where claims are lent out, for the way in by them.
    service: str = ""
    #: That keys are made with; the ledger makes its own otherwise.
    secret: bytes | None = None
    #: What processes deliveries in place of a bridge: programs that people write by hand.
    program: Program | None = None
    #: Whether the bridge is opened and used before workers are forked, which then all have it.
    inherit: bool = False
    #: Ends are written at once, where this is 0, and not those of a batch together.
    settle_within_seconds: float = 0.001
    #: How long a handler takes before its effect.
    effect_seconds: float = 0.0
    #: Whether each worker forgets, after its first batch, what was settled before the retention; nothing here was.
    purges: bool = False
    #: Whether handlers fail at the first attempt of some events, before their effect.
    fails: bool = False
    #: Whether the ledger is asked whether what was acknowledged is settled.
    looks: bool = False

    @property
    def handlers(self) -> tuple[str, ...]:
        """The names of those that take each event."""
        return (PLAIN, EXACT) if self.exact else (PLAIN,)


class Notes:
    """A file that lines are only ever added to."""

    def __init__(self, path: Path) -> None:
        """Open it."""
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, *words: object) -> None:
        """Add a line, whole or not at all."""
        os.write(self._file, (" ".join(map(str, (time.monotonic_ns(), os.getpid(), *words))) + "\n").encode())


class Strikes:
    """Lets a fault happen where it was planned."""

    def __init__(self, fault: Fault | None, notes: Notes) -> None:
        """Watch for it."""
        self._notes = notes
        self.plan(fault)

    def plan(self, fault: Fault | None) -> None:
        """Watch for this one from now on."""
        self._fault = fault
        self._reached: Counter[Where] = Counter()
        #: Whether this worker is to end, in order, as soon as its batch is done.
        self.leaves = False
        #: Whether the ledger is out of its reach for the rest of its life.
        self._is_cut_off = False
        if fault is not None and fault.where == "point":
            threading.setprofile(self._count)
            sys.setprofile(self._count)

    def at(self, where: Where) -> None:
        """Strike, if this is the place."""
        if self._is_cut_off and where in ("before claim", "before settle"):
            raise LedgerUnavailable("the ledger stays away, on purpose")
        fault = self._fault
        if fault is None or fault.where != where:
            return
        self._reached[where] += 1
        # What is harmless strikes again and again, but never twice in a row: a repeat must get through.
        if self._reached[where] == fault.at or (
            fault.kind in HARMLESS and self._reached[where] % (fault.at + 1) == fault.at
        ):
            self._strike(fault)

    def _count(self, *_: object) -> None:
        self.at("point")

    def _strike(self, fault: Fault) -> None:
        self._notes.write("fault", str(fault).replace(" ", "_"))
        if fault.kind == "raise":
            if "effect" in fault.where:
                raise FailedOnPurpose("a fault on purpose")
            return
        if fault.kind == "lose":
            raise LedgerUnavailable("the reply was lost, on purpose")
        if fault.kind == "away":
            self.leaves = self._is_cut_off = True
            raise LedgerUnavailable("the ledger goes away, on purpose")
        if fault.kind == "pause":
            time.sleep(PAUSE_SECONDS)
            return
        if fault.kind == "leave":
            self.leaves = True
            return
        os.kill(os.getpid(), signal.SIGKILL if fault.kind == "kill" else signal.SIGSTOP)
        self.leaves = True  # whatever it does now is late; after that its place is for the next one
        if fault.kind == "stop" and fault.where == "before effect" and fault.at % 2:
            raise FailedOnPurpose("fails after it was stopped, on purpose")


def watch(ledger: Any, strikes: Strikes, notes: Notes) -> None:
    """Let faults strike around the calls of a ledger, and write down which ends of claims it took.

    The ledger stays of its own kind, so that the program sees the same abilities as always.
    """
    kind = type(ledger)

    def took(settlements: Sequence[Settlement], answers: Sequence[bool]) -> list[bool]:
        for settlement, ok in zip(settlements, answers, strict=True):
            if ok and settlement.outcome is Outcome.DONE:
                ask = settlement.claim.ask
                notes.write("settled", f"{ask.key.hex()}/{ask.handler}", settlement.claim.token)
        strikes.at("after settle")
        return list(answers)

    def claim(self: Any, *given: Any, **named: Any) -> Any:
        strikes.at("before claim")
        answers = kind.claim(self, *given, **named)
        strikes.at("after claim")
        return answers

    def settle(self: Any, settlements: Sequence[Settlement]) -> list[bool]:
        strikes.at("before settle")
        return took(settlements, kind.settle(self, settlements))

    def start_settle(self: Any, settlements: Sequence[Settlement]) -> Callable[[], list[bool]]:
        strikes.at("before settle")
        finish = kind.start_settle(self, settlements)
        return lambda: took(settlements, finish())

    def transaction(self: Any, settlement: Settlement) -> Loan[Any]:
        return Loan(lend(kind.transaction(self, settlement), settlement))

    def lend(opened: AbstractContextManager[Any], settlement: Settlement) -> Generator[Any, None, None]:
        try:
            with opened as lent:
                yield lent
                strikes.at("before settle")
            took([settlement], [True])
        finally:  # as its borrower does: a strike in `with` itself ends nothing
            if isinstance(opened, Loan):
                opened.close()

    watched = (claim, settle, start_settle, transaction)
    own = {one.__name__: one for one in watched if hasattr(kind, one.__name__)}
    ledger.__class__ = type(f"Watched{kind.__name__}", (kind,), {"__slots__": (), **own})


def fails_at_first(conditions: Conditions, attempt: int, number: int) -> None:
    """Fail an event before its effect, where handlers are to fail."""
    if conditions.fails and attempt == 1 and number % FAILING == 0:
        raise FailedOnPurpose("fails at first, on purpose")


def make_bridge(conditions: Conditions, strikes: Strikes, notes: Notes) -> Bridge:
    """Make a worker's bridge, whose handlers write down what they do."""
    settings = Settings(
        lease_seconds=conditions.lease_seconds,
        busy_wait_seconds=0.0,
        settle_within_seconds=conditions.settle_within_seconds,
        retry=RetryPolicy(attempts=1_000, base_seconds=0.1, cap_seconds=1.0),
        secret=conditions.secret,
    )
    bridge = Bridge(conditions.url, settings=settings)
    watch(bridge.ledger, strikes, notes)

    @bridge.on("*", name=PLAIN)
    def plain(event: Event) -> None:
        fails_at_first(conditions, event.attempt, number_in(event.body))
        strikes.at("before effect")
        time.sleep(conditions.effect_seconds)
        notes.write("effect", number_in(event.body), event.key, event.token)
        strikes.at("after effect")

    if conditions.exact:
        write = writer(conditions.url, conditions.name)

        @bridge.on("*", name=EXACT)
        def exact(event: Event, transaction: Any) -> None:
            fails_at_first(conditions, event.attempt, number_in(event.body))
            strikes.at("before effect")
            write(transaction, number_in(event.body))
            strikes.at("after effect")

    if conditions.spoil:
        conditions.spoil(bridge)
    return bridge


@dataclass(frozen=True)
class Inherited:
    """A bridge that was opened and used before its workers were forked."""

    bridge: Bridge
    strikes: Strikes


def open_before_fork(conditions: Conditions) -> Inherited:
    """Open a bridge, and use it, for workers that will be forked from this process."""
    notes = Notes(conditions.notes)
    strikes = Strikes(None, notes)
    bridge = make_bridge(conditions, strikes, notes)
    bridge.open()
    bridge.ledger.counts()
    return Inherited(bridge, strikes)


def live(
    conditions: Conditions,
    fault: Fault | None,
    parent: socket.socket,
    strikes: Callable[[Fault | None, Notes], Strikes] = Strikes,
    inherited: Inherited | None = None,
) -> NoReturn:
    """Process batches until there are no more; never return."""
    code = 1
    try:
        if inherited is None:
            notes = Notes(conditions.notes)
            watching = strikes(fault, notes)
            with worker(conditions, watching, notes) as process:
                _serve(parent, process, watching)
        else:
            inherited.strikes.plan(fault)
            with inherited.bridge as bridge:
                _serve(parent, lambda raws: _processed(bridge, raws, conditions.way_in)[1], inherited.strikes)
        code = 0
    except BaseException:  # noqa: BLE001 - a forked process must never return into what its parent was doing
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(code)


def _serve(parent: socket.socket, process: Process, strikes: Strikes) -> None:
    while not strikes.leaves and (batch := receive(parent)) is not None:
        send(parent, process([raw.encode() for raw in batch]))


@contextmanager
def worker(conditions: Conditions, strikes: Strikes, notes: Notes) -> Iterator[Process]:
    """Make what processes batches, and close it in the end."""
    if conditions.program is not None:
        with conditions.program(conditions, strikes, notes) as process:
            yield process
    elif conditions.way_in == CLAIMS:
        from prove.claimant import Claimant

        yield Claimant(conditions, strikes, notes).process
    else:
        # Opened by its first batch: a ledger that is out of reach is an outage then, as it is later.
        with closing(make_bridge(conditions, strikes, notes)) as bridge:
            purges = conditions.purges

            def process(raws: list[bytes]) -> dict[str, Any]:
                nonlocal purges
                results, told = _processed(bridge, raws, conditions.way_in)
                with suppress(LedgerUnavailable):
                    if conditions.looks:
                        look(bridge.ledger, results, conditions.handlers, notes)
                    if purges:
                        purges = False
                        bridge.ledger.purge(older_than_us=RETENTION_US)
                return told

            yield process


def look(ledger: Ledger, results: Sequence[Result], handlers: Sequence[str], notes: Notes) -> None:
    """Write down what was acknowledged and is not settled at each handler: what is, stays so, whoever works on."""
    for text in {result.key for result in results if result.acknowledged and result.key}:
        key = key_bytes(text)
        assert key is not None
        settled = {entry.handler for entry in ledger.get(key) if entry.status in SETTLED}
        for handler in set(handlers) - settled:
            notes.write("vain", f"{text}/{handler}")


def _processed(bridge: Bridge, raws: list[bytes], way_in: str) -> tuple[list[Result], dict[str, Any]]:
    try:
        results = [bridge.process(raw) for raw in raws] if way_in == "process" else bridge.process_many(raws)
    except LedgerUnavailable as error:
        return [], {"acknowledged": [False] * len(raws), "columns": [], "trouble": str(error)}
    return results, {
        "acknowledged": [result.acknowledged for result in results],
        "columns": [result.column for result in results],
        "balanced": bool(bridge.books.as_dict()["balanced"]),
    }


def send(to: socket.socket, message: Any) -> None:
    """Send a message."""
    data = json.dumps(message).encode()
    to.sendall(len(data).to_bytes(LENGTH, "big") + data)


def receive(source: socket.socket) -> Any:
    """Return the next message; None after the last one, and where the other side died within one."""
    head = _exactly(source, LENGTH)
    data = head and _exactly(source, int.from_bytes(head, "big"))
    return json.loads(data) if data else None


def _exactly(source: socket.socket, number: int) -> bytes | None:
    data = b""
    while len(data) < number:
        try:
            more = source.recv(number - len(data))
        except ConnectionResetError:
            more = b""
        if not more:
            return None
        data += more
    return data
