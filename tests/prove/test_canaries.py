"""The short form of the canaries: library, HTTP, Lambda and console show none, and the search would find one."""

import logging

import pytest
from prove.canaries import PERSONAL, SECRETS, Canary, deliveries, found_in, make_canaries, stored, written_as
from prove.outcome import Options
from prove.parts import canaries as part
from prove.parts.canaries import Place, canaries, judged
from prove.places import place_of

from oncebridge import Bridge
from prove import private

SEED = 20
#: One of each kind, and one alone beside the secrets.
EACH, FEW = len(SECRETS) + len(PERSONAL), len(SECRETS) + 1


@pytest.fixture
def look(tmp_path):
    """Return what looks for canaries in all that one process writes."""

    def find(number=FEW):
        found = make_canaries(SEED, number)
        with part._receiver() as (port, received):
            place = Place(tmp_path, f"sqlite:///{tmp_path}/once.db", found, port)
            surfaces = part._in_process(place)
        surfaces[f"{part.ASKED}requests"] = b"\n".join(received)
        return judged(surfaces | stored("sqlite", place.url), found)

    return find


def test_no_canary_is_seen_but_where_it_is_asked_for(look):
    """Each is found where it may be, so that the search can find them, and nowhere else."""
    outcome = look(EACH)
    assert outcome.broken == {}, "\n".join(outcome.history)
    assert outcome.held


def test_a_part_without_time_has_not_held(tmp_path):
    """It has to see every path."""
    assert not canaries(Options("sqlite", SEED, 20, 0.0, tmp_path)).held


def test_a_log_line_with_a_payload_is_caught(look, monkeypatch):
    """Whoever logs what they process shows phone numbers."""
    process = Bridge.process_many

    def talk(self, raws):
        logging.getLogger("oncebridge").info("got %r", raws)
        return process(self, raws)

    monkeypatch.setattr(Bridge, "process_many", talk)
    assert "phone in the library's log" in look().broken


def test_a_canary_that_went_astray_is_missed():
    """Of all that went in, each must be where it was asked for, or the search there proves nothing."""
    phone, name = Canary("phone", "+441"), Canary("name", "Wilhelmina")
    surfaces = {"asked for: dead show": b"+441", "ledger: oncebridge_letter.raw": b"Wilhelmina"}
    assert judged(surfaces, [phone, name]).broken == {
        "name not in asked for: dead show, where it must be": 1,
        "phone not in dead letters, where it must be": 1,
    }
    assert len(judged({}, [phone, name]).broken) == 2


def test_a_password_of_a_ledger_that_is_out_of_reach_is_not_shown(tmp_path):
    """Neither where no server listens, nor where one refuses it, nor once a server is gone: it says so without."""
    with place_of("redis", tmp_path) as url:
        canaries = make_canaries(SEED, FEW)
        surfaces = part._out_of_reach(Place(tmp_path, url, canaries, 1))
    assert {"Redis away: traceback", "Postgres away: traceback", "redis refuses: traceback"} < set(surfaces)
    assert found_in(surfaces, canaries) == {}


def test_what_redis_keeps_is_read_to_the_last_key(tmp_path):
    """A payload is in dead letters, where it may be, and its topic where everybody may read it."""
    (phone,) = [one for one in make_canaries(SEED, FEW) if not one.is_secret]
    with place_of("redis", tmp_path) as url:
        with Bridge(url) as bridge:
            bridge.register("*", private._quoting)
            bridge.process_many(deliveries([phone]))
        kept = stored("redis", url)
    assert set(found_in(kept, [phone])) == {"ledger: letter.raw"}
    assert b"v2.detail.events.conversation" in kept["ledger: open"]


@pytest.mark.parametrize("kind", [*SECRETS, "phone", "transcript", "attribute"])
def test_a_canary_is_found_however_it_is_written(kind):
    """As it is, escaped, in an address, in a page, in hexadecimal digits, or in base64 within a longer text."""
    (canary,) = [one for one in make_canaries(SEED, 20) if one.kind == kind][:1]
    for way in written_as(canary.value):
        assert found_in({"log": b"before " + way + b" after"}, [canary]) == {"log": [canary]}
    assert found_in({"log": b"nothing"}, [canary]) == {}


def test_a_secret_is_for_nobody():
    """Not even where personal data may be."""
    secret, phone = Canary("API key", "canary-1"), Canary("phone", "+441")
    surfaces = {"asked for: dead show": b"+441 canary-1", "ledger: oncebridge_letter.raw": b"+441"}
    assert list(judged(surfaces, [secret, phone]).broken) == ["API key in asked for: dead show"]
