"""A handler's exception in words: its traceback, its place in the user's code, and the reason that the user gave."""

from __future__ import annotations

import traceback
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from oncebridge.errors import PermanentError, RetryLater, SaysWhy
from oncebridge.settings.secrets import secrets_of
from oncebridge.telemetry import storable
from oncebridge.visible import visible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType, FrameType

    from oncebridge.settings import Settings

DETAIL_MAX: Final = 16_000
REASON_MAX: Final = 300
HIDDEN: Final = "[secret]"
_OURS: Final = __name__.partition(".")[0]
#: The words of these without a text of their own.
_WITHOUT_TEXT: Final = frozenset({str(PermanentError()), str(RetryLater(after_seconds=0))})


class ErrorText:
    """Describes exceptions of handlers, without the secrets of the settings."""

    def __init__(self, settings: Settings) -> None:
        """Take the settings whose secrets are left out."""
        self._settings = settings

    @cached_property
    def _secrets(self) -> tuple[str, ...]:
        return secrets_of(self._settings)

    def traceback(self, error: BaseException) -> str:
        """Return type, message and traceback of an exception and of its causes: bounded, and fit for databases."""
        try:
            text = "".join(traceback.format_exception(error))
        except Exception:  # noqa: BLE001 - a class may override anything, and the event has to end all the same
            text = f"{type(error).__name__}, which cannot be described"
        return self.of_client(text)

    def of_client(self, text: str) -> str:
        """Return an error in the words of a handler elsewhere: bounded, and fit for databases."""
        return _shortened(_storable(self.without_secrets(text)))

    def why(self, error: BaseException) -> tuple[str, bool]:
        """Return the reason for a failure, and whether the handler has given it in its own words.

        Those of `PermanentError` and `RetryLater` are for people. Any other error's may quote the payload, so only its
        class is named.
        """
        if isinstance(error, SaysWhy):
            return str(error), False
        text = self._given_text(error)
        return text or f"handler raised {type(error).__name__}", bool(text)

    def _given_text(self, error: BaseException) -> str:
        if not isinstance(error, (PermanentError, RetryLater)):
            return ""
        try:
            text = str(error)
        except Exception:  # noqa: BLE001 - a subclass may override it
            return ""
        if text in _WITHOUT_TEXT:
            return ""
        line = visible(" ".join(self.without_secrets(text).split()))
        return line if len(line) <= REASON_MAX else f"{line[: REASON_MAX - 3]}..."

    def without_secrets(self, text: str) -> str:
        """Return a text without the secrets of the settings."""
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        return text


def place_of(error: BaseException, function: Callable[..., Any]) -> str:
    """Return file and line of the innermost place in the handler's own package; empty for errors of sinks.

    Sources of errors deep inside of libraries are in the traceback; this is the line that the user can change.
    """
    if isinstance(error, SaysWhy):
        return ""
    package = _package(getattr(function, "__module__", None))
    steps = [(frame, line) for frame, line in _steps(error) if _package(_module(frame)) not in (_OURS, "asyncio")]
    own = [step for step in steps if _package(_module(step[0])) == package]
    if own or steps:
        frame, line = own[-1] if own else steps[0]
        return _place(frame.f_code, line)
    code = getattr(function, "__code__", None)  # it failed as it was called
    return f"{package}.{type(function).__name__}" if code is None else _place(code, code.co_firstlineno)


def _steps(error: BaseException) -> Iterator[tuple[FrameType, int]]:
    """Yield the frames of a traceback with their lines, the outermost first."""
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame, trace.tb_lineno
        trace = trace.tb_next


def _module(frame: FrameType) -> str | None:
    name = frame.f_globals.get("__name__")
    return name if isinstance(name, str) else None


def _package(module: object) -> str:
    return module.partition(".")[0] if isinstance(module, str) else ""


def _place(code: CodeType, line: int) -> str:
    path = Path(code.co_filename)
    try:
        here = Path.cwd()
    except OSError:  # it was deleted
        here = path
    return visible(f"{path.relative_to(here) if here in path.parents else path}:{line}")


def _storable(text: str) -> str:
    """Write surrogate halves and U+0000 as escapes: databases reject them, and an error may quote anything."""
    return storable(text).replace("\x00", "\\x00")


def _shortened(text: str) -> str:
    """Leave out the middle of a long text: the first cause is at its beginning, the error itself at its end."""
    if len(text) <= DETAIL_MAX:
        return text
    head, tail = DETAIL_MAX // 3, DETAIL_MAX * 2 // 3
    return f"{text[:head]}\n[{len(text) - head - tail:,} characters left out]\n{text[-tail:]}"
