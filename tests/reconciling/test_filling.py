"""Gaps are filled once, with events of their own, and never with forged ones."""

import pytest

import genesys_day
from genesys_day import conversations, stream
from oncebridge.errors import ConfigurationError
from oncebridge.reconciling.expected import Due
from oncebridge.reconciling.filling import WAIT_MAX_US, Filled, Filling, events_of
from oncebridge.reconciling.gaps import Gap
from oncebridge.settings import with_given

TALKS = conversations(40)
NEVER, NO_END = TALKS[7], TALKS[20]


def left_out(talk, family, _at_ms):
    """Leave out one conversation, and the end of another."""
    return talk is NEVER or (talk is NO_END and family == "customer.end")


@pytest.fixture
def filling(installation):
    """Return what fills the gaps of an installation that missed something, and what its handler got."""
    installation.get(stream(TALKS, left_out))
    got = []
    installation.bridge.register("oncebridge.missing", got.append, name="missing")
    installation.got = got
    return lambda: Filling(installation.bridge)


def test_each_missing_event_is_given_to_handlers_once(installation, filling):
    """Filling twice is once, also if Genesys has corrected what it says of the conversation in between."""
    first, second = filling(), filling()
    installation.read(TALKS, fill=first)
    number = 1 + len(list(NEVER.events()))
    assert first.filled == Filled(done=number)
    assert len(installation.got) == number
    assert len({event.key for event in installation.got}) == number
    NO_END.sessions[0].ended_ms += 5
    installation.clock.advance(100_000)
    installation.read(TALKS, fill=second)
    assert second.filled == Filled(before=number)
    assert len(installation.got) == number


def test_a_filled_event_says_what_is_missing(installation, filling):
    """A handler gets the conversation, the family, the session, and what Genesys says of all its sessions."""
    installation.read(TALKS, fill=filling())
    (event,) = [event for event in installation.got if event.conversation_id == NO_END.id]
    body = event.body
    customer = NO_END.sessions[0]
    assert event.topic == "oncebridge.missing"
    assert (body["family"], body["sessionId"], body["cause"]) == ("customer.end", customer.id, "single")
    assert body["topic"] == "v2.detail.events.conversation.{id}.customer.end"
    agent = body["details"]["sessions"][-1]
    assert (agent["purpose"], agent["wrapUpCode"]) == ("agent", "00000000-0000-0000-0000-000000000001")


def test_the_late_original_is_an_event_of_its_own(installation, filling):
    """An event that comes after its gap was filled is processed: it is no duplicate of what filled it."""
    installation.read(TALKS, fill=filling())
    late = [raw for family, *_, raw in NO_END.deliveries() if family == "customer.end"]
    (result,) = installation.bridge.process_many(late)
    assert result.verdict == "fresh"


def test_a_gap_that_was_filled_is_still_a_gap(installation, filling):
    """What fills a gap is no attendance: another run says so again."""
    first, _ = installation.read(TALKS, fill=filling())
    second, _ = installation.read(TALKS)
    assert (first.counts.missing, second.counts.missing) == (1, 1)


def test_a_handler_that_fails_is_tried_again(installation, filling):
    """What a handler failed with is tried again, and given back to another run if it goes on failing."""
    failing = [True]

    def fail(event):
        if failing[0]:
            raise RuntimeError
        installation.got.append(event)

    installation.bridge.register("oncebridge.missing", fail, name="another")
    first, second = filling(), filling()
    installation.read(TALKS, fill=first)
    assert first.filled.again == 1 + len(list(NEVER.events()))
    failing[0] = False
    installation.clock.advance(10_000)
    installation.read(TALKS, fill=second)
    assert second.filled.again == 0
    assert len(installation.got) == 2 * first.filled.again


def test_a_run_does_not_wait_for_hours(installation, filling):
    """A handler that failed often is tried again only after hours: that is left to another run, and said."""

    def fail(_):
        raise RuntimeError

    installation.bridge.register("oncebridge.missing", fail, name="another")
    for _ in range(4):
        before_us, one = installation.clock.now_us(), filling()
        installation.read(TALKS, fill=one)
        assert installation.clock.now_us() - before_us < 3 * WAIT_MAX_US
        assert one.filled.again > 0


def test_restricted_senders_do_not_matter(installation, filling):
    """Our own events are given to handlers though only those of one organization are let in."""
    installation.bridge.rewire(with_given(installation.bridge.settings, allowed_orgs=["another"]))
    one = filling()
    installation.read(TALKS, fill=one)
    assert one.filled.done == len(installation.got) > 1


def test_nobody_to_fill_for_is_refused(installation):
    """Without a handler for these events the run is refused before anything is asked."""
    installation.bridge = type(installation.bridge)("memory://")
    with pytest.raises(ConfigurationError, match=r"oncebridge\.missing"):
        Filling(installation.bridge)


def test_a_wrap_up_is_one_event():
    """A wrap-up that is missing under both of its names is filled once, the same as where one is expected."""
    about = genesys_day.read(TALKS[0])
    missing = [Due("acw", "s", 1), Due("wrapup", "s", 1), Due("acw", "t", 1)]
    made = [raw["detail"]["eventId"] for raw in events_of(Gap(about, never=False, missing=missing), "single")]
    assert made == [f"{about.id}/wrapup/s", f"{about.id}/wrapup/t"]


def test_a_stop_leaves_the_rest_to_another_run(installation, filling):
    """Once the run is stopped no handler gets anything more, and what is left counts as to be tried again."""
    installation.bridge.register("oncebridge.missing", lambda _: installation.bridge.stop(), name="stopping")
    one = filling()
    installation.read(TALKS, fill=one)
    assert len(installation.got) < one.filled.again
