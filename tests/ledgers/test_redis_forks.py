"""The Redis ledger in forked processes: no child speaks on a connection of its parent's."""

import secrets
import threading

import pytest

from children import Child, Effects, bring_to_end, delivery, in_children, use_on_both_sides
from oncebridge import Bridge
from servers.valkey import running_cluster, running_sentinels


@pytest.fixture(scope="module", params=["single", "sentinels", "cluster"])
def servers_url(request, tmp_path_factory):
    """Run the servers of one kind."""
    directory = tmp_path_factory.mktemp("forks")
    if request.param == "single":
        yield request.getfixturevalue("valkey").url
    elif request.param == "sentinels":
        with running_sentinels(directory, replicas=0, sentinels=1) as watched:
            yield watched.url
    else:
        with running_cluster(directory) as servers:
            yield "redis+cluster://" + ",".join(f"127.0.0.1:{server.port}" for server in servers)


@pytest.fixture
def url(servers_url):
    """Return a new ledger."""
    return f"{servers_url}?name={secrets.token_hex(8)}"


def test_each_process_has_connections_of_its_own(url, tmp_path):
    """Children and their parent use one bridge at the same time: every new event takes effect, and only once."""
    effects = Effects(tmp_path)
    with Bridge(url) as bridge:
        bridge.on("*")(lambda event: effects.write(event.body["eventId"]))
        assert use_on_both_sides(bridge) == effects.count()


def test_a_fork_in_the_middle_of_a_batch_mixes_no_answers(url, tmp_path):
    """A handler's child uses the bridge while calls of its parent's batch are on their way: both get their own."""
    effects = Effects(tmp_path)
    batch = [f"batch-{number}" for number in range(120)]
    with Bridge(url) as bridge:

        @bridge.on("*")
        def handle(event):
            name = event.body["eventId"]
            effects.write(name)
            if name in ("batch-3", "batch-60"):
                own = [f"child-of-{name}-{number}" for number in range(5)]
                assert Child(lambda: bring_to_end(bridge, own)).result() == {"fresh": 5}

        results = bridge.process_many([delivery(name) for name in batch])
        assert {result.verdict.value for result in results} == {"fresh"}
        assert bring_to_end(bridge, batch) == {"redelivery": 120}
    children = [f"child-of-batch-{at}-{number}" for at in (3, 60) for number in range(5)]
    assert effects.count() == dict.fromkeys(batch + children, 1)


def test_a_fork_beside_a_thread_that_calls_is_safe(url, tmp_path):
    """Whatever another thread is doing at that moment, the child has its own connections, and no lock is left held."""
    effects = Effects(tmp_path)
    stop = threading.Event()
    busy = []
    with Bridge(url) as bridge:
        bridge.on("*")(lambda event: effects.write(event.body["eventId"]))

        def call():
            while not stop.is_set():
                busy.append(f"busy-{len(busy)}")
                assert bring_to_end(bridge, busy[-1:]) == {"fresh": 1}

        threads = [threading.Thread(target=call)]
        for thread in threads:
            thread.start()
        try:
            own = [[f"own-{child}-{number}" for number in range(3)] for child in range(8)]
            for names in own:
                assert Child(lambda names=names: bring_to_end(bridge, names)).result() == {"fresh": 3}
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    assert effects.count() == dict.fromkeys([*busy, *(name for names in own for name in names)], 1)


def test_a_child_ends_no_connection_of_its_parents(valkey):
    """A child that closes the bridge, and one that just ends, leave the parent its connections."""
    with Bridge(f"{valkey.url}?name=children") as bridge, valkey.client() as client:
        bridge.on("*")(lambda event: None)
        bring_to_end(bridge, ["one"])
        before = {one["id"] for one in client.client_list()}
        in_children(bridge.close, lambda: None, lambda: bring_to_end(bridge, ["two"]))
        bring_to_end(bridge, ["three"])
        assert before <= {one["id"] for one in client.client_list()}
