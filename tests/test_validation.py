"""The words of an error come from the type alone: the field and the bounds, never the value."""

import enum
from typing import Annotated, Literal

import msgspec
import pytest
from msgspec import Meta

from oncebridge.validation import Fault, expected, field_types, find_fault, metadata


class Colour(enum.Enum):
    """Two words."""

    RED = "red"
    BLUE = "blue"


class Order(msgspec.Struct, forbid_unknown_fields=True):
    """A struct with a field of each type that has words."""

    parcel: msgspec.Raw
    note: str
    seconds: Annotated[float, Meta(ge=0.1, le=43_200, description="how long it takes")] | None = None
    pieces: Annotated[int, Meta(ge=1)] = 1
    size: Annotated[int, Meta(le=1_073_741_824)] = 1
    wrapped: bool = False
    way: Literal["road", "rail", "ship"] = "road"
    colour: Colour = Colour.RED
    names: tuple[Annotated[str, Meta(min_length=1)], ...] = ()
    code: Annotated[str, Meta(pattern="^x", extra={"expected": "a text that begins with x"})] = "x"


RIGHT = {"parcel": {"any": ["thing"]}, "note": ""}

#: Field -> a value that does not fit, and what is said of it.
WRONG = {
    "note": (5, "a text"),
    "seconds": (0, "a number from 0.1 to 43200"),
    "pieces": (0, "a whole number from 1"),
    "size": ("hunter2", "a whole number to 1073741824"),
    "wrapped": (1, "true or false"),
    "way": ("air", "road, rail or ship"),
    "colour": ("green", "red or blue"),
    "names": ([""], "a list of texts"),
    "code": ("hunter2", "a text that begins with x"),
}


@pytest.mark.parametrize("field", WRONG)
def test_a_wrong_field_is_named_with_what_was_expected(field):
    """What msgspec refuses is named by its field and its bounds, without the value."""
    value, words = WRONG[field]
    given = {**RIGHT, field: value}
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({**given, "parcel": msgspec.Raw(b"{}")}, Order)
    assert find_fault(given, Order) == Fault(field, f"expected {words}")
    assert str(value) not in str(find_fault(given, Order)).partition(": ")[2] or value == 0


def test_a_missing_field_is_named():
    """The first field that is missing is named with what it must be."""
    assert str(find_fault({"parcel": 1}, Order)) == "note: is missing; expected a text"


@pytest.mark.parametrize(
    ("name", "words"),
    [("secnds", "no such field; did you mean seconds?"), ("xyzzy", "no such field; known are parcel, note, seconds, ")],
)
def test_an_unknown_field_is_named(name, words):
    """A name that does not exist is answered with the one that may have been meant, or with all."""
    fault = find_fault({**RIGHT, name: 1}, Order)
    assert fault is not None
    assert fault.field == name
    assert fault.words.startswith(words)


def test_a_name_from_outside_is_shown_short_and_printable():
    """A name of any length and any characters makes one short line."""
    fault = find_fault({**RIGHT, "\x1b[2Jü\r\n" * 100_000: 1}, Order)
    assert fault is not None
    assert fault.field.isprintable()
    assert fault.field.isascii()
    assert len(fault.field) == 40


def test_nothing_is_wrong_with_what_fits():
    """Fields that fit have no fault, and None fits where it may stand."""
    assert find_fault({**RIGHT, "seconds": None}, Order) is None


def test_a_type_describes_itself():
    """A type brings its bounds, its description and its own words."""
    types = field_types(Order)
    assert metadata(types["seconds"]) == {"ge": 0.1, "le": 43_200, "description": "how long it takes"}
    assert metadata(types["code"]) == {"pattern": "^x", "expected": "a text that begins with x"}


def test_a_type_without_words_is_refused():
    """A type that nothing can be said of is a mistake of ours, found by the first error about it."""
    with pytest.raises(TypeError, match="no words for this type"):
        expected(complex)
