"""Pages of dead letters, their groups, and what is known of one subject, in the Postgres ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace
from psycopg import errors

from oncebridge.claim import Status, read_newest
from oncebridge.errors import LedgerRefused
from oncebridge.ledgers.pages import (
    ABOUT_MAX,
    COUNTED_MAX,
    GROUPS_MAX,
    LOOKED_AT_MAX,
    Position,
    found_of,
    page_of,
    page_size,
    read_position,
)
from oncebridge.ledgers.postgres import rows
from oncebridge.ledgers.postgres.wire import storable
from oncebridge.ledgers.protocol import Entry, Found, LetterGroup, LetterGroups, LetterPage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncebridge.ledgers.postgres.address import Address
    from oncebridge.ledgers.postgres.connections import LedgerConnection
    from oncebridge.ledgers.postgres.notes import Call
    from oncebridge.ledgers.protocol import Query

#: In the ledger's table of facts about itself, once the letters from before there were lists are listed, too.
ALL_LISTED: Final = "letters listed"
LIST_AT_ONCE: Final = 2000
_PASSES: Final = 20
_MOST: Final = 2**63 - 1

_HEADS: Final = """
    SELECT died_us, key, handler, reason, topic FROM {schema}.letter_head
    WHERE (died_us, key, handler) < (%s, %s, %s) AND died_us >= %s
    ORDER BY died_us DESC, key DESC, handler DESC LIMIT %s"""
_GROUPS: Final = """
    SELECT handler, reason, topic, count(*), sum(count(*)) OVER ()::bigint
    FROM (SELECT handler, reason, topic FROM {schema}.letter_head LIMIT %s) AS head
    GROUP BY handler, reason, topic ORDER BY count(*) DESC, handler, reason, topic LIMIT %s"""
_LISTED: Final = "SELECT EXISTS (SELECT FROM {schema}.meta WHERE name = %s)"
#: A letter that another session holds is written or erased there, and listed by that. One that is listed here cannot be
#: erased before this is committed.
_LIST: Final = """
    WITH found AS (
        SELECT key, handler, day, reason FROM {schema}.letter WHERE (key, handler) > (%s, %s)
        ORDER BY key, handler LIMIT %s FOR KEY SHARE SKIP LOCKED
    ), listed AS (
        INSERT INTO {schema}.letter_head (key, handler, day, died_us, reason, topic)
        SELECT found.key, found.handler, found.day, event.changed_us, found.reason, event.topic
        FROM found CROSS JOIN LATERAL (
            SELECT * FROM {schema}.event
            WHERE event.day = found.day AND event.key = found.key AND event.handler = found.handler OFFSET 0
        ) AS event
        ON CONFLICT (key, handler) DO NOTHING
    )
    SELECT key, handler FROM found ORDER BY key DESC, handler DESC LIMIT 1"""
_UNLISTED: Final = """
    SELECT EXISTS (
        SELECT FROM {schema}.letter WHERE NOT EXISTS (
            SELECT FROM {schema}.letter_head AS head WHERE head.key = letter.key AND head.handler = letter.handler))"""


def list_letters(connection: LedgerConnection, schema: str) -> None:
    """List the letters from before there were lists, some at a time, so that workers get their turn in between."""
    ((is_listed,),) = connection.ask(_LISTED.format(schema=schema), [ALL_LISTED])
    if is_listed:
        return
    for _ in range(_PASSES):
        last: list[tuple[Any, ...]] = [(b"", "")]
        while last:
            last = connection.ask(_LIST.format(schema=schema), [*last[0], LIST_AT_ONCE])
        ((is_left,),) = connection.ask(_UNLISTED.format(schema=schema))
        if not is_left:
            connection.execute(
                f"INSERT INTO {schema}.meta VALUES (%s, '') ON CONFLICT (name) DO NOTHING",  # nosec B608
                [ALL_LISTED],
            )
            return


class PostgresPages:
    """Reads the narrow table of letters, and the indexes of events by subject."""

    def __init__(self, call: Call, address: Address) -> None:
        """Take how to reach the server, and where the tables are."""
        self._run = call
        self._address = address
        self._schema = address.schema

    def letter_page(self, query: Query, after: str | None, limit: int) -> LetterPage:
        """Choose letters by the narrow table, and read their events."""
        start = read_position(after) or Position(_MOST, b"")
        if query.until_us is not None:
            start = min(start, Position(query.until_us, b""))
        values = [start.died_us, start.key, storable(start.handler), query.since_us or 0, LOOKED_AT_MAX + 1]
        wanted = replace(
            query,
            statuses=frozenset(),
            since_us=None,
            until_us=None,
            handler=None if query.handler is None else storable(query.handler),
            reason=None if query.reason is None else storable(query.reason),
        )
        heads = self._ask(_HEADS, values)
        page = page_of(
            ((Position(*head[:3]), _entry_of(head)) for head in heads),
            lambda entry: wanted.matches(entry.status, entry.topic, 0, entry.reason, entry.handler),
            page_size(limit),
            LOOKED_AT_MAX,
        )
        return replace(page, entries=self._whole(page.entries))

    def _whole(self, letters: list[Entry]) -> list[Entry]:
        """Read the events of letters; those that are gone by now are left out."""
        statement, values = rows.letters_of(self._schema, {entry.key for entry in letters})
        found = [Entry.from_row(row) for row in self._run(lambda connection: connection.ask(statement, values))]
        whole = {(entry.key, entry.handler): entry for entry in found}
        each = [whole.get((entry.key, entry.handler)) for entry in letters]
        return [entry for entry in each if entry is not None]

    def letter_groups(self) -> LetterGroups:
        """Count in the narrow table, of very many letters some."""
        found = self._ask(_GROUPS, [COUNTED_MAX, GROUPS_MAX])
        ((all_listed,),) = self._ask(_LISTED, [ALL_LISTED])
        groups, total = [LetterGroup(*row[:4]) for row in found], found[0][4] if found else 0
        return LetterGroups(groups, total, complete=all_listed and total < COUNTED_MAX)

    def about(self, subject: bytes, seconds: float) -> Found:
        """Read what the indexes have; the server ends a search that takes too long, and then any few are read."""
        milliseconds = max(1, int(seconds * 1000 / 2))
        entries, all_events = self._in_time(milliseconds, *rows.about(self._schema, subject, ABOUT_MAX + 1))
        states, all_states = self._in_time(milliseconds, *rows.newest_about(self._schema, subject, ABOUT_MAX + 1))
        if not all_events:
            few, _ = self._in_time(milliseconds, *rows.any_about(self._schema, subject, ABOUT_MAX))
            entries = few
        return found_of(
            map(Entry.from_row, entries),
            _newest(states, subject),
            complete=all_events and all_states and len(states) <= ABOUT_MAX,
        )

    def _in_time(self, milliseconds: int, statement: str, values: list[Any]) -> tuple[list[tuple[Any, ...]], bool]:
        """Ask, and return what was found, and whether the server finished in time."""

        def work(connection: LedgerConnection) -> tuple[list[tuple[Any, ...]], bool]:
            try:
                with connection.transaction():
                    connection.execute(f"SET LOCAL statement_timeout = {milliseconds}")
                    return connection.ask(statement, values), True
            except errors.QueryCanceled:
                return [], False

        return self._run(work)

    def _ask(self, statement: str, values: list[Any]) -> list[tuple[Any, ...]]:
        try:
            return self._run(lambda connection: connection.ask(statement.format(schema=self._schema), values))
        except LedgerRefused as error:
            if isinstance(error.__cause__, (errors.UndefinedTable, errors.InsufficientPrivilege)):
                raise LedgerRefused(
                    f"{self._address}: there is no list of dead letters, or this user may not read it; make it with: "
                    f"oncebridge migrate --ledger '{self._address}', and grant what docs/ledgers.md says"
                ) from error
            raise


def _entry_of(head: tuple[Any, ...]) -> Entry:
    died_us, key, handler, reason, topic = head
    return Entry(key=key, handler=handler, status=Status.DEAD, topic=topic, changed_us=died_us, reason=reason)


def _newest(found: list[tuple[Any, ...]], subject: bytes) -> Iterator[Entry]:
    for data, changed_us, lease_until_us in found:
        newest = read_newest(data)
        if newest.key is not None and subject in (newest.conversation, newest.user):
            yield Entry.of_newest(newest, changed_us=changed_us, lease_until_us=lease_until_us)
