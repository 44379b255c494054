"""How much Redis memory a remembered event takes, by the server's own account."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import redis
from contestants import Oncebridge
from traffic import portions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from contestants import Contestant

PORTION: Final = 1000
WARM_UP: Final = 0.1
DUPLICATES: Final = ("redelivery", "republish", "conflict")


def bytes_used(url: str, make: Callable[[], Contestant], raws: Sequence[bytes], *, after: Callable[[int], None]) -> int:
    """Return the bytes that a server uses more for the deliveries after the first tenth, which warms up.

    Whatever exists once per server, such as scripts, is there by then, and so are the entities of everyone at work.

    Args:
        url: The database that the contestant uses; it is emptied.

        make: Makes the contestant.

        raws: The deliveries.

        after: Called with how many were processed since the last call.

    """
    warm_up = round(len(raws) * WARM_UP)
    with redis.Redis.from_url(url) as server:
        server.flushall()
        contestant = make()
        try:
            contestant.work(raws[:warm_up])
            after(warm_up)
            before = used_bytes(server)
            for portion in portions(iter(raws[warm_up:]), PORTION):
                contestant.work(portion)
                after(len(portion))
            return used_bytes(server) - before
        finally:
            contestant.close()


def events_in(raws: Sequence[bytes]) -> int:
    """Return how many events a bridge remembers of the deliveries after the first tenth: all but duplicates."""
    bridge = Oncebridge("memory://")
    try:
        verdicts = bridge.verdicts(raws)[round(len(raws) * WARM_UP) :]
    finally:
        bridge.close()
    return sum(verdict not in DUPLICATES for verdict in verdicts)


def new_calls_in(raws: Sequence[bytes]) -> int:
    """Return how many calls begin after the first tenth of the deliveries: each is an entity of its agent's."""
    bodies = (json.loads(raw)["detail"] for raw in raws)
    calls = [body["eventBody"]["id"] if body["topicName"].endswith(".conversations") else None for body in bodies]
    warm_up = round(len(raws) * WARM_UP)
    return len(set(calls[warm_up:]) - set(calls[:warm_up]) - {None})


def envelopes_in(raws: Sequence[bytes]) -> int:
    """Return how many envelopes a peer remembers of the deliveries after the first tenth: all with a new id."""
    ids = [json.loads(raw)["id"] for raw in raws]
    warm_up = round(len(raws) * WARM_UP)
    return len(set(ids[warm_up:]) - set(ids[:warm_up]))


def used_bytes(server: redis.Redis) -> int:
    """Return the memory that data takes, without what is in it only for a moment: buffers of clients and the log."""
    memory = server.info("memory")
    return int(memory["used_memory"] - memory["mem_clients_normal"] - memory["mem_aof_buffer"])
