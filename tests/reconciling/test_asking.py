"""Genesys is asked as it wants to be: signed in, page by page, with patience; and a run that is cut off goes on."""

import json
import random
import threading

import pytest

from genesys_day import BEGAN_MS, HOUR_MS, MINUTE_MS, conversations, stream, truth
from oncebridge.errors import ConfigurationError
from oncebridge.genesys.api import GenesysAPI, GenesysUnavailable, Rejected, Stopped
from oncebridge.genesys.details import HITS_MAX, by_query, watermark_ms
from oncebridge.settings.genesys import GenesysSettings
from servers.genesys import SECRET

TALKS = conversations(240, every_ms=MINUTE_MS // 2)
NEVER, NO_END = {TALKS[17].id, TALKS[100].id}, {TALKS[200].id}
RECENT_MS = BEGAN_MS + 26 * HOUR_MS
OLD_MS = BEGAN_MS + 90 * HOUR_MS


def left_out(talk, family, _at_ms):
    """Leave out two conversations, and the end of a third."""
    return talk.id in NEVER or (talk.id in NO_END and family == "customer.end")


MISSING = truth(TALKS, left_out)


@pytest.fixture
def asked(installation, genesys):
    """Return an installation that missed something, at a time when that is recent."""
    installation.get(stream(TALKS, left_out))
    genesys.talks = list(TALKS)
    move_to(installation, RECENT_MS)
    return installation


def move_to(installation, ms):
    """Move the clock there."""
    installation.clock.advance(ms / 1000 - installation.clock.now_us() / 1_000_000)


def assert_found(run, gaps):
    """Expect every gap, and none twice."""
    assert {gap.conversation: sorted(gap.missing) for gap in gaps} == MISSING
    assert len(gaps) == len(MISSING)
    assert (run.counts.ended, run.counts.missing, run.counts.partial) == (240, 2, 1)


@pytest.mark.parametrize("interval", ["start", "end", "overlap", "days", "days and overlap"])
@pytest.mark.parametrize("at_ms", [RECENT_MS, OLD_MS], ids=["query", "job"])
def test_gaps_are_found_by_query_and_by_job(asked, genesys, at_ms, interval):
    """What is recent is asked for by query, what is old by job, whatever conversations an interval is about."""
    genesys.interval = interval
    move_to(asked, at_ms)
    assert_found(*asked.ask(genesys))
    # One job looks for those that began long before.
    assert (genesys.asked["/query"] > 0, genesys.asked["/jobs"] > 1) == (at_ms == RECENT_MS, at_ms == OLD_MS)
    assert genesys.asked["/jobs/availability"] == 1


@pytest.mark.parametrize("at_ms", [RECENT_MS + 2 * HOUR_MS, OLD_MS + 20 * HOUR_MS], ids=["query", "job"])
def test_what_is_read_twice_counts_once(asked, genesys, at_ms):
    """A conversation counts once, though Genesys answers for whole days where parts of them were asked for."""
    genesys.interval = "days"
    earlier = conversations(30, every_ms=20 * MINUTE_MS, began_ms=BEGAN_MS - 12 * HOUR_MS, seed=3)
    genesys.talks = [*earlier, *TALKS]
    asked.get(stream(earlier))
    move_to(asked, at_ms)
    window = asked.window(from_ms=BEGAN_MS - 30 * HOUR_MS, until_ms=BEGAN_MS + 20 * HOUR_MS)
    run, gaps = asked.ask(genesys, window=window)
    assert {gap.conversation for gap in gaps} == set(MISSING)
    assert run.counts.ended + run.counts.before == 270
    assert len(gaps) == len(MISSING)


@pytest.mark.parametrize("at_ms", [RECENT_MS, OLD_MS], ids=["query", "job"])
def test_conversations_that_lasted_for_days_are_found(asked, genesys, at_ms):
    """What began days before and ended in the time that is asked about is judged, whatever Genesys' intervals mean."""
    genesys.interval = "days and overlap"
    lasting = conversations(3, began_ms=BEGAN_MS - 9 * 24 * HOUR_MS, seed=8)
    for talk in lasting:
        talk.sessions[0].ended_ms = BEGAN_MS + 2 * HOUR_MS
    genesys.talks += lasting
    asked.get(stream(lasting, lambda talk, family, _: talk is lasting[1] and family == "customer.end"))
    move_to(asked, at_ms)
    run, gaps = asked.ask(genesys)
    assert run.counts.ended == 243
    assert {gap.conversation for gap in gaps} == {*MISSING, lasting[1].id}


def test_pages_without_a_total_are_read_to_their_end(asked, genesys):
    """Where Genesys neither says how many there are nor fills its pages, it is asked until there are no more."""
    genesys.hits_off, genesys.page_max = None, 7
    assert_found(*asked.ask(genesys))


@pytest.mark.parametrize("hits_off", [0, -3, 5])
def test_pages_that_move_are_read_until_nothing_is_new(asked, genesys, hits_off):
    """Conversations that come twice count once, and those that were passed over are found on another reading."""
    genesys.moves, genesys.hits_off = True, hits_off
    assert_found(*asked.ask(genesys))


def test_a_run_is_named_by_the_millisecond(asked, genesys):
    """Cron begins several runs in a second: none takes another's place in the ledger."""
    move_to(asked, RECENT_MS + 123)
    assert asked.ask(genesys)[0].made == "2026-03-03T10:00:00.123Z"


class Shuffled:
    """A Genesys Cloud whose pages hold any of its conversations; one that grows gets more with each page."""

    def __init__(self, *, grows=0):
        """Hold a few pages of conversations."""
        (talk,) = conversations(1)
        self.details = [{**talk.details, "conversationId": f"c-{n}", "participants": []} for n in range(350)]
        self.grows = grows
        self.dice = random.Random(4)

    def post(self, _path, question, read):
        """Answer a page."""
        self.details += [{**self.details[0], "conversationId": f"{len(self.details)}-{n}"} for n in range(self.grows)]
        self.dice.shuffle(self.details)
        start = (question["paging"]["pageNumber"] - 1) * 100
        page = self.details[start : start + 100]
        return read(json.dumps({"totalHits": len(self.details), "conversations": page}).encode())


def test_pages_in_any_order_are_read_until_all_are_found():
    """One reading that brings nothing new is no proof where pages move: the last conversations are found, too."""
    found = {one.id for page in by_query(Shuffled(), BEGAN_MS, BEGAN_MS + HOUR_MS) for one in page}
    assert len(found) == 350


def test_pages_that_never_settle_end_the_run():
    """Where each reading brings what no other had, the answer cannot be complete, and the run is to be made again."""
    with pytest.raises(GenesysUnavailable, match="2026-03-02T08:00:00Z"):
        for _ in by_query(Shuffled(grows=3), BEGAN_MS, BEGAN_MS + HOUR_MS):
            pass


def test_the_watermark_is_the_servers(asked, genesys):
    """What ended behind the watermark is provisional, though the ledger has it."""
    genesys.watermark_ms = BEGAN_MS + HOUR_MS
    run, gaps = asked.ask(genesys)
    late = sum(talk.ended_ms >= genesys.watermark_ms for talk in TALKS)
    assert (run.watermark, run.counts.provisional) == ("2026-03-02T09:00:00Z", late)
    assert {gap.conversation for gap in gaps} == {
        one for one in MISSING if next(talk for talk in TALKS if talk.id == one).ended_ms < genesys.watermark_ms
    }


@pytest.mark.parametrize("fault", [500, 502, 408, "pause", "truncated", "cut", "slow"])
@pytest.mark.parametrize("at_ms", [RECENT_MS, OLD_MS], ids=["query", "job"])
def test_a_call_that_fails_is_made_again(asked, genesys, fault, at_ms):
    """Failures, pauses, answers that are cut off or slow cost time and no conversation."""
    move_to(asked, at_ms)
    genesys.faults = dict.fromkeys([1, 2, 4, 5, 7, 8], fault)
    assert_found(*asked.ask(genesys))
    assert not genesys.faults


def test_a_pause_is_kept(asked, genesys):
    """Genesys' own wish how long to wait is kept, and said."""
    genesys.faults = {2: "pause"}
    before_us = asked.clock.now_us()
    asked.ask(genesys)
    assert asked.clock.now_us() - before_us >= 1_000_000
    assert any("pause" in line for line in asked.said)


def test_a_token_is_renewed_in_the_middle(asked, genesys):
    """A token is used for all calls while it is valid, and renewed when it is refused."""
    asked.ask(genesys)
    assert genesys.signed_in == 1
    genesys.calls_per_token = 7
    genesys.tokens.clear()
    assert_found(*asked.ask(genesys, anew=True))
    assert genesys.signed_in > 3


def test_a_refusal_in_the_middle_passes(asked, genesys):
    """Once a token was accepted, the client is the right one: tokens that are refused in a row are tried again."""
    genesys.faults = dict.fromkeys([5, 6, 7, 8, 30, 31], 401)
    assert_found(*asked.ask(genesys))
    assert not genesys.faults


def test_a_client_that_is_refused_is_said_to_be(asked, genesys):
    """Wrong credentials are an error that says what to change, at once, and shows no secret."""
    with pytest.raises(ConfigurationError, match="client_secret") as refused:
        asked.ask(genesys, secret="wrong-secret-value")
    assert "wrong-secret-value" not in str(refused.value)
    genesys.calls_per_token = 0
    with pytest.raises(ConfigurationError, match="token"):
        asked.ask(genesys)


def test_a_missing_permission_is_named(asked, genesys):
    """A client without the permission is told which one it needs."""
    genesys.faults = {1: 403}
    with pytest.raises(ConfigurationError, match="analytics:conversationDetail:view"):
        asked.ask(genesys)


def test_genesys_that_stays_away_ends_the_run(asked, genesys):
    """A run whose calls fail and fail ends in an error that says to run it again."""
    genesys.faults = dict.fromkeys(range(5, 100), 503)
    with pytest.raises(GenesysUnavailable, match="503"):
        asked.ask(genesys)


def test_a_host_that_was_never_reached_may_be_a_wrong_one(installation):
    """Where not even the sign-in was ever reached, the settings that say where it is are named."""
    nobody = {"api_url": "http://127.0.0.1:1", "login_url": "http://127.0.0.1:1"}
    settings = GenesysSettings(client_id="c", client_secret=f"file:{installation.folder}/it", **nobody)
    (installation.folder / "it").write_text("a-secret-of-some-length")
    api = GenesysAPI(settings, installation.clock)
    with pytest.raises(GenesysUnavailable, match=r"127\.0\.0\.1:1.*region"):
        watermark_ms(api)
    api.close()


def test_jobs_that_end_without_results_are_begun_anew(asked, genesys):
    """A job that failed, or whose results expired while they were read, is begun anew; too many end the run."""
    move_to(asked, OLD_MS)
    genesys.jobs_that_fail, genesys.pages_before_expiry = 2, 0
    with pytest.raises(GenesysUnavailable, match="jobs"):
        asked.ask(genesys)
    genesys.jobs_that_fail = len(genesys.jobs) + 1
    genesys.pages_before_expiry = 1
    assert_found(*asked.ask(genesys, anew=True))


def test_a_job_that_is_not_taken_must_be_changed(asked, genesys):
    """A job that Genesys does not even begin would not be begun tomorrow either: that is no failure that passes."""
    move_to(asked, OLD_MS)
    genesys.faults = {2: 400}
    with pytest.raises(Rejected, match="/jobs"):
        asked.ask(genesys)


@pytest.mark.parametrize("note_bytes", [200_000, 400], ids=["whole", "in pieces"])
def test_a_run_that_was_cut_off_goes_on(asked, genesys, monkeypatch, note_bytes):
    """A run that is stopped in the middle goes on where it was, with the same watermark, and finds the same.

    However much its slices brought: what is too much for one note is kept in several.
    """
    monkeypatch.setattr("oncebridge.reconciling.runs.NOTE_BYTES_MAX", note_bytes)
    stopping = threading.Event()
    total = count_calls(asked, genesys)
    genesys.before = lambda number: stopping.set() if number == genesys_calls + total // 2 else None
    genesys_calls = genesys.calls
    with pytest.raises(Stopped):
        asked.ask(genesys, stopping=stopping, anew=True)
    before, genesys.before = genesys.calls, lambda number: None
    genesys.watermark_ms += HOUR_MS
    asked.clock.advance(600)
    run, gaps = asked.ask(genesys)
    assert_found(run, gaps)
    assert run.watermark == "2026-03-03T08:00:00Z"
    assert 0 < genesys.calls - before < total * 0.75
    assert genesys.asked["/jobs/availability"] == 2


def count_calls(asked, genesys):
    """Run once, and return how many calls that took."""
    before = genesys.calls
    asked.ask(genesys)
    return genesys.calls - before


def test_a_question_in_other_words_begins_anew(asked, genesys):
    """A run that was cut off goes on only for the same question."""
    genesys.faults = dict.fromkeys(range(9, 100), 503)
    with pytest.raises(GenesysUnavailable):
        asked.ask(genesys)
    genesys.faults = {}
    run, gaps = asked.ask(genesys, expect=["customer.end"])
    assert {tuple(gap.missing) for gap in gaps} == {("customer.end",)}
    assert run.families == ["customer.end"]


def test_one_conversation_can_be_asked_about(asked, genesys):
    """Of one conversation, its gap alone is found."""
    (one,) = NO_END
    run, gaps = asked.ask(genesys, conversation=one)
    assert ([gap.conversation for gap in gaps], run.counts.ended) == ([one], 1)


def test_a_full_hour_is_split(asked, genesys, monkeypatch):
    """An interval with more hits than one likes to page through is asked for in parts."""
    assert HITS_MAX >= 1000
    monkeypatch.setattr("oncebridge.genesys.details.HITS_MAX", 20)
    assert_found(*asked.ask(genesys))


def test_no_secret_is_in_what_is_kept(asked, genesys):
    """Neither the client's secret nor a token is in notes, words or representations."""
    api = asked.api(genesys)
    run, gaps = asked.ask(genesys)
    kept = repr((vars(asked.bridge.ledger.notes), asked.said, run, gaps, api, api._sign_in, asked.bridge.settings))
    assert SECRET not in kept
    assert not any(token in kept for token in genesys.tokens)
