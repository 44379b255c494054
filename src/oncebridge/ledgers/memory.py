"""The ledger of one process, in its memory: for tests, simulations and trying things out."""

from __future__ import annotations

import hmac
import secrets
import threading
from collections import Counter
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Self

from msgspec.structs import replace

from oncebridge import forks
from oncebridge.claim import SETTLED, Status, attended, read_newest
from oncebridge.clock import Clock, SystemClock
from oncebridge.errors import ClaimLost, LedgerRefused
from oncebridge.ledgers.findings import Finding, wrong
from oncebridge.ledgers.grants import Call, Seen, claim_chain, claim_fact, extend_claim, settle_claim
from oncebridge.ledgers.loan import Loan
from oncebridge.ledgers.marks import with_marks
from oncebridge.ledgers.memory_notes import MemoryNotes
from oncebridge.ledgers.pages import found_of, most_frequent, page_of, page_size, position_of, read_position
from oncebridge.ledgers.protocol import Entry, LetterGroup, LetterGroups, LetterPage, Query, longest_unchanged

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from oncebridge.claim import Answer, Ask, Claim, Letter, Settlement
    from oncebridge.ledgers.grants import Entity, Kept, Record
    from oncebridge.ledgers.memory_tables import MemoryTables
    from oncebridge.ledgers.protocol import Attendance, Found


class Changes:
    """Records and entities that a call changes, with the letters that it keeps."""

    #: Commits what a handler has written, before anything else is changed.
    commit: Callable[[], None] | None = None

    def __init__(self) -> None:
        """Change nothing yet."""
        self.records: dict[tuple[bytes, str], tuple[Ask, Record, Letter | None]] = {}
        self.entities: dict[bytes, Entity] = {}
        #: Marks of attendance, by conversation.
        self.came: dict[bytes, list[bytes]] = {}

    def add(self, ask: Ask, kept: Kept, letter: Letter | None = None) -> None:
        """Add the changes of one claim."""
        if kept.record is not None:
            self.records[ask.key, ask.handler] = ask, kept.record, letter
        if kept.entity is not None and ask.entity is not None:
            self.entities[ask.entity] = kept.entity


class MemoryLedger:
    """Keeps everything in dictionaries behind one lock."""

    def __init__(self, clock: Clock | None = None) -> None:
        """Start empty."""
        self._clock = clock or SystemClock()
        self.notes = MemoryNotes(self._clock)
        self._lock = threading.Lock()
        self._secret: bytes | None = None
        self._made_it = False
        self.records: dict[tuple[bytes, str], Record] = {}
        self.entities: dict[bytes, Entity] = {}
        self.letters: dict[tuple[bytes, str], Letter] = {}
        self.attendances: dict[bytes, Attendance] = {}
        self._asks: dict[tuple[bytes, str], Ask] = {}
        self._unwritten: Changes | None = None
        self._tables: MemoryTables | None = None
        forks.register(self)

    def __repr__(self) -> str:
        """Show how much is remembered."""
        return f"<MemoryLedger {len(self.records)} events, {len(self.entities)} entities, {len(self.letters)} dead>"

    def before_fork(self) -> None:
        """Do nothing: a half-finished write is finished in the child."""

    def after_fork(self, *, in_child: bool) -> None:
        """Go on in the child with a copy of everything, and a free lock."""
        if in_child:
            self._lock = threading.Lock()

    @classmethod
    def from_url(cls, url: str, *, retention_us: int = 0) -> Self:  # noqa: ARG003 - memory:// has nothing to say
        """Make an empty ledger."""
        return cls()

    def open(self, secret: bytes | None) -> bytes:
        """Take the secret given first, or make one."""
        with self._lock:
            if self._secret is None:
                self._secret, self._made_it = secret or secrets.token_bytes(32), secret is None
            if not (self._made_it if secret is None else hmac.compare_digest(secret, self._secret)):
                raise LedgerRefused("this ledger was first opened with another secret")
            return self._secret

    def open_to_look(self, secret: bytes | None) -> bytes | None:
        """Return the secret, if one was given or made."""
        return None if self._secret is None else self.open(secret)

    def close(self) -> None:
        """Keep everything: there is nothing to release."""

    def claim(self, asks: Sequence[Ask], *, nonce: bytes, lease_us: int) -> list[Answer]:
        """Answer each fact by itself, and the states of an entity as a chain."""
        with self._lock:
            self._finish_writing()
            call = Call(nonce, lease_us, self._clock.now_us())
            changes = Changes()
            chains: dict[bytes, list[int]] = {}
            answers: list[Any] = [None] * len(asks)
            for place, ask in enumerate(asks):
                if ask.entity is None:
                    at = (ask.key, ask.handler)
                    answers[place], record = claim_fact(ask, self.records.get(at), call)
                    if record is not None:
                        changes.records[at] = ask, record, None
                else:
                    chains.setdefault(ask.entity, []).append(place)
            for entity, places in chains.items():
                chain = self._claim_chain(entity, [asks[place] for place in places], call, changes)
                for place, answer in zip(places, chain, strict=True):
                    answers[place] = answer
            self._write(changes)
            return answers

    def _claim_chain(self, key: bytes, asks: list[Ask], call: Call, changes: Changes) -> list[Answer]:
        records = [self.records.get((ask.key, ask.handler)) for ask in asks]
        granted = claim_chain(asks, records, self.entities.get(key), call)
        for place, record in granted.records:
            ask = asks[place]
            changes.records[ask.key, ask.handler] = ask, record, None
        if granted.entity is not None:
            changes.entities[key] = granted.entity
        return granted.answers

    def extend(self, claims: Sequence[Claim], *, lease_us: int) -> list[bool]:
        """Extend the leases of claims in force."""
        with self._lock:
            self._finish_writing()
            call = Call(b"", lease_us, self._clock.now_us())
            return [self._extend(claim, call) for claim in claims]

    def _extend(self, claim: Claim, call: Call) -> bool:
        ask = claim.ask
        entity = None if ask.entity is None else self.entities.get(ask.entity)
        kept = extend_claim(claim, self.records.get((ask.key, ask.handler)), entity, call)
        changes = Changes()
        changes.add(ask, kept)
        self._write(changes)
        return kept.ok

    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        """End claims in force."""
        with self._lock:
            self._finish_writing()
            now_us = self._clock.now_us()
            changes = Changes()
            oks = [self._settle(settlement, now_us, changes) for settlement in settlements]
            self._write(changes)
            return oks

    def _settle(self, settlement: Settlement, now_us: int, changes: Changes) -> bool:
        ask, entity = settlement.claim.ask, None
        if ask.entity is not None:  # as the state before it in its chain left it
            entity = changes.entities.get(ask.entity) or self.entities.get(ask.entity)
        kept = settle_claim(settlement, self.records.get((ask.key, ask.handler)), entity, now_us)
        changes.add(ask, kept, settlement.letter)
        came = attended(settlement)
        if came is not None and kept.record is not None:
            changes.came.setdefault(came[0], []).append(came[1])
        return kept.ok

    def transaction(self, settlement: Settlement) -> Loan[sqlite3.Connection]:
        """Give a handler a connection to tables in memory; its writes are committed with the settle, or not at all."""
        changes = Changes()

        def begin() -> None:
            with self._lock:
                self._finish_writing()
                if not self._would_settle(settlement, Changes()):
                    raise ClaimLost

        def end(commit: Callable[[], None]) -> None:
            with self._lock:
                self._finish_writing()
                if not self._would_settle(settlement, changes):
                    raise ClaimLost
                changes.commit = commit
                self._write(changes)

        return Loan(self._made_tables().lend(begin, end, lambda: self._unwritten is changes))

    def _would_settle(self, settlement: Settlement, changes: Changes) -> bool:
        """Add the end of a claim in force; a claim that is settled, even in the same way, carries no second effect."""
        self._settle(settlement, self._clock.now_us(), changes)
        return bool(changes.records)

    def database(self) -> AbstractContextManager[sqlite3.Connection]:
        """Open the tables that handlers write to, for tests: to create them, and to look at them."""
        with self._lock:
            self._finish_writing()
        return self._made_tables().opened()

    def _made_tables(self) -> MemoryTables:
        from oncebridge.ledgers.memory_tables import MemoryTables  # few programs need SQLite here

        with self._lock:
            if self._tables is None:
                self._tables = MemoryTables()
            return self._tables

    def _write(self, changes: Changes) -> None:
        # Noted in one step, and dropped when it is written: a write that an interrupt or a fork cut short is finished
        # by the next call.
        self._unwritten = changes
        self._finish_writing()

    def _finish_writing(self) -> None:
        changes = self._unwritten
        if changes is None:
            return
        if changes.commit is not None:
            self._commit(changes.commit)
        for at, (ask, record, letter) in changes.records.items():
            self._asks.setdefault(at, ask)
            self.records[at] = record
            if letter is not None:
                self.letters[at] = letter
            elif self.letters and not record.letter:
                self.letters.pop(at, None)
        self.entities.update(changes.entities)
        for conversation, marks in changes.came.items():
            before = self.attendances.get(conversation)
            self.attendances[conversation] = with_marks(before, marks, self._clock.now_us())
        self._unwritten = None

    def _commit(self, commit: Callable[[], None]) -> None:
        """Commit a handler's work; if that fails, nothing has changed."""
        import sqlite3

        try:
            commit()
        except sqlite3.Error:
            self._unwritten = None
            raise

    def look(self, asks: Sequence[Ask]) -> list[Seen]:
        """Find the records of all events in one pass."""
        with self._lock:
            self._finish_writing()
            found: dict[bytes, dict[str, Record]] = {ask.key: {} for ask in asks}
            for (key, handler), record in self.records.items():
                if key in found:
                    found[key][handler] = record
            now_us = self._clock.now_us()
            return [Seen(found[ask.key], self.entities.get(ask.entity or b""), now_us) for ask in asks]

    def attendance(self, conversations: Sequence[bytes], *, since_us: int = 0) -> list[Attendance | None]:  # noqa: ARG002
        """Look conversations up."""
        with self._lock:
            self._finish_writing()
            return [self.attendances.get(conversation) for conversation in conversations]

    def get(self, key: bytes) -> list[Entry]:
        """Return the event's records, with the content of dead letters."""
        with self._lock:
            self._finish_writing()
            return [self._entry(at, raw=True) for at in self.records if at[0] == key]

    def scan(self, query: Query) -> Iterator[Entry]:
        """Return the matching entries, the longest unchanged first."""
        with self._lock:
            entries = self._entity_entries(query) if query.entities else map(self._entry, self._matching(query))
            found = longest_unchanged(entries, query.limit)
        yield from found

    def _matching(self, query: Query) -> Iterator[tuple[bytes, str]]:
        for at, record in self.records.items():
            ask, letter = self._asks[at], self.letters.get(at)
            reason = None if letter is None else letter.reason
            if query.matches(record.status, ask.topic, record.changed_us, reason, at[1]) and query.is_about(
                ask.conversation, ask.user
            ):
                yield at

    def _entry(self, at: tuple[bytes, str], *, raw: bool = False) -> Entry:
        record, ask, letter = self.records[at], self._asks[at], self.letters.get(at)
        held = None if ask.entity is None else self.entities.get(ask.entity)
        on_entity = held.lease_until_us if held is not None and held.nonce == record.nonce else 0
        return Entry(
            key=at[0],
            handler=at[1],
            status=record.status,
            topic=ask.topic,
            time_ms=ask.time_ms,
            attempts=record.attempts,
            envelope=record.envelope,
            changed_us=record.changed_us,
            retry_at_us=record.retry_at_us,
            lease_until_us=record.lease_until_us or on_entity,
            claimed_us=record.token,
            reason=letter.reason if letter else "",
            raw=letter.raw if letter and raw else None,
            detail=letter.detail if letter and raw else "",
        )

    def _entity_entries(self, query: Query) -> Iterator[Entry]:
        for entity in self.entities.values():
            newest = read_newest(entity.data)
            if newest.key is not None and query.is_about(newest.conversation, newest.user):
                yield Entry.of_newest(newest, changed_us=entity.changed_us, lease_until_us=entity.lease_until_us)

    def letter_page(self, query: Query, *, after: str | None = None, limit: int = 50) -> LetterPage:
        """Sort the letters, and return some."""
        start = read_position(after)
        with self._lock:
            self._finish_writing()
            chosen = replace(query, letters=True, entities=False, limit=None)
            entries = [self._entry(at) for at in self._matching(chosen)]
        letters = sorted(((position_of(one), one) for one in entries), key=itemgetter(0), reverse=True)
        behind = [letter for letter in letters if start is None or letter[0] < start]
        return page_of(behind, lambda _: True, page_size(limit), len(behind))

    def letter_groups(self) -> LetterGroups:
        """Count the letters."""
        with self._lock:
            self._finish_writing()
            numbers = Counter((at[1], letter.reason, self._asks[at].topic) for at, letter in self.letters.items())
        groups = most_frequent(LetterGroup(*group, number) for group, number in numbers.items())
        return LetterGroups(groups, numbers.total(), complete=True)

    def about(self, subject: bytes, *, seconds: float) -> Found:  # noqa: ARG002 - it never takes long
        """Look at everything."""
        each = [list(self.scan(Query(subject=subject, entities=entities))) for entities in (False, True)]
        return found_of(*each, complete=True)

    def counts(self) -> dict[Status, int]:
        """Count events by status."""
        with self._lock:
            return dict(Counter(record.status for record in self.records.values()))

    def examine(self) -> Iterator[Finding]:
        """Report the one finding that applies."""
        yield wrong(
            "memory",
            "events and dead letters are gone when the process ends, and other processes do not see them",
            "use a ledger that lasts, such as sqlite:///once.db; memory:// is for tests and for trying things out",
            weakens="everything is forgotten with the process",
        )

    def migrate(self) -> None:
        """Do nothing: there are no tables."""

    def purge(self, *, older_than_us: int) -> int:
        """Forget events settled before then, and entities unused since."""
        with self._lock:
            before_us = self._clock.now_us() - older_than_us
            old = [
                at
                for at, record in self.records.items()
                if record.status in SETTLED and not record.letter and record.changed_us < before_us
            ]
            for at in old:
                del self.records[at], self._asks[at]
            for key, entity in list(self.entities.items()):
                if entity.changed_us < before_us and not entity.lease_until_us:
                    del self.entities[key]
            self.attendances = {key: one for key, one in self.attendances.items() if one.last_us >= before_us}
            return len(old)
