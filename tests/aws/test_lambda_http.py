"""A Lambda function behind a URL, a gateway or a load balancer: who may come in, and what is answered."""

import base64
import json

import pytest

from lambda_function import Function, fact, text
from oncebridge import LedgerUnavailable, PermanentError, RetryLater
from oncebridge.breaker import Open
from oncebridge.ledgers.memory import MemoryLedger
from oncebridge.settings.secrets import Secret
from oncebridge.sources.http_reply import METHODS
from oncebridge.telemetry import COLUMNS
from oncebridge.testing.faults import Fault, faulty
from shapes import balancer_request, encoded, gateway_request, message, records, url_request

KEYS = (Secret("env:OLD_KEY", "old key of ours"), Secret("env:NEW_KEY", "new-key-of-ours"))
DOORS = {
    "function URL": url_request,
    "API Gateway": gateway_request,
    "load balancer": balancer_request,
    "load balancer, headers as lists": lambda *given, **changes: balancer_request(*given, many=True, **changes),
}
PROBLEM = "application/problem+json"


def basic(password, user="events"):
    """Write a password as HTTP's own scheme has it."""
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


@pytest.fixture(params=DOORS)
def door(request):
    """Each way a request comes in."""
    return DOORS[request.param]


@pytest.fixture
def function():
    """A function with nothing wrong, open to everybody."""
    with Function() as function:
        yield function


@pytest.fixture
def locked():
    """A function that wants one of two keys."""
    with Function(api_keys=KEYS) as function:
        yield function


def read(answer):
    """Return the body of an answer, whose form is checked."""
    assert answer["isBase64Encoded"] is False
    body = json.loads(answer["body"])
    if answer["statusCode"] == 200:
        assert answer["headers"] == {"Content-Type": "application/json"}
    else:
        assert answer["headers"]["Content-Type"] == PROBLEM
        assert body["status"] == answer["statusCode"]
        assert body["title"]
    return body


# --- what is answered ---------------------------------------------------------------------------------------


def test_what_was_done_is_told_in_the_columns_of_the_books(function, door):
    """A request with several events is answered with how many ended where."""
    answer = function(door(json.dumps([fact(1), fact(2), fact(1)])))
    assert answer["statusCode"] == 200
    assert read(answer) == {**dict.fromkeys(COLUMNS, 0), "received": 3, "processed": 2, "redelivery": 1}


@pytest.mark.parametrize(
    "body",
    [text(1), f"[{text(1)}]", f" \n{text(1)}\n", json.dumps(records(message(text(1)))), json.dumps([text(1)])],
)
def test_a_body_is_an_event_or_any_wrapper(function, door, body):
    """Whatever a body holds is unwrapped like elsewhere, in base64 too."""
    assert function(door(body))["statusCode"] == 200
    assert function(door(encoded(body), isBase64Encoded=True))["statusCode"] == 200
    assert function.done == [1]


def test_what_failed_has_to_come_again(function, door):
    """While anything is not acknowledged the answer is 503, with a time to come again."""
    function.does[2] = RuntimeError("no luck")
    answer = function(door(json.dumps([fact(1), "hello", fact(2)])))
    assert answer["statusCode"] == 503
    assert "1 of 3 deliveries have to come again" in read(answer)["detail"]
    assert answer["headers"]["Retry-After"] == "1"
    assert function.done == [1]


@pytest.mark.parametrize(
    ("failure", "seconds"),
    [
        (RuntimeError(), "1"),
        (RetryLater(after_seconds=7.2), "8"),
        (RetryLater(after_seconds=60), "60"),
        (RetryLater(after_seconds=1e9), "3600"),
        (Open(3, 1, "refused"), "1"),
        (Open(3, 4_000_001, "refused"), "5"),
    ],
)
def test_retry_after_is_whole_seconds_of_the_longest_wait(function, failure, seconds):
    """A sender that comes again at that time comes early for none, and none waits for more than an hour."""
    function.does |= {1: RetryLater(after_seconds=0.5), 2: failure}
    headers = function(url_request(json.dumps([fact(1), fact(2)])))["headers"]
    assert headers["Retry-After"] == seconds


def test_an_unreadable_body_is_kept_and_refused(function, door):
    """What cannot be read is a dead letter, and the sender is told that sending it again is no use."""
    answer = function(door("hello"))
    assert answer["statusCode"] == 400
    assert "1 of 1 kept as dead letters; the first is unreadable: is not JSON" in read(answer)["detail"]
    assert function.statuses == {"dead": 1}
    assert function(door("hello"))["statusCode"] == 400
    assert function.statuses == {"dead": 1}


@pytest.mark.parametrize("body", [None, "", " ", "null", "3", "[]", "{}", "[[[[]]]]", "\ud800", "[" * 200, {"a": 1}, 7])
def test_a_body_without_an_event_is_refused(function, door, body):
    """A request that brings nothing is answered like one that brings something unreadable."""
    assert function(door(body))["statusCode"] == 400


def test_no_body_is_an_empty_one(function, door):
    """A request without a body is told what is wrong with it."""
    assert "unreadable: is empty" in read(function(door(None)))["detail"]


def test_what_is_not_allowed_is_refused(door):
    """Somebody else's event is a dead letter, and no handler sees it."""
    with Function(allowed_orgs=("another org",)) as function:
        answer = function(door(text(1)))
        assert answer["statusCode"] == 400
        assert "not allowed" in read(answer)["detail"]
        assert function.tried == []


def test_what_failed_for_good_is_acknowledged(function, door):
    """A dead letter of a handler is the bridge's own affair: the sender has done nothing wrong."""
    function.does[1] = PermanentError()
    answer = function(door(text(1)))
    assert answer["statusCode"] == 200
    assert read(answer)["dead"] == 1


def test_a_ledger_out_of_reach_is_told_as_such(door, caplog):
    """The sender comes again; where the ledger is and what it says is in the log, not in the answer."""

    def fail():
        raise LedgerUnavailable("redis://cache.internal:6379: refused")

    with Function(faulty(MemoryLedger(), Fault("claim", call=0, act=fail))) as function:
        answer = function(door(text(1)))
        assert answer["statusCode"] == 503
        assert answer["headers"]["Retry-After"] == "10"
        assert read(answer)["detail"] == "the ledger is out of reach"
        assert function.tried == []
    (line,) = caplog.records
    assert (line.levelname, line.name) == ("WARNING", "oncebridge")
    assert "cache.internal" in line.message


def test_a_load_balancer_gets_headers_the_way_it_sends_them(function):
    """One that sends lists of values looks at lists of values only."""
    lists = function(balancer_request("hello", many=True))
    assert lists["multiValueHeaders"] == {"Content-Type": [PROBLEM]}
    assert "multiValueHeaders" not in function(balancer_request("hello"))
    assert "multiValueHeaders" not in function(gateway_request("hello"))


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE", "OPTIONS", "get", ""])
def test_other_methods_are_not_for_events(function, door, method):
    """A browser that looks at the URL writes nothing."""
    answer = function(door(None, method=method))
    assert answer["statusCode"] == 405
    assert answer["headers"]["Allow"] == ", ".join(METHODS)
    assert function.books == {}


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "post"])
def test_every_method_with_a_body_brings_events(function, door, method):
    """An API destination may be set to any of these; refused, its events would be dropped."""
    assert function(door(text(1), method=method))["statusCode"] == 200


@pytest.mark.parametrize("http", [{}, {"method": None}, {"method": 3}])
def test_a_request_that_names_no_method_is_looked_at(function, http):
    """In doubt, process."""
    assert function(url_request(text(1), requestContext={"http": http}))["statusCode"] == 200
    assert function.done == [1]


# --- who may come in ----------------------------------------------------------------------------------------

RIGHT = {
    "own header": {"X-API-Key": "new-key-of-ours"},
    "the other key": {"X-API-Key": "old key of ours"},
    "small letters": {"x-api-key": "new-key-of-ours"},
    "white space around": {"X-Api-Key": " new-key-of-ours "},
    "bearer": {"Authorization": "Bearer new-key-of-ours"},
    "bearer in small letters": {"authorization": "bearer new-key-of-ours"},
    "password": {"Authorization": basic("new-key-of-ours")},
    "password of nobody": {"AUTHORIZATION": basic("old key of ours", user="")},
    "a wrong one beside it": {"Authorization": "Bearer wrong", "X-API-Key": "new-key-of-ours"},
}
WRONG = {
    "none": {},
    "wrong": {"X-API-Key": "wrong"},
    "empty": {"X-API-Key": ""},
    "a part": {"X-API-Key": "new-key-of-our"},
    "more": {"X-API-Key": "new-key-of-ours."},
    "other letters": {"X-API-Key": "New-Key-Of-Ours"},
    "both at once": {"X-API-Key": "old key of ours, new-key-of-ours"},
    "no ASCII": {"X-API-Key": "new-key-of-oursß"},
    "half a character": {"X-API-Key": "\ud800"},
    "as user": {"Authorization": basic("", user="new-key-of-ours")},
    "without a scheme": {"Authorization": "new-key-of-ours"},
    "another scheme": {"Authorization": "Digest new-key-of-ours"},
    "bearer alone": {"Authorization": "Bearer"},
    "basic, no base64": {"Authorization": "Basic new-key-of-ours"},
    "basic, no colon": {"Authorization": "Basic " + encoded("new-key-of-ours")},
    "basic, no text": {"Authorization": "Basic " + encoded(b"\xff:\xff")},
    "in another header": {"X-Key": "new-key-of-ours"},
    "a number": {"X-API-Key": 7},
    "nothing": {"X-API-Key": None},
}


@pytest.mark.parametrize("headers", RIGHT.values(), ids=RIGHT)
def test_whoever_knows_a_key_comes_in(locked, door, headers):
    """A key may be sent in the ways that senders know, and each of several keys is good."""
    assert locked(door(text(1), headers))["statusCode"] == 200
    assert locked.done == [1]


@pytest.mark.parametrize("headers", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("method", ["POST", "GET"])
def test_whoever_does_not_stays_outside(locked, door, headers, method):
    """Without a key nothing is looked at, and nothing is written: not even as a dead letter."""
    answer = locked(door(text(1), headers, method))
    assert answer["statusCode"] == 401
    assert "WWW-Authenticate" in answer["headers"]
    assert "key-of-ours" not in json.dumps(answer)
    read(answer)
    assert locked.books == {}
    assert locked.statuses == {}


@pytest.mark.parametrize("headers", [None, [], "X-API-Key: new-key-of-ours", 3, {"X-API-Key": ["wrong", None, 3]}])
def test_headers_of_any_form_are_looked_at(locked, door, headers):
    """Headers that are no headers hold no key."""
    request = door(text(1))
    for name in ("headers", "multiValueHeaders"):
        if name in request:
            request[name] = headers
    assert locked(request)["statusCode"] == 401


def test_every_key_is_compared_whatever_was_sent(locked, monkeypatch):
    """How long it takes tells nobody which key was nearly right, or whether the first one was."""
    compared = []
    from oncebridge.sources import api_keys

    def compare(one, other):
        compared.append((one, other))
        return one == other

    monkeypatch.setattr(api_keys.hmac, "compare_digest", compare)
    for key in ("old key of ours", "new-key-of-ours", "wrong", "x" * 1000):
        compared.clear()
        locked(url_request(text(1), {"X-API-Key": key}))
        assert len(compared) == len(KEYS)
        assert {len(digest) for pair in compared for digest in pair} == {32}


def test_keys_are_for_requests_alone(locked):
    """What AWS itself hands over is let in by AWS' own rules."""
    assert locked(fact(1))["processed"] == 1
    assert locked(records(message(text(2)))) == {"batchItemFailures": []}


# --- without keys -------------------------------------------------------------------------------------------


def context_of(door, **context):
    """Write a request with more in its context, as AWS writes it."""
    request = door(text(1))
    return {**request, "requestContext": {**request["requestContext"], **context}}


def test_without_keys_nobody_may_come_in(door, caplog):
    """Anybody who knows the URL could send events: refused so that the sender keeps them, with how to set keys."""
    with Function(allow_requests_without_key=False) as function:
        answer = function(door(text(1)))
        assert answer["statusCode"] == 401
        assert "no keys are set" in read(answer)["detail"]
        forged = {"X-Api-Key": "", "Authorization": "Bearer x", "X-Amzn-Iam": "me", "requestContext": "authorizer"}
        assert function(door(text(1), forged))["statusCode"] == 401
        assert function(door(json.dumps({**fact(1), "requestContext": {"authorizer": IAM}})))["statusCode"] == 401
        assert function.tried == []
        assert function.statuses == {}
    assert "ONCEBRIDGE_API_KEYS" in caplog.text


IAM = {"iam": {"accountId": "210987654321", "userArn": "arn:aws:iam::210987654321:user/events", "callerId": "A"}}


@pytest.mark.parametrize(
    ("door", "context"),
    [
        (url_request, {"authorizer": IAM}),
        (url_request, {"authorizer": {"jwt": {"claims": {"sub": "genesys"}, "scopes": None}}}),
        (url_request, {"authorizer": {"lambda": {"tenant": "genesys"}}}),
        (gateway_request, {"authorizer": {"principalId": "genesys"}}),
        (gateway_request, {"authorizer": {"claims": {"sub": "genesys"}}}),
        (gateway_request, {"identity": {"userArn": "arn:aws:iam::210987654321:user/events"}}),
    ],
)
def test_whom_aws_has_let_in_needs_no_key(door, context):
    """A function URL or a gateway that asks for IAM, a token or an authorizer says so in the request's context."""
    with Function(allow_requests_without_key=False) as function:
        assert function(context_of(door, **context))["statusCode"] == 200
        assert function.done == [1]


@pytest.mark.parametrize(
    "context",
    [
        {"authorizer": None}, {"authorizer": {}}, {"authorizer": {"iam": None}}, {"authorizer": {"iam": {}}},
        {"authorizer": "iam"}, {"authorizer": {"lambda": None}}, {"authorizer": ["iam"]}, {"authentication": None},
        {"identity": {"userArn": None}}, {"identity": {"sourceIp": "10.0.0.1", "apiKey": "sent-by-anybody"}},
    ],
)  # fmt: skip
def test_a_context_that_names_nobody_lets_nobody_in(door, context):
    """An authorizer that is not there says nothing."""
    with Function(allow_requests_without_key=False) as function:
        assert function(context_of(door, **context))["statusCode"] == 401
        assert function.tried == []


def test_a_request_holds_a_bounded_number_of_deliveries(door):
    """One that holds more is told so, and nothing of it is processed or kept."""
    with Function(deliveries_per_request=3) as function:
        for body in ([fact(n) for n in range(4)], records(*(message(text(n)) for n in range(4))), [[{}, {}], [{}, {}]]):
            answer = function(door(json.dumps(body)))
            assert answer["statusCode"] == 413
            assert "3 deliveries" in read(answer)["detail"]
        assert function.tried == []
        assert function.statuses == {}
        assert function(door(json.dumps([fact(n) for n in range(3)])))["statusCode"] == 200
