"""Pages of dead letters, their groups, and what is known of one subject, in the DynamoDB ledger.

Letters are read from their list. Nothing else in the table is in an order that people ask for: an index would be billed
with every event. So what is about a subject is looked for in the order of the table, and so are the letters of a table
from before there were lists: a few megabytes at a time, and it is said that there is more.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import Counter
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from oncebridge.claim import Status, read_newest
from oncebridge.ledgers.dynamodb.items import ENTITY, EVENT, HANDLER, Item, Stored, stored, unwrapped, wrapped
from oncebridge.ledgers.dynamodb.lists import died_us, letters_of
from oncebridge.ledgers.dynamodb.lists import lines as listed
from oncebridge.ledgers.dynamodb.search import SHOWN, entry_of, matches
from oncebridge.ledgers.pages import (
    ABOUT_MAX,
    LOOKED_AT_MAX,
    Position,
    found_of,
    most_frequent,
    not_a_page,
    page_of,
    page_size,
    read_position,
)
from oncebridge.ledgers.protocol import Entry, Found, LetterGroup, LetterGroups, LetterPage, Query

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncebridge.clock import Clock
    from oncebridge.ledgers.dynamodb.table import Table

#: How many megabytes one page of letters reads, and one count of groups.
PAGE_READS: Final = 4
GROUP_READS: Final = 8
#: How many lines of the list are counted: about two megabytes.
LINES_COUNTED: Final = 8000
_LETTERS: Final = "begins_with(#pk, :event) AND begins_with(#sk, :handler) AND attribute_exists(#letter)"
_SUBJECT: Final = (
    "(begins_with(#pk, :event) AND begins_with(#sk, :handler) AND (#conversation = :subject OR #user = :subject))"
    " OR begins_with(#pk, :entity)"
)
_EVENTS: Final = {":event": EVENT, ":handler": HANDLER}


def letter_page(table: Table, query: Query, after: str | None, limit: int) -> LetterPage:
    """Read on in the list, or from a place in the table."""
    return (_listed_page if table.lists_letters else _scanned_page)(table, query, after, page_size(limit))


def _listed_page(table: Table, query: Query, after: str | None, limit: int) -> LetterPage:
    start = read_position(after)
    if query.until_us is not None:
        start = min(start or Position(query.until_us, b""), Position(query.until_us, b""))
    wanted = replace(query, statuses=frozenset(), since_us=None, until_us=None)
    lines = takewhile(lambda line: died_us(line) >= (query.since_us or 0), listed(table, start))
    read: list[dict[str, Any]] = []

    def positions() -> Iterator[tuple[Position, Entry]]:
        for line in lines:
            entry = _entry_of_line(line)
            if wanted.matches(entry.status, entry.topic, 0, entry.reason, entry.handler):
                read.append(line)
            yield Position(entry.changed_us, entry.key, entry.handler), entry

    page = page_of(
        positions(),
        lambda entry: wanted.matches(entry.status, entry.topic, 0, entry.reason, entry.handler),
        limit,
        LOOKED_AT_MAX,
    )
    events = letters_of(table, table.patience(), read[: len(page.entries)])
    return replace(page, entries=[entry_of(table, event) for event in events if event is not None])


def _entry_of_line(line: dict[str, Any]) -> Entry:
    return Entry(
        key=line["key"],
        handler=line["handler"],
        status=Status.DEAD,
        topic=line["topic"],
        changed_us=died_us(line),
        reason=line["reason"],
    )


def _scanned_page(table: Table, query: Query, after: str | None, limit: int) -> LetterPage:
    found: list[Stored] = []
    place = _read_place(after)
    for _ in range(PAGE_READS):
        items, place = _read(table, place, _LETTERS, _EVENTS)
        for item in items:
            if matches(query, item.said):
                found.append(item)
            if len(found) == limit and (item is not items[-1] or place is not None):
                place = wrapped({name: item.said[name] for name in ("pk", "sk")})
                break
        if place is None or len(found) >= limit:
            break
    entries = [entry_of(table, item) for item in found]
    entries.sort(key=lambda entry: (-entry.changed_us, entry.key, entry.handler))
    return LetterPage(entries, None if place is None else _place_text(place), newest_first=False)


def letter_groups(table: Table) -> LetterGroups:
    """Count the newest letters, or those in the first part of the table."""
    return _listed_groups(table) if table.lists_letters else _scanned_groups(table)


def _listed_groups(table: Table) -> LetterGroups:
    newest = list(islice(listed(table), LINES_COUNTED + 1))
    numbers = Counter((one["handler"], one["reason"], one["topic"]) for one in newest[:LINES_COUNTED])
    groups = most_frequent(LetterGroup(*group, number) for group, number in numbers.items())
    return LetterGroups(groups, numbers.total(), complete=len(newest) <= LINES_COUNTED)


def _scanned_groups(table: Table) -> LetterGroups:
    numbers: Counter[tuple[str, str, str]] = Counter()
    place: Item | None = None
    for _ in range(GROUP_READS):
        items, place = _read(table, place, _LETTERS, _EVENTS)
        numbers.update((one.said["sk"].removeprefix(HANDLER), one.said["reason"], one.said["topic"]) for one in items)
        if place is None:
            break
    groups = most_frequent(LetterGroup(*group, number) for group, number in numbers.items())
    return LetterGroups(groups, numbers.total(), complete=place is None)


def about(table: Table, clock: Clock, subject: bytes, seconds: float) -> Found:
    """Read the table from its beginning, as far as time allows."""
    until_us = clock.monotonic_us() + int(seconds * 1_000_000)
    events: list[Stored] = []
    newest: list[Entry] = []
    place: Item | None = None
    while True:
        items, place = _read(table, place, _SUBJECT, {**_EVENTS, ":entity": ENTITY, ":subject": subject})
        events += [item for item in items if item.said["pk"].startswith(EVENT)]
        newest += _newest(items, subject)
        if place is None or clock.monotonic_us() >= until_us or len(events) > ABOUT_MAX:
            break
    events.sort(key=lambda item: -item.said["changed_us"])
    entries = [entry_of(table, item) for item in events[: ABOUT_MAX + 1]]
    return found_of(entries, newest, complete=place is None)


def _newest(items: list[Stored], subject: bytes) -> Iterator[Entry]:
    for item in items:
        entity = item.entity if item.said["pk"].startswith(ENTITY) else None
        newest = read_newest(entity.data if entity is not None else b"")
        if entity is not None and newest.key is not None and subject in (newest.conversation, newest.user):
            yield Entry.of_newest(newest, changed_us=entity.changed_us, lease_until_us=entity.lease_until_us)


def _read(table: Table, place: Item | None, condition: str, values: dict[str, Any]) -> tuple[list[Stored], Item | None]:
    """Read at most a megabyte from a place on; return what matches, and the next place."""
    response = table.on_table(
        table.patience(),
        "scan",
        needs="Items",
        ConsistentRead=True,
        FilterExpression=condition,
        ProjectionExpression=", ".join(f"#{name}" for name in SHOWN),
        ExpressionAttributeNames={f"#{name}": name for name in SHOWN},
        ExpressionAttributeValues=wrapped(values),
        **({} if place is None else {"ExclusiveStartKey": place}),
    )
    now_us = table.now_us()
    items = [one for one in (stored(item, now_us) for item in response["Items"]) if not one.expired]
    return items, response.get("LastEvaluatedKey") or None


def _place_text(place: Item) -> str:
    keys = unwrapped(place)
    return urlsafe_b64encode(f"{keys['pk']}\n{keys['sk']}".encode()).decode().rstrip("=")


def _read_place(text: str | None) -> Item | None:
    if text is None or text == "":
        return None
    try:
        pk, sk = urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode().split("\n", 1)
    except ValueError:
        raise not_a_page() from None
    if not pk or not sk or len(pk) > len(EVENT) + 256 or len(sk) > 512:  # noqa: PLR2004 - within DynamoDB's bounds
        raise not_a_page()
    return wrapped({"pk": pk, "sk": sk})
