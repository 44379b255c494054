"""The files behind the path of a SQLite database: the database itself, its log, and the index of the log."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

OPEN_FILES: Final = Path("/dev/fd")  # of this process; not on Windows, which has no fork

#: A file by its device and number; None where there is none.
Identity: TypeAlias = "tuple[int, int] | None"


class Files(NamedTuple):
    """The files of one database."""

    database: Identity
    log: Identity
    log_index: Identity

    def are_still(self, others: Files) -> bool:
        """Return whether these are the same as the others. Files that did not exist, such as a log, do not matter."""
        return (
            self.database == others.database
            and others.log in (None, self.log)
            and others.log_index in (None, self.log_index)
        )

    def have_no_other_log(self, others: Files) -> bool:
        """Return whether no other log or index was begun since the others were recorded."""
        return self.log in (None, others.log) and self.log_index in (None, others.log_index)


def identity(path: str) -> Identity:
    """Return the identity of the file at a path."""
    try:
        found = os.stat(path)  # noqa: PTH116 - called for each transaction
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def files_at(path: str) -> Files:
    """Return the files behind the path of a database."""
    real = os.path.realpath(path) if os.path.islink(path) else path  # noqa: PTH114 - called for each transaction
    return Files(identity(path), identity(f"{real}-wal"), identity(f"{real}-shm"))


def is_open_here(file: Identity) -> bool:
    """Return whether this process has a file open, whichever part of it opened it."""
    if file is None or not OPEN_FILES.is_dir():
        return False
    for entry in OPEN_FILES.iterdir():
        try:
            found = os.fstat(int(entry.name))
        except OSError:  # closed meanwhile, such as the one that lists them
            continue
        if (found.st_dev, found.st_ino) == file:
            return True
    return False
