"""Pages of the Redis ledger: what they read of the server, and letters of workers that listed none."""

import os
import secrets
from contextlib import closing

import pytest

from oncebridge.claim import Ask, Claim, Letter, Outcome, Settlement
from oncebridge.ledgers.protocol import Query
from oncebridge.ledgers.redis import pages
from oncebridge.ledgers.redis.ledger import RedisLedger

LISTS = (b"died", b"heads", b"groups")
USER, CONVERSATION = bytes(range(16)), bytes(range(16, 32))


@pytest.fixture
def client(valkey):
    """Return a client of a server that holds nothing."""
    with valkey.client() as client:
        client.flushdb()
        yield client
        client.flushdb()


@pytest.fixture
def ledger(valkey, client):
    """Return an open ledger."""
    ledger = RedisLedger(valkey.url)
    ledger.open(None)
    with closing(ledger):
        yield ledger


def end(ledger, number, outcome=Outcome.DEAD, raw=b"{}", **fields):
    """Claim so many events, and end them."""
    given = {"topic": "v2.topic", "shared_ms": 1_700_000_000_000, "user": USER, "conversation": CONVERSATION}
    asks = [Ask(key=os.urandom(16), **{**given, **fields}) for _ in range(number)]
    answers = ledger.claim(asks, nonce=secrets.token_bytes(8), lease_us=60_000_000)
    letter = Letter(raw=raw, reason="poison") if outcome is Outcome.DEAD else None
    claims = [Claim(ask, answer.token) for ask, answer in zip(asks, answers, strict=True)]
    assert all(ledger.settle([Settlement(claim, outcome, letter=letter) for claim in claims]))
    return {ask.key for ask in asks}


def walked(ledger, **filters):
    """Return the keys on all pages, and how many pages there are."""
    keys, after, number = [], None, 0
    while number == 0 or after:
        page = ledger.letter_page(Query(**filters), after=after, limit=1000)
        keys += [entry.key for entry in page.entries]
        after, number = page.next, number + 1
    assert len(keys) == len(set(keys))
    return set(keys), number


def lists(client):
    """Return the keys of all lists of letters."""
    return [key for key in client.keys("*") if key.rpartition(b":")[2] in LISTS]


def test_no_payload_leaves_the_server(ledger, client):
    """Pages, groups and what is about a subject are small, however large the letters are."""
    keys = end(ledger, 20, raw=bytes(200_000))
    before = client.info("stats")["total_net_output_bytes"]
    assert walked(ledger)[0] == keys
    assert ledger.letter_groups().total == len(ledger.about(USER, seconds=10).entries) == len(keys)
    assert client.info("stats")["total_net_output_bytes"] - before < 100_000


def test_what_is_done_at_the_first_try_is_listed_nowhere(ledger, client):
    """An event that succeeds costs no write for pages."""
    client.config_resetstat()
    end(ledger, 50, Outcome.DONE)
    assert not {"cmdstat_zadd", "cmdstat_zincrby", "cmdstat_zrem"} & set(client.info("commandstats"))
    assert lists(client) == []
    assert [key for key in client.keys("*") if key.endswith((USER, CONVERSATION))] == []


def test_lists_end_with_their_letters(ledger, client):
    """Once no letter is left, neither is a list; those of subjects expire."""
    keys = end(ledger, 3)
    assert len(lists(client)) == len(LISTS)
    for key in keys:
        ask = Ask(key=key, shared_ms=1_700_000_000_000, redrive=True)
        (answer,) = ledger.claim([ask], nonce=secrets.token_bytes(8), lease_us=60_000_000)
        assert ledger.settle([Settlement(Claim(ask, answer.token), Outcome.DISCARD)]) == [True]
    assert lists(client) == []
    (subject,) = [key for key in client.keys("*") if key.endswith(b"s:" + USER)]
    assert client.ttl(subject) > 0


def test_a_filtered_page_looks_at_some_letters_only(ledger):
    """A filter that nothing matches turns a page after two thousand letters."""
    for _ in range(3):
        end(ledger, 700)
    assert walked(ledger, reason="nobody") == (set(), 2)
    assert walked(ledger)[1] == 3


def test_letters_of_earlier_versions_are_listed_by_migrate(valkey, ledger, client):
    """Letters that no list has are on pages and in groups after a migration, also of a ledger that is not open."""
    keys = end(ledger, 300)
    client.delete(*lists(client))
    RedisLedger(valkey.url).migrate()
    listed = {key: client.dump(key) for key in lists(client)}
    assert len(listed) == len(LISTS)
    assert walked(ledger)[0] == keys
    (group,) = ledger.letter_groups().groups
    assert (group.reason, group.topic, group.number) == ("poison", "v2.topic", 300)
    ledger.migrate()
    assert {key: client.dump(key) for key in lists(client)} == listed


def test_migrate_makes_no_ledger(valkey, client):
    """Where there is none, a migration writes nothing."""
    RedisLedger(valkey.url).migrate()
    assert client.keys("*") == []


def test_letters_of_earlier_versions_are_listed_while_people_look(ledger, client, monkeypatch):
    """Each look lists some more, and says meanwhile that not all are counted; the total is right at once."""
    monkeypatch.setattr(pages, "LIST_SECONDS", 0)
    monkeypatch.setattr(pages, "LOOK_AT_ONCE", b"20")
    keys = end(ledger, 200)
    client.delete(*lists(client))
    first = ledger.letter_groups()
    assert (first.complete, first.total) == (False, 200)
    assert 0 < first.groups[0].number < 200
    for _ in range(50):
        ledger.letter_page(Query())
    assert ledger.letter_groups().complete
    assert walked(ledger)[0] == keys


def test_letters_that_an_earlier_version_erased_are_not_shown(ledger, client):
    """A letter that is listed and gone is on no page, and its list is put right."""
    (gone, *_) = end(ledger, 5)
    for key in client.keys("*"):
        if key.endswith((b"open", b"letters")):
            assert client.hdel(key, gone) == 1
    found = ledger.letter_groups()
    assert (found.total, found.groups[0].number, found.complete) == (4, 4, True)
    assert gone not in walked(ledger)[0]


def test_a_look_about_a_subject_ends_in_time(ledger, monkeypatch):
    """What has failed is found at once; without time for the rest, that is told."""
    monkeypatch.setattr(pages, "LOOK_AT_ONCE", b"10")
    end(ledger, 500, user=bytes(16), conversation=None)
    keys = end(ledger, 3, Outcome.RETRY)
    found = ledger.about(USER, seconds=0)
    assert {entry.key for entry in found.entries} == keys
    assert not found.complete
    assert ledger.about(USER, seconds=60).complete


def test_the_list_of_a_subject_does_not_grow_for_ever(ledger, client):
    """Of a subject with very many failed events the latest are listed."""
    for _ in range(3):
        end(ledger, 400, Outcome.RETRY)
    (subject,) = [key for key in client.keys("*") if key.endswith(b"s:" + USER)]
    assert client.zcard(subject) == 500
