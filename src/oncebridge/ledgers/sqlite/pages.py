"""Pages of dead letters, their groups, and what is known of one subject, in the SQLite ledger."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any, Final

from oncebridge.claim import read_newest
from oncebridge.ledgers.pages import (
    ABOUT_MAX,
    COUNTED_MAX,
    GROUPS_MAX,
    LOOKED_AT_MAX,
    found_of,
    page_of,
    page_size,
    position_of,
    read_position,
)
from oncebridge.ledgers.protocol import Entry, Found, LetterGroup, LetterGroups, LetterPage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncebridge.clock import Clock
    from oncebridge.ledgers.protocol import Query

#: A column for each field of an `Entry`, without the content of a dead letter if `letter` says so.
ENTRIES: Final = """
    SELECT event.key, event.handler, event.status, event.topic, event.time_ms, event.attempts, event.envelope,
        event.changed_us, event.retry_at_us,
        max(event.lease_until_us, CASE WHEN event.status = 'claimed' AND entity.nonce = event.nonce
            THEN entity.lease_until_us ELSE 0 END), event.token, NULL, coalesce(letter.reason, ''), {letter}
    FROM oncebridge_event AS event
    LEFT JOIN oncebridge_letter AS letter USING (key, handler)
    LEFT JOIN oncebridge_entity AS entity ON entity.key = event.entity {where}"""
NO_CONTENT: Final = "NULL, ''"

_PAGE: Final = ENTRIES.format(
    letter=NO_CONTENT,
    where="""WHERE event.letter = 1 AND event.changed_us >= ? AND event.changed_us < ?
        AND (event.changed_us, event.key, event.handler) < (?, ?, ?)
    ORDER BY event.changed_us DESC, event.key DESC, event.handler DESC LIMIT ?""",
)
_GROUPS: Final = """
    SELECT event.handler, letter.reason, event.topic, count(*) AS number
    FROM (
        SELECT key, handler, topic FROM oncebridge_event WHERE letter = 1 ORDER BY changed_us DESC LIMIT ?
    ) AS event JOIN oncebridge_letter AS letter USING (key, handler)
    GROUP BY event.handler, letter.reason, event.topic
    ORDER BY number DESC, event.handler, letter.reason, event.topic"""
#: In the order of their rows, the last one written first: no index has conversations and users.
_ABOUT: Final = ENTRIES.format(
    letter=NO_CONTENT, where="WHERE event.conversation = ?1 OR event.user = ?1 ORDER BY event.rowid DESC"
)
_NEWEST: Final = "SELECT data, changed_us, lease_until_us FROM oncebridge_entity WHERE instr(data, ?) > 0"
_MOST: Final = 2**63 - 1
#: How often a search looks at the time, in steps of SQLite's machine.
_STEPS: Final = 20_000


def letter_page(db: sqlite3.Connection, query: Query, after: str | None, limit: int) -> LetterPage:
    """Read letters by their index."""
    start = read_position(after)
    behind = (_MOST, b"", "") if start is None else start
    until_us = _MOST if query.until_us is None else query.until_us
    rows = db.execute(_PAGE, [query.since_us or 0, until_us, *behind, LOOKED_AT_MAX + 1])
    entries = map(Entry.from_row, rows)

    def matches(entry: Entry) -> bool:
        return query.matches(entry.status, entry.topic, entry.changed_us, entry.reason, entry.handler)

    return page_of(((position_of(entry), entry) for entry in entries), matches, page_size(limit), LOOKED_AT_MAX)


def letter_groups(db: sqlite3.Connection) -> LetterGroups:
    """Count the letters, of very many the newest."""
    rows = db.execute(_GROUPS, [COUNTED_MAX]).fetchall()
    groups = [LetterGroup(handler, reason, topic, number) for handler, reason, topic, number in rows[:GROUPS_MAX]]
    total = sum(row[3] for row in rows)
    return LetterGroups(groups, total, complete=total < COUNTED_MAX)


def about(db: sqlite3.Connection, clock: Clock, subject: bytes, seconds: float) -> Found:
    """Read both tables from one end to the other, as far as time allows."""
    until_us = clock.monotonic_us() + int(seconds * 1_000_000)
    db.set_progress_handler(lambda: clock.monotonic_us() >= until_us, _STEPS)
    try:
        # The table of entities is the smaller one.
        states, all_states = _collected(db, _NEWEST, subject)
        rows, all_rows = _collected(db, _ABOUT, subject)
    finally:
        db.set_progress_handler(None, 0)
    return found_of(map(Entry.from_row, rows), _newest(states, subject), complete=all_states and all_rows)


def _collected(db: sqlite3.Connection, statement: str, subject: bytes) -> tuple[list[Any], bool]:
    """Return rows, and whether these are all: time may run out, or there may be too many."""
    found: list[Any] = []
    try:
        for row in db.execute(statement, (subject,)):
            found.append(row)
            if len(found) > ABOUT_MAX:
                return found, False
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
            raise
        return found, False
    return found, True


def _newest(rows: list[Any], subject: bytes) -> Iterator[Entry]:
    for data, changed_us, lease_until_us in rows:
        newest = read_newest(data)
        if newest.key is not None and subject in (newest.conversation, newest.user):
            yield Entry.of_newest(newest, changed_us=changed_us, lease_until_us=lease_until_us)
