"""Gives one claimed event to its handler, and turns whatever happens into the end of the claim."""

from __future__ import annotations

import inspect
import threading
import traceback
from math import inf
from typing import TYPE_CHECKING, Any, Final

import msgspec

from oncebridge.breaker import Open
from oncebridge.claim import Claim, Outcome
from oncebridge.discreet import Discreet
from oncebridge.errors import (
    ClaimLost,
    ConfigurationError,
    LedgerRefused,
    LedgerUnavailable,
    PermanentError,
    RetryLater,
    SaysWhy,
)
from oncebridge.handlers import SendsMany
from oncebridge.ledgers.loan import Loan
from oncebridge.ledgers.protocol import SettlesInTransaction

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Sequence

    from oncebridge.event import Event
    from oncebridge.handlers import Handler, LetterCopy
    from oncebridge.ledgers.protocol import Ledger
    from oncebridge.retry import RetryPolicy


AGAIN_SECONDS_MAX: Final = 7 * 24 * 3600.0  # longer than any queue keeps a message hidden


class Ended(Discreet, msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How a handler ended. `reason` is free of personal data; `detail` is for whoever asks to see it."""

    shown = ("outcome", "reason", "again_in_us", "settled", "lost")

    outcome: Outcome
    reason: str
    detail: str = ""
    again_in_us: int = 0
    #: Whether the claim was settled already, in the handler's own transaction.
    settled: bool = False
    #: Whether the claim was taken over meanwhile, so that nothing took effect.
    lost: bool = False


_DONE: Final = Ended(outcome=Outcome.DONE, reason="first delivery of this event")


class _HandlerFailed(Exception):
    """Carries a handler's error out of its transaction, so that the ledger's own errors stay apart."""


def check_transaction(handler: Handler, ledger: Ledger) -> None:
    """Refuse a handler that wants a transaction from a ledger that has none."""
    if handler.wants_transaction and not isinstance(ledger, SettlesInTransaction):
        raise ConfigurationError(
            f"handler for {handler.pattern!r} asks for the transaction, which {type(ledger).__name__} does not have; "
            "use a sqlite://, postgresql:// or dynamodb:// ledger, or drop the parameter `transaction`"
        )


class Work:
    """Calls handlers."""

    def __init__(self, ledger: Ledger, retry: RetryPolicy, handler_timeout_us: int) -> None:
        """Take what calls need."""
        self._ledger = ledger
        self._retry = retry
        self._loop = _LoopThread(handler_timeout_us / 1_000_000)

    def run(self, handler: Handler, event: Event | LetterCopy, claim: Claim, attempts: int | None) -> Ended:
        """Call the handler once; `attempts` are as many as whoever delivers gives, if those are fewer than ours."""
        limit = self._limit(handler, attempts)
        try:
            if handler.wants_transaction:
                self._call_in_transaction(handler, event, claim)
            else:
                self._call(handler, event)
                if claim.attempt == 1:
                    return _DONE  # nearly always
        except (ClaimLost, Open) as error:
            return self._untried(handler, claim, error, attempts)
        except _HandlerFailed as failed:
            return self._failed(handler, claim, failed.args[0], limit)
        except (LedgerUnavailable, LedgerRefused) as error:
            if handler.wants_transaction:
                raise  # the ledger's own: the handler has done nothing wrong
            return self._failed(handler, claim, error, limit)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a handler raises is its failure
            return self._failed(handler, claim, error, limit)
        return Ended(outcome=Outcome.DONE, reason=_attempt(claim.attempt), settled=handler.wants_transaction)

    def run_many(
        self, handler: Handler, events: Sequence[Event], claims: Sequence[Claim], attempts: int | None
    ) -> list[Ended]:
        """Give several events to a handler that takes them together; what it says of each is that one's own end."""
        assert isinstance(handler.function, SendsMany)
        try:
            errors: Sequence[BaseException | None] = handler.function.send_many(events)
            if len(errors) != len(events):
                raise TypeError(f"send_many was given {len(events)} events, and told of {len(errors)}")  # noqa: TRY301
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a handler raises is its failure
            errors = [error] * len(events)
        return [self._ended(handler, claim, error, attempts) for claim, error in zip(claims, errors, strict=True)]

    def _ended(self, handler: Handler, claim: Claim, error: BaseException | None, attempts: int | None) -> Ended:
        if error is None:
            return Ended(outcome=Outcome.DONE, reason=_attempt(claim.attempt))
        if isinstance(error, Open):
            return self._untried(handler, claim, error, attempts)
        return self._failed(handler, claim, error, self._limit(handler, attempts))

    def _limit(self, handler: Handler, attempts: int | None) -> float:
        if handler.persistent:
            return inf
        return self._retry.attempts if attempts is None else min(attempts, self._retry.attempts)

    def _call(self, handler: Handler, event: Event | LetterCopy, **transaction: Any) -> None:
        result = handler.function(event, **transaction)
        if result is not None and inspect.isawaitable(result):
            self._loop.run(result)

    def _call_in_transaction(self, handler: Handler, event: Event | LetterCopy, claim: Claim) -> None:
        assert isinstance(self._ledger, SettlesInTransaction)
        loan = self._ledger.transaction(claim)
        try:
            with loan as transaction:
                try:
                    self._call(handler, event, transaction=transaction)
                except Open:
                    raise  # nothing was tried, as outside of a transaction
                except (Exception, SystemExit) as error:
                    raise _HandlerFailed(error) from error
        finally:
            if isinstance(loan, Loan):
                loan.close()  # nothing is left to do, unless a signal struck in `with` itself

    def _untried(self, handler: Handler, claim: Claim, error: ClaimLost | Open, attempts: int | None) -> Ended:
        """Tell how an event ends that nothing was done with; that does not count, unless whoever delivers counts it."""
        if isinstance(error, ClaimLost):
            return Ended(outcome=Outcome.RETRY, reason=str(error), lost=True)
        if attempts is not None:
            return self._failed(handler, claim, error, self._limit(handler, attempts))
        reason = f"its receiver is out of reach; this was no attempt: {error.last}"
        return Ended(outcome=Outcome.RELEASE, reason=reason, again_in_us=error.again_in_us)

    def _failed(self, handler: Handler, claim: Claim, error: BaseException, limit: float) -> Ended:
        """Tell a permanent error from a passing one."""
        # The error's own words may quote the payload: they go where only `dead show` looks.
        why = str(error) if isinstance(error, SaysWhy) else f"handler raised {type(error).__name__}"
        detail = storable("".join(traceback.format_exception(error)))
        if isinstance(error, (PermanentError, *handler.permanent)) and not handler.persistent:
            return Ended(outcome=Outcome.DEAD, reason=f"{why}, which is permanent", detail=detail)
        reason = f"{why} at attempt {claim.attempt}" + (f" of {limit}" if limit < inf else "")
        if claim.attempt >= limit:
            return Ended(outcome=Outcome.DEAD, reason=reason, detail=detail)
        seconds = self._retry.delay_seconds(claim.attempt)
        if isinstance(error, RetryLater):
            seconds = min(max(seconds, error.after_seconds), AGAIN_SECONDS_MAX)
        again_in_us = int(seconds * 1_000_000)
        return Ended(
            outcome=Outcome.RETRY, reason=f"{reason}; to be tried again", detail=detail, again_in_us=again_in_us
        )

    def ran_out(self, handler: Handler, claim: Claim, attempts: int | None) -> Ended | None:
        """Return the end of an event that never came back from its last attempts, without another one."""
        limit = self._limit(handler, attempts)
        if claim.attempt <= limit:
            return None
        reason = f"the worker died or hung with it at each of {limit} attempts"
        return Ended(outcome=Outcome.DEAD, reason=reason)

    def close(self) -> None:
        """End the event loop, if one was needed."""
        self._loop.close()


def storable(text: str) -> str:
    """Write half characters and U+0000 as escapes: no database keeps them, and an error may quote anything."""
    return text.encode(errors="backslashreplace").decode().replace("\x00", "\\x00")


def _attempt(attempt: int) -> str:
    return "first delivery of this event" if attempt == 1 else f"done at attempt {attempt}"


class _Escaped(msgspec.Struct, frozen=True):
    """An error that wants to end more than its handler."""

    error: BaseException


class _LoopThread:
    """One event loop in a thread of its own, for `async def` handlers: callers may have a loop already."""

    def __init__(self, timeout_seconds: float) -> None:
        self._timeout_seconds = timeout_seconds
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def run(self, awaitable: Awaitable[Any]) -> Any:
        import asyncio  # only where a handler is async: it is a tenth of a cold start

        async def caught() -> Any:
            # Left alone, these two would end the loop itself, and whoever waits for it would wait for ever.
            try:
                return await awaitable
            except (SystemExit, KeyboardInterrupt) as error:
                return _Escaped(error)

        async def bounded() -> Any:
            return await asyncio.wait_for(caught(), self._timeout_seconds)

        result = asyncio.run_coroutine_threadsafe(bounded(), self._started()).result()
        if isinstance(result, _Escaped):
            raise result.error
        return result

    def _started(self) -> asyncio.AbstractEventLoop:
        import asyncio

        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="oncebridge-async", daemon=True)
                self._thread.start()
            return self._loop

    def close(self) -> None:
        with self._lock:
            if self._loop is None or self._thread is None:
                return
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self._loop = self._thread = None
