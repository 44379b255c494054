"""What people write by hand, as they write it: run by the same workers, under the same faults, for the same judge."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, Final

from prove.stream import number_in
from prove.worker import Conditions, Notes, Process, Strikes

KEPT_SECONDS: Final = 3600

#: What a program takes for an event's identity.
KeyOf = Callable[[dict[str, Any]], str]


def envelope_id(event: dict[str, Any]) -> str:
    """Return the id that EventBridge gave, since Genesys gives none."""
    found: str = event["id"]
    return found


def content(event: dict[str, Any]) -> str:
    """Return all that happened: the best key that anybody could find in a stream without ids."""
    return json.dumps(event["detail"], sort_keys=True)


class _Store:
    """A Redis, with names of this round's own."""

    def __init__(self, conditions: Conditions) -> None:
        import redis

        self.client = redis.Redis.from_url(conditions.url.partition("?")[0], decode_responses=True)
        self._name = conditions.name

    def key(self, key: str) -> str:
        return f"{self._name}:{key}"


class _Sink:
    """Writes down an effect, where nothing that the program does later takes it back."""

    def __init__(self, strikes: Strikes, notes: Notes) -> None:
        self._strikes, self._notes = strikes, notes

    def take(self, event: dict[str, Any], key: str) -> None:
        self._strikes.at("before effect")
        # Programs without tokens have none to give: a receiver cannot tell an old state from a new one.
        self._notes.write("effect", number_in(event["detail"]["eventBody"]), key.replace(" ", ""), 0)
        self._strikes.at("after effect")


def _answered(done: list[bool]) -> dict[str, Any]:
    return {"acknowledged": done, "columns": []}


@contextmanager
def set_nx_then_process(conditions: Conditions, strikes: Strikes, notes: Notes) -> Iterator[Process]:
    """Mark the event with `SET NX`, then process it: who dies in between has marked what never happens."""
    store, sink = _Store(conditions), _Sink(strikes, notes)

    def one(raw: bytes) -> bool:
        event = json.loads(raw)
        key = envelope_id(event)
        strikes.at("before claim")
        is_mine = store.client.set(store.key(key), "1", nx=True, ex=KEPT_SECONDS)
        strikes.at("after claim")
        if is_mine:
            sink.take(event, key)
        return True

    with closing(store.client):
        yield lambda raws: _answered([one(raw) for raw in raws])


@contextmanager
def look_process_set(conditions: Conditions, strikes: Strikes, notes: Notes) -> Iterator[Process]:
    """Look whether the event is marked, process it, mark it: who looks meanwhile processes it, too."""
    store, sink = _Store(conditions), _Sink(strikes, notes)

    def one(raw: bytes) -> bool:
        event = json.loads(raw)
        key = content(event)
        strikes.at("before claim")
        if not store.client.exists(store.key(key)):
            strikes.at("after claim")
            sink.take(event, key)
            strikes.at("before settle")
            store.client.set(store.key(key), "1", ex=KEPT_SECONDS)
            strikes.at("after settle")
        return True

    with closing(store.client):
        yield lambda raws: _answered([one(raw) for raw in raws])


def powertools(jmespath: str, key_of: KeyOf) -> Any:
    """Return a program on Powertools' idempotency, keyed by an expression as its documentation shows."""

    @contextmanager
    def program(conditions: Conditions, strikes: Strikes, notes: Notes) -> Iterator[Process]:
        from aws_lambda_powertools.utilities.idempotency import IdempotencyConfig, idempotent_function
        from aws_lambda_powertools.utilities.idempotency.exceptions import IdempotencyAlreadyInProgressError
        from aws_lambda_powertools.utilities.idempotency.persistence.cache import CachePersistenceLayer

        store, sink = _Store(conditions), _Sink(strikes, notes)
        config = IdempotencyConfig(
            event_key_jmespath=jmespath, expires_after_seconds=KEPT_SECONDS, use_local_cache=False
        )
        config.register_lambda_context(_Context(conditions.lease_seconds))

        @idempotent_function(
            data_keyword_argument="event",
            persistence_store=CachePersistenceLayer(client=store.client),
            config=config,
            key_prefix=conditions.name,
        )
        def handle(event: dict[str, Any]) -> None:
            sink.take(event, key_of(event))

        def one(raw: bytes) -> bool:
            try:
                strikes.at("before claim")
                handle(event=json.loads(raw))
                strikes.at("after settle")
            except IdempotencyAlreadyInProgressError:
                return False
            return True

        with closing(store.client):
            yield lambda raws: _answered([one(raw) for raw in raws])

    return program


class _Context:
    """As much of Lambda's context as Powertools looks at: a record of an invocation that died runs out."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def get_remaining_time_in_millis(self) -> int:
        """Return the time left."""
        return int(self._seconds * 1000)
