"""The interface of every ledger. The rules that all of them follow are in `oncebridge.testing.ledger_contract`."""

from __future__ import annotations

from heapq import nsmallest
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, runtime_checkable

import msgspec

from oncebridge.claim import Status
from oncebridge.discreet import Discreet
from oncebridge.topics import topic_pattern

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from oncebridge.claim import Answer, Ask, Claim, Newest, Settlement
    from oncebridge.ledgers.findings import Finding
    from oncebridge.ledgers.grants import Seen


class Entry(Discreet, msgspec.Struct, frozen=True, kw_only=True):
    """A ledger's entry of one event for one handler, or of an entity's newest state, for people to read."""

    shown = ("key", "handler", "status", "topic", "time_ms", "attempts", "reason")

    key: bytes
    handler: str = ""
    status: Status
    topic: str = ""
    time_ms: int | None = None
    attempts: int = 0
    envelope: str | None = None
    changed_us: int = 0
    retry_at_us: int = 0
    lease_until_us: int = 0
    #: When a worker last claimed it; 0 where the ledger does not record that. Tokens are made of this time.
    claimed_us: int = 0
    #: Where the ledger keeps it, for ledgers that need this; passed back in `Ask.home`.
    home: bytes | None = None
    #: Of a dead letter.
    reason: str = ""
    #: Only from `get`: the content of a dead letter may be personal data.
    raw: bytes | None = None
    detail: str = ""

    @classmethod
    def from_row(cls, row: Sequence[Any]) -> Self:
        """Read a row of a table: a column for each field, in their order."""
        return msgspec.convert(dict(zip(cls.__struct_fields__, row, strict=True)), cls)

    @classmethod
    def of_newest(cls, newest: Newest, *, changed_us: int, lease_until_us: int) -> Self:
        """Show an entity's newest state."""
        return cls(
            key=newest.key or b"",
            status=Status.CLAIMED if lease_until_us else Status.DONE,
            topic=newest.topic,
            time_ms=newest.time_ms,
            envelope=newest.envelope,
            changed_us=changed_us,
            lease_until_us=lease_until_us,
        )


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions of a scan; those that are not set match everything. Times are those of the last change."""

    statuses: frozenset[Status] = frozenset()
    #: Only events of which a dead letter is kept, whatever their status.
    letters: bool = False
    #: Entities with their newest state instead of events.
    entities: bool = False
    topic: str | None = None
    reason: str | None = None
    #: The name of a handler; '' for the one without a name.
    handler: str | None = None
    since_us: int | None = None
    until_us: int | None = None
    #: The digest of a conversation's or a user's id.
    subject: bytes | None = None
    limit: int | None = None

    def is_about(self, *subjects: bytes | None) -> bool:
        """Return whether the query names no subject, or one of these: a conversation, a user."""
        return self.subject is None or self.subject in subjects

    def matches(self, status: Status, topic: str, changed_us: int, letter: str | None, handler: str) -> bool:
        """Return whether an event matches; `letter` is the reason of the dead letter that is kept of it, if any."""
        return (
            (not self.statuses or status in self.statuses)
            and (not self.letters or letter is not None)
            and (self.topic is None or bool(topic_pattern(self.topic).fullmatch(topic)))
            and (self.reason is None or (letter is not None and self.reason in letter))
            and (self.handler is None or handler == self.handler)
            and (self.since_us is None or changed_us >= self.since_us)
            and (self.until_us is None or changed_us < self.until_us)
        )


def longest_unchanged(entries: Iterable[Entry], limit: int | None) -> list[Entry]:
    """Return entries in the order of a scan; with a limit, no more than that many are ever in memory."""
    by_change = attrgetter("changed_us")
    return sorted(entries, key=by_change) if limit is None else nsmallest(limit, entries, key=by_change)


@runtime_checkable
class Ledger(Protocol):
    """Remembers claims and outcomes. Every verb is atomic per fact and per entity, and one round trip where it can be.

    A call names each event at most once; its asks of one entity are a chain, in order. Every verb may raise
    `LedgerUnavailable`: then it is not known whether the call took effect, and repeating it with the same arguments is
    safe. The rules are in `oncebridge.ledgers.grants`; a ledger knows nothing of echo, stale and order.
    """

    def open(self, secret: bytes | None) -> bytes:
        """Connect, and return the secret for keys.

        Without one given, the ledger makes one inside itself, atomically. If the ledger was first opened with another
        secret, it raises `LedgerRefused`.
        """
        ...

    def close(self) -> None:
        """Close connections; the ledger may be opened again."""
        ...

    def claim(self, asks: Sequence[Ask], *, nonce: bytes, lease_us: int) -> list[Answer]:
        """Claim events; return an answer for each, in order.

        A granted claim has a token and runs for `lease_us` microseconds by the ledger's clock. The states of a chain
        have consecutive tokens, and one lease. A call with the same nonce, eight random bytes, is a repeat, and gets
        the same answers.
        """
        ...

    def extend(self, claims: Sequence[Claim], *, lease_us: int) -> list[bool]:
        """Extend claims to `lease_us` from now; False where a claim is no longer in force. One of a chain is enough."""
        ...

    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        """End claims; False where a claim was no longer in force, and then nothing has changed.

        A state's end and its entity's data are written together, if the entity's token is still the chain's top one.
        """
        ...

    def get(self, key: bytes) -> list[Entry]:
        """Return the entries of one event, one for each handler, dead letters with their raw."""
        ...

    def scan(self, query: Query) -> Iterator[Entry]:
        """Return the matching entries, the longest unchanged first, without raw."""
        ...

    def counts(self) -> dict[Status, int]:
        """Count events by status: a second identity, over events rather than deliveries."""
        ...

    def migrate(self) -> None:
        """Bring the ledger's own tables up to date; safe to repeat, and while workers run."""
        ...

    def purge(self, *, older_than_us: int) -> int:
        """Forget events settled longer ago than that, never dead letters; return how many."""
        ...


@runtime_checkable
class SettlesInTransaction(Protocol):
    """A ledger that can settle in the very transaction that a handler writes in."""

    def transaction(self, settlement: Settlement) -> AbstractContextManager[Any]:
        """Open a transaction for a handler; leaving it writes this settlement and commits, both or neither.

        An exception rolls back and leaves the claim as it was. If the claim is no longer in force, everything
        rolls back and `ClaimLost` is raised.
        """
        ...


@runtime_checkable
class TransactsInSQL(SettlesInTransaction, Protocol):
    """One whose transaction is a connection to a database, which may hold the user's own tables."""

    @property
    def dialect(self) -> Literal["sqlite", "postgres"]:
        """The SQL dialect of that database."""
        ...


@runtime_checkable
class SettlesAhead(Protocol):
    """A ledger whose settles can be under way while the caller goes on."""

    def start_settle(self, settlements: Sequence[Settlement]) -> Callable[[], list[bool]]:
        """Start to settle claims. The function returned waits for the answer, and raises what `settle` would."""
        ...


@runtime_checkable
class MayBecomeAnother(Protocol):
    """A ledger whose server may come back empty, so that others agree on another secret there.

    Its calls raise `LedgerRefused` then, until it is opened again.
    """

    @property
    def is_another(self) -> bool:
        """Whether it must be opened again, for the secret that is valid now."""
        ...


@runtime_checkable
class MayForget(Protocol):
    """A ledger that may forget acknowledged events, in a crash, a failover or by hand, and goes on."""

    @property
    def may_forget(self) -> bool:
        """Whether its own secret, and letters that it alone keeps, are at risk."""
        ...


@runtime_checkable
class ShowsRecords(Protocol):
    """A ledger that shows what a claim would find there, and changes nothing."""

    def open_to_look(self, secret: bytes | None) -> bytes | None:
        """Connect, and return the secret for keys; None if there is no ledger yet, and then none is made.

        It refuses another secret as `open` does. Until it is closed, only verbs that read may be called.
        """
        ...

    def look(self, asks: Sequence[Ask]) -> list[Seen]:
        """Return what is known of each ask, in order; of its event, for every handler."""
        ...


class Attendance(msgspec.Struct, frozen=True):
    """What a ledger keeps of one conversation: which marks came, and when by its own clock."""

    #: Different marks, `MARK_BYTES` each, in the order of their bytes, and joined; at most `MARKS_MAX` of them.
    marks: bytes
    first_us: int
    last_us: int


@runtime_checkable
class KeepsAttendance(Protocol):
    """A ledger that keeps which marks came of each conversation.

    A settle that is in force adds what `oncebridge.claim.attended` says of it, in the same call and as one with it. A
    mark that is there already changes nothing, so repeats and several handlers count once.
    """

    def attendance(self, conversations: Sequence[bytes], *, since_us: int = 0) -> list[Attendance | None]:
        """Return what came of each conversation, by its digest, in order; None where nothing did.

        What came before `since_us`, by the ledger's clock, may be left out.
        """
        ...


@runtime_checkable
class Examines(Protocol):
    """A ledger that can examine its own server. It is open at that time."""

    def examine(self) -> Iterator[Finding]:
        """Check everything that the promise depends on: settings, versions, clocks, permissions."""
        ...


class LetterPage(msgspec.Struct, frozen=True):
    """Some dead letters."""

    #: Without raw and detail.
    entries: list[Entry]
    #: Where the next page begins; None: this is the last one. A page may be empty and still have a next one.
    next: str | None = None
    #: Whether pages follow each other from the newest letter to the oldest; else only entries of one page do.
    newest_first: bool = True


class LetterGroup(msgspec.Struct, frozen=True):
    """Dead letters that have their handler, reason and topic in common."""

    handler: str
    reason: str
    topic: str
    number: int


class LetterGroups(msgspec.Struct, frozen=True):
    """Dead letters by group, the most frequent first."""

    groups: list[LetterGroup]
    #: How many letters there are, also in groups that are left out; if it is not complete, at least so many.
    total: int
    #: Whether every letter was counted.
    complete: bool


class Found(msgspec.Struct, frozen=True):
    """What a ledger knows of a conversation or a user, the latest change first."""

    #: Unfinished and dead ones; also those that are done, where the ledger keeps their subjects.
    entries: list[Entry]
    #: The newest states of entities.
    newest: list[Entry]
    #: Whether it looked everywhere, and nothing was left out.
    complete: bool


@runtime_checkable
class ReadsInPages(Protocol):
    """A ledger that answers people within a bounded time, whatever it holds; `scan` may walk through all of it."""

    def letter_page(self, query: Query, *, after: str | None = None, limit: int = 50) -> LetterPage:
        """Return dead letters, the newest first, that match topic, reason, handler, since and until of a query.

        The times are those of dying: of a letter that is being redriven a ledger may take the last change instead. Some
        two thousand letters at most are looked at, so a filtered page may be short, or empty, and have a next one.
        `after` is the `next` of the page before; a text that is none raises `ConfigurationError`.
        """
        ...

    def letter_groups(self) -> LetterGroups:
        """Count dead letters by handler, reason and topic; at most 200 groups."""
        ...

    def about(self, subject: bytes, *, seconds: float) -> Found:
        """Find what is known of a conversation or a user by its digest; look for about so long at most.

        Of entries and of newest states at most 200 each are returned.
        """
        ...
