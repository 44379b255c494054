"""The notes of the DynamoDB ledger: an item for each page of counts, and an item for each note.

    count#PAGE  count             the numbers of a page, an attribute each
    note#PAGE   NAME              a note

Pages are not trimmed to their newest notes here: each note expires by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from oncebridge.ledgers.dynamodb.errors import ConditionFailed
from oncebridge.ledgers.dynamodb.items import EXPIRES, Item, wrapped
from oncebridge.ledgers.notes import NOTES_MAX, Note

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from oncebridge.ledgers.dynamodb.table import Table

T = TypeVar("T")
R = TypeVar("R")

#: Attributes that hold counts, and how many of them one call changes: expressions are limited to 4 KB.
NUMBER: Final = "n:"
AT_ONCE: Final = 200
#: How long a call tries: notes are not worth waiting for.
PATIENCE_US: Final = 5_000_000
#: Whether a note is there, for conditions.
_IS_KEPT: Final = "attribute_exists(pk) AND #expires > :now"


class Each(Protocol):
    """Runs work on several items at the same time."""

    def __call__(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Run it."""
        ...


class DynamoDBNotes:
    """Keeps pages in items of the ledger's table."""

    def __init__(self, table: Callable[[], Table], each: Each) -> None:
        """Take how to reach the table, and how to make several calls."""
        self._table = table
        self._each = each

    def add_counts(self, counts: Mapping[str, Mapping[str, int]], *, keep_us: int) -> None:
        """Add numbers to counts."""
        calls = [
            (page, list(numbers.items())[start : start + AT_ONCE])
            for page, numbers in counts.items()
            for start in range(0, len(numbers), AT_ONCE)
        ]
        self._each(lambda call: self._add(*call, keep_us), calls)

    def _add(self, page: str, numbers: list[tuple[str, int]], keep_us: int) -> None:
        table = self._table()
        names = {f"#{at}": NUMBER + name for at, (name, _) in enumerate(numbers)}
        values = {f":{at}": number for at, (_, number) in enumerate(numbers)}
        table.on_table(
            table.patience(PATIENCE_US),
            "update_item",
            Key=wrapped({"pk": f"count#{page}", "sk": "count"}),
            UpdateExpression=f"ADD {', '.join(f'#{at} :{at}' for at in range(len(numbers)))} SET #expires = :expires",
            ExpressionAttributeNames={**names, "#expires": EXPIRES},
            ExpressionAttributeValues=wrapped({**values, ":expires": _expires(table, keep_us)}),
        )

    def read_counts(self, pages: Sequence[str]) -> list[dict[str, int]]:
        """Return the counts of each page."""
        return self._each(self._read, pages)

    def _read(self, page: str) -> dict[str, int]:
        table = self._table()
        found = table.read(table.patience(PATIENCE_US), wrapped({"pk": f"count#{page}", "sk": "count"}))
        said = {} if found.expired else found.said
        return {name.removeprefix(NUMBER): number for name, number in said.items() if name.startswith(NUMBER)}

    def write_notes(self, page: str, values: Mapping[str, bytes], *, keep_us: int, newest: int | None = None) -> None:  # noqa: ARG002
        """Write notes."""
        table = self._table()

        def write(one: tuple[str, bytes]) -> None:
            table.on_table(table.patience(PATIENCE_US), "put_item", Item=_item(table, page, *one, keep_us))

        self._each(write, list(values.items()))

    def swap_note(self, page: str, name: str, before: bytes | None, after: bytes | None, *, keep_us: int) -> bool:
        """Change a note, if it is as it was."""
        table = self._table()
        condition: dict[str, Any] = {"ExpressionAttributeNames": {"#expires": EXPIRES}}
        values: dict[str, Any] = {":now": table.now_us() // 1_000_000}
        if before is None:
            condition["ConditionExpression"] = f"NOT ({_IS_KEPT})"
        else:
            condition["ConditionExpression"] = f"{_IS_KEPT} AND #value = :before"
            condition["ExpressionAttributeNames"]["#value"] = "value"
            values[":before"] = before
        condition["ExpressionAttributeValues"] = wrapped(values)
        patience = table.patience(PATIENCE_US)
        try:
            if after is None:
                table.on_table(patience, "delete_item", Key=_key(page, name), **condition)
            else:
                table.on_table(patience, "put_item", Item=_item(table, page, name, after, keep_us), **condition)
        except ConditionFailed:
            return False
        return True

    def read_notes(self, page: str, *, below: str | None = None, limit: int = NOTES_MAX) -> list[Note]:
        """Return notes of a page, from the last name on."""
        table = self._table()
        condition, values = "pk = :pk", {":pk": f"note#{page}"}
        if below is not None:
            condition, values = "pk = :pk AND sk < :below", {**values, ":below": below}
        found = table.pages(
            table.patience(PATIENCE_US),
            "query",
            KeyConditionExpression=condition,
            ExpressionAttributeValues=wrapped(values),
            ScanIndexForward=False,
            Limit=limit,
        )
        notes: list[Note] = []
        for item in found:
            notes.append(Note(item.said["sk"], item.said["value"]))
            if len(notes) == limit:
                break
        return notes


def _key(page: str, name: str) -> Item:
    return wrapped({"pk": f"note#{page}", "sk": name})


def _item(table: Table, page: str, name: str, value: bytes, keep_us: int) -> Item:
    return _key(page, name) | wrapped({"value": value, EXPIRES: _expires(table, keep_us)})


def _expires(table: Table, keep_us: int) -> int:
    return -(-(table.now_us() + keep_us) // 1_000_000)
