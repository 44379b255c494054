"""Arrays for the ledger's functions, in Postgres' binary format.

psycopg inspects each element of a list to find its type, which takes longer than the server needs for a batch. Here
the type is known, and the same in each call, so that a statement is prepared once.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from psycopg.adapt import Dumper
from psycopg.postgres import types
from psycopg.pq import Format

if TYPE_CHECKING:
    from collections.abc import Iterable

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


def _array(element: str, elements: list[bytes]) -> bytes:
    """Write an array of elements that are written already, each behind its length."""
    return _HEAD(1, 1, types[element].oid, len(elements), 1) + b"".join(elements)


def _strings(element: str, values: Iterable[bytes | None]) -> bytes:
    return _array(element, [_NULL if value is None else _LENGTH(len(value)) + value for value in values])


class _BooleansDumper(Dumper):
    format, oid = Format.BINARY, types["bool"].array_oid

    def dump(self, obj: Booleans) -> bytes:
        return _array("bool", [_BOOLEAN[value] for value in obj])


class _IntegersDumper(Dumper):
    format, oid = Format.BINARY, types["int4"].array_oid

    def dump(self, obj: Integers) -> bytes:
        return _array("int4", [_NULL if value is None else _INTEGER(4, value) for value in obj])


class _BigintsDumper(Dumper):
    format, oid = Format.BINARY, types["int8"].array_oid

    def dump(self, obj: Bigints) -> bytes:
        return _array("int8", [_NULL if value is None else _BIGINT(8, value) for value in obj])


class _BytesDumper(Dumper):
    format, oid = Format.BINARY, types["bytea"].array_oid

    def dump(self, obj: Bytes) -> bytes:
        return _strings("bytea", obj)


class _TextsDumper(Dumper):
    format, oid = Format.BINARY, types["text"].array_oid

    def dump(self, obj: Texts) -> bytes:
        encoding = self.connection.info.encoding if self.connection else "utf-8"
        return _strings("text", [None if value is None else value.encode(encoding) for value in obj])


def register(context: AdaptContext) -> None:
    """Register the dumpers of these arrays on a connection."""
    adapters = context.adapters
    adapters.register_dumper(Booleans, _BooleansDumper)
    adapters.register_dumper(Integers, _IntegersDumper)
    adapters.register_dumper(Bigints, _BigintsDumper)
    adapters.register_dumper(Bytes, _BytesDumper)
    adapters.register_dumper(Texts, _TextsDumper)
