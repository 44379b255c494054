"""Finds how a wrong rule or ledger breaks a promise, with as few faults and steps as possible."""

from __future__ import annotations

from typing import Final

import pytest
from msgspec.structs import replace

from exploration.explorer import explore
from exploration.judge import Violation
from exploration.scenarios import BY_NAME
from exploration.world import MakeLedger
from oncebridge.ledgers.memory import MemoryLedger

FAULTS_MAX: Final = 2


def violation_of(name: str, make_ledger: MakeLedger = MemoryLedger) -> Violation:
    """Explore with ever more faults until a promise is broken."""
    for faults in range(FAULTS_MAX + 1):
        try:
            explore(replace(BY_NAME[name], faults=faults), make_ledger)
        except Violation as violation:
            return violation
    return pytest.fail("nobody noticed")
