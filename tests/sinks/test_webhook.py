"""The webhook sink: what it sends, what an answer context, and when it leaves a receiver alone."""

import json
import socket
import sys
import traceback
from collections import Counter

import pytest
from msgspec.structs import replace

from oncebridge import ConfigurationError, MissingExtra, PermanentError, RetryLater
from oncebridge.breaker import Open
from oncebridge.errors import SaysWhy
from oncebridge.event import parse
from oncebridge.settings.expressions import compiled
from oncebridge.settings.secrets import Secret
from oncebridge.settings.sinks.webhook import WebhookSettings
from oncebridge.sinks import make_sink
from oncebridge.sinks.event_tree import NothingToSend
from oncebridge.sinks.exchange import AnswerLost, ReceiverUnavailable, ReceiverUnreachable
from oncebridge.sinks.webhook import (
    RETRY_AFTER_MAX,
    ReceiverDeferred,
    ReceiverFailed,
    ReceiverOverloaded,
    ReceiverRefused,
    seconds_to_wait,
)
from oncebridge.testing.clock import START_US
from payloads import ACW, CANARIES, detail, envelope, personal, raw, tutorial
from servers.process import free_port
from servers.receiver import Reply, running_receiver

KEY = "ob1_00112233445566778899aabbccddeeff"
OPENS_AFTER = 3  # failures in a row


def event_of(tree, **changes):
    """Read a delivery as a sink gets it."""
    data = tree if isinstance(tree, bytes) else raw(tree)
    return replace(parse(data), **{"key": KEY, "token": 17, **changes})


def answering(*replies):
    """Answer with these in turn, and with the last of them from then on."""
    left = list(replies)

    def answer(_):
        return left.pop(0) if len(left) > 1 else left[0]

    return answer


def posted(sink, settings, tree):
    """Return the one request by which a sink sends an event."""
    with running_receiver() as receiver:
        sink(receiver.url, **settings)(event_of(tree))
    (request,) = receiver.requests
    return request


# --- what is sent -----------------------------------------------------------------------------------------------


def test_an_event_is_posted_as_it_came(sink):
    """Without a mapping the receiver gets the delivery byte for byte, white space and digits included."""
    data = raw(envelope(ACW, {"price": 1})).replace(
        b'"price":1', b'"price" : 1.10, "n": 123456789012345678901234567890'
    )
    with running_receiver() as receiver:
        sink(f"{receiver.url}/in?team=desk&x=%41")(event_of(data))
    (request,) = receiver.requests
    assert (request.method, request.path, request.body) == ("POST", "/events/in?team=desk&x=%41", data)
    assert request.headers["Content-Type"] == "application/json"
    assert request.headers["Content-Length"] == str(len(data))


def test_headers_say_which_event_and_which_attempt(sink):
    """Key, fence and attempt go along; at the next attempt the key is the same."""
    with running_receiver() as receiver:
        send = sink(receiver.url)
        send(event_of(envelope(ACW)))
        send(event_of(envelope(ACW), token=23, attempt=2))
    told = [
        [request.headers[name] for name in ("Idempotency-Key", "Oncebridge-Token", "Oncebridge-Attempt")]
        for request in receiver.requests
    ]
    assert told == [[f"{KEY}.crm", "17", "1"], [f"{KEY}.crm", "23", "2"]]


def test_each_sink_has_keys_of_its_own(sink):
    """Two sinks at one host never share a key; the one without a name uses the event's."""
    with running_receiver() as receiver:
        for name in ("crm", "audit", ""):
            sink(receiver.url, name=name)(event_of(envelope(ACW)))
    assert receiver.effects == {f"{KEY}.crm": 1, f"{KEY}.audit": 1, KEY: 1}


def test_nothing_of_an_event_is_in_url_or_headers(sink):
    """Whatever an event says stays in the body: the rest is made of settings and of what is ours."""
    hostile = {"\r\nX-Evil": "1", "topicName": "v2.evil\r\nX-Evil: 1", "eventBody": {"id": "\r\n\r\nGET /evil"}}
    request = posted(sink, {"headers": (("X-Team", "desk"),)}, {"detail-type": "x\r\nX-Evil: 1", "detail": hostile})
    assert request.path == "/events"
    assert {name.lower() for name in request.headers} == {
        "host",
        "accept-encoding",
        "content-length",
        "content-type",
        "user-agent",
        "idempotency-key",
        "oncebridge-token",
        "oncebridge-attempt",
        "x-team",
    }
    assert "evil" not in str(request.headers).lower()


def test_secrets_go_into_headers(sink):
    """A bearer token, an API key and headers that are secret are sent as they are."""
    settings = {
        "bearer": Secret("env:TOKEN", "the-token"),
        "api_key": Secret("env:KEY", "the-key"),
        "api_key_header": "X-Desk-Key",
        "headers": (("X-Plain", "seen"), ("X-Hidden", Secret("env:HIDDEN", "the-hidden"))),
    }
    headers = posted(sink, settings, envelope(ACW)).headers
    assert headers["Authorization"] == "Bearer the-token"
    assert headers["X-Desk-Key"] == "the-key"
    assert (headers["X-Plain"], headers["X-Hidden"]) == ("seen", "the-hidden")
    assert headers["User-Agent"].startswith("oncebridge/")


# --- what a mapping makes of it ---------------------------------------------------------------------------------

#: Expression over the envelope, delivery, and what the receiver gets.
MAPPINGS = [
    ("detail.eventBody.wrapupCode", envelope(ACW, {"wrapupCode": "öäü"}), '"öäü"'),
    ('{topic: "detail-type", id: id}', envelope(ACW, id="e-1"), f'{{"topic":"{ACW}","id":"e-1"}}'),
    ("detail.topicName", detail(ACW, topicName="v2.alone"), '"v2.alone"'),
    ("detail.eventType", {"eventType": "call.ended", "conversationId": "c"}, '"call.ended"'),
    ("detail.body.status", tutorial("held"), '"held"'),
    ("detail.eventBody.n", envelope(ACW, {"n": 123456789012345678901234567890}), "123456789012345678901234567890"),
    ("detail.eventBody.n", envelope(ACW, {"n": 0.1}), "0.1"),
    ("detail.eventBody.n", envelope(ACW, {"n": 12345678.25}), "12345678.25"),
    ("detail.eventBody.n", envelope(ACW, {"n": 0}), "0"),
    ("detail.eventBody.n", envelope(ACW, {"n": False}), "false"),
    ("detail.eventBody.n", envelope(ACW, {"n": ""}), '""'),
    ("detail.eventBody.n", envelope(ACW, {"n": []}), "[]"),
    ("{a: detail.eventBody.no}", envelope(ACW), '{"a":null}'),
]


@pytest.mark.parametrize(("expression", "tree", "body"), MAPPINGS)
def test_a_mapping_says_what_is_sent(expression, tree, body, sink):
    """The expression is over the envelope as it came, also where only `detail` came; its result is sent as JSON."""
    request = posted(sink, {"body": compiled(expression)}, tree)
    assert request.body.decode() == body
    assert request.headers["Content-Type"] == "application/json"


@pytest.mark.parametrize("expression", ["detail.eventBody.no", "sum(detail.eventBody)", "`null`"])
def test_nothing_is_sent_where_a_mapping_finds_nothing(expression, sink):
    """What the settings want is not there and never will be: a dead letter, rather than a POST of null."""
    with running_receiver() as receiver, pytest.raises(NothingToSend, match="finds nothing") as raised:
        sink(receiver.url, body=compiled(expression))(event_of(envelope(ACW)))
    assert isinstance(raised.value, PermanentError)
    assert receiver.requests == []


# --- what an answer means ---------------------------------------------------------------------------------------

UNWELL = {429, 502, 503, 504}
DEFERRED = {408, 409, 425}
FAILED = {500, 501, *range(505, 600)}


def test_what_each_status_means(sink):
    """2xx is done; what may pass is tried again; every other 3xx and 4xx is a dead letter. No redirect is followed."""
    found, words = {}, set()
    with running_receiver(lambda request: Reply(int(request.path[8:]), {"Location": "/elsewhere"})) as receiver:
        for status in range(200, 600):
            try:
                sink(f"{receiver.url}/{status}")(event_of(envelope(ACW)))
                found[status] = None
            except SaysWhy as error:
                found[status] = type(error)
                words.add(str(error))
    wanted = dict.fromkeys(range(200, 300)) | dict.fromkeys(range(300, 500), ReceiverRefused)
    wanted |= dict.fromkeys(UNWELL, ReceiverOverloaded) | dict.fromkeys(DEFERRED, ReceiverDeferred)
    wanted |= dict.fromkeys(FAILED, ReceiverFailed)
    assert found == wanted
    assert words == {f"127.0.0.1:{receiver.port} answered {status}" for status in range(300, 600)}
    assert len(receiver.requests) == 400


def test_errors_say_how_an_attempt_ends():
    """The flow knows them: refusals are permanent, the others may be tried later."""
    assert issubclass(ReceiverRefused, PermanentError)
    assert issubclass(ReceiverOverloaded, RetryLater)
    assert issubclass(ReceiverDeferred, RetryLater)
    assert not issubclass(ReceiverUnavailable, PermanentError)


def test_statuses_that_nobody_knows_are_tried_again(sink):
    """When in doubt, process: a status beyond 599 is no refusal."""
    with running_receiver(lambda _: Reply(777)) as receiver, pytest.raises(ReceiverDeferred):
        sink(receiver.url)(event_of(envelope(ACW)))


RETRY_AFTER = {
    "7": 7,
    "0": 0,
    "007": 7,
    "999999999999": RETRY_AFTER_MAX,
    "9" * 40: RETRY_AFTER_MAX,
    "9" * 400: 0,
    "-5": 0,
    "+5": 0,
    "1.5": 0,
    "5 seconds": 0,
    "\u0667": 0,
    "\u00b2": 0,
    "": 0,
    "soon": 0,
    "inf": 0,
    "7, 9": 0,
    "Thu, 01 Jan 2026 00:01:00 GMT": 60,
    "Thu, 01 Jan 2026 01:01:00 +0100": 60,
    "Thu, 01 Jan 2026 00:01:00 -0000": 60,
    "Wed, 31 Dec 2025 23:59:00 GMT": 0,
    "Sat, 01 Jan 2095 00:00:00 GMT": RETRY_AFTER_MAX,
    "Thu, 01 Jan 0000 00:01:00 GMT": 0,
    "Thu, 99 Jan 2026 00:01:00 GMT": 0,
    "Thu, 01 Jan 99999 00:01:00 GMT": 0,
}


@pytest.mark.parametrize("text", RETRY_AFTER)
def test_retry_after_is_understood(text):
    """Seconds or a date are kept to, up to a limit; nonsense and what is over already are no wish."""
    assert seconds_to_wait(text, START_US) == RETRY_AFTER[text]
    assert seconds_to_wait(None, START_US) == 0


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 503])
def test_every_passing_refusal_may_say_when(status, sink):
    """Whatever is tried again is not tried before the receiver wants it."""
    with running_receiver(lambda _: Reply(status, {"Retry-After": "7"})) as receiver, pytest.raises(RetryLater) as told:
        sink(receiver.url)(event_of(envelope(ACW)))
    assert told.value.after_seconds == 7


def test_a_lost_answer_is_asked_for_again_under_the_same_key(sink):
    """Nobody knows whether it took effect, so it is sent again; a receiver that honours keys does it once."""
    with running_receiver(answering(Reply(then="close before answer"), Reply())) as receiver:
        send = sink(receiver.url)
        with pytest.raises(AnswerLost, match="may have taken effect"):
            send(event_of(envelope(ACW)))
        send(event_of(envelope(ACW), attempt=2))
    assert receiver.raw_effects == Counter({f"{KEY}.crm": 2})
    assert receiver.effects == {f"{KEY}.crm": 1}


# --- leaving a receiver alone -----------------------------------------------------------------------------------


def fail(send, times, error):
    """Send in vain."""
    for _ in range(times):
        with pytest.raises(error):
            send(event_of(envelope(ACW)))


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        *((Reply(status), ReceiverOverloaded) for status in sorted(UNWELL)),
        (Reply(then="close before answer"), AnswerLost),
    ],
)
def test_a_receiver_that_is_unwell_is_left_alone(reply, error, sink, clock):
    """After three failures in a row nothing is sent any more, but for one event now and then that looks."""
    with running_receiver(answering(*[reply] * OPENS_AFTER, Reply())) as receiver:
        send = sink(receiver.url)
        fail(send, OPENS_AFTER, error)
        with pytest.raises(Open) as kept_back:
            send(event_of(envelope(ACW)))
        assert len(receiver.requests) == OPENS_AFTER
        clock.advance(kept_back.value.retry_in_us / 1e6)
        send(event_of(envelope(ACW)))
        send(event_of(envelope(ACW)))
    assert len(receiver.requests) == OPENS_AFTER + 2


def test_a_receiver_that_is_not_there_is_left_alone(sink):
    """Refused connections open the breaker too; nothing was sent, and the error says so."""
    port = free_port()
    send = sink(f"http://127.0.0.1:{port}/hidden")
    with pytest.raises(ReceiverUnreachable, match=f"127.0.0.1:{port}, so nothing was sent: connection refused"):
        send(event_of(envelope(ACW)))
    fail(send, OPENS_AFTER - 1, ReceiverUnreachable)
    fail(send, 1, Open)


@pytest.mark.parametrize("status", [400, 401, 404, 408, 409, 425, 500, 501])
def test_what_is_about_one_event_keeps_no_other_back(status, sink):
    """A receiver that answers is there: refusals and errors of single events never open the breaker."""
    with running_receiver(lambda _: Reply(status, {"Retry-After": "60"})) as receiver:
        fail(sink(receiver.url), 2 * OPENS_AFTER, (ReceiverRefused, ReceiverDeferred))
    assert len(receiver.requests) == 2 * OPENS_AFTER


@pytest.mark.parametrize("status", sorted(UNWELL))
def test_a_pause_is_for_everybody(status, sink, clock):
    """Once a receiver asks for a pause, no other event is sent before it is over."""
    with running_receiver(answering(Reply(status, {"Retry-After": "7"}), Reply())) as receiver:
        send = sink(receiver.url)
        fail(send, 1, ReceiverOverloaded)
        clock.advance(6.5)
        with pytest.raises(Open) as kept_back:
            send(event_of(envelope(ACW)))
        assert kept_back.value.retry_in_us == 500_000
        assert len(receiver.requests) == 1
        clock.advance(0.5)
        send(event_of(envelope(ACW)))


def test_sinks_suffer_alone(sink):
    """What one sink suffers keeps no other one back, though it is at the same host."""
    with running_receiver(lambda request: Reply(503 if request.path.endswith("sick") else 200)) as receiver:
        sick = sink(f"{receiver.url}/sick")
        fail(sick, OPENS_AFTER, ReceiverOverloaded)
        fail(sick, 1, Open)
        sink(f"{receiver.url}/well", name="audit")(event_of(envelope(ACW)))


# --- what is never shown ----------------------------------------------------------------------------------------

HIDDEN = "hidden-4711"


@pytest.mark.parametrize(
    "reply",
    [Reply(404, body=b"hidden-4711"), Reply(503), Reply(500), Reply(then="close before answer"), Reply(200), None],
)
def test_errors_show_neither_secrets_nor_payloads(reply, sink):
    """Words, tracebacks and reprs hold the host and the status: no path, no header, nothing of the event."""
    settings = {
        "bearer": Secret("env:TOKEN", HIDDEN),
        "headers": (("X-Plain", HIDDEN),),
        "body": compiled("detail.eventBody.no") if reply == Reply(200) else None,
    }
    with running_receiver(lambda _: reply) as receiver:
        port = free_port() if reply is None else receiver.port
        send = sink(f"http://127.0.0.1:{port}/{HIDDEN}?{HIDDEN}", **settings)
        trees = personal()
        assert trees
        for tree in trees:
            with pytest.raises((SaysWhy, Open)) as raised:
                send(event_of(tree))
            shown = "".join([*traceback.format_exception(raised.value), str(raised.value), repr(send)])
            assert not [text for text in (HIDDEN, *CANARIES.values()) if text in shown]


def test_settings_show_nothing():
    """A sink's settings show their name and topics alone."""
    settings = WebhookSettings(
        name="crm", url=f"https://crm.example/{HIDDEN}", headers=(("X", HIDDEN),), bearer=Secret("env:T", HIDDEN)
    )
    assert repr(settings) == "<WebhookSettings crm for *>"


# --- making one -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"name": "crm", "url": "http://crm.example/hidden"}, "sink crm: url: http:// to crm.example:80"),
        ({"name": "crm", "url": "https://10.0.0.1/hidden"}, "sink crm: url: 10.0.0.1 leads to 10.0.0.1"),
        ({"name": "", "url": "https://169.254.169.254/hidden", "private_addresses": True}, "downstream_url: 169.254"),
        ({"name": "crm", "url": "mailto://crm.example/hidden"}, "sink crm: url: expected one that starts with"),
    ],
)
def test_wrong_urls_are_seen_at_once(settings, words, context):
    """A URL that can never work is refused when the sink is made, without being shown."""
    with pytest.raises(ConfigurationError) as refused:
        make_sink(WebhookSettings(**settings), context)
    assert words in str(refused.value)
    assert "hidden" not in str(refused.value)


def test_a_missing_package_is_named(monkeypatch, context):
    """Without urllib3 the error names the line that installs it."""
    monkeypatch.setitem(sys.modules, "urllib3", None)
    for module in ("webhook", "exchange"):
        monkeypatch.delitem(sys.modules, f"oncebridge.sinks.{module}")
    with pytest.raises(MissingExtra, match=r"pip install 'oncebridge\[http\]'"):
        make_sink(WebhookSettings(name="crm", url="https://crm.example/"), context)


def test_nothing_is_looked_up_before_the_first_event(monkeypatch, context):
    """Making a sink asks no name server and connects to nothing."""
    look_up = socket.getaddrinfo

    def numbers_only(*args, **options):
        assert options["flags"] & socket.AI_NUMERICHOST
        return look_up(*args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", numbers_only)
    make_sink(WebhookSettings(name="crm", url="https://crm.example/"), context).close()


def test_json_of_a_mapping_is_json(sink):
    """What a mapping makes of text with every kind of character is read back as it was."""
    text = 'line\nquote" back\\slash \u2028 \U0001f600 ü'
    request = posted(sink, {"body": compiled("{text: detail.eventBody.text}")}, envelope(ACW, {"text": text}))
    assert json.loads(request.body) == {"text": text}
