"""Brings entities of schema 1, which had a column for each fact about their order, to the data that workers read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from oncebridge.claim import Newest, write_newest
from oncebridge.identity import Moment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oncebridge.ledgers.postgres.connections import LedgerConnection

AT_A_TIME: Final = 5_000  # entities, so that memory is bounded

#: Entities in the order of their keys, each with its newest done event if that is still kept.
_SOME: Final = """
    SELECT entity.key, entity.state, entity.times, entity.version, entity.echoes, entity.line_times,
        entity.line_version, entity.unsure, event.key, event.topic, event.time_ms, event.envelope, event.conversation,
        event."user"
    FROM (SELECT * FROM {schema}.entity WHERE key > %s ORDER BY key LIMIT %s) AS entity
    LEFT JOIN LATERAL (
        SELECT * FROM {schema}.event WHERE event.day = entity.newest_day AND event.key = entity.newest
            AND event.entity = entity.key LIMIT 1
    ) AS event ON true
    ORDER BY entity.key"""
_WRITE: Final = """
    UPDATE {schema}.entity SET data = found.data
    FROM unnest(%s::bytea[], %s::bytea[]) AS found(key, data) WHERE entity.key = found.key"""


def write_data(connection: LedgerConnection, schema: str) -> None:
    """Write each entity's data, in the present transaction."""
    last = b""
    while found := connection.ask(_SOME.format(schema=schema), [last, AT_A_TIME]):
        keys = [row[0] for row in found]
        connection.execute(_WRITE.format(schema=schema), [keys, [write_newest(_newest(row[1:])) for row in found]])
        last = keys[-1]


def _newest(row: Sequence[Any]) -> Newest:
    state, times, version, echoes, line_times, line_version, unsure, key, topic, time_ms, envelope, *subjects = row
    conversation, user = subjects
    return Newest(
        state=state,
        moment=Moment(tuple(times), version, echoes),
        line=Moment(tuple(line_times), line_version, echoes),
        unsure=unsure,
        key=key,
        topic=topic or "",
        time_ms=time_ms,
        envelope=envelope,
        conversation=conversation,
        user=user,
    )
