"""The notes of the Postgres ledger, in tables that `migrate` makes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from psycopg import errors

from oncebridge.errors import LedgerRefused
from oncebridge.ledgers.notes import NOTES_MAX, Note

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from oncebridge.ledgers.postgres.address import Address
    from oncebridge.ledgers.postgres.connections import LedgerConnection

T = TypeVar("T")

#: Expired pages are looked for with one in so many writes.
FORGET_EVERY: Final = 500


class Call(Protocol):
    """Runs work that may be repeated on a connection."""

    def __call__(self, work: Callable[[LedgerConnection], T]) -> T:
        """Run it."""
        ...


class PostgresNotes:
    """Keeps pages in two tables of the ledger's schema."""

    def __init__(self, call: Call, address: Address) -> None:
        """Take how to reach the server, and where the tables are."""
        self._run = call
        self._address = address
        self._schema = address.schema
        self._now = f"{self._schema}.now_us()"
        self._writes = 0

    def add_counts(self, counts: Mapping[str, Mapping[str, int]], *, keep_us: int) -> None:
        """Add numbers to counts."""
        # In one order: two workers that lock the same rows never wait for each other in a circle.
        rows = sorted((page, name, number) for page, some in counts.items() for name, number in some.items())
        self._write(
            f"INSERT INTO {self._schema}.count AS kept"  # nosec B608 # a checked name
            f" SELECT page, name, number, {self._now} + %s"
            " FROM unnest(%s::text[], %s::text[], %s::bigint[]) AS new (page, name, number) ORDER BY page, name"
            " ON CONFLICT (page, name) DO UPDATE SET number = kept.number + excluded.number,"
            " until_us = excluded.until_us",
            [keep_us, *_columns(rows, 3)],
        )

    def read_counts(self, pages: Sequence[str]) -> list[dict[str, int]]:
        """Return the counts of each page."""
        found: dict[str, dict[str, int]] = {page: {} for page in pages}
        statement = (
            f"SELECT page, name, number FROM {self._schema}.count WHERE page = ANY (%s) AND until_us > {self._now}"  # nosec B608
        )
        for page, name, number in self._ask(statement, [list(found)]):
            found[page][name] = number
        return [found[page] for page in pages]

    def write_notes(self, page: str, values: Mapping[str, bytes], *, keep_us: int, newest: int | None = None) -> None:
        """Write notes."""
        rows = sorted(values.items())
        self._write(
            f"INSERT INTO {self._schema}.note SELECT %s, name, value, {self._now} + %s"  # nosec B608
            " FROM unnest(%s::text[], %s::bytea[]) AS new (name, value) ORDER BY name"
            " ON CONFLICT (page, name) DO UPDATE SET value = excluded.value, until_us = excluded.until_us",
            [page, keep_us, *_columns(rows, 2)],
        )
        if newest is not None:
            self._ask(
                f"DELETE FROM {self._schema}.note WHERE page = %s AND name <= (SELECT name FROM {self._schema}.note"  # nosec B608
                " WHERE page = %s ORDER BY name DESC LIMIT 1 OFFSET %s) RETURNING 1",
                [page, page, newest],
            )

    def swap_note(self, page: str, name: str, before: bytes | None, after: bytes | None, *, keep_us: int) -> bool:
        """Change a note, if it is as it was."""
        note, here, there = f"{self._schema}.note", "page = %s AND name = %s", f"until_us > {self._now}"
        if before is None and after is None:
            return not self._ask(f"SELECT 1 FROM {note} WHERE {here} AND {there}", [page, name])  # nosec B608
        if before is None:
            statement = (
                f"INSERT INTO {note} AS kept VALUES (%s, %s, %s, {self._now} + %s) ON CONFLICT (page, name) DO UPDATE"  # nosec B608
                f" SET value = excluded.value, until_us = excluded.until_us WHERE kept.until_us <= {self._now}"
                " RETURNING 1"
            )
            swapped = self._ask(statement, [page, name, after, keep_us])
        elif after is None:
            statement = f"DELETE FROM {note} WHERE {here} AND value = %s AND {there} RETURNING 1"  # nosec B608
            swapped = self._ask(statement, [page, name, before])
        else:
            statement = (
                f"UPDATE {note} SET value = %s, until_us = {self._now} + %s WHERE {here} AND value = %s AND {there}"  # nosec B608
                " RETURNING 1"
            )
            swapped = self._ask(statement, [after, keep_us, page, name, before])
        return bool(swapped)

    def read_notes(self, page: str, *, below: str | None = None, limit: int = NOTES_MAX) -> list[Note]:
        """Return notes of a page, from the last name on."""
        before, values = ("", []) if below is None else (" AND name < %s", [below])
        statement = (
            f"SELECT name, value FROM {self._schema}.note WHERE page = %s AND until_us > {self._now}{before}"  # nosec B608
            " ORDER BY name DESC LIMIT %s"
        )
        return [Note(name, value) for name, value in self._ask(statement, [page, *values, limit])]

    def _write(self, statement: str, values: list[Any]) -> None:
        self._ask(f"{statement} RETURNING 1", values)
        self._writes += 1
        if self._writes % FORGET_EVERY == 1:
            for table in ("count", "note"):
                self._ask(f"DELETE FROM {self._schema}.{table} WHERE until_us <= {self._now} RETURNING 1", [])  # nosec B608

    def _ask(self, statement: str, values: list[Any]) -> list[tuple[Any, ...]]:
        try:
            return self._run(lambda connection: connection.ask(statement, values))
        except LedgerRefused as error:
            if isinstance(error.__cause__, (errors.UndefinedTable, errors.InsufficientPrivilege)):
                raise LedgerRefused(
                    f"{self._address}: there are no tables for notes, or this user may not use them; make them with: "
                    f"oncebridge migrate --ledger '{self._address}'"
                ) from error
            raise


def _columns(rows: Sequence[Sequence[Any]], width: int) -> list[list[Any]]:
    return [[row[at] for row in rows] for at in range(width)]
