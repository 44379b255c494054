"""Hides failed messages of a Lambda function in their queue until their next attempt is due.

Lambda leaves a failed message to its queue, which shows it again after its own timeout, whenever the next attempt may
be due. Each time counts as an attempt, so without this ten of them are over after nine timeouts.
"""

from __future__ import annotations

import re
from math import ceil
from typing import TYPE_CHECKING, Final

from oncebridge.amazon import LazyClient, queue_client
from oncebridge.breaker import Breaker, Open
from oncebridge.claim import Outcome
from oncebridge.retry import RetryPolicy
from oncebridge.sources.sqs.queue import AT_ONCE, HIDDEN_SECONDS_MAX, Queue, QueueError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from oncebridge.clock import Clock
    from oncebridge.engine.result import Result

SETTING: Final = "hide_until_retry"
#: SQS counts from when a message was received: no invocation takes longer than 15 minutes.
SECONDS_MAX: Final = HIDDEN_SECONDS_MAX - 1000
_READ_SECONDS: Final = 2.0  # at the end of an invocation there is little time
_LEFT_ALONE: Final = RetryPolicy(base_seconds=60, growth=2, cap_seconds=600)
_ARN: Final = re.compile(r"arn:(aws[a-z-]*):sqs:([a-z0-9-]{1,40}):([0-9]{12}):([A-Za-z0-9_-]{1,80}(?:\.fifo)?)")


def seconds_until_retry(results: Iterable[Result]) -> int | None:
    """Return how long to hide a message; None where none of its events was tried, so that the queue decides.

    An event that waits for its receiver or another worker may come back often, and each time is a receive: where the
    queue's own timeout spaces these, they stay below the `maxReceiveCount` that was chosen for it.
    """
    waits_us = [result.retry_in_us for result in results if result.outcome is Outcome.RETRY]
    return min(ceil(max(waits_us) / 1_000_000), SECONDS_MAX) if waits_us else None


class Postponing:
    """Hides messages, queue by queue; where that fails, the queue shows them again when it likes."""

    def __init__(self, clock: Clock, warn: Callable[[str], None]) -> None:
        """Take where to report that it fails; nothing is connected yet."""
        self._warn = warn
        self._queues: dict[str, Queue] = {}
        self._breaker = Breaker(clock, failures=1, open_for=_LEFT_ALONE)
        self._said: set[str] = set()

    def hide(self, arn: str, seconds: list[tuple[str, int]]) -> None:
        """Hide messages of one queue, by their receipts."""
        url = url_of(arn)
        if url is None:
            return
        queue = self._queues.get(url) or self._queues.setdefault(url, _connected(url))
        try:
            for start in range(0, len(seconds), AT_ONCE):
                with self._breaker.call(QueueError):
                    queue.hide(seconds[start : start + AT_ONCE])
        except QueueError as trouble:
            words = f"{SETTING}: failed messages are shown again when their queue's own timeout is over: {trouble}"
            if words not in self._said:
                self._said.add(words)
                self._warn(words)
        except Open:
            return  # it failed a while ago

    def close(self) -> None:
        """Close connections."""
        queues, self._queues = self._queues, {}
        for queue in queues.values():
            queue.close()


def url_of(arn: str) -> str | None:
    """Return the URL of a queue by its ARN; None for any other text."""
    match = _ARN.fullmatch(arn)
    if match is None:
        return None
    partition, region, account, name = match.groups()
    return f"https://sqs.{region}.amazonaws.com{'.cn' if partition == 'aws-cn' else ''}/{account}/{name}"


def _connected(url: str) -> Queue:
    client = LazyClient(lambda: queue_client(url, SETTING, read_seconds=_READ_SECONDS, connections=1))
    return Queue(client, url, poll_seconds=0)
