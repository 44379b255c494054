"""The ledger in Redis or Valkey: one script call per verb and batch, and some twenty bytes per remembered event.

Scripts run one at a time, so each is atomic, and they use the server's clock. On a cluster keys are spread over shards,
each in one slot; an event is in its entity's shard, so that both move together.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, Self

import msgspec

from oncebridge.claim import SETTLED, Status, read_newest
from oncebridge.clock import Clock, SystemClock
from oncebridge.errors import LedgerRefused, LedgerUnavailable
from oncebridge.ledgers import RETENTION_US
from oncebridge.ledgers.findings import Finding
from oncebridge.ledgers.grants import Seen
from oncebridge.ledgers.protocol import Entry, longest_unchanged
from oncebridge.ledgers.redis import examine, wire
from oncebridge.ledgers.redis.address import read_url
from oncebridge.ledgers.redis.agreement import Agreement, base_of, prefixes_of, was_made
from oncebridge.ledgers.redis.attendance import RedisAttendance
from oncebridge.ledgers.redis.calls import Calls, SingleCalls
from oncebridge.ledgers.redis.cluster import ClusterCalls
from oncebridge.ledgers.redis.notes import RedisNotes
from oncebridge.ledgers.redis.pages import RedisPages
from oncebridge.ledgers.redis.scripts import script

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from oncebridge.claim import Answer, Ask, Claim, Settlement
    from oncebridge.ledgers.grants import Record
    from oncebridge.ledgers.protocol import Attendance, Found, LetterGroups, LetterPage, Query
    from oncebridge.ledgers.redis.address import Address

#: A script puts all its writes into one command, and Lua limits the size of that. A chain is not divided, unless it is
#: longer than the second number: then its rest is answered as busy.
AT_ONCE: Final = 1000
AT_ONCE_MAX: Final = 3000
SCAN_AT_ONCE: Final = b"500"


class Verb(NamedTuple):
    """Converts a verb's items into words for its script, and the script's reply into answers."""

    script: str
    ask_of: Callable[[Any], Ask]
    write: Callable[[Any], bytes]
    read: Callable[[list[Any]], list[Any]]


def _read_kept(reply: list[int]) -> list[bool]:
    return [one == 1 for one in reply]


def _itself(ask: Ask) -> Ask:
    return ask


_CLAIM: Final = Verb("claim", _itself, wire.write_ask, wire.read_answers)
_EXTEND: Final = Verb("extend", attrgetter("ask"), wire.write_claim, _read_kept)
_SETTLE: Final = Verb("settle", attrgetter("claim.ask"), wire.write_settlement, _read_kept)


class RedisLedger:
    """Keeps the ledger in a Redis or Valkey, alone, behind sentinels, or in a cluster."""

    may_forget = True

    def __init__(self, url: str, clock: Clock | None = None, *, retention_us: int = RETENTION_US) -> None:
        """Remember the address; `open` connects."""
        self.address: Address = read_url(url)
        self._retention_s = b"%d" % max(1, retention_us // 1_000_000)
        self._clock = clock or SystemClock()
        self._calls: Calls | None = None
        self._agreement: Agreement | None = None
        self.notes = RedisNotes(lambda: self._open_calls, base_of(self.address))
        self._pages = RedisPages(lambda: self._open_calls, lambda: self._prefixes, self._entries, self._clock)
        self._attendance = RedisAttendance(lambda: self._open_calls, lambda: self._prefixes, self._retention_s)
        self._prefixes: list[bytes] = []
        self._mark = b""
        #: Handlers whose names are stored, as of this number of connections made.
        self._handlers = {""}
        self._connections = 0
        #: Handlers of the events seen so far.
        self._seen_handlers: set[str] = set()
        #: Whether others have agreed on another secret since this one was opened, on a server that was restarted empty.
        self.is_another = False

    def __repr__(self) -> str:
        """Show the address."""
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

    def open_to_look(self, secret: bytes | None) -> bytes | None:
        """Open a ledger whose workers have agreed already."""
        calls = _calls(self.address, self._clock)
        try:
            is_there = was_made(self.address, calls)
        finally:
            calls.lines.close()
        return self.open(secret) if is_there else None

    def _begin_again(self) -> None:
        """Go on with a server that was emptied, unless others have started it over with another secret."""
        self._handlers = {""}  # the server has forgotten their names, too
        agreement = self._agreement
        if agreement is not None and agreement.renew(self._open_calls):
            self._mark = agreement.mark
        else:
            self.is_another = True
            raise LedgerRefused(
                f"{self.address!r} has come back empty, and another worker has begun it anew: events have other "
                "keys there now. Nothing was acknowledged; a worker that ends because of this must be started again"
            )

    def close(self) -> None:
        """Close the connections."""
        if self._calls is not None:
            self._calls.lines.close()
        self._calls = None

    def migrate(self) -> None:
        """List the dead letters that earlier versions have kept; other keys are made as they are needed."""
        if self._calls is not None:
            self._pages.list_all()
            return
        calls = _calls(self.address, self._clock)
        try:
            prefixes = prefixes_of(self.address, calls)
            RedisPages(lambda: calls, lambda: prefixes, self._entries, self._clock).list_all()
        finally:
            calls.lines.close()

    @property
    def _open_calls(self) -> Calls:
        if self._calls is None:
            raise LedgerUnavailable(f"{self!r} is not open")
        return self._calls

    # --- claim, extend, settle -----------------------------------------------------------------------

    def claim(self, asks: Sequence[Ask], *, nonce: bytes, lease_us: int) -> list[Answer]:
        """Claim all events of a shard in one call."""
        try:
            return self._claim(asks, nonce, lease_us)
        except wire.Another:
            self._begin_again()
        try:
            return self._claim(asks, nonce, lease_us)
        except wire.Another:
            raise LedgerUnavailable(f"{self.address!r} is emptied again and again") from None

    def _claim(self, asks: Sequence[Ask], nonce: bytes, lease_us: int) -> list[Answer]:
        self._remember_handlers(asks)
        return self._started(_CLAIM, [nonce, b"%d" % lease_us, self._mark], asks)()

    def extend(self, claims: Sequence[Claim], *, lease_us: int) -> list[bool]:
        """Extend the leases of claims in force."""
        return self._started(_EXTEND, [b"%d" % lease_us], claims)()

    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        """End claims in force."""
        return self.start_settle(settlements)()

    def start_settle(self, settlements: Sequence[Settlement]) -> Callable[[], list[bool]]:
        """Send the ends of claims."""
        return self._started(_SETTLE, [self._retention_s], settlements)

    def _started(self, verb: Verb, head: list[bytes], items: Sequence[Any]) -> Callable[[], list[Any]]:
        """Send a call, and return a function that waits for its answer. Several calls, as on a cluster, end here."""
        if len(self._prefixes) != 1 or not 0 < len(items) <= AT_ONCE:
            return _answered(partial(self._in_shards, verb, head, items))
        call = self._open_calls.start(script(verb.script), self._prefixes[0], [*head, *map(verb.write, items)])
        return lambda: verb.read(call.result())

    def _in_shards(self, verb: Verb, head: list[bytes], items: Sequence[Any]) -> list[Any]:
        """Write each item to its shard's call, run all calls, and return the answers in order."""
        each = self._shares([verb.ask_of(item) for item in items])
        calls = [
            (self._prefixes[shard], [*head, *[self._written(verb, items[number]) for number in numbers]])
            for shard, numbers in each
        ]
        answers: list[Any] = [None] * len(items)
        for (_, numbers), reply in zip(each, self._open_calls.run(script(verb.script), calls), strict=True):
            for number, answer in zip(numbers, verb.read(reply), strict=True):
                answers[number] = answer
        return answers

    def _shares(self, asks: Sequence[Ask]) -> list[tuple[int, list[int]]]:
        """Divide asks into calls, each with its shard and the numbers of its asks; those of a chain stay together."""
        each: list[tuple[int, list[int]]] = []
        latest: dict[int, list[int]] = {}
        of_chain: dict[bytes, list[int]] = {}
        for number, ask in enumerate(asks):
            shard, entity = self._place(ask)
            share = None if entity is None else of_chain.get(entity)
            if share is None or len(share) >= AT_ONCE_MAX:
                share = latest.get(shard)
                if share is None or len(share) >= AT_ONCE:
                    share = latest[shard] = []
                    each.append((shard, share))
                if entity is not None:
                    of_chain[entity] = share
            share.append(number)
        return each

    def _written(self, verb: Verb, item: Any) -> bytes:
        if verb is _CLAIM and self._place(item)[1] != item.entity:
            item = msgspec.structs.replace(item, entity=None)
        return verb.write(item)

    def _place(self, ask: Ask) -> tuple[int, bytes | None]:
        """Return the shard of an event, and its entity if that is in the same one."""
        number, entity = len(self._prefixes), ask.entity
        shard = (ask.home or entity or ask.near or ask.key)[0] % number
        if entity is not None and entity[0] % number != shard:
            # A letter whose profile has changed since: it is redriven as a fact.
            return shard, None
        return shard, entity

    def _remember_handlers(self, asks: Sequence[Ask]) -> None:
        """Store each handler's name once, so that events can be looked up for all of them."""
        calls = self._open_calls
        if self._connections != calls.lines.made:  # the server may have changed since, and may not know them
            self._connections, self._handlers = calls.lines.made, {""}
        names = {ask.handler for ask in asks} - self._handlers
        if names:
            calls.command(self._names, b"SADD", self._names, *[name.encode() for name in sorted(names)])
            self._handlers = self._handlers | names

    @property
    def _names(self) -> bytes:
        """The key of the names of handlers."""
        return f"{base_of(self.address)}}}:handlers".encode()

    # --- reading -------------------------------------------------------------------------------------

    def get(self, key: bytes) -> list[Entry]:
        """Look an event up in every place where it may be."""
        calls = self._open_calls
        handlers = self._known_handlers()
        ids = [wire.id_of(key, handler) for handler in handlers]
        entries = []
        for shard, found in enumerate(calls.run(script("get"), [(prefix, ids) for prefix in self._prefixes])):
            for handler, id_, one in zip(handlers, ids, found, strict=True):
                if len(one) == wire.FOUND_RECORD:
                    entries += [entry for entry, _ in self._entries(shard, {id_: one[0]}, [one[1]])]
                elif one:
                    entries.append(Entry(key=key, handler=handler, status=wire.STATUSES[one[0][:1]]))
        return entries

    def _known_handlers(self) -> list[str]:
        written = self._open_calls.command(self._names, b"SMEMBERS", self._names)
        return sorted({name.decode() for name in written} | self._seen_handlers | {""})

    def look(self, asks: Sequence[Ask]) -> list[Seen]:
        """Look events up in every shard, for every handler; entities where they are."""
        handlers = sorted({*self._known_handlers(), *[ask.handler for ask in asks]})
        at_once = max(1, AT_ONCE // len(handlers))
        parts = [asks[start : start + at_once] for start in range(0, len(asks), at_once)]
        return [seen for some in parts for seen in self._look(some, handlers)]

    def _look(self, asks: Sequence[Ask], handlers: list[str]) -> list[Seen]:
        places = [self._place(ask) for ask in asks]
        names = [(number, handler) for number in range(len(asks)) for handler in handlers]
        words = [wire.write_place(asks[number], handler) for number, handler in names]
        records: list[dict[str, Record]] = [{} for _ in asks]
        entities: dict[bytes, wire.Held] = {}
        replies = self._open_calls.run(script("look"), [(prefix, words) for prefix in self._prefixes])
        for shard, (_, *found) in enumerate(replies):
            for (number, handler), text in zip(names, found, strict=True):
                # A claim for the ask's own handler looks into one shard alone.
                if text is not None and (handler != asks[number].handler or places[number][0] == shard):
                    records[number][handler] = wire.seen_record(text, asks[number])
            keys = {entity for home, entity in places if home == shard and entity is not None}
            entities |= self._entities(self._prefixes[shard], sorted(keys))
        return [
            Seen(found, wire.seen_entity(entities.get(entity or b"")), replies[shard][0])
            for found, (shard, entity) in zip(records, places, strict=True)
        ]

    def _entries(
        self, shard: int, texts: dict[bytes, bytes], letters: Sequence[bytes | None]
    ) -> Iterator[tuple[Entry, wire.About]]:
        """Convert records to entries, each with its letter; a claimed state with its entity's lease."""
        records = {id_: wire.read_record(text) for id_, text in texts.items()}
        claimed = {record.entity for record in records.values() if record.status is Status.CLAIMED} - {None}
        entities = self._entities(self._prefixes[shard], [entity for entity in claimed if entity is not None])
        for (id_, record), letter in zip(records.items(), letters, strict=True):
            self._seen_handlers.add(record.about.handler)
            held = entities.get(record.entity or b"")
            lease_us = held.lease_until_us if held is not None and held.nonce == record.nonce else 0
            entry = wire.record_entry(id_, record, home=bytes([shard]), lease_until_us=lease_us, letter=letter or b"")
            yield entry, record.about

    def _entities(self, prefix: bytes, keys: list[bytes]) -> dict[bytes, wire.Held]:
        """Read the entities that exist."""
        if not keys:
            return {}
        found = self._open_calls.command(prefix, b"MGET", *[prefix + b"n:" + key for key in keys])
        return {key: wire.read_entity(text) for key, text in zip(keys, found, strict=True) if text is not None}

    def scan(self, query: Query) -> Iterator[Entry]:
        """Read everything unfinished or dead, or all entities; the longest unchanged first."""
        found = self._newest_states(query) if query.entities else self._unfinished(query)
        yield from longest_unchanged(found, query.limit)

    def _unfinished(self, query: Query) -> Iterator[Entry]:
        for shard, prefix in enumerate(self._prefixes):
            for batch in self._hash_scan(prefix + b"open"):
                letters = self._open_calls.command(prefix, b"HMGET", prefix + b"letters", *batch)
                for entry, about in self._entries(shard, batch, letters):
                    if _matches(query, entry, about):
                        yield msgspec.structs.replace(entry, raw=None, detail="")
            # No letter is among the events that have keys of their own, and finding those reads every key there is.
            for batch in () if query.letters else self._key_scan(prefix, b"e:"):
                for key, text in batch.items():
                    record = wire.read_record(text)
                    entry = wire.record_entry(key[len(prefix) + 2 :], record, home=bytes([shard]))
                    if _matches(query, entry, record.about):
                        yield entry

    def _newest_states(self, query: Query) -> Iterator[Entry]:
        for prefix in self._prefixes:
            for batch in self._key_scan(prefix, b"n:"):
                for text in batch.values():
                    held = wire.read_entity(text)
                    newest = read_newest(held.data)
                    if newest.key is not None and query.is_about(newest.conversation, newest.user):
                        yield Entry.of_newest(newest, changed_us=held.changed_us, lease_until_us=held.lease_until_us)

    def letter_page(self, query: Query, *, after: str | None = None, limit: int = 50) -> LetterPage:
        """Return dead letters, the newest first."""
        return self._pages.letter_page(query, after, limit)

    def letter_groups(self) -> LetterGroups:
        """Count dead letters by handler, reason and topic."""
        return self._pages.letter_groups()

    def about(self, subject: bytes, *, seconds: float) -> Found:
        """Find what is known of a conversation or a user: what has failed at once, the rest if there is time."""
        return self._pages.about(subject, seconds)

    def attendance(self, conversations: Sequence[bytes], *, since_us: int = 0) -> list[Attendance | None]:
        """Unite what every shard and day has of each conversation."""
        return self._attendance.read(conversations, since_us)

    def _hash_scan(self, key: bytes) -> Iterator[dict[bytes, bytes]]:
        """Scan a hash without blocking the server."""
        seen: set[bytes] = set()
        for flat in self._scan(key, b"HSCAN", key):
            batch = {name: value for name, value in zip(flat[::2], flat[1::2], strict=True) if name not in seen}
            seen.update(batch)
            if batch:
                yield batch

    def _key_scan(self, prefix: bytes, kind: bytes) -> Iterator[dict[bytes, bytes]]:
        """Scan a shard's keys of a kind, with their values."""
        seen: set[bytes] = set()
        for found in self._scan(prefix, b"SCAN", match=prefix + kind + b"*"):
            keys = [key for key in found if key not in seen]
            seen.update(keys)
            if keys:
                values = self._open_calls.command(prefix, b"MGET", *keys)
                yield {key: value for key, value in zip(keys, values, strict=True) if value is not None}

    def _scan(self, at: bytes, *command: bytes, match: bytes = b"*") -> Iterator[list[bytes]]:
        """Follow a cursor to its end; a server may return things twice."""
        cursor: bytes = b"0"
        while True:
            cursor, found = self._open_calls.command(at, *command, cursor, b"MATCH", match, b"COUNT", SCAN_AT_ONCE)
            yield found
            if int(cursor) == 0:
                return

    def counts(self) -> dict[Status, int]:
        """Count events by status: days keep their own counts, the rest is scanned."""
        counts: Counter[Status] = Counter()
        for prefix in self._prefixes:
            for value in self._open_calls.command(prefix, b"HVALS", prefix + b"days"):
                counts.update(wire.read_day(value).counts)
            for batch in chain(self._hash_scan(prefix + b"open"), self._key_scan(prefix, b"e:")):
                counts.update(wire.STATUSES[text[:1]] for text in batch.values())
        return dict(counts)

    def purge(self, *, older_than_us: int) -> int:
        """Drop whole days, events without a shared time, and unused entities. Servers forget by themselves, too."""
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
            for keys in self._scan(prefix, b"SCAN", match=prefix + b"a:*"):
                self._drop(prefix, before_us, b"attendance", keys)
        return forgotten

    def _drop(self, prefix: bytes, before_us: int, what: bytes, which: list[bytes]) -> int:
        forgotten = 0
        while True:
            ((number, more),) = self._open_calls.run(script("purge"), [(prefix, [b"%d" % before_us, what, *which])])
            forgotten += int(number)
            if not more:
                return forgotten

    def _now_us(self, prefix: bytes) -> int:
        seconds, microseconds = self._open_calls.command(prefix, b"TIME")
        return int(seconds) * 1_000_000 + int(microseconds)

    def examine(self) -> Iterator[Finding]:
        """Examine each server's settings."""
        yield from examine.findings(self._open_calls, self.address, self._clock)


def _calls(address: Address, clock: Clock) -> Calls:
    return ClusterCalls(address, clock) if address.kind == "cluster" else SingleCalls(address, clock)


def _answered(call: Callable[[], list[Any]]) -> Callable[[], list[Any]]:
    """Make a call now, and keep its answer or its error."""
    try:
        answer = call()
    except (LedgerUnavailable, wire.Another) as error:
        return partial(_raise, error)
    return lambda: answer


def _raise(error: Exception) -> NoReturn:
    raise error


def _matches(query: Query, entry: Entry, about: wire.About) -> bool:
    """Return whether an entry matches; without a status given, only unfinished and dead ones do."""
    if not query.is_about(about.conversation, about.user):
        return False
    is_wanted = bool(query.statuses) or entry.status not in SETTLED - {Status.DEAD}
    return is_wanted and query.matches(entry.status, entry.topic, entry.changed_us, entry.reason or None, entry.handler)
