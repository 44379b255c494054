"""Arrays for the ledger's functions, in Postgres' binary format.

psycopg inspects each element of a list to find its type, which takes longer than the server needs for a batch. Here
the type is known, and the same in each call, so that a statement is prepared once.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from psycopg.adapt import Dumper
from psycopg.postgres import types
from psycopg.pq import Format

if TYPE_CHECKING:
    from collections.abc import Sequence

    from psycopg.abc import AdaptContext

_HEAD: Final = Struct(">iiIii").pack  # dimensions, whether some may be null, type, and their number, counted from 1
_LENGTH: Final = Struct(">i").pack
_NULL: Final = _LENGTH(-1)
_BOOLEAN: Final = (_LENGTH(1) + b"\0", _LENGTH(1) + b"\1")
_INTEGER: Final = Struct(">ii").pack
_BIGINT: Final = Struct(">iq").pack


class Booleans(list[bool]):
    """To be sent as boolean[]."""


class Integers(list[int | None]):
    """To be sent as integer[]."""


class Bigints(list[int | None]):
    """To be sent as bigint[]."""


class Bytes(list[bytes | None]):
    """To be sent as bytea[]."""


class Texts(list[str | None]):
    """To be sent as text[]."""


class _ArrayDumper(Dumper):
    format = Format.BINARY
    element: int

    def dump(self, obj: Any) -> bytes:
        elements = self.written(obj)
        return _HEAD(1, 1, self.element, len(elements), 1) + b"".join(elements)

    def written(self, values: Any) -> Sequence[bytes]:
        raise NotImplementedError


class _BooleansDumper(_ArrayDumper):
    element, oid = types["bool"].oid, types["bool"].array_oid

    def written(self, values: Booleans) -> Sequence[bytes]:
        return [_BOOLEAN[value] for value in values]


class _IntegersDumper(_ArrayDumper):
    element, oid = types["int4"].oid, types["int4"].array_oid

    def written(self, values: Integers) -> Sequence[bytes]:
        return [_NULL if value is None else _INTEGER(4, value) for value in values]


class _BigintsDumper(_ArrayDumper):
    element, oid = types["int8"].oid, types["int8"].array_oid

    def written(self, values: Bigints) -> Sequence[bytes]:
        return [_NULL if value is None else _BIGINT(8, value) for value in values]


class _BytesDumper(_ArrayDumper):
    element, oid = types["bytea"].oid, types["bytea"].array_oid

    def written(self, values: Sequence[bytes | None]) -> Sequence[bytes]:
        return [_NULL if value is None else _LENGTH(len(value)) + value for value in values]


class _TextsDumper(_BytesDumper):
    element, oid = types["text"].oid, types["text"].array_oid

    def written(self, values: Sequence[Any]) -> Sequence[bytes]:
        encoding = self.connection.info.encoding if self.connection else "utf-8"
        return super().written([None if value is None else value.encode(encoding) for value in values])


def register(context: AdaptContext) -> None:
    """Register the dumpers of these arrays on a connection."""
    for kind, dumper in {
        Booleans: _BooleansDumper,
        Integers: _IntegersDumper,
        Bigints: _BigintsDumper,
        Bytes: _BytesDumper,
        Texts: _TextsDumper,
    }.items():
        context.adapters.register_dumper(kind, dumper)
