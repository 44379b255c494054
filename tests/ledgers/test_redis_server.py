"""What is the Redis ledger's own: places, memory, servers that forget, fail over, restart or are out of reach."""

import gc
import re
import secrets
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from ledgers.test_redis import OnRedis
from oncebridge import Bridge, Settings
from oncebridge.claim import Ask, Claim, Letter, Outcome, Settlement, Status, Verdict
from oncebridge.clock import SystemClock
from oncebridge.errors import ConfigurationError, LedgerRefused, LedgerUnavailable, LedgerWarning
from oncebridge.ledgers.findings import Level
from oncebridge.ledgers.protocol import Query
from oncebridge.ledgers.redis.address import read_url
from oncebridge.ledgers.redis.ledger import RedisLedger
from payloads import presence, raw
from servers.process import wait_until
from servers.valkey import running_cluster, running_sentinels, running_valkey

LEASE_US = 60_000_000
HOUR_MS = 3_600_000
DAY_S = 86_400


@contextmanager
def opened(url, **options):
    """Open a ledger for a while."""
    ledger = RedisLedger(url, **options)
    ledger.open(None)
    try:
        yield ledger
    finally:
        ledger.close()


@pytest.fixture
def url(valkey, request):
    """Return the URL of a ledger for one test, on a server that holds nothing else: other tests leave theirs behind."""
    with valkey.client() as client:
        client.flushdb()
        yield f"{valkey.url}?name={secrets.token_hex(8)}"
        client.flushdb()


def now_ms():
    """Return the time."""
    return SystemClock().now_us() // 1000


def state_of(user, moment_ms):
    """Return a delivery: the presence of a user."""
    return raw(presence("AVAILABLE", modified_ms=1_790_000_000_000 + moment_ms, user=user))


def facts(number, at_ms, span_ms=HOUR_MS):
    """Return asks for events spread over an hour."""
    return [
        Ask(key=secrets.token_bytes(16), envelope=f"{n}", topic="t", shared_ms=at_ms + n * span_ms // number)
        for n in range(number)
    ]


def do(ledger, asks, outcome=Outcome.DONE, size=1000):
    """Claim and settle all; every one must be granted."""
    for at in range(0, len(asks), size):
        batch = asks[at : at + size]
        answers = ledger.claim(batch, nonce=secrets.token_bytes(8), lease_us=LEASE_US)
        ends = [Settlement(Claim(ask, answer.token), outcome) for ask, answer in zip(batch, answers, strict=True)]
        assert all(ledger.settle(ends))


def verdicts(ledger, asks, size=1000):
    """Ask for all, and return the different verdicts."""
    found = set()
    for at in range(0, len(asks), size):
        answers = ledger.claim(asks[at : at + size], nonce=secrets.token_bytes(8), lease_us=LEASE_US)
        found |= {answer.verdict for answer in answers}
    return found


def buckets(client, ledger):
    """Return the keys of the buckets of one ledger."""
    keys = client.keys(f"ob:{{{ledger.address.name}.*")
    return [key for key in keys if key.rsplit(b":", 1)[-1].isdigit()]


# --- memory and places -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_event_takes_at_most_thirty_bytes(valkey, url):
    """A hundred thousand facts of one hour take thirty bytes each, are known again, and are dropped by the day."""
    asks = facts(100_000, now_ms() - HOUR_MS)
    with opened(url) as ledger, valkey.client() as client:
        before = client.info("memory")["used_memory"]
        do(ledger, asks)
        taken = client.info("memory")["used_memory"] - before
        assert taken / len(asks) <= 30
        assert verdicts(ledger, asks) == {Verdict.REDELIVERY}
        assert ledger.counts()[Status.DONE] == len(asks)
        assert ledger.purge(older_than_us=0) == len(asks)
        assert buckets(client, ledger) == []
        assert ledger.counts() == {}
        assert verdicts(ledger, asks[:10]) == {Verdict.FRESH}


def test_buckets_stay_small_however_many_events_a_day_has(valkey, url):
    """Buckets are split as a day grows, so that each keeps the encoding that is small, and none is lost on the way."""
    asks = facts(5000, now_ms() - HOUR_MS)
    with opened(url) as ledger, valkey.client() as client:
        for size in (1, 10, 1000):
            some, asks = asks[: size * 3], asks[size * 3 :]
            do(ledger, some, size=size)
            assert verdicts(ledger, some) == {Verdict.REDELIVERY}
        found = buckets(client, ledger)
        assert len(found) > 3033 / 96
        assert {client.object("encoding", key) for key in found} == {b"listpack"}
        assert max(client.hlen(key) for key in found) <= 200


def test_workers_agree_on_places_while_buckets_split(url):
    """Workers that fill one day at the same time lose no record and take none for another's."""
    day_ms = now_ms() - HOUR_MS
    shares = [facts(1500, day_ms) for _ in range(4)]
    errors = []

    def work(share):
        try:
            with opened(url) as ledger:
                do(ledger, share, size=37)
        except BaseException as error:  # noqa: BLE001 - shown below
            errors.append(error)

    threads = [threading.Thread(target=work, args=(share,)) for share in shares]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    with opened(url) as ledger:
        assert all(verdicts(ledger, share) == {Verdict.REDELIVERY} for share in shares)
        assert verdicts(ledger, facts(1000, day_ms)) == {Verdict.FRESH}


@pytest.mark.parametrize("days_apart", [-4000, -40, -2, -1, 0, 1, 30, 399, 500, 20_000])
def test_whatever_is_settled_is_forgotten_by_itself_but_not_too_early(valkey, url, days_apart):
    """Each bucket lives at least for the retention from its newest settle, whatever time its events have."""
    asks = facts(120, now_ms() + days_apart * DAY_S * 1000, span_ms=1000)
    with opened(url, retention_us=10 * DAY_S * 1_000_000) as ledger, valkey.client() as client:
        do(ledger, asks, size=7)
        lives = [client.ttl(key) for key in buckets(client, ledger)]
    assert len(lives) >= 2
    assert min(lives) >= 10 * DAY_S
    assert max(lives) <= (10 + 4 + 400) * DAY_S


def test_events_without_a_shared_time_are_forgotten_one_by_one(valkey, url):
    """What stands alone has a life of its own: the retention."""
    with opened(url, retention_us=5_000_000) as ledger, valkey.client() as client:
        do(ledger, [Ask(key=bytes(16), content=bytes(16))])
        (key,) = client.keys("*:e:*")
        assert 1 <= client.ttl(key) <= 5


def test_ledgers_with_other_names_know_nothing_of_each_other(valkey, url):
    """Several ledgers share a server, each with its own events and its own secret."""
    asks = facts(3, now_ms())
    with opened(url) as one, opened(f"{valkey.url}?name=another") as other:
        do(one, asks)
        assert verdicts(other, asks) == {Verdict.FRESH}
        assert one.open(None) != other.open(None)


def test_a_duplicate_takes_one_round_trip(valkey, url):
    """A duplicate is one call to the server, and a batch of them is one too."""
    with Bridge(url) as bridge, valkey.client() as client:
        bridge.on("*")(lambda _event: None)
        raws = [state_of(f"user {n}", n * 1000) for n in range(20)]
        bridge.process_many(raws)
        client.config_resetstat()
        assert {result.verdict for result in bridge.process_many(raws)} == {Verdict.REDELIVERY}
        assert bridge.process(raws[0]).verdict is Verdict.REDELIVERY
        stats = client.info("commandstats")
        assert stats["cmdstat_evalsha"]["calls"] == 2
        assert "cmdstat_eval" not in stats


# --- servers that must not be used, or better not ---------------------------------------------------------------


def test_a_server_that_evicts_is_refused_unless_told_otherwise(tmp_path):
    """A server that forgets keys when its memory is full would let events take effect twice."""
    with running_valkey(tmp_path, "--maxmemory-policy", "allkeys-lru") as server:
        with pytest.raises(LedgerRefused, match=r"allkeys-lru.*noeviction.*allow_eviction=true"):
            RedisLedger(server.url).open(None)
        with opened(f"{server.url}?allow_eviction=true") as ledger:
            (finding,) = [one for one in ledger.examine() if one.subject == "eviction"]
            assert finding.level is Level.WARNING
            assert finding.weakens


def test_a_server_without_append_only_file_is_warned_of(tmp_path):
    """A server that forgets in a crash what it has acknowledged can be used, but not without a word."""
    with running_valkey(tmp_path, "--appendonly", "no") as server:
        with pytest.warns(LedgerWarning, match="append-only"), opened(server.url) as ledger:
            (finding,) = [one for one in ledger.examine() if one.subject == "persistence"]
        assert finding.level is Level.WARNING
        assert "crash" in finding.weakens


def test_a_full_server_is_an_outage_and_loses_nothing(tmp_path):
    """With its memory full the server refuses writes: nothing is acknowledged, and it goes on when there is room."""
    with running_valkey(tmp_path, "--maxmemory", "100mb") as server, Bridge(server.url) as bridge:
        handled = []
        bridge.on("*")(lambda event: handled.append(event.key))
        bridge.process(state_of("a", 0))
        with server.client() as client:
            client.config_set("maxmemory", 1)
            with pytest.raises(LedgerUnavailable, match="memory is full"):
                bridge.process(state_of("b", 0))
            client.config_set("maxmemory", 0)
        wait_until(lambda: _processed(bridge, state_of("b", 0)), "the bridge to go on")
        assert len(handled) == len(set(handled)) == 2


def _processed(bridge, raw):
    try:
        return bridge.process(raw).acknowledged
    except LedgerUnavailable:
        return False


# --- servers that come back empty ---------------------------------------------------------------------------------


FORGETFUL = f"{LedgerWarning.__module__}.{LedgerWarning.__name__}"


@pytest.fixture
def forgetful(tmp_path):
    """Run a server that keeps nothing, as many caches do."""
    with running_valkey(tmp_path, "--appendonly", "no") as server:
        yield server


def come_back_empty(server):
    """Let a server crash and start again."""
    server.process.kill()
    server.process.start()


@contextmanager
def noting(server):
    """Run a bridge that notes the keys of what it has handled."""
    keys = []
    with Bridge(server.url) as bridge:
        bridge.on("*")(lambda event: keys.append(event.key))
        yield bridge, keys


def taken(bridge, raw):
    """Process a delivery, however often the ledger is out of reach meanwhile."""
    wait_until(lambda: _processed(bridge, raw), "the bridge to go on")


@pytest.mark.filterwarnings(f"ignore:.*append-only:{FORGETFUL}")
def test_workers_from_before_and_after_a_server_came_back_empty_have_the_same_keys(forgetful):
    """Whoever was there gives the server its secret back: so a worker that starts later knows what was done since."""
    with noting(forgetful) as (old, by_old):
        taken(old, state_of("a", 0))
        come_back_empty(forgetful)
        taken(old, state_of("b", 0))
        with noting(forgetful) as (new, by_new):
            assert new.process(state_of("b", 0)).verdict is Verdict.REDELIVERY
            taken(new, state_of("c", 0))
            assert old.process(state_of("c", 0)).verdict is Verdict.REDELIVERY
    assert (len(by_old), len(by_new)) == (2, 1)


def test_a_thread_that_meets_an_outage_first_leaves_no_noise_behind(tmp_path, monkeypatch):
    """Whoever never had a connection has none to give back: that is no traceback in somebody's log."""
    noise = []
    monkeypatch.setattr(sys, "unraisablehook", noise.append)
    with running_valkey(tmp_path) as server, opened(server.url) as ledger, ThreadPoolExecutor(1) as threads:
        server.process.kill()
        call = threads.submit(ledger.claim, [Ask(key=bytes(16))], nonce=bytes(8), lease_us=LEASE_US)
        with pytest.raises(LedgerUnavailable):
            call.result()
        del call
        gc.collect()
    assert noise == []


def test_a_connection_is_asked_once_whether_its_server_is_the_same(valkey, url):
    """Threads come and go and leave their connections to the next; none of these is a round trip more."""
    with opened(url) as ledger, valkey.client() as client:
        asked = []
        for number in range(5):
            ask = Ask(key=bytes([number]) * 16)
            thread = threading.Thread(
                target=ledger.claim, args=([ask],), kwargs={"nonce": bytes(8), "lease_us": LEASE_US}
            )
            thread.start()
            thread.join()
            asked.append(client.info("commandstats")["cmdstat_eval"]["calls"])
    assert asked[1:] == asked[:1] * 4


@pytest.mark.filterwarnings(f"ignore:.*append-only:{FORGETFUL}")
def test_events_of_named_handlers_are_found_after_a_server_came_back_empty(forgetful):
    """What handlers there are is written down again: without their names, their events are not to be found."""
    asks = [Ask(key=bytes([number]) * 16, handler="desk") for number in range(4)]
    with opened(forgetful.url) as ledger:
        assert _granted(ledger, asks[0])
        come_back_empty(forgetful)
        for ask in asks[1:]:
            wait_until(lambda ask=ask: _granted(ledger, ask), "the ledger to be back")
        assert [[entry.handler for entry in ledger.get(ask.key)] for ask in asks] == [[], ["desk"], ["desk"], ["desk"]]


def _granted(ledger, ask):
    try:
        return ledger.claim([ask], nonce=secrets.token_bytes(8), lease_us=LEASE_US)[0].verdict is Verdict.FRESH
    except LedgerUnavailable:
        return False


@pytest.mark.filterwarnings(f"ignore:.*append-only:{FORGETFUL}")
@pytest.mark.parametrize("number", [1, 120], ids=["one", "many"])
def test_whoever_comes_late_to_a_server_that_others_have_begun_anew_joins_them(forgetful, number):
    """It is told once, with nothing acknowledged, and makes the keys of the others from then on."""
    events = [state_of(f"user {n}", 0) for n in range(number)]
    with noting(forgetful) as (old, by_old):
        taken(old, state_of("a", 0))
        come_back_empty(forgetful)
        with noting(forgetful) as (new, by_new):
            new.process_many(events)
            refusals = []

            def known_to_old():
                try:
                    return {result.verdict for result in old.process_many(events)}
                except LedgerUnavailable:
                    return None
                except LedgerRefused as refused:
                    refusals.append(str(refused))

            wait_until(lambda: known_to_old() == {Verdict.REDELIVERY}, "the old worker to know what the new one did")
            taken(old, state_of("c", 0))
            assert new.process(state_of("c", 0)).verdict is Verdict.REDELIVERY
    assert (len(by_old), len(by_new)) == (2, number)
    assert len(refusals) == 1
    assert "begun it anew" in refusals[0]
    assert "Nothing was acknowledged" in refusals[0]


def test_a_newer_layout_is_refused(valkey, url):
    """A ledger that a newer Oncebridge wrote is left alone."""
    with opened(url), valkey.client() as client:
        (meta,) = client.keys("*}:meta")
        client.hset(meta, "layout", 99)
    with pytest.raises(LedgerRefused, match="newer"):
        RedisLedger(url).open(None)


def test_an_examination_of_a_sound_server_finds_nothing_wrong(url):
    """Version, eviction, persistence, replication and clock are each looked at."""
    with opened(url) as ledger:
        findings = list(ledger.examine())
    assert [one.subject for one in findings] == ["version", "eviction", "persistence", "replication", "clock"]
    assert {one.level for one in findings} == {Level.GOOD}


@pytest.fixture
def slow_replicas(monkeypatch):
    """Let writes wait for replicas nearly as long as for any answer: on a busy machine they follow late."""
    monkeypatch.setattr("oncebridge.ledgers.redis.calls.WAIT_MS", 55_000)
    monkeypatch.setattr("oncebridge.ledgers.redis.connection.ANSWER_SECONDS", 60)


def test_an_examination_sees_a_replica(tmp_path, slow_replicas):
    """A replica cannot be the ledger; a ledger that waits for its replicas is better than one that does not."""
    with running_valkey(tmp_path / "a") as master:
        following = ("--replicaof", f"127.0.0.1 {master.port}")
        with running_valkey(tmp_path / "b", *following) as replica:
            with pytest.raises(LedgerUnavailable, match="replica"):
                RedisLedger(replica.url).open(None)
            _wait_for_replica(master)
            with opened(f"{master.url}?wait=1") as ledger:
                do(ledger, facts(3, now_ms()))
                assert _replication(ledger).level is Level.GOOD
            with opened(f"{master.url}?name=two") as ledger:
                assert _replication(ledger).weakens


def test_a_write_that_too_few_replicas_have_does_not_count(tmp_path):
    """A write that waits for more replicas than there are never comes through, and says so."""
    with (
        running_valkey(tmp_path / "a") as master,
        running_valkey(tmp_path / "b", "--replicaof", f"127.0.0.1 {master.port}"),
    ):
        _wait_for_replica(master)
        with opened(f"{master.url}?name=two") as ledger:
            lonely = RedisLedger(f"{master.url}?name=two&wait=2")
            with pytest.raises(LedgerUnavailable, match=r"[01] of 2 replicas"):
                lonely.open(None)
            assert verdicts(ledger, facts(3, now_ms())) == {Verdict.FRESH}


def _wait_for_replica(master):
    with master.client() as client:
        wait_until(lambda: client.info("replication")["connected_slaves"] == 1, "the replica to be there")
        wait_until(lambda: client.wait(1, 100) == 1, "the replica to follow")


def _replication(ledger):
    (finding,) = [one for one in ledger.examine() if one.subject == "replication"]
    return finding


# --- outages ---------------------------------------------------------------------------------------------------


def test_a_restart_forgets_nothing_and_is_survived(tmp_path):
    """Killed and started again with its append-only file, the server knows every claim and every outcome."""
    with running_valkey(tmp_path) as server, opened(server.url) as ledger:
        done, open_ones = facts(50, now_ms()), facts(50, now_ms())
        do(ledger, done)
        claims = ledger.claim(open_ones, nonce=secrets.token_bytes(8), lease_us=LEASE_US)
        server.process.kill()
        with pytest.raises(LedgerUnavailable, match=r"out of reach.*security group"):
            verdicts(ledger, done)
        server.process.start()
        assert verdicts(ledger, done) == {Verdict.REDELIVERY}
        assert verdicts(ledger, open_ones) == {Verdict.BUSY}
        ends = [Settlement(Claim(ask, one.token), Outcome.DONE) for ask, one in zip(open_ones, claims, strict=True)]
        assert all(ledger.settle(ends))


@pytest.mark.slow
def test_a_server_killed_under_load_loses_and_doubles_nothing(tmp_path):
    """Three workers go on through three kills of the server: every event once at the receiver, none lost."""
    handled, lock = [], threading.Lock()
    with running_valkey(tmp_path) as server:

        def handle(event):
            with lock:
                handled.append(event.key)

        def work(share):
            with Bridge(server.url, settings=Settings(lease_seconds=10)) as bridge:
                bridge.on("*")(handle)
                for at in range(0, len(share), 5):
                    wait_until(lambda at=at: _all_processed(bridge, share[at : at + 5]), "the batch to come through")

        raws = [state_of(f"user {n}", n) for n in range(1500)]
        threads = [threading.Thread(target=work, args=(raws[n::3],)) for n in range(3)]
        for thread in threads:
            thread.start()
        for share in (1, 2, 3):
            wait_until(lambda share=share: len(handled) >= share * 375, "some to be handled")
            server.process.kill()
            server.process.start()
        for thread in threads:
            thread.join()
    assert len(set(handled)) == 1500
    assert len(handled) == 1500


def _all_processed(bridge, raws):
    try:
        return all(result.acknowledged for result in bridge.process_many(raws))
    except LedgerUnavailable:
        return False


@pytest.mark.slow
def test_a_failover_loses_nothing(tmp_path):
    """When the master dies, sentinels name another, and the ledger goes on there: every event takes effect."""
    handled = set()
    with running_sentinels(tmp_path) as watched, closing(Bridge(f"{watched.url}?wait=1")) as bridge:
        bridge.on("*")(lambda event: handled.add(event.key))
        raws = [state_of(f"user {n}", n) for n in range(200)]
        wait_until(lambda: _all_processed(bridge, raws[:100]), "the replicas to follow")
        first = watched.master()
        first.process.kill()
        wait_until(lambda: _all_processed(bridge, raws[100:]), "another master")
        assert watched.master() is not first
        assert {result.verdict for result in bridge.process_many(raws[100:])} == {Verdict.REDELIVERY}
    assert len(handled) == 200


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("redis://127.0.0.1:1/0", "out of reach"),
        ("rediss://127.0.0.1:1/0", "out of reach"),
        ("redis+sentinel://127.0.0.1:1/main/0", "sentinels know no master"),
        ("redis+cluster://127.0.0.1:1", "out of reach"),
    ],
)
def test_an_address_where_nobody_answers_names_what_to_check(url, says):
    """Nobody there: the address, the network in between, and TLS are named; the secret in the URL is not."""
    url = url.replace("//", "//someone:hunter2secret@")
    with pytest.raises(LedgerUnavailable, match=says) as error:
        RedisLedger(url).open(None)
    assert "hunter2secret" not in str(error.value) + repr(RedisLedger(url))


def test_a_wrong_password_is_refused_and_not_shown(tmp_path):
    """A password that is not accepted must be changed; it is not repeated."""
    with running_valkey(tmp_path) as server:
        with server.client() as client:
            client.config_set("requirepass", "right one")
        for credentials in ("", ":hunter2secret@", "nobody:hunter2secret@"):
            wrong = server.url.replace("//", f"//{credentials}")
            with pytest.raises(LedgerRefused, match="password") as error:
                RedisLedger(wrong).open(None)
            assert "hunter2" not in str(error.value)
        with opened(server.url.replace("//", "//:right%20one@")) as ledger:
            assert verdicts(ledger, facts(1, now_ms())) == {Verdict.FRESH}
        with server.client(password="right one") as client:
            client.config_set("requirepass", "")


def test_the_rights_that_the_docs_name_are_enough(tmp_path):
    """A user with the commands and keys in docs/ledgers.md, and no others, can do all that a ledger does."""
    text = (Path(__file__).parents[2] / "docs" / "ledgers.md").read_text()
    commands = re.findall(r"\+[a-z|]+", text[text.index("**What the user needs** (ACL)") : text.index("On a cluster")])
    assert len(commands) > 15
    with running_valkey(tmp_path) as server, server.client() as client:
        client.execute_command(
            "ACL", "SETUSER", "modest", "on", ">modest", "resetkeys", "~ob:{main*", "-@all", *commands
        )
        with opened(server.url.replace("//", "//modest:modest@")) as ledger:
            do(ledger, facts(200, now_ms() - HOUR_MS))
            do(ledger, [Ask(key=bytes(16), content=bytes(16), handler="named")])
            do(ledger, [Ask(key=bytes([9] * 16), topic="t")], Outcome.RETRY)
            assert ledger.get(bytes(16))
            assert len(list(ledger.scan(Query()))) == 1
            do(ledger, [Ask(key=bytes([8] * 16), topic="t", user=bytes(16))], Outcome.DEAD)
            assert [len(ledger.letter_page(Query()).entries), ledger.letter_groups().total] == [1, 1]
            assert len(ledger.about(bytes(16), seconds=10).entries) == 1
            ledger.migrate()
            ledger.notes.add_counts({"page": {"a": 1}}, keep_us=HOUR_MS * 1000)
            ledger.notes.write_notes("page", {"a": b"1"}, keep_us=HOUR_MS * 1000, newest=1)
            assert ledger.notes.swap_note("page", "a", b"1", None, keep_us=HOUR_MS * 1000)
            assert ledger.notes.read_notes("page") == []
            assert list(ledger.scan(Query(entities=True))) == []
            assert ledger.counts()[Status.DONE] == 201
            assert ledger.purge(older_than_us=0) == 201
            assert {one.level for one in ledger.examine()} == {Level.GOOD}
        with pytest.raises(LedgerRefused, match="may not"):
            RedisLedger(server.url.replace("//", "//modest:modest@") + "?name=other").open(None)


def test_a_user_who_may_not_list_letters_can_still_settle(tmp_path):
    """Without the rights for pages everything ends as it should; later somebody who has them lists the letters."""
    with running_valkey(tmp_path) as server, server.client() as client:
        client.execute_command("ACL", "SETUSER", "old", "on", ">old", "~ob:{main*", "+@all", "-@sortedset")
        asks = [Ask(key=bytes([n] * 16), topic="t", user=bytes(16)) for n in range(4)]
        with opened(server.url.replace("//", "//old:old@")) as ledger:
            do(ledger, asks[:2], Outcome.DEAD)
            do(ledger, asks[2:3], Outcome.RETRY)
            do(ledger, [msgspec.structs.replace(asks[0], redrive=True)], Outcome.DISCARD)
            assert ledger.counts() == {Status.DEAD: 1, Status.RETRY: 1, Status.DISCARD: 1}
        with opened(server.url) as ledger:
            assert [entry.key for entry in ledger.letter_page(Query()).entries] == [asks[1].key]
            assert ledger.letter_groups().complete


def test_a_plain_server_behind_a_tls_address_is_told(valkey):
    """TLS against a server that has none is an error that names TLS."""
    with pytest.raises(LedgerUnavailable, match="that it speaks TLS"):
        RedisLedger(valkey.url.replace("redis:", "rediss:")).open(None)


# --- clusters --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    """Run a cluster of three masters."""
    with running_cluster(tmp_path_factory.mktemp("cluster")) as servers:
        yield servers


def cluster_url(servers):
    """Return the URL of a ledger of its own on a cluster."""
    hosts = ",".join(f"127.0.0.1:{server.port}" for server in servers)
    return f"redis+cluster://{hosts}?name={secrets.token_hex(8)}"


class TestRedisClusterLedger(OnRedis):
    """The contract on three masters: an event and its entity in one slot, a batch over all of them."""

    contenders = 6
    contended = 200

    @pytest.fixture
    def new_ledger(self, cluster):
        """Use keys of their own for each test."""
        url = cluster_url(cluster)
        self.servers = cluster
        return lambda clock: RedisLedger(url, clock)

    def stored_bytes(self):
        """Read every key of every master."""
        stored = b""
        for server in self.servers:
            with server.client() as client:
                stored += b"".join(key + (client.dump(key) or b"") for key in client.keys("*"))
        return stored


def test_a_batch_on_a_cluster_is_one_call_per_shard(cluster):
    """A batch goes to each shard in one call, spread over all masters."""
    asks = facts(200, now_ms())
    with opened(cluster_url(cluster)) as ledger:
        do(ledger, asks)
        calls = []
        for server in cluster:
            with server.client() as client:
                client.config_resetstat()
        assert verdicts(ledger, asks) == {Verdict.REDELIVERY}
        for server in cluster:
            with server.client() as client:
                calls.append(client.info("commandstats")["cmdstat_evalsha"]["calls"])
        assert sum(calls) == 16
        assert min(calls) >= 3


def test_a_cluster_goes_on_when_a_master_comes_back(tmp_path):
    """While a master is down its shards are out of reach and nothing is acknowledged; when it is back, all goes on."""
    with running_cluster(tmp_path) as servers, opened(cluster_url(servers)) as ledger:
        asks = facts(200, now_ms())
        do(ledger, asks[:100])
        servers[1].process.kill()
        with pytest.raises(LedgerUnavailable):
            verdicts(ledger, asks)
        servers[1].process.start()
        wait_until(lambda: _answers(ledger, asks[:100]), "the cluster to be whole again")
        assert verdicts(ledger, asks[:100]) == {Verdict.REDELIVERY}


def _answers(ledger, asks):
    try:
        return bool(verdicts(ledger, asks))
    except LedgerUnavailable:
        return False


def test_a_conflict_of_a_state_is_kept_beside_its_entity(cluster):
    """A letter in the shard of an entity is found, redriven and discarded there, though its key says otherwise."""
    with opened(cluster_url(cluster)) as ledger:
        for number in range(20):
            entity = secrets.token_bytes(16)
            ask = Ask(key=secrets.token_bytes(16), home=entity)
            (answer,) = ledger.claim([ask], nonce=secrets.token_bytes(8), lease_us=LEASE_US)
            letter = Claim(ask, answer.token)
            assert ledger.settle([Settlement(letter, Outcome.DEAD, 0, Letter(raw=b"{}", reason="conflict"))]) == [True]
            (entry,) = ledger.get(ask.key)
            again = replace(ask, home=entry.home, redrive=True, entity=entity if number % 2 else None)
            (answer,) = ledger.claim([again], nonce=secrets.token_bytes(8), lease_us=LEASE_US)
            assert answer.token
            assert ledger.settle([Settlement(Claim(again, answer.token), Outcome.DISCARD)]) == [True]
            assert verdicts(ledger, [ask]) == {Verdict.REPUBLISH}


# --- URLs ------------------------------------------------------------------------------------------------------


def test_urls_say_where_and_how():
    """Hosts, ports, credentials, databases and options are read from the URL."""
    one = read_url("redis://me:p%40ss@cache.example:6380/3?name=calls&wait=2")
    assert (one.hosts, one.username, one.password, one.db) == ((("cache.example", 6380),), "me", "p@ss", 3)
    assert (one.name, one.wait, one.tls) == ("calls", 2, False)
    assert read_url("rediss://[::1]").hosts == (("::1", 6379),)
    assert read_url("rediss://host").tls
    watched = read_url("redis+sentinel://:pw@a,b:26380/mymaster/2")
    assert (watched.hosts, watched.master, watched.db) == ((("a", 26379), ("b", 26380)), "mymaster", 2)
    assert read_url("rediss+cluster://a:7000,b:7001").kind == "cluster"


@pytest.mark.parametrize(
    "url",
    [
        "redis://a,b/0",
        "redis://host:port/0",
        "redis://host:99999/0",
        "redis://[::1/0",
        "redis://host/zero",
        "redis+cluster://host/1",
        "redis+sentinel://host",
        "redis://host?name=",
        "redis://host?name=a{b}",
        "redis://host?wait=many",
        "redis://host?allow_eviction=perhaps",
        "redis://host?nmae=x",
    ],
)
def test_a_wrong_url_is_refused_in_words(url):
    """What cannot be right is refused before anything connects, without showing the password."""
    secret = url.replace("//", "//user:hunter2secret@") if "[" not in url else url
    with pytest.raises(ConfigurationError, match=r"ledger: ") as error:
        RedisLedger(secret)
    assert "hunter2" not in str(error.value)
