"""Searches the DynamoDB ledger, and forgets: for people and upkeep.

One event is found by its key. Every other search reads the whole table, page by page: no worker ever does that.
"""

from __future__ import annotations

from heapq import nsmallest
from typing import TYPE_CHECKING, Any, Final

from oncebridge.claim import SETTLED, Status, read_newest
from oncebridge.ledgers.dynamodb.errors import ConditionFailed
from oncebridge.ledgers.dynamodb.items import (
    CONVERSATION,
    ENTITY,
    EVENT,
    EXPIRES,
    HANDLER,
    LETTER,
    OF_FIRST_SCHEMA,
    Stored,
    delete,
    entity_key,
    wrapped,
)
from oncebridge.ledgers.dynamodb.letters import key_of, letter_of_part, read_letter
from oncebridge.ledgers.dynamodb.lists import died_us, letters_of, lines
from oncebridge.ledgers.grants import Record
from oncebridge.ledgers.protocol import Entry, Query

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from oncebridge.claim import Letter
    from oncebridge.ledgers.dynamodb.table import Table
    from oncebridge.ledgers.grants import Entity

#: How long a part of a letter may wait for the event that names it, before it counts as left by a crash.
ORPHAN_US: Final = 3_600_000_000
#: Without the content of letters.
SHOWN: Final = (
    *("pk", "sk", "rev", "status", "token", "attempts", "changed_us", "retry_at_us", "lease_until_us", "nonce"),
    *("letter", "parts", "reason", "entity", "data", "expires", "last_us", *OF_FIRST_SCHEMA),
)
#: The attributes of a record.
_OF_RECORD: Final = ("pk", "sk", EXPIRES, *Record.__struct_fields__)


# --- one event ---------------------------------------------------------------------------------------


def entries_of(table: Table, key: bytes) -> list[Entry]:
    """Return the entries of one event, one for each handler, with the content of dead letters."""
    patience = table.patience()
    while True:
        values = wrapped({":pk": EVENT + key.hex(), ":handler": HANDLER})
        condition = "pk = :pk AND begins_with(sk, :handler)"
        query = {"KeyConditionExpression": condition, "ExpressionAttributeValues": values}
        events = list(table.pages(patience, "query", **query))
        letters = [read_letter(table, patience, key, event) for event in events]
        if all(letter or not event.letter for event, letter in zip(events, letters, strict=True)):
            return [entry_of(table, event, letter) for event, letter in zip(events, letters, strict=True)]
        patience.wait(1, f"{table.place}: the dead letter of event {key.hex()} has lost a part")


def records_of(table: Table, key: bytes) -> dict[str, Record]:
    """Return the records of one event by handler, without the content of dead letters."""
    events = table.pages(
        table.patience(),
        "query",
        KeyConditionExpression="#pk = :pk AND begins_with(#sk, :handler)",
        ProjectionExpression=", ".join(f"#{name}" for name in _OF_RECORD),
        ExpressionAttributeNames={f"#{name}": name for name in _OF_RECORD},
        ExpressionAttributeValues=wrapped({":pk": EVENT + key.hex(), ":handler": HANDLER}),
    )
    return {event.said["sk"].removeprefix(HANDLER): record for event in events if (record := event.record)}


def entity_of(table: Table, key: bytes) -> Entity | None:
    """Return an entity; None if there is none."""
    return table.read(table.patience(), entity_key(key)).entity


def entry_of(table: Table, event: Stored, letter: Letter | None = None) -> Entry:
    """Convert an event's item to an entry, with its letter if one is given."""
    said = event.said
    return Entry(
        key=bytes.fromhex(said["pk"].removeprefix(EVENT)),
        handler=said["sk"].removeprefix(HANDLER),
        status=Status(said["status"]),
        topic=said["topic"],
        time_ms=said.get("time_ms"),
        attempts=said["attempts"],
        envelope=said.get("envelope"),
        changed_us=said["changed_us"],
        retry_at_us=said.get("retry_at_us", 0),
        lease_until_us=said.get("lease_until_us") or _lease_on_entity(table, said),
        claimed_us=said["token"],
        reason=said.get("reason", ""),
        raw=letter.raw if letter else None,
        detail=letter.detail if letter else "",
    )


def _lease_on_entity(table: Table, said: dict[str, Any]) -> int:
    if said["status"] != Status.CLAIMED or "entity" not in said:
        return 0
    entity = table.read(table.patience(), entity_key(said["entity"])).entity
    return entity.lease_until_us if entity is not None and entity.nonce == said.get("nonce") else 0


# --- many --------------------------------------------------------------------------------------------


def found(table: Table, query: Query) -> list[Entry]:
    """Return the matching entries, the longest unchanged first."""
    if query.entities:
        return _newest_states(table, query)
    items = (item for item in _events(table) if matches(query, item.said))
    found = sorted(items, key=_order) if query.limit is None else nsmallest(query.limit, items, key=_order)
    return [entry_of(table, item) for item in found]


def _order(item: Stored) -> tuple[int, str, str]:
    return item.said["changed_us"], item.said["pk"], item.said["sk"]


def _newest_states(table: Table, query: Query) -> list[Entry]:
    entries = []
    for item in _scanned(table, ENTITY, "entity"):
        entity = item.entity
        newest = read_newest(entity.data if entity is not None else b"")
        if entity is not None and newest.key is not None and query.is_about(newest.conversation, newest.user):
            entries.append(Entry.of_newest(newest, changed_us=entity.changed_us, lease_until_us=entity.lease_until_us))
    return sorted(entries, key=lambda entry: (entry.changed_us, entry.key))[: query.limit]


def counts(table: Table) -> dict[Status, int]:
    """Count events by status."""
    counted: dict[Status, int] = {}
    for event in _events(table):
        status = Status(event.said["status"])
        counted[status] = counted.get(status, 0) + 1
    return counted


def _events(table: Table) -> Iterator[Stored]:
    return _scanned(table, EVENT, HANDLER)


def _scanned(table: Table, pk: str, sk: str) -> Iterator[Stored]:
    return table.pages(
        table.patience(),
        "scan",
        FilterExpression="begins_with(#pk, :pk) AND begins_with(#sk, :sk)",
        ProjectionExpression=", ".join(f"#{name}" for name in SHOWN),
        ExpressionAttributeNames={f"#{name}": name for name in SHOWN},
        ExpressionAttributeValues=wrapped({":pk": pk, ":sk": sk}),
    )


def _is_about(query: Query, said: dict[str, Any]) -> bool:
    return query.is_about(said.get("conversation"), said.get("user"))


def matches(query: Query, said: dict[str, Any]) -> bool:
    """Return whether an event's attributes match."""
    letter = said["reason"] if "letter" in said else None
    handler = said["sk"].removeprefix(HANDLER)
    return _is_about(query, said) and query.matches(
        Status(said["status"]), said["topic"], said["changed_us"], letter, handler
    )


# --- forgetting --------------------------------------------------------------------------------------


def purge(
    table: Table, older_than_us: int, each: Callable[[Callable[[Stored], bool], list[Stored]], list[bool]]
) -> int:
    """Forget events settled before then, what is unused since, and parts of letters that no event names."""
    before_us = table.now_us() - older_than_us
    events = [event for event in _events(table) if _is_over(event.said) and event.said["changed_us"] < before_us]
    forgotten = sum(each(lambda event: _forget(table, event), events))
    resting = [
        entity
        for entity in _scanned(table, ENTITY, "entity")
        if "lease_until_us" not in entity.said and entity.said["changed_us"] < before_us
    ]
    resting += [one for one in _scanned(table, CONVERSATION, "attendance") if one.said["last_us"] < before_us]
    each(lambda item: _forget(table, item), resting)
    for part in [part for part in _scanned(table, EVENT, LETTER) if not _is_named(table, part.said)]:
        table.on_table(table.patience(), "delete_item", Key=key_of(part.said))
    _forget_lines(table)
    return forgotten


def _forget_lines(table: Table) -> None:
    """Remove lines of the list whose letters are gone."""
    settled_us = table.now_us() - ORPHAN_US
    old = [line for line in lines(table) if died_us(line) < settled_us]
    for line, event in zip(old, letters_of(table, table.patience(), old), strict=True):
        if event is None:
            table.on_table(table.patience(), "delete_item", Key=key_of(line))


def _is_over(said: dict[str, Any]) -> bool:
    return Status(said["status"]) in SETTLED and "letter" not in said


def _forget(table: Table, item: Stored) -> bool:
    """Remove an item, unless it has changed since it was read."""
    try:
        table.write(table.patience(), delete(key_of(item.said), item.seen))
    except ConditionFailed as failed:
        return failed.item is None  # gone: by this very call, if its reply was lost
    return True


def _is_named(table: Table, said: dict[str, Any]) -> bool:
    """Return whether an event names the letter that a part belongs to, or may be about to."""
    if said["changed_us"] > table.now_us() - ORPHAN_US:
        return True
    values = wrapped({":pk": said["pk"], ":handler": HANDLER})
    condition = "pk = :pk AND begins_with(sk, :handler)"
    events = table.pages(table.patience(), "query", KeyConditionExpression=condition, ExpressionAttributeValues=values)
    return letter_of_part(said) in {event.letter[0] for event in events if event.letter}
