"""The program that commands and functions run in a proof: `--handler prove.handled:bridge`.

What befalls a process is handed out when it first asks its ledger: a command may have processes that never do.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from prove.faults import Fault, Where
from prove.worker import Conditions, Notes, Strikes, make_bridge

VARIABLE: Final = "PROOF_OF_ONCEBRIDGE"


def environment_for(conditions: Conditions, faults: Sequence[Fault], folder: Path) -> dict[str, str]:
    """Write down what a program needs to know, and return the variables by which it finds it."""
    folder.mkdir()
    for number, fault in enumerate(faults):
        (folder / f"{number:04}").write_text(json.dumps(asdict(fault)))
    spoil = conditions.spoil
    known = {
        **asdict(replace(conditions, spoil=None, secret=None)),
        "notes": str(conditions.notes),
        "spoil": f"{spoil.__module__}:{spoil.__qualname__}" if spoil else "",
        "faults": str(folder),
    }
    return {VARIABLE: json.dumps(known), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


class HandedOut(Strikes):
    """Strikes with the next fault that no other process has taken, from the first call of the ledger on."""

    def __init__(self, folder: Path, notes: Notes) -> None:
        """Wait for that."""
        super().__init__(None, notes)
        self._folder, self._writes, self._is_waiting = folder, notes, True

    def at(self, where: Where) -> None:
        """Strike, if this is the place."""
        if self._is_waiting:
            self._is_waiting = False
            super().__init__(take_fault(self._folder), self._writes)
        if self._fault is not None and self._fault.where == "point" and sys.getprofile() is None:
            sys.setprofile(self._count)
        super().at(where)


def take_fault(folder: Path) -> Fault | None:
    """Take the next fault, which nobody gets again; None if there are no more."""
    for path in sorted(folder.glob("[0-9]*")):
        mine = folder / f"taken-{path.name}"
        try:
            path.rename(mine)
        except FileNotFoundError:
            continue  # another process was faster
        return Fault(**json.loads(mine.read_text()))
    return None


def _program(known: dict[str, Any]) -> Any:
    module, _, name = known["spoil"].partition(":")
    given = {field: known[field] for field in ("url", "name", "lease_seconds", "exact", "way_in", "fails")}
    conditions = Conditions(
        **given, notes=Path(known["notes"]), spoil=getattr(import_module(module), name) if module else None
    )
    notes = Notes(conditions.notes)
    return make_bridge(conditions, HandedOut(Path(known["faults"]), notes), notes)


if VARIABLE in os.environ:
    bridge = _program(json.loads(os.environ[VARIABLE]))
    lambda_handler = bridge.lambda_handler
