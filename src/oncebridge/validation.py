"""Errors in values from outside, in our own words: msgspec's may quote the value, which may be secret.

A type defines once which values are allowed: `Annotated[float, msgspec.Meta(ge=0.1, le=60)]`. msgspec refuses any
other, and the words for the expected value come from the same type. A type whose bounds say too little has its own
words: `msgspec.Meta(extra={"expected": "a text such as genesys.clean"})`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from inspect import get_annotations
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec

_SHOWN_MAX: Final = 40  # characters of a name that comes from outside


class Fault(NamedTuple):
    """The field that is wrong, and why: `lease_seconds` and `expected a number from 0.1 to 43200`."""

    field: str
    words: str

    def __str__(self) -> str:
        """Join both into a sentence."""
        return f"{self.field}: {self.words}"


def find_fault(given: Mapping[str, Any], kind: type[msgspec.Struct]) -> Fault | None:
    """Return why msgspec refuses to make a struct of this kind from these fields; None if no single field is wrong."""
    types = field_types(kind)
    for name, value in given.items():
        if name not in types:
            return Fault(shown_name(name), no_such("field", name, types))
        if not _fits(value, types[name]):
            return Fault(name, f"expected {expected(types[name])}")
    missing = [field.name for field in msgspec.structs.fields(kind) if field.required and field.name not in given]
    return Fault(missing[0], f"is missing; expected {expected(types[missing[0]])}") if missing else None


def _fits(value: Any, annotation: Any) -> bool:
    if without_metadata(annotation) is msgspec.Raw:  # any JSON
        return True
    try:
        msgspec.convert(value, annotation)
    except msgspec.ValidationError:
        return False
    return True


@lru_cache(maxsize=64)
def field_types(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the types of a struct's fields by name, with their bounds.

    Types that are written as text, as `from __future__ import annotations` makes them, take some 50 microseconds each.
    """
    hints: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        hints |= get_annotations(base)
    if any(isinstance(hints[name], str) for name in kind.__struct_fields__):
        hints = get_type_hints(kind, include_extras=True)
    return {name: hints[name] for name in kind.__struct_fields__}


def required_type(annotation: Any) -> Any:
    """Return the type of a given value: without None, which means that none is given."""
    plain = without_metadata(annotation)
    if get_origin(plain) not in (Union, UnionType):
        return annotation
    parts = [part for part in get_args(plain) if part is not NoneType]
    given = parts[0] if len(parts) == 1 else plain
    return Annotated[(given, *annotation.__metadata__)] if plain is not annotation else given


def metadata(annotation: Any) -> dict[str, Any]:
    """Return a type's metadata: its bounds by their names, its `description`, and all of `extra`."""
    found: dict[str, Any] = {}
    for note in getattr(required_type(annotation), "__metadata__", ()):
        if isinstance(note, msgspec.Meta):
            said = {name: getattr(note, name) for name in _NOTES}
            found |= {name: value for name, value in said.items() if value is not None} | (note.extra or {})
    return found


_NOTES: Final = ("ge", "le", "min_length", "max_length", "pattern", "description")


def without_metadata(annotation: Any) -> Any:
    """Return a type without its metadata."""
    return annotation.__origin__ if hasattr(annotation, "__metadata__") else annotation


# --- words --------------------------------------------------------------------------------------------------

_NAMES: Final = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


def expected(annotation: Any) -> str:
    """Describe the values of this type."""
    said, plain = metadata(annotation), without_metadata(required_type(annotation))
    if "expected" in said:
        return str(said["expected"])
    if plain in _NAMES:
        return _NAMES[plain] + _bounds(said)
    if get_origin(plain) is Literal:
        return _either(get_args(plain))
    if isinstance(plain, type) and issubclass(plain, Enum):
        return _either([member.value for member in plain])
    if get_origin(plain) is tuple:
        item = get_args(plain)[0]
        return f"a list of {'texts' if without_metadata(item) is str else expected(item)}"
    raise TypeError(f'{annotation!r}: no words for this type; give it some, by Meta(extra={{"expected": ...}})')


def _bounds(said: Mapping[str, Any]) -> str:
    low = f" from {said['ge']:.12g}" if "ge" in said else ""
    high = f" to {said['le']:.12g}" if "le" in said else ""
    return low + high + (" that is not empty" if said.get("min_length") else "")


def _either(values: Iterable[object]) -> str:
    *others, last = map(str, values)
    return f"{', '.join(others)} or {last}" if others else last


def no_such(what: str, name: str, known: Sequence[str] | Mapping[str, Any]) -> str:
    """Say that there is no setting, or field, of this name, and suggest a similar one."""
    close = most_similar(name, known)
    return f"no such {what}; " + (f"did you mean {close}?" if close else f"known are {', '.join(known)}")


def most_similar(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that a mistyped one is most like, if there is any."""
    import difflib  # only for errors: programs start without it

    return next(iter(difflib.get_close_matches(name[:_SHOWN_MAX], list(known), n=1)), None)


def shown_name(name: str) -> str:
    """Shorten a name that comes from outside, and replace characters that a terminal would obey."""
    ascii_only = name[:_SHOWN_MAX].encode("ascii", "replace").decode()
    return "".join(character if character.isprintable() else "?" for character in ascii_only)
