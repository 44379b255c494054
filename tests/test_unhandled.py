"""Events that no handler takes: a verdict and a column of their own, said once per topic, and kept if asked to."""

import logging

import pytest

from oncebridge import Bridge, ConfigurationError, Settings
from oncebridge.settings import load_settings
from payloads import ACW, AUDITS, PRESENCE, envelope, routing_status

MISSPELT = "v2.users.{id}.presense"


@pytest.fixture
def effects():
    """Return where handlers note what they were given."""
    return []


@pytest.fixture
def make(effects, tmp_path):
    """Make bridges on one ledger, with a handler for one topic."""
    made = []

    def make(topic=None, *, name="", **settings):
        bridge = Bridge(f"sqlite:///{tmp_path / 'once.db'}", settings=Settings(**settings))
        made.append(bridge)
        if topic is not None:
            bridge.on(topic, name=name)(lambda event: effects.append((name, event.key)))
        return bridge

    yield make
    for bridge in made:
        bridge.close()


def warnings_in(caplog):
    """Return what was logged as a warning."""
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_a_letter_wrong_in_a_topic_is_counted_by_itself(make, effects):
    """Events whose topic no handler takes are acknowledged as unhandled, never as processed, and the books balance."""
    bridge = make(MISSPELT)
    results = bridge.process_many([envelope(PRESENCE, id=f"e-{n}") for n in range(3)])
    assert {(result.verdict, result.outcome, result.acknowledged) for result in results} == {("unhandled", None, True)}
    books = bridge.books.as_dict()
    assert (books["received"], books["processed"], books["unhandled"], books["balanced"]) == (3, 0, 3, True)
    assert effects == []


def test_the_ledger_is_not_asked(make, effects):
    """An unhandled event is not remembered: the handler that comes later gets it."""
    make(MISSPELT).process(envelope(PRESENCE))
    assert make(PRESENCE).process(envelope(PRESENCE)).outcome == "done"
    assert len(effects) == 1


def test_a_bridge_without_handlers_takes_nothing(make):
    """Without any handler every readable event is unhandled; what cannot be read is still kept."""
    results = make().process_many([envelope(PRESENCE), b"{"])
    assert [(result.verdict, result.outcome) for result in results] == [("unhandled", None), ("dead", "dead")]


def test_it_is_said_once_per_topic(make, caplog):
    """The log warns of each topic that no handler takes, once, whatever number of events it has."""
    bridge = make(ACW)
    for n in range(3):
        bridge.process_many([envelope(PRESENCE, id=f"e-{n}"), envelope(AUDITS, id=f"a-{n}"), envelope(ACW)])
    said = warnings_in(caplog)
    assert len(said) == 2
    assert PRESENCE in said[0]
    assert AUDITS in said[1]


def test_hostile_topics_fill_neither_log_nor_memory(make, caplog):
    """Of unknown topics only the first hundred are named, and none that may hold somebody's data."""
    bridge = make(ACW)
    for n in range(300):
        bridge.process({"id": str(n), "detail-type": f"made up {n:03}", "detail": {"a": n}})
    bridge.process({"id": "x", "detail-type": "call of +49 30 901820", "detail": {"a": 1}})
    said = warnings_in(caplog)
    assert len(said) <= 101
    assert not [line for line in said if "901820" in line]


def test_kept_as_a_dead_letter_if_asked_to(make):
    """With `unhandled = "dead"` the event is in the ledger, with a reason, before it is acknowledged."""
    bridge = make(MISSPELT, unhandled="dead")
    first, again = (bridge.process(envelope(PRESENCE)) for _ in range(2))
    for result in (first, again):
        assert (result.verdict, result.outcome, result.column) == ("unhandled", "dead", "unhandled")
        assert "no handler takes its topic" in result.reason
    assert first.key == again.key
    assert bridge.books.as_dict()["balanced"]


def test_a_handler_that_comes_later_is_not_told_of_a_duplicate(make, effects):
    """A letter of an unhandled event does not use up the event: a handler that takes it by then gets it as fresh."""
    make(MISSPELT, unhandled="dead").process(routing_status("IDLE", 1))
    assert make("*").process(routing_status("IDLE", 1)).verdict == "fresh"
    assert len(effects) == 1


def test_nothing_is_acknowledged_that_is_not_kept(make):
    """A delivery whose letter could not be kept, as at a stop, has to come again."""
    bridge = make(MISSPELT, unhandled="dead")
    bridge.stop()
    result = bridge.process(envelope(PRESENCE))
    assert (result.column, result.acknowledged) == ("retrying", False)


def test_the_setting(tmp_path, monkeypatch):
    """`unhandled` is "acknowledge" unless the file or the environment says "dead"; anything else is refused."""
    monkeypatch.chdir(tmp_path)
    assert load_settings().unhandled == "acknowledge"
    (tmp_path / "oncebridge.toml").write_text('unhandled = "dead"')
    assert load_settings().unhandled == "dead"
    monkeypatch.setenv("ONCEBRIDGE_UNHANDLED", "acknowledge")
    assert load_settings().unhandled == "acknowledge"
    with pytest.raises(ConfigurationError, match=r'unhandled: expected "acknowledge" or "dead", got \'drop\''):
        load_settings(unhandled="drop")


def test_lambda_does_not_fail(make):
    """A function whose handlers take none of an invocation's events succeeds, and tells how many there were."""
    answer = make(MISSPELT).lambda_handler(envelope(PRESENCE))
    assert (answer["received"], answer["unhandled"], answer["processed"]) == (1, 1, 0)
