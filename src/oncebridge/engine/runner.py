"""Gives one claimed event to its handler, and turns whatever happens into the end of the claim."""

from __future__ import annotations

import inspect
from math import inf
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from oncebridge import forks
from oncebridge.breaker import Open
from oncebridge.claim import Claim, Outcome
from oncebridge.engine.error_text import ErrorText, place_of
from oncebridge.engine.loop import LoopThread
from oncebridge.engine.paused import HandlerPaused
from oncebridge.engine.task import Ended, claim_of, done_settlement
from oncebridge.errors import (
    BatchOfParent,
    ClaimLost,
    ConfigurationError,
    LedgerRefused,
    LedgerUnavailable,
    PermanentError,
    RetryLater,
)
from oncebridge.handler_signature import name_of
from oncebridge.handlers import SendsMany, uncalled
from oncebridge.interrupts import is_interrupt
from oncebridge.ledgers.loan import Loan
from oncebridge.ledgers.protocol import SettlesInTransaction

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from oncebridge.engine.task import Task
    from oncebridge.event import Event
    from oncebridge.handlers import Handler, LetterCopy
    from oncebridge.ledgers.protocol import Ledger
    from oncebridge.settings import Settings


AGAIN_SECONDS_MAX: Final = 7 * 24 * 3600.0  # longer than any queue keeps a message hidden

#: An event that has probed in vain waits so much longer than those that only wait: the next probe is another one, since
#: this one may be why it failed.
BEHIND_OTHERS_US: Final = 500_000


#: How a handler ended, and the exception that it raised, if any.
Worked: TypeAlias = "tuple[Ended, BaseException | None]"

_WELL: Final[Worked] = Ended(outcome=Outcome.DONE, reason="first delivery of this event"), None
_JUDGED: Final[Worked] = Ended(outcome=Outcome.DONE, reason="first delivery of this event; no handler was called"), None


class _HandlerFailed(Exception):
    """Carries a handler's error out of its transaction, so that the ledger's own errors stay apart."""


def check_transaction(handler: Handler, ledger: Ledger) -> None:
    """Refuse a handler that wants a transaction from a ledger that has none."""
    if handler.wants_transaction and not isinstance(ledger, SettlesInTransaction):
        raise ConfigurationError(
            f"handler for {handler.pattern!r}: {name_of(handler.function)} asks for the transaction, which "
            f"{type(ledger).__name__} does not have; "
            "use a sqlite://, postgresql:// or dynamodb:// ledger, or drop the parameter `transaction`"
        )


class HandlerRunner:
    """Calls handlers."""

    def __init__(self, ledger: Ledger, settings: Settings) -> None:
        """Take what handler calls need; handlers may have a retry policy of their own."""
        self._ledger = ledger
        self._retry = settings.retry
        self._error_text = ErrorText(settings)
        self.loop = LoopThread(settings.handler_timeout_seconds)

    def run(self, handler: Handler, event: Event | LetterCopy, task: Task, attempts: int | None) -> Worked:
        """Call the handler once; `attempts` is the sender's limit, if that is lower than ours.

        Raises errors that are not the handler's failure: interrupts, the ledger's own errors, and any error in a child
        that the handler has forked.
        """
        if handler.function is uncalled:
            return _JUDGED
        generation = forks.generation()
        try:
            if handler.wants_transaction:
                self._call_in_transaction(handler, event, task)
            else:
                result = handler.function(event)
                if result is not None and inspect.isawaitable(result):
                    self._await(result, task)
        except BaseException as raised:  # noqa: BLE001 - whatever a handler raises is its failure, with few exceptions
            return self._worked(handler, claim_of(task), _own_error(raised, handler, generation), attempts)
        if forks.generation() != generation:
            raise BatchOfParent
        claim = claim_of(task)
        if claim.attempt == 1 and not handler.wants_transaction:
            return _WELL  # nearly always
        return self._worked(handler, claim, None, attempts)

    def run_many(
        self, handler: Handler, events: Sequence[Event], claims: Sequence[Claim], attempts: int | None
    ) -> list[Worked]:
        """Call `send_many` once; each event ends by its own entry in the returned list."""
        assert isinstance(handler.function, SendsMany)
        generation = forks.generation()
        errors: Sequence[BaseException | None]
        try:
            errors = handler.function.send_many(events)
            if len(errors) != len(events):
                raise TypeError(f"send_many was given {len(events)} events, and returned {len(errors)} results")  # noqa: TRY301
        except BaseException as raised:  # noqa: BLE001 - whatever a handler raises is its failure, with few exceptions
            errors = [_own_error(raised, handler, generation)] * len(events)
        if forks.generation() != generation:
            raise BatchOfParent
        return [self._worked(handler, claim, error, attempts) for claim, error in zip(claims, errors, strict=True)]

    def _worked(self, handler: Handler, claim: Claim, error: BaseException | None, attempts: int | None) -> Worked:
        return self._ended(handler, claim, error, attempts), None if isinstance(error, (ClaimLost, Open)) else error

    def _ended(self, handler: Handler, claim: Claim, error: BaseException | None, attempts: int | None) -> Ended:
        if error is None:
            return Ended(outcome=Outcome.DONE, reason=_attempt(claim.attempt), settled=handler.wants_transaction)
        if isinstance(error, (ClaimLost, Open)):
            return self._untried(handler, claim, error, attempts)
        return self._failed(handler, claim, error, self._limit(handler, attempts))

    def _limit(self, handler: Handler, attempts: int | None) -> float:
        if handler.persistent:
            return inf
        own = (handler.retry or self._retry).attempts
        return own if attempts is None else min(attempts, own)

    def _await(self, result: Awaitable[Any], task: Task) -> None:
        assert task.lease is not None
        self.loop.run(result, task.lease)

    def _call_in_transaction(self, handler: Handler, event: Event | LetterCopy, task: Task) -> None:
        assert isinstance(self._ledger, SettlesInTransaction)
        assert task.lease is not None
        task.lease.in_transaction = task.claim
        generation, loan = forks.generation(), self._ledger.transaction(done_settlement(task))
        try:
            with _Transaction(loan) as transaction:
                try:
                    result = handler.function(event, transaction=transaction)
                    if result is not None and inspect.isawaitable(result):
                        self._await(result, task)
                except Open:
                    raise  # the handler was not tried, as outside of a transaction
                except BaseException as error:
                    if is_interrupt(error):
                        raise
                    raise _HandlerFailed(error) from error
        finally:
            if isinstance(loan, Loan) and forks.generation() == generation:
                loan.close()  # nothing is left to do, unless a signal struck in `with` itself

    def _untried(self, handler: Handler, claim: Claim, error: ClaimLost | Open, attempts: int | None) -> Ended:
        """Return the end of an event whose handler was not called. It costs an attempt only if the sender counts."""
        if isinstance(error, ClaimLost):
            return Ended(outcome=Outcome.RETRY, reason=str(error), lost=True)
        if attempts is not None:
            return self._failed(handler, claim, error, self._limit(handler, attempts))
        if isinstance(error, HandlerPaused):
            return Ended(outcome=Outcome.RELEASE, reason=error.words, retry_in_us=error.retry_in_us)
        reason = f"its receiver is out of reach; this was no attempt: {error.last}"
        retry_in_us = error.retry_in_us + (BEHIND_OTHERS_US if error.was_called else 0)
        return Ended(outcome=Outcome.RELEASE, reason=reason, retry_in_us=retry_in_us)

    def _failed(self, handler: Handler, claim: Claim, error: BaseException, limit: float) -> Ended:
        """Return the end for an error, permanent or passing."""
        why, is_given = self._error_text.why(error)
        detail, place = self._error_text.traceback(error), place_of(error, handler.function)
        if isinstance(error, (PermanentError, *handler.permanent)) and not handler.persistent:
            reason = why if is_given else f"{why}, which is permanent"
            return Ended(outcome=Outcome.DEAD, reason=reason, detail=detail, place=place)
        reason = f"{why}{',' * is_given} at attempt {claim.attempt}" + (f" of {limit}" if limit < inf else "")
        if claim.attempt >= limit:
            return Ended(outcome=Outcome.DEAD, reason=reason, detail=detail, place=place)
        seconds = (handler.retry or self._retry).delay_seconds(claim.attempt)
        if isinstance(error, RetryLater):
            seconds = min(max(seconds, error.after_seconds), AGAIN_SECONDS_MAX)
        retry_in_us = int(seconds * 1_000_000)
        reason = f"{reason}; to be tried again"
        return Ended(outcome=Outcome.RETRY, reason=reason, detail=detail, place=place, retry_in_us=retry_in_us)

    def paused(self, task: Task, reasons: Mapping[str, str], attempts: int | None) -> Ended | None:
        """Return the end of an event whose handler is paused, as before an open breaker; None if it is not."""
        handler, reason = task.handler, reasons.get(task.ask.handler)
        if reason is None or handler is None or task.copy is not None or handler.function is uncalled:
            return None
        return self._untried(handler, claim_of(task), HandlerPaused(reason), attempts)

    def ran_out(self, handler: Handler, claim: Claim, attempts: int | None) -> Ended | None:
        """Return the end of an event whose last attempts never finished, without another attempt."""
        limit = self._limit(handler, attempts)
        if claim.attempt <= limit:
            return None
        reason = f"the worker died or hung with it at each of {limit} attempts"
        return Ended(outcome=Outcome.DEAD, reason=reason)

    def close(self) -> None:
        """End the event loop, if one was needed."""
        self.loop.close()


def _attempt(attempt: int) -> str:
    return "first delivery of this event" if attempt == 1 else f"done at attempt {attempt}"


def _own_error(raised: BaseException, handler: Handler, generation: int) -> BaseException:
    """Return the error that a handler failed with; raise any other."""
    error = raised.args[0] if isinstance(raised, _HandlerFailed) else raised
    if forks.generation() != generation:
        # In a child that it has forked: an error that ends the process may do so; the rest is the parent's to find out.
        if isinstance(error, Exception):
            raise BatchOfParent from error
        raise error
    if handler.wants_transaction and raised is error and isinstance(error, (LedgerUnavailable, LedgerRefused)):
        raise error  # the ledger's own: the handler has done nothing wrong
    if not isinstance(error, Exception) and is_interrupt(error):
        raise error
    return error


def escapes(error: BaseException) -> bool:
    """Return whether an error must end more than its handler: it is raised once the task is settled."""
    return not isinstance(error, Exception)


#: Transactions during which a handler has forked, kept in the child for ever: only the parent may end one.
_OF_PARENTS: Final[list[AbstractContextManager[Any]]] = []


class _Transaction:
    """A ledger's transaction, which a child that its handler has forked neither commits nor rolls back."""

    def __init__(self, manager: AbstractContextManager[Any]) -> None:
        self._manager = manager
        self._generation = forks.generation()

    def __enter__(self) -> Any:
        return self._manager.__enter__()

    def __exit__(self, *raised: Any) -> None:  # noqa: PYI036 - handed on as it is
        if forks.generation() == self._generation:
            self._manager.__exit__(*raised)
        else:
            _OF_PARENTS.append(self._manager)


def group_for_send_many(tasks: list[Task]) -> tuple[list[list[Task]], list[Task]]:
    """Return groups for handlers that take several events in a call, each as large as one takes, and the rest."""
    open_groups: dict[Any, list[Task]] = {}
    groups: list[list[Task]] = []
    alone: list[Task] = []
    for task in tasks:
        handler = task.handler
        if handler is None or handler.many == 1 or task.event is None or task.dead_reason is not None:
            alone.append(task)
            continue
        # One sink may have several patterns; each of them says which errors are permanent, and when to retry.
        kind = (id(handler.function), handler.permanent, handler.retry)
        group = open_groups.get(kind)
        if group is None or len(group) == handler.many:
            group = open_groups[kind] = []
            groups.append(group)
        group.append(task)
    return groups, alone
