"""The newest results, kept in the repository: one for each part and ledger, with what is needed to repeat it."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
RESULTS: Final = ROOT / "prove" / "results.json"
#: Where they are shown.
PAGE: Final = ROOT / "docs" / "evidence.html"
NOT_ATTACKED: Final = tuple(f":!{path.relative_to(ROOT)}" for path in (RESULTS, PAGE))


def saved() -> list[dict[str, Any]]:
    """Return what is kept."""
    found: list[dict[str, Any]] = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    return found


def save(row: dict[str, Any]) -> None:
    """Keep a result in the place of the one before it, unless that one tried more and both held.

    A failure always takes the place: nobody may hide one behind an earlier success. Parts that run beside each other
    may save at the same time.
    """
    named = {**row, **circumstances()}
    with _alone():
        rows = {(one["part"], one["ledger"]): one for one in saved()}
        place = row["part"], row["ledger"]
        before = rows.get(place)
        if before is None or not row["held"] or not before["held"] or row["tried"] >= before["tried"]:
            rows[place] = named
        _replace(json.dumps([rows[place] for place in sorted(rows)], indent=1, sort_keys=True) + "\n")


@contextmanager
def _alone() -> Iterator[None]:
    """Wait until nobody else saves; the lock ends with its process."""
    with RESULTS.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _replace(text: str) -> None:
    """Write the file as a whole, or not at all."""
    whole = RESULTS.with_suffix(".new")
    whole.write_text(text, encoding="utf-8")
    whole.replace(RESULTS)


def circumstances() -> dict[str, str]:
    """Say what ran, where and when."""
    system = f"{platform.system()} on {platform.machine()}, {os.cpu_count()} cores"
    return {
        "commit": _commit(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": f"{system}, Python {platform.python_version()}",
    }


def _commit() -> str:
    """Name the commit that was attacked, and say if it was changed; what the harness itself writes is no change."""
    try:
        commit = _git("rev-parse", "--short", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", *NOT_ATTACKED)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{commit}-dirty" if changed else commit


def _git(*words: str) -> str:
    command = ["git", "-C", str(ROOT), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
