"""The list of dead letters of the DynamoDB ledger: a line for each, in the order of their dying, and none for others.

A line is written before the write that makes its event dead, and removed after the one that no longer does, like the
parts of a large letter. So every letter has a line. A line without its letter is passed over, and `purge` finds those
that a crash leaves.
"""

from __future__ import annotations

from hashlib import sha256
from heapq import merge
from typing import TYPE_CHECKING, Any, Final

from oncebridge.ledgers.dynamodb.items import LIST, Item, Stored, event_key, unwrapped, wrapped

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from oncebridge.claim import Ask
    from oncebridge.ledgers.dynamodb.table import Patience, Table
    from oncebridge.ledgers.pages import Position

#: The list is in so many parts: DynamoDB takes a thousand writes a second to each.
PARTS: Final = 4
#: Lines of a part that are read at a time, and events that are read together.
LINES: Final = 200
EVENTS: Final = 50
#: Names that are longer stand in the key of a line as their digest.
NAME_BYTES: Final = 500
#: Below every character that a handler's name may have, so that one name is not before another which begins with it.
_END: Final = "\x00"


def line_key(key: bytes, handler: str, letter: str) -> Item:
    """Return the key of a letter's line; the name of the letter begins with the time of its dying."""
    died_us, _, mark = letter.partition("-")
    return wrapped({"pk": _part(key), "sk": f"{died_us}#{key.hex()}#{_short(handler)}{_END}{mark}"})


def line(ask: Ask, letter: str, reason: str) -> Item:
    """Return the line of a letter."""
    said = {"key": ask.key, "handler": ask.handler, "topic": ask.topic, "reason": reason, "letter": letter}
    return line_key(ask.key, ask.handler, letter) | wrapped(said)


def is_listed(letter: str) -> bool:
    """Return whether a letter has a line: those from before there were lists have none."""
    return "-" in letter


def died_us(line: dict[str, Any]) -> int:
    """Return when the letter of a line died."""
    return int(line["sk"].partition("#")[0])


def lines(table: Table, start: Position | None = None) -> Iterator[dict[str, Any]]:
    """Read the lines of letters that died before a position, the newest first; of all of them without one."""
    below = "~" if start is None else f"{start.died_us:016d}#{start.key.hex()}#{_short(start.handler)}"
    parts = [_lines_of_part(table, f"{LIST}{number}", below) for number in range(PARTS)]
    return merge(*parts, key=lambda line: line["sk"].encode(), reverse=True)


def _lines_of_part(table: Table, part: str, below: str) -> Iterator[dict[str, Any]]:
    start: dict[str, Any] = {}
    while True:
        response = table.on_table(
            table.patience(),
            "query",
            needs="Items",
            ConsistentRead=True,
            KeyConditionExpression="pk = :pk AND sk < :below",
            ExpressionAttributeValues=wrapped({":pk": part, ":below": below}),
            ScanIndexForward=False,
            Limit=LINES,
            **start,
        )
        yield from map(unwrapped, response["Items"])
        if not response.get("LastEvaluatedKey"):
            return
        start = {"ExclusiveStartKey": response["LastEvaluatedKey"]}


def letters_of(table: Table, patience: Patience, some: Sequence[dict[str, Any]]) -> list[Stored | None]:
    """Read the events of lines; None for a line whose letter is gone, or not there yet."""
    names = list(dict.fromkeys((line["key"], line["handler"]) for line in some))
    events: dict[tuple[bytes, str], Stored] = {}
    for start in range(0, len(names), EVENTS):
        part = names[start : start + EVENTS]  # each once: DynamoDB reads no item twice in a call
        events.update(zip(part, table.read_together(patience, *(event_key(*name) for name in part)), strict=True))

    def letter_of(line: dict[str, Any]) -> Stored | None:
        event = events[line["key"], line["handler"]]
        return event if event.letter is not None and event.letter[0] == line["letter"] else None

    return [letter_of(line) for line in some]


def _short(handler: str) -> str:
    """Return the name of a handler as it fits into a key: an event's key has room for one that a line's has not."""
    name = handler.encode()
    return handler if len(name) <= NAME_BYTES else sha256(name).hexdigest()


def _part(key: bytes) -> str:
    return f"{LIST}{key[0] % PARTS}"
