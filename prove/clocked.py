"""A worker whose wall clock is moved: `python -m prove.clocked`, a program of its own, as its clock comes with it."""

from __future__ import annotations

import json
import os
import random
import socket
import sys
import time
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from prove import moved_clock
from prove.faults import Fault, Where
from prove.grants import GrantNotes, note_grants
from prove.worker import Conditions, Notes, Strikes, live

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncebridge import Bridge

#: How long an effect takes at most, in leases: some outlast theirs unless it is extended.
EFFECT_LEASES: Final = 1.2
SLOW_SHARE: Final = 0.3
GRANTS: Final = ".grants"


def start(conditions: Conditions, fault: Fault | None, parent: socket.socket, clock: Path) -> NoReturn:
    """Become such a worker, by the clock that a file moves. Runs in a forked process."""
    parent.set_inheritable(True)
    given = {
        "conditions": asdict(replace(conditions, spoil=None)) | {"notes": str(conditions.notes)},
        "fault": fault and asdict(fault),
    }
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))} | moved_clock.by_file(clock)
    command = [sys.executable, "-m", "prove.clocked", str(parent.fileno()), json.dumps(given)]
    os.execve(sys.executable, command, variables)  # noqa: S606 - the process takes its place, with its socket


class Dawdling(Strikes):
    """Some effects take long, so that claims are wanted by others while they run."""

    def __init__(self, fault: Fault | None, notes: Notes, lease_seconds: float) -> None:
        """Take what befalls this life, and how long claims run."""
        super().__init__(fault, notes)
        self._lease_seconds, self._dice = lease_seconds, random.Random(os.getpid())

    def at(self, where: Where) -> None:
        """Wait, if this is the place; then strike, if it is."""
        if where == "before effect" and self._dice.random() < SLOW_SHARE:
            time.sleep(self._dice.uniform(0, EFFECT_LEASES * self._lease_seconds))
        super().at(where)


def noted(notes: Path) -> Callable[[Bridge], None]:
    """Return what lets a bridge's grants be written down beside its effects."""
    grants = GrantNotes(Notes(notes.with_suffix(GRANTS)))
    return lambda bridge: note_grants(bridge.ledger, grants)


def main() -> None:
    """Live."""
    parent, known = socket.socket(fileno=int(sys.argv[1])), json.loads(sys.argv[2])
    told: dict[str, Any] = known["conditions"] | {"notes": Path(known["conditions"]["notes"])}
    conditions = replace(Conditions(**told), spoil=noted(told["notes"]))
    fault = Fault(**known["fault"]) if known["fault"] else None
    live(conditions, fault, parent, partial(Dawdling, lease_seconds=conditions.lease_seconds))


if __name__ == "__main__":
    main()
