"""Counts calls at the server: each command that a client sends is one, whatever a script does behind it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING
from uuid import uuid4

import redis

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from contestants import Contestant

    Count = Callable[[Callable[[], object]], int]

SCRIPT = "lua"  # so MONITOR marks commands of a script


@contextmanager
def counting(port: int) -> Iterator[Count]:
    """Return a function that does some work and returns how many calls reached the server meanwhile."""
    with redis.Redis(port=port) as marker, redis.Redis(port=port) as watcher, watcher.monitor() as seen:

        def calls_until(mark: str) -> int:
            marker.echo(mark)
            calls = 0
            for command in seen.listen():
                if command["command"] == f"ECHO {mark}":
                    return calls
                calls += command["client_type"] != SCRIPT
            raise ConnectionError("the server ended while its calls were counted")

        def count(work: Callable[[], object]) -> int:
            calls_until(uuid4().hex)
            work()
            return calls_until(uuid4().hex)

        yield count


def for_each(contestant: Contestant, raws: Sequence[bytes], size: int, count: Count) -> list[int]:
    """Give a contestant deliveries in batches, and return the calls that each batch took."""
    return [count(lambda at=at: contestant.work(raws[at : at + size])) for at in range(0, len(raws), size)]
