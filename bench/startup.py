"""How long it takes until a fresh process could take its first event: imports, and a connection that answers."""

from __future__ import annotations

import statistics
import subprocess
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_TIMED: Final = """\
import time
started = time.perf_counter()
{work}
print(time.perf_counter() - started)
"""

ONCEBRIDGE: Final = """\
from oncebridge import Bridge
bridge = Bridge("redis://127.0.0.1:{port}/0")
@bridge.on("*")
def handle(event):
    pass
bridge.open()
"""

POWERTOOLS: Final = """\
from aws_lambda_powertools.utilities.idempotency import IdempotencyConfig, idempotent_function
from aws_lambda_powertools.utilities.idempotency.persistence.cache import CachePersistenceLayer
layer = CachePersistenceLayer(host="127.0.0.1", port={port}, ssl=False)
@idempotent_function(
    data_keyword_argument="event", persistence_store=layer, config=IdempotencyConfig(event_key_jmespath="id")
)
def handle(event):
    pass
layer.client.ping()
"""


def seconds_to_start(programs: Mapping[str, str], times: int, after: Callable[[], None]) -> dict[str, list[float]]:
    """Run each program in fresh processes, in turns; the first of each only fills the file cache."""
    taken: dict[str, list[float]] = {name: [] for name in programs}
    for turn in range(times + 1):
        for name, program in programs.items():
            seconds = run_timed(program)
            if turn:
                taken[name].append(seconds)
        after()
    return taken


def run_timed(program: str) -> float:
    """Return how long a program takes by its own clock, so without the start of the interpreter."""
    timed = _TIMED.format(work=program)
    done = subprocess.run([sys.executable, "-c", timed], check=True, capture_output=True, text=True)
    return float(done.stdout)


def median_ms(seconds: list[float]) -> float:
    """Return the median in milliseconds."""
    return statistics.median(seconds) * 1000
