"""Real events, and what is planted before them to have them taken for duplicates, stale, conflicts or echoes.

What is real, what is planted, and what each of these may do is known here beforehand, from the documentation alone:
none of the program's own rules is used.
"""

from __future__ import annotations

import hashlib
import json
import random
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final

#: What a sender who is let in can do with a made-up event, as docs/settings.md has it: the way in which the real one
#: is settled then. Everything else that is planted must change nothing.
LIMITS: Final = {
    "a copy beforehand": "duplicate",
    "the same explicit id": "conflict",
    "less than ten minutes ahead": "stale",
    "up to 1,000 versions ahead": "stale",
    "the same state within the echo window": "echo",
}
#: A real event to which that may be done has it done in so many.
LIMIT_SHARE: Final = 0.15
PLANTED_PER_REAL: Final = 4
FAILS: Final = b'"fails on purpose"'
MINUTE_MS: Final = 60_000
#: Long past.
START_MS: Final = 1_748_000_000_000

Tree = dict[str, Any]


@dataclass(frozen=True)
class Real:
    """An event that happened."""

    kind: str
    tree: Tree
    #: Nothing follows it in its entity's history.
    is_last: bool = True

    @property
    def raw(self) -> bytes:
        """Write it as EventBridge does."""
        return written(self.tree)


@dataclass(frozen=True)
class Planted:
    """An event that did not happen."""

    name: str
    raw: bytes


@dataclass(frozen=True)
class Attacked:
    """A real event, with what is planted before it, and how it is settled nevertheless."""

    real: Real
    planted: tuple[Planted, ...]
    settled: str = "processed"


def fingerprint(raw: bytes) -> str:
    """Return the same for a delivery however it is spaced and ordered, with numbers and doubled names as written."""
    try:
        tree = json.loads(
            raw, parse_int=lambda digits: ["number", digits], parse_float=lambda digits: ["number", digits],
            object_pairs_hook=lambda pairs: {"pairs": sorted(pairs, key=repr)},
        )  # fmt: skip
        raw = json.dumps(tree).encode()
    except (ValueError, RecursionError):
        pass
    return hashlib.sha256(raw).hexdigest()


def written(tree: Any) -> bytes:
    """Write a tree as EventBridge does."""
    return json.dumps(tree, separators=(",", ":")).encode()


def story(seed: int, number: int, tag: str) -> list[Attacked]:
    """Make up some real events, and what is planted before each; the tag is in every id, so that stories share none."""
    dice = random.Random(f"{seed} {number}")
    return [_attacked(dice, real) for real in _reals(dice, tag)]


def _attacked(dice: random.Random, real: Real) -> Attacked:
    planted = [_planted(dice, real) for _ in range(PLANTED_PER_REAL)]
    limits = [name for name in LIMITS if real.kind in _CAN[name] and (real.is_last or name in _OF_ANY)]
    if not limits or dice.random() > LIMIT_SHARE:
        return Attacked(real, tuple(planted))
    name = dice.choice(limits)
    tree = deepcopy(real.tree)
    _CAN_DO[name](dice, tree)
    return Attacked(real, (*planted, Planted(name, written(tree))), LIMITS[name])


# --- what is real ----------------------------------------------------------------------------------------


def _reals(dice: random.Random, tag: str) -> list[Real]:
    """Make some histories, each in its order, woven into one."""
    histories = [list(make(dice, tag)) for make in _HISTORIES]
    woven = []
    while histories := [history for history in histories if history]:
        woven.append(dice.choice(histories).pop(0))
    return woven


def _facts(_: random.Random, tag: str) -> Iterator[Real]:
    from payloads import ACW, envelope

    for number in range(3):
        body = {"eventTime": START_MS + number, "conversationId": f"{tag}-{number}", "note": "caf\u00e9", "count": 1}
        yield Real("fact", envelope(ACW, body, id=f"{tag}-fact-{number}"))


def _audits(_: random.Random, tag: str) -> Iterator[Real]:
    from payloads import envelope

    for number in range(2):
        body = {"id": f"{tag}-Audit-{number}", "action": "Update", "eventTime": _iso(START_MS + number)}
        yield Real("explicit", envelope(AUDITS, body, id=f"{tag}-audit-{number}"))


def _states(_: random.Random, tag: str) -> Iterator[Real]:
    from payloads import PRESENCE, envelope

    frame = {"topicName": PRESENCE.replace("{id}", f"{tag}-user")}
    for number in range(3):
        body = {
            "modifiedDate": _iso(START_MS + number * MINUTE_MS),
            "presenceDefinition": {"id": f"{number}", "systemPresence": "BUSY"},
        }
        yield Real("state", envelope(PRESENCE, body, frame=frame, id=f"{tag}-state-{number}"), is_last=number == 2)


def _versions(_: random.Random, tag: str) -> Iterator[Real]:
    from payloads import envelope

    for number in range(3):
        body = {"id": f"{tag}-evaluation", "version": 4 + number, "eventTime": _iso(START_MS + number * MINUTE_MS)}
        yield Real("versioned", envelope(EVALUATIONS, body, id=f"{tag}-version-{number}"), is_last=number == 2)


def _hand_made(_: random.Random, tag: str) -> Iterator[Real]:
    from payloads import in_envelope

    for number in range(2):
        detail = {"event_id": f"{tag}-Made-{number}", "what": "call ended", "eventTime": START_MS + number}
        tree = in_envelope(detail, source="contact.centre", detail_type="Call Ended", id=f"{tag}-made-{number}")
        yield Real("explicit", tree)


def _hand_made_states(_: random.Random, tag: str) -> Iterator[Real]:
    from payloads import in_envelope

    for number in range(2):
        at = START_MS + number * MINUTE_MS
        detail = {"conversation_id": f"{tag}-call", "status": f"held {number}", "timestamp": at}
        tree = in_envelope(detail, source="contact.centre", detail_type="Status", id=f"{tag}-made-state-{number}")
        yield Real("made state", tree, is_last=number == 1)


AUDITS: Final = "v2.audits.entitytype.{id}.entityid.{id}"
EVALUATIONS: Final = "v2.quality.evaluations"
_HISTORIES: Final = (_facts, _audits, _states, _versions, _hand_made, _hand_made_states)


def _iso(at_ms: int) -> str:
    from payloads import iso

    return str(iso(at_ms))


def _body(tree: Tree) -> Tree:
    detail: Tree = tree["detail"]
    body: Tree = detail.get("eventBody", detail)
    return body


def _now_ms() -> int:
    return int(time.time() * 1000)


# --- what a stranger plants ------------------------------------------------------------------------------


def _planted(dice: random.Random, real: Real) -> Planted:
    """Plant something that must change nothing."""
    tree = deepcopy(real.tree)
    if dice.random() < 0.5:
        name, raw = _by_a_stranger(dice, real, tree)
    else:
        name, make = dice.choice([*_ANY.items(), *_OF_KIND[real.kind].items()])
        raw = make(dice, tree)
    return Planted(name, raw)


def _by_a_stranger(dice: random.Random, real: Real, tree: Tree) -> tuple[str, bytes]:
    """Forge whatever helps, under another sender."""
    what = "a copy"
    helps = [name for name in LIMITS if real.kind in _CAN[name]]
    if helps and dice.random() < 0.7:
        what = dice.choice(helps)
        _CAN_DO[what](dice, tree)
    if dice.random() < 0.1:
        return f"{what}, without an envelope", written(tree["detail"])
    tree["source"] = source = dice.choice([one(real.tree["source"]) for one in _OTHER_SENDERS])
    if source is None:
        del tree["source"]
    return f"{what}, from {source!r}", written(tree)


def _other_org(source: str) -> str:
    from payloads import ORG, OTHER_ORG

    return source.replace(ORG, OTHER_ORG) if ORG in source else "another.centre"


def _marked_org(mark: str) -> Callable[[str], str]:
    """Put something behind the org, or behind a source that has none."""

    def make(source: str) -> str:
        from payloads import ORG

        return source.replace(ORG, ORG + mark) if ORG in source else source + mark

    return make


_OTHER_SENDERS: Final[tuple[Callable[[str], str | None], ...]] = (
    _other_org, _marked_org(" "), _marked_org("\u200b"), _marked_org("."), _marked_org("\x00"), _marked_org("%2F"),
    str.upper, str.title, lambda _: "custom.app", lambda _: "", lambda _: None, lambda source: f" {source}",
    lambda source: f"x/{source}", lambda source: source.replace("/", "//", 1) + "-", lambda source: source[1:],
    lambda source: source.replace("c", "\u0441", 1), lambda source: source.replace("e", "\uff45", 1),
    lambda source: source.replace(".", "\u2024"), lambda source: source.replace("com/", "com.example/") + "x",
)  # fmt: skip


# --- what a sender who is let in plants -----------------------------------------------------------------


def _with(**changes: Any) -> Callable[[random.Random, Tree], bytes]:
    """Change the body."""

    def make(_: random.Random, tree: Tree) -> bytes:
        _body(tree).update(changes)
        return written(tree)

    return make


def _text_changed(old: str, *new: str) -> Callable[[random.Random, Tree], bytes]:
    """Write a part of the delivery in another way."""
    return lambda dice, tree: written(tree).replace(old.encode(), dice.choice(new).encode(), 1)


def _cut(dice: random.Random, tree: Tree) -> bytes:
    raw = written(tree)
    return raw[: dice.randrange(len(raw))]


def _twice(dice: random.Random, tree: Tree) -> bytes:
    """Give a field twice, so that readers disagree."""
    raw = written(tree)
    within = raw.replace(b'"detail":{', b'"detail":{"version":"2","x":1,"x":2,', 1)
    return dice.choice([raw[:-1] + b',"detail":{}}', within])


def _another_topic(dice: random.Random, tree: Tree) -> bytes:
    odd = dice.choice([lambda topic: topic + "/", lambda topic: topic + ".", str.upper, lambda topic: f" {topic}"])
    tree["detail-type"] = odd(tree["detail-type"])
    if "topicName" in tree["detail"]:
        tree["detail"]["topicName"] = odd(tree["detail"]["topicName"])
    return written(tree)


def _failing(_: random.Random, tree: Tree) -> bytes:
    body = _body(tree)
    body["note"] = "fails on purpose"
    for name in ("id", "event_id"):
        if name in body and "version" not in body:
            body[name] += "-failing"
    return written(_older(tree))


def _older(tree: Tree) -> Tree:
    body = _body(tree)
    for name in ("eventTime", "modifiedDate", "timestamp"):
        if name in body:
            body[name] = _iso(START_MS - MINUTE_MS) if isinstance(body[name], str) else START_MS - MINUTE_MS
    return tree


def _nested(_: random.Random, tree: Tree) -> bytes:
    return written(tree)[:-1] + b',"deep":' + b"[" * 100 + b"]" * 100 + b"}"


#: Of every kind of event.
_ANY: Final[dict[str, Callable[[random.Random, Tree], bytes]]] = {
    "cut off": _cut,
    "a field twice": _twice,
    "too deep": _nested,
    "another topic, nearly the same": _another_topic,
    "one that fails": _failing,
}


def _far_ahead(name: str) -> Callable[[random.Random, Tree], bytes]:
    """Stamp another state with a time that no clock shows."""

    def make(dice: random.Random, tree: Tree) -> bytes:
        body, now = _body(tree), _now_ms()
        is_text = isinstance(body[name], str)
        times = [now + 20 * MINUTE_MS, now + 365 * 1440 * MINUTE_MS, 253_402_300_799_999]
        at = dice.choice(times)
        body[name] = _iso(at) if is_text else dice.choice([at, at * 1000, at * 1_000_000, 2**63 - 1, 2**63, 10**400])
        return written(_another_state(dice, tree))

    return make


def _another_state(dice: random.Random, tree: Tree) -> Tree:
    body = _body(tree)
    if "presenceDefinition" in body:
        body["presenceDefinition"] = {"id": f"{dice.random()}", "systemPresence": "AWAY"}
    body["status"] = f"forged {dice.random()}"
    return tree


def _versions_far_ahead(dice: random.Random, tree: Tree) -> bytes:
    body = _body(tree)
    ahead = [body["version"] + 1_001, 10**6, 2**63 - 1, 2**63, 10**30, "9" * 18, "9" * 30, -1, 1e300]
    body["version"] = dice.choice(ahead)
    return written(_another_state(dice, _older(tree)))


def _another_id(name: str) -> Callable[[random.Random, Tree], bytes]:
    def make(dice: random.Random, tree: Tree) -> bytes:
        body = _body(tree)
        usual = body[name]
        odd = [
            usual.upper(), f"{usual} ", f" {usual}", f"{usual}\u200b", f"{usual}\x00", usual.replace("A", "\u0410"),
            usual.replace("M", "\uff2d") + ".", {"id": usual}, f'"{usual}"', usual.replace("-", "\u2010"), [usual],
        ]  # fmt: skip
        body[name] = dice.choice([one for one in odd if one != usual])
        return written(tree)

    return make


def _explicit(dice: random.Random, tree: Tree) -> bytes:
    return _another_id("id" if "id" in _body(tree) else "event_id")(dice, tree)


_OF_KIND: Final[dict[str, dict[str, Callable[[random.Random, Tree], bytes]]]] = {
    "fact": {
        "a field more": _with(extra=None),
        "a field empty": _with(note=""),
        "another spelling": _text_changed("caf\\u00e9", "cafe\\u0301", "caf\\u0435", "Caf\\u00e9", "caf\\u00e9\\u200b"),
        "a number written in another way": _text_changed(
            '"count":1', '"count":1.0', '"count":1e0', '"count":"1"', '"count":true'
        ),
        "a huge number": _with(eventTime=10**400),
        "a named replay of another": _with(note="replayed", **{"replay-name": "all"}),
        "another time": _with(eventTime=START_MS + 50),
        "the same time as text": _with(eventTime=f"{START_MS}"),
    },
    "explicit": {"another id, nearly the same": _explicit},
    "state": {
        "far ahead": _far_ahead("modifiedDate"),
        "older": lambda dice, tree: written(_another_state(dice, _older(tree))),
    },
    "versioned": {"many versions ahead": _versions_far_ahead},
    "made state": {
        "far ahead": _far_ahead("timestamp"),
        "older": lambda dice, tree: written(_another_state(dice, _older(tree))),
    },
}


# --- what a sender who is let in can do ------------------------------------------------------------------


def _copy(dice: random.Random, tree: Tree) -> None:
    tree["id"] += "-copied"
    tree["account"] = dice.choice(["000000000000", "210987654321"])


def _same_id(dice: random.Random, tree: Tree) -> None:
    _body(tree)["what"] = _body(tree)["action"] = f"forged {dice.random()}"


def _little_ahead(dice: random.Random, tree: Tree) -> None:
    body = _another_state(dice, tree) and _body(tree)
    at = _now_ms() + dice.randint(1, 8) * MINUTE_MS
    name = "modifiedDate" if "modifiedDate" in body else "timestamp"
    body[name] = _iso(at) if isinstance(body[name], str) else at


def _few_versions_ahead(dice: random.Random, tree: Tree) -> None:
    _body(_another_state(dice, tree))["version"] += dice.choice([1, dice.randint(2, 999), 1_000])


def _echo(dice: random.Random, tree: Tree) -> None:
    body, name = _body(tree), "modifiedDate"
    body[name] = body[name].replace(".000Z", f".{dice.randint(1, 500):03}Z")


_CAN_DO: Final[dict[str, Callable[[random.Random, Tree], None]]] = {
    "a copy beforehand": _copy,
    "the same explicit id": _same_id,
    "less than ten minutes ahead": _little_ahead,
    "up to 1,000 versions ahead": _few_versions_ahead,
    "the same state within the echo window": _echo,
}
#: To which kinds of events.
_CAN: Final = {
    "a copy beforehand": ("fact", "explicit", "state", "versioned", "made state"),
    "the same explicit id": ("explicit",),
    "less than ten minutes ahead": ("state", "made state"),
    "up to 1,000 versions ahead": ("versioned",),
    "the same state within the echo window": ("state",),
}
#: The rest would reach the states that follow, too.
_OF_ANY: Final = ("a copy beforehand", "the same explicit id")
