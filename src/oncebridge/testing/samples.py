"""Sample events of every Genesys topic: whole EventBridge envelopes, made up, and the same for the same arguments.

    sample_event("v2.users.{id}.presence", user_id="anna", presenceDefinition={"systemPresence": "BUSY"})

The shapes are in `sample_bodies.json`: a body per topic, with a recipe (`id`, `iso:-60000`, `of:IDLE|INTERACTING`) in
the place of each value. `_RECIPES` has them all.
"""

from __future__ import annotations

import hashlib
from copy import deepcopy
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

import msgspec

from oncebridge.genesys_topics import TOPICS, nearest
from oncebridge.simulation.dice import Dice
from oncebridge.simulation.publishing import LAG_MS_MAX, LAG_MS_MIN, iso_ms, iso_seconds
from oncebridge.topics import topic_pattern

if TYPE_CHECKING:
    from collections.abc import Callable

ORG: Final = "5a3b1e0c-9d24-4c1f-8f67-2b90d1c4e7a5"
ACCOUNT: Final = "123456789012"
REGION: Final = "eu-central-1"

#: Before every clock's now, also before the start of `ManualClock`: an event from the future is never the newest.
FIRST_MS: Final = 1_764_579_600_000  # 2025-12-01T09:00:00Z
#: Between two samples: far more than the echo window, so that a second sample of an entity is news.
_STEP_MS: Final = 10_000
_HALF_HOUR_MS: Final = 1_800_000
_LAST_MS: Final = 253_400_000_000_000  # in the year 9999

_NAMES: Final = ("Casey", "Robin", "Alex", "Kim", "Sam")
_TEXTS: Final = ("made up for a test", "the parcel never arrived", "please call back", "all is well")
_ENTITY_TYPES: Final = ("User", "Queue", "OAuthClient", "Flow")


def sample_event(
    topic: str,
    n: int = 1,
    *,
    conversation_id: str | None = None,
    user_id: str | None = None,
    time: datetime | int | str | None = None,
    org: str = ORG,
    **fields: Any,
) -> dict[str, Any]:
    """Make up an event as EventBridge delivers it; `bridge.process` and `lambda_handler` take it as it is.

    The same arguments give the same event. Another `n` gives another event: other ids and values, ten seconds later.
    With the same `n` and another `time` only the times differ: of a state, that is an echo, a later or an older one.

    Args:
        topic: One of Genesys' 237, such as `v2.users.{id}.presence`; or one with ids filled in, which the event has.

        n: The number of the event.

        conversation_id: Its conversation, in the body and in the topic's name.

        user_id: Its user, in the body and in the topic's name.

        time: When it happened: a `datetime` with a time zone, ISO 8601, or milliseconds since 1970.

        org: The organization that it comes from.

        fields: Fields of the body to set. A dictionary changes only the fields that it names; `...` leaves a field out.

    """
    if type(n) is not int:
        raise ValueError(f"n: {n!r} is no whole number; fields of the body are given by name")
    template = template_of(topic)
    facts = _Facts(topic, template, n, org, FIRST_MS + n * _STEP_MS if time is None else moment_ms(time))
    facts.set_id("conversation", conversation_id)
    facts.set_id("user", user_id)
    body = _filled(_bodies()[template], facts)
    _refuse_misspelt(template, body, fields)
    return facts.envelope(changed(body, fields))


def sample_topics(pattern: str = "*") -> list[str]:
    """Return Genesys' topics that a handler for this pattern takes, for `pytest.mark.parametrize`."""
    takes = topic_pattern(pattern)
    return [topic for topic in TOPICS if takes.fullmatch(topic)]


def _refuse_misspelt(template: str, body: dict[str, Any], fields: dict[str, Any]) -> None:
    """Refuse `userID` and `user_id` for `userId`: the event would have both, and a test of nothing would pass."""
    usual = {name.lower(): name for name in body}
    for name in fields:
        meant = usual.get(name.replace("_", "").lower(), name)
        if meant != name:
            raise ValueError(f"{name}: events of {template} have {meant}")


def changed(tree: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return a tree with changes: dictionaries are merged, other values replaced, and `...` removes a field."""
    result = dict(tree)
    for name, value in changes.items():
        before = result.get(name)
        if value is ...:
            result.pop(name, None)
        elif isinstance(value, dict):
            result[name] = changed(before if isinstance(before, dict) else {}, value)
        else:
            result[name] = deepcopy(value)
    return result


def dice_for(*parts: object) -> Dice:
    """Return dice that always fall the same way for these parts."""
    digest = hashlib.sha256(repr(parts).encode(errors="backslashreplace")).digest()
    return Dice(int.from_bytes(digest[:8], "big"))


def made_up_id(*parts: object) -> str:
    """Return an id that belongs to these parts alone."""
    return dice_for(*parts).uuid()


def template_of(topic: str) -> str:
    """Return the topic with its placeholders, from that or from a concrete name."""
    if not isinstance(topic, str):
        raise ValueError(f"topic: {topic!r} is no text, such as v2.users.{{id}}.presence")  # noqa: TRY004 - like others
    fitting = [known for known in TOPICS if _fits(topic, known)]
    if fitting:  # `v2.system.{id}.{id}` fits more than it means
        return max(fitting, key=lambda known: sum(map(str.__eq__, topic.split("."), known.split("."))))
    if "*" in topic:
        several = sample_topics(topic)
        such = f"; {topic} takes {len(several)}, such as {several[0]}" if several else ""
        raise ValueError(f"a sample is an event of one topic, so it has no *{such}")
    near = nearest(topic)
    meant = f"; did you mean {near}?" if near else "; sample_topics() lists them"
    raise ValueError(f"{topic!r} is no topic of Genesys{meant}")


def _fits(topic: str, known: str) -> bool:
    parts, there = topic.split("."), known.split(".")
    return len(parts) == len(there) and all(
        part == other or (_is_place(other) and bool(part) and "*" not in part)
        for part, other in zip(parts, there, strict=True)
    )


def _is_place(part: str) -> bool:
    return part.startswith("{")


@cache
def _bodies() -> dict[str, Any]:
    """Read the shapes, when the first sample is made."""
    text = files("oncebridge.testing").joinpath("sample_bodies.json").read_bytes()
    return msgspec.json.decode(text, type=dict[str, Any])


def moment_ms(time: datetime | int | str) -> int:
    """Return milliseconds since 1970."""
    if isinstance(time, str):
        try:
            time = datetime.fromisoformat(time)
        except ValueError:
            raise ValueError(f"time: {time!r} is not ISO 8601, such as 2026-01-05T09:04:00.200Z") from None
    if isinstance(time, datetime):
        if time.tzinfo is None:
            raise ValueError(
                f"time: {time} has no time zone; write datetime(..., tzinfo=UTC), or a text that ends in Z"
            )
        return round((time - datetime.fromtimestamp(0, UTC)).total_seconds() * 1000)
    if type(time) is not int:
        raise ValueError(f"time: {time!r} is neither a datetime, nor ISO 8601, nor whole milliseconds since 1970")
    return time


class _Facts:
    """All that the values of one sample are made from. What is drawn does not depend on what is given."""

    def __init__(self, topic: str, template: str, n: int, org: str, moment_ms: int) -> None:
        if not 0 <= moment_ms <= _LAST_MS:
            raise ValueError(f"n or time: {moment_ms} ms is not between 1970 and 9999")
        self.template = template
        self.org = org
        self.moment_ms = moment_ms
        self.dice = dice_for(template, n)
        self.conversation, self.user = self.dice.uuid(), self.dice.uuid()
        self._correlation_id = self.dice.uuid()
        self._published_ms = moment_ms + self.dice.between(LAG_MS_MIN, LAG_MS_MAX)
        self.parts = topic.split(".")
        self._places = [at for at, part in enumerate(template.split(".")) if _is_place(part)]
        for at in self._places:
            self._fill(at)

    def _fill(self, at: int) -> None:
        """Fill in one id of the topic's name, unless it is a concrete one; the body has it, too."""
        drawn, meaning = self.dice.uuid(), self._meaning(at)
        if _is_place(self.parts[at]):
            usual = {"conversation": self.conversation, "user": self.user, "type": self.dice.pick(_ENTITY_TYPES)}
            self.parts[at] = usual.get(meaning, drawn)
        elif meaning == "conversation":
            self.conversation = self.parts[at]
        elif meaning == "user":
            self.user = self.parts[at]

    def _meaning(self, at: int) -> str:
        return _MEANINGS.get(self.template.split(".")[at - 1], "")

    def set_id(self, meaning: str, value: str | None) -> None:
        """Take the id of the conversation or the user that was given; refuse it where the topic has none."""
        if value is None:
            return
        places = [at for at in self._places if self._meaning(at) == meaning]
        if not isinstance(value, str) or not value or (places and "." in value):
            raise ValueError(f"{meaning}_id: {value!r} is no id: a text, and without a dot in a topic's name")
        setattr(self, meaning, value)
        for at in places:
            self.parts[at] = value
        if not places and not _has(_bodies()[self.template], meaning):
            raise ValueError(f"{meaning}_id: events of {self.template} have no {meaning}")

    def place(self, number: int) -> str:
        """Return an id of the topic's name, counted from 1."""
        return self.parts[self._places[number - 1]]

    def envelope(self, body: dict[str, Any]) -> dict[str, Any]:
        """Put the body into its envelope."""
        suffix = "-archival" if self.template.startswith("v2.audits.") else ""
        detail = {
            "topicName": ".".join(self.parts),
            "version": "2",
            "eventBody": body,
            "metadata": {"CorrelationId": self._correlation_id + suffix},
            "timestamp": iso_ms(self._published_ms),
        }
        return {
            "version": "0",
            "id": made_up_id(repr(detail), self.org),
            "detail-type": self.template,
            "source": f"aws.partner/genesys.com/cloud/{self.org}/sample",
            "account": ACCOUNT,
            "time": iso_seconds(self._published_ms),
            "region": REGION,
            "resources": [],
            "detail": detail,
        }


#: By the part of a topic before it: the meaning of an id.
_MEANINGS: Final = {
    "conversation": "conversation",
    "conversations": "conversation",
    "users": "user",
    "agent": "user",
    "agents": "user",
    "entitytype": "type",
}


def _filled(shape: Any, facts: _Facts) -> Any:
    """Make the values of a shape."""
    if isinstance(shape, dict):
        return {name: _filled(inner, facts) for name, inner in shape.items()}
    if isinstance(shape, list):
        return [_filled(inner, facts) for inner in shape]
    if not isinstance(shape, str):
        return shape
    recipe, _, argument = shape.partition(":")
    return _RECIPES[recipe](facts, argument)


def _has(shape: Any, recipe: str) -> bool:
    inner = shape.values() if isinstance(shape, dict) else shape if isinstance(shape, list) else ()
    return shape == recipe or any(_has(one, recipe) for one in inner)


def _shifted(facts: _Facts, by: str) -> int:
    return facts.moment_ms + int(by or 0)


def _interval(facts: _Facts, _: str) -> str:
    start_ms = facts.moment_ms // _HALF_HOUR_MS * _HALF_HOUR_MS
    return f"{iso_ms(start_ms)}/{iso_ms(start_ms + _HALF_HOUR_MS)}"


#: From the name of a recipe to a function of the facts and of the text after its colon.
_RECIPES: Final[dict[str, Callable[[_Facts, str], Any]]] = {
    # Ids
    "id": lambda facts, _: facts.dice.uuid(),
    "conversation": lambda facts, _: facts.conversation,
    "user": lambda facts, _: facts.user,
    "org": lambda facts, _: facts.org,
    "topic": lambda facts, number: facts.place(int(number)),
    # The event's time, or so many milliseconds from it
    "ms": _shifted,
    "iso": lambda facts, by: iso_ms(_shifted(facts, by)),
    "second": lambda facts, _: iso_ms(facts.moment_ms // 1000 * 1000),
    "date": lambda facts, _: iso_ms(facts.moment_ms)[:10],
    "interval": _interval,
    # A number that grows with the time
    "version": lambda facts, _: max(1, (facts.moment_ms - FIRST_MS) // _STEP_MS),
    # Values
    "of": lambda facts, values: facts.dice.pick(values.split("|")),
    "bool": lambda facts, _: facts.dice.chance(0.5),
    "int": lambda facts, bounds: facts.dice.between(*map(int, bounds.split(":"))),
    "number": lambda facts, _: facts.dice.between(0, 99) / 100,
    "text": lambda facts, _: facts.dice.pick(_TEXTS),
    "name": lambda facts, _: f"{facts.dice.pick(_NAMES)} Sample-{facts.dice.between(1, 999)}",
    "label": lambda facts, _: f"Sample {facts.dice.between(1, 999)}",
    "tel": lambda facts, _: f"tel:+1555{facts.dice.between(0, 9_999_999):07d}",
    "email": lambda facts, _: f"sample-{facts.dice.between(1, 999)}@example.com",
    "url": lambda facts, _: f"https://example.com/sample/{facts.dice.between(1, 999)}",
}
