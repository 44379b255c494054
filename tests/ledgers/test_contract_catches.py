"""The ledger contract can fail: a ledger with one rule taken out is caught, and every rule catches something."""

import functools
import importlib.util
import itertools
import sqlite3
import threading
from contextlib import closing, nullcontext

import pytest

from ledgers import mistakes
from ledgers.mistakes_in_order import MISTAKES_IN_ORDER
from ledgers.random_moves import SideBySide
from ledgers.wrong_ledgers import TRANSACTION_MISTAKES, VERB_MISTAKES, Transactional
from oncebridge import claim
from oncebridge.ledgers import grants, memory
from oncebridge.ledgers.memory import MemoryLedger
from oncebridge.ledgers.memory_notes import MemoryNotes
from oncebridge.ledgers.sqlite.ledger import SQLiteLedger
from oncebridge.testing.clock import SkewedClock
from oncebridge.testing.faults import faulty
from oncebridge.testing.ledger_contract import LedgerContract, stage
from oncebridge.testing.ledger_contract.races import RaceRules, SkewRules
from oncebridge.testing.ledger_contract.transactions import TransactionRules


def rules_of(contract):
    """Return the names of a class's rules."""
    return {name for name in dir(contract) if name.startswith("test_")}


MISTAKES = mistakes.MISTAKES + MISTAKES_IN_ORDER
RACES = rules_of(RaceRules)
TRANSACTIONS = rules_of(TransactionRules)
THE_REST = rules_of(LedgerContract) - RACES - TRANSACTIONS - rules_of(SkewRules)


class Contract(LedgerContract):
    """The contract, run by hand on a ledger for each rule."""

    contended = 200
    patience_s = 0.2

    def stored_bytes(self):
        """Read the files of a ledger that has some."""
        path = getattr(self.unopened(), "path", None)
        return path and b"".join(file.read_bytes() for file in path.parent.iterdir())

    def write_effect(self, transaction, effect):
        """Insert a row."""
        transaction.execute("INSERT INTO effect VALUES (?)", (effect,))

    def effects(self):
        """Read the rows through another connection."""
        with closing(sqlite3.connect(self.ledger.path)) as db:
            return [name for (name,) in db.execute("SELECT name FROM effect ORDER BY rowid")]

    def ways_to_end(self, transaction):
        """Return the plainest."""
        return [transaction.commit, transaction.rollback]


def is_broken(rule, new_ledger):
    """Run one rule; return whether it was broken."""
    contract = Contract()
    contract.set_up(new_ledger)
    try:
        getattr(contract, rule)()
    except pytest.skip.Exception:
        return False
    except (Exception, pytest.fail.Exception):  # noqa: BLE001 - whatever a rule raises, it is broken
        return True
    finally:
        contract.tear_down()
    return False


def done_wrong(wrong, right):
    """Make a method of a wrong function, which is given the right one first."""
    return lambda self, *args, **kwargs: wrong(right, self, *args, **kwargs)


def broken(rules, make):
    """Run rules, each with one ledger in memory that all its workers share; return those that were broken."""
    return {rule for rule in rules if is_broken(rule, functools.cache(make))}


@functools.cache
def broken_by_nothing():
    """Return the rules that the ledger breaks as it is."""
    return broken(THE_REST, MemoryLedger)


# --- mistakes in what ledgers and workers decide with -----------------------------------------------------------------


@functools.cache
def broken_by(number):
    """Run the contract with one mistake made, and return the rules that were broken."""
    _, name, wrong, _ = MISTAKES[number]
    before = broken_by_nothing()
    with pytest.MonkeyPatch.context() as patch:
        right = getattr(claim, name, None) or getattr(grants, name)
        for module in (claim, grants, memory, stage):
            if getattr(module, name, None) is right:
                patch.setattr(module, name, functools.partial(wrong, right))
        return broken(THE_REST, MemoryLedger) - before


@pytest.mark.parametrize("number", range(len(MISTAKES)), ids=[f"{name}: {what}" for what, name, *_ in MISTAKES])
def test_a_mistake_is_caught(number):
    """Each mistake breaks the rules that speak of it."""
    *_, noticed = MISTAKES[number]
    for words in noticed.split():
        assert [rule for rule in broken_by(number) if words in rule], f"no rule about {words} was broken"


#: Random histories compare neither tokens nor times, have no data as long as that, and repeat no call so often.
UNSEEN = {
    "tokens by the clock",
    "counted tokens",
    "clock tokens",
    "another time",
    "advice from before",
    "data cut short",
    "some of its own stay",
}


@pytest.mark.parametrize(
    "mistake", [one for one in mistakes.MISTAKES if one[0] not in UNSEEN], ids=lambda mistake: mistake[0]
)
def test_random_histories_notice_a_mistake(mistake):
    """A ledger that grants, extends or settles wrongly differs from the right one within a few random histories."""
    _, name, wrong, _ = mistake
    mistaken, ledgers = copy_of(grants), copy_of(memory)
    setattr(mistaken, name, functools.partial(wrong, getattr(mistaken, name)))
    for verb in ("claim_fact", "claim_chain", "extend_claim", "settle_claim"):
        setattr(ledgers, verb, getattr(mistaken, verb))
    assert any(differs(ledgers.MemoryLedger(), seed) for seed in range(20))


def copy_of(module):
    """Load a module once more, so that a mistake in it is nobody else's."""
    spec = importlib.util.spec_from_file_location(module.__name__, module.__file__)
    copy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    return copy


def differs(ledger, seed):
    """Tell whether a random history shows a difference from the memory ledger as it is."""
    ledger.open(None)
    try:
        SideBySide(ledger, seed).run(300)
    except AssertionError:
        return True
    return False


# --- mistakes in what a ledger does itself --------------------------------------------------------------------------


@functools.cache
def broken_by_verb(number):
    """Run the contract on a ledger that does one verb wrong."""
    _, verb, wrong, _ = VERB_MISTAKES[number]
    owner = MemoryLedger if hasattr(MemoryLedger, verb) else MemoryNotes
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, verb, done_wrong(wrong, getattr(owner, verb)))
        return broken(THE_REST, MemoryLedger)


@pytest.mark.parametrize(
    "number", range(len(VERB_MISTAKES)), ids=[f"{verb}: {what}" for what, verb, *_ in VERB_MISTAKES]
)
def test_a_verb_done_wrong_is_caught(number):
    """A verb that a ledger does wrong by itself breaks the rules that speak of it."""
    *_, noticed = VERB_MISTAKES[number]
    for words in noticed.split():
        assert [rule for rule in broken_by_verb(number) if words in rule], f"no rule about {words} was broken"


def test_every_rule_catches_something():
    """No rule is there for show: each is broken by some mistake."""
    caught = set().union(*map(broken_by, range(len(MISTAKES))), *map(broken_by_verb, range(len(VERB_MISTAKES))))
    assert THE_REST - caught - broken_by_nothing() == {"test_a_given_secret_is_not_written_down"}  # seen to below


def test_a_wrapper_without_faults_is_as_good():
    """The ledger that fails on cue keeps every rule as long as nothing is on cue."""
    assert broken(THE_REST, lambda clock: faulty(MemoryLedger(clock))) == broken_by_nothing()


# --- mistakes that take several workers to notice -------------------------------------------------------------------


@pytest.mark.parametrize("rule", sorted(RACES))
def test_a_race_is_caught(rule, monkeypatch):
    """A ledger that reads first and writes later, with nothing to keep others out, breaks every rule on races."""

    def slowly(decide):
        def decide_slowly(*args):
            made = decide(*args)
            threading.Event().wait(0.0001)
            return made

        return decide_slowly

    class Unlocked(MemoryLedger):
        def __init__(self, clock):
            super().__init__(clock)
            self._lock = nullcontext()

    for name in ("claim_fact", "claim_chain", "settle_claim"):
        monkeypatch.setattr(memory, name, slowly(getattr(grants, name)))
    # Chance has a part in a race: a ledger that is wrong may be lucky once, but not twenty times.
    assert any(is_broken(rule, functools.cache(Unlocked)) for _ in range(20))


@pytest.fixture
def file(tmp_path):
    """Return a file for a ledger, with a table for effects."""
    path = tmp_path / "once.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE effect (name TEXT)")
    return path


@pytest.mark.parametrize("rule", sorted(rules_of(SkewRules)))
def test_a_ledger_that_goes_by_its_workers_clocks_is_caught(rule, file):
    """A ledger whose handles do not agree on the time breaks every rule on wrong clocks."""
    offsets = itertools.cycle((0, 700, -700))
    assert is_broken(rule, lambda clock: SQLiteLedger(file, SkewedClock(clock, next(offsets))))


# --- mistakes in transactions, and in what is written down ----------------------------------------------------------


@pytest.mark.parametrize(
    "mistake", TRANSACTION_MISTAKES, ids=[f"{part}: {what}" for what, part, *_ in TRANSACTION_MISTAKES]
)
def test_a_wrong_transaction_is_caught(mistake, file, monkeypatch):
    """A transaction that tears effect and settle apart breaks the rules that speak of it."""
    _, part, wrong, noticed = mistake
    monkeypatch.setattr(Transactional, part, done_wrong(wrong, getattr(Transactional, part)))
    for words in noticed.split():
        (rule,) = [rule for rule in TRANSACTIONS if words in rule]
        assert is_broken(rule, functools.partial(Transactional, file)), f"{rule} was not broken"


@pytest.mark.parametrize("rule", sorted(TRANSACTIONS))
def test_a_right_transaction_is_not_accused(rule, file):
    """The transaction that the wrong ones are made from keeps every rule."""
    assert not is_broken(rule, functools.partial(Transactional, file))


def test_every_rule_on_transactions_catches_something():
    """No rule on transactions is there for show."""
    noticed = [words for *_, noticed in TRANSACTION_MISTAKES for words in noticed.split()]
    assert {rule for rule in TRANSACTIONS for words in noticed if words in rule} == TRANSACTIONS


def test_a_secret_written_down_is_caught(file, monkeypatch):
    """A ledger that keeps the secret it was given is noticed."""
    rule = "test_a_given_secret_is_not_written_down"
    assert not is_broken(rule, functools.partial(SQLiteLedger, file))
    monkeypatch.setattr(SQLiteLedger, "open", done_wrong(write_down, SQLiteLedger.open))
    assert is_broken(rule, functools.partial(SQLiteLedger, file))


def write_down(right, self, secret):
    """Keep the secret."""
    opened = right(self, secret)
    self._db.execute("INSERT INTO meta VALUES ('given', ?)", (secret,))
    return opened
