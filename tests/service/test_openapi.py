"""The OpenAPI document is true: it is valid, its examples work, and the service answers nothing that is not in it."""

import copy
import itertools
import json

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openapi_spec_validator import validate

from oncebridge import Bridge, ConfigurationError, Settings
from oncebridge.ledgers.memory import MemoryLedger
from oncebridge.service.openapi import document
from oncebridge.settings import load_settings
from oncebridge.settings.secrets import Secret
from oncebridge.settings.serve import ServeSettings
from oncebridge.testing.faults import Fault, faulty
from payloads import ACW, envelope, presence, raw
from service.clients import PATIENT, Desk

DOCUMENT = document()
CLAIM_PATHS = ("/claims", "/claims/extend", "/claims/settle")
OPERATIONS = [
    (path, method, operation) for path, methods in DOCUMENT["paths"].items() for method, operation in methods.items()
]


def resolved(node):
    """Follow a reference within the document."""
    while "$ref" in node:
        found = DOCUMENT
        for name in node["$ref"].removeprefix("#/").split("/"):
            found = found[name]
        node = found
    return node


def check_schema(schema, value):
    """Hold a value against a schema of the document."""
    whole = {**schema, "components": DOCUMENT["components"]}
    jsonschema.Draft202012Validator(whole).validate(value)


def examples_of(content):
    """Return the examples of a body, by name."""
    found = {name: copy.deepcopy(example["value"]) for name, example in content.get("examples", {}).items()}
    return found | ({"example": content["example"]} if "example" in content else {})


def check_answer(path, method, answered):
    """Hold an answer against the document: its status, its headers, its media type, its body."""
    responses = DOCUMENT["paths"][path][method]["responses"]
    assert str(answered.status) in responses, (path, answered)
    response = resolved(responses[str(answered.status)])
    for name in response.get("headers", {}):
        value = answered.headers[name.lower()]
        schema = resolved(response["headers"][name])["schema"]
        check_schema(schema, int(value) if schema["type"] == "integer" else value)
    media = answered.headers["content-type"].partition(";")[0]
    content = response["content"][media]
    check_schema(content["schema"], answered.json if media.endswith("json") else answered.body.decode())
    assert "should not have" not in answered.body.decode(), answered


# --- the document by itself ----------------------------------------------------------------------------------


def test_the_document_is_valid():
    """It is OpenAPI 3.1, and every reference leads somewhere."""
    validate(DOCUMENT)
    assert DOCUMENT["openapi"].startswith("3.1")


def test_its_examples_fit_its_schemas():
    """Each example of a request or an answer is what the schema beside it says."""
    contents = [content for _, _, operation in OPERATIONS for content in _contents(operation)]
    assert sum(len(examples_of(content)) for content in contents) > 15
    for content in contents:
        for example in examples_of(content).values():
            check_schema(content["schema"], example)


def _contents(operation):
    bodies = [operation.get("requestBody", {"content": {}}), *map(resolved, operation["responses"].values())]
    return [content for body in bodies for content in body["content"].values()]


def test_the_schemas_know_the_limits_of_the_settings():
    """What a schema allows of a lease is what the service takes, and no more."""
    schema = DOCUMENT["components"]["schemas"]["ClaimRequest"]["properties"]["lease_seconds"]["anyOf"][0]
    for good in (schema["minimum"], schema["maximum"]):
        load_settings(lease_seconds=good)
    for bad in (schema["minimum"] - 0.01, schema["maximum"] + 1):
        with pytest.raises(ConfigurationError, match="lease_seconds: expected a number"):
            load_settings(lease_seconds=bad)


@pytest.mark.parametrize("name", ["ClaimAnswer", "ExtendAnswer", "SettleAnswer", "Books", "Health", "KeptProblem"])
def test_an_answer_always_has_every_field(name):
    """Clients need not ask whether a field is there; and an answer has no field that the document does not name."""
    schema = DOCUMENT["components"]["schemas"][name]
    assert set(schema["required"]) == set(schema["properties"])
    assert schema["additionalProperties"] is False


def test_every_field_of_a_request_is_described():
    """What a field means is said in its type, also where it may be null."""
    fields = [
        field
        for name in ("ClaimRequest", "ExtendRequest", "SettleRequest")
        for field in DOCUMENT["components"]["schemas"][name]["properties"].values()
    ]
    assert len(fields) == 10
    for field in fields:
        assert "description" in resolved(field) or "description" in field["anyOf"][0]


def test_the_service_hands_the_document_out(desk):
    """It needs no key, and is the whole of it."""
    answered = desk.client.send("GET", "/openapi.json")
    assert answered.json == json.loads(json.dumps(DOCUMENT))
    check_answer("/openapi.json", "get", answered)


# --- its examples against the service ------------------------------------------------------------------------


def test_its_examples_work(place):
    """Each request that it shows is answered with 200, as it says; claims are replaced by real ones."""
    sent = set()
    for path, method, operation in OPERATIONS:
        contents = operation.get("requestBody", {"content": {}})["content"]
        for name, example in (pair for content in contents.values() for pair in examples_of(content).items()):
            desk = place.desk(MemoryLedger(place.clock), handle=_handle if path == "/events" else None)
            if "claim" in example:
                claims = DOCUMENT["paths"]["/claims"]["post"]["requestBody"]["content"]["application/json"]
                claimed = desk.client.post("/claims", examples_of(claims)["plain"]).json
                example["claim"] = claimed["claim"]
            answered = desk.client.send(method.upper(), path, json.dumps(example).encode())
            assert answered.status == 200, (path, name, answered)
            check_answer(path, method, answered)
            sent.add(path)
            assert answered.json.get("ok", True) is True
            if path == "/claims/settle":
                assert answered.json["outcome"] == example["outcome"]
    assert sent == {"/events", "/claims", "/claims/extend", "/claims/settle"}


def _handle(bridge):
    bridge.on("*")(lambda event: None)


def test_what_is_shown_as_answers_is_what_is_answered(desk):
    """The shown answers to the shown claim come in this order: fresh, busy, redelivery; but for keys and times."""
    operation = DOCUMENT["paths"]["/claims"]["post"]
    request = examples_of(operation["requestBody"]["content"]["application/json"])["plain"]
    shown = examples_of(operation["responses"]["200"]["content"]["application/json"])
    fresh = desk.client.post("/claims", request).json
    busy = desk.client.post("/claims", request).json
    desk.settle(fresh, "done")
    redelivery = desk.client.post("/claims", request).json
    for name, answered in (("fresh", fresh), ("busy", busy), ("redelivery", redelivery)):
        steady = {
            field for field, value in shown[name].items() if field not in ("key", "claim", "token", "retry_in_seconds")
        }
        assert {field: answered[field] for field in steady} == {field: shown[name][field] for field in steady}
        kinds = {field: type(value) for field, value in shown[name].items()}
        assert {field: type(value) for field, value in answered.items()} == kinds


def test_the_problems_that_it_shows_are_those_that_are_told(place):
    """Each problem document in it comes word for word, but for keys."""
    desk = place.desk(handle=_handle)
    locked = place.desk(api_keys=(Secret("env:A", "the-only-key"),))
    broken = place.desk(faulty(MemoryLedger(place.clock), Fault("open", call=0)))
    post, named = desk.client.post, {"handler": "desktop"}
    told = {
        "WrongEvents": [desk.client.send("POST", "/events")],
        "WrongRequest": [post("/claims/extend", {"claim": "cut"})],
        "WrongClaim": [post("/claims", {"event": {}, "lease_seconds": 0}), post("/claims", {"event": "", **named})],
        "NoKey": [locked.client.post("/claims", {})],
        "NotMeasured": [desk.client.send("GET", "/metrics")],
        "WrongMethod": [desk.client.send("GET", "/claims")],
        "TooLarge": [post("/claims", raw=b" " * (ServeSettings().body_bytes_max + 1))],
        "ComeAgain": [broken.client.post("/claims", {"event": envelope(ACW)})],
    }
    assert set(told) == set(DOCUMENT["components"]["responses"])
    for name, response in DOCUMENT["components"]["responses"].items():
        shown = examples_of(response["content"]["application/problem+json"]).values()
        for example, answered in zip(shown, told[name], strict=True):
            assert {**answered.json, "key": None} == {**example, "key": None}


@pytest.mark.parametrize(("path", "method", "operation"), OPERATIONS, ids=[path for path, _, _ in OPERATIONS])
def test_every_route_is_there_and_says_who_may_ask(place, path, method, operation):
    """With keys, the routes without security answer all the same, and the others 401; another method gets 405."""
    desk = place.desk(api_keys=(Secret("env:A", "the-only-key"),))
    answered = desk.client.send(method.upper(), path)
    assert (answered.status == 401) is (operation.get("security") != [])
    check_answer(path, method, answered)
    wrong = desk.client.send("DELETE", path, X_API_Key="the-only-key")
    assert wrong.status == 405
    check_answer(path, method, wrong)


def test_its_security_schemes_let_in(place):
    """A key is taken in each way that is listed."""
    desk = place.desk(api_keys=(Secret("env:A", "the-only-key"),))
    schemes = DOCUMENT["components"]["securitySchemes"]
    assert {name for one in DOCUMENT["security"] for name in one} == set(schemes)
    ways = {
        "key": {schemes["key"]["name"].replace("-", "_"): "the-only-key"},
        "bearer": {"Authorization": "Bearer the-only-key"},
        "password": {"Authorization": "Basic YW55OnRoZS1vbmx5LWtleQ=="},
    }
    for name in schemes:
        assert desk.client.post("/claims", {"event": envelope(ACW)}, **ways[name]).status == 200


# --- whatever else is sent -----------------------------------------------------------------------------------

_event = presence("BUSY", modified_ms=1_748_860_200_123)
_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["done", "retry", "dead", "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
_events = st.just(_event) | st.just(raw(_event).decode()) | st.just([_event]) | _values
_numbers = st.sampled_from([0, 0.1, 5, 43_200, 43_201, -1, 1e308, 10**30, True, "5"]) | _values
_names = st.sampled_from(
    ["event", "handler", "lease_seconds", "claim", "outcome", "retry_in_seconds", "detail", "other"]
)


@st.composite
def bodies(draw):
    """Draw the body of a request: nearly right, quite wrong, or no JSON at all."""
    usual = {
        "event": _events,
        "handler": st.sampled_from(["desktop", "", "a b", None]) | _values,
        "lease_seconds": _numbers,
        "claim": st.just("REAL") | st.text(alphabet="AB_-=", max_size=8) | _values,
        "outcome": st.sampled_from(["done", "retry", "release", "dead", "discard"]) | _values,
        "retry_in_seconds": _numbers,
        "detail": st.text(max_size=20) | _values,
        "other": _values,
    }
    tree = {name: draw(usual[name]) for name in draw(st.lists(_names, unique=True, max_size=6))}
    body = json.dumps(tree).encode()
    if draw(st.integers(0, 9)) == 0:
        at = draw(st.integers(0, len(body)))
        body = body[:at] + draw(st.binary(max_size=4)) + body[at:]
    return body


_numbers_drawn = itertools.count()


@pytest.fixture(scope="module")
def standing():
    """Return one client and worker for many requests."""
    bridge = Bridge(MemoryLedger(), settings=Settings(busy_wait_seconds=0, serve=PATIENT))
    desk = Desk(bridge)
    yield desk
    desk.close()


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(path=st.sampled_from(CLAIM_PATHS), body=bodies(), key=st.none() | st.text(alphabet="ab", max_size=2))
def test_whatever_is_sent_the_answer_is_documented(standing, path, body, key):
    """No request brings the service to an answer that the document does not have."""
    claimed = standing.claim(_event, handler=f"number-{next(_numbers_drawn)}")
    body = body.replace(b'"REAL"', json.dumps(claimed["claim"]).encode())
    headers = {} if key is None else {"Idempotency_Key": key}
    answered = standing.client.post(path, raw=body, **headers)
    check_answer(path, "post", answered)
    assert answered.status in (200, 400)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=st.sampled_from(CLAIM_PATHS), body=st.binary(max_size=40))
def test_any_bytes_get_a_problem_document(standing, path, body):
    """Random bytes are answered with 400."""
    answered = standing.client.post(path, raw=body)
    check_answer(path, "post", answered)
    assert answered.status == 400
