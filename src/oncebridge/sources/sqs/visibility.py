"""Keeps messages hidden while they are in flight, and shows them again when they are handed back.

A message is hidden for longer than a lease runs. So when this process dies, its claims end before its messages are
visible again, and the process that receives them takes over at once instead of waiting.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Final

from oncebridge.sources.sqs.queue import AT_ONCE, HIDDEN_SECONDS_MAX, QueueError

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator, Sequence

    from oncebridge.clock import Clock
    from oncebridge.sources.sqs.in_flight import InFlight, Message
    from oncebridge.sources.sqs.queue import Queue

HIDDEN_MAX_US: Final = HIDDEN_SECONDS_MAX * 1_000_000
MARGIN_US: Final = 5_000_000  # for a call to SQS, and clocks
TICK_SECONDS_MIN: Final = 0.1

TOO_LONG: Final = "its handler takes longer than handler_timeout_seconds"
TOO_OLD: Final = "SQS keeps no message hidden for more than 12 hours"
NOT_OURS: Final = "SQS shows it to others, or no longer has it"


class Visibility:
    """Keeps every message in flight hidden; checks each third of a lease."""

    def __init__(
        self,
        queue: Queue,
        in_flight: InFlight,
        clock: Clock,
        *,
        lease_us: int,
        on_trouble: Callable[[QueueError], None],
        on_let_go: Callable[[Message, str], None],
    ) -> None:
        """Take the queue, the messages, and where to report that SQS fails or a message is no longer kept hidden."""
        self._queue = queue
        self._in_flight = in_flight
        self._clock = clock
        self._lease_us = lease_us
        self._on_trouble = on_trouble
        self._on_let_go = on_let_go
        #: How long a message is hidden at a time.
        self.seconds = min(ceil(lease_us * 1.5 / 1_000_000) + 1, HIDDEN_SECONDS_MAX)
        #: With less than that left, it is hidden again: at any time a claim that begins ends before the message is
        #: visible again.
        self._left_us_min = max(lease_us * 4 // 3, self.seconds * 500_000)

    def run(self, stop: threading.Event) -> None:
        """Keep them hidden until stopped."""
        while not self._clock.wait(stop, max(TICK_SECONDS_MIN, self._lease_us / 3_000_000)):
            self.tick()

    def tick(self) -> None:
        """Extend the messages that must stay hidden, and let go of the rest."""
        now_us = self._clock.monotonic_us()
        stay: list[tuple[Message, int]] = []
        for message in self._in_flight.all():
            why = None if message.gone else self._why_not(message, now_us)
            if why is not None:
                self._on_let_go(message, why)
            elif not message.gone and message.hidden_until_us - now_us < self._left_us_min:
                stay.append((message, self._seconds_for(message, now_us)))
        for some in in_tens(stay):
            if not self._hide(some):
                break  # the next tick tries again, and there are two before any of them is visible

    def _why_not(self, message: Message, now_us: int) -> str | None:
        """Return why a message must not, or cannot, be kept hidden any longer."""
        if message.works_until_us is not None and now_us > message.works_until_us:
            return TOO_LONG
        over_us = message.received_us + HIDDEN_MAX_US
        return TOO_OLD if now_us + self._lease_us // 3 + MARGIN_US > over_us else None

    def _seconds_for(self, message: Message, now_us: int) -> int:
        """Hide a waiting message until it is due, and a little longer: no other process should try it earlier."""
        waits_us = max(0, message.due_us - now_us) if message.works_until_us is None else 0
        left_us = message.received_us + HIDDEN_MAX_US - now_us
        return min(ceil(waits_us / 1_000_000) + self.seconds, left_us // 1_000_000)

    def _hide(self, messages: Sequence[tuple[Message, int]]) -> bool:
        """Hide these again; False if SQS does not answer."""
        now_us = self._clock.monotonic_us()
        try:
            failed = {one.at: one for one in self._queue.hide([(one.receipt, number) for one, number in messages])}
        except QueueError as trouble:
            self._on_trouble(trouble)
            return False
        for at, (message, number) in enumerate(messages):
            if at not in failed:
                message.hidden_until_us = now_us + number * 1_000_000
            elif not failed[at].passing:
                self._on_let_go(message, NOT_OURS)
        return True

    def hand_back(self, messages: Sequence[Message]) -> int:
        """Make messages visible again: at once, or when their next try is due. Return how many SQS refused."""
        now_us = self._clock.monotonic_us()
        taken = 0
        for some in in_tens([(one, self._seconds_to_wait(one, now_us)) for one in messages]):
            try:
                taken += len(some) - len(self._queue.hide([(one.receipt, number) for one, number in some]))
            except QueueError as trouble:
                self._on_trouble(trouble)
                break  # they become visible by themselves, only later
        return len(messages) - taken

    def _seconds_to_wait(self, message: Message, now_us: int) -> int:
        left_us = max(0, message.received_us + HIDDEN_MAX_US - now_us)
        return min(ceil(max(0, message.due_us - now_us) / 1_000_000), left_us // 1_000_000)


def in_tens(items: Sequence[tuple[Message, int]]) -> Iterator[Sequence[tuple[Message, int]]]:
    """Cut into batches as large as SQS takes."""
    for start in range(0, len(items), AT_ONCE):
        yield items[start : start + AT_ONCE]
