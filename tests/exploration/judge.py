"""The independent judge of an exploration: its own book, kept without any rule of ledgers or of order.

The judge sees the answers that workers get, the verdicts that they draw from them, and the effects at the sink. From
that alone it decides whether each was right, so a mistake in `oncebridge.claim` or in a ledger cannot excuse itself
here. Of `oncebridge.claim` it knows only the words.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from exploration.scenarios import Delivery, Scenario, ScenarioEvent
from oncebridge.claim import Answer, Outcome, Status, Verdict

T = TypeVar("T")

ECHO_WINDOW_MS: Final = 500
AHEAD_MS_MAX: Final = 10 * 60 * 1000
ATTEMPTS_MAX: Final = 2

#: The columns of the books in which a delivery may be acknowledged, and the status that its event must have.
_COLUMNS: Final = {
    "processed": {Status.DONE},
    "echo": {Status.ECHO},
    "stale": {Status.STALE},
    "dead": {Status.DEAD},
    "conflict": {Status.DEAD},
    "redelivery": {Status.DONE, Status.ECHO, Status.STALE, Status.DEAD},
    "republish": {Status.DONE, Status.ECHO, Status.STALE, Status.DEAD},
}
_DUPLICATES: Final = ("redelivery", "republish")
_COUNTED_EACH_TIME: Final = (*_DUPLICATES, "conflict")  # every delivery of a conflict is called so
_FOR_GOOD: Final = {
    Outcome.DONE: Status.DONE,
    Outcome.ECHO: Status.ECHO,
    Outcome.STALE: Status.STALE,
    Outcome.DEAD: Status.DEAD,
}


class Broken(StrEnum):
    """The promises, by what it is called when one is broken."""

    ACKNOWLEDGED = "acknowledged"  # a delivery whose event is not settled for good
    LOST = "lost"  # an event that is done without its effect, or that the ledger does not know in the end
    HOLDERS = "two holders"  # an event or entity granted while another claim of it runs
    AGAIN = "again"  # an event granted that was settled for good
    TOKEN = "token"  # a token that is not above every earlier one
    LATE = "late"  # a settle or extend accepted, or taking effect, from a worker that was overtaken
    REFUSED = "refused"  # a settle or extend refused to the worker whose claim is in force
    REPEAT = "repeat"  # another answer to a call whose first reply was lost
    BLOCKED = "blocked"  # busy though nobody holds it, or a state from which the deliveries never come to an end
    ECHO = "echo"  # called an echo though the sink shows another state, or of another time
    STALE = "stale"  # called stale though nothing newer has taken effect
    NEWEST = "newest"  # in the end the sink shows a state that is not the newest
    ATTEMPTS = "attempts"  # counted otherwise than failures and lonely run-outs
    VERDICT = "verdict"  # redelivery, republish or conflict mistaken for one another
    BOOKS = "books"  # a delivery in no column or a wrong one, an event counted twice or not at all


class Violation(AssertionError):
    """A broken promise, with the steps that lead to it."""

    def __init__(self, kind: Broken, message: str) -> None:
        """Take the promise and how it was broken; the explorer adds the steps."""
        super().__init__(message)
        self.kind = kind
        self.trace: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Write one line a step, so that a reader can follow it with a finger in the code."""
        steps = "".join(f"\n  {number:2}. {step}" for number, step in enumerate(self.trace, 1))
        return f"{self.kind}: {self.args[0]}{steps}"


class Asked(msgspec.Struct, frozen=True):
    """One claim call: the first delivery of each event, until when, whether alone and for a dead letter's sake."""

    deliveries: tuple[Delivery, ...]
    until_us: int
    alone: bool
    buried: bool


class Hold(msgspec.Struct, frozen=True):
    """The newest claim of an entity or a fact: its highest token, and those that are not settled."""

    top: int = 0
    until_us: int = 0
    open: tuple[int, ...] = ()


class Last(msgspec.Struct, frozen=True):
    """The newest claim of an event, and how it was settled."""

    token: int = 0
    alone: bool = False
    outcome: Outcome | None = None


class Shown(msgspec.Struct, frozen=True):
    """What a fenced sink shows: the event that wrote last, and the highest token it has seen."""

    token: int = 0
    event: int = -1


class Closed(msgspec.Struct, frozen=True):
    """How an event was settled for good, and by the delivery with which envelope id."""

    status: Status
    envelope: str | None


class Book(msgspec.Struct, frozen=True, kw_only=True):
    """All that the judge remembers; the sink is here too, since a ledger must not know it."""

    holds: tuple[Hold, ...]
    shown: tuple[Shown, ...]
    lasts: tuple[Last, ...]
    closed: tuple[Closed | None, ...]
    effects: tuple[bool, ...]
    spent: tuple[int, ...]
    counted: tuple[bool, ...]


class Judge:
    """Takes down what happens in one scenario, and raises a `Violation` where a promise is broken."""

    def __init__(self, scenario: Scenario) -> None:
        """Take the truth."""
        self._scenario = scenario
        self._events = scenario.events

    def blank(self) -> Book:
        """Return the book before anything happened."""
        count, fences = len(self._events), self._scenario.fences
        return Book(
            holds=(Hold(),) * (fences + (count if any(this.id for this in self._events) else 0)),
            shown=(Shown(),) * fences,
            lasts=(Last(),) * count,
            closed=(None,) * count,
            effects=(False,) * count,
            spent=(0,) * count,
            counted=(False,) * count,
        )

    # --- claim ---------------------------------------------------------------------------------------

    def claimed(
        self, book: Book, asked: Asked, answers: list[Answer], *, lost: tuple[Answer, ...], now_us: int
    ) -> Book:
        """Judge the answers to a claim; `lost` are those that the same call had before, but that nobody heard."""
        before = book.holds
        begun = any(answer.verdict is Verdict.FRESH for answer in answers)
        for place, (by, answer) in enumerate(zip(asked.deliveries, answers, strict=True)):
            fence = self._scenario.fence(by.event, buried=asked.buried)
            hold = before[fence]
            if lost and lost[place].token in hold.open:
                _require(_alike(answer, lost[place]), Broken.REPEAT, f"{_said(lost[place])}, then {_said(answer)}")
                continue
            self._judge_answer(book, by, answer, buried=asked.buried)
            runs = bool(hold.open) and hold.until_us > now_us
            if answer.verdict is Verdict.BUSY:
                _require(runs or begun, Broken.BLOCKED, "busy, though nobody holds it, and nothing of it is before it")
            elif answer.token:
                _require(not runs, Broken.HOLDERS, f"token {hold.top} holds it already")
                _require(book.closed[by.event] is None, Broken.AGAIN, "it was settled for good")
                book = self._granted(book, by.event, answer, fence, asked, joins=book.holds[fence] is not hold)
        return book

    def _judge_answer(self, book: Book, by: Delivery, answer: Answer, *, buried: bool) -> None:
        """Judge whether duplicates and conflicts are called so."""
        conflict = not buried and self._has_rival(book, by.event)
        right = (answer.verdict is Verdict.CONFLICT) == conflict
        _require(right, Broken.VERDICT, f"its id came {'' if conflict else 'never '}before with other content")
        if answer.verdict in (Verdict.REDELIVERY, Verdict.REPUBLISH):
            self._judge_duplicate(book, by, answer.verdict.value)

    def _judge_duplicate(self, book: Book, by: Delivery, called: str) -> None:
        closed = book.closed[by.event]
        if closed is not None:
            same = by.envelope is not None and by.envelope == closed.envelope
            right = "redelivery" if same else "republish"
            _require(called == right, Broken.VERDICT, f"{called} should be {right}")

    def _has_rival(self, book: Book, event: int) -> bool:
        """Tell whether another content came before under the same explicit id."""
        mine = self._events[event].id
        if mine is None:
            return False
        rivals = [other for other, this in enumerate(self._events) if other != event and this.id == mine]
        first = [one for one in rivals if not book.holds[self._scenario.fence(one, buried=True)].top]
        return any(book.lasts[rival].token or book.closed[rival] for rival in first)

    def _standing(self, book: Book, now_us: int) -> list[ScenarioEvent]:
        """Return the events that may be the newest: done or echoed, and not from the far future."""
        return [
            this
            for this, closed in zip(self._events, book.closed, strict=True)
            if closed is not None and closed.status in (Status.DONE, Status.ECHO) and _is_credible(this, now_us)
        ]

    def _granted(self, book: Book, event: int, answer: Answer, fence: int, asked: Asked, *, joins: bool) -> Book:
        """Take down a grant; the second of a chain joins the first in its hold."""
        last, hold = book.lasts[event], book.holds[fence]
        _require(answer.token > hold.top, Broken.TOKEN, f"token {answer.token} is not above {hold.top}")
        ran_out = last.token != 0 and last.outcome is None
        spent = book.spent[event] + (1 if ran_out and last.alone else 0)
        _require(answer.attempt == 1 + spent, Broken.ATTEMPTS, f"attempt {answer.attempt}, not {1 + spent}")
        _require(asked.alone or not ran_out, Broken.ATTEMPTS, "its last claim ran out, but it is not claimed alone")
        held = Hold(answer.token, asked.until_us, (*(hold.open if joins else ()), answer.token))
        return replace(
            book,
            holds=_put(book.holds, fence, held),
            lasts=_put(book.lasts, event, Last(answer.token, asked.alone)),
            spent=_put(book.spent, event, spent),
        )

    # --- extend, effect and settle -------------------------------------------------------------------

    def extended(self, book: Book, fence: int, top: int, *, until_us: int, kept: bool, changed: bool) -> Book:
        """Judge an answer to an extend: of a fact by its token, of a chain by the highest of its tokens."""
        hold = book.holds[fence]
        if not hold.open or hold.top != top:
            _require(not kept and not changed, Broken.LATE, f"token {top} was extended, but is not in force")
            return book
        _require(kept, Broken.REFUSED, f"token {top} is in force, but was not extended")
        return replace(book, holds=_put(book.holds, fence, replace(hold, until_us=until_us)))

    def effect(self, book: Book, event: int, token: int) -> Book:
        """Bring an effect to the sink, which silently ignores tokens below the highest it has seen."""
        fence = self._scenario.fence(event)
        if token < book.shown[fence].token:
            return book
        return replace(
            book, shown=_put(book.shown, fence, Shown(token, event)), effects=_put(book.effects, event, True)
        )

    def called_echo(self, book: Book, event: int, token: int) -> None:
        """Judge the verdict of a worker whose claim is in force: the sink shows that state at this moment."""
        fence = self._scenario.fence(event)
        if token not in book.holds[fence].open:
            return  # a late worker: it must not be able to settle that
        this, shown = self._events[event], book.shown[fence].event
        _require(shown >= 0, Broken.ECHO, "the sink shows nothing yet")
        other = self._events[shown]
        _require(other.state == this.state, Broken.ECHO, f"the sink shows {other.name}")
        apart = max(abs(one - two) for one, two in zip(this.times_ms, other.times_ms, strict=True))
        _require(apart <= ECHO_WINDOW_MS, Broken.ECHO, f"the sink shows {other.name}, {apart} ms apart")

    def settled(
        self,
        book: Book,
        by: Delivery,
        fence: int,
        token: int,
        outcome: Outcome,
        *,
        kept: bool,
        changed: bool,
        buried: bool,
        now_us: int,
    ) -> Book:
        """Judge an answer to a settle."""
        event, hold = by.event, book.holds[fence]
        last = book.lasts[event]
        if token not in hold.open:
            repeated = last.token == token and last.outcome is outcome
            _require(kept or not repeated, Broken.REPEAT, f"{outcome} was accepted first, then refused")
            _require(repeated or not kept, Broken.LATE, f"{outcome} of token {token}, which is not in force")
            _require(not changed, Broken.LATE, f"{outcome} of token {token} changed the ledger once more")
            return book
        _require(kept, Broken.REFUSED, f"{outcome} of token {token}, which is in force")
        spent = book.spent[event] + (1 if outcome in (Outcome.RETRY, Outcome.DEAD) else 0)
        self._judge_outcome(book, event, outcome, dead_for=ATTEMPTS_MAX if buried else spent, now_us=now_us)
        closed = Closed(_FOR_GOOD[outcome], by.envelope) if outcome in _FOR_GOOD else None
        left = tuple(one for one in hold.open if one != token)
        return replace(
            book,
            holds=_put(book.holds, fence, replace(hold, open=left)),
            lasts=_put(book.lasts, event, replace(last, outcome=outcome)),
            spent=_put(book.spent, event, spent),
            closed=_put(book.closed, event, closed),
        )

    def _judge_outcome(self, book: Book, event: int, outcome: Outcome, *, dead_for: int, now_us: int) -> None:
        match outcome:
            case Outcome.DONE:
                _require(book.effects[event], Broken.LOST, "done, but its effect never reached the sink")
            case Outcome.STALE:
                reasons = [other for other in self._standing(book, now_us) if _newer(other, self._events[event])]
                _require(bool(reasons), Broken.STALE, "nothing newer has taken effect")
            case Outcome.DEAD:
                _require(dead_for >= ATTEMPTS_MAX, Broken.ATTEMPTS, f"dead after {dead_for} attempts")

    # --- acknowledge and end -------------------------------------------------------------------------

    def acknowledged(self, book: Book, by: Delivery, column: str) -> Book:
        """Judge an acknowledgement, and the column of the books that it went to."""
        event = by.event
        closed = book.closed[event]
        if closed is None:
            raise Violation(Broken.ACKNOWLEDGED, f"{self._events[event].name} is not settled for good")
        right = closed.status in _COLUMNS.get(column, ())
        _require(right, Broken.BOOKS, f"{self._events[event].name} is {closed.status}, but counted as {column!r}")
        if column in _DUPLICATES:
            self._judge_duplicate(book, by, column)
        if column in _COUNTED_EACH_TIME:
            return book
        _require(not book.counted[event], Broken.BOOKS, f"{self._events[event].name} counted as {column!r} once more")
        return replace(book, counted=_put(book.counted, event, True))

    def ended(self, book: Book, statuses: list[Status | None], counts: dict[Status, int], now_us: int) -> None:
        """Judge the end, when every delivery is acknowledged: what the ledger knows, and what the sink shows."""
        for this, closed, status in zip(self._events, book.closed, statuses, strict=True):
            if closed is None:
                raise Violation(Broken.LOST, f"{this.name} was never settled")
            _require(status is closed.status, Broken.LOST, f"{this.name} was {closed.status}, the ledger says {status}")
        counted = Counter(closed.status for closed in book.closed if closed is not None)
        _require(counts == counted, Broken.BOOKS, f"the ledger counts {counts}, there were {dict(counted)}")
        if self._scenario.state:
            self._judge_newest(book, now_us)

    def _judge_newest(self, book: Book, now_us: int) -> None:
        """Of two states at the same time either may be shown; so may one that failed after its effect."""
        shown = book.shown[0].event
        standing = self._standing(book, now_us)
        if shown < 0 or not standing or not _is_credible(self._events[shown], now_us):
            return
        newest = [one for one in standing if not any(_newer(other, one) for other in standing)]
        this, closed = self._events[shown], book.closed[shown]
        right = this.state in {one.state for one in newest}
        if closed is not None and closed.status is Status.DEAD:
            right = right or not any(_newer(one, this) for one in newest)
        _require(right, Broken.NEWEST, f"the sink shows {this.name}, the newest is {newest[0].name}")


def _require(condition: bool, kind: Broken, message: str) -> None:
    if not condition:
        raise Violation(kind, message)


def _alike(one: Answer, other: Answer) -> bool:
    return (one.verdict, one.token, one.attempt) == (other.verdict, other.token, other.attempt)


def _newer(one: ScenarioEvent, other: ScenarioEvent) -> bool:
    """Tell whether an event is strictly newer: by version where both have one, else no time of it is earlier."""
    if one.version is not None and other.version is not None:
        return one.version > other.version
    pairs = list(zip(one.times_ms, other.times_ms, strict=True))
    return all(mine >= theirs for mine, theirs in pairs) and any(mine > theirs for mine, theirs in pairs)


def _is_credible(this: ScenarioEvent, now_us: int) -> bool:
    return this.version is not None or max(this.times_ms) <= now_us // 1000 + AHEAD_MS_MAX


def _said(answer: Answer) -> str:
    return f"{answer.verdict}, token {answer.token}, attempt {answer.attempt}"


def _put(values: tuple[T, ...], at: int, value: T) -> tuple[T, ...]:
    return (*values[:at], value, *values[at + 1 :])
