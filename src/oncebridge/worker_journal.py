"""Everything that one worker does with the notes of its ledger: its journal, the pauses, and requests."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from oncebridge.journal.pauses import Pauses
from oncebridge.journal.silence import SilenceWatch
from oncebridge.journal.tally import Tally
from oncebridge.journal.worker import Worker
from oncebridge.journal.writer import JournalWriter
from oncebridge.ledgers import DAY_US
from oncebridge.ledgers.notes import KeepsNotes
from oncebridge.request_runner import RequestRunner
from oncebridge.telemetry.counting import Topics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from oncebridge.clock import Clock
    from oncebridge.deadletters import DeadLetters
    from oncebridge.engine.paused import Paused
    from oncebridge.engine.result import Result
    from oncebridge.handlers import Handlers
    from oncebridge.ledgers.notes import Notes
    from oncebridge.ledgers.protocol import Ledger
    from oncebridge.settings import Settings

#: Where its deliveries come from, by invocation.
LAMBDA = "lambda"


class WorkerJournal:
    """Writes what a worker does, reads what it should know, and takes requests."""

    def __init__(
        self,
        way_in: str,
        holds: str,
        *,
        ledger: Ledger,
        is_apart: bool,
        settings: Settings,
        handlers: Callable[[], Handlers],
        topics: Iterable[str],
        gauges: Callable[[], dict[str, int]],
        clock: Clock,
        warn: Callable[[str], None],
        paused: Paused,
        dead_letters: DeadLetters,
        is_stopping: Callable[[], bool],
    ) -> None:
        """Take the parts of the bridge, and a handle onto its ledger: one that nothing else waits for, if `is_apart`.

        A function has no time for requests, and a shadow must not redrive.
        """
        takes = way_in != LAMBDA and not settings.shadow
        keep_us = int(settings.retention_days * DAY_US)
        self._clock, self._paused = clock, paused
        self.tally = Tally(Topics(topics), clock)
        #: A function, which runs when something comes, notices that one topic does not while others do.
        self._silence = SilenceWatch(clock, warn)
        worker = Worker(
            way_in,
            holds,
            handlers=handlers,
            gauges=gauges,
            clock=clock,
            paused=paused,
            silent=lambda: self._silence.silent,
            takes_requests=takes,
        )
        self._runner = RequestRunner(
            dead_letters,
            handlers=lambda: [handler.name for handler in handlers()],
            worker=lambda: worker.name,
            clock=clock,
            is_stopping=is_stopping,
            paused=paused,
            warn=warn,
            keep_us=keep_us,
            end_seconds=settings.handler_timeout_seconds,
        )
        self._takes_requests = takes
        self._writer = JournalWriter(
            self.tally,
            open_notes=partial(_opened_notes, ledger, settings.secret),
            close_notes=ledger.close if is_apart else lambda: None,
            describe=partial(worker.seen, self.tally),
            clock=clock,
            warn=warn,
            keep_us=keep_us,
            by_invocation=way_in == LAMBDA,
        )
        self._writer.then = self._look
        self._writer.at_last = self._silence.look

    @property
    def silent_topics(self) -> frozenset[str]:
        """The topics that are silent, and usually come at this hour."""
        return self._silence.silent

    def look_first(self) -> None:
        """Begin, and know the pauses before the first event; a ledger that is slow is not waited for."""
        self._runner.open()
        self._writer.look_first()

    def delivered(self, results: Sequence[Result]) -> None:
        """Add the results of a batch."""
        self.tally.delivered(results)
        self._writer.start()

    def begin_invocation(self) -> None:
        """Look for pauses, if the last invocation was a while ago."""
        self._writer.begin_invocation()

    def end_invocation(self) -> None:
        """Write, if the last time was a while ago."""
        self._writer.end_invocation()

    def stop_requests(self) -> None:
        """Give back the request at hand, before the bridge closes."""
        self._runner.close()

    def close(self) -> None:
        """Write for the last time."""
        self._writer.close()

    def _look(self, notes: Notes) -> None:
        self._paused.reasons = Pauses(notes, self._clock).reasons()
        if self._takes_requests:
            self._runner.look(notes)


def _opened_notes(ledger: Ledger, secret: bytes | None) -> Notes:
    ledger.open(secret)
    assert isinstance(ledger, KeepsNotes)
    return ledger.notes
