"""Dead letters of the DynamoDB ledger: the beginning in the event's own item, the rest in further ones.

An item holds at most 400 KB, an event up to 1 MB. The further parts are written before the write that makes the event
dead and names them, and removed after the write that no longer does: a reader never sees half a letter. `purge` finds
parts that a crash leaves in between.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from oncebridge.claim import Letter
from oncebridge.discreet import Discreet
from oncebridge.errors import LedgerUnavailable
from oncebridge.ledgers.dynamodb.items import LETTER, Item, Stored, part_key, wrapped
from oncebridge.ledgers.dynamodb.lists import is_listed, line, line_key

if TYPE_CHECKING:
    from oncebridge.claim import Ask
    from oncebridge.ledgers.dynamodb.table import Patience, Table

#: Every write of an item is billed by its size, a refused one too: a large letter stays out of its event's item.
HEAD_BYTES: Final = 32_768
PART_BYTES: Final = 380_000

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Letter).decode


class Written(Discreet, msgspec.Struct, frozen=True):
    """A letter whose further parts are stored, but which no event names yet."""

    shown = ("letter", "parts", "reason")

    key: bytes
    letter: str
    parts: int
    reason: str
    head: bytes

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes that name it in the event's item."""
        return {"letter": self.letter, "parts": self.parts, "reason": self.reason, "head": self.head}


def write_parts(table: Table, patience: Patience, ask: Ask, letter: Letter) -> Written:
    """Store what does not fit into the event's own item, under an id of its own, and the letter's line in the list."""
    key, text = ask.key, _encode(letter)
    rest = [text[start : start + PART_BYTES] for start in range(HEAD_BYTES, len(text), PART_BYTES)]
    name = f"{table.now_us():016d}-{secrets.token_hex(4)}"
    written = Written(key, name, len(rest), letter.reason, text[:HEAD_BYTES])
    for number, part in enumerate(rest, 1):
        item = part_key(key, written.letter, number) | wrapped({"part": part, "changed_us": table.now_us()})
        table.on_table(patience, "put_item", Item=item)
    table.on_table(patience, "put_item", Item=line(ask, name, letter.reason))
    return written


def remove_parts(table: Table, patience: Patience, ask: Ask, letter: tuple[str, int] | None) -> None:
    """Remove parts and line of a letter that no event names any more; those out of reach now are left to `purge`."""
    name, parts = letter or ("", 0)
    keys = [part_key(ask.key, name, number) for number in range(1, parts + 1)]
    keys += [line_key(ask.key, ask.handler, name)] if is_listed(name) else []
    with suppress(LedgerUnavailable):
        for key in keys:
            table.on_table(patience, "delete_item", Key=key)


def read_letter(table: Table, patience: Patience, key: bytes, event: Stored) -> Letter | None:
    """Join a letter; None if it was removed meanwhile."""
    if event.letter is None:
        return None
    name, parts = event.letter
    pieces = [event.said["head"]]
    for number in range(1, parts + 1):
        part = table.read(patience, part_key(key, name, number))
        if not part.said:
            return None
        pieces.append(part.said["part"])
    try:
        return _decode(b"".join(pieces))
    except msgspec.MsgspecError:
        raise LedgerUnavailable(f"{table.place}: the dead letter of event {key.hex()} cannot be read") from None


def letter_of_part(said: dict[str, Any]) -> str:
    """Return the id of the letter that a part belongs to."""
    return str(said["sk"]).removeprefix(LETTER).partition("#")[0]


def key_of(said: dict[str, Any]) -> Item:
    """Return the key of an item."""
    return wrapped({"pk": said["pk"], "sk": said["sk"]})
