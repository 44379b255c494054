"""`oncebridge serve`: what it refuses, how it starts, how it ends, and what its workers share."""

import os
import re
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from oncebridge.cli.serve import check_address
from oncebridge.errors import ConfigurationError
from oncebridge.settings import Settings
from oncebridge.settings.secrets import Secret
from oncebridge.settings.serve import ServeSettings
from oncebridge.telemetry.counting import GAUGES
from servers.receiver import running_receiver
from servers.serving import PATIENCE_SECONDS, ask, ended, post, samples, worker_pids
from servers.valkey import Valkey

LEDGER = "sqlite:///once.db"
KEY = "a-key-that-is-long-enough"
DELIVERIES = "oncebridge_deliveries_total"
#: A busy machine is not a bug; and handlers may wait for the test.
PATIENT = {"ONCEBRIDGE_SERVE_ANSWER_WITHIN_SECONDS": "120"}


class Service:
    """A service that runs as a process of its own."""

    def __init__(self, started, wait_until):
        """Wait until it says where it is."""
        self.started = started
        self._wait_until = wait_until
        wait_until(lambda: "serving http" in started.said or started.over, "it serves")
        found = re.search(r"serving (http://\S+) with", started.said)
        assert found, started.said
        self.url = found[1]

    def workers(self):
        """Return its worker processes."""
        return worker_pids(self.started.process.pid)

    def post(self, deliveries, **headers):
        """Post one delivery, or a list."""
        return post(self.url, deliveries, **headers)

    def stop(self):
        """Tell it to stop, and return what it left behind."""
        self.started.signal(signal.SIGTERM)
        return self.started.finish()

    @contextmanager
    def posting(self, cli, delivery):
        """Post a delivery in the background, and go on when its handler has begun."""
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(self.post, delivery)
            self._wait_until(lambda: cli.lines("started"), "the handler has begun")
            yield answer

    def says(self, words):
        """Wait until it says something."""
        self._wait_until(lambda: words in self.started.said, f"it says {words}")

    def is_gone(self):
        """Tell whether nobody answers any more."""
        port = int(self.url.rpartition(":")[2])
        try:
            socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS).close()
        except ConnectionError:
            return True
        return False


@pytest.fixture
def serve(cli, wait_until):
    """Start a service on a free port, with handlers at hand; keyword arguments are its environment."""
    cli.write_hooks()

    def start(*arguments, ledger=LEDGER, **environment):
        return Service(
            cli.start("serve", "--port", "0", "--ledger", ledger, "--json", *arguments, **PATIENT | environment),
            wait_until,
        )

    return start


# --- what is refused before anything is started -----------------------------------------------------------------


def settings(host, *keys, **others):
    """Make settings for a host, with keys."""
    return Settings(
        api_keys=tuple(Secret(f"env:KEY_{key}", key) for key in keys), serve=ServeSettings(host=host), **others
    )


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.1.2.3"])
def test_without_a_key_it_listens_where_only_this_machine_is(host):
    """Loopback addresses need no key."""
    assert check_address(settings(host))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "0", "fe80::1"])
def test_without_a_key_it_listens_nowhere_else(host):
    """An address that can be reached from elsewhere needs a key, and the error says how to set one."""
    with pytest.raises(ConfigurationError, match=r"api_keys = \[\"env:ONCEBRIDGE_KEY\"\]"):
        check_address(settings(host))
    assert check_address(settings(host, KEY))


def test_several_workers_do_not_share_a_memory():
    """Events that one has done would be fresh to the others."""
    shared = Settings(ledger="memory://", serve=ServeSettings(workers=2))
    with pytest.raises(ConfigurationError, match="a memory of its own"):
        check_address(shared)
    assert check_address(Settings(ledger="memory://", serve=ServeSettings(workers=1)))


@pytest.mark.parametrize(
    ("arguments", "environment", "words"),
    [
        (["--host", "0.0.0.0"], {}, "host: 0.0.0.0 can be reached from elsewhere"),
        (["--handler", "hooks:nothing"], {}, "--handler: 'hooks' has no function and no Bridge 'nothing'"),
        (["--handler", "nothing:nothing"], {}, "--handler: no module 'nothing'"),
        ([], {"ONCEBRIDGE_SERVE_WORKERS": "many"}, "ONCEBRIDGE_SERVE_WORKERS: expected a whole number"),
        ([], {"ONCEBRIDGE_API_KEYS": "env:NOT_THERE"}, "env:NOT_THERE: this environment variable is not set"),
        ([], {"ONCEBRIDGE_API_KEYS": KEY}, "a secret is named by where it is"),
        (["--settings", "missing.toml"], {}, "missing.toml: no such file"),
        (["--host", "no-such-host.invalid"], {}, "host: 'no-such-host.invalid' cannot be resolved"),
    ],
)
def test_what_is_wrong_is_said_once_and_before_anything_starts(cli, explained, arguments, environment, words):
    """One sentence, exit code 2, and no worker was started; a key that was put there by mistake is not shown."""
    cli.write_hooks()
    ran = cli("serve", "--ledger", LEDGER, *arguments, **environment)
    assert words in explained(ran, 2)
    assert KEY not in ran.err
    assert not cli.events()


@pytest.mark.parametrize("package", ["granian", "starlette"])
def test_a_package_that_is_missing_is_named_with_the_line_that_installs_it(cli, explained, package):
    """Who has only the core is told which extra the service needs."""
    (cli.folder / f"{package}.py").write_text(f"raise ImportError('no {package} here', name='{package}')\n")
    said = explained(cli("serve", "--ledger", LEDGER), 2)
    assert package in said
    assert "pip install 'oncebridge[http]'" in said


def test_a_ledger_that_refuses_is_no_ledger_to_start_with(cli, explained, facts):
    """With another secret than the ledger's every event would be fresh again, so nothing starts."""
    cli.process(cli.write("one", facts(1)), ONCEBRIDGE_SECRET="0123456789abcdef-one")
    ran = cli("serve", "--port", "0", "--ledger", LEDGER, ONCEBRIDGE_SECRET="0123456789abcdef-two")
    assert "secret" in explained(ran, 2)
    assert "serving" not in ran.err


# --- how it starts, works and ends --------------------------------------------------------------------------------


def test_two_workers_share_a_ledger_a_port_and_their_metrics(serve, cli, facts, marks, explained):
    """Each event takes effect once, whichever worker gets its duplicates; metrics and books have every delivery."""
    service = serve("--workers", "2", "--handler", "hooks:note")
    assert len(service.workers()) == 2
    assert "with 2 workers, ledger sqlite, events go to hooks:note" in service.started.said
    deliveries = facts(40)
    posts = [*deliveries[:20], deliveries[20:], *deliveries[:20], deliveries[10:30]]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(service.post, posts))
    assert {answer.status for answer in answers} == {200}
    assert cli.effects() == dict.fromkeys(marks(deliveries), 1)
    service._wait_until(lambda: sum(samples(service.url, DELIVERIES).values()) == 80, "metrics have all")
    workers = {dict(labels)["worker"] for labels in samples(service.url, "oncebridge_settled_total")}
    assert workers
    assert workers <= {"1", "2"}
    for name in GAUGES:
        found = samples(service.url, f"oncebridge_{name}")
        assert {dict(labels)["worker"]: value for labels, value in found.items()} == {"1": 0, "2": 0}
    assert ask(f"{service.url}/health").status == 200

    port = service.url.rpartition(":")[2]
    said = explained(cli("serve", "--ledger", LEDGER, "--port", port), 2)
    assert f"cannot listen on 127.0.0.1 port {port}: Address already in use" in said

    ran = service.stop()
    assert ran.code == 0
    assert "stopping: running requests finish" in ran.err
    assert "Unexpected" not in ran.err
    assert "killed" not in ran.err
    books = ran.one
    assert (books["received"], books["processed"], books["balanced"]) == (80, 40, True)
    assert books["redelivery"] == 40
    assert service.is_gone()
    assert [path.name for path in cli.folder.iterdir() if path.name.startswith("oncebridge-serve-")] == []


def test_settings_say_where_it_listens_and_options_win(serve, cli, facts):
    """The table [serve] is read, the environment wins over it, and the command line over both."""
    (cli.folder / "oncebridge.toml").write_text(
        '[serve]\nhost = "192.0.2.1"\nworkers = 7\nbody_bytes_max = 100\nread_within_seconds = 0.2\n'
    )
    service = serve("--host", "127.0.0.1", "--handler", "hooks:note", ONCEBRIDGE_SERVE_WORKERS="1")
    assert "with 1 worker," in service.started.said
    assert service.post(facts(1)[0]).status == 413
    for beginning in (b"", b"POST /events HTTP/1.1\r\nhost: x\r\n", b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", int(service.url.rpartition(":")[2])), PATIENCE_SECONDS) as slow:
            slow.sendall(beginning)
            while slow.recv(10_000):  # ends when the service has closed the connection
                pass
    assert service.stop().code == 0


def test_keys_are_fetched_from_where_settings_say(serve, cli, facts, marks):
    """Two keys are valid at once; with them it may listen everywhere. No key is ever said, a short one is warned of."""
    (cli.folder / "key").write_text("another-long-enough-key\n")
    environment = {"ONCEBRIDGE_API_KEYS": "env:KEY,file:key,env:SHORT", "KEY": KEY, "SHORT": "brief"}
    service = serve("--host", "0.0.0.0", "--handler", "hooks:note", **environment)
    assert service.url.startswith("http://0.0.0.0:")
    one, other = facts(2)
    assert service.post(one).status == 401
    assert service.post(one, X_API_Key="another-long-enough-kex").status == 401
    assert service.post(one, X_API_Key=KEY).status == 200
    assert service.post(other, Authorization="Bearer another-long-enough-key").status == 200
    assert ask(f"{service.url}/metrics").status == 401
    assert samples(service.url, DELIVERIES, X_API_Key=KEY)
    ran = service.stop()
    assert cli.effects() == dict.fromkeys(marks([one, other]), 1)
    assert "api_keys: env:SHORT has fewer than 16 characters" in ran.err
    assert not any(key in ran.err for key in (KEY, "another-long", "brief"))


def test_without_anybody_to_handle_events_it_serves_claims_alone(serve, facts):
    """It says so when it starts, and events have to come again instead of being lost."""
    service = serve()
    assert "only claims are served; POST /events answers 503" in service.started.said
    assert service.post(facts(1)[0]).status == 503
    claimed = ask(f"{service.url}/claims", b'{"event": {"id": "1", "detail": {"eventId": "e1"}}}')
    assert claimed.status in (200, 400)
    ran = service.stop()
    assert ran.code == 0
    assert ran.one["processed"] == 0


def test_a_ledger_out_of_reach_is_warned_of_and_waited_for(serve, facts, tmp_path):
    """Requests are told to come again until the ledger is there; its password is nowhere to be read."""
    valkey = Valkey(tmp_path / "valkey")
    (one,) = facts(1)
    url = f"redis://:not-for-anybody@127.0.0.1:{valkey.port}/0"
    with running_receiver() as receiver:
        (tmp_path / "work" / "oncebridge.toml").write_text(
            f'[sinks.crm]\nurl = "{receiver.url}"\nprivate_addresses = true\n'
        )
        service = serve(ledger=url)
        assert "requests get 503 until it is back" in service.started.said
        assert "ledger redis, events go to crm" in service.started.said
        answer = service.post(one)
        assert answer.status == 503
        assert int(answer.headers["retry-after"]) > 0
        valkey.process.start()
        try:
            with valkey.client() as client:
                client.config_set("requirepass", "not-for-anybody")
            service._wait_until(lambda: service.post(one).status == 200, "the ledger is used")
            assert list(receiver.effects.values()) == [1]
            ran = service.stop()
        finally:
            valkey.process.stop()
    assert ran.code == 0
    assert ran.one["processed"] == 1
    assert "not-for-anybody" not in ran.err


@pytest.mark.parametrize("everybody", [False, True], ids=["parent", "everybody"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_running_requests_finish(serve, cli, facts, number, everybody):
    """A request that is being worked on is answered, whoever else the signal reaches: a terminal sends it to all."""
    service = serve("--workers", "2", "--handler", "hooks:wait")
    with service.posting(cli, facts(1)[0]) as answer:
        if everybody:
            os.killpg(service.started.process.pid, number)
        else:
            service.started.signal(number)
        service.says("stopping:")
        (cli.folder / "gate").touch()
        assert answer.result().status == 200
    ran = service.started.finish()
    assert ran.code == 0
    assert "Traceback" not in ran.err
    assert ran.one["processed"] == 1


def test_a_second_signal_waits_for_nobody(serve, cli, facts):
    """What is being worked on gets no answer, so it comes again; the workers are gone, and the books say so."""
    service = serve("--handler", "hooks:wait")
    (worker,) = service.workers()
    with service.posting(cli, facts(1)[0]) as answer:
        service.started.signal(signal.SIGTERM)
        service.says("stopping:")
        service.started.signal(signal.SIGTERM)
        ran = service.started.finish()
        assert answer.result().status == 0
    assert ran.code == 128 + signal.SIGTERM
    assert "1 worker was killed" in ran.err
    assert ended(worker)
    assert not cli.effects()


def test_a_worker_that_is_killed_is_started_again(serve, cli, facts, wait_until):
    """What it was working on gets no answer, and takes effect when it comes again; the books say what is missing."""
    service = serve("--handler", "hooks:die_by_kill", "--lease", "1")
    one, poison, *_ = [*facts(1), *facts(1, start=1, poison=True)]
    assert service.post(one).status == 200
    wait_until(lambda: sum(samples(service.url, DELIVERIES).values()) == 1, "it is counted")
    (before,) = service.workers()
    assert service.post(poison).status == 0
    wait_until(lambda: [pid for pid in service.workers() if pid != before], "another is started")
    wait_until(lambda: service.post(one).status == 200, "requests are answered again")
    assert {dict(labels)["worker"] for labels in samples(service.url, DELIVERIES)} == {"1"}
    ran = service.stop()
    assert ran.code == 0
    assert "1 worker was killed; what each did in its last second may not be counted" in ran.err
    assert ran.one["balanced"] is True
    assert ran.one["redelivery"] >= 1


def test_a_service_outlives_every_kill_of_its_workers(serve, cli, facts, marks, wait_until):
    """A worker that is killed as soon as it is up is started again, each time a little later; the service stays."""
    service = serve("--handler", "hooks:note")
    events = facts(4)
    for event in events:
        wait_until(lambda event=event: service.post(event).status == 200, "requests are answered")
        for worker in service.workers():
            os.kill(worker, signal.SIGKILL)
    wait_until(lambda: service.post(events).status == 200, "requests are answered again")
    assert "started again in 0.25 s" in service.started.said
    ran = service.stop()
    assert ran.code == 0
    assert cli.effects() == dict.fromkeys(marks(events), 1)


def test_kills_before_a_worker_is_up_are_outlived_too(serve, cli, facts, marks):
    """A worker that is killed while it starts says nothing of the settings: it is started again."""
    (cli.folder / "fallen.py").write_text(
        "import multiprocessing\nimport os\nimport signal\nfrom pathlib import Path\n\nfrom hooks import note\n\n"
        "if multiprocessing.parent_process():\n"
        "    with Path('starts').open('a+') as starts:\n"
        "        starts.write('.')\n"
        "    if len(Path('starts').read_text()) <= 4:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    service = serve("--handler", "fallen:note")
    events = facts(2)
    assert service.post(events).status == 200
    assert len((cli.folder / "starts").read_text()) == 5
    assert service.stop().code == 0
    assert cli.effects() == dict.fromkeys(marks(events), 1)


def test_workers_end_when_their_parent_is_killed(serve, wait_until):
    """Nobody would end them otherwise, and they would go on answering at the port."""
    service = serve("--workers", "2")
    workers = service.workers()
    os.kill(service.started.process.pid, signal.SIGKILL)
    wait_until(lambda: all(map(ended, workers)), "the workers have ended")
    assert service.is_gone()


def test_workers_that_cannot_start_are_given_up(cli):
    """A worker that ends as soon as it is started again ends the service, with an exit code that says so."""
    (cli.folder / "picky.py").write_text(
        "import multiprocessing\n\nif multiprocessing.parent_process():\n    raise SystemExit(9)\n\n\n"
        "def note(event):\n    pass\n"
    )
    ran = cli("serve", "--port", "0", "--ledger", LEDGER, "--json", "--handler", "picky:note")
    assert ran.code == 1
    assert "the workers ended again as soon as they were started" in ran.err
    assert "serving" not in ran.err
