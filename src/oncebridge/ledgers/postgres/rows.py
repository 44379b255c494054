"""Queries for rows of the Postgres ledger, with a column for each field of an `Entry`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from oncebridge.ledgers.postgres.arrays import Bytes
from oncebridge.ledgers.postgres.wire import storable
from oncebridge.topics import plain_expression

if TYPE_CHECKING:
    from collections.abc import Iterable

    from oncebridge.ledgers.protocol import Query

_EVENTS: Final = """
    SELECT event.key, event.handler, event.status, event.topic, event.time_ms, event.attempts, event.envelope,
        event.changed_us, event.retry_at_us,
        greatest(event.lease_until_us, CASE WHEN event.status = 'claimed' AND entity.nonce = event.nonce
            THEN entity.lease_until_us ELSE 0 END),
        event.token, int4send(event.day), coalesce(letter.reason, ''), {letter}
    FROM {schema}.event
    LEFT JOIN {schema}.letter ON letter.key = event.key AND letter.handler = event.handler
    LEFT JOIN {schema}.entity ON entity.key = event.entity
    WHERE {where} {order} LIMIT %s"""
_OLDEST_FIRST: Final = "ORDER BY event.changed_us"
_NEWEST_FIRST: Final = "ORDER BY event.changed_us DESC"
_NO_CONTENT: Final = "NULL::bytea, ''"
_ABOUT: Final = '(event.conversation = %s OR event."user" = %s)'
_ENTITIES: Final = """
    SELECT data, changed_us, lease_until_us FROM {schema}.entity WHERE {where} ORDER BY changed_us"""
#: Of all handlers, and by the key alone, as the primary key has it first: a row of another day is left out later.
_RECORDS: Final = """
    SELECT day, key, handler, status, token, nonce, lease_until_us, alone, attempts, content, envelope, changed_us,
        retry_at_us, letter
    FROM {schema}.event WHERE key = ANY (%s)"""
_HELD: Final = """
    SELECT key, token, nonce, lease_until_us, ran_out, data, changed_us FROM {schema}.entity WHERE key = ANY (%s)"""
#: By the indexes of events: an entity's newest state is an event that is kept, too.
_SUBJECT: Final = """key = ANY (ARRAY(
        SELECT event.entity FROM {schema}.event WHERE event.conversation = %s
        UNION SELECT event.entity FROM {schema}.event WHERE event."user" = %s))"""


def of_key(schema: str, key: bytes) -> tuple[str, list[Any]]:
    """Write the query for one event, with the content of its dead letters."""
    letter = "letter.raw, coalesce(letter.detail, '')"
    statement = _EVENTS.format(schema=schema, letter=letter, where="event.key = %s", order=_OLDEST_FIRST)
    return statement, [key, None]


def letters_of(schema: str, keys: Iterable[bytes]) -> tuple[str, list[Any]]:
    """Write the query for the dead letters of events, without their content."""
    where = "event.key = ANY (%s) AND event.letter AND letter.key IS NOT NULL"
    return _EVENTS.format(schema=schema, letter=_NO_CONTENT, where=where, order=""), [Bytes(keys), None]


def about(schema: str, subject: bytes, limit: int) -> tuple[str, list[Any]]:
    """Write the query for the events of a conversation or a user, the latest change first."""
    statement = _EVENTS.format(schema=schema, letter=_NO_CONTENT, where=_ABOUT, order=_NEWEST_FIRST)
    return statement, [subject, subject, limit]


def any_about(schema: str, subject: bytes, limit: int) -> tuple[str, list[Any]]:
    """Write the query for some events of a conversation or a user, in no order."""
    return _EVENTS.format(schema=schema, letter=_NO_CONTENT, where=_ABOUT, order=""), [subject, subject, limit]


def newest_about(schema: str, subject: bytes, limit: int) -> tuple[str, list[Any]]:
    """Write the query for entities that had an event of a conversation or a user, the latest change first."""
    statement, values = entities(schema, subject)
    return f"{statement} DESC LIMIT %s", [*values, limit]


def records(schema: str, keys: Iterable[bytes]) -> tuple[str, list[Any]]:
    """Write the query for the records of events: their day, key and handler, then the fields of a `Record`."""
    return _RECORDS.format(schema=schema), [Bytes(keys)]


def held(schema: str, keys: Iterable[bytes]) -> tuple[str, list[Any]]:
    """Write the query for entities: the key, then the fields of an `Entity`."""
    return _HELD.format(schema=schema), [Bytes(keys)]


def matching(schema: str, query: Query) -> tuple[str, list[Any]]:
    """Write a query as a statement and its values."""
    where, values = _conditions(query)
    statement = _EVENTS.format(schema=schema, letter=_NO_CONTENT, where=" AND ".join(where), order=_OLDEST_FIRST)
    return statement, [*values, query.limit]


def entities(schema: str, subject: bytes | None) -> tuple[str, list[Any]]:
    """Write the query for entities: all, or those that had an event of this conversation or user."""
    if subject is None:
        return _ENTITIES.format(schema=schema, where="data <> ''"), []
    return _ENTITIES.format(schema=schema, where=_SUBJECT.format(schema=schema)), [subject, subject]


def _conditions(query: Query) -> tuple[list[str], list[Any]]:
    where: list[str] = ["true"]
    values: list[Any] = []
    if query.statuses:
        where.append("event.status = ANY (%s)")
        values.append(sorted(status.value for status in query.statuses))
    if query.letters:
        where.append("event.letter AND letter.key IS NOT NULL")
    if query.topic is not None:
        # Of Python's notation it uses only the parts that Postgres reads in the same way.
        where.append("event.topic ~ %s")
        values.append(f"^(?:{storable(plain_expression(query.topic))})$")
    if query.reason is not None:
        where.append("position(%s IN letter.reason) > 0")
        values.append(storable(query.reason))
    if query.handler is not None:
        where.append("event.handler = %s")
        values.append(storable(query.handler))
    if query.since_us is not None:
        where.append("event.changed_us >= %s")
        values.append(query.since_us)
    if query.until_us is not None:
        where.append("event.changed_us < %s")
        values.append(query.until_us)
    if query.subject is not None:
        where.append(_ABOUT)
        values += [query.subject, query.subject]
    return where, values
