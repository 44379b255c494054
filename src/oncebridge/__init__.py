"""Oncebridge makes at-least-once delivery of Genesys Cloud events take effect once."""

from __future__ import annotations

from oncebridge.bridge import Bridge
from oncebridge.claim import Outcome, Verdict
from oncebridge.deadletters import DeadLetter, DeadLetters
from oncebridge.engine.result import Result
from oncebridge.errors import (
    ClaimLost,
    ConfigurationError,
    HandlerWriteRefused,
    LedgerRefused,
    LedgerUnavailable,
    LedgerWarning,
    MissingExtra,
    NotAcknowledged,
    OncebridgeError,
    PermanentError,
    RetryLater,
    Unreadable,
)
from oncebridge.event import Envelope, Event
from oncebridge.retry import RetryPolicy
from oncebridge.settings import Settings

__all__ = [  # noqa: RUF022 - grouped by who needs it
    # The bridge
    "Bridge",
    "RetryPolicy",
    "Settings",
    # What handlers get
    "Envelope",
    "Event",
    # What callers get
    "DeadLetter",
    "DeadLetters",
    "Outcome",
    "Result",
    "Verdict",
    # Raised by handlers
    "PermanentError",
    "RetryLater",
    # Raised to callers
    "ClaimLost",
    "ConfigurationError",
    "HandlerWriteRefused",
    "LedgerRefused",
    "LedgerUnavailable",
    "LedgerWarning",
    "MissingExtra",
    "NotAcknowledged",
    "OncebridgeError",
    "Unreadable",
]
