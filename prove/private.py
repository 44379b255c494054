"""The program that canaries are given to: its handlers fail with what they were given in their words, or die with it.

Commands run it by `--handler prove.private:bridge`; a variable says how it ends.
"""

from __future__ import annotations

import os
import signal
from typing import Any, Final

from oncebridge import Bridge, Event

VARIABLE: Final = "PROOF_OF_CANARIES"


class Lost(Exception):
    """A failure that quotes what it was given."""


def _quoting(event: Event) -> None:
    try:
        {}[f"{event.body}"]
    except KeyError as error:
        raise Lost(f"cannot take {event.raw!r}: {event.envelope}") from error


def _dying(event: Event) -> None:
    last_words = f"last words: {event.raw!r}"
    ends = {
        "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "stop": lambda: os.kill(os.getpid(), signal.SIGTERM),
        "abort": os.abort,
    }
    ends.get(os.environ.get(VARIABLE, ""), lambda: len(last_words))()


def _make() -> Bridge:
    bridge = Bridge.from_settings()
    takes: dict[str, Any] = {"v2.detail.events.*": _quoting, "*": _dying}
    for number, (topic, takes_it) in enumerate(takes.items()):
        bridge.register(topic, takes_it, name=f"handler-{number}")
    return bridge


if VARIABLE in os.environ:
    bridge = _make()
