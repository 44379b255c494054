"""One record per move, for logs and counters: the only place that logs or counts.

Records hold keys, topics and verdicts, never payload content: contact-centre events are full of phone numbers, names
and transcripts.
"""

from __future__ import annotations

import logging
import threading
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from oncebridge import forks
from oncebridge.interrupts import was_raised_by_signal
from oncebridge.threads import run_apart
from oncebridge.visible import visible, visible_json, visible_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

logger = logging.getLogger("oncebridge")
logger.addHandler(logging.NullHandler())

#: The columns of the books; `received` is always their sum.
COLUMNS: Final = (
    "processed", "redelivery", "republish", "echo", "stale", "conflict", "dead", "unhandled", "retrying",
)  # fmt: skip


def debug(message: str, **fields: object) -> None:
    """Log how something was set up, for a person who looks for the reason of a surprise."""
    if logger.isEnabledFor(logging.DEBUG):
        logger.debug(message, extra={"oncebridge": fields})


class Books:
    """Counts the deliveries of one run, each in exactly one column."""

    def __init__(self) -> None:
        """Start at zero."""
        self.received = 0
        self._columns = dict.fromkeys(COLUMNS, 0)
        self._lock = threading.Lock()
        forks.register(self)

    def before_fork(self) -> None:
        """Do nothing: the books stay the parent's."""

    def after_fork(self, *, in_child: bool) -> None:
        """Start at zero in the child: their scope is one process."""
        if in_child:
            self.received = 0
            self._columns = dict.fromkeys(COLUMNS, 0)
            self._lock = threading.Lock()

    def __repr__(self) -> str:
        """Show the books so far."""
        filled = ", ".join(f"{name} {number}" for name, number in self._columns.items() if number)
        return f"<Books received {self.received}: {filled or 'nothing settled'}>"

    def receive(self, number: int = 1) -> None:
        """Note deliveries as they arrive, before anything else is known of them."""
        with self._lock:
            self.received += number

    def enter(self, *columns: str) -> None:
        """Note the columns that deliveries ended in."""
        with self._lock:
            for column in columns:
                self._columns[column] += 1

    def as_dict(self) -> dict[str, int | bool]:
        """Return the books; a delivery without a column is still retrying."""
        with self._lock:
            columns = dict(self._columns)
            columns["retrying"] += self.received - sum(columns.values())
            return {"received": self.received, **columns, "balanced": columns["retrying"] >= 0}


class Move(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One move of one event: a verdict given, a claim settled; or deliveries brought to their results."""

    move: str  # claimed, settled, lost; failed, which is only logged; delivered and handed_back, only counted
    key: str
    topic: str
    handler: str = ""
    verdict: str | None = None
    outcome: str | None = None
    attempt: int = 1
    reason: str = ""
    envelope_id: str | None = None
    duration_ms: float | None = None
    #: How old the event was when it was claimed, by its own time and this machine's clock; for a hand-back, how long
    #: the oldest delivery in it has waited.
    age_ms: int | None = None
    #: For deliveries: their column of the books, and how many of them are alike.
    column: str = ""
    number: int = 1


class Telemetry:
    """Writes moves to the log, and hands them to observers."""

    def __init__(self, observers: tuple[Callable[[Move], None], ...] = ()) -> None:
        """Take observers, which are called with every move."""
        self._observers = observers
        #: Whether a dead letter is worth a warning; False where none is kept.
        self.warns_of_letters = True

    def add(self, observer: Callable[[Move], None]) -> None:
        """Add an observer, which is called with every move from now on."""
        self._observers = (*self._observers, observer)

    def has(self, kind: type) -> bool:
        """Return whether there is an observer of this kind."""
        return any(isinstance(observer, kind) for observer in self._observers)

    @property
    def observed(self) -> bool:
        """Whether there are observers that count."""
        return bool(self._observers)

    @property
    def listening(self) -> bool:
        """Whether anyone listens to moves: making them costs time."""
        return bool(self._observers) or logger.isEnabledFor(logging.INFO)

    def record(self, move: Move) -> None:
        """Hand one move to every observer, and write it to the log."""
        self.observe(move)
        if logger.isEnabledFor(logging.INFO):
            logger.info(move.move, extra={"oncebridge": _fields(move)})

    def observe(self, move: Move) -> None:
        """Hand one move to the observers that count."""
        for observer in self._observers:
            try:
                observer(move)
            except Exception as error:
                if was_raised_by_signal(error):
                    raise  # concerns more than the observer that it struck
                logger.exception("an observer failed; the event is not affected")

    def warn(self, message: str, **fields: object) -> None:
        """Log a warning that is not about a move."""
        logger.warning(visible(message), extra={"oncebridge": fields})

    def warn_of(self, move: Move, message: str, *, place: str = "", error: str = "") -> None:
        """Log a warning about a move: in words for any format, with its fields for ours, and with the error if given.

        The error is a text, which any format shows below the message, as that of an exception.
        """
        fields = {name: value for name, value in {**_fields(move), "place": place, "error": error}.items() if value}
        record = logger.makeRecord(
            logger.name, logging.WARNING, __file__, 0, visible(message), (), None, extra={"oncebridge": fields}
        )
        record.exc_text = f"  {visible_lines(error.rstrip())}" if error else None
        run_apart(partial(_log, record))  # in the middle of a batch, which an interrupt may strike


def _log(record: logging.LogRecord) -> None:
    if logger.isEnabledFor(record.levelno):
        logger.handle(record)


def _fields(move: Move) -> dict[str, Any]:
    return {name: value for name, value in msgspec.structs.asdict(move).items() if value not in (None, "")}


class JSONFormatter(logging.Formatter):
    """Writes each log record as one JSON object a line; control characters cannot forge a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Join the message and the fields."""
        line = {
            "time": _iso_time(record.created),
            "level": record.levelname,
            "message": storable(record.getMessage()),
            **getattr(record, "oncebridge", {}),
        }
        error = _error_of(self, record)
        return visible_json({**line, "error": storable(error)} if error and "error" not in line else line)


class TextFormatter(logging.Formatter):
    """Writes each log record as a line for people, in words first; an error follows, each of its lines indented."""

    def format(self, record: logging.LogRecord) -> str:
        """Join the level, the message, and the fields that it does not mention."""
        message = record.getMessage()
        fields: Mapping[str, Any] = getattr(record, "oncebridge", {})
        rest = [f"{name}={value}" for name, value in fields.items() if name != "error" and str(value) not in message]
        line = visible(" ".join([f"{record.levelname.lower()}: {message}", *rest]))
        error = _error_of(self, record)
        return f"{line}\n  {visible_lines(error)}" if error else line


def _iso_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _error_of(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    """Return the exception of a record in words, whichever logger it comes from."""
    own: str = getattr(record, "oncebridge", {}).get("error", "")
    return (own or (formatter.formatException(record.exc_info) if record.exc_info else "")).rstrip()


def storable(text: str) -> str:
    """Write surrogate halves as escapes: JSON has none."""
    return text.encode(errors="backslashreplace").decode()
