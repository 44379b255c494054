"""Gaps: conversations of which something did not come; on disk while a run lasts, since there may be very many."""

from __future__ import annotations

import struct
import tempfile
from typing import IO, TYPE_CHECKING, Final, Self

import msgspec

from oncebridge.genesys.conversations import Conversation
from oncebridge.reconciling.expected import Due

if TYPE_CHECKING:
    from collections.abc import Iterator

_LENGTH: Final = struct.Struct(">I")
_MEMORY_BYTES: Final = 4 * 1_048_576


class Gap(msgspec.Struct, frozen=True, array_like=True):
    """One conversation of which something did not come."""

    #: As Genesys' analytics describe it.
    about: Conversation
    #: Whether nothing at all came.
    never: bool
    missing: list[Due]

    @property
    def conversation(self) -> str:
        """Its id."""
        return self.about.id

    @property
    def ended_ms(self) -> int:
        """When it ended: others are not judged."""
        return self.about.ended_ms or 0

    @property
    def families(self) -> list[str]:
        """The families that are missing, each once, in the order of time."""
        return list(dict.fromkeys(one.family for one in sorted(self.missing, key=lambda one: one.at_ms)))

    @property
    def has_no_end(self) -> bool:
        """Whether it came, except for its customer's end."""
        return not self.never and any(one.family == "customer.end" for one in self.missing)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Gap).decode


class Gaps:
    """The gaps of a run, in the order in which they were found; many of them lie on disk."""

    def __init__(self) -> None:
        """Begin with none."""
        self._file: IO[bytes] = tempfile.SpooledTemporaryFile(_MEMORY_BYTES)  # noqa: SIM115 - closed by `close`
        self.number = 0

    def __enter__(self) -> Self:
        """Use them."""
        return self

    def __exit__(self, *_: object) -> None:
        """Forget them."""
        self._file.close()

    def add(self, gap: Gap) -> None:
        """Add one."""
        text = _encode(gap)
        self._file.write(_LENGTH.pack(len(text)) + text)
        self.number += 1

    def __iter__(self) -> Iterator[Gap]:
        """Read all of them again; nothing is added meanwhile."""
        self._file.seek(0)
        while head := self._file.read(_LENGTH.size):
            yield _decode(self._file.read(_LENGTH.unpack(head)[0]))
        self._file.seek(0, 2)
