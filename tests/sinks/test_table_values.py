"""What becomes of an event's fields in columns: exact numbers, times, JSON, and nothing that could be SQL."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from uuid import UUID

import pytest

import payloads
from oncebridge.claim import Outcome
from tables import agents, bridge, desk, make_tables, postgres_desk, sqlite_desk, status  # noqa: F401

#: Numbers as Genesys or a person may write them.
LONG = 12345678901234567890
DECIMAL = "1.10"
DIGITS = "0.1234567890123456789012345"


def written(desk, bridge, types, columns, raw, **changes):  # noqa: F811
    """Make a table of these types, let one event be written, and return its row."""
    columns = {"user_id": "detail.eventBody.id", **columns}
    names = ", ".join(f"{name} {kind}" for name, kind in types.items())
    desk(f"CREATE TABLE {desk.prefix}agent_status (user_id text PRIMARY KEY, {names})")
    made = bridge(agents(desk, columns=columns, newest=payloads.ABSENT, tie=payloads.ABSENT, **changes))
    result = made.process(raw)
    assert result.outcome is Outcome.DONE, result
    (row,) = desk(f"SELECT {', '.join(types)} FROM {desk.prefix}agent_status")
    return row


def with_numbers(**fields):
    """Build a status with numbers in it, each exactly as it is written here."""
    raw = json.dumps(status("IDLE"))
    text = ", ".join(f'"{name}": {value}' for name, value in fields.items())
    return raw.replace('"eventBody": {', f'"eventBody": {{{text}, ', 1)


def test_postgres_reads_each_value_as_its_column_wants_it(postgres_desk, bridge):  # noqa: F811
    """Times, dates, ids, numbers of any size, truth and JSON: nothing is rounded, and nothing has to be set."""
    types = {
        "at": "timestamptz",
        "day": "date",
        "id": "uuid",
        "big": "bigint",
        "long": "numeric",
        "price": "numeric",
        "digits": "numeric",
        "yes": "boolean",
        "body": "jsonb",
        "text": "jsonb",
        "list": "json",
        "price_text": "text",
        "yes_text": "text",
        "absent": "integer",
    }
    columns = {
        "at": "oncebridge.time",
        "day": "detail.eventBody.routingStatus.startTime",
        "id": "detail.eventBody.id",
        "big": "oncebridge.time_ms",
        "long": "detail.eventBody.long",
        "price": "detail.eventBody.price",
        "digits": "detail.eventBody.digits",
        "yes": "detail.eventBody.yes",
        "body": "detail.eventBody.nested",
        "text": "detail.eventBody.routingStatus.status",
        "list": "detail.eventBody.list",
        "price_text": "detail.eventBody.price",
        "yes_text": "detail.eventBody.yes",
        "absent": "detail.eventBody.nowhere",
    }
    raw = with_numbers(
        long=LONG, price=DECIMAL, digits=DIGITS, yes="true", nested=f'{{"price": {DECIMAL}}}', list="[1, 2.50]"
    )
    row = written(postgres_desk, bridge, types, columns, raw)
    assert row == (
        datetime(2025, 6, 2, 10, 30, 0, 123000, UTC),
        date(2025, 6, 2),
        UUID(payloads.USER),
        payloads.TIME_MS,
        Decimal(LONG),
        Decimal(DECIMAL),
        Decimal(DIGITS),
        True,
        {"price": 1.1},
        "IDLE",
        [1, 2.5],
        DECIMAL,
        "true",
        None,
    )
    assert str(row[5]) == DECIMAL
    (texts,) = postgres_desk(f"SELECT body::text, list::text FROM {postgres_desk.prefix}agent_status")
    assert texts == ('{"price": 1.10}', "[1,2.50]")


def test_sqlite_keeps_numbers_exactly_where_its_column_does(sqlite_desk, bridge):  # noqa: F811
    """In a TEXT column every digit stays; a column for numbers makes of them what SQLite has."""
    types = {
        "at": "TEXT",
        "big": "INTEGER",
        "long": "TEXT",
        "price": "TEXT",
        "digits": "TEXT",
        "real": "REAL",
        "price_number": "NUMERIC",
        "yes": "BOOLEAN",
        "body": "TEXT",
        "absent": "TEXT",
    }
    columns = {
        "at": "oncebridge.time",
        "big": "detail.eventBody.big",
        "long": "detail.eventBody.long",
        "price": "detail.eventBody.price",
        "digits": "detail.eventBody.digits",
        "real": "detail.eventBody.price",
        "price_number": "detail.eventBody.price",
        "yes": "detail.eventBody.yes",
        "body": "detail.eventBody.nested",
        "absent": "detail.eventBody.nowhere",
    }
    raw = with_numbers(
        big=2**63 - 1, long=LONG, price=DECIMAL, digits=DIGITS, yes="true", nested=f'{{"price": {DECIMAL}, "é": []}}'
    )
    row = written(sqlite_desk, bridge, types, columns, raw)
    assert row == (
        "2025-06-02T10:30:00.123Z",
        2**63 - 1,
        str(LONG),
        DECIMAL,
        DIGITS,
        1.1,
        1.1,
        1,
        '{"price":1.10,"é":[]}',
        None,
    )


def test_numbers_can_be_reckoned_with_though_they_are_exact(desk, bridge):  # noqa: F811
    """JMESPath takes a number as it was written for a number."""
    columns = {"more": "detail.eventBody.price > `1.05`", "total": "sum([detail.eventBody.price, `2`])"}
    types = {"more": "boolean", "total": "numeric"}
    more, total = written(desk, bridge, types, columns, with_numbers(price=DECIMAL))
    assert bool(more) is True
    assert float(total) == pytest.approx(3.1)


@pytest.mark.parametrize("digit", [1.5, 0.1, 1e22, 123456789.12345679])
def test_numbers_that_the_quick_reader_keeps_are_exact_too(desk, bridge, digit):  # noqa: F811
    """A float that is written the way it was read loses no digit on its way into a text."""
    (found,) = written(desk, bridge, {"price": "text"}, {"price": "detail.eventBody.price"}, with_numbers(price=digit))
    assert float(found) == digit


HOSTILE = ["'; DROP TABLE agent_status; --", '"', "%s", "$1", "?", "\\", "\n", "é😀", "{}", "NULL", "x" * 100_000]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_value_is_never_sql(desk, bridge, text):  # noqa: F811
    """Whatever a text holds, it is written as it is."""
    raw = status(text)
    assert written(desk, bridge, {"status": "text"}, {"status": "detail.eventBody.routingStatus.status"}, raw) == (
        text,
    )


@pytest.mark.parametrize("key", [payloads.ABSENT, None])
def test_an_event_without_the_key_is_a_dead_letter(desk, bridge, key):  # noqa: F811
    """A row that nobody could be known by is not written; the reason names the column."""
    make_tables(desk)
    made = bridge(agents(desk))
    event = status("IDLE")
    event["detail"]["eventBody"] = payloads.changed(event["detail"]["eventBody"], {"id": key})
    assert made.process(event).outcome is Outcome.DEAD
    (entry,) = made.dead_letters.list()
    assert "key column user_id: its expression finds nothing in this event" in entry.reason
    assert desk(f"SELECT * FROM {desk.prefix}agent_status") == []


def test_an_expression_that_finds_nothing_is_null(desk, bridge):  # noqa: F811
    """Whatever else is in the event is written all the same."""
    columns = {"status": "detail.eventBody.nowhere", "extra": "length(detail.eventBody.nowhere)"}
    assert written(desk, bridge, {"status": "text", "extra": "text"}, columns, status("IDLE")) == (None, None)
