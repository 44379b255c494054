"""Where log lines and warnings of a command go: to standard error."""

from __future__ import annotations

import logging
import sys
import warnings
from typing import Final

from oncebridge.cli.output import say
from oncebridge.errors import ConfigurationError, LedgerWarning
from oncebridge.telemetry import JSONFormatter, logger

LEVELS: Final = ("debug", "info", "warning", "error")


def log_to_standard_error() -> None:
    """Write log records as JSON lines; say in words what a ledger warns of."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JSONFormatter())
    logger.addHandler(handler)
    warnings.showwarning = _show_warning  # type: ignore[assignment]


def set_level(name: str) -> None:
    """Write log records of this level and above."""
    if name.lower() not in LEVELS:
        raise ConfigurationError(f"--log-level: expected {', '.join(LEVELS[:-1])} or {LEVELS[-1]}, got {name!r}")
    logger.setLevel(logging.getLevelNamesMapping()[name.upper()])


def _show_warning(message: Warning | str, category: type[Warning], *where: object) -> None:
    """Show a ledger's warnings to the person; a warning for programmers goes the usual way."""
    if issubclass(category, LedgerWarning):
        say(f"warning: {message}")
    else:
        _usual_warning(message, category, *where)  # type: ignore[arg-type]


_usual_warning = warnings.showwarning
