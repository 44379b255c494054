"""Which connections a worker closes: unread answers, those of a peer with too many, and idle ones if all are taken."""

import pytest

from oncebridge.service.connections import ConnectionLimits, ConnectionPolicy, SeenConnection, peer_network
from oncebridge.settings.serve import ServeSettings

SECOND_US = 1_000_000
LIMITS = ConnectionLimits(total=100, per_peer=10, answer_taken_within_us=5 * SECOND_US)


def working(file, address="198.51.100.1"):
    """Make a connection with a request under way: data came from the peer just now, and none was sent since."""
    return SeenConnection(file, (address, 1000 + file), sent_us_ago=2 * SECOND_US)


def idle(file, address="198.51.100.1", seconds=60):
    """Make a connection without a request, and without traffic for so long."""
    return SeenConnection(
        file, (address, 1000 + file), sent_us_ago=seconds * SECOND_US, came_us_ago=seconds * SECOND_US
    )


def unread(file, address="198.51.100.1", received=0):
    """Make a connection with an answer of 1,000 bytes that the peer has received this much of."""
    return SeenConnection(file, (address, 1000 + file), written=1000, received=received)


def closed(policy, seen, now_us=0):
    """Return the files of the connections to close, by reason, where there are any."""
    found = policy.to_close(seen, now_us)
    return {reason: {one.file for one in connections} for reason, connections in found.items() if connections}


@pytest.fixture
def policy():
    """Return a policy that has seen nothing yet."""
    return ConnectionPolicy(LIMITS)


def test_an_unread_answer_has_a_deadline(policy):
    """A peer that takes none of its answer is cut off after that time, and not before."""
    seen = [unread(1), working(2)]
    assert closed(policy, seen, 0) == {}
    assert closed(policy, seen, 5 * SECOND_US - 1) == {}
    assert closed(policy, seen, 5 * SECOND_US) == {"unread": {1}}


def test_an_answer_that_was_read_has_none(policy):
    """Once a peer has taken an answer, the next one has a deadline of its own."""
    assert closed(policy, [unread(1)], 0) == {}
    newer = SeenConnection(1, ("198.51.100.1", 1001), written=2000, received=1000)
    assert closed(policy, [newer], 4 * SECOND_US) == {}
    assert closed(policy, [newer], 8 * SECOND_US) == {}
    assert closed(policy, [newer], 9 * SECOND_US) == {"unread": {1}}


def test_a_trickle_does_not_move_the_deadline(policy):
    """A peer that takes a few bytes at a time has no longer than one that takes none."""
    for second in range(5):
        assert closed(policy, [unread(1, received=second)], second * SECOND_US) == {}
    assert closed(policy, [unread(1, received=5)], 5 * SECOND_US) == {"unread": {1}}


def test_a_reused_file_is_another_connection(policy):
    """The system gives the number of a closed connection to the next one, which begins anew."""
    assert closed(policy, [unread(1, "198.51.100.1")], 0) == {}
    assert closed(policy, [unread(1, "198.51.100.2")], 5 * SECOND_US) == {}


def test_a_peer_with_too_many_loses_its_idle_ones(policy):
    """Those beyond its limit are closed, idle ones before working ones; other peers keep all of theirs."""
    crowd = [working(file) for file in range(8)] + [idle(file) for file in range(8, 13)]
    others = [idle(file, f"203.0.113.{file}") for file in range(20, 30)]
    found = closed(policy, crowd + others)
    assert found.keys() == {"crowding"}
    assert len(found["crowding"]) == 3
    assert found["crowding"] <= set(range(8, 13))


def test_a_peer_with_too_many_loses_unread_answers_first(policy):
    """A connection whose answer is not taken is of less use than an idle one."""
    crowd = [unread(1), *[idle(file) for file in range(2, 12)]]
    assert closed(policy, [unread(1)], 0) == {}
    assert closed(policy, crowd, SECOND_US) == {"crowding": {1}}


def test_working_connections_have_a_limit_too(policy):
    """One peer cannot take more by sending requests on all of them."""
    found = closed(policy, [working(file) for file in range(15)])
    assert {reason: len(files) for reason, files in found.items()} == {"crowding": 5}


def test_when_all_are_taken_some_idle_ones_make_room(policy):
    """A tenth is freed, of those longest without traffic; nothing with traffic is closed for that."""
    seen = [working(file, f"203.0.113.{file}") for file in range(80)]
    seen += [idle(file, f"203.0.113.{file}", seconds=file) for file in range(80, 100)]
    assert closed(policy, seen[1:]) == {}
    assert closed(policy, seen) == {"surplus": set(range(90, 100))}
    assert closed(policy, [working(file, f"203.0.113.{file}") for file in range(100)]) == {}


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("198.51.100.7", "198.51.100.7"),
        ("::ffff:198.51.100.7", "198.51.100.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::9", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_a_network_counts_as_one_peer(address, network):
    """An IPv4 address is a peer, however it is written; of IPv6 it is the network that one customer has."""
    assert peer_network(address) == network


def test_addresses_of_one_network_share_a_limit(policy):
    """A peer cannot have more by using many addresses of its network."""
    found = closed(policy, [working(file, f"2001:db8::{file + 1}") for file in range(12)])
    assert {reason: len(files) for reason, files in found.items()} == {"crowding": 2}


def test_workers_share_the_limits_of_the_service():
    """Each worker has its part, rounded up."""
    settings = ServeSettings(workers=3, connections=100, connections_per_peer=10, read_within_seconds=1.5)
    assert ConnectionLimits.of(settings) == ConnectionLimits(34, 4, 1_500_000)
