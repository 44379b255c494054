"""Who may come in, and what an input transformer made of an envelope: settings that are looked at before any claim."""

import functools

import pytest

from oncebridge import Bridge, ConfigurationError, Settings, Verdict
from oncebridge.claim import Status
from oncebridge.ledgers.memory import MemoryLedger
from oncebridge.settings import load_settings
from payloads import (
    ACW,
    CONVERSATION,
    ORG,
    OTHER_ORG,
    PRESENCE,
    TIME_MS,
    envelope,
    in_envelope,
    raw,
    source,
    status_change,
)

pytestmark = pytest.mark.usefixtures("empty_workplace")


@pytest.fixture
def loaded(tmp_path):
    """Load a settings file with this text."""

    def load(text, **given):
        (tmp_path / "oncebridge.toml").write_text(text)
        return load_settings(**given)

    return load


class Watching(MemoryLedger):
    """Remembers what it was asked for."""

    def __init__(self):
        """Start with nothing."""
        super().__init__()
        self.asked = []

    def claim(self, asks, **options):
        """Note the topics and entities."""
        self.asked += asks
        return super().claim(asks, **options)


def handled(settings, *deliveries):
    """Give deliveries to a bridge; return the results, what its handler got, and the ledger."""
    ledger, got = Watching(), []
    bridge = Bridge(ledger, settings=settings)
    bridge.on("*")(got.append)
    with bridge:
        return bridge.process_many(deliveries), got, ledger


# --- who may come in ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"allowed_orgs": (OTHER_ORG,)}, "not allowed: its org is not one of allowed_orgs"),
        ({"allowed_orgs": (ORG[:-1],)}, "not allowed: its org is not one of allowed_orgs"),
        ({"allowed_sources": (source(OTHER_ORG),)}, "not allowed: its source is not one of allowed_sources"),
        ({"allowed_sources": ("aws.partner/genesys.com/cloud/*/other",)}, "not allowed: its source is not one of"),
        ({"allowed_orgs": (ORG,), "allowed_sources": ("genesys.cloud",)}, "not allowed: its source is not one of"),
    ],
    ids=["org", "half an org", "source", "pattern", "both"],
)
def test_strangers_are_kept_out(settings, reason):
    """What is not on the list reaches no handler, and is kept as a dead letter under its bytes, not its identity."""
    (result,), got, ledger = handled(Settings(**settings), envelope(PRESENCE))
    assert (result.verdict, result.column, result.acknowledged) == (Verdict.DEAD, "dead", True)
    assert result.reason.startswith(reason)
    assert not got
    assert [(ask.topic, ask.entity, ask.content) for ask in ledger.asked] == [("", None, None)]


@pytest.mark.parametrize(
    "settings",
    [
        {"allowed_orgs": (OTHER_ORG, ORG)},
        {"allowed_sources": (source(),)},
        {"allowed_sources": ("aws.partner/genesys.com/cloud/*",)},
        {"allowed_orgs": (ORG,), "allowed_sources": ("aws.partner/*",)},
        {},
    ],
    ids=["org", "source", "pattern", "both", "no list"],
)
def test_those_on_the_list_come_in(settings):
    """What is on the list comes in."""
    (result,), got, _ = handled(Settings(**settings), envelope(ACW))
    assert result.verdict is Verdict.FRESH
    assert len(got) == 1


def test_a_stranger_cannot_use_up_an_identity():
    """A forged copy of an event that is still to come does not make the real one a duplicate."""
    real = envelope(ACW)
    forged = {**real, "source": "attacker", "detail": {**real["detail"], "organizationId": ORG}}
    results, got, _ = handled(Settings(allowed_sources=("aws.partner/genesys.com/*",)), forged, forged, real)
    assert [result.verdict for result in results] == [Verdict.DEAD, Verdict.DEAD, Verdict.FRESH]
    assert [event.envelope.source for event in got] == [source()]


@pytest.mark.parametrize("said", [source(OTHER_ORG), "genesys.cloud", None])
def test_a_body_names_no_org(said):
    """Only the partner source that EventBridge writes says which org an event is of, never its body."""
    settings = Settings(allowed_orgs=(ORG,))
    body = {"organizationId": ORG}
    forged = [
        {**envelope(ACW, body), "source": said},
        {**in_envelope({"eventId": "e-1", **body}), "source": said},
        envelope(ACW, body)["detail"],
        {"eventType": "chat", "eventId": "e-2", **body},
    ]
    results, got, _ = handled(settings, *forged)
    assert [result.reason for result in results] == ["not allowed: its org is not one of allowed_orgs"] * 4
    assert not got


def test_nobody_may_stay_nameless():
    """With a list, an event without source comes from nobody on it."""
    (result,), got, _ = handled(Settings(allowed_sources=("aws.partner/*",)), {**envelope(ACW), "source": None})
    assert result.verdict is Verdict.DEAD
    assert not got


def test_a_widened_list_lets_the_letter_in():
    """Once its org is on the list, the dead letter can be redriven, and goes on under the event's own identity."""
    ledger, got = MemoryLedger(), []
    with Bridge(ledger, settings=Settings(allowed_orgs=(OTHER_ORG,))) as bridge:
        bridge.process(envelope(ACW))
        secret = bridge.open().secret
    bridge = Bridge(ledger, settings=Settings(allowed_orgs=(ORG,), secret=secret))
    bridge.on("*")(got.append)
    with bridge:
        dead = bridge.dead_letters
        (entry,) = dead.list()
        assert dead.redrive(entry).column == "processed"
        assert bridge.process(envelope(ACW)).verdict is Verdict.REDELIVERY
        assert not [*dead.list()]
    assert len(got) == 1
    assert ledger.counts()[Status.DONE] == 1


def test_lists_in_file_and_environment(loaded, monkeypatch):
    """A file has a list, a variable has its items between commas."""
    assert loaded(f'allowed_orgs = ["{ORG}"]').allowed_orgs == (ORG,)
    monkeypatch.setenv("ONCEBRIDGE_ALLOWED_SOURCES", "aws.partner/*, genesys.cloud")
    assert load_settings().allowed_sources == ("aws.partner/*", "genesys.cloud")
    with pytest.raises(ConfigurationError, match="allowed_orgs: expected a list of texts, got 7"):
        loaded("allowed_orgs = 7")
    with pytest.raises(ConfigurationError, match="allowed_orgs: expected a list of texts"):
        loaded('allowed_orgs = ["a", ""]')


# --- behind an input transformer ----------------------------------------------------------------------------

MAPPED = """
[envelope]
id = "evt"
source = "from"
detail_type = "what"
time = "at"
detail = "payload"
"""


def test_an_input_transformer_is_undone(loaded):
    """What a rule's input transformer made of envelopes is read as the envelopes it was made of."""
    whole = in_envelope(status_change("held")["detail"], detail_type="Conversation Status Change")
    flat = {
        "evt": whole["id"],
        "from": whole["source"],
        "what": whole["detail-type"],
        "at": whole["time"],
        "payload": whole["detail"],
    }
    results, got, _ = handled(loaded(MAPPED), whole, flat)
    assert [result.verdict for result in results] == [Verdict.FRESH, Verdict.REDELIVERY]
    assert [event.topic for event in got] == ["Conversation Status Change"]


def test_numbers_survive_an_input_transformer(loaded):
    """Numbers count as they are written behind an input transformer too."""
    one, other = (f'{{"what": "Reading", "payload": {{"id": "r", "value": {value}}}}}' for value in ("1.10", "1.1"))
    results, got, _ = handled(loaded(MAPPED), one, other)
    assert [result.verdict for result in results] == [Verdict.FRESH, Verdict.FRESH]
    assert got[0].raw == one.encode()


def test_without_detail_the_rest_of_the_object_is_the_detail(loaded):
    """Where no expression finds the detail, everything is it that is not named as part of the envelope."""
    flat = {"evt": "1", "conversation_id": CONVERSATION, "what": "Desk Changed", "timestamp": TIME_MS, "extra": 1}
    settings = loaded('[envelope]\ndetail_type = "what"\nid = "evt"')
    results, got, _ = handled(settings, flat, {**flat, "evt": "2"}, {**flat, "extra": 2})
    assert [event.body for event in got] == [
        {"conversation_id": CONVERSATION, "timestamp": TIME_MS, "extra": 1},
        {"conversation_id": CONVERSATION, "timestamp": TIME_MS, "extra": 2},
    ]
    assert [result.verdict for result in results] == [Verdict.FRESH, Verdict.REPUBLISH, Verdict.FRESH]


def test_what_is_an_envelope_stays_one(loaded):
    """Envelopes and Genesys' own notifications are read as ever, whatever the table says."""
    settings = loaded("[envelope]\ndetail_type = \"'Mapped'\"")
    results, got, _ = handled(settings, envelope(ACW), envelope(ACW)["detail"], {"payload": 1})
    assert [event.topic for event in got] == [ACW, ACW, "Mapped"]
    assert all(result.acknowledged for result in results)


@pytest.mark.parametrize("hostile", ["[]", "7", '"text"', "{}", '{"what": 7}', '{"payload": [1]}', '{"evt": {}}'])
def test_anything_may_stand_there(loaded, hostile):
    """Whatever an object holds, it ends as an event or as a dead letter."""
    (result,), _, _ = handled(loaded(MAPPED), hostile)
    assert result.acknowledged


def test_a_letter_behind_a_transformer_can_be_redriven(loaded):
    """A dead letter keeps what came, and is read through the same table again."""
    failing = [KeyError("once")]
    settings = loaded(MAPPED + "[retry]\nattempts = 1")
    bridge = Bridge(MemoryLedger(), settings=settings)

    @bridge.on("*")
    def fail_once(event):
        if failing:
            raise failing.pop()

    with bridge:
        bridge.process(raw({"what": "Desk Changed", "payload": {"eventId": "1", "at": 1}}))
        dead = bridge.dead_letters
        (entry,) = dead.list()
        assert dead.redrive(entry).column == "processed"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[envelope]\ntopic = "x"', r"\[envelope\] topic: no such setting; (did you mean|known are)"),
        (
            '[envelope]\nid = "a["',
            r"\[envelope\] id: expected a JMESPath expression such as conversation.id, got 'a\['",
        ),
        ("envelope = 7", "envelope: expected a table, got 7; write it as"),
    ],
    ids=["unknown", "no expression", "no table"],
)
def test_wrong_tables_are_refused(loaded, text, words):
    """A wrong table is refused with its field, its value and the fix."""
    with pytest.raises(ConfigurationError, match=words):
        loaded(text)


@pytest.mark.parametrize("depth", [100, 900, 986, 989, 992, 1500])
def test_what_is_nested_too_deeply_is_known_again(depth):
    """Parsed JSON that is far too deep to be read is kept, known by its content, and no duplicate of another."""

    def nested(leaf):
        return functools.reduce(lambda inner, _: {"a": inner}, range(depth), leaf)

    results, _, ledger = handled(Settings(), nested(1), nested(2), nested(1))
    assert [result.verdict for result in results] == [Verdict.DEAD] * 3
    assert results[0].key == results[2].key != results[1].key
    assert ledger.counts()[Status.DEAD] == 2
