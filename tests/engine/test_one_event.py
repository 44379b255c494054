"""The way of one event through the code, traced: it may become shorter, and not longer."""

import os
import sys

import msgspec
import pytest

import oncebridge
from oncebridge import Bridge
from payloads import ACW, TIME_MS, envelope, presence, raw

PACKAGE = os.path.dirname(oncebridge.__file__) + os.sep  # noqa: PTH120 - as frames write it
#: Records that are made when the program starts, and carry no event.
STANDING = {"Address", "BatchLimits", "Field", "Handler", "Profile", "Script", "Verb"}

#: Called only if the reply is not there yet.
BY_CHANCE = {("ledgers/redis/connection.py", "Connection.has_answer")}


class Way:
    """The files, functions and records that a call of the bridge passes."""

    def __init__(self):
        """Pass nothing yet."""
        self.files, self.functions, self.records = set(), set(), set()

    def __call__(self, frame, event, value):
        """Take down one step, as `sys.setprofile` hands it over."""
        code = frame.f_code
        if not code.co_filename.startswith(PACKAGE):
            return
        file = code.co_filename.removeprefix(PACKAGE)
        if event == "call":
            self.files.add(file)
            if not code.co_name.startswith("<"):
                self.functions.add((file, code.co_qualname))
        elif event == "return":
            for one in (*frame.f_locals.values(), value):
                self._look_at(one)

    def _look_at(self, value):
        if isinstance(value, list) or type(value) is tuple:
            for one in value[:1]:
                self._look_at(one)
        kind = type(value)
        if kind.__module__.startswith("oncebridge.") and isinstance(value, (msgspec.Struct, tuple)):
            self.records.add(kind.__name__)


def fact(number):
    """Make an event that happened."""
    return raw(envelope(ACW, {"eventTime": TIME_MS + number, "conversationId": f"call-{number}"}))


def state(number):
    """Make a state of one user, each newer than the last."""
    return raw(presence("BUSY", modified_ms=TIME_MS + 10_000 * number))


def traced(bridge, delivery):
    """Process a delivery, and return its way."""
    way = Way()
    sys.setprofile(way)
    try:
        (result,) = bridge.process_many([delivery])
    finally:
        sys.setprofile(None)
    assert result.outcome == "done"
    return way


@pytest.mark.parametrize(
    ("make", "files", "functions", "records"),
    [(fact, 24, 138, 15), (state, 25, 151, 17)],
    ids=["fact", "state"],
)
def test_one_event_passes_few_files_functions_and_records(valkey, make, files, functions, records):
    """What one event passes on its way through `process_many` on Redis keeps to a budget."""
    with Bridge(f"{valkey.url}?name=way-{os.urandom(4).hex()}") as bridge:
        bridge.on("*")(lambda _event: None)
        for number in range(3):  # what is done once, such as loading a script, is no part of it
            bridge.process_many([make(number)])
        # Threads beside it may add a step of their own: the shortest way counts.
        ways = [traced(bridge, make(number)) for number in range(3, 23)]
    found = min((len(way.functions - BY_CHANCE), len(way.files), len(way.records - STANDING)) for way in ways)
    assert all("engine/flow.py" in way.files for way in ways)
    assert all(one <= most for one, most in zip(found, (functions, files, records), strict=True)), found
