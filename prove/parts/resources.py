"""What servers and workers need runs out or goes away, while workers work: they recover, or say what to do."""

from __future__ import annotations

import os
import random
import re
import resource
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from prove import measure
from prove.attack import Attack, Tally
from prove.checks import Judgement
from prove.nemesis import Siege, Trouble, besiege, smallest, troubled
from prove.outcome import Options, Outcome
from prove.parts.ways_in import add
from prove.parts.workers import outcome_of
from prove.places import kind_of, place_of, prepare
from prove.round import in_child

if TYPE_CHECKING:
    import redis

    from oncebridge import Bridge
    from servers.postgres import PostgresServer
    from servers.valkey import Valkey

WORKERS: Final = 3
STRIKES: Final = 2
ROUND_SECONDS: Final = 5.0
#: Most workers have opened their ledger by then.
OPEN_SECONDS: Final = 1.5
#: For how long something is missing.
HELD_SECONDS: Final = (0.3, 1.8)
DISK: Final = "size=96m"
DISK_POSTGRES: Final = "size=256m"
#: Connections that Postgres allows, most of which others have.
CONNECTIONS: Final = 14

#: What befalls each ledger, and words of which one is said by what fails meanwhile; none where nothing need fail.
KINDS: Final[dict[str, dict[str, str]]] = {
    "sqlite": {
        "full-disk": "make room",
        "no-handles": "",
        "directory": "put back",
        "moved": "put back",
        "deleted": "",
        "older-copy": "",
        "empty": "",
    },
    "redis": {
        "full-memory": "maxmemory",
        "no-connections": "maxclients|max number of clients",
        "no-handles": "file handles",
        "full-disk": "",
    },
    "postgres": {
        "no-connections": "too many connections",
        "read-only": "read-only|read only",
        "no-handles": "file handles",
        "full-disk": "",
    },
    "dynamodb": {"no-handles": ""},
}
#: After these the ledger knows less than before: who redelivers gets effects again, and its own tables are gone, too.
FORGETS: Final = frozenset({"moved", "deleted", "older-copy", "empty"})
#: What holds even then. A worker that starts while there is no file makes a ledger with another secret, and so other
#: keys: that is what a secret of one's own is for.
KEPT: Final = ("lost", "never acknowledged", "books out of balance")


def resources(options: Options) -> Outcome:
    """Let everything run out in turn, as often as was asked for."""
    return attacked(options)


def attacked(
    options: Options, *, kinds: tuple[str, ...] = (), spoil: Callable[[Bridge], None] | None = None
) -> Outcome:
    """Do it to the program, or to one that is spoiled; only these, if any are named."""
    whole, known = Outcome(), KINDS[kind_of(options.ledger)]
    chosen = kinds or tuple(known)
    asked = Options(
        options.ledger, options.seed, -(-options.amount // len(chosen)), options.seconds / len(chosen), options.folder
    )
    with _place(options) as running, troubled(running) as nemesis:
        url = nemesis.ask("calm")
        in_child(lambda: prepare(url))
        for kind in chosen:
            plan = Attack((), options.ledger, url, options.folder, options.seed, spoil=spoil, exact=kind not in FORGETS)
            siege = Siege(
                plan, nemesis, partial(draw, kind=kind), workers=WORKERS, leases=(0.3,), spread_seconds=ROUND_SECONDS,
                verdict=_kept if kind in FORGETS else _all,
            )  # fmt: skip
            add(whole, kind, _of_kind(siege, known[kind], asked))
            if options.progress:
                options.progress(whole.tried)
            if whole.broken and not kinds:
                break
    return whole


def _all(judgement: Judgement) -> dict[str, int]:
    return judgement.broken


def _kept(judgement: Judgement) -> dict[str, int]:
    return {what: number for what, number in judgement.broken.items() if what in KEPT}


def draw(dice: random.Random, kind: str) -> list[Trouble]:
    """Draw when it strikes in a round, and for how long."""
    afters = [OPEN_SECONDS, *(round(dice.uniform(0.4, 1.0), 2) for _ in range(STRIKES - 1))]
    return [Trouble(kind, after, round(dice.random(), 2)) for after in afters]


def _of_kind(siege: Siege, words: str, options: Options) -> Outcome:
    tally = Tally()
    for newest in besiege(siege, lambda now: now.faults >= options.amount, seconds=options.seconds):
        tally = newest
    outcome = outcome_of(tally, options)
    outcome.notes = [note for note in outcome.notes if note.startswith("ended early")]
    said = Counter({_plain(trouble): number for trouble, number in tally.said.items()})
    outcome.figures |= {"said": dict(said.most_common(3)), "workers ended by an error": tally.failed}
    outcome.notes += [f'{number} x "{trouble}"' for trouble, number in said.most_common(2)]
    # One that ended by an error has said what it was: it could not even load its own files.
    if words and tally.faults and not tally.failed and not any(re.search(words, trouble) for trouble in tally.said):
        outcome.broken["nobody was told what to do"] = 1
        outcome.history = [f"expected {words!r} in one of: {[*said]}"]
    if tally.failures:
        outcome.history = smallest(siege, tally.failures[0])
    return outcome


def _plain(trouble: str) -> str:
    """Leave out what differs from run to run."""
    return re.sub(r"/[^\s:,;]*/", "", re.sub(r"127\.0\.0\.1:\d+", "the server", trouble))


# --- what can be done to any -----------------------------------------------------------------------------


def _held(trouble: Trouble) -> None:
    low, high = HELD_SECONDS
    time.sleep(low + trouble.how * (high - low))


@contextmanager
def no_handles() -> Iterator[None]:
    """Let no worker open another file or connection, and cost it those that it has by nothing."""
    parent = os.getppid()  # workers are forks of it, and servers are not
    forks = [pid for pid in measure.tree(parent) if _command(pid) == _command(parent)]
    workers = [pid for pid in forks if pid not in {parent, os.getpid()}]
    before = {}
    for pid in workers:
        with suppress(OSError):
            before[pid] = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, before[pid][1]))
    try:
        yield
    finally:
        for pid, limits in before.items():
            with suppress(OSError):  # it has ended
                resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it has ended
        return b""


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """Mount a small disk."""
    disk = folder / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(disk)], check=True, capture_output=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False, capture_output=True)


@contextmanager
def full(disk: Path) -> Iterator[None]:
    """Fill a disk to the last byte."""
    filler = disk / "filler"
    try:
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(1024 * 1024))
        with filler.open("ab", buffering=0) as file, suppress(OSError):
            while True:
                file.write(b"x")
        yield
    finally:
        filler.unlink(missing_ok=True)


# --- SQLite ----------------------------------------------------------------------------------------------


class _File:
    """A file on a small disk."""

    def __init__(self, disk: Path) -> None:
        self._disk, self._path, self._away = disk, disk / "file" / "once.db", disk / "away"
        for folder in (self._path.parent, self._away):
            folder.mkdir()
        self.url = f"sqlite:///{self._path}"

    def strike(self, trouble: Trouble) -> None:
        kind = trouble.kind
        if kind == "no-handles":
            with no_handles():
                _held(trouble)
        elif kind == "full-disk":
            with full(self._disk):
                _held(trouble)
        elif kind == "moved":
            with self._moved():
                time.sleep(0.2 + 0.5 * trouble.how)  # a new one is begun after a second
        elif kind == "directory":
            with self._moved():
                self._path.mkdir()
                _held(trouble)
                self._path.rmdir()
        else:
            self._lose(kind)

    def _lose(self, kind: str) -> None:
        copy = self._away / "copy.db"
        if kind == "older-copy":
            shutil.copyfile(self._path, copy)
            time.sleep(0.4)
        elif kind == "empty":
            copy.touch()
        for path in self._path.parent.iterdir():
            path.unlink()
        if copy.exists():
            copy.rename(self._path)

    @contextmanager
    def _moved(self) -> Iterator[None]:
        names = [path.name for path in self._path.parent.iterdir()]
        for name in names:
            (self._path.parent / name).rename(self._away / name)
        try:
            yield
        finally:
            # Where a new one was begun meanwhile, on a machine that is slow, that is the ledger from now on.
            for name in names if not self._path.exists() else ():
                (self._away / name).rename(self._path.parent / name)

    def calm(self) -> None:
        """Do nothing: every strike ends by itself."""


@contextmanager
def _running_file(folder: Path) -> Iterator[_File]:
    with small_disk(folder, DISK) as disk:
        yield _File(disk)


# --- Redis -----------------------------------------------------------------------------------------------


class _Redis:
    """A server on a small disk."""

    def __init__(self, server: Valkey, disk: Path) -> None:
        self._server, self._disk = server, disk
        self.url = server.url

    def strike(self, trouble: Trouble) -> None:
        if trouble.kind == "no-handles":
            with no_handles(), self._server.client() as client:
                client.client_kill_filter(_type="normal", skipme=True)
                _held(trouble)
        elif trouble.kind == "full-disk":
            with full(self._disk):
                _held(trouble)
            if not self._server.answers():
                self._server.process.kill()
                self._server.process.start()
        else:
            with self._server.client() as client:
                self._limit(client, trouble)

    def _limit(self, client: redis.Redis, trouble: Trouble) -> None:
        if trouble.kind == "full-memory":
            client.config_set("maxmemory", "1mb")
            _held(trouble)
            client.config_set("maxmemory", "0")
        else:
            client.config_set("maxclients", "1")
            client.client_kill_filter(_type="normal", skipme=True)
            _held(trouble)
            client.config_set("maxclients", "1000")

    def calm(self) -> None:
        """Do nothing: every strike ends by itself."""


@contextmanager
def _running_redis(folder: Path) -> Iterator[_Redis]:
    from servers.valkey import running_valkey

    with small_disk(folder, DISK) as disk, running_valkey(disk / "valkey") as server:
        yield _Redis(server, disk)


# --- Postgres --------------------------------------------------------------------------------------------


class _Postgres:
    """A server on a small disk, for few connections."""

    def __init__(self, server: PostgresServer, disk: Path) -> None:
        self._server, self._disk = server, disk
        self.url = server.url

    def strike(self, trouble: Trouble) -> None:
        if trouble.kind == "full-disk":
            with full(self._disk):
                _held(trouble)
            if not self._server.answers():
                self._server.restart()
            return
        import psycopg

        with closing(psycopg.connect(self.url, autocommit=True)) as own:
            if trouble.kind == "no-handles":
                with no_handles():
                    self._cut_off(own)
                    _held(trouble)
            elif trouble.kind == "read-only":
                own.execute("ALTER SYSTEM SET default_transaction_read_only = on")
                own.execute("SELECT pg_reload_conf()")
                _held(trouble)
                own.execute("SET default_transaction_read_only = off")
                own.execute("ALTER SYSTEM RESET default_transaction_read_only")
                own.execute("SELECT pg_reload_conf()")
            else:
                self._hog(own, trouble)

    def _hog(self, own: Any, trouble: Trouble) -> None:
        import psycopg

        others: list[Any] = []
        give_up = time.monotonic() + 10.0
        self._cut_off(own)
        while len(others) < CONNECTIONS - 1 and time.monotonic() < give_up:
            try:
                others.append(psycopg.connect(self.url))
            except psycopg.OperationalError:
                self._cut_off(own, spared=[other.info.backend_pid for other in others])
        _held(trouble)
        for other in others:
            other.close()

    def _cut_off(self, own: Any, spared: list[int] | None = None) -> None:
        own.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'client backend' "
            "AND pid <> pg_backend_pid() AND pid <> ALL(%s)",
            (spared or [],),
        )

    def calm(self) -> None:
        """Do nothing: every strike ends by itself."""


@contextmanager
def _running_postgres(folder: Path) -> Iterator[_Postgres]:
    from servers.postgres import FAST, own_postgres

    with small_disk(folder, DISK_POSTGRES) as disk:
        (disk / "postgres").mkdir()
        few = (FAST, f"max_connections={CONNECTIONS}", "max_wal_senders=0", "superuser_reserved_connections=0")
        with own_postgres(disk / "postgres", *few) as server:
            yield _Postgres(server, disk)


# --- DynamoDB --------------------------------------------------------------------------------------------


class _DynamoDB:
    """The emulator; its clients run out of handles."""

    def __init__(self, url: str) -> None:
        self.url = url

    def strike(self, trouble: Trouble) -> None:
        with no_handles():
            _held(trouble)

    def calm(self) -> None:
        """Do nothing: every strike ends by itself."""


@contextmanager
def _running_dynamodb(url: str) -> Iterator[_DynamoDB]:
    yield _DynamoDB(url)


RUNNING: Final[dict[str, Callable[[Path], Any]]] = {
    "sqlite": _running_file,
    "redis": _running_redis,
    "postgres": _running_postgres,
}


@contextmanager
def _place(options: Options) -> Iterator[Callable[[], Any]]:
    """Return what runs the ledger; DynamoDB's credentials are this process' own, so its emulator runs here."""
    if options.ledger == "dynamodb":
        with place_of("dynamodb", options.folder) as url:
            yield partial(_running_dynamodb, url)
    else:
        yield partial(RUNNING[options.ledger], options.folder)
