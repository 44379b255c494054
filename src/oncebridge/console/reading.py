"""What the pages show, read from the ledger and from its journal: every read is bounded."""

from __future__ import annotations

import os
import re
import threading
from typing import TYPE_CHECKING, Final

from oncebridge import threads
from oncebridge.clock import Stop, SystemClock
from oncebridge.console.access import EndedSessions
from oncebridge.console.pages.deliveries import SHOWN as DELIVERIES_SHOWN
from oncebridge.console.pages.known import Known
from oncebridge.console.pages.letters import SHOWN as LETTERS_SHOWN
from oncebridge.console.pages.letters import LettersChosen, Plan
from oncebridge.diagnosis.examination import Examined, examine
from oncebridge.errors import ConfigurationError, OncebridgeError
from oncebridge.identity import key_bytes, key_text, subject_digest
from oncebridge.journal.actions import CONSOLE, ActionLog
from oncebridge.journal.overview import overview
from oncebridge.journal.pauses import Pauses
from oncebridge.journal.reader import JournalReader
from oncebridge.journal.requests import Requests, group_name
from oncebridge.known_keys import keys_of
from oncebridge.ledgers import DAY_US, kind_of
from oncebridge.ledgers.notes import KeepsNotes
from oncebridge.ledgers.protocol import ReadsInPages
from oncebridge.letter_filter import read_filters
from oncebridge.reconciling.runs import Runs
from oncebridge.request_runner import RequestRunner
from oncebridge.sources.unwrap import unwrap
from oncebridge.topics import topic_pattern

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from oncebridge.bridge import Bridge
    from oncebridge.deadletters import DeadLetter
    from oncebridge.journal.overview import Overview
    from oncebridge.journal.records import SeenDelivery, WorkerSeen
    from oncebridge.journal.requests import Request
    from oncebridge.journal.wanted import DeliveryFilter
    from oncebridge.ledgers.protocol import LetterGroup, LetterGroups, LetterPage, Query

#: A page that takes longer is no use to somebody on call.
LOOK_SECONDS: Final = 0.7
#: Letters that are counted one by one for a question, where groups do not tell.
COUNTED_MAX: Final = 1000
KEYS_MAX: Final = 20
#: How long an examination is shown before the next look examines again.
EXAMINED_US: Final = 20_000_000
_SAMPLE: Final = 200
_DIGEST: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)
END_SECONDS: Final = 10.0
_LACKS: Final = (
    "Redis keeps no ids of events that were done at once: those are found by their key, or by a pasted event."
)
#: How often the console looks for discards to work off: no worker may be running.
REQUESTS_SECONDS: Final = 2.0


class Console:
    """Reads for the pages, and writes what people decide."""

    def __init__(self, bridge: Bridge, *, examined_bridge: Callable[[], Bridge]) -> None:
        """Take a bridge without handlers, whose ledger nothing else uses, and what makes the one to examine."""
        flow = bridge.open()
        if not isinstance(bridge.ledger, KeepsNotes):
            kind = type(bridge.ledger).__name__
            raise ConfigurationError(f"ledger: {kind} keeps no notes, so there is no journal to show")
        self._bridge = bridge
        self._examined_bridge = examined_bridge
        self._examined: tuple[int, Examined] | None = None
        self._examining = threading.Lock()
        keep_us = int(bridge.settings.retention_days * DAY_US)
        notes = self._notes = bridge.ledger.notes
        self.clock = bridge.clock
        self.secret = flow.secret
        self.settings = bridge.settings
        self.ledger_kind = kind_of(bridge.ledger, bridge.settings.ledger)
        self.journal = JournalReader(notes, bridge.clock)
        self.actions = ActionLog(notes, bridge.clock, keep_us=keep_us)
        self.pauses = Pauses(notes, bridge.clock)
        self.ended_sessions = EndedSessions(notes, bridge.clock)
        self.requests = Requests(notes, bridge.clock, keep_us=keep_us)
        self.runs = Runs(notes, bridge.clock, keep_us)
        self._closing = Stop()
        self._runner = RequestRunner(
            bridge.dead_letters,
            handlers=tuple,
            worker=lambda: f"console-{os.getpid()}",
            clock=bridge.clock,
            is_stopping=self._closing.is_set,
            warn=bridge.telemetry.warn,
            keep_us=keep_us,
            end_seconds=END_SECONDS,
        )

    def start(self) -> None:
        """Begin to work off requests that need no handler."""
        threads.start([threads.background(self._look_for_requests, name="oncebridge-console")])

    def close(self) -> None:
        """End what runs, and close the ledger."""
        self._closing.set()
        self._runner.close()
        self._bridge.close()

    def _look_for_requests(self) -> None:
        while not self._closing.wait(REQUESTS_SECONDS):
            try:
                self._runner.look(self._notes)
            except OncebridgeError:  # pages say that the ledger is out of reach
                continue

    @property
    def now_ms(self) -> int:
        """The time, in milliseconds."""
        return self.clock.now_us() // 1000

    def log(self, who: str, what: str, about: str, said: str) -> None:
        """Write an action into the log."""
        self.actions.write(who=who, via=CONSOLE, what=what, about=about, said=said)

    # --- now and deliveries ------------------------------------------------------------------------------

    def overview(self) -> Overview:
        """Read what all workers are doing."""
        return overview(self.journal, self.now_ms)

    def latest(self) -> list[SeenDelivery]:
        """Return the latest deliveries."""
        return self.journal.deliveries(limit=_SAMPLE)[0]

    def deliveries(self, chosen: DeliveryFilter, below: str | None) -> tuple[list[SeenDelivery], str | None]:
        """Return the latest deliveries that are wanted, and where the next page begins."""
        wanted = chosen.wanted(self.clock.now_us())
        return self.journal.deliveries(below=below, limit=DELIVERIES_SHOWN, wanted=wanted)

    # --- one conversation, user or event -----------------------------------------------------------------

    def place_of(self, what: str) -> str:
        """Return the place of what a person is looking for: keys, or the digest of an id. No id is in an address."""
        what = what.strip()
        if key_bytes(what) is not None:
            return f"event/{what}"
        if what.startswith(("{", "[")):
            keys = [key for raw in unwrap(what.encode()) for key in keys_of(self._bridge, raw)]
            return f"event/{','.join(dict.fromkeys(map(key_text, keys[:KEYS_MAX])))}"
        subject = subject_digest(self.secret, what)
        if subject is None:
            raise ConfigurationError("name a conversation, a user, a key, or paste an event")
        return f"about/{subject.hex()}"

    def about_subject(self, digest: str) -> Known:
        """Return what is known of a conversation or a user."""
        subject = _digest(digest)
        found = self._pages.about(subject, seconds=LOOK_SECONDS)
        return Known(
            at=digest,
            is_subject=True,
            entries=found.entries,
            newest=found.newest,
            seen=self._seen(lambda one: subject in (one.conversation, one.user)),
            complete=found.complete,
            lacks=_LACKS if "redis" in self.ledger_kind else "",
        )

    def about_keys(self, at: str) -> Known:
        """Return what is known of events, by their keys."""
        texts = at.split(",")[:KEYS_MAX]
        keys = [key_bytes(text) for text in texts]
        if None in keys:
            raise ConfigurationError("this is no key")
        entries = [entry for key in keys if key is not None for entry in self._bridge.ledger.get(key)]
        seen = self._seen(lambda one: one.key in texts)
        return Known(at=at, is_subject=False, entries=entries, newest=(), seen=seen, complete=True)

    def _seen(self, wanted: Callable[[SeenDelivery], bool]) -> list[SeenDelivery]:
        return self.journal.deliveries(limit=_SAMPLE, wanted=wanted)[0]

    @property
    def _pages(self) -> ReadsInPages:
        ledger = self._bridge.ledger
        if not isinstance(ledger, ReadsInPages):
            raise ConfigurationError(f"ledger: {type(ledger).__name__} cannot be read page by page")
        return ledger

    # --- dead letters --------------------------------------------------------------------------------------

    def letter_groups(self) -> LetterGroups:
        """Count the letters by handler, reason and topic."""
        return self._pages.letter_groups()

    def letter_page(self, chosen: LettersChosen, after: str | None, limit: int = LETTERS_SHOWN) -> LetterPage:
        """Return letters that match, the newest first."""
        return self._pages.letter_page(self._query(chosen), after=after, limit=limit)

    def _query(self, chosen: LettersChosen) -> Query:
        return read_filters(
            self.clock.now_us(),
            topic=chosen.topic or None,
            reason=chosen.reason or None,
            since=chosen.since or None,
            until=chosen.until or None,
            handler=chosen.handler_name,
        ).query

    def letter(self, key: str) -> tuple[DeadLetter, ...]:
        """Return the letters of one event, with their content."""
        return self._bridge.dead_letters.show(key)

    def plan(self, what: str, chosen: LettersChosen) -> Plan:
        """Work out what a redrive or discard would be about, and who would do it."""
        number, is_exact, handlers = self._counted(chosen)
        running = self.running_workers()
        workers = {name: sum(takes(worker, name) for worker in running) for name in sorted(handlers)}
        request_id = self.requests.new_id()
        return Plan(what=what, chosen=chosen, number=number, is_exact=is_exact, workers=workers, request_id=request_id)

    def _counted(self, chosen: LettersChosen) -> tuple[int, bool, set[str]]:
        if chosen.keys:
            letters = [entry for key in chosen.keys for entry in self._letters_of(key)]
            return len(letters), True, {entry.handler for entry in letters}
        groups = self.letter_groups()
        if chosen.group or (groups.complete and not (chosen.since or chosen.until)):
            matching = [group for group in groups.groups if self._is_chosen(chosen, group)]
            number, handlers = sum(group.number for group in matching), {group.handler for group in matching}
            # Groups that are too small to be listed may match too.
            others = 0 if chosen.group else groups.total - sum(group.number for group in groups.groups)
            if not chosen.fields:
                return number + others, groups.complete, handlers
            if number or not others:
                return number, groups.complete and not others, handlers
        found = self.letter_page(chosen, None, limit=COUNTED_MAX)
        return len(found.entries), found.next is None, {entry.handler for entry in found.entries}

    def _is_chosen(self, chosen: LettersChosen, group: LetterGroup) -> bool:
        if chosen.group:
            return group_name(group.handler, group.reason, group.topic) == chosen.group
        query = self._query(chosen)
        return query.handler in (None, group.handler) and _fits(query, group.topic, group.reason)

    def _letters_of(self, key: str) -> Iterable[DeadLetter]:
        return self._bridge.dead_letters.show(key)

    def running_workers(self) -> list[WorkerSeen]:
        """Return the workers that run."""
        return [worker for worker in self.journal.workers() if self.journal.runs(worker)]

    def takers(self, request: Request) -> int:
        """Return how many running workers would take a request; a discard is also taken by the console."""
        if request.what == "discard":
            return 1
        running = self.running_workers()
        if request.handler is not None:
            return sum(takes(worker, request.handler) for worker in running)
        return sum(worker.takes_requests and bool(worker.handlers) for worker in running)

    def ask(
        self, what: str, chosen: LettersChosen, who: str, *, id_: str, force: bool, expected: int | None
    ) -> Request:
        """Put a request into the ledger, for a worker to take."""
        query = self._query(chosen)
        request = self.requests.put(
            what,
            who,
            id=id_,
            handler=chosen.handler_name,
            keys=chosen.keys,
            topic=chosen.topic or None,
            reason=chosen.reason or None,
            since_ms=None if query.since_us is None else query.since_us // 1000,
            until_ms=None if query.until_us is None else query.until_us // 1000,
            group=chosen.group or None,
            all=not (chosen.keys or chosen.fields),
            force=force,
            expected=expected,
        )
        self.log(who, what, request.about, f"asked for, as request {request.id}")
        return request

    # --- the installation ------------------------------------------------------------------------------------

    def examined(self) -> Examined:
        """Examine the installation, unless that was done a moment ago."""
        clock = SystemClock()
        with self._examining:
            now_us = clock.monotonic_us()
            if self._examined is None or now_us - self._examined[0] > EXAMINED_US:
                self._examined = now_us, examine(self._examined_bridge(), clock)
            return self._examined[1]


def takes(worker: WorkerSeen, handler: str) -> bool:
    """Return whether a worker takes requests for the letters of a handler."""
    return worker.takes_requests and any(one.name == handler for one in worker.handlers)


def _fits(query: Query, topic: str, reason: str) -> bool:
    return (query.topic is None or topic_pattern(query.topic).fullmatch(topic) is not None) and (
        query.reason is None or query.reason in reason
    )


def _digest(text: str) -> bytes:
    if not _DIGEST.fullmatch(text):
        raise ConfigurationError("this is no digest of an id")
    return bytes.fromhex(text)
