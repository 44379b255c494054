"""The rules that every ledger keeps, as tests: subclass `LedgerContract` and say how to reach the ledger.

    class TestMyLedger(LedgerContract):
        @pytest.fixture
        def new_ledger(self, tmp_path):
            return lambda clock: MyLedger(tmp_path / "ledger", clock)

Memory, SQLite and every other ledger pass the same tests, so the one that others are tried out with cannot
drift from those that are relied upon. Each test's docstring is the rule that it holds the ledger to.

What may differ between ledgers is in the hooks of `LedgerStage`: an engine that asks its own clock sets
`real_time` and a short `brief_us`; one that settles in transactions fills in those of `TransactionRules`.
"""

from __future__ import annotations

import sys

import pytest

_PARTS = [
    f"{__name__}.{part}"
    for part in (
        "stage",
        "verdicts",
        "states",
        "claims",
        "chains",
        "takeovers",
        "letters",
        "notes",
        "pages",
        "attendance",
        "transactions",
        "races",
    )
]
pytest.register_assert_rewrite(*(part for part in _PARTS if part not in sys.modules))

from oncebridge.testing.ledger_contract.attendance import AttendanceRules  # noqa: E402
from oncebridge.testing.ledger_contract.chains import ChainRules, HoldRules  # noqa: E402
from oncebridge.testing.ledger_contract.claims import AttemptRules, LateRules, RepeatRules, TokenRules  # noqa: E402
from oncebridge.testing.ledger_contract.letters import (  # noqa: E402
    LetterRules,
    LookupRules,
    PurgeRules,
    SecretRules,
)
from oncebridge.testing.ledger_contract.notes import NoteRules  # noqa: E402
from oncebridge.testing.ledger_contract.pages import PageRules  # noqa: E402
from oncebridge.testing.ledger_contract.races import RaceRules, SkewRules  # noqa: E402
from oncebridge.testing.ledger_contract.stage import NewLedger  # noqa: E402
from oncebridge.testing.ledger_contract.states import EchoRules, EntityRules, StaleRules  # noqa: E402
from oncebridge.testing.ledger_contract.takeovers import LateChainRules, RepeatedChainRules, RunOutRules  # noqa: E402
from oncebridge.testing.ledger_contract.transactions import TransactionRules  # noqa: E402
from oncebridge.testing.ledger_contract.verdicts import LookRules, VerdictRules  # noqa: E402

__all__ = ["LedgerContract", "NewLedger"]


class LedgerContract(
    VerdictRules,
    LookRules,
    EntityRules,
    EchoRules,
    StaleRules,
    TokenRules,
    RepeatRules,
    LateRules,
    AttemptRules,
    ChainRules,
    HoldRules,
    LateChainRules,
    RunOutRules,
    RepeatedChainRules,
    LetterRules,
    LookupRules,
    PurgeRules,
    SecretRules,
    NoteRules,
    PageRules,
    AttendanceRules,
    TransactionRules,
    RaceRules,
    SkewRules,
):
    """Every rule: a class that passes them all is a ledger."""
