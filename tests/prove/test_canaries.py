"""The short form of the canaries: library, HTTP, Lambda and console show none, and the search would find one."""

import logging

import pytest
from prove.canaries import SECRETS, Canary, found_in, make_canaries, stored, written_as
from prove.outcome import Options
from prove.parts import canaries as part
from prove.parts.canaries import Place, canaries, judged

from oncebridge import Bridge

SEED = 20


@pytest.fixture
def look(tmp_path):
    """Return what looks for canaries in all that one process writes."""

    def find():
        found = make_canaries(SEED, 20)
        with part._receiver() as (port, received):
            place = Place(tmp_path, f"sqlite:///{tmp_path}/once.db", found, port)
            surfaces = part._in_process(place)
        surfaces[f"{part.ASKED}requests"] = b"\n".join(received)
        return judged(surfaces | stored("sqlite", place.url), found)

    return find


def test_no_canary_is_seen_but_where_it_is_asked_for(look):
    """Each is found where it may be, so that the search can find them, and nowhere else."""
    outcome = look()
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


def test_a_program_that_keeps_nothing_is_no_proof(look, monkeypatch):
    """Where nothing was processed nothing can be seen: the letters must hold every canary."""
    monkeypatch.setattr(part, "deliveries", lambda _: [b"{}"])
    assert "canaries that never got where they may be" in look().broken


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
