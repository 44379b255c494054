"""Writes the journal of one worker into the ledger's notes, in a thread of its own that nothing ever waits for."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

from oncebridge import forks, threads
from oncebridge.clock import Stop
from oncebridge.errors import LedgerRefused, OncebridgeError
from oncebridge.journal.records import (
    DELIVERIES,
    DELIVERIES_KEPT,
    DELIVERIES_KEPT_US,
    MINUTES_KEPT_US,
    WORKER_KEPT_US,
    WORKERS,
    WorkerSeen,
    hour_page,
    minute_page,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncebridge.clock import Clock
    from oncebridge.journal.records import SeenDelivery
    from oncebridge.journal.tally import Tally
    from oncebridge.ledgers.notes import Notes

EVERY_SECONDS: Final = 5.0
#: At the end of an invocation: how often at most, and how long the invocation waits for it.
INVOCATION_EVERY_US: Final = 10_000_000
INVOCATION_WAIT_SECONDS: Final = 0.25
#: How long the start of a worker waits for its first look at the notes.
FIRST_SECONDS: Final = 2.0
#: How long the end of a worker waits for its last write.
END_SECONDS: Final = 2.0

_encode: Final = msgspec.msgpack.Encoder().encode


class JournalWriter:
    """Writes counts, the latest deliveries and the state of this worker every few seconds."""

    def __init__(
        self,
        tally: Tally,
        *,
        open_notes: Callable[[], Notes],
        close_notes: Callable[[], None],
        describe: Callable[[], WorkerSeen],
        clock: Clock,
        warn: Callable[[str], None],
        keep_us: int,
        by_invocation: bool = False,
    ) -> None:
        """Take what to write, and where; nothing is opened before the first write.

        Args:
            tally: What this worker does.

            open_notes: Opens the notes, by a connection that no delivery uses.

            close_notes: Closes them.

            describe: Describes this worker as it is now.

            clock: The bridge's clock.

            warn: Says, once, that the journal cannot be written.

            keep_us: How long counts by the hour are kept.

            by_invocation: Write at the end of invocations alone: between them the process is frozen.

        """
        self.tally = tally
        self._open_notes, self._close_notes = open_notes, close_notes
        self._describe = describe
        self._clock = clock
        self._warn = warn
        self._keep_us = keep_us
        self._by_invocation = by_invocation
        #: Called with the notes at the start and after each write: what else a worker looks for every few seconds.
        self.then: Callable[[Notes], None] = lambda _: None
        #: Called after that, when nobody waits any more: it may read for long.
        self.at_last: Callable[[Notes], None] = lambda _: None
        self._notes: Notes | None = None
        self._numbered = 0
        self._has_warned = False
        #: Why the notes may not be read, though they may be written; and whether that was said.
        self._unread: LedgerRefused | None = None
        self._has_said_unread = False
        self._begin()
        forks.register(self)

    def _begin(self) -> None:
        self._thread: threading.Thread | None = None
        self._ending = Stop()
        self._ended = Stop()
        self._wanted = Stop()
        self._written = threading.Lock()
        self._last_us = 0
        #: By the wall clock: between invocations the other one may stand still.
        self._looked_at_us = 0
        self._looked = Stop()
        self._looks_only = False

    def before_fork(self) -> None:
        """Do nothing: the thread goes on in the parent."""

    def after_fork(self, *, in_child: bool) -> None:
        """Start over in the child, which has no thread."""
        if in_child:
            self._begin()
            self._notes = None

    def start(self) -> None:
        """Begin to write, unless it has begun."""
        if self._thread is None:
            parts = self._ending, self._ended, self._wanted, self._written, self._looked
            self._thread = threads.background(self._run, *parts, name="oncebridge-journal")
            threads.start([self._thread])

    def look_first(self) -> None:
        """Begin, and wait for the first look at the notes; not for long, if the ledger is slow."""
        self.start()
        self._looked.wait(FIRST_SECONDS)

    def begin_invocation(self) -> None:
        """Look at the notes before an invocation, if the last look was a while ago; wait for a moment at most."""
        if self._thread is None or self._clock.now_us() - self._looked_at_us < INVOCATION_EVERY_US:
            return
        self._looked.clear()
        self._looks_only = True
        self._wanted.set()
        self._looked.wait(INVOCATION_WAIT_SECONDS)

    def end_invocation(self) -> None:
        """Write at the end of an invocation, at most once in ten seconds, and wait for a moment at most."""
        now_us = self._clock.monotonic_us()
        if self._last_us and now_us - self._last_us < INVOCATION_EVERY_US:
            return
        self._last_us = now_us
        if not self._written.acquire(blocking=False):
            return  # the one before is still on its way
        self.start()
        self._wanted.set()
        if self._written.acquire(timeout=INVOCATION_WAIT_SECONDS):
            self._written.release()

    def close(self) -> None:
        """Write for the last time, and end the thread; a ledger that is slow is not waited for."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._ending.set()
            self._wanted.set()
            self._ended.wait(END_SECONDS)
            self._begin()

    def _run(self, ending: Stop, ended: Stop, wanted: Stop, written: threading.Lock, looked: Stop) -> None:
        self._look(looked)
        is_last = False
        if not self._by_invocation:
            self._write(is_last=False)  # pages know of this worker, and of its handlers, from its beginning
        while not is_last:
            wanted.wait(None if self._by_invocation else EVERY_SECONDS)
            wanted.clear()
            is_last = ending.is_set()
            if self._looks_only and not is_last:
                self._looks_only = False
            else:
                self._write(is_last=is_last)
                if written.locked():
                    written.release()
            if not is_last:
                self._look(looked)
        ended.set()

    def _look(self, looked: Stop) -> None:
        """Look for what others have written; if that fails, what was known before holds."""
        self._looked_at_us = self._clock.now_us()
        notes = None
        with suppress(Exception):  # the next write warns of it
            try:
                notes = self._notes = self._notes or self._open_notes()
                self.then(notes)
                self._unread = None
            except LedgerRefused as error:
                self._unread = error
                raise
        looked.set()
        if notes is not None:
            with suppress(Exception):
                self.at_last(notes)

    def _write(self, *, is_last: bool) -> None:
        """Write everything once; what cannot be written is dropped."""
        taken = self.tally.take()
        try:
            notes = self._notes = self._notes or self._open_notes()
            now_us = self._clock.now_us()
            if taken.counts:
                notes.add_counts({minute_page(now_us): taken.counts}, keep_us=MINUTES_KEPT_US)
                notes.add_counts({hour_page(now_us): taken.counts}, keep_us=self._keep_us)
            seen = msgspec.structs.replace(self._describe(), seen_ms=now_us // 1000, ended=is_last)
            if taken.latest:
                named = self._named(taken.latest, seen.name)
                notes.write_notes(DELIVERIES, named, keep_us=DELIVERIES_KEPT_US, newest=DELIVERIES_KEPT)
            notes.write_notes(WORKERS, {seen.name: _encode(seen)}, keep_us=WORKER_KEPT_US)
            if is_last:
                self._notes = None
                self._close_notes()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the journal's trouble alone
            if not self._has_warned:
                self._has_warned = True
                why = error if isinstance(error, OncebridgeError) else type(error).__name__
                self._warn(f"the journal is not written, and pages lack this worker; events are not affected: {why}")
        else:
            self._has_warned = False
            if self._unread is not None and not self._has_said_unread:
                self._has_said_unread = True
                self._warn(f"pauses are not heeded, since this worker may not read them: {self._unread}")

    def _named(self, latest: list[SeenDelivery], worker: str) -> dict[str, bytes]:
        """Name deliveries by their time, so that the newest come first."""
        named = {}
        for one in latest:
            self._numbered += 1
            name = f"{one.at_ms:014d}-{worker}-{self._numbered:06d}"
            named[name] = _encode(msgspec.structs.replace(one, worker=worker))
        return named
