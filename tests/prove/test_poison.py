"""The short form of the poisoning: what is planted changes nothing but what is documented, and the judge sees more."""

import pytest
from prove.outcome import Options
from prove.parts import poison as part
from prove.parts.poison import Plan, judged, tried
from prove.places import place_of, prepare
from prove.poison import LIMITS, Attacked, Planted, Real, fingerprint, story
from prove.round import in_child

from oncebridge import identity

SEED = 20
#: A story in which a sender who is let in does all that the documentation says.
EVERY_LIMIT = 90
#: One with times, versions and senders that must not be believed.
FORGED_AHEAD = 5
ENDS = {"processed", *LIMITS.values()}


@pytest.fixture
def plan(tmp_path):
    """Return a way to plant on a ledger."""
    with place_of("sqlite", tmp_path) as url:
        in_child(lambda: prepare(url))
        yield lambda way: Plan(way, url, tmp_path, SEED, {})


def told(number):
    """Tell the story of this number."""
    return story(SEED, number, f"s{number}")


@pytest.mark.parametrize("way", part.WAYS)
def test_what_is_planted_changes_nothing(plan, way):
    """Every real event takes effect once, except where the documentation says what a sender who is let in can do."""
    assert {one.settled for one in told(EVERY_LIMIT)} == ENDS
    assert tried(plan(way), told(EVERY_LIMIT)) == ([], 0)


def test_a_part_without_time_has_not_held(tmp_path, monkeypatch):
    """It says that it ended early."""
    monkeypatch.setattr(part, "_queues", lambda _: place_of("memory://", tmp_path))
    outcome = part.poison(Options("sqlite", SEED, 100, 0.0, tmp_path))
    assert not outcome.held
    assert outcome.notes == ["ended early: 0 of 100 in the time that it had"]


# --- a program that believes too much is caught --------------------------------------------------------


def test_an_identity_that_ignores_the_org_is_caught(plan, monkeypatch):
    """A stranger's copy would use up the identity of a real event."""
    begun = identity._begun
    monkeypatch.setattr(identity, "_begun", lambda secret, purpose, _: begun(secret, purpose, ""))
    identity._entity_digest.cache_clear()
    wrong, _ = tried(plan("process"), told(FORGED_AHEAD))
    identity._entity_digest.cache_clear()
    assert "a real event took effect 0 times" in {one.what for one in wrong}


def test_a_program_that_believes_every_time_is_caught(plan, monkeypatch):
    """A stamp of next year would block its entity until then."""
    monkeypatch.setattr("oncebridge.claim.is_believable", lambda *_: True)
    wrong, _ = tried(plan("process"), told(FORGED_AHEAD))
    assert {one.what for one in wrong} == {"a real event took effect 0 times"}


def test_a_program_that_believes_every_version_is_caught(plan, monkeypatch):
    """A version of a million would make all real ones stale."""
    monkeypatch.setattr("oncebridge.claim.VERSIONS_BEHIND_MAX", 2**80)
    wrong, _ = tried(plan("process_many"), told(FORGED_AHEAD))
    assert {one.what for one in wrong} == {"a real event took effect 0 times"}


# --- the judge -----------------------------------------------------------------------------------------

REAL, COPY = Real("fact", {"id": "1"}), Planted("a copy beforehand", b'{"id":"2"}')
MARK, INSTEAD = fingerprint(REAL.raw), fingerprint(COPY.raw)


@pytest.mark.parametrize(
    ("settled", "effects", "letters", "is_right"),
    [
        ("processed", {MARK: 1}, set(), True),
        ("processed", {MARK: 1, INSTEAD: 1}, set(), True),
        ("processed", {}, set(), False),
        ("processed", {MARK: 2}, set(), False),
        ("processed", {MARK: 1}, {MARK}, False),
        ("duplicate", {INSTEAD: 1}, set(), True),
        ("duplicate", {INSTEAD: 1, MARK: 1}, set(), False),
        ("duplicate", {}, set(), False),
        ("conflict", {INSTEAD: 1}, {MARK}, True),
        ("conflict", {INSTEAD: 1}, set(), False),
        ("stale", {INSTEAD: 1}, {MARK}, False),
    ],
)
def test_the_judge_knows_every_end(settled, effects, letters, is_right):
    """A real event that is lost, doubled, or settled in another way than documented is named."""
    said = judged(Attacked(REAL, (COPY,), settled), effects, letters)
    assert (said is None) == is_right, said


def test_what_is_planted_is_not_the_real_event(monkeypatch):
    """A seed repeats the stories."""
    monkeypatch.setattr("prove.poison._now_ms", lambda: 1_800_000_000_000)
    assert [one.planted for one in told(EVERY_LIMIT)] == [one.planted for one in told(EVERY_LIMIT)]
    for one in told(EVERY_LIMIT):
        assert fingerprint(one.real.raw) not in {fingerprint(planted.raw) for planted in one.planted}


def test_a_fingerprint_tells_what_readers_might_not():
    """Spaces and order do not count; how a number is written and a name that comes twice do."""
    assert fingerprint(b'{"a":1,"b":2}') == fingerprint(b'{ "b": 2, "a": 1 }')
    marks = [b'{"a":1}', b'{"a":1.0}', b'{"a":"1"}', b'{"a":true}', b'{"a":2,"a":1}', b'{"a":1', b'["number","1"]']
    assert len({fingerprint(raw) for raw in marks}) == len(marks)
