"""Works off requests for dead letters, in a thread of its own, one letter at a time."""

from __future__ import annotations

import heapq
import threading
from datetime import timedelta
from itertools import chain
from typing import TYPE_CHECKING, Final

from oncebridge import forks, threads
from oncebridge.claim import Outcome, Status, Verdict
from oncebridge.clock import Stop
from oncebridge.engine.paused import Paused
from oncebridge.engine.waiting import PATIENCE_US, made_attempt
from oncebridge.errors import BatchOfParent, ConfigurationError, NothingFound, OncebridgeError
from oncebridge.journal.actions import ActionLog
from oncebridge.journal.requests import DISCARD, KEPT_US, Progress, Request, RequestItem, Requests, group_name
from oncebridge.letter_filter import EPOCH, Filters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from datetime import datetime

    from oncebridge.clock import Clock
    from oncebridge.deadletters import DeadLetter, DeadLetters
    from oncebridge.engine.result import Result
    from oncebridge.ledgers.notes import Notes

#: Letters that are read at a time, about a kilobyte each: Redis and DynamoDB look through all of them for each page.
PAGE: Final = 20_000
#: Letters that wait for their next try.
WAITING_MAX: Final = 500
#: Letters that failed again and are not tried twice: a ledger's clock may differ from that of the request.
REMEMBERED_MAX: Final = 100_000
WRITE_EVERY_US: Final = 1_000_000
#: A stop is noticed within this time, while nothing is to do.
LOOK_US: Final = 200_000
BUSY_AGAIN_US: Final = 200_000


class RequestRunner:
    """Looks for requests, and works off one at a time."""

    def __init__(
        self,
        dead_letters: DeadLetters,
        *,
        handlers: Callable[[], Iterable[str]],
        worker: Callable[[], str],
        clock: Clock,
        is_stopping: Callable[[], bool] = lambda: False,
        paused: Paused | None = None,
        warn: Callable[[str], None] = lambda _: None,
        keep_us: int = KEPT_US,
        end_seconds: float = 60.0,
    ) -> None:
        """Take the letters, and what this worker can do; nothing is started before there is a request.

        Args:
            dead_letters: Those of the worker's bridge.

            handlers: Returns the names of its handlers; without any, it takes requests to discard alone.

            worker: Returns the worker's name.

            clock: The bridge's clock.

            is_stopping: Whether the worker stops: nothing more begins then.

            paused: Handlers that are not called for now.

            warn: Says that a request could not be worked off.

            keep_us: How long requests and actions are kept.

            end_seconds: How long `close` waits for the letter at hand.

        """
        self._letters = dead_letters
        self._handlers, self._worker = handlers, worker
        self._clock = clock
        self._is_stopping = is_stopping
        self._paused = paused or Paused()
        self.warn = warn
        self._keep_us = keep_us
        self._end_seconds = end_seconds
        self._said: set[str] = set()
        self._begin()
        forks.register(self)

    def _begin(self) -> None:
        self._at_hand: _RunningRequest | None = None
        self._is_closed = False

    def before_fork(self) -> None:
        """Do nothing: the request at hand stays the parent's."""

    def after_fork(self, *, in_child: bool) -> None:
        """Start over in the child, which has no thread."""
        if in_child:
            self._begin()

    def look(self, notes: Notes) -> None:
        """Hold on to the request at hand, or look for one and begin; call this every few seconds."""
        running = self._at_hand
        if running is not None and not running.ended.is_set():
            running.write()
            return
        if self._is_closed or self._is_stopping():
            return
        requests = Requests(notes, self._clock, keep_us=self._keep_us)
        names, worker = frozenset(self._handlers()), self._worker()
        free = names - self._paused.reasons.keys()
        for request in requests.takeable(free, discards=True):
            taken = requests.take(request.id, worker, free, discards=True)
            if taken is not None:
                actions = ActionLog(notes, self._clock, keep_us=self._keep_us)
                running = _RunningRequest(self, taken, worker, handlers=names, requests=requests, actions=actions)
                self._begin_with(running)
                return

    def _begin_with(self, running: _RunningRequest) -> None:
        """Begin to work a request off, unless another thread has closed this meanwhile."""
        self._at_hand = running  # before the look below: either this thread sees the other's change, or that one this
        if self._is_closed:
            running.never_began()
        else:
            threads.start([threads.background(running.run, name="oncebridge-requests")])

    def open(self) -> None:
        """Take requests again after a close."""
        self._is_closed = False

    def close(self) -> None:
        """Stop after the letter at hand, give the request back, and take no more."""
        self._is_closed = True
        running, self._at_hand = self._at_hand, None
        if running is not None:
            running.stop.set()
            if running.thread != threading.get_ident():  # a handler may close its bridge
                running.ended.wait(self._end_seconds)

    # --- for the request at hand -----------------------------------------------------------------------

    def is_new(self, words: str) -> bool:
        """Return whether this was not said before."""
        is_new = words not in self._said
        self._said.add(words)
        return is_new

    @property
    def clock(self) -> Clock:
        """The bridge's clock."""
        return self._clock

    @property
    def letters(self) -> DeadLetters:
        """The letters."""
        return self._letters

    @property
    def is_stopping(self) -> bool:
        """Whether the worker stops."""
        return self._is_stopping()

    def is_paused(self, handler: str) -> bool:
        """Return whether a handler is paused."""
        return handler in self._paused.reasons


class _RunningRequest:
    """One request, being worked off."""

    def __init__(
        self,
        runner: RequestRunner,
        request: Request,
        worker: str,
        *,
        handlers: frozenset[str],
        requests: Requests,
        actions: ActionLog,
    ) -> None:
        self._runner, self._clock = runner, runner.clock
        self._request, self._worker, self._handlers = request, worker, handlers
        self._requests, self._actions = requests, actions
        self._progress = Progress(request)
        self._writing = threading.Lock()
        self._written_us = self._clock.monotonic_us()
        self._tried_us = self._written_us
        #: Letters that wait for their next try: when, the order of arrival, and the letter.
        self._waiting: list[tuple[int, int, DeadLetter]] = []
        self._number = 0
        self._tried: set[int] = set()
        #: Handlers of letters that this worker does not have.
        self._others: set[str] = set()
        #: Set by whoever wants it to end, and whether that is because it is no longer this worker's.
        self.stop = Stop()
        self._is_lost = False
        self.ended = Stop()
        self.thread: int | None = None

    def run(self) -> None:
        """Work it off; whatever happens, it ends, or is given back, or its lease runs out."""
        generation = forks.generation()
        self.thread = threading.get_ident()
        try:
            self._run(generation)
        except Exception as error:  # noqa: BLE001 - a thread of its own: nobody else could say it
            if forks.generation() == generation:
                why = error if isinstance(error, OncebridgeError) else type(error).__name__
                words = f"a request to {self._request.what} dead letters waits for another try: {why}"
                if self._runner.is_new(words):
                    self._runner.warn(words)
        finally:
            if forks.generation() == generation:
                self.ended.set()

    def _run(self, generation: int) -> None:
        try:
            is_over = self._work(generation)
        except OncebridgeError:
            if forks.generation() == generation:
                self._give_back()
            raise
        if self._is_lost:
            return
        if not is_over:
            self._give_back()
        elif self._others:
            self._requests.give_back(self._request.id, self._worker, self._progress, sorted(self._others))
        else:
            ended = self._requests.finish(self._request.id, self._worker, self._progress)
            if ended is not None:
                said = f"{ended.said}; by {self._worker}"
                self._actions.write(who=ended.who, via=ended.via, what=ended.what, about=ended.about, said=said)

    def never_began(self) -> None:
        """Give it back at once."""
        try:
            self._give_back()
        finally:
            self.ended.set()

    def _give_back(self) -> None:
        self._requests.give_back(self._request.id, self._worker, self._progress)

    def write(self) -> None:
        """Write how far it is, which holds it for longer; learn whether it is still to go on."""
        with self._writing:
            self._written_us = self._clock.monotonic_us()
            if self._requests.progress(self._request.id, self._worker, self._progress) is None:
                self._is_lost = True
                self.stop.set()

    # --- letters ---------------------------------------------------------------------------------------

    @property
    def _must_stop(self) -> bool:
        return self.stop.is_set() or self._runner.is_stopping

    def _work(self, generation: int) -> bool:
        """Try each letter; False if there are more, but it has to stop."""
        coming = self._chosen()
        while not self._must_stop:
            letter = self._due() or next(coming, None)
            if letter is not None:
                if self._request.handler is not None and self._runner.is_paused(letter.handler):
                    return False  # paused meanwhile: taken again once it is resumed
                self._try(letter)
                if forks.generation() != generation:
                    raise BatchOfParent  # a child that a handler has forked: the request is its parent's
            elif not self._waiting:
                return True
            else:
                left_us = self._waiting[0][0] - self._clock.monotonic_us()
                self._clock.wait(self.stop, max(0, min(left_us, LOOK_US)) / 1_000_000)
            if self._clock.monotonic_us() - self._written_us >= WRITE_EVERY_US:
                self.write()
        return False

    def _due(self) -> DeadLetter | None:
        if self._waiting and self._waiting[0][0] <= self._clock.monotonic_us():
            return heapq.heappop(self._waiting)[2]
        return None

    def _try(self, letter: DeadLetter) -> None:
        request = self._request
        if request.what == DISCARD:
            self._add(letter, self._runner.letters.discard(letter))
            return
        if letter.handler and letter.handler not in self._handlers:
            self._others.add(letter.handler)
            return
        if self._runner.is_paused(letter.handler):
            self._progress.add(RequestItem(letter.key, letter.handler, "", "", "its handler is paused"), "paused")
            return
        result = self._runner.letters.redrive(letter, force=request.force)
        now_us = self._clock.monotonic_us()
        if made_attempt(result):
            self._tried_us = now_us
        if result.verdict is Verdict.UNHANDLED and letter.handler not in self._handlers:
            self._others.add(letter.handler)
        elif result.acknowledged or not self._waits(letter, result, now_us):
            self._add(letter, result)

    def _waits(self, letter: DeadLetter, result: Result, now_us: int) -> bool:
        """Have a letter wait for its next try, if that is soon: nobody else redelivers it."""
        due_us = now_us + (result.retry_in_us if result.outcome is not None else BUSY_AGAIN_US)
        if len(self._waiting) >= WAITING_MAX or due_us > self._tried_us + PATIENCE_US:
            return False
        self._number += 1
        heapq.heappush(self._waiting, (due_us, self._number, letter))
        return True

    def _add(self, letter: DeadLetter, result: Result) -> None:
        counted_as = _counted_as(result)
        item = RequestItem(letter.key, letter.handler, result.verdict.value, result.outcome or "", result.reason)
        self._progress.add(item, counted_as)
        if counted_as not in ("processed", "discarded", "gone") and len(self._tried) < REMEMBERED_MAX:
            self._tried.add(hash((letter.key, letter.handler)))

    def _chosen(self) -> Iterator[DeadLetter]:
        """Return the letters that the request chooses, the oldest first; never many at a time."""
        handler = self._request.handler
        for letter in self._by_key() if self._request.keys else chain(self._by_filter(), self._under_way()):
            if handler is None or letter.handler == handler:
                yield letter

    def _by_key(self) -> Iterator[DeadLetter]:
        filters = self._filters()
        for key in self._request.keys:
            filters["keys"] = [key]
            try:
                yield from self._runner.letters.list(**filters)
            except NothingFound as error:
                self._progress.add(RequestItem(key, "", "", "", str(error)), "gone")
            except ConfigurationError as error:
                self._progress.add(RequestItem(key, "", "", "", str(error)), "unreadable")

    def _under_way(self) -> Iterator[DeadLetter]:
        """Return letters that workers before this one were redriving, and did not bring to an end."""
        request = self._request
        if request.takes > 1:
            filters: Filters = {"topic": self._topic, "since": _time(request.at_ms), "limit": PAGE}
            for letter in self._runner.letters.list(**filters):
                # Its reason may be another one by now.
                is_of_group = request.group is None or letter.topic == (request.topic or "")
                is_new = hash((letter.key, letter.handler)) not in self._tried
                if letter.status is not Status.DEAD and is_of_group and is_new:
                    yield letter

    @property
    def _topic(self) -> str | None:
        """The pattern that topics have to match; that of a group is an event's, and no pattern."""
        return None if self._request.group else self._request.topic

    def _is_chosen(self, letter: DeadLetter) -> bool:
        group = self._request.group
        return group is None or group_name(letter.handler, letter.reason, letter.topic) == group

    def _by_filter(self) -> Iterator[DeadLetter]:
        """Read page by page: letters that fail again become newer than the request, and are behind its end."""
        filters = self._filters()
        until_ms = self._request.at_ms + 1
        until_ms = until_ms if self._request.until_ms is None else min(until_ms, self._request.until_ms)
        filters["until"] = _time(until_ms)
        from_ms, seen = -1, frozenset[tuple[str, str]]()
        while True:
            number = PAGE + len(seen)
            filters["limit"] = number
            page = [*self._runner.letters.list(**filters)]
            for letter in page:
                name = letter.key, letter.handler
                if name not in seen and hash(name) not in self._tried and self._is_chosen(letter):
                    yield letter
            if len(page) < number:
                return
            last_ms = page[-1].changed_ms
            there = frozenset((one.key, one.handler) for one in page if one.changed_ms == last_ms)
            from_ms, seen = last_ms, there | seen if last_ms == from_ms else there
            filters["since"] = _time(last_ms)

    def _filters(self) -> Filters:
        request = self._request
        filters: Filters = {"topic": self._topic, "reason": request.reason}
        if request.since_ms is not None:
            filters["since"] = _time(request.since_ms)
        if request.until_ms is not None:
            filters["until"] = _time(request.until_ms)
        return filters


def _time(at_ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=at_ms)


def _counted_as(result: Result) -> str:
    """Return the word that a letter is counted under."""
    if result.outcome is Outcome.DISCARD:
        return "discarded"
    if result.verdict in (Verdict.REDELIVERY, Verdict.REPUBLISH):
        return "gone"
    if result.verdict is Verdict.BUSY:
        return "busy"
    return result.column
