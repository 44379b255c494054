"""The program that planted events are given to: it writes down the fingerprint of each event that takes effect.

Commands run it by `--handler prove.poisoned:bridge`; where the ledger and the notes are, a variable says.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

from oncebridge import Bridge, Event, Settings
from oncebridge.retry import RetryPolicy
from prove.poison import FAILS, fingerprint
from prove.worker import Notes

VARIABLE: Final = "PROOF_OF_POISON"


def make_poisoned(url: str, notes: Path) -> Bridge:
    """Make the program; what fails is a dead letter at once, so that each delivery has an end."""
    settings = Settings(retry=RetryPolicy(attempts=1), allow_requests_without_key=True, journal=False)
    bridge, effects = Bridge(url, settings=settings), Notes(notes)

    @bridge.on("*", name="poisoned")
    def take(event: Event) -> None:
        have_effect(effects, event.raw)

    return bridge


def have_effect(effects: Notes, raw: bytes) -> None:
    """Write down that an event takes effect, or fail if it is one that does."""
    if FAILS in raw:
        raise RuntimeError("fails on purpose")
    effects.write("effect", fingerprint(raw))


def environment_for(url: str, notes: Path) -> dict[str, str]:
    """Return the variable by which a command finds both."""
    return {VARIABLE: json.dumps({"url": url, "notes": str(notes)})}


def _given() -> Bridge:
    given: dict[str, Any] = json.loads(os.environ[VARIABLE])
    return make_poisoned(given["url"], Path(given["notes"]))


if VARIABLE in os.environ:
    bridge = _given()
