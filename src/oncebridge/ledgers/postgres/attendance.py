"""The attendance that the Postgres ledger keeps, in a table that `migrate` makes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from psycopg import errors

from oncebridge.claim import attended
from oncebridge.errors import LedgerRefused
from oncebridge.ledgers.marks import marks_in
from oncebridge.ledgers.postgres.arrays import Bytes
from oncebridge.ledgers.protocol import Attendance

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oncebridge.claim import Settlement
    from oncebridge.ledgers.postgres.address import Address
    from oncebridge.ledgers.postgres.notes import Call

_READ: Final = """
    SELECT conversation, marks, first_us, last_us FROM {schema}.attendance WHERE conversation = ANY (%s)"""


def mark_arguments(settlements: Sequence[Settlement]) -> list[Bytes]:
    """Return the conversations and marks that ends of claims add, for `settle_marked`; nothing if none adds any."""
    came = [attended(settlement) for settlement in settlements]
    if not any(came):
        return []
    return [Bytes([None if one is None else one[place] for one in came]) for place in (0, 1)]


class PostgresAttendance:
    """Reads the table of attendance."""

    def __init__(self, call: Call, address: Address) -> None:
        """Take how to reach the server, and where the table is."""
        self._run = call
        self._address = address

    def read(self, conversations: Sequence[bytes]) -> list[Attendance | None]:
        """Return what came of each conversation, in order."""
        statement = _READ.format(schema=self._address.schema)
        try:
            rows = self._run(lambda connection: connection.ask(statement, [Bytes(set(conversations))]))
        except LedgerRefused as error:
            if isinstance(error.__cause__, (errors.UndefinedTable, errors.InsufficientPrivilege)):
                raise LedgerRefused(
                    f"{self._address}: there is no table of attendance, or this user may not read it; make it with: "
                    f"oncebridge migrate --ledger '{self._address}', and grant what docs/ledgers.md says"
                ) from error
            raise
        found = {
            conversation: Attendance(b"".join(sorted(marks_in(marks))), first_us, last_us)
            for conversation, marks, first_us, last_us in rows
        }
        return [found.get(conversation) for conversation in conversations]

    def is_there(self) -> bool:
        """Return whether there is a table."""
        ((there,),) = self._run(
            lambda connection: connection.ask(
                "SELECT to_regclass(%s) IS NOT NULL", [f"{self._address.schema}.attendance"]
            )
        )
        return bool(there)
