"""Claims over HTTP, for programs in other languages: the ledger's own claim, extend and settle.

All of a claim is in the text that its client gets (`signed_claim`). Nothing is kept here between two calls.
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
from oncebridge.service.claim_messages import (
    ClaimAnswer,
    ClaimRequest,
    ExtendAnswer,
    ExtendRequest,
    KeptProblem,
    SettleAnswer,
    SettleRequest,
    Wrong,
    read_call_key,
    read_delivery,
    read_detail,
    read_ended_delivery,
    read_handler,
    read_request,
)
from oncebridge.service.request_limits import OVERLOADED, STOPPING, Refused
from oncebridge.service.signed_claim import sign_claim, verify_claim
from oncebridge.sources.http_reply import OUTAGE, Reply, come_again, ok, problem
from oncebridge.sources.remote_claims import Ending, RemoteClaim, RemoteClaims

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping

    from starlette.routing import Route

    from oncebridge.bridge import Bridge
    from oncebridge.service.request_limits import Answer, Receive, RequestLimits, Scope, Send

T = TypeVar("T")

THREADS: Final = 16
WAITING_MAX: Final = 256  # calls that wait for a thread; further ones are answered with 503
#: The share of a request's time that may be spent waiting for a busy event; the rest is for the ledger.
WAITING_SHARE: Final = 0.7
#: A claim is there to handle an event, and a shadow handles none.
SHADOW: Final = come_again("this service is a shadow: it judges events, and grants no claims", 60)


def routes(bridge: Bridge, limits: RequestLimits) -> list[Route]:
    """Return the routes of claims."""
    from starlette.routing import Route

    claims = Claims(bridge)
    return [
        Route("/claims", ClaimEndpoint(limits, claims)),
        Route("/claims/extend", PostEndpoint(limits, claims.extend)),
        Route("/claims/settle", PostEndpoint(limits, claims.settle)),
    ]


# --- endpoints -----------------------------------------------------------------------------------------------


class PostEndpoint:
    """The application of one route. An object, because Starlette takes a function for a request handler."""

    def __init__(self, limits: RequestLimits, answer: Answer) -> None:
        """Take the limits of requests, and the function that answers them."""
        self._application = limits.for_posts(answer)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        await self._application(scope, receive, send)


class ClaimEndpoint:
    """The application of `/claims`. It releases at once a claim whose client did not get the answer.

    A request may have timed out before its claim was granted, or its client may have disconnected. The event would
    otherwise wait for the whole lease of a claim that no client holds.
    """

    def __init__(self, limits: RequestLimits, claims: Claims) -> None:
        """Take the limits of requests, and the claims that answer them."""
        self._limits = limits
        self._claims = claims

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        client = ClientConnection(receive, send)
        granted: list[tuple[Reply, RemoteClaim]] = []
        wait_until = asyncio.get_running_loop().time() + WAITING_SHARE * self._limits.answer_within

        async def answer(body: bytes, headers: dict[str, str]) -> Reply:
            reply, claim = await self._claims.claim(body, headers, wait_until, client)
            if claim is not None and client.has_ended:  # the request has timed out
                await self._claims.release(claim)
            elif claim is not None:
                granted.append((reply, claim))
            return reply

        try:
            await self._limits.for_posts(answer)(scope, client.receive, client.send)
        finally:
            client.end()
            for reply, claim in granted:
                if not client.has_received(reply):
                    await self._claims.release(claim)


class ClientConnection:
    """The client of one request, and whether it is still there."""

    def __init__(self, receive: Receive, send: Send) -> None:
        """Take both directions."""
        self._receive = receive
        self._send = send
        self._disconnect: asyncio.Future[Any] | None = None
        self._sent: list[bytes] = []
        self.has_ended = False

    @property
    def is_gone(self) -> bool:
        """Whether the client has disconnected, or its request was answered."""
        return self.has_ended or (self._disconnect is not None and self._disconnect.done())

    async def receive(self) -> MutableMapping[str, Any]:
        """Receive the next message of the request."""
        message = await self._receive()
        if message["type"] == "http.request" and not message.get("more_body", False):
            # Only a disconnect can follow the body.
            self._disconnect = asyncio.ensure_future(self._receive())
        return message

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """Send a message of the answer, and remember it if the client is there: servers do not say."""
        is_gone = self.is_gone
        await self._send(message)
        if not is_gone:
            self._sent.append(message.get("body", b""))

    def has_received(self, reply: Reply) -> bool:
        """Return whether the client got this answer, as far as the service can know."""
        return reply.body in self._sent

    def end(self) -> None:
        """Stop waiting for a disconnect."""
        self.has_ended = True
        if self._disconnect is not None:
            self._disconnect.cancel()


# --- claims --------------------------------------------------------------------------------------------------


class Claims:
    """Answers requests about claims."""

    def __init__(self, bridge: Bridge) -> None:
        """Take the bridge; no thread is started before there is work."""
        self._bridge = bridge
        self._remote_claims = RemoteClaims(
            bridge.open,
            bridge.settings,
            books=bridge.books,
            account=bridge.account,
            since_us=bridge.clock.now_us(),
        )
        self._lease_us = _microseconds(bridge.settings.lease_seconds)
        self._busy_wait = bridge.settings.busy_wait_seconds
        self._threads = ThreadPoolExecutor(THREADS, "oncebridge-claim")
        self._under_way = 0

    # --- claim ---------------------------------------------------------------------------------------

    async def claim(
        self, body: bytes, headers: dict[str, str], wait_until: float, client: ClientConnection
    ) -> tuple[Reply, RemoteClaim | None]:
        """Claim one event, and again for a while if it is busy; return the answer, and the claim if granted."""
        wait_until = min(wait_until, asyncio.get_running_loop().time() + self._busy_wait)
        try:
            call = await self._in_thread(lambda: self._begin(body, headers))
            while call.is_busy and await self._waited(wait_until) and not client.is_gone:
                await self._in_thread(lambda: self._ask(call))
        except _EXPECTED as error:
            return self._refusal(error), None
        if call.granted is not None:
            return ok(self._granted(call.task, call.granted)), call.granted
        result = result_of(call.task)
        self._bridge.account([result])
        return _reply_for(result), None

    def _begin(self, body: bytes, headers: dict[str, str]) -> ClaimCall:
        if self._bridge.stopping.is_set():
            raise Refused(STOPPING)
        if self._bridge.settings.shadow:
            raise Refused(SHADOW)
        request = read_request(body, ClaimRequest)
        name, lease_us, key = read_handler(request), self._lease_us, read_call_key(headers)
        if request.lease_seconds is not None:
            lease_us = _microseconds(request.lease_seconds)
        task = self._remote_claims.read(read_delivery(request.event), name)
        if self._remote_claims.is_ours(task):
            raise Wrong(
                f"handler: this service gives the event to a handler of its own {_called(name)}, and they would share "
                'their claims; claim under another name, such as {"handler": "desktop"}'
            )
        self._bridge.books.receive()
        call = ClaimCall(task=task, lease_us=lease_us, key=key)
        self._ask(call)
        return call

    def _ask(self, call: ClaimCall) -> None:
        call.granted = self._remote_claims.ask(call.task, lease_us=call.lease_us, call=call.key)

    async def _waited(self, until: float) -> bool:
        """Wait for a moment, without a thread; False once that time is over."""
        left = until - asyncio.get_running_loop().time()
        if left <= 0 or self._bridge.stopping.is_set():
            return False
        await asyncio.sleep(min(left, POLL_US / 1_000_000))
        return True

    def _granted(self, task: Task, granted: RemoteClaim) -> ClaimAnswer:
        claim, answer = granted.claim, task.answer
        assert answer is not None
        return ClaimAnswer(
            verdict=Verdict.FRESH,
            acknowledge=False,
            reason=reason_for(answer),
            key=key_text(claim.ask.key),
            topic=claim.ask.topic,
            original_envelope_id=None,
            outcome=None,
            claim=sign_claim(self._bridge.open().secret, granted),
            token=claim.token,
            attempt=claim.attempt,
            lease_seconds=granted.lease_us / 1_000_000,
            retry_in_seconds=None,
        )

    async def release(self, granted: RemoteClaim) -> None:
        """Release a claim whose client does not know of it; if that fails, the claim runs out."""
        with suppress(*_EXPECTED):
            await self._in_thread(lambda: self._remote_claims.settle(granted, Ending(outcome=Outcome.RELEASE)))

    # --- extend and settle ---------------------------------------------------------------------------

    async def extend(self, body: bytes, _: dict[str, str]) -> Reply:
        """Answer a request to extend a claim."""
        return await self._answered(lambda: self._extend(body))

    async def settle(self, body: bytes, _: dict[str, str]) -> Reply:
        """Answer a request to settle a claim."""
        return await self._answered(lambda: self._settle(body))

    def _extend(self, body: bytes) -> Reply:
        request = read_request(body, ExtendRequest)
        remote = self._verify(request.claim)
        lease_us = remote.lease_us if request.lease_seconds is None else _microseconds(request.lease_seconds)
        return ok(ExtendAnswer(ok=self._remote_claims.extend(remote, lease_us)))

    def _settle(self, body: bytes) -> Reply:
        request = read_request(body, SettleRequest)
        raw = read_ended_delivery(request)
        remote = self._verify(request.claim)
        if raw is not None and not self._remote_claims.is_of(remote, raw):
            raise Wrong("event: is not the one that was claimed; send the delivery again that the claim was asked with")
        ending = Ending(
            outcome=Outcome(request.outcome),
            retry_in_us=None if request.retry_in_seconds is None else _microseconds(request.retry_in_seconds),
            detail=read_detail(request),
            raw=raw or b"",
        )
        settled = self._remote_claims.settle(remote, ending)
        if settled.unsent is not None:
            return _come_again(settled.unsent)
        return ok(SettleAnswer(ok=settled.outcome is not None, outcome=settled.outcome))

    def _verify(self, text: str) -> RemoteClaim:
        try:
            return verify_claim(self._bridge.open().secret, text)
        except ValueError as error:
            raise Wrong(f"claim: {error}") from None

    # --- threads and refusals ------------------------------------------------------------------------

    async def _answered(self, answer: Callable[[], Reply]) -> Reply:
        try:
            return await self._in_thread(answer)
        except _EXPECTED as error:
            return self._refusal(error)

    async def _in_thread(self, call: Callable[[], T]) -> T:
        """Run a call that waits for the ledger in a thread: the ledgers are synchronous."""
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
        # The ledger's address and its error are for the log alone.
        self._bridge.telemetry.warn(f"a claim has to be asked for or settled again: {error}")
        return OUTAGE


class ClaimCall(msgspec.Struct):
    """One call for a claim, which is repeated while the event is busy."""

    task: Task
    lease_us: int
    key: str | None
    granted: RemoteClaim | None = None

    @property
    def is_busy(self) -> bool:
        """Whether another program holds the event, or another event of its entity."""
        return self.granted is None and result_of(self.task).verdict is Verdict.BUSY


#: Errors that are not bugs: each has an answer.
_EXPECTED: Final = (Wrong, Refused, LedgerUnavailable, LedgerRefused)


def _reply_for(result: Result) -> Reply:
    """Return the answer to a client that was granted no claim."""
    is_busy = result.verdict is Verdict.BUSY
    if not result.acknowledged and not is_busy:
        return _come_again(result)
    if result.verdict is Verdict.DEAD:
        return _kept(result)
    return ok(
        ClaimAnswer(
            verdict=result.verdict,
            acknowledge=not is_busy,
            reason=result.reason,
            key=result.key or "",
            topic=result.topic,
            original_envelope_id=result.original_envelope_id,
            outcome=result.outcome,
            claim=None,
            token=None,
            attempt=None,
            lease_seconds=None,
            retry_in_seconds=max(result.retry_in_us, POLL_US) / 1_000_000 if is_busy else None,
        )
    )


def _kept(result: Result) -> Reply:
    """Answer 400 for an event that was kept as a dead letter; unlike a wrong request, it may be acknowledged."""
    status = HTTPStatus.BAD_REQUEST
    detail = f"event: kept as a dead letter, {result.reason}"
    answer = KeptProblem(
        title=status.phrase,
        status=status.value,
        detail=detail,
        acknowledge=True,
        verdict="dead",
        outcome="dead",
        key=result.key or "",
    )
    return replace(problem(status, detail), body=msgspec.json.encode(answer))


def _come_again(result: Result) -> Reply:
    return come_again(result.reason, -(-result.retry_in_us // 1_000_000))


def _microseconds(seconds: float) -> int:
    return int(seconds * 1_000_000)


def _called(name: str) -> str:
    return f"named {name!r}" if name else "that has no name"
