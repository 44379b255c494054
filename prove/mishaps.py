"""What befalls a ledger in the middle of a round: its file is replaced, its primary dies before its replica knows."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from servers.proxy import Proxy
    from servers.valkey import Valkey

#: For how long a primary goes on without its replica, before it dies.
APART_SECONDS: Final = 0.6


def replace_file(url: str) -> None:
    """Put an exact copy in the place of a SQLite file, as a restore does; no worker is at work."""
    path = Path(url.removeprefix("sqlite:///"))
    copy = path.with_suffix(".copy")
    with closing(sqlite3.connect(path)) as old, closing(sqlite3.connect(copy)) as new:
        old.backup(new)
    copy.replace(path)
    for name in (f"{path}-wal", f"{path}-shm"):
        with suppress(FileNotFoundError):
            Path(name).unlink()


@dataclass(frozen=True)
class Place:
    """Where a ledger is, what befalls it in the middle of a round, and what waits for the end of that."""

    url: str
    between: Callable[[str], None]
    after: Callable[[], None]


@contextmanager
def failing_over(folder: Path) -> Iterator[Place]:
    """Run a primary and its replica; who is primary is where the URL leads to."""
    pair = _Pair(folder)
    try:
        yield Place(pair.url, pair.fail_over, pair.wait)
    finally:
        pair.close()


class _Pair:
    """A primary, a replica that follows it through a link that can be cut, and the name that leads to the primary."""

    def __init__(self, folder: Path) -> None:
        from servers.proxy import Proxy

        self._folder, self._started = folder, 0
        self._parting: threading.Timer | None = None
        self._primary = self._start()
        self._front = Proxy(self._primary.port)
        self.url = f"{self._front.url(self._primary.url)}?wait=1"
        self._link, self._replica = self._follower_of(self._primary)

    def fail_over(self, _: str) -> None:
        """Let the primary go on alone for a while; then it dies, and the replica is what it was when they parted."""
        # Servers die with the thread that started them, so the next replica is there before it is needed.
        following = self._follower_of(self._replica)
        self._link.swallow()
        self._parting = threading.Timer(APART_SECONDS, self._part, following)
        self._parting.start()

    def _part(self, link: Proxy, replica: Valkey) -> None:
        self._primary.process.kill()
        self._link.refuse()  # before it is closed, which would let pass what it kept back
        self._link.close()
        with self._replica.client() as client:
            client.replicaof("NO", "ONE")
        self._primary, self._link, self._replica = self._replica, link, replica
        self._front.lead_to(self._primary.port)

    def _follower_of(self, server: Valkey) -> tuple[Proxy, Valkey]:
        from servers.process import wait_until
        from servers.proxy import Proxy

        link = Proxy(server.port)
        replica = self._start("--replicaof", f"127.0.0.1 {link.port}")
        with replica.client() as client:
            wait_until(lambda: client.info("replication").get("master_link_status") == "up", "the replica to follow")
        return link, replica

    def _start(self, *arguments: str) -> Valkey:
        from servers.valkey import Valkey

        self._started += 1
        server = Valkey(self._folder / str(self._started), *arguments)
        server.process.start()
        return server

    def wait(self) -> None:
        """Wait until the replica has taken over."""
        if self._parting is not None:
            self._parting.join()

    def close(self) -> None:
        """End all of it."""
        self.wait()
        self._front.close()
        self._link.close()
        self._replica.process.stop()
        self._primary.process.stop()
