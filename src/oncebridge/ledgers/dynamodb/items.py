"""Items of the DynamoDB ledger: how records, entities and letters are written as attributes, and conditions on them.

One table, keys `pk` and `sk`:

    event#KEY   handler#NAME      the record of an event for one handler, with the beginning of its dead letter
    event#KEY   letter#ID#0001    a further part of a dead letter that is too large for one item
    letters#N   TIME#KEY#...      one line of the list of dead letters: see lists.py
    entity#KEY  entity            who holds an entity, and bytes of its newest state
    conversation#KEY  attendance  which marks came of a conversation: see attendance.py
    ledger      meta              schema and secret
    count#, note#                 notes for people: see notes.py

In clear are topics, event times and envelope ids; everything else of a payload is a keyed digest, except the content of
dead letters. Times ending in _us are microseconds, `expires` is in seconds: DynamoDB's time to live.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from oncebridge.claim import Newest, Status, write_newest
from oncebridge.discreet import Discreet
from oncebridge.identity import Moment
from oncebridge.ledgers.grants import Entity, Record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from oncebridge.claim import Ask

#: In DynamoDB's form: attribute -> {type: value}.
Item = dict[str, dict[str, Any]]
#: The operator of a condition that an attribute is absent; it has no value.
ABSENT: Final = "absent"
#: The condition of a write: attribute, operator, value. None: the item must not exist.
Condition = list[tuple[str, str, Any]] | None

EVENT: Final = "event#"
HANDLER: Final = "handler#"
LETTER: Final = "letter#"
ENTITY: Final = "entity#"
CONVERSATION: Final = "conversation#"
LIST: Final = "letters#"
EXPIRES: Final = "expires"
#: Attributes that exist only while a dead letter is kept: its id, the number of further parts, its reason, its
#: beginning.
OF_LETTER: Final = ("letter", "parts", "reason", "head")
#: The topic, the time and the subjects of an event: written once.
ABOUT: Final = ("topic", "time_ms", "conversation", "user")

_RECORD_DEFAULTS: Final = {"nonce": b"", "lease_until_us": 0, "alone": False, "retry_at_us": 0}


class Write(Discreet, msgspec.Struct, frozen=True):
    """One conditional write: `Put`, `Update` or `Delete`, with its arguments."""

    shown = ("kind",)

    kind: str
    arguments: dict[str, Any]


# --- keys and values ---------------------------------------------------------------------------------


def event_key(key: bytes, handler: str) -> Item:
    """Return the key of an event's record."""
    return wrapped({"pk": EVENT + key.hex(), "sk": HANDLER + handler})


def part_key(key: bytes, letter: str, number: int) -> Item:
    """Return the key of a part of a letter."""
    return wrapped({"pk": EVENT + key.hex(), "sk": f"{LETTER}{letter}#{number:04d}"})


def entity_key(entity: bytes) -> Item:
    """Return the key of an entity."""
    return wrapped({"pk": ENTITY + entity.hex(), "sk": "entity"})


def wrapped(attributes: Mapping[str, Any]) -> Item:
    """Write values in DynamoDB's form; None is left out."""
    return {name: _wrap(value) for name, value in attributes.items() if value is not None}


def _wrap(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"BOOL": value}
    if isinstance(value, int):
        return {"N": str(value)}
    return {"B" if isinstance(value, bytes) else "S": value}


def unwrapped(item: Item) -> dict[str, Any]:
    """Read values in DynamoDB's form."""
    return {name: _unwrap(*next(iter(value.items()))) for name, value in item.items()}


def _unwrap(kind: str, value: Any) -> Any:
    if kind == "N":
        return int(value)
    return bytes(value) if kind == "B" else value


# --- stored items --------------------------------------------------------------------------------------


class Stored(Discreet, msgspec.Struct, frozen=True):
    """An item as it was read: its attributes, and the revision that a later write is conditional on."""

    shown = ("expired",)

    said: dict[str, Any]
    #: Whether it has outlived the retention. DynamoDB may keep it for days more: it counts as forgotten.
    expired: bool = False

    @property
    def seen(self) -> Condition:
        """The condition that the item has not changed since it was read."""
        return [("rev", "=", self.said["rev"])] if self.said else None

    @property
    def letter(self) -> tuple[str, int] | None:
        """The id of the dead letter that is kept, and how many parts it has beside its beginning."""
        return (self.said["letter"], self.said["parts"]) if "letter" in self.said else None

    @property
    def record(self) -> Record | None:
        """The item as the record of an event."""
        if not self.said or self.expired:
            return None
        said = self.said
        kept = {name: said.get(name, default) for name, default in _RECORD_DEFAULTS.items()}
        return Record(
            status=Status(said["status"]),
            token=said["token"],
            attempts=said["attempts"],
            content=said.get("content"),
            envelope=said.get("envelope"),
            changed_us=said["changed_us"],
            letter="letter" in said,
            **kept,
        )

    @property
    def entity(self) -> Entity | None:
        """The item as an entity."""
        if not self.said or self.expired:
            return None
        said = self.said
        return Entity(
            token=said["token"],
            nonce=said.get("nonce", b""),
            lease_until_us=said.get("lease_until_us", 0),
            ran_out=said.get("ran_out", False),
            data=said["data"] if "line" not in said else _data_of_first_schema(said),
            changed_us=said["changed_us"],
        )


class _FirstMoment(msgspec.Struct):
    """A moment as the first schema wrote it."""

    times: tuple[int | None, ...]
    version: int | None
    echoes: bool

    @property
    def moment(self) -> Moment:
        return Moment(self.times, self.version, self.echoes)


_first_moment = msgspec.json.Decoder(_FirstMoment).decode


def _data_of_first_schema(said: dict[str, Any]) -> bytes:
    """Read an entity of the first schema, which had an attribute for each field."""
    return write_newest(
        Newest(
            state=said.get("state"),
            moment=_first_moment(said["moment"]).moment,
            line=_first_moment(said["line"]).moment,
            unsure=said["unsure"],
            key=said.get("newest"),
            topic=said.get("topic", ""),
            time_ms=said.get("time_ms"),
            envelope=said.get("envelope"),
            conversation=said.get("conversation"),
            user=said.get("user"),
        )
    )


#: Attributes of an entity that only the first schema has.
OF_FIRST_SCHEMA: Final = ("state", "moment", "newest", "line", "unsure", "envelope", *ABOUT)


def stored(item: Item | None, now_us: int) -> Stored:
    """Read an item; one that has surely outlived the retention counts as forgotten."""
    said = unwrapped(item) if item else {}
    return Stored(said, expired=EXPIRES in said and said[EXPIRES] * 1_000_000 <= now_us)


def record_attributes(record: Record) -> dict[str, Any]:
    """Return the attributes of a record; defaults are None, and take no room."""
    said = {name: getattr(record, name) for name in ("token", "attempts", "content", "envelope", "changed_us")}
    usual = {name: getattr(record, name) for name in _RECORD_DEFAULTS}
    changed = {name: None if value == _RECORD_DEFAULTS[name] else value for name, value in usual.items()}
    return {"status": record.status.value, **said, **changed}


def about(ask: Ask) -> dict[str, Any]:
    """Return the attributes of an ask, which are written once."""
    return {**{name: getattr(ask, name) for name in ABOUT}, "entity": ask.entity}


def entity_attributes(entity: Entity) -> dict[str, Any]:
    """Return the attributes of an entity."""
    return {
        "token": entity.token,
        "nonce": entity.nonce or None,
        "lease_until_us": entity.lease_until_us or None,
        "ran_out": entity.ran_out or None,
        "data": entity.data,
        "changed_us": entity.changed_us,
        **dict.fromkeys(OF_FIRST_SCHEMA),
    }


# --- writes ------------------------------------------------------------------------------------------


def put(item: Item, condition: Condition) -> Write:
    """Write a whole item."""
    return Write("Put", {"Item": item, **_conditional(condition)})


def delete(key: Item, condition: Condition) -> Write:
    """Remove an item."""
    return Write("Delete", {"Key": key, **_conditional(condition)})


def update(key: Item, changes: Mapping[str, Any], condition: Sequence[tuple[str, str, Any]], **more: int) -> Write:
    """Change some attributes of an existing item: None removes one, `more` adds to a number.

    The revision always increases.
    """
    more["rev"] = 1
    conditional = _conditional(list(condition))
    sets = [f"#{name} = :{name}" for name, value in changes.items() if value is not None]
    sets += [f"#{name} = #{name} + :{name}" for name in more]
    gone = [f"#{name}" for name, value in changes.items() if value is None]
    conditional["ExpressionAttributeNames"] |= {f"#{name}": name for name in (*changes, *more)}
    conditional["ExpressionAttributeValues"] |= {
        f":{name}": value for name, value in wrapped({**changes, **more}).items()
    }
    expression = f"SET {', '.join(sets)}" + (f" REMOVE {', '.join(gone)}" if gone else "")
    return Write("Update", {"Key": key, "UpdateExpression": expression, **conditional})


def _conditional(condition: Condition) -> dict[str, Any]:
    """Write a condition; if it fails, the answer shows the item, which saves reading it."""
    shown = {"ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
    if condition is None:
        nothing = {"ConditionExpression": "attribute_not_exists(#pk)", "ExpressionAttributeNames": {"#pk": "pk"}}
        return {**nothing, **shown}
    return {
        "ConditionExpression": " AND ".join(
            f"attribute_not_exists(#{name})" if operator == ABSENT else f"#{name} {operator} :if_{name}"
            for name, operator, _ in condition
        ),
        "ExpressionAttributeNames": {f"#{name}": name for name, *_ in condition},
        "ExpressionAttributeValues": wrapped({f":if_{name}": value for name, _, value in condition}),
        **shown,
    }
