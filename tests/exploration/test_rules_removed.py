"""Goal: no rule of the protocol can be left out, and the ledgers that people write first are caught.

Method: each rule is taken away in turn, in the code that the ledgers and the engine run, and the judge must notice: a
rule that nobody misses is either not needed or not proven.
"""

import pytest
from msgspec.structs import replace

from exploration.judge import Broken
from exploration.naive_ledgers import (
    FailsWithoutToken,
    ForgetsSoon,
    GetThenSet,
    KeyedByEntity,
    KeyedByEnvelope,
    SetIfAbsent,
    SettlesWithoutToken,
)
from exploration.scenarios import BACK, CONFLICT, FACT, FAR, OLDER, TWO, WITHOUT_ID
from exploration.violations import violation_of
from oncebridge import claim
from oncebridge.claim import SETTLED, Outcome, Status, Verdict
from oncebridge.ledgers import grants, memory

MODULES = (claim, grants, memory)
REAL = {name: getattr(module, name) for module in MODULES for name in dir(module)}
NOT_DONE = (Outcome.RETRY, Outcome.RELEASE, Outcome.DEAD)


# --- claims: tokens, leases, chains -------------------------------------------------------------------------


def busy_fact_is_granted(ask, record, call):
    """Do not look at a fact's lease."""
    return REAL["claim_fact"](ask, record and replace(record, lease_until_us=0), call)


def busy_entity_is_granted(asks, records, entity, call):
    """Do not look at an entity's lease."""
    ended = entity and replace(entity, lease_until_us=min(entity.lease_until_us, call.now_us))
    return REAL["claim_chain"](asks, records, ended, call)


def fact_is_held_for_ever(ask, record, call):
    """Hold a fact until its worker is back."""
    return REAL["claim_fact"](ask, record and replace(record, lease_until_us=10**12), call)


def entity_is_held_for_ever(asks, records, entity, call):
    """Hold an entity until its worker is back."""
    held = entity and replace(entity, lease_until_us=10**12 if entity.lease_until_us else 0)
    return REAL["claim_chain"](asks, records, held, call)


def fact_is_never_alone_enough(ask, record, call):
    """Want a fact that ran out to be asked for alone, again and again."""
    return REAL["claim_fact"](replace(ask, alone=False), record, call)


def state_is_never_alone_enough(asks, records, entity, call):
    """Want a state that ran out to be asked for alone, again and again."""
    return REAL["claim_chain"]([replace(ask, alone=False) for ask in asks], records, entity, call)


def fact_is_always_alone_enough(ask, record, call):
    """Grant a fact that ran out among others."""
    return REAL["claim_fact"](replace(ask, alone=True), record, call)


def chain_is_not_cut(asks, records, entity, call):
    """Grant a state that ran out among others."""
    return REAL["claim_chain"]([replace(ask, alone=True) for ask in asks], records, entity, call)


def lost_fact_is_forgotten(ask, record, call):
    """Do not know a fact's own call."""
    return REAL["claim_fact"](ask, record and replace(record, nonce=b""), call)


def lost_chain_is_forgotten(asks, records, entity, call):
    """Do not know a chain's own call."""
    return REAL["claim_chain"](asks, records, entity and replace(entity, nonce=b""), call)


def run_out_is_not_repeated(answers, records, entity, call):
    """Forget in the second answer that the lease before ran out."""
    return REAL["_granted_again"](answers, records, replace(entity, ran_out=False), call)


def run_out_is_granted_to_a_repeat(answers, records, entity, call):
    """Answer a repeat for all states of the call, also for those that the first answer left out."""
    own = [record and replace(record, nonce=call.nonce) for record in records]
    return REAL["_granted_again"](answers, own, entity, call)


def one_token_for_a_chain(asks, records, entity, call):
    """Give all states of a chain its top token."""
    granted = REAL["claim_chain"](asks, records, entity, call)
    answers = [replace(one, token=one.chain.top) if one.token else one for one in granted.answers]
    top = granted.entity.token if granted.entity else 0
    return granted._replace(
        answers=answers, records=[(place, replace(record, token=top)) for place, record in granted.records]
    )


def every_run_out_counts(ask, record, token, call, lease_until_us=0):
    """Count a run-out among others as the event's own."""
    return REAL["_claimed"](ask, record and replace(record, alone=True), token, call, lease_until_us)


def no_run_out_counts(ask, record, token, call, lease_until_us=0):
    """Count failures only."""
    return REAL["_claimed"](ask, record and replace(record, alone=False), token, call, lease_until_us)


def no_envelope_is_the_same(ask, envelope):
    """Take two deliveries without envelope id for one."""
    return Verdict.REDELIVERY if ask.envelope == envelope else Verdict.REPUBLISH


# --- extend and settle --------------------------------------------------------------------------------------


def _with_top(one, entity):
    """Give a chain's claim the top token that is in force."""
    return replace(one, chain=replace(one.chain, top=entity.token)) if one.chain and entity else one


def every_top_token_settles(settlement, record, entity, now_us):
    """Compare the event's own token alone."""
    return REAL["settle_claim"](replace(settlement, claim=_with_top(settlement.claim, entity)), record, entity, now_us)


def every_token_settles(settlement, record, entity, now_us):
    """Compare no token."""
    known = replace(_with_top(settlement.claim, entity), token=record.token if record else 0)
    return REAL["settle_claim"](replace(settlement, claim=known), record, entity, now_us)


def every_top_token_extends(one, record, entity, call):
    """Extend a chain for everyone."""
    return REAL["extend_claim"](_with_top(one, entity), record, entity, call)


def every_token_extends(one, record, entity, call):
    """Extend a fact for everyone."""
    return REAL["extend_claim"](replace(one, token=record.token), record, entity, call)


def settled_fact_is_extended(one, record, entity, call):
    """Extend a claim that was settled."""
    return REAL["extend_claim"](one, record and replace(record, status=Status.CLAIMED), entity, call)


def free_entity_is_extended(one, record, entity, call):
    """Extend a chain that was settled."""
    return REAL["extend_claim"](one, record, entity and replace(entity, lease_until_us=call.now_us), call)


def every_end_frees(settlement, record, entity, now_us):
    """Free an entity before its chain is at its end."""
    return REAL["settle_claim"](replace(settlement, frees=True), record, entity, now_us)


def no_end_frees(settlement, record, entity, now_us):
    """Leave an entity to its lease."""
    return REAL["settle_claim"](replace(settlement, frees=False), record, entity, now_us)


def failure_frees_nothing(settlement, record, entity, now_us):
    """Leave the lease of a chain whose last event failed."""
    frees = settlement.frees and settlement.outcome not in NOT_DONE
    kept = REAL["settle_claim"](replace(settlement, frees=frees), record, entity, now_us)
    held = kept.entity and not frees and settlement.frees
    return kept._replace(entity=replace(kept.entity, lease_until_us=10**12)) if held else kept


def data_is_not_written(settlement, record, entity, now_us):
    """Write an event's end without its entity's data."""
    return REAL["settle_claim"](replace(settlement, data=entity.data if entity else b""), record, entity, now_us)


def failure_is_not_counted(settlement, record, entity, now_us):
    """Try an event that fails for ever."""
    kept = REAL["settle_claim"](settlement, record, entity, now_us)
    return kept._replace(record=replace(kept.record, attempts=record.attempts)) if kept.record else kept


def release_is_counted(settlement, record, entity, now_us):
    """Count an event that was never tried."""
    kept = REAL["settle_claim"](settlement, record, entity, now_us)
    released = kept.record and settlement.outcome is Outcome.RELEASE
    return kept._replace(record=replace(kept.record, attempts=record.attempts + 1)) if released else kept


def repeated_settle_is_refused(settlement, record, entity, now_us):
    """Do not know one's own outcome."""
    if record is None or record.status is not Status.CLAIMED:
        return grants.Kept(ok=False)
    return REAL["settle_claim"](settlement, record, entity, now_us)


def another_outcome_is_mine(settlement, record, entity, now_us):
    """Take another worker's outcome for one's own."""
    if record is not None and record.status.value == settlement.outcome.value:
        return grants.Kept(ok=True)
    return REAL["settle_claim"](settlement, record, entity, now_us)


# --- order --------------------------------------------------------------------------------------------------


def echo_though_unsure(ask, newest):
    """Forget that a claim ended otherwise than done."""
    return REAL["_is_echo"](ask, replace(newest, unsure=False))


def run_out_leaves_no_doubt(chain):
    """Forget that the last holder may have written, and may still write."""
    return claim.read_newest(chain.data)


def echo_of_another_state(ask, newest):
    """Look at the time alone."""
    return REAL["_is_echo"](replace(ask, state=newest.state), newest)


def every_state_is_kept(newest, ask, now_us):
    """Remember all states that were ever done."""
    after = REAL["_after_done"](newest, ask, now_us)
    return replace(after, state=(newest.state or b"") + b"|" + ask.state)


def echo_of_any_earlier(ask, newest):
    """Compare with all states that were ever done."""
    known = ask.state in (newest.state or b"")
    return REAL["_is_echo"](replace(ask, state=newest.state) if known else ask, newest)


def tie_is_older(one, other):
    """Compare times with <=."""
    return one == other or REAL["older"](one, other)


def tie_is_not_newest(newest, ask, now_us):
    """Keep the first of two states at the same time."""
    return replace(newest, unsure=False) if ask.moment == newest.line else REAL["_after_done"](newest, ask, now_us)


def failure_moves_the_line(newest, ask, outcome, now_us):
    """Judge stale by events that were tried and not done."""
    after = REAL["newest_after"](newest, ask, outcome, now_us)
    return replace(after, line=ask.moment) if outcome in NOT_DONE else after


def failure_leaves_no_doubt(newest, ask, outcome, now_us):
    """Believe that an event that failed has had no effect."""
    return newest if outcome in NOT_DONE else REAL["newest_after"](newest, ask, outcome, now_us)


def unbelieved_leaves_no_doubt(newest, ask, now_us):
    """Believe that an event that does not become the newest has not changed the sink."""
    return replace(REAL["_after_done"](newest, ask, now_us), unsure=False)


def nothing_is_stale(ask, newest):
    """Call every older state news."""
    verdict = REAL["judge"](ask, newest)
    return Verdict.FRESH if verdict is Verdict.STALE else verdict


# The rule, its replacement, the scenario that misses it, and the promise that is broken without it.
MISSED = [
    # the rules that the protocol's chains stand on
    ("unsure after a run-out", {"newest_of": run_out_leaves_no_doubt}, BACK, Broken.ECHO),
    ("only the last end frees", {"settle_claim": every_end_frees}, OLDER, Broken.HOLDERS),
    ("a settle compares the top token", {"settle_claim": every_top_token_settles}, OLDER, Broken.LATE),
    ("a chain has tokens in a row", {"claim_chain": one_token_for_a_chain}, OLDER, Broken.TOKEN),
    ("no echo while unsure", {"_is_echo": echo_though_unsure}, BACK, Broken.ECHO),
    ("an echo moves the line", {"_after_echo": lambda newest, *_: newest}, BACK, Broken.NEWEST),
    # tokens and leases
    ("a fact is settled by its token", {"settle_claim": every_token_settles}, FACT, Broken.LATE),
    ("a state is settled by its token", {"settle_claim": every_token_settles}, OLDER, Broken.LATE),
    ("a repeat is known by its token", {"settle_claim": another_outcome_is_mine}, FACT, Broken.LATE),
    ("a fact is extended by its token", {"extend_claim": every_token_extends}, FACT, Broken.LATE),
    ("a chain is extended by its top token", {"extend_claim": every_top_token_extends}, OLDER, Broken.LATE),
    ("only a claimed fact is extended", {"extend_claim": settled_fact_is_extended}, FACT, Broken.LATE),
    ("only a held entity is extended", {"extend_claim": free_entity_is_extended}, OLDER, Broken.LATE),
    ("claimed is not settled", {"SETTLED": SETTLED | {Status.CLAIMED}}, FACT, Broken.ACKNOWLEDGED),
    ("a claimed state is not settled", {"SETTLED": SETTLED | {Status.CLAIMED}}, OLDER, Broken.ACKNOWLEDGED),
    ("settled is settled", {"SETTLED": frozenset()}, FACT, Broken.AGAIN),
    ("a settled state is settled", {"SETTLED": frozenset()}, OLDER, Broken.AGAIN),
    ("a claimed fact is busy", {"claim_fact": busy_fact_is_granted}, FACT, Broken.HOLDERS),
    ("a claimed entity is busy", {"claim_chain": busy_entity_is_granted}, OLDER, Broken.HOLDERS),
    ("a fact's lease ends", {"claim_fact": fact_is_held_for_ever}, FACT, Broken.BLOCKED),
    ("an entity's lease ends", {"claim_chain": entity_is_held_for_ever}, OLDER, Broken.BLOCKED),
    ("the last end frees", {"settle_claim": no_end_frees}, OLDER, Broken.BLOCKED),
    ("a failure at the end frees", {"settle_claim": failure_frees_nothing}, OLDER, Broken.BLOCKED),
    ("a lonely fact is alone enough", {"claim_fact": fact_is_never_alone_enough}, FACT, Broken.BLOCKED),
    ("a lonely state is alone enough", {"claim_chain": state_is_never_alone_enough}, OLDER, Broken.BLOCKED),
    ("tokens rise", {"next_token": lambda *_: 7}, OLDER, Broken.TOKEN),
    ("tokens rise between two ticks", {"next_token": lambda _, now_us: now_us}, OLDER, Broken.TOKEN),
    ("a fact's tokens rise", {"next_token": lambda *_: 7}, FACT, Broken.TOKEN),
    # repeats
    ("a lost claim is answered again", {"claim_fact": lost_fact_is_forgotten}, FACT, Broken.REPEAT),
    ("a lost chain is answered again", {"claim_chain": lost_chain_is_forgotten}, OLDER, Broken.REPEAT),
    ("a lost chain's run-out is answered again", {"_granted_again": run_out_is_not_repeated}, BACK, Broken.ECHO),
    ("a repeat is granted its own alone", {"_granted_again": run_out_is_granted_to_a_repeat}, OLDER, Broken.HOLDERS),
    ("a lost settle is answered again", {"settle_claim": repeated_settle_is_refused}, FACT, Broken.REPEAT),
    ("a state's lost settle is answered again", {"settle_claim": repeated_settle_is_refused}, OLDER, Broken.REPEAT),
    # order
    ("an echo is within the window", {"within_window": lambda *_: True}, "the same state much later", Broken.ECHO),
    ("an echo has the same state", {"_is_echo": echo_of_another_state}, OLDER, Broken.ECHO),
    (
        "an echo is one of the newest",
        {"_after_done": every_state_is_kept, "_is_echo": echo_of_any_earlier},
        BACK,
        Broken.ECHO,
    ),
    ("a failure leaves doubt", {"newest_after": failure_leaves_no_doubt}, BACK, Broken.ECHO),
    ("an unbelieved stamp leaves doubt", {"_after_done": unbelieved_leaves_no_doubt}, FAR, Broken.ECHO),
    ("the far future is not believed", {"is_believable": lambda *_: True}, FAR, Broken.STALE),
    ("a tie is not older", {"older": tie_is_older}, "a tie", Broken.STALE),
    ("a tie becomes the newest", {"_after_done": tie_is_not_newest}, "a tie before an echo", Broken.ECHO),
    ("stale is judged by done events", {"newest_after": failure_moves_the_line}, OLDER, Broken.STALE),
    ("older is stale", {"judge": nothing_is_stale}, OLDER, Broken.NEWEST),
    ("done becomes the newest", {"_after_done": lambda newest, *_: newest}, OLDER, Broken.NEWEST),
    ("a settle writes the data", {"settle_claim": data_is_not_written}, OLDER, Broken.NEWEST),
    # duplicates and attempts
    ("another content is a conflict", {"has_other_content": lambda *_: False}, CONFLICT, Broken.VERDICT),
    ("another envelope is a republish", {"duplicate_verdict": lambda *_: Verdict.REDELIVERY}, FACT, Broken.VERDICT),
    ("the same envelope is a redelivery", {"duplicate_verdict": lambda *_: Verdict.REPUBLISH}, FACT, Broken.VERDICT),
    ("no envelope is a republish", {"duplicate_verdict": no_envelope_is_the_same}, WITHOUT_ID, Broken.VERDICT),
    ("failures count", {"settle_claim": failure_is_not_counted}, FACT, Broken.ATTEMPTS),
    ("a release does not count", {"settle_claim": release_is_counted}, FACT, Broken.ATTEMPTS),
    ("a lonely run-out counts", {"_claimed": no_run_out_counts}, FACT, Broken.ATTEMPTS),
    ("a state's lonely run-out counts", {"_claimed": no_run_out_counts}, OLDER, Broken.ATTEMPTS),
    ("a run-out among others does not count", {"_claimed": every_run_out_counts}, TWO, Broken.ATTEMPTS),
    ("a run-out in a chain does not count", {"_claimed": every_run_out_counts}, OLDER, Broken.ATTEMPTS),
    ("a fact that ran out is claimed alone", {"claim_fact": fact_is_always_alone_enough}, TWO, Broken.ATTEMPTS),
    ("a run-out cuts its chain", {"claim_chain": chain_is_not_cut}, OLDER, Broken.ATTEMPTS),
]


@pytest.mark.parametrize(("rules", "scenario", "kind"), [row[1:] for row in MISSED], ids=[row[0] for row in MISSED])
def test_no_rule_can_be_missed(rules, scenario, kind, monkeypatch):
    """Without any one of the rules a promise is broken, and which one is known."""
    for name, rule in rules.items():
        for module in MODULES:
            if hasattr(module, name):
                monkeypatch.setattr(module, name, rule)
    violation = violation_of(scenario)
    assert violation.kind is kind, str(violation)
    assert not any(step.endswith(" ") for step in violation.trace), "a step that does not name its deliveries"


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
    """The exploration finds the mistake of each ledger that is usually written."""
    violation = violation_of(scenario, ledger)
    assert violation.kind is kind, str(violation)
