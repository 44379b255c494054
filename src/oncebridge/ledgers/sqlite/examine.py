"""Checks everything that the promise of a SQLite ledger depends on: its file, the disk under it, and SQLite itself."""

from __future__ import annotations

import re
import shutil
import sqlite3
import stat
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from oncebridge.ledgers.findings import Finding, good, warning, wrong

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncebridge.clock import Clock

MOUNTS: Final = Path("/proc/self/mounts")  # Linux only; elsewhere the file system stays unknown

#: On the network: locks may be unreliable there, and the shared memory of a WAL does not exist.
NETWORK: Final = re.compile(
    r"nfs4?|cifs|smb(fs|2|3)|afs|ceph|glusterfs|lustre|gpfs|beegfs|davfs"
    r"|fuse\.(sshfs|s3fs|mountpoint-s3|gcsfuse|blobfuse2?|rclone|glusterfs|ceph|davfs|juicefs)"
)
#: Passed through from elsewhere: perhaps the disk of the host, perhaps not.
PASSED_ON: Final = re.compile(r"9p|virtiofs|fuse(\..+)?")
LOCAL_FUSE: Final = frozenset({"fuse.fuse-overlayfs"})  # containers without root

SAFE_SYNC: Final = {2: "FULL", 3: "EXTRA"}
WAL_RESET_SINCE: Final = (3, 7, 0)
WAL_RESET_FIXED: Final = (3, 51, 3)
WAL_RESET_FIXED_TOO: Final = ((3, 44, 6), (3, 50, 7))  # and later ones of their branch

FREE_BYTES_LOW: Final = 256 * 1024 * 1024
CHECK_SECONDS_MAX: Final = 5.0
CHECK_STEPS: Final = 20_000  # of SQLite's machine between two checks of the clock: well below a millisecond each


def examine(db: sqlite3.Connection, path: Path, clock: Clock) -> Iterator[Finding]:
    """Examine an open ledger."""
    yield version(sqlite3.sqlite_version_info)
    yield journal(*db.execute("PRAGMA journal_mode").fetchone())
    yield sync(*db.execute("PRAGMA synchronous").fetchone())
    yield from file_system(path.resolve(), _mounts())
    yield space(shutil.disk_usage(path.resolve().parent).free)
    yield readers(path, stat.S_IMODE(path.stat().st_mode))
    yield integrity(db, clock)


def version(found: tuple[int, ...]) -> Finding:
    """Judge SQLite's version: some may damage a file in rare cases."""
    name = ".".join(map(str, found))
    fixed = found >= WAL_RESET_FIXED or any(found[:2] == one[:2] and found >= one for one in WAL_RESET_FIXED_TOO)
    if found < WAL_RESET_SINCE or fixed:
        return good("SQLite", f"version {name}")
    return warning(
        "SQLite",
        f"version {name} has the WAL-reset bug, which in rare cases damages a file that several processes write",
        "use a Python with SQLite 3.51.3 or newer, or let one process alone write; keep copies of the file",
        weakens=f"SQLite {name} may damage a file that several processes write",
    )


def journal(mode: str) -> Finding:
    """Judge the journal: without a WAL it is still safe, but readers and writers wait for each other."""
    if mode == "wal":
        return good("journal", "WAL")
    return warning(
        "journal",
        f"{mode.upper()}, though WAL was asked for: readers and writers wait for each other",
        "put the file on a local disk",
    )


def sync(mode: int) -> Finding:
    """Judge which writes are on the disk when a commit returns."""
    if mode in SAFE_SYNC:
        return good("sync", f"{SAFE_SYNC[mode]}: a commit survives a power cut")
    return wrong(
        "sync",
        f"synchronous is {mode}: a commit may be gone after a power cut",
        "use a SQLite that takes PRAGMA synchronous = FULL",
        weakens="a power cut may undo the last commits",
    )


def file_system(path: Path, mounts: str) -> Iterator[Finding]:
    """Judge the file system of a file, if it is known: SQLite's locks need a local one."""
    kind = kind_of_file_system(path, mounts)
    if kind is None:
        return
    if NETWORK.fullmatch(kind):
        yield wrong(
            "file system",
            f"{kind}, on the network: SQLite's locks and its WAL need a local disk",
            "move the file to a local disk, or use a Postgres, Redis or DynamoDB ledger",
            weakens="SQLite's locks cannot be relied upon on a network file system",
        )
    elif PASSED_ON.fullmatch(kind) and kind not in LOCAL_FUSE:
        yield warning(
            "file system",
            f"{kind}: it is unknown whether it is on a local disk",
            "make sure that it is one: SQLite's locks and its WAL do not work over a network",
        )
    else:
        yield good("file system", kind)


def kind_of_file_system(path: Path, mounts: str) -> str | None:
    """Return the type of the file system that a path is on, by a table as in /proc/mounts."""
    best, kind = -1, None
    for fields in (line.split(" ") for line in mounts.splitlines() if line.count(" ") > 1):
        place = PurePosixPath(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[1]))
        # Of two mounts at one path the later one hides the other.
        if path.is_relative_to(place) and len(place.parts) >= best:
            best, kind = len(place.parts), fields[2]
    return kind


def space(free_bytes: int) -> Finding:
    """Judge the free space."""
    found = f"{free_bytes / 1e9:,.1f} GB free"
    if free_bytes >= FREE_BYTES_LOW:
        return good("disk", found)
    return warning(
        "disk", found, "make room, or run oncebridge purge daily: on a full disk nothing can be acknowledged"
    )


def readers(path: Path, mode: int) -> Finding:
    """Judge who may read the file: it holds the secret and dead letters."""
    if not mode & (stat.S_IROTH | stat.S_IWOTH):
        return good("file", f"mode {mode:03o}: closed to others")
    return warning(
        "file",
        f"mode {mode:03o}: anybody on this machine may open it, and it holds the secret and dead letters",
        f"chmod o-rwx {path}*",
    )


def integrity(db: sqlite3.Connection, clock: Clock) -> Finding:
    """Look for damage, for a few seconds at most."""
    until_us = clock.monotonic_us() + int(CHECK_SECONDS_MAX * 1_000_000)
    try:
        db.set_progress_handler(lambda: clock.monotonic_us() > until_us, CHECK_STEPS)
        (answer,) = db.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.OperationalError as error:
        if "interrupted" not in str(error):
            raise
        found = f"no damage within {CHECK_SECONDS_MAX:g} s of looking; the file is too large to look at all of it"
        return good("integrity", found)
    except sqlite3.DatabaseError as error:
        answer = str(error)
    finally:
        db.set_progress_handler(None, 0)
    if answer == "ok":
        return good("integrity", "no damage")
    return wrong(
        "integrity",
        f"the file is damaged: {str(answer).strip().splitlines()[0]}",
        "stop the workers, keep a copy, and restore the file from a backup or with: sqlite3 FILE .recover",
        weakens="the ledger's file is damaged",
    )


def _mounts() -> str:
    try:
        return MOUNTS.read_text(errors="surrogateescape")
    except OSError:
        return ""
