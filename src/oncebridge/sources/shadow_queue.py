"""Queues that a shadow may read: it deletes messages that no handler got, so the queue must be its own.

SQS gives a message to one of the programs that read its queue. A shadow beside another program on one queue would take
events away from it, and lose them. SQS does not tell whether others read a queue, so its name has to say whose it is;
then neither a setting that was left on nor a wrong URL makes a shadow read a live queue.
"""

from __future__ import annotations

from typing import Any, Final

from oncebridge.errors import ConfigurationError

MARK: Final = "shadow"


def check_queue(name: str) -> None:
    """Refuse a queue that is not a shadow's own, by the last part of its URL or ARN."""
    if MARK not in name.lower():
        raise ConfigurationError(
            f"shadow: the queue {name!r} is not a shadow's own; a shadow deletes messages that no handler got, so they "
            f"would be lost to other readers. Give it a queue whose name contains {MARK!r}, as another target of the "
            "rule"
        )


def check_queues(event: Any) -> None:
    """Refuse an invocation with messages of a queue that is not a shadow's own; other sources copy what they send."""
    records = event.get("Records", [event]) if isinstance(event, dict) else event
    for record in records if isinstance(records, list) else ():
        if isinstance(record, dict) and record.get("eventSource") == "aws:sqs":
            arn = record.get("eventSourceARN")
            check_queue(arn.rpartition(":")[2] if isinstance(arn, str) else "")
