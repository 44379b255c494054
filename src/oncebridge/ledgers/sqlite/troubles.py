"""Errors of a SQLite file, in our words."""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager
from typing import TYPE_CHECKING

from oncebridge import handles
from oncebridge.errors import LedgerRefused, LedgerUnavailable
from oncebridge.ledgers.sqlite.connections import FileGone, InTransaction, OpenBeforeFork

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def in_our_words(path: Path) -> Iterator[None]:
    """Translate SQLite's errors into ours, with the fix."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise LedgerUnavailable(f"{path}: {error}; {_advice(str(error), path)}") from error
    except sqlite3.DatabaseError as error:
        if isinstance(error, (sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.NotSupportedError)):
            raise
        raise LedgerRefused(
            f"{path}: {error}; it is damaged or not a ledger: restore it or choose another file"
        ) from error
    except FileGone as error:
        raise LedgerUnavailable(
            f"{path} was deleted, moved or replaced while it was in use, so nothing of this was acknowledged; if it is "
            "not put back a new one is begun, and the old one's memory is lost: stop the workers before you move it"
        ) from error
    except OpenBeforeFork as error:
        raise LedgerRefused(
            f"{path} was in use when this process was forked, so SQLite's locks would not hold here; fork outside of a "
            "handler's transaction, close connections of your own to the file before you do, or start processes with "
            "the method spawn"
        ) from error
    except InTransaction as error:
        raise LedgerRefused(
            f"{path} is in a handler's transaction, and nothing else can be written there meanwhile; give other events "
            "to the bridge outside of the handler"
        ) from error
    except OSError as error:
        raise LedgerUnavailable(f"{path}: {error.strerror}; {_advice(str(error.strerror), path)}") from error


def _advice(error: str, path: Path) -> str:
    text = error.lower()
    if "locked" in text or "busy" in text:
        return "another process holds the file for long; look for a handler with an endless transaction"
    if "full" in text or "no space" in text:
        return "make room on the disk; nothing was acknowledged meanwhile"
    if "readonly" in text or "permission" in text or "read-only" in text:
        return f"let this user write to the file and to {path.parent}"
    if not handles.are_left():  # SQLite does not say so
        return handles.ADVICE
    if "no such file" in text or "unable to open" in text:
        return f"create the directory {path.parent}"
    return "check the disk; nothing was acknowledged meanwhile"
