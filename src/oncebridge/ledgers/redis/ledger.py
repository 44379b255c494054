"""The ledger in Redis or Valkey: one script call per verb and batch, and some twenty bytes per remembered event.

Scripts run one at a time, so each is atomic, and they go by the server's clock. On a cluster keys are spread
over shards, each in one slot; an event is in its entity's shard, so that both move together.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, Self, TypeVar

import msgspec

from oncebridge.claim import SETTLED, Status
from oncebridge.clock import Clock, SystemClock
from oncebridge.errors import LedgerRefused, LedgerUnavailable
from oncebridge.ledgers import RETENTION_US
from oncebridge.ledgers.findings import Finding
from oncebridge.ledgers.protocol import Entry
from oncebridge.ledgers.redis import examine, wire
from oncebridge.ledgers.redis.address import read_url
from oncebridge.ledgers.redis.agreement import Agreement, base_of
from oncebridge.ledgers.redis.calls import Calls, SingleCalls
from oncebridge.ledgers.redis.cluster import ClusterCalls
from oncebridge.ledgers.redis.scripts import script

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from oncebridge.claim import Answer, Ask, Claim, Settlement
    from oncebridge.ledgers.protocol import Query
    from oncebridge.ledgers.redis.address import Address

#: A script puts all it writes into one command, and Lua bounds how much that can be.
AT_ONCE: Final = 1000
SCAN_AT_ONCE: Final = b"500"

Item = TypeVar("Item")


class Verb(NamedTuple):
    """How a verb's items become words for its script, and its script's reply becomes answers."""

    script: str
    ask_of: Callable[[Any], Ask]
    write: Callable[..., bytes]
    read: Callable[[list[Any]], list[Any]]


def _read_kept(reply: list[int]) -> list[bool]:
    return [one == 1 for one in reply]


_CLAIM: Final = Verb("claim", lambda ask: ask, wire.write_ask, wire.read_answers)
_EXTEND: Final = Verb("extend", attrgetter("ask"), wire.write_claim, _read_kept)
_SETTLE: Final = Verb("settle", attrgetter("claim.ask"), wire.write_settlement, _read_kept)


class RedisLedger:
    """Keeps the ledger in a Redis or Valkey, alone, behind sentinels, or in a cluster."""

    may_forget = True

    def __init__(self, url: str, clock: Clock | None = None, *, retention_us: int = RETENTION_US) -> None:
        """Remember where the server is; it is connected to by `open`."""
        self.address: Address = read_url(url)
        self._retention_s = b"%d" % max(1, retention_us // 1_000_000)
        self._clock = clock or SystemClock()
        self._calls: Calls | None = None
        self._agreement: Agreement | None = None
        self._prefixes: list[bytes] = []
        self._mark = b""
        #: Handlers whose names are written down, when so many connections had been made.
        self._handlers = {""}
        self._connections = 0
        #: Handlers that events were seen of.
        self._seen_handlers: set[str] = set()
        #: Whether others have agreed on another secret since this one was opened, on a server that had come back empty.
        self.is_another = False

    def __repr__(self) -> str:
        """Show where it is."""
        return f"<RedisLedger {self.address!r} {'open' if self._calls else 'closed'}>"

    @classmethod
    def from_url(cls, url: str, *, retention_us: int = RETENTION_US) -> Self:
        """Read the URL."""
        return cls(url, retention_us=retention_us)

    # --- opening -------------------------------------------------------------------------------------

    def open(self, secret: bytes | None) -> bytes:
        """Connect, refuse a server that forgets, and agree on the secret and the shards."""
        calls = self._calls or _calls(self.address, self._clock)
        try:
            examine.check_at_start(calls, self.address)
            self._agreement = Agreement(self.address, calls, secret)
        except BaseException:
            calls.lines.close()
            raise
        self._prefixes, self._mark = self._agreement.prefixes, self._agreement.mark
        self._calls = calls
        self.is_another = False
        return self._agreement.secret

    def _begin_again(self) -> None:
        """Go on with a server that was emptied, unless others have begun it anew with another secret."""
        self._handlers = {""}  # their names were forgotten, too
        agreement = self._agreement
        if agreement is not None and agreement.renew(self._open_calls):
            self._mark = agreement.mark
        else:
            self.is_another = True
            raise LedgerRefused(
                f"{self.address!r} has come back empty, and another worker has begun it anew: events have other "
                "keys there now. Nothing was acknowledged; whoever ends by this has to be started again"
            )

    def close(self) -> None:
        """Let go of connections."""
        if self._calls is not None:
            self._calls.lines.close()
        self._calls = None

    def migrate(self) -> None:
        """Do nothing: keys are made as they are needed."""

    @property
    def _open_calls(self) -> Calls:
        if self._calls is None:
            raise LedgerUnavailable(f"{self!r} is not open")
        return self._calls

    # --- claim, extend, settle -----------------------------------------------------------------------

    def claim(self, asks: Sequence[Ask], *, nonce: bytes, lease_us: int) -> list[Answer]:
        """Ask for all events of a shard in one call."""
        return self.start_claim(asks, nonce=nonce, lease_us=lease_us)()

    def extend(self, claims: Sequence[Claim], *, lease_us: int) -> list[bool]:
        """Move the lease of claims in force."""
        return self._started(_EXTEND, [b"%d" % lease_us], claims)()

    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        """End claims in force."""
        return self._started(_SETTLE, [], settlements)()

    def start_claim(self, asks: Sequence[Ask], *, nonce: bytes, lease_us: int) -> Callable[[], list[Answer]]:
        """Send an ask for events."""
        under_way = self._started_claim(asks, nonce, lease_us)

        def answers() -> list[Answer]:
            try:
                return under_way()
            except wire.Another:
                self._begin_again()
            try:
                return self._started_claim(asks, nonce, lease_us)()
            except wire.Another:
                raise LedgerUnavailable(f"{self.address!r} is emptied again and again") from None

        return answers

    def _started_claim(self, asks: Sequence[Ask], nonce: bytes, lease_us: int) -> Callable[[], list[Answer]]:
        self._remember_handlers(asks)
        return self._started(_CLAIM, [nonce, b"%d" % lease_us, self._mark], asks)

    def start_settle(self, settlements: Sequence[Settlement], *, soon: bool) -> Callable[[], list[bool]]:
        """Send the ends of claims; with `soon`, with the next call or when somebody waits for them."""
        return self._started(_SETTLE, [], settlements, soon=soon)

    def _started(
        self, verb: Verb, head: list[bytes], items: Sequence[Any], *, soon: bool = False
    ) -> Callable[[], list[Any]]:
        """Send a call, and return what waits for its answer. Several calls, as on a cluster, are waited for at once."""
        if len(self._prefixes) != 1 or not 0 < len(items) <= AT_ONCE:
            return _answered(lambda: self._in_shards(verb, head, items))
        words = [self._retention_s, *head, *[verb.write(item, entity=verb.ask_of(item).entity) for item in items]]
        call = self._open_calls.start(script(verb.script), self._prefixes[0], words, soon=soon)
        return lambda: verb.read(call.result())

    def _in_shards(self, verb: Verb, head: list[bytes], items: Sequence[Any]) -> list[Any]:
        """Write each item to its shard's call, run all calls, and bring the answers into order."""
        places: dict[int, list[int]] = {}
        for number, item in enumerate(items):
            places.setdefault(self._place(verb.ask_of(item))[0], []).append(number)
        each = [
            (shard, numbers[at : at + AT_ONCE])
            for shard, numbers in places.items()
            for at in range(0, len(numbers), AT_ONCE)
        ]
        calls = [
            (
                self._prefixes[shard],
                [self._retention_s, *head, *[self._word(verb, items[number]) for number in numbers]],
            )
            for shard, numbers in each
        ]
        answers: list[Any] = [None] * len(items)
        for (_, numbers), reply in zip(each, self._open_calls.run(script(verb.script), calls), strict=True):
            for number, answer in zip(numbers, verb.read(reply), strict=True):
                answers[number] = answer
        return answers

    def _word(self, verb: Verb, item: Any) -> bytes:
        return verb.write(item, entity=self._place(verb.ask_of(item))[1])

    def _place(self, ask: Ask) -> tuple[int, bytes | None]:
        """Return the shard of an event, and its entity if that is in the same one."""
        if len(self._prefixes) == 1:
            return 0, ask.entity
        shard = (ask.home or ask.entity or ask.key)[0] % len(self._prefixes)
        if ask.entity is not None and ask.entity[0] % len(self._prefixes) != shard:
            # A letter whose profile has changed since: it is redriven as a fact.
            return shard, None
        return shard, ask.entity

    def _remember_handlers(self, asks: Sequence[Ask]) -> None:
        """Write down each handler's name once, so that events can be looked up for all of them."""
        calls = self._open_calls
        if self._connections != calls.lines.made:  # the server may be another since, which does not know them
            self._connections, self._handlers = calls.lines.made, {""}
        names = {ask.handler for ask in asks} - self._handlers
        if names:
            calls.command(self._names, b"SADD", self._names, *[name.encode() for name in sorted(names)])
            self._handlers = self._handlers | names

    @property
    def _names(self) -> bytes:
        """Where the names of handlers are."""
        return f"{base_of(self.address)}}}:handlers".encode()

    # --- reading -------------------------------------------------------------------------------------

    def get(self, key: bytes) -> list[Entry]:
        """Look for an event in every place that it could be in."""
        calls = self._open_calls
        written = {name.decode() for name in calls.command(self._names, b"SMEMBERS", self._names)}
        handlers = sorted(written | self._seen_handlers | {""})
        ids = [wire.id_of(key, handler) for handler in handlers]
        entries = []
        for shard, found in enumerate(calls.run(script("get"), [(prefix, ids) for prefix in self._prefixes])):
            for handler, id_, one in zip(handlers, ids, found, strict=True):
                if len(one) == wire.FOUND_RECORD:
                    entries.append(self._record_entry(shard, id_, one[0], one[1]))
                elif one:
                    entries.append(Entry(key=key, handler=handler, status=wire.STATUSES[one[0][:1]]))
        return entries

    def _record_entry(self, shard: int, id_: bytes, text: bytes, letter: bytes) -> Entry:
        record, lease_us = wire.read_record(text), 0
        self._seen_handlers.add(record.about.handler)
        if record.status is Status.CLAIMED and record.about.entity is not None:
            lease_us = self._entity_lease_us(self._prefixes[shard], record.about.entity, record.token)
        return wire.record_entry(id_, record, home=bytes([shard]), lease_until_us=lease_us, letter=letter)

    def _entity_lease_us(self, prefix: bytes, key: bytes, token: int) -> int:
        """Return until when an entity is held under a token; 0 if another has taken it over since."""
        kept = self._open_calls.command(prefix, b"GET", prefix + b"n:" + key)
        entity = wire.read_entity(kept) if kept else None
        return entity.lease_until_us if entity is not None and entity.token == token else 0

    def scan(self, query: Query) -> Iterator[Entry]:
        """Go through what is unfinished or dead, or through all entities; the longest unchanged first."""
        found = self._newest_states() if query.entities else self._unfinished()
        entries = sorted(
            (entry for entry, about in found if _matches(query, entry, about)), key=lambda entry: entry.changed_us
        )
        yield from entries[: query.limit]

    def _unfinished(self) -> Iterator[tuple[Entry, wire.About]]:
        for shard, prefix in enumerate(self._prefixes):
            for batch in self._hash_scan(prefix + b"open"):
                ids = list(batch)
                letters = self._open_calls.command(prefix, b"HMGET", prefix + b"letters", *ids)
                for id_, letter in zip(ids, letters, strict=True):
                    entry = self._record_entry(shard, id_, batch[id_], letter or b"")
                    about = wire.read_record(batch[id_]).about
                    yield msgspec.structs.replace(entry, raw=None, detail=""), about
            for batch in self._key_scan(prefix, b"e:"):
                for key, text in batch.items():
                    record = wire.read_record(text)
                    yield wire.record_entry(key[len(prefix) + 2 :], record, home=bytes([shard])), record.about

    def _newest_states(self) -> Iterator[tuple[Entry, wire.About]]:
        for prefix in self._prefixes:
            for batch in self._key_scan(prefix, b"n:"):
                for text in batch.values():
                    entity = wire.read_entity(text)
                    if entity.about is not None:
                        yield wire.newest_entry(entity, entity.about), entity.about

    def _hash_scan(self, key: bytes) -> Iterator[dict[bytes, bytes]]:
        """Go through a hash without holding the server up."""
        seen: set[bytes] = set()
        for flat in self._scan(key, b"HSCAN", key):
            batch = {name: value for name, value in zip(flat[::2], flat[1::2], strict=True) if name not in seen}
            seen.update(batch)
            if batch:
                yield batch

    def _key_scan(self, prefix: bytes, kind: bytes) -> Iterator[dict[bytes, bytes]]:
        """Go through a shard's keys of a kind, with their values."""
        seen: set[bytes] = set()
        for found in self._scan(prefix, b"SCAN", match=prefix + kind + b"*"):
            keys = [key for key in found if key not in seen]
            seen.update(keys)
            if keys:
                values = self._open_calls.command(prefix, b"MGET", *keys)
                yield {key: value for key, value in zip(keys, values, strict=True) if value is not None}

    def _scan(self, at: bytes, *command: bytes, match: bytes = b"*") -> Iterator[list[bytes]]:
        """Follow a cursor to its end; a server may name things twice on the way."""
        cursor: bytes = b"0"
        while True:
            cursor, found = self._open_calls.command(at, *command, cursor, b"MATCH", match, b"COUNT", SCAN_AT_ONCE)
            yield found
            if int(cursor) == 0:
                return

    def counts(self) -> dict[Status, int]:
        """Count events by status: days keep their own counts, the rest is gone through."""
        counts: Counter[Status] = Counter()
        for prefix in self._prefixes:
            for value in self._open_calls.command(prefix, b"HVALS", prefix + b"days"):
                counts.update(wire.read_day(value).counts)
            for batch in chain(self._hash_scan(prefix + b"open"), self._key_scan(prefix, b"e:")):
                counts.update(wire.STATUSES[text[:1]] for text in batch.values())
        return dict(counts)

    def purge(self, *, older_than_us: int) -> int:
        """Drop whole days, and what stands alone; entities that rest since. Servers forget by themselves, too."""
        forgotten = 0
        for prefix in self._prefixes:
            before_us = self._now_us(prefix) - older_than_us
            for day in self._open_calls.command(prefix, b"HKEYS", prefix + b"days"):
                forgotten += self._drop(prefix, before_us, b"day", [day])
            for batch in self._hash_scan(prefix + b"open"):
                forgotten += self._drop(prefix, before_us, b"open", list(batch))
            for kind, what in ((b"e:", b"event"), (b"n:", b"entity")):
                for batch in self._key_scan(prefix, kind):
                    forgotten += self._drop(prefix, before_us, what, list(batch))
        return forgotten

    def _drop(self, prefix: bytes, before_us: int, what: bytes, which: list[bytes]) -> int:
        forgotten = 0
        while True:
            ((number, more),) = self._open_calls.run(
                script("purge"), [(prefix, [self._retention_s, b"%d" % before_us, what, *which])]
            )
            forgotten += int(number)
            if not more:
                return forgotten

    def _now_us(self, prefix: bytes) -> int:
        seconds, microseconds = self._open_calls.command(prefix, b"TIME")
        return int(seconds) * 1_000_000 + int(microseconds)

    def examine(self) -> Iterator[Finding]:
        """Look at each server's settings."""
        yield from examine.findings(self._open_calls, self.address, self._clock)


def _calls(address: Address, clock: Clock) -> Calls:
    return ClusterCalls(address, clock) if address.kind == "cluster" else SingleCalls(address, clock)


def _answered(call: Callable[[], Item]) -> Callable[[], Item]:
    """Make a call now, and keep its answer or its error for whoever asks."""
    try:
        answer = call()
    except (LedgerUnavailable, wire.Another) as error:
        return partial(_raise, error)
    return lambda: answer


def _raise(error: Exception) -> NoReturn:
    raise error


def _matches(query: Query, entry: Entry, about: wire.About) -> bool:
    """Tell whether an entry is looked for. Without a status given, only what is unfinished or dead is gone through."""
    if not query.is_about(about.conversation, about.user):
        return False
    if query.entities:
        return True
    is_wanted = bool(query.statuses) or entry.status not in SETTLED - {Status.DEAD}
    return is_wanted and query.matches(entry.status, entry.topic, entry.changed_us, entry.reason or None)
