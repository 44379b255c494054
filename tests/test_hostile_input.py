"""Whatever is sent, it costs about as much as a usual event of its size, and leaves nothing behind in memory."""

import time

import pytest

from hostile_inputs import usual, worst
from oncebridge import Bridge
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
