"""The public interface, used in every supported way. Never run: type checkers read it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, assert_type

from oncebridge import (
    Bridge,
    ClaimLost,
    ConfigurationError,
    DeadLetter,
    DeadLetters,
    Envelope,
    Event,
    LedgerRefused,
    LedgerUnavailable,
    MissingExtra,
    NotAcknowledged,
    OncebridgeError,
    Outcome,
    PermanentError,
    Result,
    RetryLater,
    Settings,
    Unreadable,
    Verdict,
)
from oncebridge.clock import Clock, SystemClock
from oncebridge.ledgers.memory import MemoryLedger
from oncebridge.ledgers.protocol import Ledger, SettlesInTransaction
from oncebridge.ledgers.sqlite.ledger import SQLiteLedger
from oncebridge.retry import RetryPolicy
from oncebridge.settings.sinks.webhook import WebhookSettings
from oncebridge.telemetry import Move, Telemetry
from oncebridge.testing import (
    LambdaContext,
    ManualClock,
    TestBridge,
    event_of,
    redelivery,
    republish,
    sample_event,
    sqs_event,
)
from oncebridge.topics import Kind, Profile, plain

# --- making a bridge ------------------------------------------------------------------------------------------

bridge = Bridge("memory://")
Bridge("sqlite:///once.db")
Bridge(MemoryLedger())
Bridge(SQLiteLedger(Path("once.db")))
Bridge("memory://", settings=Settings(lease_seconds=30, concurrency=4))
Bridge("memory://", settings=None, telemetry=None, clock=None)
Bridge("memory://", clock=SystemClock())
Bridge.from_settings()
Bridge.from_settings("oncebridge.toml")
Bridge.from_settings(Path("oncebridge.toml"), lease_seconds=30, attempts=3)
assert_type(Bridge.from_settings(), Bridge)

Settings(
    ledger="sqlite:///once.db",
    secret=b"sixteen bytes or more",
    lease_seconds=60.0,
    handler_timeout_seconds=900,
    busy_wait_seconds=2,
    settle_within_seconds=0.001,
    retention_days=30,
    concurrency=1,
    replays_anew=False,
    unhandled="dead",
    allowed_orgs=("org",),
    allowed_sources=("aws.partner/genesys.com/*",),
    downstream_url="https://crm.example/events",
    dead_letter_queue=None,
    dead_letter_bus=None,
    api_keys=(),
    sinks=(WebhookSettings(name="crm", url="https://crm.example/events", topics=("v2.users.*",)),),
    retry=RetryPolicy(attempts=3, base_seconds=0.1, cap_seconds=30),
    profiles=(Profile(topic="Desk Changed", kind=Kind.STATE, entity=(plain("desk.id"),), time=(plain("at"),)),),
)

with Bridge("memory://") as opened:
    assert_type(opened, Bridge)


class OwnBridge(Bridge):
    """A bridge of the user's own stays one."""


assert_type(OwnBridge.from_settings(), OwnBridge)
with OwnBridge("memory://") as own:
    assert_type(own, OwnBridge)


# --- handlers -------------------------------------------------------------------------------------------------


@bridge.on("v2.detail.events.conversation.{id}.acw")
def record_wrapup(event: Event) -> None:
    """Take an event, and see everything of it."""
    assert_type(event.key, str)
    assert_type(event.topic, str)
    assert_type(event.topic_name, str)
    assert_type(event.org, str)
    assert_type(event.entity, str | None)
    assert_type(event.time_ms, int | None)
    assert_type(event.body, dict[str, Any])
    assert_type(event.conversation_id, str | None)
    assert_type(event.attempt, int)
    assert_type(event.token, int)
    assert_type(event.raw, bytes)
    assert_type(event.envelope, Envelope)
    assert_type(event.envelope.id, str | None)
    assert_type(event.envelope.replay_name, str | None)


still_a_function: Callable[[Event], None] = record_wrapup


@bridge.on("*", name="everything", permanent=(ValueError, KeyError))
async def forward(event: Event) -> int:
    """Take an event asynchronously; what is returned does not matter."""
    return len(event.body)


@bridge.on("v2.users.*", name="in a transaction")
def write(event: Event, transaction: sqlite3.Connection) -> None:
    """Take effect in the transaction that settles."""
    transaction.execute("INSERT INTO effect VALUES (?)", (event.key,))


def failing(event: Event) -> None:
    """Fail in each of the ways that mean something."""
    if event.attempt == 1:
        raise RetryLater("come back", after_seconds=1.5)
    if event.attempt == 2:
        raise RetryLater(after_seconds=5)
    raise PermanentError if event.attempt == 3 else PermanentError("never")


registered: Callable[[Event], None] = bridge.on("Status Of Conversation")(failing)
seen: list[Event] = []
bridge.on("*", name="seen")(seen.append)


# --- deliveries -----------------------------------------------------------------------------------------------

assert_type(bridge.process(b"{}"), Result)
assert_type(bridge.process("{}"), Result)
assert_type(bridge.process({"detail-type": "x", "detail": {}}), Result)
assert_type(bridge.process_many([b"{}", "{}", {"detail": {}}]), list[Result])


def lines() -> Iterator[bytes]:
    """Bring deliveries one by one."""
    yield b"{}"


bridge.process_many(lines())
lambda_handler: Callable[[Any, Any], Any] = bridge.lambda_handler
bridge.lambda_handler({"Records": []})


def look(result: Result) -> str:
    """Look at everything of a result."""
    assert_type(result.verdict, Verdict)
    assert_type(result.outcome, Outcome | None)
    assert_type(result.reason, str)
    assert_type(result.original_envelope_id, str | None)
    assert_type(result.key, str | None)
    assert_type(result.topic, str | None)
    assert_type(result.envelope_id, str | None)
    assert_type(result.retry_in_us, int)
    assert_type(result.acknowledged, bool)
    assert_type(result.column, str)
    match result.verdict:
        case Verdict.FRESH | Verdict.ECHO | Verdict.STALE:
            return "handled"
        case Verdict.REDELIVERY | Verdict.REPUBLISH:
            return "duplicate"
        case Verdict.CONFLICT | Verdict.DEAD | Verdict.UNHANDLED:
            return "kept"
        case Verdict.BUSY:
            return "later"


assert_type(bridge.books.as_dict(), dict[str, int | bool])
bridge.stop()
bridge.close()


# --- dead letters ---------------------------------------------------------------------------------------------

assert_type(bridge.dead_letters, DeadLetters)
for letter in bridge.dead_letters.list(topic="v2.users.*", reason="CRM", since=datetime.now(UTC), until=None):
    assert_type(letter, DeadLetter)
    assert_type(letter.key, str)
    assert_type(letter.handler, str)
    assert_type(letter.topic, str)
    assert_type(letter.reason, str)
    assert_type(letter.attempts, int)
    assert_type(letter.changed_ms, int)
    assert_type(letter.time_ms, int | None)
    assert_type(letter.envelope_id, str | None)
    assert_type(letter.raw, bytes | None)
    assert_type(letter.detail, str)
    assert_type(bridge.dead_letters.show(letter.key), tuple[DeadLetter, ...])
    assert_type(bridge.dead_letters.redrive(letter), Result)
    assert_type(bridge.dead_letters.redrive(letter.key, force=True), Result)
    assert_type(bridge.dead_letters.discard(letter), Result)
    assert_type(bridge.dead_letters.discard(letter.key), Result)
for letter in bridge.dead_letters.list(keys=["ob1_"], since="1h", until=timedelta(minutes=5), limit=10):
    assert_type(letter, DeadLetter)
assert_type(bridge.dead_letters.redrive(topic="v2.users.*", since="2d", limit=5, force=True), tuple[Result, ...])
assert_type(bridge.dead_letters.discard(all=True), tuple[Result, ...])
for group in bridge.dead_letters.counts(reason="CRM"):
    assert_type(group.number, int)
    assert_type(group.reason, str)
    assert_type(group.topic, str)


# --- errors ---------------------------------------------------------------------------------------------------


def careful() -> None:
    """Tell errors apart by what to do about them."""
    try:
        bridge.process(b"{}")
    except (LedgerUnavailable, NotAcknowledged) as error:
        assert_type(str(error), str)
    except (LedgerRefused, MissingExtra) as error:
        settings_are_wrong: ConfigurationError = error
        raise settings_are_wrong from None
    except (ClaimLost, Unreadable) as error:
        ours: OncebridgeError = error
        raise ours from None


# --- parts that users may bring -------------------------------------------------------------------------------


class StoppedClock:
    """A clock of the user's own."""

    def now_us(self) -> int:
        """Return the same moment every time."""
        return 0

    def monotonic_us(self) -> int:
        """Return the same moment every time."""
        return 0

    def wait(self, stop: object, seconds: float) -> bool:
        """Wait for nothing."""
        return False


def tell(move: Move) -> None:
    """Hear of a move."""
    assert_type(move.key, str)


a_clock: Clock = StoppedClock()
a_ledger: Ledger = MemoryLedger(a_clock)
another_ledger: Ledger = SQLiteLedger("once.db", a_clock)
with_transactions: SettlesInTransaction = SQLiteLedger("once.db")
Bridge(a_ledger, clock=a_clock, telemetry=Telemetry((tell,)))

# --- tests of handlers ----------------------------------------------------------------------------------------

sample: dict[str, Any] = sample_event(
    "v2.users.{id}.presence", 2, user_id="anna", time=datetime(2026, 1, 5, tzinfo=UTC)
)
sample_event("v2.users.{id}.presence", presenceDefinition={"systemPresence": "BUSY"}, message=...)
with TestBridge(bridge, settings=Settings(lease_seconds=30), clock=ManualClock()) as tested:
    assert_type(tested, TestBridge)
    assert_type(tested.process(republish(sample)), Result)
    assert_type(tested.deliver(sample), list[Result])
    assert_type(tested.errors, list[Exception])
    tested.clock.advance(30)
    with tested.database() as db:
        assert_type(db, sqlite3.Connection)
    tested.lambda_handler(sqs_event(sample, redelivery(sample)), LambdaContext())
assert_type(event_of(sample), Event)
