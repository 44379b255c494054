"""The answer to "why do I get duplicates?", as data: what the terminal, the page and programs show.

It holds sums and a few examples, whatever the size of the capture, and nothing personal: no body, no name, no number.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

FORM: Final = 1  # of the data below; a report that was written in another form is not read
EXAMPLES_MAX: Final = 3
TOPICS_MAX: Final = 40


class Cause(StrEnum):
    """Why a delivery is a duplicate."""

    SQS_REDELIVERY = "sqs_redelivery"
    LAMBDA_RETRY = "lambda_retry"
    EVENTBRIDGE_RETRY = "eventbridge_retry"
    OVERLAPPING_RULES = "overlapping_rules"
    SECOND_INTEGRATION = "second_integration"
    GENESYS_REPUBLISH = "genesys_republish"
    ARCHIVE_REPLAY = "archive_replay"
    TWO_TOPICS = "two_topics"
    ECHO = "echo"
    UNKNOWN = "unknown"


class Example(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One delivery, and the one that it repeats or was taken for."""

    n: int
    #: Where it is: file and line. Behind gzip, the line of the unpacked text.
    place: str
    topic: str
    #: The envelope id where it has the form of one; any other text may be anything.
    id: str | None = None
    time: str | None = None
    of_n: int | None = None
    of_place: str | None = None
    of_topic: str | None = None
    of_time: str | None = None
    reason: str = ""


class Lags(msgspec.Struct, frozen=True, kw_only=True):
    """How long after the first delivery of their event duplicates came, in milliseconds."""

    count: int = 0
    p50: int = 0
    p90: int = 0
    p99: int = 0
    p999: int = 0
    max: int = 0
    #: Duplicates by lag: the upper edge of each class in milliseconds, and how many are in it.
    edges: list[int] = []
    counts: list[int] = []


class CauseFound(msgspec.Struct, frozen=True, kw_only=True):
    """One cause with its evidence and what to do about it."""

    cause: Cause
    title: str  # "Two rules match"
    count: int
    #: Of all duplicates, from 0 to 1.
    share: float
    evidence: str
    advice: str
    lags: Lags
    #: The topics with most of them.
    topics: list[tuple[str, int]] = []
    examples: list[Example] = []


class TopicFound(msgspec.Struct, frozen=True, kw_only=True):
    """One topic."""

    topic: str
    kind: str
    deliveries: int
    events: int
    duplicates: int
    causes: dict[str, int] = {}


class OverTime(msgspec.Struct, frozen=True, kw_only=True):
    """Deliveries and duplicates by when they arrived, in at most 120 steps of equal width."""

    start_ms: int = 0
    width_ms: int = 0
    deliveries: list[int] = []
    duplicates: dict[str, list[int]] = {}  # by cause


class KeyTried(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the back-test: what a key would have done with this traffic."""

    key: str  # "envelope_id"
    title: str  # "Envelope id"
    #: What is compared, in words.
    compares: str
    #: How long it remembers; None: for as long as the capture lasts.
    seconds: float | None
    let_through: int
    lost: int
    lost_examples: list[Example] = []
    let_through_examples: list[Example] = []


class LookAlike(msgspec.Struct, frozen=True, kw_only=True):
    """Something that only looks like duplication."""

    name: str  # "late", "again", "tie", "clock" or "conflict"
    title: str
    count: int
    what: str
    examples: list[Example] = []


class EchoWindow(msgspec.Struct, frozen=True, kw_only=True):
    """How soon the states of a topic are repeated, and the window that follows."""

    topic: str
    window_ms: int  # in force
    echoes: int  # within it
    #: Repeats of the same state just outside of the window, up to ten times its length.
    outside: int
    advised_ms: int
    text: str


class TopicPair(msgspec.Struct, frozen=True, kw_only=True):
    """Two topics that bring the same facts."""

    topic: str
    other: str
    count: int
    text: str


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """What follows from the data."""

    #: The smallest retention that is safe, and the reason.
    retention_days: int
    retention_text: str
    #: What shorter memories would have let through: seconds and duplicates.
    forgotten: list[tuple[int, int]] = []
    redis_bytes: int = 0
    redis_text: str = ""
    echo_windows: list[EchoWindow] = []
    topic_pairs: list[TopicPair] = []


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """All of it."""

    form: int = FORM
    #: The answer in one sentence, and in one line to paste into a chat.
    answer: str
    chat: str
    deliveries: int
    events: int
    duplicates: int
    unreadable: int
    causes: dict[str, int]
    backtest: list[KeyTried]
    found: list[CauseFound]
    topics: list[TopicFound]
    #: How many topics there are beyond those listed.
    topics_left_out: int = 0
    over_time: OverTime
    lags: Lags
    look_alikes: list[LookAlike]
    advice: Advice
    #: What could not be read or is no event, in lines.
    skipped: list[str] = []
    # Where it comes from.
    oncebridge: str  # version
    made: str
    command: str
    settings: str
    files: list[str]
    input_digest: str
    first: str | None = None
    last: str | None = None
