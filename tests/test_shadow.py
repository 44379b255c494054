"""A shadow judges and counts events that another program handles: it calls no handler, and makes no event done."""

import json
import logging
import os
from types import SimpleNamespace

import pytest

from oncebridge import Bridge, ConfigurationError, Settings
from oncebridge.cli.consume import consume
from oncebridge.handlers import Handlers
from oncebridge.ledgers import ledger_from_url
from oncebridge.ledgers.memory import MemoryLedger
from oncebridge.settings.sinks.webhook import downstream_sink
from payloads import ACW, AUDITS, PRESENCE, PUBLISHED_MS, envelope, presence, raw
from service.serving import Service
from shapes import message, records, topic_record

FACT, TWIN = envelope(ACW, id="one"), envelope(ACW, id="two")
SHADOWED = "arn:aws:sqs:eu-central-1:123456789012:events-shadow"
LIVE = "arn:aws:sqs:eu-central-1:123456789012:events"
TRAFFIC = [
    FACT,
    FACT,
    TWIN,
    presence("AWAY", id="three"),
    presence("BUSY", published_ms=PUBLISHED_MS - 9000, id="four"),
    b"no event",
    envelope(AUDITS, {"action": "CREATE"}, id="five"),
    envelope(AUDITS, {"action": "DELETE"}, id="six"),
]
VERDICTS = ["fresh", "redelivery", "republish", "fresh", "stale", "dead", "fresh", "conflict"]


def bridge_on(ledger, called, **options):
    """Make a bridge whose handlers, one of them named, note what they get."""
    bridge = Bridge(ledger, **options)
    bridge.on("*")(lambda event: called.append(("", event.topic)))
    bridge.on(ACW, name="crm")(lambda event: called.append(("crm", event.topic)))
    return bridge


def messages(arn, *deliveries):
    """Wrap deliveries as a queue's trigger does."""
    return records(*(message(raw(one).decode(), f"m{n}", eventSourceARN=arn) for n, one in enumerate(deliveries)))


def test_verdicts_are_those_of_a_live_bridge_and_no_handler_is_called():
    """A shadow gives each delivery the verdict that a live bridge gives it, in one batch and one by one."""
    called, live = [], bridge_on(MemoryLedger(), [])
    for batches in ([TRAFFIC], [[one] for one in TRAFFIC]):
        with bridge_on(MemoryLedger(), called, shadow=True) as shadow:
            results = [result for batch in batches for result in shadow.process_many(batch)]
            assert [result.verdict for result in results] == VERDICTS
            assert all(result.acknowledged for result in results)
            assert shadow.books.as_dict()["balanced"]
            assert shadow.books_by_topic[ACW] == {"processed": 1, "redelivery": 1, "republish": 1}
            assert shadow.books_by_topic[PRESENCE] == {"processed": 1, "stale": 1}
    assert [result.verdict for result in live.process_many(TRAFFIC)] == VERDICTS
    assert called == []


@pytest.fixture(params=["memory", "sqlite", "redis", "postgres", "dynamodb"])
def shared_ledger(request, tmp_path, monkeypatch):
    """Return a ledger that a shadow and a live bridge share, of each kind, with nothing in it."""
    name = f"shadow_{os.urandom(4).hex()}"
    match request.param:
        case "memory":
            url = "memory://"
        case "sqlite":
            url = f"sqlite:///{tmp_path / 'once.db'}"
        case "redis":
            url = f"{request.getfixturevalue('valkey').url}?name={name}"
        case "postgres":
            server_url = request.getfixturevalue("postgres").url
            url = f"{server_url}{'&' if '?' in server_url else '?'}schema={name}"
        case "dynamodb":
            server = request.getfixturevalue("ministack")
            for variable, value in server.environment.items():
                monkeypatch.setenv(variable, value)
            url = f"dynamodb://{name}?region={server.region}&endpoint_url={server.url}"
    ledger = ledger_from_url(url)
    ledger.migrate()
    yield ledger
    ledger.close()


def test_nothing_a_shadow_remembers_is_done_for_a_live_handler(shared_ledger):
    """A live bridge on the ledger of a shadow handles every event, by every handler, as on an empty one."""
    ledger, called, expected = shared_ledger, [], []
    for _ in range(2):
        with bridge_on(ledger, called, shadow=True) as shadow:
            shadow.process_many(TRAFFIC)
    assert called == []
    live = bridge_on(ledger, called)
    assert [result.verdict for result in live.process_many(TRAFFIC)] == VERDICTS
    bridge_on(MemoryLedger(), expected).process_many(TRAFFIC)
    assert called == expected
    assert len(called) == 4  # two facts and a state, one of them at two handlers
    assert len([*live.dead_letters.list()]) == 2  # the unreadable delivery and the conflict: a shadow kept neither


def test_a_shadow_keeps_no_dead_letter_and_sends_none_on():
    """Unreadable, conflicting and unhandled deliveries are counted; nothing of their content is kept or sent."""
    queue = "http://127.0.0.1:9/000000000000/letters"
    settings = Settings(dead_letter_queue=queue, unhandled="dead", dead_letters_max=1, shadow=True)
    shadow = Bridge(MemoryLedger(), settings=settings)
    shadow.on(AUDITS)(pytest.fail)
    columns = [result.column for result in shadow.process_many([*TRAFFIC, b"no event", b"none either"])]
    assert columns.count("dead") == 3
    assert columns.count("conflict") == 1
    assert columns.count("unhandled") == 5
    assert list(shadow.dead_letters.list()) == []
    assert shadow.ledger.letters == {}


def test_a_letter_is_not_redriven_by_a_shadow():
    """A shadow would settle a redriven letter without a handler, and lose it: it is refused, and the letter stays."""
    ledger = MemoryLedger()
    live = Bridge(ledger)
    live.process(b"no event")
    (letter,) = live.dead_letters.list()
    shadow = Bridge(ledger, shadow=True)
    with pytest.raises(ConfigurationError, match="ONCEBRIDGE_SHADOW"):
        shadow.dead_letters.redrive(letter)
    assert [one.key for one in live.dead_letters.list()] == [letter.key]


def test_a_shadow_primes_nothing():
    """Priming makes events done, a shadow does not: one bridge cannot be both."""
    with pytest.raises(ConfigurationError, match="shadow"):
        Bridge("memory://", shadow=True).priming()


def test_no_live_handler_may_have_a_name_of_shadows():
    """A handler under such a name would find everything done that a shadow has judged."""
    for name in ("shadow of", "shadow of crm"):
        with pytest.raises(ConfigurationError, match="shadow of"):
            Handlers().add("*", print, name=name)
    assert Handlers().add("*", print, name="shadow").name == "shadow"


def test_sinks_and_downstream_are_not_called():
    """A sink of the settings is judged for under its name, and gets nothing."""
    sink = downstream_sink("https://crm.example/events")
    shadow = Bridge(MemoryLedger(), settings=Settings(sinks=(sink,), shadow=True))
    assert shadow.process(FACT).verdict == "fresh"
    alone = Bridge("memory://", settings=Settings(downstream_url="https://crm.example/events", shadow=True))
    assert alone.process(FACT).verdict == "fresh"


def test_it_is_said_in_the_log(caplog):
    """A bridge that acknowledges without a handler says so when it starts: the setting may have been left on."""
    with caplog.at_level(logging.WARNING, "oncebridge"):
        Bridge("memory://", shadow=True).process(FACT)
        Bridge("memory://", shadow=True).process(FACT)
    assert [record.message for record in caplog.records if "no handler is called" in record.message] == [
        "shadow: events are judged, counted and acknowledged, and no handler is called"
    ] * 2


def test_settings_make_a_shadow(monkeypatch, tmp_path):
    """`shadow` in the file, ONCEBRIDGE_SHADOW and an argument of `from_settings` each make one."""
    monkeypatch.chdir(tmp_path)
    assert not Bridge.from_settings().settings.shadow
    assert Bridge.from_settings(shadow=True).settings.shadow
    monkeypatch.setenv("ONCEBRIDGE_SHADOW", "true")
    assert Bridge.from_settings().settings.shadow
    monkeypatch.delenv("ONCEBRIDGE_SHADOW")
    (tmp_path / "oncebridge.toml").write_text("shadow = true\n")
    assert Bridge.from_settings().settings.shadow


# --- Lambda --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "event",
    [
        messages(LIVE, FACT),
        messages(SHADOWED, FACT)["Records"] + messages(LIVE, FACT)["Records"],
        messages(LIVE, FACT)["Records"][0],
    ],
)
def test_lambda_takes_no_messages_from_a_live_queue(event):
    """Messages of a queue that is not a shadow's own are not acknowledged: they belong to the program that handles."""
    shadow = Bridge(MemoryLedger(), shadow=True)
    with pytest.raises(ConfigurationError, match="'events' is not a shadow's own"):
        shadow.lambda_handler(event)
    assert shadow.books.received == 0


def test_lambda_judges_its_own_queue_and_copies(capsys):
    """Messages of its own queue, and what EventBridge and SNS copy to it, are judged; each metrics line says shadow."""
    called = []
    shadow = bridge_on(MemoryLedger(), called, shadow=True)
    context = SimpleNamespace(function_name="desk", get_remaining_time_in_millis=lambda: 9000)
    assert shadow.lambda_handler(messages(SHADOWED, FACT, TWIN), context) == {"batchItemFailures": []}
    assert shadow.lambda_handler(FACT, context)["redelivery"] == 1
    assert shadow.lambda_handler(records(topic_record(raw(TWIN).decode())), context)["republish"] == 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert all(line["Shadow"] is True for line in lines)
    assert sum(line.get("Deliveries", 0) for line in lines) == 4
    assert called == []


# --- HTTP ----------------------------------------------------------------------------------------------------


def test_the_service_judges_events_and_grants_no_claim():
    """/events is answered as by a live service; a claim would have its client handle the event, so there is none."""
    with Service(shadow=True) as service:
        assert service.post("/events", [FACT, FACT]).json["processed"] == 1
        answer = service.post("/claims", {"event": FACT})
        assert (answer.status, "shadow" in answer.json["detail"]) == (503, True)
        assert not service.tried
    with Service(handled=False, shadow=True) as service:
        assert service.post("/events", FACT).json["processed"] == 1


# --- consume -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url", ["https://sqs.eu-central-1.amazonaws.com/123456789012/events", "http://shadow.test/1/e"]
)
def test_consume_refuses_a_live_queue(url, monkeypatch, tmp_path):
    """A queue whose own name does not say shadow is refused before anything is received, by option and setting."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match="not a shadow's own"):
        consume(url, shadow=True)
    monkeypatch.setenv("ONCEBRIDGE_SHADOW", "1")
    with pytest.raises(ConfigurationError, match="not a shadow's own"):
        consume(url)
