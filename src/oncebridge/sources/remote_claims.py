"""Lends claims to handlers outside this process: the ledger's own claim, extend and settle, one event at a time.

The holder of a lent claim has everything needed to settle it. Nothing is kept here, so any process may take it back,
and a client that disappears costs nothing but its lease.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec
from msgspec.structs import replace

from oncebridge import forks
from oncebridge.claim import Answer, Claim, Outcome, Verdict
from oncebridge.discreet import Discreet
from oncebridge.engine.error_text import ErrorText
from oncebridge.engine.paused import HandlerPaused
from oncebridge.engine.result import Result, reason_for
from oncebridge.engine.task import Delivery, Ended, Task, is_over, move_of, result_as, result_from, result_of
from oncebridge.errors import LedgerUnavailable
from oncebridge.identity import digest, unreadable_key

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from oncebridge.engine.flow import Flow
    from oncebridge.settings import Settings
    from oncebridge.telemetry import Books

#: Identifies a claim: the event, the handler, the token.
Id: TypeAlias = tuple[bytes, str, int]

REMEMBERED_MAX: Final = 10_000
NAMES_MAX: Final = 100  # names come from outside, and become labels of metrics
OTHER_NAMES: Final = "other"
_GONE: Final = "its claim is no longer in force: it ran out and was taken over, or has ended; nothing was changed"


class RemoteClaim(msgspec.Struct, frozen=True, kw_only=True):
    """A claim that a handler elsewhere holds, with the data needed to take it back."""

    claim: Claim
    lease_us: int
    #: When it was lent, by the wall clock of the process that lent it.
    lent_us: int
    #: The digest of the delivery it was lent for.
    raw: bytes

    @property
    def id(self) -> Id:
        """The event, the handler and the token, which identify it."""
        return self.claim.ask.key, self.claim.ask.handler, self.claim.token


class Ending(Discreet, msgspec.Struct, frozen=True, kw_only=True):
    """How a handler elsewhere says that it ended."""

    shown = ("outcome", "retry_in_us")

    outcome: Outcome
    #: None: as the retry policy says.
    retry_in_us: int | None = None
    #: In the client's own words, which may be personal data.
    detail: str = ""
    #: The delivery again: it may become a dead letter.
    raw: bytes = b""


class Settled(msgspec.Struct, frozen=True):
    """The result of settling a claim."""

    #: None if it was no longer in force: then nothing has changed.
    outcome: Outcome | None
    #: Set if its dead letter is kept but could not be sent on: then the client must settle again.
    unsent: Result | None = None


class RemoteClaims:
    """Lends claims out, and takes them back."""

    def __init__(
        self,
        open_flow: Callable[[], Flow],
        settings: Settings,
        *,
        books: Books,
        account: Callable[[Sequence[Result]], None],
        since_us: int,
    ) -> None:
        """Take what opens the ledger, the books, the function that enters results, and when this process began."""
        self._open = open_flow
        self._retry = settings.retry
        self._error_text = ErrorText(settings)
        self._books = books
        self._account = account
        self._since_us = since_us
        #: Claims whose end was reported; True once it is in the books. A client may settle twice.
        self._ended: dict[Id, bool] = {}
        self._names: set[str] = set()
        self._lock = threading.Lock()
        forks.free_locks(self, "_lock")

    # --- claim ---------------------------------------------------------------------------------------

    def read(self, raw: bytes, name: str) -> Task:
        """Parse and identify one delivery for a handler elsewhere."""
        return self._open().reader.read_for(raw, name)

    def is_ours(self, task: Task) -> bool:
        """Return whether a handler in this process takes the event under that name: they would share claims."""
        return task.event is not None and self._open().reader.has_handler(task.event, task.ask.handler)

    def ask(self, task: Task, *, lease_us: int, call: str | None = None) -> RemoteClaim | None:
        """Claim one event; return the claim if it was granted, otherwise the task has a result.

        Raises `LedgerUnavailable`; the outcome is then unknown, and a claim that was granted runs out.

        Args:
            task: What to ask for.

            lease_us: How long the claim runs.

            call: Identifies a client's call: while its claim runs, a repeat of the call gets the same claim.

        """
        flow = self._open()
        task.result = None
        if task.dead_reason is None:
            task.answer = self._answer(flow, task, lease_us, call)
            self._record(flow, "claimed", task, reason_for(task.answer), now_us=flow.clock.now_us())
            if task.answer.verdict is Verdict.FRESH:
                claim = _claim(task, task.answer)
                why_paused = flow.paused.reasons.get(task.ask.handler)
                if why_paused is not None:
                    self._give_back(flow, task, HandlerPaused(why_paused))
                    return None
                if claim.attempt <= self._retry.attempts:
                    raw = unreadable_key(flow.secret, task.raw)
                    return RemoteClaim(claim=claim, lease_us=lease_us, lent_us=flow.clock.now_us(), raw=raw)
                self._bury_run_out(flow, task)
            elif task.answer.verdict is Verdict.CONFLICT:
                flow.reader.turn_into_conflict(task)
            else:
                task.result = result_from(task, task.answer, retry_in_us=task.answer.busy_us)
        if task.result is None:
            flow.process([Delivery(tasks=[task])])  # it becomes a dead letter
        elif is_over(task):
            flow.send_on([task])
        return None

    def _answer(self, flow: Flow, task: Task, lease_us: int, call: str | None) -> Answer:
        if call is None:
            return flow.claim_alone(task, lease_us=lease_us)
        # A nonce is good for one lease and the next. So a repeated call is recognised while its claim runs, but a
        # client that repeats it after a crash gets a new claim, with an attempt that counts.
        turn = flow.clock.now_us() // lease_us
        answer = flow.claim_alone(task, lease_us=lease_us, nonce=_nonce(flow.secret, task, call, turn))
        if answer.verdict is Verdict.BUSY:
            answer = flow.claim_alone(task, lease_us=lease_us, nonce=_nonce(flow.secret, task, call, turn - 1))
        # It may have been granted a while ago, and the client is promised the whole lease.
        if answer.verdict is Verdict.FRESH and not flow.claimer(lease_us).extend(_claim(task, answer)):
            return Answer(Verdict.BUSY)  # it has just ended; the next answer says how
        return answer

    def _give_back(self, flow: Flow, task: Task, paused: HandlerPaused) -> None:
        """Give back a claim that was granted to learn whether the event is news: its handler is paused."""
        ended = Ended(outcome=Outcome.RELEASE, reason=paused.words, retry_in_us=paused.retry_in_us)
        flow.settle_alone(task, ended)  # if it fails, the claim runs out
        task.result = result_as(task, Verdict.FRESH, ended.outcome, ended.reason, retry_in_us=ended.retry_in_us)

    def _bury_run_out(self, flow: Flow, task: Task) -> None:
        reason = f"the worker died or hung with it at each of {self._retry.attempts} attempts"
        if self._settled(flow, task, Ended(outcome=Outcome.DEAD, reason=reason)):
            task.result = result_as(task, Verdict.FRESH, Outcome.DEAD, reason)
            self._report(flow, task, Ended(outcome=Outcome.DEAD, reason=reason))
        else:
            task.result = result_from(task, Answer(Verdict.BUSY))

    # --- extend and settle ---------------------------------------------------------------------------

    def extend(self, lent: RemoteClaim, lease_us: int) -> bool:
        """Extend a claim to this long from now; False if it is no longer in force."""
        return self._open().claimer(lease_us).extend(lent.claim)

    def is_of(self, lent: RemoteClaim, raw: bytes) -> bool:
        """Return whether a delivery is of the event that was claimed."""
        flow = self._open()
        if unreadable_key(flow.secret, raw) == lent.raw:
            return True  # whatever its key: a delivery without an identity gets a new one each time
        task = flow.reader.read_for(raw, lent.claim.ask.handler)
        return task.dead_reason is None and task.ask.key == lent.claim.ask.key

    def settle(self, lent: RemoteClaim, ending: Ending) -> Settled:
        """End a claim; where that leaves a dead letter, send it on as well."""
        flow, claim = self._open(), lent.claim
        ended = self._ended_as(claim, ending)
        answer = Answer(Verdict.FRESH, claim.token, claim.attempt, chain=claim.chain)
        task = Task(ask=claim.ask, raw=ending.raw, answer=answer)
        duration_ms = max(0, flow.clock.now_us() - lent.lent_us) / 1000
        if not self._settled(flow, task, ended):
            self._record(flow, "lost", task, _GONE, outcome=Outcome.RETRY, duration_ms=duration_ms)
            return Settled(None)
        if self._is_first_report(lent.id, entered=False):
            self._report(flow, task, ended, duration_ms)
        task.result = result_as(task, Verdict.FRESH, ended.outcome, ended.reason, retry_in_us=ended.retry_in_us)
        if ended.outcome is Outcome.DEAD:
            flow.send_on([task])
            if not is_over(task):
                return Settled(ended.outcome, unsent=result_of(task))
        if self._is_first_report(lent.id, entered=True):
            if lent.lent_us < self._since_us:
                self._books.receive()  # lent in an earlier run, whose books are closed
            self._account([replace(result_of(task), topic=claim.ask.topic)])
        return Settled(ended.outcome)

    def _ended_as(self, claim: Claim, ending: Ending) -> Ended:
        """Turn a client's report into the end of its claim, with a reason that is free of the client's own words."""
        attempt, limit = claim.attempt, self._retry.attempts
        detail = self._error_text.of_client(ending.detail)
        match ending.outcome:
            case Outcome.DONE:
                reason = "first delivery of this event" if attempt == 1 else f"done at attempt {attempt}"
                return Ended(outcome=Outcome.DONE, reason=reason)
            case Outcome.RELEASE:
                return Ended(outcome=Outcome.RELEASE, reason="its handler gave it back; this was no attempt")
            case Outcome.RETRY if attempt < limit:
                retry_in_us = ending.retry_in_us
                if retry_in_us is None:
                    retry_in_us = int(self._retry.delay_seconds(attempt) * 1_000_000)
                reason = f"its handler failed at attempt {attempt} of {limit}; to be tried again"
                return Ended(outcome=Outcome.RETRY, reason=reason, detail=detail, retry_in_us=retry_in_us)
            case Outcome.RETRY:
                reason = f"its handler failed at attempt {attempt} of {limit}"
            case _:
                reason = f"its handler gave it up at attempt {attempt}"
        return Ended(outcome=Outcome.DEAD, reason=reason, detail=detail)

    def _settled(self, flow: Flow, task: Task, ended: Ended) -> bool:
        if ended.outcome is Outcome.DEAD and not flow.letter_room.is_there():
            raise LedgerUnavailable(flow.letter_room.words)
        return flow.settle_alone(task, ended)

    # --- reporting -------------------------------------------------------------------------------------

    def _is_first_report(self, claim: Id, *, entered: bool) -> bool:
        """Return True the first time this claim's end is reported; with `entered`, the first time it is counted."""
        with self._lock:
            before = self._ended.pop(claim, None)
            self._ended[claim] = entered or bool(before)
            if len(self._ended) > REMEMBERED_MAX:
                del self._ended[next(iter(self._ended))]
            return not before if entered else before is None

    def _report(self, flow: Flow, task: Task, ended: Ended, duration_ms: float | None = None) -> None:
        """Report how a claim was settled: failures and dead letters as warnings."""
        if ended.outcome in (Outcome.RETRY, Outcome.DEAD):
            move = move_of("settled", task, ended.reason, outcome=ended.outcome, duration_ms=duration_ms)
            move = replace(move, handler=self._label(move.handler))
            if ended.outcome is Outcome.DEAD:
                flow.failures.kept(move, move.handler, detail=ended.detail)
                return
            flow.failures.failed(replace(move, move="failed"), move.handler, "elsewhere", detail=ended.detail)
        self._record(flow, "settled", task, ended.reason, outcome=ended.outcome, duration_ms=duration_ms)

    def _record(
        self,
        flow: Flow,
        move: str,
        task: Task,
        reason: str,
        *,
        outcome: Outcome | None = None,
        duration_ms: float | None = None,
        now_us: int | None = None,
    ) -> None:
        if flow.telemetry.listening:
            record = move_of(move, task, reason, outcome=outcome, duration_ms=duration_ms, now_us=now_us)
            flow.telemetry.record(replace(record, handler=self._label(record.handler)))

    def _label(self, name: str) -> str:
        """Return a client's name as a label, while there are few of them."""
        with self._lock:
            if len(self._names) < NAMES_MAX:
                self._names.add(name)
            return name if name in self._names else OTHER_NAMES


def _claim(task: Task, answer: Answer) -> Claim:
    return Claim(task.ask, answer.token, answer.attempt, answer.chain)


def _nonce(secret: bytes, task: Task, call: str, turn: int) -> bytes:
    """Make the nonce that identifies a call: from the client's key, the event and the handler."""
    parts = (call.encode(), task.ask.key, task.ask.handler.encode(), turn.to_bytes(9, "big", signed=True))
    return digest(secret, b"nonce", parts)[:8]
