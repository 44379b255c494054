"""Reads the body of a request into deliveries, no more than a request may hold."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import msgspec

from oncebridge.sources.http_reply import problem
from oncebridge.sources.unwrap import unwrap, unwrap_parsed

if TYPE_CHECKING:
    from oncebridge.sources.http_reply import Reply

#: The start of msgspec's message for an array with more elements than allowed.
_TOO_LONG: Final = "of at most length"
ELEMENT_BYTES_MIN: Final = 2  # with the comma


class TooMany(Exception):
    """A request holds more deliveries than it may; nothing of it is processed."""

    def __init__(self, most: int) -> None:
        """Take how many it may hold."""
        super().__init__()
        self.reply: Reply = problem(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"a request may hold {most:,} deliveries (deliveries_per_request), and nothing of this one was processed; "
            "send it in several",
        )


def deliveries_in(body: bytes, most: int) -> list[bytes]:
    """Return the deliveries in a body; raise `TooMany` without reading all of them."""
    if len(body) > ELEMENT_BYTES_MIN * most and _is_too_long(body, most):
        raise TooMany(most)
    raws = unwrap(body, most + 1)
    if len(raws) > most:
        raise TooMany(most)
    return raws


def deliveries_in_parsed(tree: Any, most: int) -> list[Any]:
    """Return the deliveries in a body that is already parsed; raise `TooMany` for more."""
    with suppress(UnicodeEncodeError):  # half of a surrogate pair: refused with a reason later
        tree = tree.encode() if isinstance(tree, str) else tree
    if isinstance(tree, bytes):
        return list(deliveries_in(tree, most))
    raws = unwrap_parsed(tree, most + 1)
    if len(raws) > most:
        raise TooMany(most)
    return raws


def _is_too_long(body: bytes, most: int) -> bool:
    """Return whether a list, or the records in a batch, are too many; stops at the first that exceeds the limit.

    Sixteen megabytes of `{}` would otherwise become millions of objects before they are counted.
    """
    elements, batch = _decoders(most)
    decode = elements if body.lstrip().startswith(b"[") else batch
    try:
        decode(body)
    except msgspec.ValidationError as error:
        return _TOO_LONG in str(error)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        pass  # unreadable: the flow says so
    return False


@lru_cache(maxsize=4)
def _decoders(most: int) -> tuple[Any, Any]:
    """Make decoders for a list of at most this many elements, and for a batch with such a list."""
    fields = [(f"element_{number}", msgspec.Raw, msgspec.Raw()) for number in range(most)]
    elements = msgspec.defstruct("Elements", fields, array_like=True, forbid_unknown_fields=True)
    batch = msgspec.defstruct("Batch", [("Records", elements, None), ("records", elements, None)])
    return msgspec.json.Decoder(elements).decode, msgspec.json.Decoder(batch).decode
