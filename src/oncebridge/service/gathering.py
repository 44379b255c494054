"""Puts requests together that come at the same time, so that they share the ledger's round trips.

While quick handlers work on one batch, whatever arrives waits, and goes together when that is over. Where handlers
take longer than a millisecond each, or a batch takes longer than quick ones may, requests are worked off side by side.

Everything but the work itself happens in the event loop, so nothing here needs a lock.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final

import msgspec

from oncebridge import forks
from oncebridge.claim import Verdict
from oncebridge.discreet import Discreet
from oncebridge.engine.limits import BatchLimits
from oncebridge.errors import LedgerRefused, LedgerUnavailable
from oncebridge.service.deadlines import Deadline, Deadlines
from oncebridge.service.door import NO_TIME_LEFT, OVERLOADED, STOPPING
from oncebridge.sources.http_reply import OUTAGE, Reply, come_again, reply_for
from oncebridge.sources.sqs.consumer import Outage

if TYPE_CHECKING:
    from oncebridge.bridge import Bridge
    from oncebridge.engine.result import Result
    from oncebridge.service.door import Door
    from oncebridge.telemetry import Move

WORKERS: Final = 8  # where settings say nothing: most handlers wait for somebody else most of the time
WAITING_MAX: Final = 1000  # requests
EVENTS_MAX: Final = 200  # in a batch; a request is never split, so one alone may have more
QUICK_MS: Final = 1.0  # a handler that takes no longer is worth waiting for
SLOW_MS: Final = 50.0  # what is assumed of a handler that is not known, or does not come back
#: What a batch may take, beside its quick events, before others no longer wait for it.
SHARE_MS: Final = 50.0
#: From here on the events of one request are handled side by side; below, threads cost more than they save.
SIDE_BY_SIDE_MS: Final = 5.0
MEMORY: Final = 8  # by how many of the last events what they usually take is judged
LOOK_SECONDS: Final = 0.05  # how often it is looked whether others wait too long
POLL_SECONDS: Final = 0.05  # how often what is busy is asked for again

_BUSY: Final = Verdict.BUSY  # looking it up takes longer than comparing
UNEXPECTED: Final = come_again("something went wrong that should not have; the log says more")


class Bundle(Discreet, msgspec.Struct, eq=False):
    """What one request brings, and what is known of it."""

    shown = ("size", "results")

    reply: asyncio.Future[Reply]
    #: When it is answered at the latest, whatever becomes of it.
    deadline: Deadline
    #: What it brings, once that was read: the deliveries, and how many bytes of the door's they hold.
    raws: list[bytes] = msgspec.field(default_factory=list)
    size: int = 0
    #: By the loop's clock: until then what is busy is asked for again.
    busy_until: float = 0.0
    #: One for each delivery, once it was worked off for the first time.
    results: list[Result] = msgspec.field(default_factory=list)
    #: Which deliveries are to be worked off.
    todo: Sequence[int] = ()


class Batch(msgspec.Struct, eq=False):
    """Bundles that are worked off together, on which terms, and what came of that."""

    bundles: list[Bundle]
    #: How long until nothing more may be begun.
    seconds: float
    concurrency: int
    results: list[Result] = []
    error: BaseException | None = None
    asked_us: int = 0
    ended_us: int = 0


class Pace:
    """What handlers usually take."""

    def __init__(self) -> None:
        """Take them for slow until seen otherwise, so that a slow one holds up nobody."""
        self.usual_ms = SLOW_MS

    def observe(self, move: Move) -> None:
        """Look at one move. Of two threads that do so at the same time one may be overlooked: it is a guess anyway."""
        if move.duration_ms is not None:
            self.usual_ms += (move.duration_ms - self.usual_ms) / MEMORY

    @property
    def is_quick(self) -> bool:
        """Whether handlers take so little that one need not think of them."""
        return self.usual_ms <= QUICK_MS


class Gathering:
    """Works off what requests bring, in threads of its own."""

    def __init__(self, bridge: Bridge, door: Door) -> None:
        """Take the bridge, and the door that requests came through; nothing is started before there is work."""
        self._bridge = bridge
        self._door = door
        self._answering = Deadlines(door.answer_within)
        settings = bridge.settings
        self._workers = settings.concurrency if settings.concurrency > 1 else WORKERS
        self._busy_wait = settings.busy_wait_seconds
        self.outage = Outage(bridge.telemetry.warn, "the ledger is in reach again")
        self._waiting: deque[Bundle] = deque()
        self._asleep: set[Bundle] = set()
        #: Threads that wait for a batch, each by its queue; the last one is still warm.
        self._free: list[SimpleQueue[Batch | None]] = []
        self._running = 0
        #: By the loop's clock: until then the newest batch may take.
        self._overdue = 0.0
        self._pace = Pace()
        bridge.telemetry.add(self._pace.observe)
        self._scheduled = False
        self._looking = False
        self._idle = asyncio.Event()
        self.stopping = False

    @property
    def refusal(self) -> Reply | None:
        """What is answered at once, without looking at what a request brings; None if it may come in."""
        if self.stopping:
            return STOPPING
        return OVERLOADED if len(self._waiting) + len(self._asleep) >= WAITING_MAX else None

    def expect(self) -> Bundle:
        """Let the time of a request begin; what it brings is to be read yet."""
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        return Bundle(reply, self._answering.begin(partial(_answer, reply, NO_TIME_LEFT)))

    def bring(self, bundle: Bundle, raws: list[bytes], size: int) -> asyncio.Future[Reply]:
        """Have deliveries worked off; the answer comes in time."""
        bundle.raws, bundle.todo, bundle.size = raws, range(len(raws)), size
        refused = self.refusal  # it may have become too much while the request was read
        if refused is not None:
            self._over([bundle])
            _answer(bundle.reply, refused)
            return bundle.reply
        loop = asyncio.get_running_loop()
        self._bridge.books.receive(len(raws))
        bundle.busy_until = min(bundle.deadline.at, loop.time() + self._busy_wait)
        self._waiting.append(bundle)
        if not self._scheduled:
            # What else has arrived by now comes along.
            self._scheduled = True
            loop.call_soon(self._hand_over)
        return bundle.reply

    async def close(self) -> None:
        """Let what runs finish, and answer what waits."""
        self.stopping = True
        self._bridge.stop()
        waiting = [*self._waiting, *self._asleep]
        self._over(waiting)
        for bundle in waiting:
            _answer(bundle.reply, STOPPING)
        self._waiting.clear()
        self._asleep.clear()
        while self._running:
            self._idle.clear()
            await self._idle.wait()
        for queue in self._free:
            queue.put(None)

    # --- handing over --------------------------------------------------------------------------------

    def _hand_over(self) -> None:
        """Begin as many batches as may run now."""
        self._scheduled = False
        loop = asyncio.get_running_loop()
        while self._waiting and self._may_begin(loop.time()):
            bundles = self._taken()
            if bundles:
                self._begin(bundles, loop)
        if self._waiting and not self._looking:
            self._looking = True
            loop.call_later(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        self._looking = False
        self._hand_over()

    def _may_begin(self, now: float) -> bool:
        if not self._running:
            return True
        if now >= self._overdue:
            self._pace.usual_ms = max(self._pace.usual_ms, SLOW_MS)
        return self._running < self._workers and not self._pace.is_quick

    def _taken(self) -> list[Bundle]:
        """Take from what waits, in order of arrival; what has been answered meanwhile is left out."""
        requests, events = len(self._waiting), EVENTS_MAX
        if not self._pace.is_quick:
            requests = -(-requests // (self._workers - self._running))
            events = int(SHARE_MS / self._pace.usual_ms)
        bundles: list[Bundle] = []
        while self._waiting and len(bundles) < requests:
            events -= len(self._waiting[0].todo)
            if bundles and events < 0:
                break
            bundle = self._waiting.popleft()
            if bundle.reply.done():
                self._over([bundle])
            else:
                bundles.append(bundle)
        return bundles

    def _begin(self, bundles: list[Bundle], loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        # By the one with the most time: one that has hardly any left must not take it from the others.
        seconds = max(bundle.deadline.at for bundle in bundles) - now
        events = sum(len(bundle.todo) for bundle in bundles)
        self._overdue = now + (SHARE_MS + QUICK_MS * min(events, EVENTS_MAX)) / 1000
        self._running += 1
        side_by_side = len(bundles) == 1 and self._pace.usual_ms > SIDE_BY_SIDE_MS
        queue = self._free.pop() if self._free else self._new_thread(loop)
        queue.put(Batch(bundles, seconds, min(events, self._workers) if side_by_side else 1))

    def _new_thread(self, loop: asyncio.AbstractEventLoop) -> SimpleQueue[Batch | None]:
        queue: SimpleQueue[Batch | None] = SimpleQueue()
        threading.Thread(target=self._work, args=(queue, loop), name="oncebridge-request", daemon=True).start()
        return queue

    # --- working, in threads -------------------------------------------------------------------------

    def _work(self, queue: SimpleQueue[Batch | None], loop: asyncio.AbstractEventLoop) -> None:
        generation = forks.generation()
        while (batch := queue.get()) is not None:
            try:
                self._run(batch)
            except BaseException as error:  # noqa: BLE001 - told to those who wait for it
                if forks.generation() != generation:
                    return  # a child that a handler has forked: nobody waits here
                batch.error = error
            with suppress(RuntimeError):  # the loop is gone, and with it everybody who waited
                loop.call_soon_threadsafe(self._ended, batch, queue)

    def _run(self, batch: Batch) -> None:
        raws = [bundle.raws[at] for bundle in batch.bundles for at in bundle.todo]
        flow = self._bridge.open()
        batch.asked_us = flow.clock.monotonic_us()
        until_us = batch.asked_us + int(batch.seconds * 1_000_000)
        requests = tuple([len(bundle.todo) for bundle in batch.bundles])
        if len(raws) == len(requests):
            requests = ()  # nearly always: each brought one
        terms = BatchLimits(
            until_us=until_us,
            busy_wait_seconds=0,
            concurrency=batch.concurrency,
            requests=requests,
            escapes=False,
        )
        try:
            batch.results = flow.run(raws, terms)
        finally:
            batch.ended_us = flow.clock.monotonic_us()

    # --- and back ------------------------------------------------------------------------------------

    def _ended(self, batch: Batch, queue: SimpleQueue[Batch | None]) -> None:
        self._running -= 1
        self._free.append(queue)
        self._idle.set()
        if batch.error is None:
            self._distribute(batch)
        else:
            reply = self._reply_to(batch.error, batch.ended_us)
            self._over(batch.bundles)
            for bundle in batch.bundles:
                _answer(bundle.reply, reply)
        self._hand_over()

    def _distribute(self, batch: Batch) -> None:
        """Give each request what became of its deliveries."""
        self.outage.answered(batch.asked_us)
        results = iter(batch.results)
        ended: list[Bundle] = []
        for bundle in batch.bundles:
            if bundle.results:
                for at in bundle.todo:
                    bundle.results[at] = next(results)
            else:
                bundle.results = [next(results) for _ in bundle.todo]
            if not self._asks_again(bundle):
                ended.append(bundle)
        self._over(ended)
        for bundle in ended:
            _answer(bundle.reply, reply_for(bundle.results))

    def _asks_again(self, bundle: Bundle) -> bool:
        """Let what somebody else is working on wait by itself; False if there is no such thing, or no more time."""
        busy = [at for at in bundle.todo if bundle.results[at].verdict is _BUSY]
        if not busy or self.stopping or bundle.reply.done():
            return False
        loop = asyncio.get_running_loop()
        if loop.time() >= bundle.busy_until:
            return False
        bundle.todo = busy
        self._asleep.add(bundle)
        loop.call_later(POLL_SECONDS, self._wake, bundle)
        return True

    def _wake(self, bundle: Bundle) -> None:
        if bundle in self._asleep:
            self._asleep.remove(bundle)
            self._waiting.append(bundle)
            self._hand_over()

    def _over(self, bundles: list[Bundle]) -> None:
        """Enter bundles into the books, once nothing more is done with them, and make room at the door."""
        results = [result for bundle in bundles for result in bundle.results]
        if results:
            self._bridge.account(results)
        self._door.let_go(sum(bundle.size for bundle in bundles))

    def _reply_to(self, error: BaseException, now_us: int) -> Reply:
        # Where the ledger is, and what is wrong there, is for whoever reads the log: and there it is said once.
        if isinstance(error, LedgerUnavailable | LedgerRefused):
            self.outage.began(f"requests have to come again: {error}", now_us)
            return OUTAGE
        return self.unexpected(error)

    def unexpected(self, error: BaseException) -> Reply:
        """Log what should not have happened, without its words: they may quote what was sent."""
        self._bridge.telemetry.warn(f"a request failed with {type(error).__name__}, which nobody expected")
        return UNEXPECTED


def _answer(waiting: asyncio.Future[Reply], reply: Reply) -> None:
    if not waiting.done():
        waiting.set_result(reply)
