"""Whatever is sent, it costs about as much as a usual event of its size, and leaves nothing behind in memory."""

import re
import time
import tracemalloc

import pytest

from hostile_inputs import usual, with_long_text, worst
from oncebridge import Bridge
from payloads import in_envelope
from shapes import records, stream_record

#: By size, how many times as long as a usual one any may take. The small one shows soon what the large one would for
#: hours; it is measured in moments, so it leaves more room.
TIMES_MAX = {16_384: 100, 1_000_000: 10}


@pytest.fixture
def bridge():
    """Return a bridge whose handler does nothing."""
    bridge = Bridge("memory://")
    bridge.on("*")(lambda event: None)
    with bridge:
        yield bridge


def processor_seconds(bridge, data):
    """Return the processor time that an invocation with this in a record takes."""
    invocation = records(stream_record(data))
    begun = time.process_time()
    bridge.lambda_handler(invocation, None)
    return time.process_time() - begun


@pytest.mark.parametrize("size", TIMES_MAX)
def test_no_input_costs_much_more_than_a_usual_one(bridge, size):
    """No input takes more than ten times as long as a usual event of the same size."""
    limit = TIMES_MAX[size] * max(processor_seconds(bridge, usual(size)) for _ in range(3))
    for name, data in worst(size).items():
        # A busy machine may disturb one look, not each of three.
        assert any(processor_seconds(bridge, data) <= limit for _ in range(3)), name


# --- texts without end ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", with_long_text(""))
def test_a_text_without_end_is_unreadable(bridge, field):
    """A topic, a source, an id or a time that is too long is refused by name and length, and never shown."""
    result = bridge.process(with_long_text("y" * 300)[field])
    assert result.column == "dead"
    assert re.fullmatch(rf"unreadable: {field} is 3\d\d characters long; the limit is 256", result.reason)
    assert "yyy" not in repr(result)


@pytest.mark.parametrize("field", with_long_text(""))
def test_a_text_as_long_as_allowed_is_read(bridge, field):
    """Up to the limit it is an event like any other."""
    assert bridge.process(with_long_text("y" * 200)[field]).column == "processed"


def test_memory_stays_flat(tmp_path):
    """However many texts without end are sent, a worker keeps none of them."""
    bridge = Bridge(f"sqlite:///{tmp_path}/once.db")
    bridge.on("v2.{id}.x.*")(lambda event: None)

    def send(numbers):
        for number in numbers:
            text = f"{number:06}".ljust(LONG, "x")
            others = [{"eventId": text[:6], "eventTime": text}, {"conversationId": int(f"{number + 1:04}" * 1000)}]
            bridge.process_many([*with_long_text(text).values(), *map(in_envelope, others)])

    with bridge:
        send(range(3))  # whatever there is only once
        tracemalloc.start()
        send(range(3, 23))
        kept, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert kept < 10 * LONG  # of twenty in each of sixteen fields


LONG = 60_000

# --- what nobody vouches for ------------------------------------------------------------------------------------


@pytest.mark.parametrize("broken", [{"id": "Wilhelmina, +442079460958"}, {"id": "Wilhelmina", "detail": 7}])
def test_the_id_of_an_unreadable_object_is_not_shown(bridge, broken):
    """What stands as the id of something unreadable may be anything that was typed: it is known by its digest."""
    first, again = bridge.process_many([broken, broken])
    assert re.fullmatch("digest:[0-9a-f]{32}", first.envelope_id)
    assert again.envelope_id == first.envelope_id
    assert "Wilhelmina" not in repr([first, again])


def test_the_envelope_id_of_an_unreadable_event_is_shown(bridge):
    """An id as EventBridge gives it is what people look for."""
    name = "6efd5506-3fd6-09a1-5599-09ae48bd6dd8"
    assert bridge.process({"id": name, "detail": 7}).envelope_id == name
