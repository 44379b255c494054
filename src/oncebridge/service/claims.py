"""Claims over HTTP, for handlers in other languages: claim, extend and settle, as the ledger has them.

Nothing of a claim is kept here: its client holds all of it, signed, so that any worker can take it back.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from oncebridge.claim import Outcome, Verdict
from oncebridge.engine.result import Result, reason_for
from oncebridge.engine.task import Task, result_of
from oncebridge.engine.waiting import POLL_US
from oncebridge.errors import LedgerRefused, LedgerUnavailable
from oncebridge.identity import key_text
from oncebridge.service.claim_requests import (
    ClaimRequest,
    ExtendRequest,
    SettleRequest,
    Wrong,
    read_call_key,
    read_delivery,
    read_detail,
    read_ended_delivery,
    read_handler,
    read_lease_us,
    read_request,
    read_retry_in_us,
)
from oncebridge.service.claim_text import read_claim, write_claim
from oncebridge.service.door import OVERLOADED, STOPPING, Refused
from oncebridge.service.lender import Lender
from oncebridge.sources.http_reply import OUTAGE, Reply, come_again, ok, problem
from oncebridge.sources.remote_claims import Ending, RemoteClaim, RemoteClaims

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.routing import Route

    from oncebridge.bridge import Bridge
    from oncebridge.service.door import Answer, Door, Receive, Scope, Send

T = TypeVar("T")

THREADS: Final = 16
WAITING_MAX: Final = 256  # calls that wait for a thread; who comes after them is told to come again


def routes(bridge: Bridge, door: Door) -> list[Route]:
    """Return the routes of claims."""
    from starlette.routing import Route

    claims = Claims(bridge)
    return [
        Route("/claims", Lender(door, claims.claim, claims.take_back)),
        Route("/claims/extend", Posted(door, claims.extend)),
        Route("/claims/settle", Posted(door, claims.settle)),
    ]


class Posted:
    """An application that answers what is posted. An object: Starlette takes a function for something else."""

    def __init__(self, door: Door, answer: Answer) -> None:
        """Take what answers."""
        self._application = door.posted(answer)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        await self._application(scope, receive, send)


class Claims:
    """Answers what clients ask about claims."""

    def __init__(self, bridge: Bridge) -> None:
        """Take the bridge; no thread is started before there is work."""
        self._bridge = bridge
        self._lending = RemoteClaims(
            bridge.open,
            bridge.settings,
            books=bridge.books,
            account=bridge.account,
            since_us=bridge.clock.now_us(),
        )
        self._lease_us = int(bridge.settings.lease_seconds * 1_000_000)
        self._busy_wait = bridge.settings.busy_wait_seconds
        self._threads = ThreadPoolExecutor(THREADS, "oncebridge-claim")
        self._under_way = 0

    # --- claim ---------------------------------------------------------------------------------------

    async def claim(
        self, body: bytes, headers: dict[str, str], wait_until: float, is_wanted: Callable[[], bool]
    ) -> tuple[Reply, RemoteClaim | None]:
        """Ask for one event, and again for a while if it is busy; return the answer, and the claim that is in it."""
        wait_until = min(wait_until, asyncio.get_running_loop().time() + self._busy_wait)
        try:
            call = await self._in_thread(lambda: self._begin(body, headers))
            while call.is_busy and await self._waited(wait_until) and is_wanted():
                await self._in_thread(lambda: self._ask(call))
        except _EXPECTED as error:
            return self._refusal(error), None
        if call.lent is not None:
            return ok(self._granted(call.task, call.lent)), call.lent
        result = result_of(call.task)
        self._bridge.account([result])
        return _reply_for(result), None

    def _begin(self, body: bytes, headers: dict[str, str]) -> Call:
        if self._bridge.stopping.is_set():
            raise Refused(STOPPING)
        request = read_request(body, ClaimRequest)
        name, lease_us, key = read_handler(request), read_lease_us(request, self._lease_us), read_call_key(headers)
        task = self._lending.read(read_delivery(request.event), name)
        if self._lending.is_ours(task):
            raise Wrong(
                f"handler: this service gives the event to a handler of its own {_called(name)}, and they would share "
                'their claims; claim under another name, such as {"handler": "desktop"}'
            )
        self._bridge.books.receive()
        call = Call(task=task, lease_us=lease_us, key=key)
        self._ask(call)
        return call

    def _ask(self, call: Call) -> None:
        call.lent = self._lending.ask(call.task, lease_us=call.lease_us, call=call.key)

    async def _waited(self, until: float) -> bool:
        """Wait for a moment, while no thread is taken up; False once the time for that is over."""
        left = until - asyncio.get_running_loop().time()
        if left <= 0 or self._bridge.stopping.is_set():
            return False
        await asyncio.sleep(min(left, POLL_US / 1_000_000))
        return True

    def _granted(self, task: Task, lent: RemoteClaim) -> dict[str, Any]:
        claim, answer = lent.claim, task.answer
        assert answer is not None
        return {
            "verdict": Verdict.FRESH,
            "acknowledge": False,
            "reason": reason_for(answer),
            "key": key_text(claim.ask.key),
            "topic": claim.ask.topic,
            "of": None,
            "outcome": None,
            "claim": write_claim(self._bridge.open().secret, lent),
            "token": claim.token,
            "attempt": claim.attempt,
            "lease_seconds": lent.lease_us / 1_000_000,
            "retry_in_seconds": None,
        }

    async def take_back(self, lent: RemoteClaim) -> None:
        """Give a claim back that its client was not told of; if that fails too, it runs out."""
        with suppress(*_EXPECTED):
            await self._in_thread(lambda: self._lending.settle(lent, Ending(outcome=Outcome.RELEASE)))

    # --- extend and settle ---------------------------------------------------------------------------

    async def extend(self, body: bytes, _: dict[str, str]) -> Reply:
        """Let a claim run longer."""
        return await self._answered(lambda: self._extend(body))

    async def settle(self, body: bytes, _: dict[str, str]) -> Reply:
        """End a claim."""
        return await self._answered(lambda: self._settle(body))

    def _extend(self, body: bytes) -> Reply:
        request = read_request(body, ExtendRequest)
        lent = self._read_claim(request.claim)
        return ok({"ok": self._lending.extend(lent, read_lease_us(request, lent.lease_us))})

    def _settle(self, body: bytes) -> Reply:
        request = read_request(body, SettleRequest)
        retry_in_us, detail = read_retry_in_us(request), read_detail(request)
        raw = read_ended_delivery(request)
        lent = self._read_claim(request.claim)
        if raw is not None and not self._lending.is_of(lent, raw):
            raise Wrong("event: is not the one that was claimed; send the delivery again that the claim was asked with")
        ending = Ending(outcome=Outcome(request.outcome), retry_in_us=retry_in_us, detail=detail, raw=raw or b"")
        settled = self._lending.settle(lent, ending)
        if settled.unsent is not None:
            return _come_again(settled.unsent)
        return ok({"ok": settled.outcome is not None, "outcome": settled.outcome})

    def _read_claim(self, text: str) -> RemoteClaim:
        try:
            return read_claim(self._bridge.open().secret, text)
        except ValueError as error:
            raise Wrong(f"claim: {error}") from None

    # --- threads and refusals ------------------------------------------------------------------------

    async def _answered(self, answer: Callable[[], Reply]) -> Reply:
        try:
            return await self._in_thread(answer)
        except _EXPECTED as error:
            return self._refusal(error)

    async def _in_thread(self, call: Callable[[], T]) -> T:
        """Call what waits for the ledger; the ledger's clients are not asynchronous."""
        if self._under_way >= THREADS + WAITING_MAX:
            raise Refused(OVERLOADED)
        self._under_way += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, call)
        finally:
            self._under_way -= 1

    def _refusal(self, error: Exception) -> Reply:
        if isinstance(error, Wrong):
            return problem(HTTPStatus.BAD_REQUEST, str(error))
        if isinstance(error, Refused):
            return error.reply
        # Where the ledger is, and what is wrong there, is for whoever reads the log.
        self._bridge.telemetry.warn(f"a claim has to be asked for or settled again: {error}")
        return OUTAGE


class Call(msgspec.Struct):
    """One call for a claim, which may be made again while the event is busy."""

    task: Task
    lease_us: int
    key: str | None
    lent: RemoteClaim | None = None

    @property
    def is_busy(self) -> bool:
        """Whether somebody else works on the event, or on another of its entity."""
        return self.lent is None and result_of(self.task).verdict is Verdict.BUSY


#: What may go wrong without any fault of ours.
_EXPECTED: Final = (Wrong, Refused, LedgerUnavailable, LedgerRefused)


def _reply_for(result: Result) -> Reply:
    """Decide what a client is told that was granted no claim."""
    is_busy = result.verdict is Verdict.BUSY
    if not result.acknowledged and not is_busy:
        return _come_again(result)
    if result.verdict is Verdict.DEAD:
        return _kept(result)
    return ok(
        {
            "verdict": result.verdict,
            "acknowledge": not is_busy,
            "reason": result.reason,
            "key": result.key,
            "topic": result.topic,
            "of": result.original_envelope_id,
            "outcome": result.outcome,
            "claim": None,
            "token": None,
            "attempt": None,
            "lease_seconds": None,
            "retry_in_seconds": max(result.retry_in_us, POLL_US) / 1_000_000 if is_busy else None,
        }
    )


def _kept(result: Result) -> Reply:
    """Tell of an event that is wrong, but kept: unlike a wrong request it is over, and a program must see that too."""
    said = problem(HTTPStatus.BAD_REQUEST, f"event: kept as a dead letter, {result.reason}")
    more = {"acknowledge": True, "verdict": result.verdict, "outcome": result.outcome, "key": result.key}
    return replace(said, body=msgspec.json.encode({**msgspec.json.decode(said.body), **more}))


def _come_again(result: Result) -> Reply:
    return come_again(result.reason, -(-result.retry_in_us // 1_000_000))


def _called(name: str) -> str:
    return f"named {name!r}" if name else "that has no name"
