"""Moves the wall clock of processes from outside, by a library that is loaded before theirs; monotonic clocks stay."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Final

LIBRARY: Final = "vendor/libfaketime/src/libfaketime.so.1"
#: A process asks for the time, and must find itself as far ahead as it was put.
AHEAD_SECONDS: Final = 86_400


@cache
def library() -> Path | None:
    """Return the library that moves clocks; None where there is none that works."""
    spec = importlib.util.find_spec("libfaketime")
    path = Path(spec.origin).parent / LIBRARY if spec and spec.origin else None
    return path if path and path.exists() and _works(path) else None


def faster(times: float) -> dict[str, str]:
    """Return variables by which a program's clock runs so many times as fast."""
    return _loading() | {"FAKETIME": f"+0 x{times:g}"}


def by_file(path: Path) -> dict[str, str]:
    """Return variables by which a program's clock is off by as many seconds as this file says at the moment."""
    return _loading() | {"FAKETIME_TIMESTAMP_FILE": str(path), "FAKETIME_NO_CACHE": "1"}


def put(path: Path, seconds: float) -> None:
    """Put the clocks that go by this file ahead by so many seconds, or back; no reader finds the file half written."""
    new = path.with_suffix(".new")
    new.write_text(f"{seconds:+.3f}\n")
    new.replace(path)


def _loading(path: Path | None = None) -> dict[str, str]:
    return {"LD_PRELOAD": str(path or library()), "DONT_FAKE_MONOTONIC": "1"}


def _works(path: Path) -> bool:
    asked = [sys.executable, "-ISc", "import time; print(time.time())"]
    moved = os.environ | _loading(path) | {"FAKETIME": f"+{AHEAD_SECONDS}"}
    times = [
        subprocess.run(asked, env=variables, capture_output=True, text=True, check=False).stdout
        for variables in (dict(os.environ), moved)
    ]
    try:
        return float(times[1]) - float(times[0]) > AHEAD_SECONDS / 2
    except ValueError:
        return False
