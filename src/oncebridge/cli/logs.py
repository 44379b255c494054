"""Where log lines and warnings of a command go: to standard error, all in one format."""

from __future__ import annotations

import logging
import sys
import threading
import warnings
from typing import TYPE_CHECKING, Final

from rich.markup import escape

from oncebridge.cli.output import narration, narrator, say_warning
from oncebridge.errors import ConfigurationError, LedgerWarning
from oncebridge.telemetry import JSONFormatter, TextFormatter, logger

if TYPE_CHECKING:
    from types import TracebackType

LEVELS: Final = ("debug", "info", "warning", "error")
FORMATS: Final = ("auto", "text", "json")
#: Libraries that log requests, with all that is in them, below the level of warnings.
TALKATIVE: Final = ("boto3", "botocore", "s3transfer", "urllib3", "asyncio")


class _Format:
    """The format that was chosen for this process, and the handler that writes it."""

    name = FORMATS[0]
    handler: logging.Handler | None = None


class _InWords(logging.Handler):
    """Writes records in words, above a progress bar if there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one."""
        try:
            narrator.print(escape(self.format(record)), soft_wrap=True)
        except Exception:  # noqa: BLE001 - as every handler of the library does: logging never breaks the program
            self.handleError(record)


def log_to_standard_error(name: str) -> None:
    """Write the records of all loggers, and warnings, in one format; it may be chosen again."""
    if name not in FORMATS:
        raise ConfigurationError(f"--log-format: expected {', '.join(FORMATS[:-1])} or {FORMATS[-1]}, got {name!r}")
    _Format.name = name
    narration.json = name == "json"
    chosen = formatter(name)
    handler = _InWords() if isinstance(chosen, TextFormatter) else logging.StreamHandler(sys.stderr)
    handler.setFormatter(chosen)
    if _Format.handler is not None:
        logging.getLogger().removeHandler(_Format.handler)
    logging.getLogger().addHandler(handler)
    _Format.handler = handler
    for library in TALKATIVE:
        logging.getLogger(library).setLevel(logging.WARNING)
    warnings.showwarning = _show_warning  # type: ignore[assignment]
    sys.excepthook = _log_crash if narration.json else sys.__excepthook__
    threading.excepthook = _log_crash_of_thread if narration.json else threading.__excepthook__


def chosen_format() -> str:
    """Return the format that was chosen."""
    return _Format.name


def formatter(name: str) -> logging.Formatter:
    """Return the formatter of log records in a format."""
    in_words = name == "text" or (name == "auto" and narrator.is_terminal)
    return TextFormatter() if in_words else JSONFormatter()


def set_level(name: str) -> None:
    """Write log records of this level and above."""
    if name.lower() not in LEVELS:
        raise ConfigurationError(f"--log-level: expected {', '.join(LEVELS[:-1])} or {LEVELS[-1]}, got {name!r}")
    level = logging.getLevelNamesMapping()[name.upper()]
    logger.setLevel(level)
    logging.getLogger().setLevel(level)  # a handler's own log lines, too


def _show_warning(message: Warning | str, category: type[Warning], filename: str, line: int, *_: object) -> None:
    """Show a ledger's warnings to the person, and one for programmers with its place."""
    if issubclass(category, LedgerWarning):
        say_warning(str(message))
    else:
        say_warning(f"{filename}:{line}: {category.__name__}: {message}")


def _log_crash(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    logging.getLogger().critical("the command ended unexpectedly", exc_info=(kind, error, trace))


def _log_crash_of_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None:
        logging.getLogger().critical(
            "a thread ended unexpectedly", exc_info=(args.exc_type, args.exc_value, args.exc_traceback)
        )
