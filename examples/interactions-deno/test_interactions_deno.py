"""Interaction updates in Deno: what two tiers by envelope lose and double, and claims over HTTP do not."""

import itertools
import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import deno
import pytest

from payloads import TIME_MS, in_envelope, iso

PATIENCE = 60  # seconds, for what happens at once
FOLDER = Path(__file__).parent
README = FOLDER / "README.md"
DENO = deno.find_deno_bin()
NUMBERS = itertools.count(1)
VARIABLES = "PORT,BRIDGE_URL,BRIDGE_KEY,LEASE_SECONDS,BOARD_URL"


def delivered(interaction):
    """Read the deliveries of the README, as those of an interaction that no other test knows."""
    lines = (FOLDER / "updates.jsonl").read_text().replace("call-31", interaction).splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture
def update():
    """Return what makes updates of an interaction that no other test knows."""
    interaction = f"call-{next(NUMBERS)}"

    def make(status="connected", *, moment=TIME_MS, published=TIME_MS, **changes):
        inner = {"interactionId": interaction, "status": status, "timestamp": moment}
        usual = {"detail_type": "interaction:update", "source": "contact.centre", "time": iso(published, digits=0)}
        return in_envelope(inner, **{**usual, **changes})

    return make


@pytest.fixture
def start(run_program, database, service, tmp_path):
    """Return what starts one of the two programs, each with no more permissions than it needs."""

    def naive(**environment):
        files = [f"--allow-read={tmp_path}", f"--allow-write={tmp_path}"]
        allowed = ["--unstable-kv", *files, "--allow-net=127.0.0.1", "--allow-env=PORT,KV,BOARD_URL"]
        memory = {"KV": str(tmp_path / "kv"), **environment}
        return run_program([DENO, "run", *allowed, FOLDER / "naive.ts"], BOARD_URL=database.url, **memory)

    def main(**environment):
        allowed = ["--allow-net=127.0.0.1", f"--allow-env={VARIABLES}"]
        where = {"BRIDGE_URL": service.url, "BRIDGE_KEY": service.key, **environment}
        return run_program([DENO, "run", *allowed, FOLDER / "main.ts"], BOARD_URL=database.url, **where)

    return {"naive": naive, "main": main}


# --- each of these happens to both of them -----------------------------------------------------------------------


def table():
    """Read the table of deliveries in the README: what each of the two makes of them."""
    rows = [line.strip("| ").split(" | ") for line in README.read_text().splitlines() if line.startswith("| ")]
    return [[cell.strip("*") for cell in row[1:]] for row in rows[2:]]


@pytest.mark.parametrize(
    ("program", "column", "updates"),
    [
        ("naive", 0, ["connected", "held", "held", "alerting", "disconnected"]),
        ("main", 1, ["connected", "held", "connected", "disconnected"]),
    ],
)
def test_the_table_holds(program, column, updates, start, database):
    """Each delivery of the table in the README gets the answer that stands there, and the board shows what it shows."""
    deliveries = delivered(f"interaction of {program}")
    assert start[program]().deliver_until_taken(*deliveries) == [row[column] for row in table()]
    assert database.updates == updates


@pytest.mark.parametrize(("program", "meanwhile", "updates"), [("naive", 200, []), ("main", 503, ["connected"])])
def test_the_worker_dies(program, meanwhile, updates, *, start, update, database):
    """It dies over its update: who remembered first takes the next delivery for a duplicate of what never happened."""
    dying, other = start[program](LEASE_SECONDS="5"), start[program]()
    with ThreadPoolExecutor() as threads, database.holding() as work:
        threads.submit(dying.deliver, update())
        assert work.arrived.wait(PATIENCE)
        answer = other.deliver(update())
        dying.process.kill()
        work.lost = True
    other.deliver_until_taken(update())
    assert answer.status == meanwhile
    assert database.updates == updates


@pytest.mark.parametrize(("program", "updates"), [("naive", []), ("main", ["connected"])])
def test_the_board_fails_once(program, updates, start, update, database):
    """After an error the update comes again, and is shown, unless it was remembered before it was."""
    running = start[program](LEASE_SECONDS="3600")  # whoever only waits for the end of a claim waits in vain
    database.failures = 1
    assert running.deliver(update()).status >= 500
    running.deliver_until_taken(update())
    assert database.updates == updates


@pytest.mark.parametrize(("program", "updates"), [("naive", ["held", "connected"]), ("main", ["held"])])
def test_it_comes_again_after_five_minutes(program, updates, *, start, update, database, time_passes, tmp_path):
    """What is forgotten after five minutes lets an update through that is hours old, and shows it as the newest."""
    held = update("held", moment=TIME_MS + 3_000, published=TIME_MS + 3_000)
    start[program]().deliver_until_taken(held)
    time_passes(seconds=300)
    later = start[program](KV=str(tmp_path / "kv, all of it expired"))
    later.deliver_until_taken(update(id="late, but not lost"))
    assert database.updates == updates


# --- with Oncebridge ---------------------------------------------------------------------------------------------


def test_only_one_of_two_works(start, meeting, service, update, database):
    """Both ask before either has its answer, and the one without the claim comes again."""
    where = f"http://127.0.0.1:{meeting(service.port).port}"
    isolates = [start["main"](BRIDGE_URL=where), start["main"](BRIDGE_URL=where)]
    with ThreadPoolExecutor() as threads:
        said = list(threads.map(lambda isolate: isolate.deliver_until_taken(update()), isolates))
    assert sorted(said) == [["fresh"], ["redelivery"]]
    assert database.updates == ["connected"]


def test_oncebridge_is_out_of_reach(start, update, database):
    """Nothing is acknowledged that nobody has taken down."""
    answer = start["main"](BRIDGE_URL="http://127.0.0.1:1").deliver(update())
    assert (answer.status, answer.retry_after) == (503, "5")
    assert database.requests == []


def test_what_is_unreadable_is_kept(start, database):
    """What is no event at all is a dead letter, and need not come again."""
    assert start["main"]().deliver(7) == (200, "dead", None)
    assert database.requests == []


def test_large_numbers_are_told_apart(start, update, database):
    """The event is handed on as it came: after JSON.parse these two would be one."""
    first, second = update(), update()
    first["detail"]["sequence"], second["detail"]["sequence"] = 2**53, 2**53 + 1
    assert start["main"]().deliver_until_taken(first, second, first) == ["fresh", "fresh", "redelivery"]
    assert len(database.updates) == 2


# --- what is written holds ---------------------------------------------------------------------------------------


def test_types_are_right(tmp_path):
    """The programs, and the client with its annotations, pass Deno's own check."""
    ran = subprocess.run(
        [DENO, "check", "--unstable-kv", "main.ts", "naive.ts", "../claims-client/oncebridge.mjs"],
        cwd=FOLDER,
        env={**os.environ, "DENO_DIR": str(tmp_path), "HOME": str(tmp_path), "DENO_NO_UPDATE_CHECK": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr


def test_the_readme_runs(run_readme):
    """The commands of the README, given as they stand there, answer with the verdicts of its table."""
    said = run_readme({"deno": [DENO]})
    assert said("board: (.+)") == [
        f"call-31 is {state}" for state in ("connected", "held", "connected", "disconnected")
    ]
    assert said(r"(\w+)") == [row[1] for row in table()]
