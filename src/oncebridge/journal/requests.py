"""Requests to redrive or discard dead letters: put into the ledger by a page, and taken by a worker that can.

A request is one note, which only ever changes by compare and set. Those that have not ended are named on a second page,
so that a worker that looks every few seconds reads hardly anything. A worker holds a request by a lease: if it dies,
another one begins again, and what was settled before is not repeated, since the claim protocol sees to that.
"""

from __future__ import annotations

import re
import secrets
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from oncebridge.errors import ConfigurationError
from oncebridge.journal.plain import plain
from oncebridge.journal.records import DAY_US

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from oncebridge.clock import Clock
    from oncebridge.ledgers.notes import Note, Notes

REQUESTS: Final = "requests"
OPEN: Final = "requests open"
KEPT_US: Final = 30 * DAY_US
KEYS_MAX: Final = 1000
ITEMS_MAX: Final = 200
#: While it runs, so that a write every second stays small.
ITEMS_RUNNING: Final = 20
OPEN_MAX: Final = 200
FORGOTTEN_AT_ONCE: Final = 20
#: A worker that says nothing for so long has lost the request.
LEASE_MS: Final = 30_000
WORDS_MAX: Final = 300
REASON_MAX: Final = 160

REDRIVE: Final = "redrive"
DISCARD: Final = "discard"
WAITING: Final = "waiting"
RUNNING: Final = "running"
DONE: Final = "done"
CANCELLED: Final = "cancelled"

_ID: Final = re.compile(r"[0-9]{14}-[0-9a-f]{12}")
_encode: Final = msgspec.msgpack.Encoder().encode


def group_name(handler: str, reason: str, topic: str) -> str:
    """Name a group of letters, whatever is in its texts: forms change line breaks, a topic may look like a pattern."""
    return blake2b(ascii((handler, reason, topic)).encode(), digest_size=16).hexdigest()


class RequestItem(msgspec.Struct, frozen=True, array_like=True):
    """What became of one letter, without anything of its payload."""

    key: str
    handler: str
    verdict: str
    outcome: str
    reason: str


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request, and how far it is."""

    id: str
    #: `redrive` or `discard`.
    what: str
    who: str
    at_ms: int
    via: str = "console"
    #: Only letters of this handler; None: of any.
    handler: str | None = None
    keys: tuple[str, ...] = ()
    topic: str | None = None
    reason: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    #: The name of one group: only letters whose handler, reason and topic are just these.
    group: str | None = None
    #: Every letter, where nothing else is given.
    all: bool = False
    #: Redrive even what is an echo or stale by now.
    force: bool = False
    #: How many letters the person was shown.
    expected: int | None = None
    #: `waiting`, `running`, `done` or `cancelled`.
    state: str = WAITING
    #: Who runs it, or ran it last, and until when nobody else may take it.
    worker: str = ""
    taken_until_ms: int = 0
    #: How often it was taken: more than once, where a worker stopped or died with it.
    takes: int = 0
    #: How often the worker that had it fell silent: what that did since it last wrote is done, and not counted here.
    deaths: int = 0
    #: How many letters have been tried, and when it ended.
    tried: int = 0
    ended_ms: int | None = None
    #: By outcome: `processed`, `dead`, `retrying`, `echo`, `stale`, `unhandled`, `paused`, `discarded`, `gone`, `busy`.
    outcomes: dict[str, int] = {}
    #: The last letters.
    items: tuple[RequestItem, ...] = ()
    #: Names of handlers whose letters are left, because no worker that took it has them; None: not known yet.
    left: tuple[str, ...] | None = None

    @property
    def has_ended(self) -> bool:
        """Whether nothing more happens to it."""
        return self.state in (DONE, CANCELLED)

    @property
    def about(self) -> str:
        """Which letters it is about, in words."""
        if self.keys:
            return self.keys[0] if len(self.keys) == 1 else f"{len(self.keys):,} letters, from {self.keys[0]} on"
        given = [
            *(
                []
                if self.handler is None
                else [f"handler {self.handler}" if self.handler else "handler without a name"]
            ),
            *([] if self.topic is None else [f"topic {self.topic}"]),
            *([] if self.reason is None else [f"reason {self.reason!r}"]),
            *([] if self.since_ms is None else [f"since {_written(self.since_ms)}"]),
            *([] if self.until_ms is None else [f"until {_written(self.until_ms)}"]),
        ]
        return ("the group of " if self.group else "") + (", ".join(given) or "all letters")

    @property
    def said(self) -> str:
        """What came of it, in words."""
        found = ", ".join(f"{number:,} {name}" for name, number in self.outcomes.items() if number)
        return found or "no letter was found"

    @property
    def heard_ms(self) -> int | None:
        """When the worker that has it last said so; None if none has it."""
        return self.taken_until_ms - LEASE_MS if self.state == RUNNING else None

    def can_be_taken(self, handlers: Collection[str], now_ms: int, *, discards: bool) -> bool:
        """Return whether a worker with these handlers may take it now."""
        if self.has_ended or (self.state == RUNNING and now_ms < self.taken_until_ms):
            return False
        if self.what == DISCARD:
            return discards
        if self.handler is not None:
            return self.handler in handlers
        return bool(handlers) if self.left is None else any(name in handlers for name in self.left)

    def asks_like(self, other: Request) -> bool:
        """Return whether both ask for the same."""
        names = ("what", "handler", "keys", "topic", "reason", "since_ms", "until_ms", "group", "all", "force")
        return all(getattr(self, name) == getattr(other, name) for name in names)


_decode: Final = msgspec.msgpack.Decoder(Request).decode


class Requests:
    """Puts requests into the ledger's notes, and takes them from there."""

    def __init__(self, notes: Notes, clock: Clock, *, keep_us: int = KEPT_US) -> None:
        """Take the notes of an open ledger, and how long requests are kept."""
        self._notes = notes
        self._clock = clock
        self._keep_us = keep_us

    # --- for people ----------------------------------------------------------------------------------

    def new_id(self) -> str:
        """Return an id for `put`: a form that has one and is sent twice makes one request."""
        return f"{self._now_ms():014d}-{secrets.token_hex(6)}"

    def put(
        self,
        what: str,
        who: str,
        *,
        id: str | None = None,  # noqa: A002 - as the record calls it
        via: str = "console",
        handler: str | None = None,
        keys: Iterable[str] = (),
        topic: str | None = None,
        reason: str | None = None,
        since_ms: int | None = None,
        until_ms: int | None = None,
        group: str | None = None,
        all: bool = False,  # noqa: A002 - as the command says it
        force: bool = False,
        expected: int | None = None,
    ) -> Request:
        """Put a request; one that waits and asks for the same is returned instead of a second.

        Raises `ConfigurationError` if it chooses nothing, or too much by key.
        """
        request = Request(
            id=self.new_id() if id is None else id,
            what=what,
            who=plain(who, WORDS_MAX),
            via=via,
            at_ms=self._now_ms(),
            handler=handler,
            keys=tuple(dict.fromkeys(keys)),
            topic=topic or None,
            reason=reason or None,
            since_ms=since_ms,
            until_ms=until_ms,
            group=group or None,
            all=all,
            force=force,
            expected=expected,
        )
        _check(request)
        same = [
            one for one in self._open() if one.id == request.id or (one.state == WAITING and one.asks_like(request))
        ]
        if same:
            return same[0]
        self._forget_old()
        if not self._notes.swap_note(REQUESTS, request.id, None, _encode(request), keep_us=self._keep_us):
            return self.get(request.id) or request  # sent twice
        self._notes.write_notes(OPEN, {request.id: b""}, keep_us=self._keep_us)
        return request

    def get(self, id: str) -> Request | None:  # noqa: A002 - as the record calls it
        """Return a request; None if there is none of this id."""
        note = self._note(id)
        return None if note is None else _decode(note.value)

    def latest(self, limit: int = 50) -> list[Request]:
        """Return requests, the newest first."""
        return [_decode(note.value) for note in self._notes.read_notes(REQUESTS, limit=limit)]

    def cancel(self, id: str) -> Request | None:  # noqa: A002 - as the record calls it
        """End a request that waits or runs: its worker stops after the letter at hand. None if it has ended before."""
        return self._ended(id, lambda one: None if one.has_ended else self._over(one, CANCELLED))

    # --- for workers ---------------------------------------------------------------------------------

    def takeable(self, handlers: Collection[str], *, discards: bool) -> list[Request]:
        """Return the requests that a worker with these handlers may take now, the oldest first."""
        now_ms = self._now_ms()
        return [one for one in self._open() if one.can_be_taken(handlers, now_ms, discards=discards)]

    def take(self, id: str, worker: str, handlers: Collection[str], *, discards: bool) -> Request | None:  # noqa: A002
        """Take a request for a while; None if another worker was faster, or it has ended."""

        def taken(one: Request) -> Request | None:
            now_ms = self._now_ms()
            if not one.can_be_taken(handlers, now_ms, discards=discards):
                return None
            died = one.deaths + (one.state == RUNNING)
            until_ms = now_ms + LEASE_MS
            return replace(one, state=RUNNING, worker=worker, taken_until_ms=until_ms, takes=one.takes + 1, deaths=died)

        return self._changed(id, taken)

    def progress(self, id: str, worker: str, done: Progress) -> Request | None:  # noqa: A002
        """Write how far it is, and hold it for longer; None if it was cancelled or taken over: then stop."""

        def goes_on(one: Request) -> Request | None:
            if one.state != RUNNING or one.worker != worker:
                return None
            items = tuple(done.items[-ITEMS_RUNNING:])
            return replace(done.added_to(one, items), taken_until_ms=self._now_ms() + LEASE_MS)

        return self._changed(id, goes_on)

    def give_back(
        self,
        id: str,  # noqa: A002
        worker: str,
        done: Progress,
        left: Sequence[str] | None = None,
    ) -> Request | None:
        """Let another worker take it: this one stops, or lacks the handlers that are named."""

        def back(one: Request) -> Request | None:
            if one.state != RUNNING or one.worker != worker:
                return None
            named = one.left if left is None else tuple(left)
            return replace(done.added_to(one, tuple(done.items)), state=WAITING, taken_until_ms=0, left=named)

        return self._changed(id, back)

    def finish(self, id: str, worker: str, done: Progress) -> Request | None:  # noqa: A002
        """End a request that was worked off; None if it was cancelled or taken over."""

        def over(one: Request) -> Request | None:
            if one.state != RUNNING or one.worker != worker:
                return None
            return self._over(done.added_to(one, tuple(done.items)), DONE)

        return self._ended(id, over)

    # --- notes ---------------------------------------------------------------------------------------

    def _now_ms(self) -> int:
        return self._clock.now_us() // 1000

    def _over(self, request: Request, state: str) -> Request:
        return replace(request, state=state, ended_ms=self._now_ms(), taken_until_ms=0)

    def _note(self, id: str) -> Note | None:  # noqa: A002
        found = self._notes.read_notes(REQUESTS, below=f"{id}~", limit=1)
        return found[0] if found and found[0].name == id else None

    def _open(self) -> list[Request]:
        """Return those that have not ended, the oldest first; names of others are taken off their page."""
        found = []
        for named in reversed(self._notes.read_notes(OPEN, limit=OPEN_MAX)):
            request = self.get(named.name)
            if request is not None and not request.has_ended:
                found.append(request)
            else:
                self._notes.swap_note(OPEN, named.name, named.value, None, keep_us=self._keep_us)
        return found

    def _changed(self, id: str, change: Callable[[Request], Request | None]) -> Request | None:  # noqa: A002
        """Change a request from whatever it is now; None if that is not to be."""
        while True:
            note = self._note(id)
            changed = None if note is None else change(_decode(note.value))
            if note is None or changed is None:
                return None
            if self._notes.swap_note(REQUESTS, id, note.value, _encode(changed), keep_us=self._keep_us):
                return changed

    def _ended(self, id: str, change: Callable[[Request], Request | None]) -> Request | None:  # noqa: A002
        ended = self._changed(id, change)
        if ended is not None:
            self._notes.swap_note(OPEN, id, b"", None, keep_us=self._keep_us)
        return ended

    def _forget_old(self) -> None:
        """Forget the oldest: some ledgers keep a page for as long as anything is written to it."""
        before = f"{self._now_ms() - self._keep_us // 1000:014d}"
        for note in self._notes.read_notes(REQUESTS, below=before, limit=FORGOTTEN_AT_ONCE):
            self._notes.swap_note(REQUESTS, note.name, note.value, None, keep_us=self._keep_us)


class Progress:
    """What one worker has done of a request, since it took it."""

    def __init__(self, before: Request) -> None:
        """Go on from what workers before it have done."""
        self._before = before
        self.tried = 0
        self.outcomes: dict[str, int] = {}
        self.items: list[RequestItem] = [*before.items]

    def add(self, item: RequestItem, counted_as: str) -> None:
        """Add one letter."""
        self.tried += 1
        self.outcomes[counted_as] = self.outcomes.get(counted_as, 0) + 1
        self.items.append(replace(item, reason=plain(item.reason, REASON_MAX)))
        del self.items[:-ITEMS_MAX]

    def added_to(self, request: Request, items: tuple[RequestItem, ...]) -> Request:
        """Return a request with what was done before, and since."""
        names = {**self._before.outcomes, **self.outcomes}
        sums = {name: self._before.outcomes.get(name, 0) + self.outcomes.get(name, 0) for name in names}
        return replace(request, tried=self._before.tried + self.tried, outcomes=sums, items=items)


def _check(request: Request) -> None:
    """Refuse a request that chooses nothing, or that no worker understands."""
    if request.what not in (REDRIVE, DISCARD):
        raise ConfigurationError(f"what: expected redrive or discard, got {request.what!r}")
    if _ID.fullmatch(request.id) is None:
        raise ConfigurationError("id: expected one that new_id returned")
    if len(request.keys) > KEYS_MAX:
        raise ConfigurationError(f"keys: {len(request.keys):,} are named, at most {KEYS_MAX:,} can be; use a filter")
    filters = (request.handler, request.topic, request.reason, request.since_ms, request.until_ms)
    if not (request.keys or request.all or any(given is not None for given in filters)):
        raise ConfigurationError("name keys, a filter, or all")


def _written(at_ms: int) -> str:
    from datetime import UTC, datetime  # only for words

    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M} UTC"
