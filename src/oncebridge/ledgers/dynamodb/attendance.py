"""The attendance that the DynamoDB ledger keeps: an item for each conversation, with a set of marks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oncebridge.claim import MARKS_MAX
from oncebridge.ledgers.dynamodb.items import CONVERSATION, EXPIRES, Item, Stored, Write, wrapped
from oncebridge.ledgers.protocol import Attendance

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from oncebridge.ledgers.dynamodb.notes import Each
    from oncebridge.ledgers.dynamodb.table import Table

AT_ONCE: Final = 100  # items that DynamoDB reads together

_ADD: Final = (
    "ADD #marks :marks, #rev :one SET #first_us = if_not_exists(#first_us, :now_us), #last_us = :now_us,"
    " #expires = :expires"
)
_NAMES: Final = {f"#{name}": name for name in ("marks", "rev", "first_us", "last_us", EXPIRES)}


def attendance_key(conversation: bytes) -> Item:
    """Return the key of a conversation's attendance."""
    return wrapped({"pk": CONVERSATION + conversation.hex(), "sk": "attendance"})


def is_full(item: Stored) -> bool:
    """Return whether a conversation takes no more marks."""
    return len(item.said.get("marks", ())) >= MARKS_MAX


def mark_write(table: Table, conversation: bytes, marks: Iterable[bytes], *, now_us: int) -> Write:
    """Add marks to a conversation, on the condition that it is not full."""
    numbers = {":one": 1, ":now_us": now_us, ":expires": table.expires(), ":most": MARKS_MAX}
    return Write(
        "Update",
        {
            "Key": attendance_key(conversation),
            "UpdateExpression": _ADD,
            "ConditionExpression": "attribute_not_exists(#marks) OR size(#marks) < :most",
            "ExpressionAttributeNames": _NAMES,
            "ExpressionAttributeValues": {":marks": {"BS": sorted(set(marks))}, **wrapped(numbers)},
        },
    )


def read_attendance(table: Callable[[], Table], each: Each, conversations: Sequence[bytes]) -> list[Attendance | None]:
    """Return what came of each conversation, in order."""
    distinct = list(dict.fromkeys(conversations))
    parts = [distinct[start : start + AT_ONCE] for start in range(0, len(distinct), AT_ONCE)]
    patience = table().patience()

    def read(part: list[bytes]) -> list[Stored]:
        return table().read_together(patience, *map(attendance_key, part))

    items = [item for part in each(read, parts) for item in part]
    found = dict(zip(distinct, map(_attendance, items), strict=True))
    return [found[conversation] for conversation in conversations]


def _attendance(item: Stored) -> Attendance | None:
    if not item.said or item.expired:
        return None
    marks = sorted(map(bytes, item.said["marks"]))
    return Attendance(b"".join(marks), item.said["first_us"], item.said["last_us"])
