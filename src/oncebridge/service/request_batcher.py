"""Puts requests that arrive at the same time into one batch, so that they share the ledger's round trips.

While quick handlers run one batch, arriving requests wait, and go together in the next. Where a handler takes longer
than a millisecond, or a batch longer than quick handlers would, batches run side by side.

Everything but the handlers' work runs in the event loop, so nothing here needs a lock.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final

import msgspec

from oncebridge import forks
from oncebridge.breaker import Outage
from oncebridge.claim import Verdict
from oncebridge.discreet import Discreet
from oncebridge.engine.limits import BatchLimits
from oncebridge.engine.waiting import POLL_US
from oncebridge.errors import LedgerRefused, LedgerUnavailable
from oncebridge.service.request_limits import OVERLOADED, STOPPING, TIMED_OUT
from oncebridge.sources.http_reply import OUTAGE, Reply, come_again, reply_for

if TYPE_CHECKING:
    from oncebridge.bridge import Bridge
    from oncebridge.engine.result import Result
    from oncebridge.service.request_limits import RequestLimits
    from oncebridge.telemetry import Move

WORKERS: Final = 8  # unless set: most handlers wait for a server most of the time
WAITING_MAX: Final = 1000  # requests
EVENTS_MAX: Final = 200  # in a batch; a request is never split, so one alone may have more
QUICK_MS: Final = 1.0  # requests wait for handlers that take no longer
SLOW_MS: Final = 50.0  # assumed of a handler that was not measured yet, or has not returned
#: How long a batch may take beyond its quick events before other requests stop waiting for it.
SHARE_MS: Final = 50.0
#: Above this the events of one request are handled side by side; below, threads cost more than they save.
SIDE_BY_SIDE_MS: Final = 5.0
MEMORY: Final = 8  # events that the average duration of a handler looks back on, about
LOOK_SECONDS: Final = 0.05  # how often waiting requests are looked after

_BUSY: Final = Verdict.BUSY  # the lookup takes longer than the comparison
_UNHANDLED: Final = Verdict.UNHANDLED
UNEXPECTED: Final = come_again("something went wrong that should not have; the log says more")


class PendingRequest(Discreet, msgspec.Struct, eq=False):
    """A request that was not answered yet: its deliveries, and the results so far."""

    shown = ("size", "results")

    reply: asyncio.Future[Reply]
    #: By the loop's clock: when it is answered at the latest, done or not; and what does so.
    answer_by: float
    timer: asyncio.TimerHandle
    #: Its deliveries, once the body was read, and how many bytes of the limits' budget it holds.
    raws: list[bytes] = msgspec.field(default_factory=list)
    size: int = 0
    #: By the loop's clock: until then its busy events are claimed again.
    busy_until: float = 0.0
    #: One for each delivery, after its first batch.
    results: list[Result] = msgspec.field(default_factory=list)
    #: Indexes of the deliveries that the next batch has to process.
    todo: Sequence[int] = ()


class RequestBatch(msgspec.Struct, eq=False):
    """Requests that are processed together, the batch's limits, and its results."""

    requests: list[PendingRequest]
    #: From when it is begun until no further handler may be started.
    seconds: float
    concurrency: int
    results: list[Result] = []
    error: BaseException | None = None
    asked_us: int = 0
    ended_us: int = 0


class HandlerPace:
    """How long handlers take on average."""

    def __init__(self) -> None:
        """Assume slow handlers until some were measured, so that a slow one holds up no other request."""
        self.usual_ms = SLOW_MS

    def observe(self, move: Move) -> None:
        """Add one move to the average. Two threads at a time may lose one of their moves: it is an estimate anyway."""
        if move.duration_ms is not None:
            self.usual_ms += (move.duration_ms - self.usual_ms) / MEMORY

    @property
    def is_quick(self) -> bool:
        """Whether requests should wait for running handlers."""
        return self.usual_ms <= QUICK_MS


class RequestBatcher:
    """Runs the deliveries of requests through the bridge, in threads of its own."""

    def __init__(self, bridge: Bridge, limits: RequestLimits) -> None:
        """Take the bridge, and the limits that requests have passed; no thread is started before there is work."""
        self._bridge = bridge
        self._limits = limits
        settings = bridge.settings
        self._workers = settings.concurrency if settings.concurrency > 1 else WORKERS
        self._busy_wait = settings.busy_wait_seconds
        self.outage = Outage(bridge.telemetry.warn, "the ledger is in reach again")
        self._waiting: deque[PendingRequest] = deque()
        #: Requests with a busy event, until it is claimed again.
        self._polling: set[PendingRequest] = set()
        #: Idle threads, each by its queue; the last one was used last.
        self._idle_threads: list[SimpleQueue[RequestBatch | None]] = []
        self._running = 0
        #: By the loop's clock: when the newest batch has taken too long for others to wait for it.
        self._overdue = 0.0
        self._pace = HandlerPace()
        bridge.telemetry.add(self._pace.observe)
        self._scheduled = False
        self._looking = False
        self._batch_ended = asyncio.Event()
        self.stopping = False

    @property
    def refusal(self) -> Reply | None:
        """The answer to any request at the moment; None if requests are accepted."""
        if self.stopping:
            return STOPPING
        return OVERLOADED if len(self._waiting) + len(self._polling) >= WAITING_MAX else None

    def start(self) -> PendingRequest:
        """Start a request's deadline. Its body has not been read yet."""
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[Reply] = loop.create_future()
        answer_by = loop.time() + self._limits.answer_within
        return PendingRequest(reply, answer_by, loop.call_at(answer_by, _answer, reply, TIMED_OUT))

    def submit(self, request: PendingRequest, raws: list[bytes], size: int) -> asyncio.Future[Reply]:
        """Have a request's deliveries processed; its reply comes before its deadline."""
        request.raws, request.todo, request.size = raws, range(len(raws)), size
        refused = self.refusal  # the queue may have filled up while the request was read
        if refused is not None:
            self._finish([request])
            _answer(request.reply, refused)
            return request.reply
        loop = asyncio.get_running_loop()
        self._bridge.books.receive(len(raws))
        request.busy_until = min(request.answer_by, loop.time() + self._busy_wait)
        self._waiting.append(request)
        if not self._scheduled:
            # Requests that the loop has already received join the same batch.
            self._scheduled = True
            loop.call_soon(self._start_batches)
        return request.reply

    async def close(self) -> None:
        """Wait for running batches to end; answer waiting requests with 503."""
        self.stopping = True
        self._bridge.stop()
        waiting = [*self._waiting, *self._polling]
        self._finish(waiting)
        for request in waiting:
            _answer(request.reply, STOPPING)
        self._waiting.clear()
        self._polling.clear()
        while self._running:
            self._batch_ended.clear()
            await self._batch_ended.wait()
        for queue in self._idle_threads:
            queue.put(None)

    # --- starting batches ----------------------------------------------------------------------------

    def _start_batches(self) -> None:
        """Start as many batches as may run now."""
        self._scheduled = False
        loop = asyncio.get_running_loop()
        while self._waiting and self._may_start(loop.time()):
            requests = self._take_waiting()
            if requests:
                self._start_batch(requests, loop)
        if self._waiting and not self._looking:
            self._looking = True
            loop.call_later(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        self._looking = False
        self._drop_answered()
        self._start_batches()

    def _drop_answered(self) -> None:
        """Let go of requests whose time is over: while a ledger hangs, their bodies would pile up."""
        answered = [request for request in self._waiting if request.reply.done()]
        if answered:
            self._waiting = deque(request for request in self._waiting if not request.reply.done())
            self._finish(answered)

    def _may_start(self, now: float) -> bool:
        if not self._running:
            return True
        if now >= self._overdue:
            self._pace.usual_ms = max(self._pace.usual_ms, SLOW_MS)
        return self._running < self._workers and not self._pace.is_quick

    def _take_waiting(self) -> list[PendingRequest]:
        """Take requests for one batch, in order of arrival, without those that were answered while they waited."""
        number, events = len(self._waiting), EVENTS_MAX
        if not self._pace.is_quick:
            number = -(-number // (self._workers - self._running))
            events = int(SHARE_MS / self._pace.usual_ms)
        requests: list[PendingRequest] = []
        while self._waiting and len(requests) < number:
            events -= len(self._waiting[0].todo)
            if requests and events < 0:
                break
            request = self._waiting.popleft()
            if request.reply.done():
                self._finish([request])
            else:
                requests.append(request)
        return requests

    def _start_batch(self, requests: list[PendingRequest], loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        # The latest deadline counts: a request with hardly any time left must not take it from the others.
        seconds = max(request.answer_by for request in requests) - now
        events = sum(len(request.todo) for request in requests)
        self._overdue = now + (SHARE_MS + QUICK_MS * min(events, EVENTS_MAX)) / 1000
        self._running += 1
        side_by_side = len(requests) == 1 and self._pace.usual_ms > SIDE_BY_SIDE_MS
        queue = self._idle_threads.pop() if self._idle_threads else self._new_thread(loop)
        queue.put(RequestBatch(requests, seconds, min(events, self._workers) if side_by_side else 1))

    def _new_thread(self, loop: asyncio.AbstractEventLoop) -> SimpleQueue[RequestBatch | None]:
        queue: SimpleQueue[RequestBatch | None] = SimpleQueue()
        threading.Thread(target=self._work, args=(queue, loop), name="oncebridge-request", daemon=True).start()
        return queue

    # --- running them, in threads --------------------------------------------------------------------

    def _work(self, queue: SimpleQueue[RequestBatch | None], loop: asyncio.AbstractEventLoop) -> None:
        generation = forks.generation()
        while (batch := queue.get()) is not None:
            try:
                self._run(batch)
            except BaseException as error:  # noqa: BLE001 - reported to the requests of the batch
                if forks.generation() != generation:
                    return  # a child that a handler has forked: it has no request to answer
                batch.error = error
            with suppress(RuntimeError):  # the loop is closed, and no request waits any more
                loop.call_soon_threadsafe(self._end_batch, batch, queue)
            del batch  # an idle thread must not hold on to the bodies of its last batch

    def _run(self, batch: RequestBatch) -> None:
        raws = [request.raws[at] for request in batch.requests for at in request.todo]
        flow = self._bridge.open()
        batch.asked_us = flow.clock.monotonic_us()
        until_us = batch.asked_us + int(batch.seconds * 1_000_000)
        sizes = tuple([len(request.todo) for request in batch.requests])
        if len(raws) == len(sizes):
            sizes = ()  # nearly always: one delivery each
        limits = BatchLimits(
            until_us=until_us,
            busy_wait_seconds=0,
            concurrency=batch.concurrency,
            requests=sizes,
            escapes=False,
        )
        try:
            batch.results = flow.run(raws, limits)
        finally:
            batch.ended_us = flow.clock.monotonic_us()

    # --- answering -----------------------------------------------------------------------------------

    def _end_batch(self, batch: RequestBatch, queue: SimpleQueue[RequestBatch | None]) -> None:
        self._running -= 1
        self._idle_threads.append(queue)
        self._batch_ended.set()
        if batch.error is None:
            self._distribute(batch)
        else:
            reply = self._reply_to(batch.error, batch.ended_us)
            self._finish(batch.requests)
            for request in batch.requests:
                _answer(request.reply, reply)
        self._start_batches()

    def _distribute(self, batch: RequestBatch) -> None:
        """Hand each request the results of its own deliveries, and answer it unless one of them is busy."""
        if self.outage and any(result.verdict is not _UNHANDLED or result.outcome for result in batch.results):
            self.outage.answered(batch.asked_us)  # events that nobody takes need no ledger
        results = iter(batch.results)
        ended: list[PendingRequest] = []
        for request in batch.requests:
            if request.results:
                for at in request.todo:
                    request.results[at] = next(results)
            else:
                request.results = [next(results) for _ in request.todo]
            if not self._polls_again(request):
                ended.append(request)
        self._finish(ended)
        for request in ended:
            _answer(request.reply, reply_for(request.results))

    def _polls_again(self, request: PendingRequest) -> bool:
        """Schedule the request's busy events to be claimed again; False if it has none, or no more time."""
        busy = [at for at in request.todo if request.results[at].verdict is _BUSY]
        if not busy or self.stopping or request.reply.done():
            return False
        loop = asyncio.get_running_loop()
        if loop.time() >= request.busy_until:
            return False
        request.todo = busy
        self._polling.add(request)
        loop.call_later(POLL_US / 1_000_000, self._poll, request)
        return True

    def _poll(self, request: PendingRequest) -> None:
        if request in self._polling:
            self._polling.remove(request)
            self._waiting.append(request)
            self._start_batches()

    def _finish(self, requests: list[PendingRequest]) -> None:
        """Enter requests that need no more work into the books, and release the bytes that they hold."""
        results = [result for request in requests for result in request.results]
        if results:
            self._bridge.account(results)
        self._limits.release(sum(request.size for request in requests))

    def _reply_to(self, error: BaseException, now_us: int) -> Reply:
        # The ledger's address and its error are for the log, which names them once per outage.
        if isinstance(error, LedgerUnavailable | LedgerRefused):
            self.outage.began(f"requests have to come again: {error}", now_us)
            return OUTAGE
        return self.report_unexpected(error)

    def report_unexpected(self, error: BaseException) -> Reply:
        """Log an error that should not happen, by its class alone: its message may quote the request."""
        self._bridge.telemetry.warn(f"a request failed with an unexpected {type(error).__name__}")
        return UNEXPECTED


def _answer(reply: asyncio.Future[Reply], found: Reply) -> None:
    if not reply.done():
        reply.set_result(found)
