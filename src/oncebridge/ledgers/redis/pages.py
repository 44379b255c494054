"""Pages of dead letters, their groups, and what is known of one subject, in the Redis ledger.

Scripts that settle keep letters in order and by group, in each shard; workers of an earlier version do not. So letters
that are not listed yet are listed a few at a time, whenever somebody looks, or all at once by `migrate`.
"""

from __future__ import annotations

from heapq import merge
from operator import itemgetter
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec
from msgspec.structs import replace

from oncebridge.claim import read_newest
from oncebridge.ledgers.pages import (
    GROUPS_MAX,
    LOOKED_AT_MAX,
    Position,
    found_of,
    is_filtered,
    most_frequent,
    not_a_page,
    page_of,
    page_size,
    read_position,
)
from oncebridge.ledgers.protocol import Entry, Found, LetterGroup, LetterGroups, LetterPage
from oncebridge.ledgers.redis import wire
from oncebridge.ledgers.redis.scripts import script

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from oncebridge.clock import Clock
    from oncebridge.ledgers.protocol import Query
    from oncebridge.ledgers.redis.calls import Calls

#: How many letters are read at a time, where filters leave many out.
AT_ONCE: Final = 250
#: How many records or keys a script looks at, while others wait.
LOOK_AT_ONCE: Final = b"1000"
#: How many letters are listed at a time: to read their reasons, the server copies them.
LIST_AT_ONCE: Final = 50
#: How long a look may list letters.
LIST_SECONDS: Final = 0.2
_SCANNED: Final = (b"open", b"died")

_group = msgspec.msgpack.Decoder(tuple[str, str, str]).decode

#: A shard's records by id, each with its group if it is a letter.
Records: TypeAlias = "dict[bytes, tuple[bytes, bytes | None]]"
#: Converts a shard's records to entries, in order, each with its letter if that is given.
ToEntries: TypeAlias = "Callable[[int, dict[bytes, bytes], Sequence[bytes | None]], Iterator[tuple[Entry, wire.About]]]"


class RedisPages:
    """Reads what the scripts have listed."""

    def __init__(
        self, calls: Callable[[], Calls], prefixes: Callable[[], list[bytes]], entries: ToEntries, clock: Clock
    ) -> None:
        """Take how to reach the servers, what the keys of each shard begin with, and how to read records."""
        self._calls, self._prefixes, self._to_entries = calls, prefixes, entries
        self._clock = clock
        #: How far lists were compared with what they list, by key.
        self._cursors: dict[bytes, bytes] = {}

    def letter_page(self, query: Query, after: str | None, limit: int) -> LetterPage:
        """Merge the letters of all shards."""
        start = read_position(after)
        if start is None:
            self._list_some()
        elif len(start.key) != wire.DIGEST_BYTES:
            raise not_a_page()
        limit = page_size(limit)
        if query.until_us is not None and (start is None or start.died_us >= query.until_us):
            start = Position(query.until_us, b"")  # no id is before an empty one
        oldest = b"-inf" if query.since_us is None else b"%d" % query.since_us
        at_once = AT_ONCE if is_filtered(query) else min(limit + 1, AT_ONCE)
        each = [self._letters(shard, start, oldest, at_once) for shard in range(len(self._prefixes()))]

        def matches(entry: Entry) -> bool:
            return replace(query, since_us=None, until_us=None, statuses=frozenset()).matches(
                entry.status, entry.topic, 0, entry.reason, entry.handler
            )

        return page_of(merge(*each, key=itemgetter(0), reverse=True), matches, limit, LOOKED_AT_MAX)

    def _letters(
        self, shard: int, start: Position | None, oldest: bytes, at_once: int
    ) -> Iterator[tuple[Position, Entry]]:
        """Read a shard's letters in order, some at a time."""
        calls, prefix = self._calls(), self._prefixes()[shard]
        while True:
            place = [b"-1", b""] if start is None else [b"%d" % start.died_us, start.key or b"\0"]
            ((ids, times, records, heads),) = calls.run(script("page"), [(prefix, [*place, oldest, b"%d" % at_once])])
            found = {
                id_: (record, head)
                for id_, record, head in zip(ids, records, heads, strict=True)
                if record is not None and record[1] & wire.LETTER and head is not None
            }
            died = dict(zip(ids, times, strict=True))
            for id_, entry in self._entries(shard, found):
                yield Position(int(float(died[id_])), id_), entry
            if len(ids) < at_once:
                return
            start = Position(int(float(times[-1])), ids[-1])

    def _entries(self, shard: int, found: Records) -> Iterator[tuple[bytes, Entry]]:
        texts = {id_: text for id_, (text, _) in found.items()}
        each = self._to_entries(shard, texts, [None] * len(texts))
        for (id_, (_, head)), (entry, _) in zip(found.items(), each, strict=True):
            yield id_, entry if head is None else replace(entry, reason=_group(head)[1])

    # --- groups --------------------------------------------------------------------------------------

    def letter_groups(self) -> LetterGroups:
        """Add up the groups of all shards."""
        self._list_some()
        numbers: dict[bytes, int] = {}
        total, complete = 0, True
        for letters, listed, flat in self._counted():
            total += letters
            # Of a shard with more groups the others are too small to be shown, unless they add up across shards.
            complete = complete and letters == listed
            for group, number in zip(flat[::2], flat[1::2], strict=True):
                numbers[group] = numbers.get(group, 0) + int(float(number))
        groups = most_frequent(LetterGroup(*_group(group), number) for group, number in numbers.items())
        return LetterGroups(groups, total, complete)

    def _counted(self) -> list[tuple[int, int, list[bytes]]]:
        most = [b"%d" % (GROUPS_MAX * min(len(self._prefixes()), 5))]
        return self._calls().run(script("groups"), [(prefix, most) for prefix in self._prefixes()])

    # --- letters of earlier versions -----------------------------------------------------------------

    def _list_some(self) -> None:
        """List letters for a moment, if some are not listed, or listed and gone."""
        until_us = self._clock.monotonic_us() + int(LIST_SECONDS * 1_000_000)
        for prefix, (letters, listed, _) in zip(self._prefixes(), self._counted(), strict=True):
            if letters != listed:
                self._list_shard(prefix, b"open" if letters > listed else b"died", until_us)

    def list_all(self) -> None:
        """Compare all lists with what they list."""
        for prefix in self._prefixes():
            for what in _SCANNED:
                self._cursors.pop(prefix + what, None)
                self._list_shard(prefix, what, None)

    def _list_shard(self, prefix: bytes, what: bytes, until_us: int | None) -> None:
        """Go on to compare the records of a shard with its list, or the reverse, to the end or until a time."""
        calls, key = self._calls(), prefix + what
        scan = b"HSCAN" if what == b"open" else b"ZSCAN"
        while True:
            cursor, flat = calls.command(key, scan, key, self._cursors.get(key, b"0"), b"COUNT", LOOK_AT_ONCE)
            ids = [
                id_
                for id_, value in zip(flat[::2], flat[1::2], strict=True)
                if what != b"open" or value[1] & wire.LETTER
            ]
            for start in range(0, len(ids), LIST_AT_ONCE):
                calls.run(script("relist"), [(prefix, ids[start : start + LIST_AT_ONCE])])
            self._cursors[key] = cursor
            if int(cursor) == 0 or (until_us is not None and self._clock.monotonic_us() >= until_us):
                return

    # --- one subject ---------------------------------------------------------------------------------

    def about(self, subject: bytes, seconds: float) -> Found:
        """Look up what is listed, then look everywhere as far as time allows, open events first."""
        now_us, whole_us = self._clock.monotonic_us(), int(seconds * 1_000_000)
        number = len(self._prefixes())
        found: list[Records] = [{} for _ in range(number)]
        values: dict[bytes, bytes] = {}

        def add(shard: int, names: list[bytes], texts: list[bytes], heads: list[bytes | None]) -> None:
            found[shard] |= {name: (text, head) for name, text, head in zip(names, texts, heads, strict=True)}

        for shard in range(number):
            self._look(shard, b"listed", subject, now_us, add)
        until_us = now_us + whole_us // 2
        unread = [shard for shard in range(number) if not self._look(shard, b"open", subject, until_us, add)]

        def add_keys(_: int, names: list[bytes], texts: list[bytes], __: list[bytes | None]) -> None:
            values.update(zip(names, texts, strict=True))

        until_us = now_us + whole_us
        unread += [shard for shard in range(number) if not self._look(shard, b"keys", subject, until_us, add_keys)]
        entries = [entry for shard in range(number) for _, entry in self._about_entries(shard, found[shard], subject)]
        settled, newest = self._of_keys(values, subject)
        return found_of(entries + settled, newest, complete=not unread)

    def _look(
        self,
        shard: int,
        where: bytes,
        subject: bytes,
        until_us: int,
        add: Callable[[int, list[bytes], list[bytes], list[bytes | None]], None],
    ) -> bool:
        """Look in one place, once at least; False if it was not looked at to its end."""
        cursor = b"0"
        while True:
            arguments = (self._prefixes()[shard], [where, subject, cursor, LOOK_AT_ONCE])
            ((cursor, *found),) = self._calls().run(script("about"), [arguments])
            add(shard, *found)
            if int(cursor) == 0:
                return True
            if self._clock.monotonic_us() >= until_us:
                return False

    def _about_entries(self, shard: int, found: Records, subject: bytes) -> Iterator[tuple[bytes, Entry]]:
        abouts = {id_: wire.read_record(text).about for id_, (text, _) in found.items()}
        wanted = {id_: one for id_, one in found.items() if subject in (abouts[id_].conversation, abouts[id_].user)}
        return self._entries(shard, wanted)

    def _of_keys(self, values: dict[bytes, bytes], subject: bytes) -> tuple[list[Entry], list[Entry]]:
        """Read settled events and newest states from keys of their own."""
        settled: list[Entry] = []
        states: list[Entry] = []
        for shard, prefix in enumerate(self._prefixes()):
            at = len(prefix) + 2
            for key, text in values.items():
                if key.startswith(prefix + b"e:"):
                    record = wire.read_record(text)
                    if subject in (record.about.conversation, record.about.user):
                        settled.append(wire.record_entry(key[at:], record, home=bytes([shard])))
                elif key.startswith(prefix + b"n:"):
                    held = wire.read_entity(text)
                    newest = read_newest(held.data)
                    if newest.key is not None and subject in (newest.conversation, newest.user):
                        states.append(
                            Entry.of_newest(newest, changed_us=held.changed_us, lease_until_us=held.lease_until_us)
                        )
        return settled, states
