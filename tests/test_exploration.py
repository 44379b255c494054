"""Goal: the protocol loses nothing, lets nobody late change anything, and never stands still.

Method: every order of every step of two workers is tried on the real rules, with faults at each step, and judged
by a judge that does not know these rules. Then each rule is taken away in turn, and the judge must notice: a rule
that nobody misses is either not needed or not proven. Last come the ledgers that people write first.
"""

import re
from collections import deque

import pytest
from msgspec.structs import replace

from oncebridge import claim
from oncebridge.claim import Answer, Outcome, Record, Status, Verdict
from oncebridge.ledgers import memory
from oncebridge.ledgers.memory import MemoryLedger
from oncebridge.testing import exploration
from oncebridge.testing.exploration import explore, likeness, steps_to_end
from oncebridge.testing.judge import Broken, Violation
from oncebridge.testing.scenarios import SCENARIOS
from oncebridge.testing.world import LEASE_US, Model

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
FACT, LONELY, CONFLICT = "one fact in three deliveries", "one fact, one at a time", "two contents under one id"
OLDER, BACK, FAR = "an older state", "there and back", "a stamp from the far future"

# An exploration that ends early, or never gets where it should, must be noticed.
STATES_MIN = {OLDER: 50_000, BACK: 100_000, "a tie": 50_000, "an echo": 25_000}
VERDICTS = {
    FACT: {Verdict.REDELIVERY, Verdict.REPUBLISH, Verdict.BUSY},
    OLDER: {Verdict.STALE, Verdict.REPUBLISH, Verdict.BUSY},
    BACK: {Verdict.ECHO, Verdict.STALE},
    "an echo": {Verdict.ECHO, Verdict.REDELIVERY, Verdict.BUSY},
    CONFLICT: {Verdict.CONFLICT},
    "two states under one id": {Verdict.CONFLICT, Verdict.ECHO},
    "several times in one body": {Verdict.STALE},
}


EXPLORED = [
    pytest.param(scenario, id=scenario.name, marks=[pytest.mark.slow] if scenario.faults > 1 else [])
    for scenario in SCENARIOS
]


@pytest.mark.parametrize("scenario", EXPLORED)
def test_every_promise_is_kept_on_every_way(scenario):
    """Whatever two workers do and whichever faults hit them, nothing is lost, late, blocked or counted wrongly."""
    report = explore(scenario)
    assert report.states >= STATES_MIN.get(scenario.name, 5_000)
    assert set(report.verdicts) >= VERDICTS.get(scenario.name, {Verdict.FRESH})
    assert report.drain_steps <= 20


def violation_of(name, make_ledger=MemoryLedger):
    """Explore with ever more faults until a promise is broken, so that it takes as few as possible."""
    for faults in range(BY_NAME[name].faults + 1):
        try:
            explore(replace(BY_NAME[name], faults=faults), make_ledger)
        except Violation as violation:
            return violation
    return pytest.fail("nobody noticed")


# --- each rule is needed ------------------------------------------------------------------------------------

REAL = {name: getattr(claim, name) for name in dir(claim)}
NOT_DONE = (Outcome.RETRY, Outcome.RELEASE, Outcome.DEAD)


def claimed_is_settled(record):
    """Take an event that is only being worked on for settled."""
    return REAL["is_settled"](record) or record.status is Status.CLAIMED


def busy_fact_is_granted(ask, record, call):
    """Do not look at a fact's lease."""
    return REAL["_claim_fact"](ask, record and replace(record, lease_until_us=0), call)


def busy_entity_is_granted(ask, record, entity, call):
    """Do not look at an entity's lease."""
    until_us = min(entity.lease_until_us, call.now_us)
    return REAL["_claim_state"](ask, record, replace(entity, lease_until_us=until_us), call)


def lease_never_ends(ask, record, call):
    """Hold a fact until its worker comes back."""
    return REAL["_claim_fact"](ask, record and replace(record, lease_until_us=10**12), call)


def never_alone_enough(ask, record, call):
    """Ask for what ran out to be asked for alone, again and again."""
    return REAL["_claim_fact"](replace(ask, alone=False), record, call)


def echo_though_unsure(ask, entity):
    """Forget that a claim ended otherwise than done."""
    return REAL["is_echo"](ask, replace(entity, unsure=False))


def echo_though_run_out(ask, entity):
    """Forget that whoever held the entity last may still write."""
    return REAL["is_echo"](ask, replace(entity, lease_until_us=0))


def echo_of_another_state(ask, entity):
    """Look at the time alone."""
    return REAL["is_echo"](replace(ask, state=entity.state), entity)


def every_state_is_kept(ask, entity, now_us):
    """Remember all states that were ever done."""
    after = REAL["_after_done"](ask, entity, now_us)
    return replace(after, state=(entity.state or b"") + b"|" + ask.state)


def echo_of_any_earlier(ask, entity):
    """Compare with all states that were ever done."""
    known = ask.state in (entity.state or b"")
    return REAL["is_echo"](replace(ask, state=entity.state) if known else ask, entity)


def tie_is_older(one, other):
    """Compare times with <=."""
    return one == other or REAL["older"](one, other)


def tie_is_not_newest(ask, entity, now_us):
    """Keep the first of two states at the same time."""
    return replace(entity, unsure=False) if ask.moment == entity.line else REAL["_after_done"](ask, entity, now_us)


def stale_by_claimed(ask, record, entity, call):
    """Judge stale by what was only claimed."""
    answer, after, held = REAL["_claim_state"](ask, record, entity, call)
    return answer, after, replace(held, line=ask.moment) if answer.token else held


def unbelieved_leaves_no_doubt(ask, entity, now_us):
    """Believe that what is not the newest has not changed the sink."""
    return replace(REAL["_after_done"](ask, entity, now_us), unsure=False)


def failure_leaves_no_doubt(settlement, record, entity, now_us):
    """Believe that what failed has had no effect."""
    kept, after, freed = REAL["decide_settle"](settlement, record, entity, now_us)
    return kept, after, replace(freed, unsure=False) if freed and settlement.outcome in NOT_DONE else freed


def failure_keeps_the_entity(settlement, record, entity, now_us):
    """Leave the lease of what failed."""
    kept, after, freed = REAL["decide_settle"](settlement, record, entity, now_us)
    until_us = entity.lease_until_us if entity else 0
    return kept, after, replace(freed, lease_until_us=until_us) if freed and settlement.outcome in NOT_DONE else freed


def failure_is_not_counted(settlement, record, entity, now_us):
    """Try what fails for ever."""
    kept, after, freed = REAL["decide_settle"](settlement, record, entity, now_us)
    return kept, after and replace(after, attempts=record.attempts), freed


def release_is_counted(settlement, record, entity, now_us):
    """Count what was never tried."""
    kept, after, freed = REAL["decide_settle"](settlement, record, entity, now_us)
    spent = 1 if settlement.outcome is Outcome.RELEASE else 0
    return kept, after and replace(after, attempts=after.attempts + spent), freed


def repeated_settle_is_refused(settlement, record, entity, now_us):
    """Do not know one's own outcome."""
    if record.status is not Status.CLAIMED:
        return False, None, None
    return REAL["decide_settle"](settlement, record, entity, now_us)


def another_outcome_is_mine(settlement, record, entity, now_us):
    """Take somebody else's outcome for one's own."""
    if record.status.value == settlement.outcome.value:
        return True, None, None
    return REAL["decide_settle"](settlement, record, entity, now_us)


def settled_is_extended(claim_, record, entity, call):
    """Let a claim run on that was settled."""
    return REAL["decide_extend"](claim_, record and replace(record, status=Status.CLAIMED), entity, call)


def every_run_out_counts(ask, record, token, call):
    """Count a run-out among others as the event's own."""
    return REAL["_granted"](ask, record and replace(record, alone=True), token, call)


def no_run_out_counts(ask, record, token, call):
    """Count failures only."""
    return REAL["_granted"](ask, record and replace(record, alone=False), token, call)


def no_envelope_is_the_same(ask, record):
    """Take two deliveries without envelope id for one."""
    return Verdict.REDELIVERY if ask.envelope == record.envelope else Verdict.REPUBLISH


# What is taken away, by what it is replaced, the scenario that misses it, and how that shows.
MISSED = [
    ("a claim is in force by its token", {"holds": lambda *_: True}, OLDER, Broken.LATE),
    ("a fact is in force by its token", {"holds": lambda *_: True}, FACT, Broken.LATE),
    ("a settle is known by its token", {"decide_settle": another_outcome_is_mine}, FACT, Broken.LATE),
    ("only what is claimed is extended", {"decide_extend": settled_is_extended}, FACT, Broken.LATE),
    ("claimed is not settled", {"is_settled": claimed_is_settled}, FACT, Broken.ACKNOWLEDGED),
    ("a claimed state is not settled", {"is_settled": claimed_is_settled}, OLDER, Broken.ACKNOWLEDGED),
    ("settled is settled", {"is_settled": lambda _: False}, FACT, Broken.AGAIN),
    ("a claimed fact is busy", {"_claim_fact": busy_fact_is_granted}, FACT, Broken.HOLDERS),
    ("a claimed entity is busy", {"_claim_state": busy_entity_is_granted}, OLDER, Broken.HOLDERS),
    ("leases end", {"_claim_fact": lease_never_ends}, FACT, Broken.BLOCKED),
    ("a failure frees its entity", {"decide_settle": failure_keeps_the_entity}, OLDER, Broken.BLOCKED),
    ("alone is alone enough", {"_claim_fact": never_alone_enough}, FACT, Broken.BLOCKED),
    ("tokens rise", {"next_token": lambda *_: 7}, OLDER, Broken.TOKEN),
    ("tokens rise between two ticks", {"next_token": lambda _, now_us: now_us}, OLDER, Broken.TOKEN),
    ("a fact's tokens rise", {"next_token": lambda *_: 7}, FACT, Broken.TOKEN),
    ("a lost claim is answered again", {"_own_answer": lambda *_: None}, FACT, Broken.REPEAT),
    ("a lost echo is answered again", {"_own_answer": lambda *_: None}, "an echo", Broken.REPEAT),
    ("a lost settle is answered again", {"decide_settle": repeated_settle_is_refused}, FACT, Broken.REPEAT),
    ("no echo while unsure", {"is_echo": echo_though_unsure}, BACK, Broken.ECHO),
    ("no echo after a run-out", {"is_echo": echo_though_run_out}, BACK, Broken.ECHO),
    ("an echo is within the window", {"within_window": lambda *_: True}, "the same state much later", Broken.ECHO),
    ("an echo has the same state", {"is_echo": echo_of_another_state}, OLDER, Broken.ECHO),
    (
        "an echo is one of the newest",
        {"_after_done": every_state_is_kept, "is_echo": echo_of_any_earlier},
        BACK,
        Broken.ECHO,
    ),
    ("an echo moves the line", {"_after_echo": lambda _, entity, __: entity}, BACK, Broken.NEWEST),
    ("a failure leaves doubt", {"decide_settle": failure_leaves_no_doubt}, BACK, Broken.ECHO),
    ("an unbelieved stamp leaves doubt", {"_after_done": unbelieved_leaves_no_doubt}, FAR, Broken.ECHO),
    ("the far future is not believed", {"is_believable": lambda *_: True}, FAR, Broken.STALE),
    ("a tie is not older", {"older": tie_is_older}, "a tie", Broken.STALE),
    ("a tie becomes the newest", {"_after_done": tie_is_not_newest}, "a tie before an echo", Broken.ECHO),
    ("stale is judged by what is done", {"_claim_state": stale_by_claimed}, OLDER, Broken.STALE),
    ("older is stale", {"is_stale": lambda *_: False}, OLDER, Broken.NEWEST),
    ("done becomes the newest", {"_after_done": lambda _, entity, __: entity}, OLDER, Broken.NEWEST),
    ("another content is a conflict", {"has_other_content": lambda *_: False}, CONFLICT, Broken.VERDICT),
    ("another envelope is a republish", {"duplicate_verdict": lambda *_: Verdict.REDELIVERY}, FACT, Broken.VERDICT),
    ("the same envelope is a redelivery", {"duplicate_verdict": lambda *_: Verdict.REPUBLISH}, FACT, Broken.VERDICT),
    ("no envelope is a republish", {"duplicate_verdict": no_envelope_is_the_same}, LONELY, Broken.VERDICT),
    ("failures count", {"decide_settle": failure_is_not_counted}, FACT, Broken.ATTEMPTS),
    ("a release does not count", {"decide_settle": release_is_counted}, FACT, Broken.ATTEMPTS),
    ("a lonely run-out counts", {"_granted": no_run_out_counts}, LONELY, Broken.ATTEMPTS),
    ("a run-out among others does not count", {"_granted": every_run_out_counts}, FACT, Broken.ATTEMPTS),
]


@pytest.mark.parametrize(("rules", "scenario", "kind"), [row[1:] for row in MISSED], ids=[row[0] for row in MISSED])
def test_no_rule_can_be_missed(rules, scenario, kind, monkeypatch):
    """Without any one of the rules a promise is broken, and which one is known."""
    for name, rule in rules.items():
        monkeypatch.setattr(memory if hasattr(memory, name) else claim, name, rule)
    violation = violation_of(scenario)
    assert violation.kind is kind, str(violation)


# --- the ledgers that people write first --------------------------------------------------------------------


class Naive(MemoryLedger):
    """Answers one ask at a time, without anything that deserves the name of a claim."""

    def claim(self, asks, *, nonce, lease_us):
        """Answer each."""
        return [self.answer(ask) for ask in asks]

    def known(self, ask):
        """Answer for an event that is remembered."""
        return Answer(claim.duplicate_verdict(ask, self.records[ask.key, ""]))

    def remember(self, ask):
        """Write down that an event is done."""
        self.records[ask.key, ""] = Record(status=Status.DONE, envelope=ask.envelope, changed_us=self._clock.now_us())

    def settle(self, settlements):
        """Write down whatever is done."""
        for settlement in settlements:
            if settlement.outcome is Outcome.DONE:
                self.remember(settlement.claim.ask)
        return [True for _ in settlements]


class SetIfAbsent(Naive):
    """`SET NX`, then process: whoever dies in between leaves a duplicate of nothing."""

    def answer(self, ask):
        """Remember at once."""
        if (ask.key, "") in self.records:
            return self.known(ask)
        self.remember(ask)
        return Answer(Verdict.FRESH, self._clock.now_us())


class GetThenSet(Naive):
    """Look, process, write: whoever looks in between processes too."""

    def answer(self, ask):
        """Remember nothing yet."""
        return self.known(ask) if (ask.key, "") in self.records else Answer(Verdict.FRESH, self._clock.now_us())


class SettlesWithoutToken(MemoryLedger):
    """Claims well, but believes whoever settles."""

    def settle(self, settlements):
        """Give every settlement the token that is in force."""
        return super().settle([replace(one, claim=replace(one.claim, token=self.token_of(one))) for one in settlements])

    def token_of(self, settlement):
        """Return the token of whoever holds the event now."""
        return self.records[settlement.claim.ask.key, ""].token


class FailsWithoutToken(MemoryLedger):
    """Claims well, but whoever fails overwrites what is there, even what somebody else has done."""

    def settle(self, settlements):
        """Write a failure without any condition."""
        (settlement,) = settlements
        at = (settlement.claim.ask.key, "")
        if settlement.outcome is not Outcome.RETRY or at not in self.records:
            return super().settle(settlements)
        attempts = self.records[at].attempts + 1
        self.records[at] = replace(self.records[at], status=Status.RETRY, nonce=b"", attempts=attempts)
        return [True]


class KeyedOtherwise(MemoryLedger):
    """Claims well, but takes something else for the event."""

    def claim(self, asks, *, nonce, lease_us):
        """Claim that instead."""
        return super().claim([self.instead(ask) for ask in asks], nonce=nonce, lease_us=lease_us)

    def settle(self, settlements):
        """Settle that instead."""
        claims = [replace(one.claim, ask=self.instead(one.claim.ask)) for one in settlements]
        return super().settle([replace(one, claim=own) for one, own in zip(settlements, claims, strict=True)])


class KeyedByEnvelope(KeyedOtherwise):
    """The same event, published again, comes in another envelope."""

    def instead(self, ask):
        """Ask for the envelope."""
        return replace(ask, key=(ask.envelope or "").encode())


class KeyedByEntity(KeyedOtherwise):
    """The next change of a conversation is no duplicate of the last."""

    def instead(self, ask):
        """Ask for the entity."""
        return replace(ask, key=ask.entity)


class ForgetsSoon(MemoryLedger):
    """Forgets what is done after a time that is shorter than the road's last retry."""

    def claim(self, asks, *, nonce, lease_us):
        """Forget first."""
        self.purge(older_than_us=LEASE_US // 2)
        return super().claim(asks, nonce=nonce, lease_us=lease_us)


NAIVE = [
    (SetIfAbsent, FACT, Broken.ACKNOWLEDGED),
    (GetThenSet, FACT, Broken.HOLDERS),
    (GetThenSet, OLDER, Broken.HOLDERS),
    (SettlesWithoutToken, FACT, Broken.LATE),
    (FailsWithoutToken, FACT, Broken.LATE),
    (KeyedByEnvelope, FACT, Broken.HOLDERS),
    (KeyedByEntity, OLDER, Broken.ACKNOWLEDGED),
    (ForgetsSoon, FACT, Broken.AGAIN),
]


@pytest.mark.parametrize(("ledger", "scenario", "kind"), NAIVE)
def test_naive_ledgers_are_caught(ledger, scenario, kind):
    """The exploration finds what is wrong with the ledgers that are usually written."""
    violation = violation_of(scenario, ledger)
    assert violation.kind is kind, str(violation)


# --- the exploration itself ---------------------------------------------------------------------------------


def test_a_violation_tells_the_shortest_way_to_it():
    """Whoever reads a violation can follow it step by step from the start, and finds the same one again."""
    violation = violation_of(FACT, SetIfAbsent)
    assert str(violation).splitlines() == [
        "acknowledged: told@0 is not settled for good",
        "   1. A takes told@0 (delivery 1, envelope a)",
        "   2. A claims told@0 (delivery 1, envelope a): fresh, token 1",
        "   3. B takes told@0 (delivery 2, envelope a)",
        "   4. B claims told@0 (delivery 2, envelope a): redelivery",
        "   5. B acknowledges told@0 (delivery 2, envelope a)",
    ]
    assert str(violation_of(FACT, SetIfAbsent)) == str(violation)


@pytest.mark.parametrize("name", [FACT, "an echo", BACK])
def test_states_taken_for_one_have_the_same_future(name):
    """Two states that are explored only once lead to the same states by the same steps."""
    model = Model(replace(BY_NAME[name], faults=1))

    def futures(world):
        return {(step.act, likeness(model.after(world, step))) for step in model.steps(world)}

    start = model.start()
    seen, ahead, merged = {likeness(start): (start, futures(start))}, deque([start]), 0
    while ahead:
        world = ahead.popleft()
        for step in model.steps(world):
            after = model.after(world, step)
            first, leads_to = seen.setdefault(likeness(after), (after, None))
            if leads_to is None:
                seen[likeness(after)] = (after, futures(after))
                ahead.append(after)
            elif after != first:
                merged += 1
                assert futures(after) == leads_to
    assert merged > 1000


def test_a_state_without_a_way_out_is_found():
    """A state is blocked if no step without a fault leads from it, however far, to an end."""
    #    0 -> 1 -> 2 (the end), 3 -> 1, 4 <-> 5
    assert steps_to_end([[], [0, 3], [1], [], [5], [4]], ends=[2]) == [2, 1, 0, 2, None, None]


def test_the_command_says_how_much_was_explored(monkeypatch, capsys):
    """The command explores each scenario, with one fault more where asked, and fails with the way to a violation."""
    monkeypatch.setattr(exploration, "SCENARIOS", (replace(BY_NAME[LONELY], faults=0),))
    assert exploration.main([]) == 0
    short = capsys.readouterr().out
    assert exploration.main(["--long"]) == 0
    longer = capsys.readouterr().out
    count = re.compile(r"([\d,]+) states, and every promise kept in each\n")
    assert len(count.search(short)[1]) < len(count.search(longer)[1])
    monkeypatch.setattr(claim, "is_settled", claimed_is_settled)
    assert exploration.main([]) == 1
    assert "acknowledged: told@0 is not settled for good\n   1. A takes" in capsys.readouterr().out
