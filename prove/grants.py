"""Who was granted what, and until when: written down by workers around each call, and judged by a clock of one's own.

A grant lies between the moments before and after its call; so does its end. A takeover is called early only where
every moment in between makes it so: what is found did happen, and little that happens is missed.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from oncebridge.claim import Answer, Ask, Claim, Settlement
    from prove.worker import Notes

#: The machine's monotonic clock, which nothing moves; or the wall clock of the workers, where that is the ledger's.
By = Literal["real", "wall"]
NOBODY: Final = "-"


class GrantNotes:
    """Where grants, extensions and ends of claims are written down."""

    def __init__(self, notes: Notes) -> None:
        """Take the file."""
        self._write = notes.write

    def granted(self, asks: Sequence[Ask], answers: Sequence[Answer], times: Sequence[int]) -> None:
        """Write down what was granted, with the times before and after, and for how long."""
        for ask, answer in zip(asks, answers, strict=True):
            if answer.token:
                entity = ask.entity.hex() if ask.entity else NOBODY
                self._write("granted", _event(ask), f"{entity}/{ask.handler}", answer.token, *times)

    def extended(self, claims: Sequence[Claim], oks: Sequence[bool], times: Sequence[int]) -> None:
        """Write down what was extended."""
        for claim, ok in zip(claims, oks, strict=True):
            if ok:
                self._write("extended", _event(claim.ask), claim.token, *times)

    def end(self, settlements: Sequence[Settlement]) -> None:
        """Write down what is about to be settled: from now on it may be another's."""
        for one in settlements:
            self._write("ends", _event(one.claim.ask), one.claim.token, *_now())


def note_grants(ledger: Any, notes: GrantNotes) -> None:
    """Let them be written down around every call; the ledger stays of its own kind."""
    kind = type(ledger)

    def claim(self: Any, asks: Sequence[Ask], *, nonce: bytes, lease_us: int) -> Any:
        before = _now()
        answers = kind.claim(self, asks, nonce=nonce, lease_us=lease_us)
        notes.granted(asks, answers, (*before, *_now(), lease_us * 1000))
        return answers

    def extend(self: Any, claims: Sequence[Claim], *, lease_us: int) -> Any:
        before = _now()
        oks = kind.extend(self, claims, lease_us=lease_us)
        notes.extended(claims, oks, (*before, *_now(), lease_us * 1000))
        return oks

    def settle(self: Any, settlements: Sequence[Settlement]) -> Any:
        notes.end(settlements)
        return kind.settle(self, settlements)

    def start_settle(self: Any, settlements: Sequence[Settlement]) -> Any:
        notes.end(settlements)
        return kind.start_settle(self, settlements)

    @contextmanager
    def transaction(self: Any, settlement: Settlement) -> Iterator[Any]:
        with kind.transaction(self, settlement) as opened:
            yield opened
            notes.end([settlement])

    noted: tuple[Callable[..., Any], ...] = (claim, extend, settle, start_settle, transaction)
    own = {one.__name__: one for one in noted if hasattr(kind, one.__name__)}
    ledger.__class__ = type(f"Noted{kind.__name__}", (kind,), {"__slots__": (), **own})


def _event(ask: Ask) -> str:
    return f"{ask.key.hex()}/{ask.handler}"


def _now() -> tuple[int, int]:
    return time.monotonic_ns(), time.time_ns()


@dataclass
class _Held:
    """One claim of one worker."""

    pid: str
    token: int
    sent: int
    received: int
    lease_ends: int
    ends: int | None = None
    #: When it was surely extended, and to when at least.
    extended: list[tuple[int, int]] = field(default_factory=list)

    def runs_until(self, seen_from: int) -> int:
        """Return until when it runs at least, as far as could be known at a moment."""
        return max([self.lease_ends, *(until for at, until in self.extended if at < seen_from)])


def early_takeovers(path: Path, by: By) -> list[str]:
    """Return where an event or an entity was granted although another worker's claim of it surely ran."""
    held: dict[str, list[_Held]] = defaultdict(list)
    known: dict[tuple[str, str, str], _Held] = {}
    chosen = 0 if by == "real" else 1
    for line in path.read_text().splitlines() if path.exists() else []:
        _, pid, what, event, *words = line.split(" ")
        if what == "granted":
            entity, token, *times = words
            before, after, lease = times[chosen], times[2 + chosen], times[4]
            one = _Held(pid, int(token), int(before), int(after), int(before) + int(lease))
            known[pid, event, token] = one
            for thing in (event, entity):
                if not thing.startswith(NOBODY):
                    held[thing].append(one)
        elif (one := known.get((pid, event, words[0]))) is not None:
            if what == "ends":
                one.ends = one.ends or int(words[1 + chosen])
            else:
                one.extended.append((int(words[3 + chosen]), int(words[1 + chosen]) + int(words[5])))
    return [
        f"{thing} went to process {late.pid} (token {late.token}), although process {early.pid} (token {early.token}) "
        f"had it for {(early.runs_until(late.sent) - late.received) / 1e9:.3f} s more"
        for thing, claims in held.items()
        for late in claims
        for early in claims
        if _is_early(early, late)
    ]


def _is_early(early: _Held, late: _Held) -> bool:
    return (
        early.pid != late.pid
        and early.received < late.sent
        and late.received < early.runs_until(late.sent)
        and (early.ends is None or late.received < early.ends)
    )
