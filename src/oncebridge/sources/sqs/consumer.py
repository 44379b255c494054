"""Messages from an SQS queue: received, processed by several workers, and deleted when all they hold is settled.

A message that is not acknowledged waits here for its next try and stays hidden, so that SQS' own count of receives does
not grow with our attempts, and its dead-letter queue gets nothing that is still being tried.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from oncebridge import forks
from oncebridge.breaker import Outage
from oncebridge.clock import NEVER
from oncebridge.engine.limits import GOES_ON
from oncebridge.engine.waiting import OUTAGE_BACKOFF, PATIENCE_US, made_attempt
from oncebridge.errors import ConfigurationError, LedgerUnavailable
from oncebridge.retry import RetryPolicy
from oncebridge.sources.sqs.in_flight import InFlight, Message, new_message, wait_us
from oncebridge.sources.sqs.queue import AT_ONCE, QueueError
from oncebridge.sources.sqs.visibility import Visibility
from oncebridge.sources.unwrap import unwrap

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from oncebridge.clock import Clock
    from oncebridge.engine.flow import Flow
    from oncebridge.engine.result import Result
    from oncebridge.settings import Settings
    from oncebridge.sources.sqs.queue import Queue, Received

#: Handlers that take longer get one message at a time: else the others in a worker's share wait for nothing.
SHARE_US: Final = 100_000
LOOK_SECONDS: Final = 0.2
#: SQS counts messages that were deleted for about as long.
HIDDEN_WAIT_SECONDS: Final = 60.0
COUNT_AGAIN_SECONDS: Final = 0.5
_IN_QUEUE: Final = "as many messages wait for their next try as may be in flight; some wait in the queue instead"
_QUEUE_BACKOFF: Final = RetryPolicy(base_seconds=0.5, growth=2, cap_seconds=20.0)
_DELETING: Final = RetryPolicy(attempts=4, base_seconds=0.2, growth=2, cap_seconds=5.0)


class HiddenMessages:
    """Waits for messages that cannot be received now: other workers hide them, or they are delayed."""

    def __init__(self, queue: Queue, clock: Clock, wait_us: int, say: Callable[[str], None]) -> None:
        """Take how long to wait in all."""
        self._queue = queue
        self._clock = clock
        self._wait_us = wait_us
        self._say = say
        self.since_us: int | None = None
        self.left = 0

    def is_over(self, now_us: int, closing: threading.Event, *, held: int) -> bool:
        """Return whether there are none beside those held here, or the wait is over; else wait a little."""
        try:
            self.left = max(0, self._queue.count_left() - held)
        except QueueError as trouble:
            self._say(f"not known whether messages are hidden: {trouble}; counting them needs sqs:GetQueueAttributes")
            return True
        if not self.left:
            return True
        if self.since_us is None:
            self.since_us = now_us
            self._say(
                f"about {self.left:,} messages are hidden or delayed; waiting up to {self._wait_us / 1_000_000:g} s "
                "for them"
            )
        if now_us - self.since_us >= self._wait_us:
            return True
        self._clock.wait(closing, COUNT_AGAIN_SECONDS)
        return False


class QueueRun:
    """Processes a queue until the flow is stopped or, if wanted, until the queue is empty."""

    def __init__(
        self,
        flow: Flow,
        queue: Queue,
        settings: Settings,
        *,
        workers: int,
        limit: int,
        until_empty: bool = False,
        hidden_wait_seconds: float = HIDDEN_WAIT_SECONDS,
        receive: Callable[[int], None],
        account: Callable[[Sequence[Result]], None],
        say: Callable[[str], None],
    ) -> None:
        """Take the parts; nothing is started yet.

        Args:
            flow: Handles one event at a time in each call, so that workers alone decide how many.

            queue: Where messages come from.

            settings: How long claims run, and how long handlers may take.

            workers: How many messages are worked on at a time.

            limit: How many messages may be in flight, worked on or waiting for their next try.

            until_empty: Whether to end when the queue has nothing more, and no try is due soon.

            hidden_wait_seconds: How long to wait then for messages that others hide, or that are delayed.

            receive: Gets the number of deliveries that have arrived.

            account: Gets the results of deliveries.

            say: Gets messages for people.

        """
        self._flow = flow
        self._queue = queue
        self._clock = flow.clock
        self._workers = workers
        self._until_empty = until_empty
        self._hidden = HiddenMessages(queue, flow.clock, int(hidden_wait_seconds * 1_000_000), say)
        self._receive, self._account = receive, account
        self._say = say
        self._warn = flow.telemetry.warn
        self.in_flight = InFlight(
            flow.clock,
            limit=limit,
            workers=workers,
            handler_timeout_us=int(settings.handler_timeout_seconds * 1_000_000),
        )
        self._visibility = Visibility(
            queue,
            self.in_flight,
            flow.clock,
            lease_us=int(settings.lease_seconds * 1_000_000),
            on_trouble=self._say_if_refused,
            on_let_go=self._let_go,
        )
        self._ledger_outage = Outage(say, "the ledger is back; going on")
        self._queue_outage = Outage(say, "SQS answers again; going on")
        self._said: set[str] = set()
        self._reached, self._number = False, 0
        #: When an event was last tried, or came in.
        self._tried_us = flow.clock.monotonic_us()
        self._usual_us = SHARE_US  # until it is measured
        self._closing = threading.Event()
        self._error: BaseException | None = None

    # --- the run -------------------------------------------------------------------------------------

    def run(self, look: Callable[[], None] = lambda: None) -> None:
        """Run until stopped; `look` is called now and then. Raises what ended it, once everything is handed back.

        On an orderly stop running handlers finish, messages that are done are deleted, and the rest is handed back.
        """
        stop_hiding = threading.Event()
        hiding = self._thread("visibility", lambda: self._visibility.run(stop_hiding))
        working = [self._thread("receive", self._receive_all)]
        working += [self._thread(f"worker-{n}", self._work) for n in range(1, self._workers + 1)]
        for thread in (hiding, *working):
            thread.start()
        while not self._closing.is_set():
            if self._clock.wait(self._flow.stopping, LOOK_SECONDS):
                self._close()
            look()
        for thread in working:
            thread.join()
        stop_hiding.set()
        hiding.join()
        self._hand_back_all()
        if self._error is not None:
            raise self._error

    def _thread(self, name: str, target: Callable[[], None]) -> threading.Thread:
        generation = forks.generation()

        def guarded() -> None:
            try:
                target()
            except BaseException as error:  # noqa: BLE001 - raised again where the run was started
                if forks.generation() != generation:
                    return  # a child that a handler has forked: the run is its parent's, and nothing is left to do here
                self._error = self._error or error
                self._flow.stopping.set()
                self._close()

        # Not waited for when a second signal ends the process.
        return threading.Thread(target=guarded, name=f"oncebridge-{name}", daemon=True)

    def _close(self) -> None:
        self._closing.set()
        self.in_flight.close()

    def _hand_back_all(self) -> None:
        left = self.in_flight.all()
        not_taken = self._visibility.hand_back(left)
        for message in left:
            self._account(message.results)
        if not_taken:
            self._warn("some messages could not be handed back; SQS redelivers them later", messages=not_taken)

    # --- receiving -----------------------------------------------------------------------------------

    def _receive_all(self) -> None:
        """Receive while there is room: one call at a time, so that an idle process makes no more than one."""
        attempt = 1
        while number := self.in_flight.room(self._wanted):
            asked_us = self._clock.monotonic_us()
            try:
                received = self._queue.receive(number, self._visibility.seconds)
            except QueueError as trouble:
                if not trouble.passing and not self._reached:
                    raise ConfigurationError(str(trouble)) from None
                self._queue_outage.began(f"{trouble}; trying again until it answers", self._clock.monotonic_us())
                self._clock.wait(self._closing, _QUEUE_BACKOFF.delay_seconds(attempt))
                attempt += 1
                continue
            self._reached, attempt = True, 1
            self._queue_outage.answered(asked_us)
            now_us = self._clock.monotonic_us()
            self.in_flight.add([self._read(one, now_us) for one in received])
            if received:
                self._tried_us, self._hidden.since_us = now_us, None
            elif self._until_empty and self._is_over(now_us):
                self._close()

    def _is_over(self, now_us: int) -> bool:
        idle = self.in_flight.is_idle_until(self._tried_us + PATIENCE_US)
        return idle and self._hidden.is_over(now_us, self._closing, held=len(self.in_flight))

    @property
    def left(self) -> int:
        """About how many messages of others were left in the queue when `until_empty` ended the run."""
        return self._hidden.left

    def _wanted(self) -> int:
        """Return how many messages should be ready to be tried: as many as the workers take at a time."""
        return 0 if self._ledger_outage else self._workers * self._at_once()

    def _read(self, received: Received, now_us: int) -> Message:
        raws = unwrap(received.body.encode(errors="surrogatepass"))
        self._receive(len(raws))
        self._number += 1
        deliveries = [self._flow.read(raw) for raw in raws]
        return new_message(self._number, received, deliveries, now_us, self._visibility.seconds * 1_000_000)

    def _say_if_refused(self, trouble: QueueError) -> None:
        """Report once an error that will not pass by itself; outages are reported where messages are received."""
        if not trouble.passing and str(trouble) not in self._said:
            self._said.add(str(trouble))
            self._say(str(trouble))

    def _let_go(self, message: Message, why: str) -> None:
        """Stop hiding a message that cannot be kept hidden; SQS redelivers it unless it is done and deleted first."""
        idle = self.in_flight.let_go(message)
        if idle is None:
            return
        self._visibility.hand_back(idle)
        for one in idle:
            self._account(one.results)
        self._warn("a message is no longer kept hidden, and comes again", why=why)

    # --- working -------------------------------------------------------------------------------------

    def _work(self) -> None:
        while share := self.in_flight.take(self._at_once()):
            try:
                self._through_outages(share)
            except LedgerUnavailable:  # and stopped: handed back with the rest
                for message in share:
                    self.in_flight.put_back(message, self._clock.monotonic_us(), keeps_place=True)
                return
            self._conclude(share)

    def _at_once(self) -> int:
        """Return how many messages a worker takes at a time, by how long one usually takes."""
        return max(1, min(AT_ONCE, SHARE_US // max(1, self._usual_us)))

    def _through_outages(self, share: list[Message]) -> None:
        """Process messages, however long the ledger is out of reach; nothing more is received meanwhile."""
        deliveries = [delivery for message in share for delivery in message.deliveries]
        attempt = 1
        while True:
            asked_us = self._clock.monotonic_us()
            try:
                self._flow.process(deliveries, limits=GOES_ON)
            except LedgerUnavailable as error:
                self._ledger_outage.began(f"{error}; waiting for it", self._clock.monotonic_us())
                backoff_us = int(OUTAGE_BACKOFF.delay_seconds(attempt) * 1_000_000)
                retry_in_us = max(self._flow.breaker.retry_in_us, backoff_us)
                self.in_flight.begin_again(share, retry_in_us)
                if self._clock.wait(self._closing, retry_in_us / 1_000_000):
                    raise
                attempt += 1
            else:
                took_us = (self._clock.monotonic_us() - asked_us) // len(share)
                self._usual_us += (took_us - self._usual_us) // 4
                # Events that nobody takes need no ledger, so their end says nothing about it.
                asked = any(delivery.tasks for delivery in deliveries)
                if self._ledger_outage and asked and not self._flow.breaker.is_failing:
                    self._ledger_outage.answered(asked_us)
                    self.in_flight.look()
                return

    def _conclude(self, share: list[Message]) -> None:
        """Delete messages that are over; the rest wait for their next try."""
        now_us = self._clock.monotonic_us()
        over = [message for message in share if message.is_over]
        for message in share:
            if message in over:
                self._account(message.results)
                self.in_flight.end(message)
                continue
            results = message.results
            if any(made_attempt(result) for result in results):
                self._tried_us = now_us
            retry_at_us, busy = wait_us(results)
            if not self.in_flight.put_back(message, now_us + retry_at_us, keeps_place=busy):
                self._account(results)
        self._make_room(now_us)
        if over:
            self._tried_us = now_us
            self._delete(over)
            self.in_flight.forget(over)

    def _make_room(self, now_us: int) -> None:
        """Have SQS keep messages that wait for long where as many are held as may be: others need not wait for them."""
        far_off = self.in_flight.far_off(now_us + PATIENCE_US)
        if not far_off:
            return
        if _IN_QUEUE not in self._said:
            self._said.add(_IN_QUEUE)
            self._warn(_IN_QUEUE)
        idle = [one for message in far_off for one in self.in_flight.let_go(message) or ()]
        self._visibility.hand_back(idle)
        for one in idle:
            self._account(one.results)

    def _delete(self, messages: list[Message]) -> None:
        """Delete messages; those that SQS does not delete are redelivered, and recognised as duplicates then."""
        attempt, refused = 1, 0
        while True:
            messages, not_ours = self._not_deleted(messages)
            refused += not_ours
            if not messages or _DELETING.is_last(attempt):
                break
            self._clock.wait(NEVER, _DELETING.delay_seconds(attempt))  # a stop does not end this
            attempt += 1
        if messages or refused:
            self._warn(
                "some messages were processed but not deleted; SQS redelivers them, as duplicates",
                messages=len(messages) + refused,
            )

    def _not_deleted(self, messages: list[Message]) -> tuple[list[Message], int]:
        """Delete once; return those that may be tried again, and how many SQS no longer accepts as ours."""
        try:
            failed = self._queue.delete([message.receipt for message in messages])
        except QueueError as trouble:
            self._say_if_refused(trouble)
            return messages, 0
        again = [messages[one.at] for one in failed if one.passing]
        return again, len(failed) - len(again)
