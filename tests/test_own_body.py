"""What a handler is given is its own, and what it holds is shown nowhere by accident."""

import importlib
import json
import pkgutil
import subprocess
import sys

import msgspec
import pytest

import oncebridge
from oncebridge import Bridge, PermanentError, Settings
from oncebridge.discreet import Discreet
from payloads import ACW, CANARIES, TIME_MS, envelope, personal, raw

BODY = {"eventTime": TIME_MS, "wrapUpCode": "x", "tags": ["a", "b"], "nested": {"deep": [1.10, 2]}}


def spoil(event):
    """Change everything that can be changed of a body."""
    event.body["nested"]["deep"].clear()
    event.body["tags"].append("mine")
    del event.body["wrapUpCode"]


@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.parametrize("attempts_before", [0, 1])
@pytest.mark.parametrize("form", [dict, json.dumps, raw])
def test_handlers_of_one_event_have_bodies_of_their_own(concurrency, attempts_before, form):
    """A handler sees nothing of what another one did to the body of the same event, also at a later attempt."""
    seen, delivery = {}, envelope(ACW, BODY)
    expected = json.loads(json.dumps(delivery))["detail"]["eventBody"]
    failures = {"first": attempts_before}

    def handler(name):
        def handle(event):
            seen.setdefault(name, []).append(json.loads(json.dumps(event.body)))
            spoil(event)
            if failures.get(name):
                failures[name] -= 1
                raise OSError

        return handle

    with Bridge("memory://", settings=Settings(concurrency=concurrency)) as bridge:
        for name in ("first", "second", "third"):
            bridge.on("*", name=name)(handler(name))
        for _ in range(1 + attempts_before):
            result = bridge.process(form(delivery))
    assert result.column == "processed"
    assert seen == {"first": [expected] * (1 + attempts_before), "second": [expected], "third": [expected]}


def test_numbers_of_a_body_are_the_same_at_every_handler():
    """A body that is read a second time says the same, to the last digit of its numbers."""
    seen = []
    text = json.dumps(envelope(ACW, BODY)).replace("1.1", "1.10")
    with Bridge("memory://") as bridge:
        for name in ("first", "second"):
            bridge.on("*", name=name)(lambda event: seen.append((event.body, event.key, event.raw)))
        bridge.process(text)
    assert seen[0] == seen[1]
    assert seen[0][0] is not seen[1][0]


HANDLER = """
import json, pathlib

def once(event):
    with pathlib.Path("seen").open("a") as file:
        file.write(json.dumps(event.body, sort_keys=True) + "\\n")
    if event.body.pop("wrapUpCode") and event.attempt == 1:
        raise OSError("passes")
"""


def test_a_retry_within_a_run_gets_the_body_as_it_came(tmp_path):
    """What a handler took out of a body before a passing error is there again at its next attempt in the same run."""
    (tmp_path / "hooks.py").write_text(HANDLER)
    (tmp_path / "events.jsonl").write_text(json.dumps(envelope(ACW, BODY)))
    command = [sys.executable, "-m", "oncebridge", "process", "events.jsonl", "--handler", "hooks:once", "--json"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(ran.stdout)["processed"] == 1
    first, second = (tmp_path / "seen").read_text().splitlines()
    assert first == second


def test_a_repr_shows_no_payload():
    """What a log or an error tracker writes of an event, its result or its dead letter says nothing of the payload."""
    shown, deliveries = [], personal()

    def handle(event):
        shown.append(repr(event))
        shown.append(f"{event}")
        raise PermanentError from ValueError(str(event.body))

    with Bridge("memory://") as bridge:
        bridge.on("*")(handle)
        results = bridge.process_many(deliveries)
        letters = [letter for key in bridge.ledger.records for letter in bridge.ledger.get(key[0])]
        shown += [repr(results), repr(letters), repr(bridge)]
    assert len(letters) == len(deliveries)
    text = "\n".join(shown)
    assert [name for name, canary in CANARIES.items() if canary in text] == []
    assert all(result.key in text for result in results)
    assert "attempt=1" in text


#: Fields by which payload is held, whatever the record is called.
HOLDS_PAYLOAD = {"raw", "raws", "body", "exact", "detail", "data"}
#: Where these hold something else: a digest, an answer of our own, or bytes that msgspec itself does not show.
HOLDS_NONE = {"RemoteClaim", "_Claim2", "_Claim3", "Reply", "Problem", "KeptProblem", "_Frame", "_Marks"}
#: Where `data` is an entity's: digests, a topic, a time and an envelope id (`claim.Newest`).
HOLDS_NONE |= {"Chain", "Settlement", "Entity", "Held"}
#: Where there are settings, or events that are made up.
ELSEWHERE = ("oncebridge.settings", "oncebridge.simulation", "oncebridge.testing", "oncebridge.__main__")


def structs():
    """Find every record in the package."""
    for module in pkgutil.walk_packages(oncebridge.__path__, "oncebridge."):
        if module.name.startswith(ELSEWHERE):
            continue
        for found in vars(importlib.import_module(module.name)).values():
            if isinstance(found, type) and issubclass(found, msgspec.Struct) and found.__module__ == module.name:
                yield found


def test_records_that_hold_payload_are_discreet():
    """A record with a field for payload shows it in no repr."""
    bad = {
        found.__name__
        for found in structs()
        if HOLDS_PAYLOAD.intersection(found.__struct_fields__)
        and not (issubclass(found, Discreet) and not HOLDS_PAYLOAD.intersection(found.shown))
    }
    assert bad == HOLDS_NONE
