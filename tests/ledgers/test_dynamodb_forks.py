"""The DynamoDB ledger in forked processes: no child uses its parent's connections, threads or locks."""

import secrets

import pytest

from children import Effects, bring_to_end, delivery, in_children, use_on_both_sides
from oncebridge import Bridge
from oncebridge.ledgers import ledger_from_url


@pytest.fixture
def url(ministack):
    """Return a new ledger."""
    url = f"dynamodb://forks-{secrets.token_hex(6)}?region={ministack.region}&endpoint_url={ministack.url}"
    ledger = ledger_from_url(url)
    ledger.migrate()
    ledger.close()
    return url


def test_each_process_has_connections_of_its_own(url, tmp_path):
    """Children and their parent use one bridge at the same time: every new event takes effect, and only once."""
    effects = Effects(tmp_path)
    with Bridge(url) as bridge:
        bridge.on("*")(lambda event: effects.write(event.body["eventId"]))
        assert use_on_both_sides(bridge) == effects.count()


def test_each_process_has_threads_of_its_own(url):
    """A batch, which takes several threads, goes through in a child as in its parent, and in a child of that."""
    with Bridge(url) as bridge:
        bridge.on("*")(lambda event: None)

        def batch(name):
            results = bridge.process_many([delivery(f"{name}-{number}") for number in range(8)])
            return [result.verdict.value for result in results]

        fresh = ["fresh"] * 8
        assert batch("before") == fresh
        assert in_children(lambda: batch("child"), lambda: in_children(lambda: batch("grandchild"))) == [fresh, [fresh]]
        assert batch("after") == fresh


def test_a_child_may_close_it(url):
    """A child that closes the bridge leaves the parent's as it is."""
    with Bridge(url) as bridge:
        bridge.on("*")(lambda event: None)
        bring_to_end(bridge, ["one"])
        in_children(bridge.close)
        assert bring_to_end(bridge, ["two", "one"]) == {"fresh": 1, "redelivery": 1}
