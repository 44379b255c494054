"""How much Redis memory a remembered event takes, by the server's own account."""

from __future__ import annotations

from typing import TYPE_CHECKING

import redis
from traffic import facts, portions

if TYPE_CHECKING:
    from collections.abc import Callable

    from contestants import Contestant

PORTION = 1000


def bytes_per_event(
    url: str, make: Callable[[], Contestant], number: int, *, start_ms: int, after: Callable[[int], None]
) -> float:
    """Let a contestant remember facts of one hour of event time, and return what each of them takes.

    What there is once per server, such as scripts, is there before the first look: a few events of another hour
    are remembered first.

    Args:
        url: The database that the contestant uses; it is emptied.

        make: Makes the contestant.

        number: How many facts.

        start_ms: When the hour begins.

        after: Called with how many were worked off since the last call.

    """
    with redis.Redis.from_url(url) as server:
        server.flushall()
        contestant = make()
        try:
            contestant.work(list(facts(10, seed=1, start_ms=start_ms - 48 * 3_600_000)))
            before = used_bytes(server)
            for portion in portions(facts(number, seed=2, start_ms=start_ms), PORTION):
                contestant.work(portion)
                after(len(portion))
            return (used_bytes(server) - before) / number
        finally:
            contestant.close()


def used_bytes(server: redis.Redis) -> int:
    """Return the memory that data takes, without what is in it only for a moment: buffers of clients and the log."""
    memory = server.info("memory")
    return int(memory["used_memory"] - memory["mem_clients_normal"] - memory["mem_aof_buffer"])
