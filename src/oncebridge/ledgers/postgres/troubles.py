"""Postgres' errors in our words, with the fix."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import psycopg
from psycopg import errors

from oncebridge import handles
from oncebridge.errors import ClaimLost, LedgerRefused, LedgerUnavailable, PermanentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from oncebridge.ledgers.postgres.address import Address

#: Errors that are simply retried: another session was in the way, or a partition was dropped during the query.
PASSING: Final = (errors.SerializationFailure, errors.DeadlockDetected, errors.InternalError_)
#: Errors of prepared statements behind a pooler that gives each transaction another connection.
UNPREPARED: Final = (errors.InvalidSqlStatementName, errors.DuplicatePreparedStatement)

_NOT_OURS: Final = (errors.InvalidSchemaName, errors.UndefinedTable, errors.UndefinedFunction)
_PASSES: Final = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    errors.ReadOnlySqlTransaction,
    *PASSING,
    *UNPREPARED,
)
#: SQLSTATE that one of the ledger's own functions raises -> its meaning.
_OWN: Final[dict[str | None, Callable[[str], Exception]]] = {
    "OB001": lambda _: PermanentError(
        "a statement of the handler ended the transaction that it was given: nothing of it took effect; leave "
        "COMMIT and ROLLBACK out of the handler, savepoints are fine"
    ),
    "OB002": lambda _: ClaimLost(),
    "OB003": lambda found: LedgerRefused(
        f"{found}; set default_transaction_isolation back to 'read committed' for this user"
    ),
}

#: SQLSTATE or its class -> advice.
_BY_STATE: Final = {
    "25006": "this is a read replica: use the address of the primary",
    "55P03": "a session holds a lock on the ledger's rows; look in pg_stat_activity for an idle transaction",
    "57014": "a statement_timeout ended the call; raise it for this user",
    "53100": "make room on the server's disk; nothing was acknowledged meanwhile",
    "53300": "the server has too many connections; raise max_connections, or run fewer workers",
    "53": "the server is short of memory or disk; nothing was acknowledged meanwhile",
    "57": "the server is being shut down or restarted; the ledger connects again by itself",
    "XX": "look into the server's log",
}
#: Words of a failed connection -> advice, the first that fits.
_BY_WORDS: Final = {
    "starting up": "the server is starting; the ledger connects again by itself",
    "shutting down": "the server is being shut down or restarted; the ledger connects again by itself",
    "password authentication": "check user and password",
    "no password supplied": "put the password into the URL, or into a password file (~/.pgpass)",
    "pg_hba.conf": "let this user and address in (pg_hba.conf), and check sslmode: the server may want TLS",
    "authentication": "check user and password",
    'database "': "check the name of the database, or create it",
    'role "': "check the name of the user",
    "too many": "the server has too many connections; raise max_connections, or run fewer workers",
    "connection slots": "the server has too many connections; raise max_connections, or run fewer workers",
    "certificate": "check sslmode and sslrootcert: the server's certificate is not accepted",
    "ssl": "check sslmode: the server and this client do not agree about TLS",
    "translate host name": "check the host name",
    "resolve": "check the host name",
    "refused": "check address and port, and that the server runs",
    "timeout": "check the address, and that VPC and security group let this machine in",
    "timed out": "check the address, and that VPC and security group let this machine in",
    "unreachable": "check the address, and that VPC and security group let this machine in",
}
_ELSE: Final = "check that the server runs; the ledger connects again by itself"


#: Classes of SQLSTATE that are about the server: connections, resources, shutdown, its disk, itself.
_SERVERS: Final = frozenset({"08", "53", "57", "58", "XX"})


def is_servers(error: psycopg.Error) -> bool:
    """Return whether an error is the server's or our own functions', and not about the handler's data."""
    state = error.sqlstate or ""
    return not state or state[:2] in _SERVERS or state in _OWN


@contextmanager
def in_our_words(address: Address) -> Iterator[None]:
    """Translate Postgres' errors into ours; a mistake of ours stays as it is."""
    try:
        yield
    except psycopg.Error as error:
        ours = translated(error, address)
        if ours is None:
            raise
        raise ours from error


def translated(error: psycopg.Error, address: Address) -> Exception | None:
    """Return the error to raise instead, if there is one."""
    if error.sqlstate in _OWN:
        return _OWN[error.sqlstate](f"{address}: {first_line(error)}")
    if isinstance(error, _NOT_OURS):
        return not_migrated(address)
    if isinstance(error, errors.InsufficientPrivilege):
        return LedgerRefused(
            f"{address}: {said(error)}; grant this user USAGE on schema {address.schema}, EXECUTE on its "
            "functions, and SELECT, INSERT, UPDATE and DELETE on its tables"
        )
    if isinstance(error, _PASSES):
        return LedgerUnavailable(f"{address}: {said(error)}; {_advice(error)}")
    return None


def not_migrated(address: Address) -> LedgerRefused:
    """Say how to make the tables."""
    return LedgerRefused(
        f"{address}: there is no ledger in schema {address.schema!r} yet, or this user may not see it; make its tables "
        f"with: oncebridge migrate --ledger '{address}'"
    )


def _advice(error: psycopg.Error) -> str:
    state = error.sqlstate or ""
    if state:
        return _BY_STATE.get(state) or _BY_STATE.get(state[:2]) or _ELSE
    text = str(error).lower()
    if not handles.are_left():  # libpq does not say so
        return handles.ADVICE
    return next((advice for words, advice in _BY_WORDS.items() if words in text), _ELSE)


#: SQLSTATE -> words, where the name of the error is less clear.
_WORDS: Final = {
    "25006": "read-only transaction",
    "42501": "permission denied",
    "55P03": "lock timeout",
    "57014": "statement timeout",
}
_CAPITAL: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")


def said(error: psycopg.Error) -> str:
    """Describe an error without any data, for reasons and logs.

    The server's own words may quote written data: a trigger raises any text, under any code. Only errors without a code
    come from libpq, and are about the connection.
    """
    if error.sqlstate is None:
        return first_line(error)
    name = _CAPITAL.sub(" ", type(error).__name__).rstrip("_").lower()
    return f"{_WORDS.get(error.sqlstate, name)} ({error.sqlstate})"


def first_line(error: psycopg.Error) -> str:
    """Return the first line of an error of libpq or the server; the rows and statements below it hold data."""
    text = error.diag.message_primary or str(error)
    lines = [line.strip() for line in text.strip().splitlines()]
    if len(lines) > 1 and lines[0].startswith("Multiple connection attempts"):
        return lines[1].removeprefix("- ")  # one for each address of the host: the first is enough
    return lines[0].removesuffix(".") if lines else type(error).__name__
