"""Values that nobody else writes: personal data and secrets, the deliveries that hold them, and a search for them."""

from __future__ import annotations

import base64
import html
import json
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qs, quote, quote_plus, urlsplit

SECRETS: Final = (
    "ledger password", "secret for keys", "API key", "wrong API key", "operator's key", "reader's key",
    "wrong console key", "bearer token", "key in a header",
)  # fmt: skip
PERSONAL: Final = ("phone", "name", "transcript", "email", "conversation", "user", "attribute", "id")


@dataclass(frozen=True)
class Canary:
    """One value."""

    kind: str
    value: str

    @property
    def is_secret(self) -> bool:
        """Whether it is a secret, which is shown to nobody; personal data is shown to who asks for it."""
        return self.kind in SECRETS


def make_canaries(seed: int, number: int) -> list[Canary]:
    """Make up so many, of every kind, but at least one of each kind of secret."""
    dice = random.Random(f"{seed} canaries")
    kinds = [*SECRETS, *(PERSONAL[at % len(PERSONAL)] for at in range(max(1, number - len(SECRETS))))]
    return [Canary(kind, _value(kind, f"{dice.getrandbits(60):015x}")) for kind in kinds]


def _value(kind: str, mark: str) -> str:
    digits = f"{int(mark, 16):019d}"[-11:]
    made = {
        "phone": f"+44{digits}", "name": f"Wilhelmina Canary-{mark}", "transcript": f"my mother's name is {mark}",
        "email": f"canary.{mark}@birdcage.example", "attribute": f"loyalty {mark} \u00e9", "id": f"made-{mark}",
    }  # fmt: skip
    return made.get(kind, f"canary-{mark}-{kind[:3]}")


def deliveries(canaries: Sequence[Canary]) -> list[bytes]:
    """Put each canary wherever such a value stands, and where it does not belong; some can be read by nobody."""
    found = []
    for number, canary in enumerate(one for one in canaries if not one.is_secret):
        events = list(_with(canary.value))
        # The first of each kind everywhere, the others in a few places; each where the sink's receiver sees it.
        found += events if number < len(PERSONAL) else [events[number % len(events)], events[0], events[AUDIT_AT]]
    return [*found, *(raw[: len(raw) * 3 // 4] for raw in found[::5]), *found[::6]]


def _with(value: str) -> Iterator[bytes]:
    from payloads import ACW, PRESENCE, envelope, in_envelope, queue_conversation, raw

    yield raw(envelope(ACW, {"conversationId": value, "ani": f"tel:{value}", "userId": value, "note": [value]}))
    yield raw(envelope(ACW, {"eventTime": value, "participantId": value, "attributes": {"customer": value}}))
    yield raw(envelope(ACW, {"note": value}, frame={"version": value, "metadata": {"CorrelationId": value}}))
    yield raw(envelope(PRESENCE, {"message": value}, frame={"topicName": f"v2.users.{value}.presence"}))
    yield raw(envelope(AUDITS, {"id": value, "action": "one"}))
    yield raw(envelope(AUDITS, {"id": value, "action": "in conflict"}))
    yield raw(queue_conversation(event_id=value, conversation=value))
    yield raw(in_envelope({"status": value, "conversation_id": value, "text": f"he said: {value}"}, source="made"))


AUDITS: Final = "v2.audits.entitytype.{id}.entityid.{id}"
AUDIT_AT: Final = 4


def written_as(value: str) -> set[bytes]:
    """Return the ways in which a value may be written down by a program that does not mean to."""
    data = value.encode()
    texts = {
        value, json.dumps(value)[1:-1], quote(value), quote_plus(value), quote(value, safe=""), html.escape(value),
        value.encode().hex(), repr(value)[1:-1],
    }  # fmt: skip
    # At any place in a longer text: the letters that do not depend on what stands around.
    inner = {base64.b64encode(b"\0" * at + data)[4 if at else 0 :][:-4] for at in range(3)}
    return {text.encode() for text in texts} | {part for part in inner if len(part) > 8}


def found_in(surfaces: Mapping[str, bytes], canaries: Iterable[Canary]) -> dict[str, list[Canary]]:
    """Return where which canaries can be read."""
    found: dict[str, list[Canary]] = {}
    for canary in canaries:
        ways = written_as(canary.value)
        for name, data in surfaces.items():
            if any(way in data for way in ways):
                found.setdefault(name, []).append(canary)
    return found


def stored(kind: str, url: str) -> dict[str, bytes]:
    """Read everything that a database holds, by what it belongs to."""
    readers = {"sqlite": _in_sqlite, "postgres": _in_postgres, "redis": _in_redis, "dynamodb": _in_dynamodb}
    return {f"ledger: {name}": data for name, data in readers[kind](url).items()}


def _bytes_of(value: Any) -> bytes:
    return bytes(value) if isinstance(value, bytes | memoryview) else str(value).encode(errors="replace")


def _in_sqlite(url: str) -> dict[str, bytes]:
    import sqlite3

    found: dict[str, bytes] = {}
    database = sqlite3.connect(url.removeprefix("sqlite:///"))
    try:
        for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            rows = database.execute(f"SELECT * FROM {table}")
            names = [column[0] for column in rows.description]
            _add_columns(found, table, names, rows.fetchall())
    finally:
        database.close()
    return found


def _in_postgres(url: str) -> dict[str, bytes]:
    import psycopg

    found: dict[str, bytes] = {}
    query = "SELECT schemaname, tablename FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
    with psycopg.connect(url) as connection:
        for schema, table in connection.execute(query).fetchall():
            rows = connection.execute(f'SELECT * FROM "{schema}"."{table}"')
            _add_columns(found, table, [column.name for column in rows.description or ()], rows.fetchall())
    return found


def _add_columns(found: dict[str, bytes], table: str, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    for at, name in enumerate(names):
        found[f"{table}.{name}"] = b"\n".join(_bytes_of(row[at]) for row in rows)


def _in_redis(url: str) -> dict[str, bytes]:
    """Read each key with all that it holds, by the word in it that says what it is; days have none."""
    import redis

    found: dict[str, list[bytes]] = {}
    with redis.Redis.from_url(url) as server:
        for key in server.scan_iter(count=1000):
            words = [word for word in key.split(b":")[1:] if re.fullmatch(rb"[a-z]+", word)]
            name = words[0].decode() if words else "days"
            values = _values_of(server, key)
            if name == "letters":
                found.setdefault("letter.id", []).extend(values[::2])
                for packed in values[1::2]:
                    _add_letter(found, packed)
            else:
                found.setdefault(name, []).extend([key, *values])
    return {name: b"\n".join(parts) for name, parts in found.items()}


def _values_of(server: Any, key: bytes) -> list[bytes]:
    """Return the fields and values, the members and scores, or the value."""
    kind = server.type(key)
    if kind == b"hash":
        return [part for pair in server.hgetall(key).items() for part in pair]
    if kind == b"zset":
        return [_bytes_of(part) for pair in server.zrange(key, 0, -1, withscores=True) for part in pair]
    if kind == b"set":
        return list(server.smembers(key))
    if kind == b"string":
        return [server.get(key)]
    raise ValueError(f"a key of a kind that the ledger does not have: {key!r} is {kind!r}")


def _add_letter(found: dict[str, list[bytes]], packed: bytes) -> None:
    """Take a dead letter apart: its reason is for everybody, payload and traceback are for who asks."""
    import msgspec

    letter = msgspec.msgpack.decode(packed)
    parts = letter if isinstance(letter, dict) else dict(zip(("reason", "raw", "detail"), letter, strict=True))
    for name, part in parts.items():
        found.setdefault(f"letter.{name}", []).append(_bytes_of(part))


def _in_dynamodb(url: str) -> dict[str, bytes]:
    """Read every attribute of every item; a letter is its beginning and the further parts that name it."""
    import boto3

    client = boto3.client("dynamodb", endpoint_url=parse_qs(urlsplit(url).query)["endpoint_url"][0])
    found: dict[str, list[bytes]] = {}
    for page in client.get_paginator("scan").paginate(TableName=urlsplit(url).netloc, ConsistentRead=True):
        for item in page["Items"]:
            if item.get("parts", {"N": "0"})["N"] != "0":
                raise ValueError("a letter of several items: canaries are small, and this reader joins none")
            for name, typed in item.items():
                ((_, value),) = typed.items()
                if name == "head":
                    _add_letter(found, bytes(value))
                else:
                    found.setdefault(name, []).append(_bytes_of(value))
    return {name: b"\n".join(parts) for name, parts in found.items()}
