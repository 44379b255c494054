"""The topics of Genesys by name: which patterns take one, and what a wrong pattern may have meant."""

import logging

import pytest

from oncebridge import Bridge, Settings
from oncebridge.genesys_topics import TOPICS, is_known, nearest
from oncebridge.topics import BUILT_IN, Kind, Profile
from payloads import ACW, BODIES, PRESENCE, envelope

#: A letter wrong, and what was meant.
MISSPELT = {
    "v2.users.{id}.presense": PRESENCE,
    "v2.user.{id}.presence": PRESENCE,
    "V2.users.{id}.presence": PRESENCE,
    "users.{id}.presence": PRESENCE,
    "v2.users.presence": PRESENCE,
    "v2.users.*.presense": PRESENCE,
    "v2.users.{userId}.routingstatus": "v2.users.{id}.routingStatus",
    "v2.detail.events.conversation.{id}.acww": ACW,
    "v2.detail.events.conversations.{id}.*": "v2.detail.events.conversation.{id}.*",
    "v2.detail.event.conversation.*": "v2.detail.events.conversation.*",
    "v2.telephony.providers.edges.phone.{id}": "v2.telephony.providers.edges.phones.{id}",
}


@pytest.mark.parametrize("pattern", [*BODIES, *TOPICS, *(row.topic for row in BUILT_IN)])
def test_every_topic_that_comes_in_is_known(pattern):
    """Each topic of Genesys, each family that has a profile, and each topic that these tests send, is known."""
    assert is_known(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "*", "v2.*", "v2.users.*", "*.acw", "v2.users.*.presence", "v2.users.{userId}.presence", "v2.users.{id}.pres*",
        "v2.users.3d905271-6e4f-4fb1-a08a-92435d6e7f80.presence", "v2.audits.entitytype.User.entityid.{id}",
        "v2.audits.entitytype.User.*",
    ],
)  # fmt: skip
def test_patterns_and_single_names_are_known(pattern):
    """Wildcards, other words for ids and the names of single topics take known topics."""
    assert is_known(pattern)


@pytest.mark.parametrize(("pattern", "meant"), MISSPELT.items())
def test_a_letter_wrong_is_noticed(pattern, meant):
    """A pattern that takes no known topic is not known, and the nearest topic is what was meant."""
    assert not is_known(pattern)
    assert nearest(pattern) == meant


def test_topics_of_ones_own_are_known_by_their_profile():
    """A topic that the settings describe is known, whatever it is called."""
    assert not is_known("Desk Changed")
    assert nearest("Desk Changed") is None
    assert is_known("Desk Changed", ["Desk Changed"])
    assert is_known("Desk *", ["Desk Changed"])


def warned(bridge, caplog):
    """Process one event, and return what was logged as a warning of handlers."""
    bridge.process(envelope(ACW))
    bridge.process(envelope(ACW, id="again"))
    bridge.close()
    messages = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    return [message for message in messages if message.startswith("handler for ")]


def test_a_start_warns_of_a_misspelt_topic(caplog):
    """A bridge that opens warns of each pattern that takes no known topic, once, and says what was meant."""
    bridge = Bridge("memory://")
    bridge.on("v2.users.{id}.presense", name="crm")(lambda event: None)
    bridge.on("v2.users.{id}.presense", name="desk")(lambda event: None)
    (said,) = warned(bridge, caplog)
    assert "v2.users.{id}.presense" in said
    assert f"did you mean {PRESENCE}?" in said


def test_a_start_is_silent_about_what_may_be_right(caplog):
    """Known topics, topics of one's own making and those that the settings describe are no warning."""
    profile = Profile(topic="v2.desks.{id}", kind=Kind.STATE)
    bridge = Bridge("memory://", settings=Settings(profiles=(profile,)))
    for pattern in ("*", ACW, "Conversation Status Change", "v2.desks.{id}"):
        bridge.on(pattern, name=pattern)(lambda event: None)
    assert warned(bridge, caplog) == []
