"""Planted events, by every way in: whatever comes before it, a real event is processed as if nothing had come."""

from __future__ import annotations

import base64
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from prove.outcome import Options, Outcome
from prove.places import place_of, prepare
from prove.poison import LIMITS, Attacked, fingerprint, story, written
from prove.poisoned import environment_for, have_effect, make_poisoned
from prove.round import in_child
from prove.shrink import shrink
from prove.worker import Notes

if TYPE_CHECKING:
    from oncebridge import Bridge

STORIES: Final = 4
BATCH_MAX: Final = 12
SECONDS_MAX: Final = 300
Way = Callable[["Bridge", Sequence[bytes], Notes, random.Random], None]


def poison(options: Options) -> Outcome:
    """Plant events before real ones until this many were planted, by each way in turn."""
    outcome, begun = Outcome(), time.monotonic()
    with place_of(options.ledger, options.folder) as url, _queues(options.folder) as aws:
        in_child(lambda: prepare(url))
        number = 0
        while outcome.tried < options.amount and not outcome.broken and time.monotonic() - begun < options.seconds:
            name = (*WAYS, COMMAND)[number % (len(WAYS) + 1)]
            numbers = range(number * STORIES, (number + 1) * STORIES)
            plan = Plan(name, url, options.folder, options.seed, aws)
            _add(outcome, plan, numbers)
            number += 1
            if options.progress:
                options.progress(outcome.tried)
    if outcome.tried < options.amount and not outcome.broken:
        outcome.notes.append(f"ended early: {outcome.tried:,} of {options.amount:,} in the time that it had")
    return outcome


@dataclass(frozen=True)
class Plan:
    """Which way in, and where."""

    way: str
    url: str
    folder: Path
    seed: int
    #: Variables by which a command finds the queues.
    aws: Mapping[str, str]
    spoil: Callable[[Bridge], None] | None = None


@dataclass(frozen=True)
class Wrong:
    """A real event that was not settled as it had to be."""

    what: str
    at: int


def _add(outcome: Outcome, plan: Plan, numbers: range) -> None:
    told = [one for number in numbers for one in story(plan.seed, number, _tag(number))]
    wrong, doubled = tried(plan, told)
    figures = outcome.figures.setdefault(plan.way, {"real": 0, "planted": 0})
    planted = sum(len(one.planted) for one in told)
    figures["real"] += len(told)
    figures["planted"] += planted
    outcome.tried += planted
    outcome.doubled += doubled
    for name, number in Counter(one.settled for one in told).items():
        settled = outcome.figures.setdefault("real events settled as", {})
        settled[name] = settled.get(name, 0) + number
    for one in wrong:
        outcome.broken[one.what] = outcome.broken.get(one.what, 0) + 1
        outcome.lost += told[one.at].settled == "processed"
    if wrong:
        outcome.history = smallest(plan, told, wrong[0], numbers)


def _tag(number: int) -> str:
    # A story of its own each time: what an earlier try of the same one left must not help this one.
    return f"s{number}-{time.monotonic_ns():x}"


def tried(plan: Plan, told: Sequence[Attacked]) -> tuple[list[Wrong], int]:
    """Deliver everything, and judge each real event; return what was wrong, and how many took effect twice."""
    notes = plan.folder / f"{time.monotonic_ns():x}.poisoned"
    deliveries = [raw for one in told for raw in (*(planted.raw for planted in one.planted), one.real.raw)]
    # Once more at the end: what was processed is known, whatever was planted.
    again = [one.real.raw for one in told]
    found = in_child(lambda: _given(plan, [*deliveries, *again], notes))
    effects = Counter(line.split(" ")[3] for line in notes.read_text().splitlines())
    notes.unlink()
    letters = {fingerprint(base64.b64decode(letter)) for letter in found["letters"]}
    wrong = [Wrong(what, at) for at, one in enumerate(told) if (what := judged(one, effects, letters))]
    if not found["balanced"]:
        wrong.append(Wrong("books out of balance", 0))
    doubled = sum(effects[fingerprint(one.real.raw)] > 1 for one in told)
    return wrong, doubled


def judged(one: Attacked, effects: Mapping[str, int], letters: set[str]) -> str | None:
    """Say what is wrong with the end of a real event; None if it ended as it had to."""
    mark = fingerprint(one.real.raw)
    times, is_letter = effects.get(mark, 0), mark in letters
    if one.settled == "processed":
        if times != 1:
            return f"a real event took effect {times} times"
        return "a real event is a dead letter" if is_letter else None
    if times:
        return f"a real event took effect, although {one.planted[-1].name} makes it {one.settled}"
    if is_letter != (one.settled == "conflict"):
        return f"a real event is {'a' if is_letter else 'no'} dead letter, although it is {one.settled}"
    instead = fingerprint(one.planted[-1].raw)
    return None if effects.get(instead) == 1 else f"{one.planted[-1].name} took effect {effects.get(instead, 0)} times"


def _given(plan: Plan, deliveries: Sequence[bytes], notes: Path) -> dict[str, Any]:
    """Deliver by one way in; return whether the books balance, and the dead letters, in base64."""
    dice = random.Random(f"{plan.seed} {len(deliveries)}")
    since = f"{time.time() - 1:.0f}"
    notes.touch()
    with make_poisoned(plan.url, notes) as bridge:
        if plan.spoil:
            plan.spoil(bridge)
        if plan.way == COMMAND:
            _consume(plan, deliveries, notes)
        else:
            WAYS[plan.way](bridge, deliveries, Notes(notes), dice)
        keys = {letter.key for letter in bridge.dead_letters.list(since=_iso(since), reason="other content")}
        raws = [letter.raw for key in sorted(keys) for letter in bridge.dead_letters.show(key)]
        balanced = bool(bridge.books.as_dict()["balanced"])
    return {"balanced": balanced, "letters": [base64.b64encode(raw).decode() for raw in raws if raw is not None]}


def _iso(seconds: str) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(int(seconds)))


# --- ways in ---------------------------------------------------------------------------------------------


def _process(bridge: Bridge, raws: Sequence[bytes], _: Notes, __: random.Random) -> None:
    for raw in raws:
        bridge.process(raw)


def _batches(raws: Sequence[bytes], dice: random.Random) -> Iterator[Sequence[bytes]]:
    left = list(raws)
    while left:
        size = dice.randint(1, BATCH_MAX)
        yield left[:size]
        del left[:size]


def _process_many(bridge: Bridge, raws: Sequence[bytes], _: Notes, dice: random.Random) -> None:
    for batch in _batches(raws, dice):
        bridge.process_many(batch)


def _lambda(bridge: Bridge, raws: Sequence[bytes], _: Notes, dice: random.Random) -> None:
    """Invoke a function in every shape that AWS puts around a text."""
    import shapes

    def queue(texts: Sequence[str]) -> Any:
        return shapes.records(*(shapes.message(text, str(at)) for at, text in enumerate(texts)))

    def behind_topic(texts: Sequence[str]) -> Any:
        return queue([shapes.notification(text) for text in texts])

    def stream(texts: Sequence[str]) -> Any:
        return shapes.records(*(shapes.stream_record(text, f"{49590 + at}") for at, text in enumerate(texts)))

    def pipe(texts: Sequence[str]) -> Any:
        return [shapes.message(text, str(at)) for at, text in enumerate(texts)]

    def firehose(texts: Sequence[str]) -> Any:
        return shapes.transformation(*texts)

    alone: list[Callable[[str], Any]] = [
        lambda text: shapes.records(shapes.topic_record(text)), shapes.url_request, shapes.gateway_request, _as_tree,
    ]  # fmt: skip
    for batch in _batches(raws, dice):
        texts = [raw.decode() for raw in batch]
        if dice.random() < 0.6:
            bridge.lambda_handler(dice.choice([queue, behind_topic, stream, pipe, firehose])(texts), None)
        else:
            for text in texts:
                bridge.lambda_handler(dice.choice(alone)(text), None)


def _as_tree(text: str) -> Any:
    """Return an event as EventBridge invokes a function with it, unless the runtime would make another one of it."""
    from shapes import message, records

    try:
        tree = json.loads(text)
        if fingerprint(written(tree)) == fingerprint(text.encode()):
            return tree
    except (ValueError, RecursionError):
        pass
    return records(message(text))


def _serve(bridge: Bridge, raws: Sequence[bytes], _: Notes, __: random.Random) -> None:
    """Post each to the service."""
    from oncebridge.service.app import make_application
    from service.asgi import Client

    client = Client(make_application(bridge))
    try:
        for raw in raws:
            answer = client.send("POST", "/events", raw)
            if answer.status not in {HTTPStatus.OK, HTTPStatus.BAD_REQUEST}:
                raise RuntimeError(f"events were answered with {answer.status}: {answer.body[:300]!r}")
    finally:
        client.close()


def _claims(bridge: Bridge, raws: Sequence[bytes], effects: Notes, _: random.Random) -> None:
    """Claim each as a program in another language does, and report its end."""
    from oncebridge.service.app import make_application
    from service.asgi import Client

    client = Client(make_application(bridge))
    try:
        for raw in raws:
            answer = client.post("/claims", {"event": raw.decode(), "handler": "claimant"})
            claim = answer.json.get("claim") if answer.status == HTTPStatus.OK else None
            if claim is None:
                continue
            end: dict[str, Any] = {"claim": claim, "outcome": "done"}
            try:
                have_effect(effects, raw)
            except RuntimeError:
                end = {"claim": claim, "outcome": "dead", "event": raw.decode(), "detail": "fails on purpose"}
            settled = client.post("/claims/settle", end)
            if settled.status != HTTPStatus.OK:
                raise RuntimeError(f"an end was answered with {settled.status}: {settled.body[:300]!r}")
    finally:
        client.close()


def _consume(plan: Plan, raws: Sequence[bytes], notes: Path) -> None:
    """Run `oncebridge consume` on a queue with all of them, in their order."""
    import boto3

    sqs = boto3.client("sqs", endpoint_url=plan.aws["AWS_ENDPOINT_URL"])
    queue = sqs.create_queue(QueueName=notes.stem)["QueueUrl"]
    for at in range(0, len(raws), 10):
        entries = [{"Id": str(n), "MessageBody": raw.decode()} for n, raw in enumerate(raws[at : at + 10])]
        sqs.send_message_batch(QueueUrl=queue, Entries=entries)
    words = ["consume", queue, "--handler", "prove.poisoned:bridge", "--concurrency", "1", "--until-empty", "--json"]
    environment = os.environ | plan.aws | environment_for(plan.url, notes)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    subprocess.run(
        [sys.executable, "-m", "oncebridge", *words, "--poll-seconds", "1"], env=environment, check=True,
        capture_output=True, timeout=SECONDS_MAX,
    )  # fmt: skip


@contextmanager
def _queues(folder: Path) -> Iterator[Mapping[str, str]]:
    from servers.aws import running_ministack

    (folder / "queues").mkdir()
    with running_ministack(folder / "queues") as aws:
        yield {"AWS_ENDPOINT_URL": aws.url}


WAYS: Final[dict[str, Way]] = {
    "process": _process, "process_many": _process_many, "lambda": _lambda, "serve": _serve, "claims": _claims,
}  # fmt: skip
#: The way in that is a command, and takes them from a queue.
COMMAND: Final = "consume"


# --- a failure -------------------------------------------------------------------------------------------


def smallest(plan: Plan, told: Sequence[Attacked], wrong: Wrong, numbers: range) -> list[str]:
    """Leave out what was planted and is not needed for the same to go wrong."""
    places = [(at, n) for at, one in enumerate(told[: wrong.at + 1]) for n in range(len(one.planted))]

    def only(few: Sequence[tuple[int, int]]) -> list[Attacked]:
        """Tell the same stories with these planted, and with those that make a real event what it is."""
        fresh = [one for number in numbers for one in story(plan.seed, number, _tag(number))]
        return [
            replace(one, planted=tuple(p for n, p in enumerate(one.planted) if (at, n) in few or p.name in LIMITS))
            for at, one in enumerate(fresh)
        ]

    few = shrink(places, lambda few: wrong in tried(plan, only(few))[0])
    fresh = only(few)
    planted = [fresh[at].planted[0] for at in sorted({at for at, _ in few})]
    return [
        f"{plan.way}, stories {numbers.start} to {numbers.stop - 1}, real event {wrong.at}: {wrong.what}",
        *(f"planted, {one.name}: {one.raw.decode(errors='replace')[:900]}" for one in planted),
        f"real, {fresh[wrong.at].real.kind}: {fresh[wrong.at].real.raw.decode()}",
    ]
