"""Results that are kept: none takes another's place that it should not, also where several parts save at once."""

import re
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
from prove.evidence import PAGE, page
from prove.guarantees import CONTROLLED_BY_TESTS, GUARANTEES
from prove.parts import PARTS
from prove.parts.controls import CONTROLS
from prove.results import ROOT
from prove.sinks import SINKS, at_sink

from prove import results

COMMIT_NOW = results._commit


@pytest.fixture(autouse=True)
def own_file(tmp_path, monkeypatch):
    """Save elsewhere than in the repository."""
    monkeypatch.setattr(results, "RESULTS", tmp_path / "results.json")
    monkeypatch.setattr(results, "_commit", lambda: "abc")


def row(part="kill", ledger="redis", tried=10, *, held=True):
    """Return a result."""
    return {"part": part, "ledger": ledger, "tried": tried, "held": held}


def test_parts_that_save_at_the_same_time_keep_every_result():
    """Each result is added to what the others have saved meanwhile."""
    rows = [row(f"part {number}", ledger) for number in range(20) for ledger in ("redis", "sqlite")]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(results.save, rows))
    assert {(one["part"], one["ledger"]) for one in results.saved()} == {(one["part"], one["ledger"]) for one in rows}


def test_what_was_attacked_is_the_commit_whatever_the_harness_has_written(tmp_path, monkeypatch):
    """Results and their page are no change of the program; anything else that is known to git is."""
    monkeypatch.setattr(results, "ROOT", tmp_path)
    assert COMMIT_NOW() == "unknown"
    known = [tmp_path / name for name in ("prove/results.json", "docs/evidence.html", "program.py")]
    for path in known:
        path.parent.mkdir(exist_ok=True)
        path.write_text("as it was")
    person = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    for command in (("init", "-q"), ("add", "."), (*person, "commit", "-q", "-m", "first")):
        subprocess.run(("git", "-C", tmp_path, *command), check=True)
    commit = COMMIT_NOW()
    for path, name in zip(known, (commit, commit, f"{commit}-dirty"), strict=True):
        path.write_text("written since")
        assert COMMIT_NOW() == name


def test_a_smaller_result_does_not_take_the_place_of_a_larger_one():
    """What was tried in a whole proof is not forgotten for a little of it."""
    results.save(row(tried=1000))
    results.save(row(tried=10))
    assert [one["tried"] for one in results.saved()] == [1000]
    results.save(row(tried=1000))
    assert results.saved()[0]["commit"] == "abc"


def test_a_failure_is_never_hidden_behind_an_earlier_success():
    """A result that broke a promise takes the place of any other, and the next one takes its place."""
    results.save(row(tried=1000))
    results.save(row(tried=1, held=False))
    assert [one["held"] for one in results.saved()] == [False]
    results.save(row(tried=10))
    assert [one["tried"] for one in results.saved()] == [10]


def test_each_row_that_the_guarantees_name_is_in_the_evidence():
    """A link from a guarantee leads to what shows it, or to the word that nothing does yet."""
    named = re.findall(r"evidence\.html#([\w-]+)", (PAGE.parent / "guarantees.md").read_text(encoding="utf-8"))
    there = set(re.findall(r' id="([\w-]+)"', PAGE.read_text(encoding="utf-8")))
    assert len(set(named)) > 15
    assert set(named) <= there
    assert {"sinks", "ledgers"} <= there
    assert {f"part-{part}" for _, _, parts in GUARANTEES for part in parts} <= there


def test_the_evidence_is_not_too_large_for_the_repository():
    """One file, with the checker in it, that every tool for repositories takes."""
    assert PAGE.stat().st_size < 500_000


ROW = {
    "part": "kill", "ledger": "redis", "seed": 1, "tried": 10, "unit": "kills", "lost": 0, "doubled": 0, "held": True,
    "doubled_plain": 0, "seconds": 1.0, "notes": [], "history": [], "commit": "abc", "date": "2026-01-01",
    "machine": "this", "figures": {}, "broken": {},
}  # fmt: skip


def shown(**given):
    """Return the page of one result of kills."""
    return page([ROW | given])


def test_a_small_rate_is_written_as_a_number_that_people_read():
    """However much was tried, the bound has no exponent."""
    assert ">0.3<" in shown(tried=10)
    assert ">0.0000021<" in shown(tried=1_400_000)


def test_the_evidence_says_what_is_missing():
    """A result of less than the whole amount says of how much, and a ledger without a result is named."""
    assert "10 of 10,000" in shown()
    assert "10,000 of" not in shown(tried=10_000)
    assert "No result is kept yet on sqlite, postgres, dynamodb" in shown()


def test_the_evidence_shows_each_sink_by_itself():
    """Zero stands with its bound, what was broken with its number, and where there is no such sink that is said."""
    figures = {"events": 300, "in a transaction": 150}
    text = shown(ledger="postgres", figures=figures, broken={"not the newest state": 2}, doubled_plain=7, held=False)
    assert "0 doubled, of 150: a rate below 0.02" in text
    assert "0 doubled, of 300: a rate below 0.01" in text
    assert "2 out of order, of 300" in text
    assert "7 doubled, which is allowed, of 300" in text
    assert "has no transaction for it" in text


def test_the_ways_of_a_part_are_added_up():
    """Where a part has figures for each of its ways, a sink got the events of all of them."""
    figures = {way: {"events": 20, "in a transaction": 10} for way in ("process", "serve")}
    row = {"part": "ways-in", "ledger": "postgres://server/db", "figures": figures, "broken": {}, "doubled_plain": 0}
    assert [at_sink(sink, "postgres", [row])[0] for sink in SINKS] == [20, 40, 40, 40]


def test_a_control_stands_beside_the_figure_of_its_part():
    """What the judge found in wrong programs stands where its zero does, not only at the end."""
    found = {"caught": "20 of 20", "lost": 7}
    controls = {"part": "controls", "ledger": "redis", "figures": {"SET NX, then process (redis)": found}}
    assert "SET NX, then process; " in shown()
    beside = page([{**ROW, **controls}, ROW])
    kills = beside[beside.index('id="part-kill"') :]
    assert "SET NX, then process (redis): <strong>caught 20 of 20, lost 7" in kills[: kills.index("</article>")]


def test_what_stands_beside_a_figure_is_there():
    """Each part has a wrong program that it finds, in the controls or in a test; only one relies on those of others."""
    beside = {control.beside for control in CONTROLS}
    attacked = {name for name in PARTS if name != "controls"}
    assert attacked - beside - CONTROLLED_BY_TESTS.keys() == {"restarts"}
    assert beside | CONTROLLED_BY_TESTS.keys() <= PARTS.keys()
    assert all((ROOT / where).is_file() for _, where in CONTROLLED_BY_TESTS.values())
