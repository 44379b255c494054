"""The keys of the back-test: different things get different numbers, equal ones the same, and a user's own is read."""

import json
import subprocess
import sys
import uuid

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import payloads
from oncebridge.diagnosis.keys import BUILT_IN, STREAMS, OwnKey, id_number, joined, number
from oncebridge.errors import ConfigurationError

IDS = st.one_of(
    st.text(min_size=1, max_size=40),
    st.uuids().map(str),
    st.text("0123456789abcdefABCDEF-_+ x", min_size=1, max_size=36),
    st.tuples(st.integers(0, 9), st.sampled_from(["{:08x}", "{:032x}"])).map(
        lambda drawn: str(uuid.UUID(hex=drawn[1].format(drawn[0]).ljust(32, "0")))
    ),
)


# --- numbers ---------------------------------------------------------------------------------------------------


@given(IDS, IDS)
@example("00000001-0000-0000-0000-000000000000", "00000002-0000-0000-0000-000000000000")
@example("ab", "AB")
@example("ab", "a_b")
@example("ab", "a-b")
@example("ab", "0xab")
@example("ab", " ab")
@example("ab", "00ab")
def test_only_equal_ids_have_one_number(one, other):
    """A key on the envelope id compares texts: ids that differ in one character are two, whatever they look like."""
    assert (id_number(one) == id_number(other)) == (one == other)


def test_no_id_has_no_number():
    """What a delivery lacks cannot be compared, and so it passes."""
    assert id_number(None) is None


@given(st.binary(max_size=50), st.binary(max_size=50))
def test_only_equal_bytes_have_one_number(one, other):
    """Numbers stand for what is compared, and fit into eight bytes."""
    assert (number(one) == number(other)) == (one == other)
    assert 0 <= number(one) < 1 << 64


PAIRS = st.tuples(st.binary(max_size=2), st.binary(max_size=2))


@given(PAIRS, PAIRS)
@example((b"a", b"b"), (b"b", b"a"))
def test_only_equal_pairs_have_one_number(one, other):
    """The number of two numbers knows both of them, and which is which."""
    first, second = (joined(number(a), number(b)) for a, b in (one, other))
    assert (first == second) == (one == other)
    assert 0 <= first < 1 << 64


def test_numbers_are_the_same_in_every_process():
    """Rows that one process wrote are compared with those of another, whose hashes of texts may be salted otherwise."""
    program = (
        "from oncebridge.diagnosis.keys import *\n"
        "from oncebridge.diagnosis.keys import _text_number\n"
        "print(number(b'x'), joined(1, 2), id_number('no id'), id_number('ab'), _text_number('x'))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(filter(None, sys.path))},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


def test_rows_of_the_table_can_be_told_apart():
    """Each key has a name and a title of its own, and compares one of the streams there are."""
    assert len({key.name for key in BUILT_IN}) == len({key.title for key in BUILT_IN}) == len(BUILT_IN) == 7
    assert {key.stream for key in BUILT_IN} == set(range(STREAMS))


# --- a user's own ----------------------------------------------------------------------------------------------

EVENT = payloads.raw(payloads.envelope(payloads.ACW))


def own(text):
    """Read a user's key."""
    return OwnKey(text, STREAMS)


@pytest.mark.parametrize(
    ("text", "expression", "seconds"),
    [
        ("id", "id", None),
        ("  id  ", "id", None),
        ("id for 10 s", "id", 10),
        ("id for 10s", "id", 10),
        ("id  for  500 ms", "id", 0.5),
        ("id for 1.5 h", "id", 5400),
        ("id for 2 m", "id", 120),
        ("id for 2 min", "id", 120),
        ("id for 4 d", "id", 345_600),
        ("[id, detail.topicName] for 10 s", "[id, detail.topicName]", 10),
        ("[id,\n detail.topicName]\nfor 10 s", "[id,\n detail.topicName]", 10),
        ("for", "for", None),
        ("for for 10 s", "for", 10),
    ],
)
def test_a_key_may_have_a_span(text, expression, seconds):
    """`EXPRESSION for 10 s` remembers for ten seconds; without a span it remembers for ever."""
    key = own(text).key
    assert (key.compares, key.seconds, key.stream) == (expression, seconds, STREAMS)
    assert key.name == key.title == text.strip()


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "detail.[",
        "id for",
        "id for 10",
        "id for s",
        "id for -1 s",
        "id for 10 parsecs",
        " for 10 s",
        "[id",
        "'",
    ],
)
def test_what_is_no_expression_is_refused_with_an_example(text):
    """The error repeats what was given, and shows how a key is written."""
    with pytest.raises(ConfigurationError, match=r"--key: .* is not a JMESPath expression; write one .* for 10 s'"):
        own(text)


@pytest.mark.parametrize("text", ["digest(detail)", "length(id, id)", "detail.nosuch(@) for 10 s"])
def test_a_function_that_cannot_be_called_is_refused(text):
    """A misspelt function finds nothing in any event: the row would say that the key lets everything through."""
    with pytest.raises(ConfigurationError, match="--key: "):
        own(text)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"no JSON",
        b"{",
        b"[" * 100_000,
        b'{"id": null}',
        b'{"id": ""}',
        b'{"id": {"a": null}}',
        b"{}",
        b"5",
        b'"id"',
    ],
)
def test_a_delivery_without_the_field_has_no_number(raw):
    """What the expression does not find is not compared."""
    assert own("id").number_of(raw) is None


@given(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), min_size=1, max_size=5), st.randoms())
def test_the_order_of_names_does_not_count(fields, dice):
    """Two objects with the same fields are the same value, however they are written."""
    shuffled = list(fields.items())
    dice.shuffle(shuffled)
    texts = [json.dumps({"a": dict(given)}).encode() for given in (fields.items(), shuffled)]
    first, second = (own("a").number_of(text) for text in texts)
    assert first == second is not None


@pytest.mark.parametrize("other", [1, "1", [1], True, 1.5, {"a": 1}, None])
def test_values_of_different_types_are_different(other):
    """The text "1" is not the number 1."""
    values = [1, "1", [1], True, 1.5, {"a": 1}, None]
    equal = [
        own("a").number_of(json.dumps({"a": one}).encode()) == own("a").number_of(json.dumps({"a": other}).encode())
        for one in values
    ]
    assert equal.count(True) == 1


def test_an_expression_sees_the_whole_event():
    """Envelope and detail can be named, as Powertools' users do."""
    assert own("[id, detail.eventBody.conversationId]").number_of(EVENT) == number(
        json.dumps([payloads.ENVELOPE_ID, payloads.CONVERSATION], separators=(",", ":")).encode()
    )
