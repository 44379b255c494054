"""Messages of a queue that are in flight: which one is tried next, and which one has to wait for another.

Several workers share them, and must not get in each other's way. So a message that is being tried holds lanes, and
another message that needs one of them waits until it is free. On a FIFO queue the lane is the message group, held until
the message is acknowledged, which keeps the order. On other queues the lanes are its events, held as long, since a
duplicate can only wait; and the entities that its events are states of, given up while it waits for its next try: the
newest state wins, and need not wait for an older one that fails.
"""

from __future__ import annotations

import heapq
import threading
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from oncebridge.engine.task import is_over, stopped
from oncebridge.engine.waiting import POLL_US
from oncebridge.sources.sqs.queue import AT_ONCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from oncebridge.clock import Clock
    from oncebridge.engine.result import Result
    from oncebridge.engine.task import Delivery
    from oncebridge.sources.sqs.queue import Received

Lane: TypeAlias = tuple[str, bytes | str]


class Message(msgspec.Struct, eq=False, kw_only=True):
    """One message, with the deliveries it holds. Times are of this process' monotonic clock."""

    n: int  # order of arrival
    receipt: str
    deliveries: list[Delivery]
    #: Lanes that it holds until it is acknowledged, and those that it gives up while it waits for its next try.
    kept_lanes: tuple[Lane, ...]
    loose_lanes: tuple[Lane, ...]
    received_us: int
    hidden_until_us: int
    due_us: int
    #: While it is being processed: until when its handlers, and those before it, may take.
    works_until_us: int | None = None
    #: Whether we no longer keep it hidden: SQS redelivers it, or it is about to be deleted.
    gone: bool = False

    def __lt__(self, other: Message) -> bool:
        return (self.due_us, self.n) < (other.due_us, other.n)

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """Every lane that it needs to be tried."""
        return self.kept_lanes + self.loose_lanes

    @property
    def is_over(self) -> bool:
        """Whether it may be deleted: each of its deliveries is settled for good."""
        return all(delivery.is_over for delivery in self.deliveries)

    @property
    def tasks_left(self) -> int:
        """How many handlers have not settled it for good."""
        return sum(not is_over(task) for delivery in self.deliveries for task in delivery.tasks)

    @property
    def results(self) -> list[Result]:
        """The results of its deliveries so far."""
        return [_last_result(delivery) for delivery in self.deliveries]


def _last_result(delivery: Delivery) -> Result:
    untried = next((task for task in delivery.tasks if task.result is None), None)
    return delivery.result if untried is None else stopped(untried)


def new_message(n: int, received: Received, deliveries: list[Delivery], now_us: int, hidden_us: int) -> Message:
    """Make a message of one that SQS handed out."""
    if received.group is not None:
        kept: list[Lane] = [("group", received.group)]
        loose: list[Lane] = []
    else:
        kept = [("event", task.ask.key) for delivery in deliveries for task in delivery.tasks]
        loose = [("entity", entity) for delivery in deliveries for entity in delivery.entities]
    return Message(
        n=n,
        receipt=received.receipt,
        deliveries=deliveries,
        kept_lanes=tuple(dict.fromkeys(kept)),
        loose_lanes=tuple(dict.fromkeys(loose)),
        received_us=now_us,
        hidden_until_us=now_us + hidden_us,
        due_us=now_us,
    )


def wait_us(results: Iterable[Result]) -> tuple[int, bool]:
    """Return how long a message waits for its next try, and whether only because others hold its events."""
    left = [result for result in results if not result.acknowledged]
    busy = [result for result in left if result.outcome is None]
    waits = [min(result.retry_in_us, POLL_US) if result.outcome is None else result.retry_in_us for result in left]
    return max(waits), len(busy) == len(left)


class InFlight:
    """The messages that this process holds; shared by the threads that receive, work and keep them hidden."""

    def __init__(self, clock: Clock, *, limit: int, workers: int, handler_timeout_us: int) -> None:
        """Hold nothing yet."""
        self._clock = clock
        self._limit = limit
        self._workers = workers
        self._handler_timeout_us = handler_timeout_us
        self._all: dict[Message, None] = {}
        self._waiting: list[Message] = []
        self._holders: dict[Lane, Message] = {}
        #: Messages that are due, but need a lane that another one holds.
        self._parked: dict[Lane, list[Message]] = {}
        self._closed = False
        self._changed = threading.Condition()

    def __len__(self) -> int:
        """How many there are, worked on or waiting."""
        return len(self._all)

    def all(self) -> list[Message]:
        """Return every message that is held."""
        with self._changed:
            return list(self._all)

    def is_idle_until(self, moment_us: int) -> bool:
        """Return whether nothing is worked on, and nothing due before this moment."""
        with self._changed:
            if any(message.works_until_us is not None for message in self._all):
                return False
            return not self._waiting or self._waiting[0].due_us > moment_us

    def close(self) -> None:
        """Give out no more, and wake all waiting threads."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def far_off(self, after_us: int) -> list[Message]:
        """Return messages to let go of where no more may be held: the last of those that are due after this moment."""
        with self._changed:
            if len(self._all) < self._limit:
                return []
            return heapq.nlargest(AT_ONCE, [message for message in self._waiting if message.due_us > after_us])

    def look(self) -> None:
        """Wake all waiting threads."""
        with self._changed:
            self._changed.notify_all()

    # --- for the thread that receives ------------------------------------------------------------------

    def room(self, wanted: Callable[[], int]) -> int:
        """Wait until fewer are ready to be tried than wanted, and return how many may be received; 0 once it is closed.

        More would only wait here, while another process could work on them.
        """
        with self._changed:
            while not self._closed:
                room = self._limit - len(self._all)
                if room > 0 and self._ready() < wanted():
                    return min(room, AT_ONCE)
                self._changed.wait()
            return 0

    def add(self, messages: Iterable[Message]) -> None:
        """Add received messages, in order of arrival."""
        with self._changed:
            for message in messages:
                self._all[message] = None
                heapq.heappush(self._waiting, message)
            self._changed.notify_all()

    # --- for workers -----------------------------------------------------------------------------------

    def take(self, at_once: int) -> list[Message]:
        """Wait for messages that are due, and return a worker's share of them; none once it is closed."""
        with self._changed:
            while not self._closed:
                now_us = self._clock.monotonic_us()
                share = self._share(now_us, min(at_once, -(-self._ready() // self._workers)))
                if share:
                    self._begin(share)
                    self._changed.notify_all()  # there may be room again
                    return share
                next_us = self._waiting[0].due_us - now_us if self._waiting else None
                if next_us is None or next_us > 0:
                    self._changed.wait(None if next_us is None else next_us / 1_000_000)
            return []

    def begin_again(self, share: Iterable[Message], in_us: int) -> None:
        """Restart the handler timeout of these messages `in_us` from now: no handler runs while the ledger is down."""
        with self._changed:
            self._begin(share, in_us)

    def _begin(self, share: Iterable[Message], in_us: int = 0) -> None:
        until_us = self._clock.monotonic_us() + in_us
        for message in share:  # one after the other, like their handlers
            until_us += self._handler_timeout_us * max(1, message.tasks_left)
            message.works_until_us = until_us

    def put_back(self, message: Message, due_us: int, *, keeps_place: bool) -> bool:
        """Queue a message for its next try; it keeps its place before others of its entities, or gives it up.

        False if it was let go meanwhile, so that SQS redelivers it.
        """
        with self._changed:
            if message.gone:
                self._all.pop(message, None)
            else:
                message.works_until_us = None
                message.due_us = due_us
                heapq.heappush(self._waiting, message)
                if not keeps_place:
                    self._leave(message, message.loose_lanes)
            self._changed.notify_all()
            return not message.gone

    def end(self, message: Message) -> None:
        """Free the lanes of a message for the next ones; the caller deletes it, then forgets it."""
        with self._changed:
            message.gone = True
            self._leave(message, message.lanes)
            self._changed.notify_all()

    def forget(self, messages: Iterable[Message]) -> None:
        """Hold these no longer."""
        with self._changed:
            for message in messages:
                self._all.pop(message, None)
            self._changed.notify_all()

    # --- for the thread that keeps them hidden ---------------------------------------------------------

    def let_go(self, message: Message) -> list[Message] | None:
        """Let go of a message, and of those behind it in its group; return those that no worker has.

        SQS redelivers them. None if it was let go before, or has ended.
        """
        with self._changed:
            if message.gone:
                return None
            gone = [message, *self._behind(message)]
            idle = [one for one in gone if one.works_until_us is None]
            self._remove(idle)
            for one in gone:
                one.gone = True
                self._leave(one, one.lanes)
            self._changed.notify_all()
            return idle

    def _behind(self, message: Message) -> list[Message]:
        groups = {lane for lane in message.kept_lanes if lane[0] == "group"}
        return [other for other in self._all if other.n > message.n and not groups.isdisjoint(other.kept_lanes)]

    def _remove(self, messages: list[Message]) -> None:
        """Drop messages that wait, wherever they do."""
        for message in messages:
            self._all.pop(message, None)
        self._waiting = [one for one in self._waiting if one not in messages]
        heapq.heapify(self._waiting)
        for lane, parked in self._parked.items():
            self._parked[lane] = [one for one in parked if one not in messages]

    # --- lanes ---------------------------------------------------------------------------------------

    def _ready(self) -> int:
        now_us = self._clock.monotonic_us()
        return sum(message.due_us <= now_us for message in self._waiting)

    def _share(self, now_us: int, number: int) -> list[Message]:
        share: list[Message] = []
        while self._waiting and self._waiting[0].due_us <= now_us and len(share) < number:
            message = heapq.heappop(self._waiting)
            taken = next((lane for lane in message.lanes if self._holders.get(lane, message) is not message), None)
            if taken is not None:
                self._parked.setdefault(taken, []).append(message)
                continue
            self._holders.update(dict.fromkeys(message.lanes, message))
            share.append(message)
        return share

    def _leave(self, message: Message, lanes: Iterable[Lane]) -> None:
        """Free lanes, and queue the messages that wait for them: in order of arrival, if they are due."""
        for lane in lanes:
            if self._holders.get(lane) is message:
                del self._holders[lane]
                for parked in self._parked.pop(lane, ()):
                    heapq.heappush(self._waiting, parked)
