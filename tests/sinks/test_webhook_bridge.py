"""The webhook sink behind a real bridge, from real settings: what settles, what is repeated, and under which key."""

import json
import threading
from collections import Counter

import pytest

from oncebridge import Bridge, NotAcknowledged, Outcome
from oncebridge.settings import load_settings
from payloads import (
    ACW,
    CANARIES,
    PRESENCE,
    PUBLISHED_MS,
    TIME_MS,
    detail,
    envelope,
    iso,
    personal,
    raw,
    status_change,
    tutorial,
)
from servers.receiver import Reply, running_receiver

HIDDEN = "hidden-4711"

pytestmark = pytest.mark.usefixtures("empty_workplace")


@pytest.fixture
def bridge(tmp_path, clock):
    """Make bridges from the text of `oncebridge.toml`; they are closed at the end."""
    made = []

    def make(text=""):
        (tmp_path / "oncebridge.toml").write_text(text, encoding="utf-8")
        made.append(Bridge("memory://", settings=load_settings(), clock=clock))
        return made[-1]

    yield make
    for one in made:
        one.close()


def table(name, url, *more):
    """Write the table of a sink on this machine."""
    return "\n".join(
        [f"[sinks.{name}]", f'url = "{url}"', "private_addresses = true", "timeout_seconds = 60", *more, ""]
    )


def event(n=0):
    """Make one of many events."""
    return raw(envelope(ACW, {"eventTime": TIME_MS + n}))


def test_events_reach_the_receiver(bridge):
    """An event goes out as it came in, under its key and the sink's name; a duplicate does not go out."""
    with running_receiver() as receiver:
        made = bridge(table("crm", receiver.url))
        first, second = made.process(event()), made.process(event())
    assert (first.outcome, second.verdict) == (Outcome.DONE, "redelivery")
    (request,) = receiver.requests
    assert (request.key, request.body) == (f"{first.key}.crm", event())
    assert made.books.as_dict()["balanced"]


def test_sinks_take_their_topics(bridge):
    """A sink gets the events of its topics alone."""
    with running_receiver() as receiver:
        made = bridge(
            table("calls", f"{receiver.url}/calls", 'topics = ["v2.detail.events.*"]')
            + table("people", f"{receiver.url}/people", 'topics = ["v2.users.{id}.presence", "v2.none"]')
        )
        made.process_many([event(), raw(envelope(PRESENCE)), tutorial()])
    assert sorted(request.path for request in receiver.requests) == ["/events/calls", "/events/people"]


def test_a_retry_repeats_only_the_sink_that_failed(bridge):
    """Two sinks of one event settle apart: what is done at one is not sent there again, whatever the other does."""
    left = [503, 500]
    with (
        running_receiver() as well,
        running_receiver(lambda _: Reply(left.pop(0) if left else 200)) as sick,
    ):
        made = bridge(table("crm", sick.url) + table("audit", well.url))
        results = [made.process(event()) for _ in range(4)]
    assert [result.acknowledged for result in results] == [False, False, True, True]
    key = results[0].key
    assert well.raw_effects == Counter({f"{key}.audit": 1})
    assert [request.key for request in sick.requests] == [f"{key}.crm"] * 3
    assert [request.headers["Oncebridge-Attempt"] for request in sick.requests] == ["1", "2", "3"]
    fences = [int(request.headers["Oncebridge-Token"]) for request in sick.requests]
    assert fences == sorted(set(fences))  # each claim raises it
    assert made.books.as_dict()["balanced"]


def test_a_lost_answer_takes_effect_once(bridge):
    """An event whose answer was lost is sent again under its key, and settles when an answer comes."""
    script = [Reply(then="close before answer"), Reply()]
    with running_receiver(lambda _: script.pop(0)) as receiver:
        made = bridge(table("crm", receiver.url))
        lost, done = made.process(event()), made.process(event())
    assert lost.outcome is Outcome.RETRY
    assert "may have taken effect" in lost.reason
    assert done.outcome is Outcome.DONE
    assert receiver.raw_effects == Counter({f"{done.key}.crm": 2})
    assert receiver.effects == {f"{done.key}.crm": 1}


def test_a_refusal_is_a_dead_letter_and_a_redrive_has_its_key(bridge):
    """What a receiver will never take is kept with the reason; tried again later it comes under the same key."""
    statuses = [422, 200]
    with running_receiver(lambda _: Reply(statuses.pop(0))) as receiver:
        made = bridge(table("crm", f"{receiver.url}/{HIDDEN}"))
        refused = made.process(event())
        assert refused.outcome is Outcome.DEAD
        assert refused.reason == f"127.0.0.1:{receiver.port} answered 422, which is permanent"
        letters = made.dead_letters
        (entry,) = letters.list()
        assert letters.redrive(entry).outcome is Outcome.DONE
    assert [request.key for request in receiver.requests] == [f"{refused.key}.crm"] * 2


def test_letters_hold_no_secrets(bridge, monkeypatch):
    """Neither the reason nor the detail of a dead letter shows a secret, or what the event says."""
    monkeypatch.setenv("TOKEN", HIDDEN)
    with running_receiver(lambda _: Reply(400, body=HIDDEN.encode())) as receiver:
        made = bridge(table("crm", f"{receiver.url}/{HIDDEN}", 'bearer = "env:TOKEN"'))
        results = made.process_many([raw(tree) for tree in personal()])
        letters = [letter for entry in made.dead_letters.list() for letter in made.dead_letters.show(entry.key)]
    assert [result.outcome for result in results] == [Outcome.DEAD] * len(results)
    assert len(letters) == len(results)
    shown = "".join(f"{letter.reason} {letter.detail} {letter.handler}" for letter in letters)
    assert not [text for text in (HIDDEN, *CANARIES.values()) if text in shown]


def test_nothing_to_send_is_a_dead_letter(bridge):
    """Where the mapping finds nothing the reason says so, and nothing is sent."""
    with running_receiver() as receiver:
        result = bridge(table("crm", receiver.url, 'body = "detail.eventBody.missing"')).process(event())
    assert result.outcome is Outcome.DEAD
    assert "finds nothing" in result.reason
    assert receiver.requests == []


def test_events_that_were_not_sent_cost_no_attempt(bridge, clock):
    """While a receiver is out of reach the rest of a batch is given back untried, and all of it arrives later."""
    well = threading.Event()
    with running_receiver(lambda _: Reply(200 if well.is_set() else 503)) as receiver:
        made = bridge(table("crm", receiver.url))
        batch = [event(n) for n in range(20)]
        results = made.process_many(batch)
        assert [result.outcome for result in results] == [Outcome.RETRY] * 3 + [Outcome.RELEASE] * 17
        assert len(receiver.requests) == 3
        assert all(result.retry_in_us > 0 for result in results[3:])
        well.set()
        clock.advance(10)
        again = made.process_many(batch)
    assert [result.outcome for result in again] == [Outcome.DONE] * 20
    attempts = [request.headers["Oncebridge-Attempt"] for request in receiver.requests[3:]]
    assert attempts == ["2"] * 3 + ["1"] * 17
    assert set(receiver.raw_effects.values()) == {1}


@pytest.mark.parametrize("reply", [Reply(503), Reply(504), Reply(500, then="close before answer")], ids=str)
def test_an_outage_makes_no_dead_letters(bridge, clock, reply):
    """However long a receiver is away, an event is tried in vain three times; looking whether it is back costs none."""
    well = threading.Event()
    with running_receiver(lambda _: Reply() if well.is_set() else reply) as receiver:
        made = bridge(table("crm", receiver.url) + "[retry]\nattempts = 4\n")
        for _ in range(50):
            assert not made.process(event()).acknowledged
            clock.advance(11)  # the breaker lets one look
        assert len(receiver.requests) == 50
        well.set()
        assert made.process(event()).outcome is Outcome.DONE
    assert [request.headers["Oncebridge-Attempt"] for request in receiver.requests][-48:] == ["4"] * 48
    assert len({request.key for request in receiver.requests}) == 1


def test_lambda_counts_what_it_did_not_try(bridge):
    """Lambda gives up after three invocations, whatever happened in them, so the third makes a dead letter."""
    with running_receiver(lambda _: Reply(429, {"Retry-After": "600"})) as receiver:
        made = bridge(table("crm", receiver.url))
        for _ in range(2):
            with pytest.raises(NotAcknowledged):
                made.lambda_handler(envelope(ACW))
        assert made.lambda_handler(envelope(ACW))["dead"] == 1
        (entry,) = made.dead_letters.list()
    assert len(receiver.requests) == 1
    assert "asked for a pause at attempt 3 of 3" in entry.reason


def test_sinks_at_one_host_share_its_breaker(bridge):
    """What one sink learns of a host spares the others there: they wait too, at no attempt; those elsewhere go on."""
    with running_receiver(lambda _: Reply(504)) as sick, running_receiver() as well:
        made = bridge(
            table("crm", f"{sick.url}/crm", 'topics = ["v2.detail.*"]')
            + table("audit", f"{sick.url}/audit", 'topics = ["v2.users.*"]')
            + table("board", well.url, 'topics = ["v2.users.*"]')
        )
        made.process_many([event(n) for n in range(3)])
        result = made.process(envelope(PRESENCE))
    assert [request.path for request in sick.requests] == ["/events/crm"] * 3
    assert len(well.requests) == 1
    assert result.outcome is Outcome.RELEASE
    assert result.reason.startswith("its receiver is out of reach; this was no attempt: ")
    assert result.reason.endswith(" answered 504")


def test_a_pause_is_kept(bridge, clock):
    """Whoever asks for seven seconds gets them, from this event and from the others."""
    replies = [Reply(429, {"Retry-After": "7"})]
    with running_receiver(lambda _: replies.pop() if replies else Reply()) as receiver:
        made = bridge(table("crm", receiver.url))
        told, kept_back = made.process_many([event(1), event(2)])
        assert (told.outcome, told.retry_in_us) == (Outcome.RETRY, 7_000_000)
        assert (kept_back.outcome, kept_back.retry_in_us) == (Outcome.RELEASE, 7_000_000)
        clock.advance(7)
        assert [made.process(event(n)).outcome for n in (1, 2)] == [Outcome.DONE] * 2


def test_events_go_out_in_parallel(bridge):
    """A bridge with 32 handlers at once has 32 events under way, over connections that are kept."""
    together = threading.Barrier(32)

    def script(_):
        together.wait(60)
        return Reply()

    with running_receiver(script) as receiver:
        made = bridge(f"concurrency = 32\n{table('crm', receiver.url)}")
        for wave in range(2):
            results = made.process_many([event(32 * wave + n) for n in range(32)])
            assert {result.outcome for result in results} == {Outcome.DONE}
    assert receiver.connections == 32
    assert set(receiver.raw_effects.values()) == {1}
    assert len(receiver.raw_effects) == 64


# --- the sink of downstream_url ---------------------------------------------------------------------------------


def sent(receiver):
    """Return what a receiver was sent, as trees."""
    return [json.loads(request.body) for request in receiver.requests]


def test_downstream_url_gets_what_its_service_expects(bridge, monkeypatch):
    """What was written for the tutorial's service understands its events, and those of Genesys' own shape."""
    with running_receiver() as receiver:
        monkeypatch.setenv("DOWNSTREAM_URL", receiver.url)
        made = bridge()
        genesys = envelope(ACW)
        results = made.process_many([raw(tutorial("held")), raw(genesys), raw(detail(ACW, {"eventTime": TIME_MS + 1}))])
    assert [result.outcome for result in results] == [Outcome.DONE] * 3
    assert sent(receiver) == [
        {
            "eventType": "conversation.changed",
            "body": {"conversationId": "call-31", "status": "held"},
            "timestamp": iso(TIME_MS, digits=0),
        },
        {"eventType": ACW, "body": genesys["detail"]["eventBody"], "timestamp": iso(PUBLISHED_MS)},
        {
            "eventType": detail(ACW)["topicName"],
            "body": {**genesys["detail"]["eventBody"], "eventTime": TIME_MS + 1},
            "timestamp": iso(PUBLISHED_MS),
        },
    ]
    assert [request.key for request in receiver.requests] == [result.key for result in results]


def test_downstream_url_gets_all_of_what_has_no_body(bridge, monkeypatch):
    """An event without `body` goes out whole under it, and one whose body is empty stays so."""
    empty = tutorial(event_id="empty")
    empty["detail"]["body"] = {}
    with running_receiver() as receiver:
        monkeypatch.setenv("DOWNSTREAM_URL", receiver.url)
        bridge().process_many([raw(status_change("held")), raw(empty)])
    assert [body["body"] for body in sent(receiver)] == [status_change("held")["detail"], {}]


def test_downstream_url_is_for_those_without_handlers(bridge, monkeypatch):
    """With a sink or a handler of one's own, nothing goes to `DOWNSTREAM_URL`."""
    with running_receiver() as downstream, running_receiver() as own:
        monkeypatch.setenv("DOWNSTREAM_URL", downstream.url)
        bridge(table("crm", own.url)).process(event())
        made = bridge()
        made.on("*")(lambda _: None)
        made.process(event())
    assert (len(downstream.requests), len(own.requests)) == (0, 1)
