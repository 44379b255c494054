"""Events over HTTP: answers, keys, and the limits of a request."""

import asyncio
import gc
import json
import weakref

import pytest

from lambda_function import Function, fact, text
from oncebridge import LedgerUnavailable, PermanentError, RetryLater, Settings
from oncebridge.errors import LedgerRefused
from oncebridge.ledgers.memory import MemoryLedger
from oncebridge.service import request_batcher, request_limits
from oncebridge.settings.serve import ServeSettings
from oncebridge.sources.http_reply import METHODS
from oncebridge.telemetry import COLUMNS
from oncebridge.testing.faults import Fault, faulty
from payloads import CANARIES, personal
from servers.process import wait_until
from service.serving import KEYS, PATIENCE_SECONDS, Gate, Service, answers, problem
from shapes import encoded, message, records, url_request

NEW_KEY = KEYS[1].value
BODIES = {
    "an event": text(1),
    "events": json.dumps([fact(1), fact(2), fact(1)]),
    "a wrapper": json.dumps(records(message(text(1)), message(text(2)))),
    "text in a list": json.dumps([text(1), "hello"]),
    "no JSON": "hello",
    "nothing": "",
    "an empty list": "[]",
    "no object": "3",
    "far too deep": "[" * 200 + "]" * 200,
    "one that fails": json.dumps([fact(1), "hello", fact(7)]),
    "one that waits": text(8),
    "one that is given up": text(9),
}
WRONG = {
    "none": {},
    "wrong": {"X_API_Key": "wrong"},
    "empty": {"X_API_Key": ""},
    "a part": {"X_API_Key": NEW_KEY[:-1]},
    "more": {"X_API_Key": NEW_KEY + "."},
    "both at once": {"X_API_Key": ", ".join(key.value for key in KEYS)},
    "no ASCII": {"X_API_Key": "ß"},
    "as user": {"Authorization": "Basic " + encoded(f"{NEW_KEY}:")},
    "basic, no base64": {"Authorization": f"Basic {NEW_KEY}"},
    "basic, odd base64": {"Authorization": "Basic ====="},
    "basic, no text": {"Authorization": "Basic " + encoded(b"\xff:\xff")},
    "basic, alone": {"Authorization": "Basic"},
    "another scheme": {"Authorization": f"Digest {NEW_KEY}"},
    "no scheme": {"Authorization": NEW_KEY},
    "another header": {"X_Forwarded_For": "127.0.0.1"},
}


def closes(answered):
    """Tell whether the connection is closed after this answer."""
    return answered.headers.get("connection") == "close"


# --- what is answered ---------------------------------------------------------------------------------------


def test_what_was_done_is_told_in_the_columns_of_the_books(service):
    """A request with several events is answered with how many ended where."""
    answered = service.event(1, 2, 1)
    assert answered.status == 200
    assert answered.headers["content-type"] == "application/json"
    assert answered.json == {**dict.fromkeys(COLUMNS, 0), "received": 3, "processed": 2, "redelivery": 1}
    assert service.books == {"received": 3, "processed": 2, "redelivery": 1}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_the_service_answers_as_lambda_does(service, body):
    """A function URL and the service give the same answers."""
    acts = {7: RuntimeError(), 8: RetryLater(after_seconds=42), 9: PermanentError()}
    service.does |= acts
    with Function() as function:
        function.does |= acts
        same = function(url_request(body))
    answered = service.events(body).result(PATIENCE_SECONDS)
    assert answered.status == same["statusCode"]
    assert answered.body.decode() == same["body"]
    for name, value in same["headers"].items():
        assert answered.headers[name.lower()] == value
    assert service.statuses == function.statuses
    assert service.books == function.books


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ["application/json", "text/plain", "", "nonsense\x7f"])
def test_any_method_with_a_body_brings_events_of_any_type(service, method, kind):
    """An API destination may be set to any of these; refused, its events would be dropped."""
    assert service.events(text(1), method, Content_Type=kind).result(PATIENCE_SECONDS).status == 200
    assert service.done == {1: 1}


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE", "OPTIONS", "TRACE", "post"])
def test_other_methods_are_not_for_events(service, method):
    """A browser that looks at the URL writes nothing."""
    answered = service.events(text(1), method).result(PATIENCE_SECONDS)
    assert answered.status == 405
    assert answered.headers["allow"] == ", ".join(METHODS)
    assert service.books == {}


def test_without_a_handler_events_have_to_come_again():
    """With 200 the event would be lost, with 404 dropped; with 503 its sender keeps it until a handler is set."""
    with Service(handled=False) as service:
        answered = service.event(1)
        assert answered.status == 503
        assert "no handler and no sink" in problem(answered)
        assert answered.headers["retry-after"] == "60"
        assert service.books == {}


def test_a_downstream_address_is_a_sink_too():
    """The variable that programs before this one had is enough to be served."""
    with Service(handled=False, downstream_url="http://127.0.0.1:9/") as service:
        assert "have to come again" in problem(service.event(1))
        assert service.books == {"received": 1, "retrying": 1}


# --- who may come in ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {"X_API_Key": NEW_KEY},
        {"X_API_Key": KEYS[0].value},
        {"Authorization": f"Bearer {NEW_KEY}"},
        {"Authorization": "Basic " + encoded(f"events:{NEW_KEY}")},
        {"Authorization": "Basic nonsense", "X_API_Key": NEW_KEY},
    ],
)
def test_whoever_knows_a_key_comes_in(locked, headers):
    """A key may be sent in the ways that senders know, and each of several keys is good."""
    assert locked.event(1, **headers).status == 200


def test_whoever_does_not_is_told_the_same_before_anything_is_read(locked):
    """Every wrong key looks like none at all, and no byte of a body is waited for, nor looked at."""
    got = [locked.dribble([b"x"] * 5, **headers).result(PATIENCE_SECONDS) for headers in WRONG.values()]
    assert {unread for _, unread in got} == {5}
    (answered,) = {(one.status, one.body, *sorted(one.headers.items())) for one, _ in got}
    assert answered[0] == 401
    assert b"key-of-ours" not in answered[1]
    assert closes(got[0][0])
    assert got[0][0].headers["www-authenticate"].startswith("Bearer")
    assert locked.books == {}
    assert locked.statuses == {}


def test_metrics_need_a_key_and_health_does_not():
    """Numbers may tell something about a business; that a service is there tells nothing."""
    with Service(api_keys=KEYS, metrics=lambda: b"up 1\n") as service:
        assert service.send("GET", "/metrics").status == 401
        answered = service.send("GET", "/metrics", X_API_Key=NEW_KEY)
        assert (answered.status, answered.body) == (200, b"up 1\n")
        assert answered.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert service.send("GET", "/health").json == {"status": "ok", "ledger": "in reach"}
        assert service.send("GET", "/openapi.json").status == 200


@pytest.mark.parametrize("path", ["/", "/event", "/events/", "/EVENTS", "//events", "/events/..", "/metrics", "/%00"])
def test_what_is_not_there_is_told_as_a_problem(service, path):
    """No path is guessed and none redirected: senders of events do not follow."""
    answered = service.send("POST", path, text(1).encode())
    assert answered.status == (405 if path == "/metrics" else 404)
    problem(answered)
    assert service.books == {}


# --- how much, and in what time -----------------------------------------------------------------------------


def test_a_body_that_is_too_large_is_not_read():
    """What says that it is too large is refused at its word."""
    with Service(serve={"body_bytes_max": 1000}) as service:
        answered, unread = service.dribble([b"x" * 600] * 5, Content_Length="3000").result(PATIENCE_SECONDS)
        assert (answered.status, unread) == (413, 5)
        assert closes(answered)
        assert "1,000 bytes" in problem(answered)


@pytest.mark.parametrize(
    "said", [{}, {"Content_Length": "7"}, {"Content_Length": "-1"}, {"Content_Length": "9" * 5000}]
)
def test_a_body_that_becomes_too_large_is_not_read_to_its_end(said):
    """What says nothing, or something else, is refused as soon as it is too large."""
    with Service(serve={"body_bytes_max": 1000}) as service:
        answered, unread = service.dribble([b"x" * 600] * 5, **said).result(PATIENCE_SECONDS)
        assert (answered.status, unread) == (413, 3)
        assert closes(answered)


def test_a_body_of_just_the_limit_is_read():
    """The limit is the largest that is allowed."""
    with Service(serve={"body_bytes_max": len(text(1))}) as service:
        assert service.event(1).status == 200
        assert service.events(text(1) + " ").result(PATIENCE_SECONDS).status == 413


def test_a_body_in_many_parts_is_put_together(service):
    """How a body was cut on its way says nothing."""
    parts = [bytes([byte]) for byte in text(1).encode()]
    answered, _ = service.dribble(parts, ends=True).result(PATIENCE_SECONDS)
    assert answered.status == 200
    assert service.done == {1: 1}


def test_a_body_that_does_not_arrive_has_to_come_again():
    """A slow sender gets 503, not 400: otherwise an event would be dropped because its network was busy."""
    with Service(serve={"read_within_seconds": 0.1}) as service:
        answered, _ = service.dribble([text(1).encode()[:-1]]).result(PATIENCE_SECONDS)
        assert answered.status == 503
        assert answered.headers["retry-after"] == "1"
        assert closes(answered)
        assert service.books == {}


def test_a_request_that_is_cancelled_is_not_taken_for_a_slow_one():
    """A server cancels the request of a client that has gone: its bytes are released, and nothing is answered."""

    async def main():
        limits = request_limits.RequestLimits(Settings(serve=ServeSettings(body_bytes_max=10)))
        arrived = asyncio.Event()
        parts = iter([{"type": "http.request", "body": b"half", "more_body": True}])

        async def receive():
            for part in parts:
                return part
            arrived.set()
            return await asyncio.Future()

        reading = asyncio.ensure_future(limits.read({"headers": []}, receive))
        await arrived.wait()
        held = limits._held_bytes
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        return held, limits._held_bytes

    assert asyncio.run(main()) == (4, 0)


def test_a_request_is_forgotten_once_it_is_answered(service, monkeypatch):
    """Its timers hold on to nothing until its time would have been over, which may be a minute of requests."""
    start, replies = request_batcher.RequestBatcher.start, []

    def noted(batcher):
        request = start(batcher)
        replies.append(weakref.ref(request.reply))
        return request

    monkeypatch.setattr(request_batcher.RequestBatcher, "start", noted)
    assert {service.event(number).status for number in range(5)} == {200}
    assert len(replies) == 5
    wait_until(lambda: gc.collect() >= 0 and not any(reply() for reply in replies), "the requests to be forgotten")


def test_bodies_of_all_requests_together_are_bounded(monkeypatch):
    """Many large bodies that never end do not fill the memory, and once they are gone there is room again."""
    monkeypatch.setattr(request_limits, "HELD_BYTES_MIN", 0)
    with Service(serve={"body_bytes_max": 10_000, "read_within_seconds": 0.3}) as service:
        slow = [service.dribble([b"x" * 9000]) for _ in range(10)]
        statuses = [answered.status for answered, _ in answers(slow)]
        assert statuses == [503] * 10
        assert service.event(1).status == 200
        assert service.event(*range(2, 5)).status == 200


def test_what_becomes_too_much_is_refused_at_once(monkeypatch):
    """A request that arrives when too many bytes are held is not read any further."""
    monkeypatch.setattr(request_limits, "HELD_BYTES_MIN", 0)
    monkeypatch.setattr(request_limits, "LARGEST_BODIES", 1)
    with Service(serve={"body_bytes_max": 10_000}) as service:
        service.dribble([b"x" * 9000])
        answered, unread = service.dribble([b"x" * 900] * 5).result(PATIENCE_SECONDS)
        assert (answered.status, unread) == (503, 3)
        assert "too much" in problem(answered)


def test_a_sender_that_leaves_brings_nothing(service):
    """Half an event is no event."""
    answered, _ = service.dribble([text(1).encode()[:-1]], leaves=True).result(PATIENCE_SECONDS)
    assert answered.status == 503
    assert service.books == {}


def test_a_large_body_is_taken_apart_as_well(service):
    """A wrapper of a megabyte holds as many events as it holds."""
    body = json.dumps(records(*[message(text(number, note="x" * 2000)) for number in range(500)]))
    answered = service.events(body).result(PATIENCE_SECONDS)
    assert answered.json["processed"] == 500


# --- from beginning to end ----------------------------------------------------------------------------------


def test_a_ledger_out_of_reach_is_no_reason_not_to_start():
    """Requests get 503 until the ledger is back, and the service need not be restarted."""
    ledger = faulty(MemoryLedger(), Fault("open", call=1))
    with Service(ledger) as service:
        assert service.event(1).status == 200


def test_a_ledger_that_refuses_is_one():
    """Another secret will not go away by itself."""

    def refuse():
        raise LedgerRefused("another secret")

    service = Service(faulty(MemoryLedger(), Fault("open", call=0, act=refuse)))
    try:
        told = service.begin()
        assert told == {"type": "lifespan.startup.failed", "message": "another secret"}
        assert problem(service.event(1)) == "the ledger is out of reach"
    finally:
        service.close()


def test_a_stop_lets_running_work_finish_and_answers_what_waits():
    """Running requests finish with 200, waiting ones get 503, and the ledger is closed after that."""
    ledger = faulty(MemoryLedger())
    gate = Gate()
    with Service(ledger, concurrency=2) as service:
        service.does |= {1: gate, 2: gate}
        running = [service.events(text(number)) for number in (1, 2)]
        gate.wait_for_somebody()
        gate.wait_for_somebody()
        waiting = [service.events(text(number)) for number in (3, 4)]
        wait_until(lambda: service.books.get("received") == 4, "the others to arrive")
        ended = service.start_to_end()
        assert [answered.status for answered in answers(waiting)] == [503, 503]
        assert service.event(5).status == 503
        assert service.send("GET", "/health").status == 503
        assert ledger.calls["close"] == 0
        gate.open()
        assert [answered.status for answered in answers(running)] == [200, 200]
        ended.result(PATIENCE_SECONDS)
        assert ledger.calls["close"] == 1
    assert service.done == {1: 1, 2: 1}
    assert service.books == {"received": 4, "processed": 2, "retrying": 2}


# --- what cannot be read ------------------------------------------------------------------------------------


def test_the_unreadable_ones_of_a_request_are_one_letter():
    """Each request leaves one dead letter, however many unreadable deliveries it has and also beside other requests."""
    with Service() as service:
        bodies = [json.dumps([{"request": request, "n": n} for n in range(200)]) for request in range(3)]
        got = answers([service.events(body) for body in bodies])
        assert [answered.status for answered in got] == [400, 400, 400]
        assert len(list(service.bridge.dead_letters.list())) == 3
        assert service.books == {"received": 600, "dead": 600}


# --- what is never told -------------------------------------------------------------------------------------


def test_nothing_that_was_sent_is_logged_or_told(caplog):
    """Keys, bodies and headers are in no log line and in no answer, also when something fails."""
    caplog.set_level("DEBUG")

    def fail():
        raise LedgerUnavailable("redis://cache.internal:6379: refused")

    ledger = faulty(MemoryLedger(), Fault("claim", call=0, act=fail))
    headers = {"X_API_Key": NEW_KEY, "X_Secret": "header-of-ours"}
    got = []
    with Service(ledger, api_keys=KEYS, serve={"body_bytes_max": 100_000}) as service:
        for body in (json.dumps(personal()), CANARIES["phone"], f'["{CANARIES["name"]}', "x" * 200_000):
            got += [service.events(body, **headers), service.events(body, X_API_Key=NEW_KEY + "x")]
            got += [service.start("POST", path, body.encode(), **headers) for path in ("/claims", "/nowhere")]
        told = b"".join(answered.body + str(answered.headers).encode() for answered in answers(got)).decode()
    for secret in (*CANARIES.values(), NEW_KEY, "header-of-ours", "cache.internal"):
        assert secret not in told
    logged = "".join(f"{record.getMessage()} {record.__dict__}" for record in caplog.records)
    for secret in (*CANARIES.values(), NEW_KEY, "header-of-ours"):
        assert secret not in logged
    assert "cache.internal" in logged
