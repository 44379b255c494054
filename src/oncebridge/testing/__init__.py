"""For tests of handlers, and of ledgers.

For handlers: `samples` (made-up events by topic), `deliveries` (repeated and wrapped as AWS does), `bridge` (one that
raises what handlers raise), `clock` and `pytest_plugin`. For ledgers of your own: `ledger_contract` (the rules that
every ledger keeps, as tests; needs pytest) and `faults`.
"""

from __future__ import annotations

from oncebridge.testing.bridge import TestBridge, event_of
from oncebridge.testing.clock import ManualClock
from oncebridge.testing.deliveries import (
    LambdaContext,
    kinesis_event,
    message_id,
    redelivery,
    replay,
    republish,
    sns_event,
    sqs_event,
)
from oncebridge.testing.samples import sample_event, sample_topics

__all__ = [
    "LambdaContext",
    "ManualClock",
    "TestBridge",
    "event_of",
    "kinesis_event",
    "message_id",
    "redelivery",
    "replay",
    "republish",
    "sample_event",
    "sample_topics",
    "sns_event",
    "sqs_event",
]
