"""Mistakes that a ledger can make: each is one function of `grants.py` done wrong, and the rules that notice.

A wrong function is given the right one first, then its arguments.
"""

from msgspec.structs import replace

from oncebridge import claim
from oncebridge.claim import SETTLED, Answer, Outcome, Status, Verdict
from oncebridge.ledgers.grants import Entity, Granted, Kept, Record

OTHER = b"another."

# --- what a ledger grants ----------------------------------------------------------------------------------------


def forgetting(status):
    """Do not take one status for settled."""
    return lambda right, ask, record: None if record and record.status is status else right(ask, record)


def settling(status):
    """Take more than what is settled for settled."""

    def known(right, ask, record):
        if record and record.status is status:
            return Answer(claim.duplicate_verdict(ask, record.envelope), of=record.envelope, was=status)
        return right(ask, record)

    return known


def redrive_anything(right, ask, record):
    """Let a redrive claim what is no dead letter."""
    return None if ask.redrive and record and record.status is Status.RETRY else right(ask, record)


def redrive_again(right, ask, record):
    """Let a redrive claim what was redriven already."""
    return None if ask.redrive and record and record.status is Status.DONE else right(ask, record)


def with_record(**fields):
    """Answer the ask for a fact as if the record of its claim were another."""

    def claim_fact(right, ask, record, call):
        held = record and record.status is Status.CLAIMED
        return right(ask, replace(record, **fields) if held else record, call)

    return claim_fact


def fact_is_always_own(right, ask, record, call):
    """Take every call for a repeat."""
    held = record and record.status is Status.CLAIMED
    return right(ask, record, replace(call, nonce=record.nonce) if held else call)


def grant_the_settled(right, ask, record, call):
    """Give a settled claim once more to a call that may have had it."""
    if record and record.status is Status.DONE:
        return Answer(Verdict.FRESH, record.token, 1), None
    return right(ask, record, call)


def give_way_to_conflict(right, ask, record, call):
    """Let a conflict take the first one's place."""
    answer, made = right(ask, record, call)
    return answer, replace(record, content=ask.content) if answer.verdict is Verdict.CONFLICT else made


def with_entity(**fields):
    """Answer a chain as if its entity were another."""
    return lambda right, asks, records, entity, call: right(asks, records, entity and replace(entity, **fields), call)


def chain_is_always_own(right, asks, records, entity, call):
    """Take every call for a repeat."""
    return right(asks, records, entity, replace(call, nonce=entity.nonce) if entity else call)


def busy_first(right, asks, records, entity, call):
    """Look at busy before duplicates."""
    if entity and entity.lease_until_us > call.now_us:
        return Granted([Answer(Verdict.BUSY, busy_us=1) for _ in asks], [], None)
    return right(asks, records, entity, call)


def only_the_first(right, asks, records, entity, call):
    """Grant one state at a time."""
    granted = right(asks[:1], records[:1], entity, call)
    return granted._replace(answers=granted.answers + [Answer(Verdict.BUSY) for _ in asks[1:]])


def never_cut(right, asks, records, entity, call):
    """Grant a state that ran out among others."""
    return right([replace(ask, alone=True) for ask in asks], records, entity, call)


def nothing_before_a_cut(right, asks, records, entity, call):
    """Ask for a state that ran out alone, before those that came before it."""
    ran_out = [place for place, one in enumerate(records) if one and one.status is Status.CLAIMED]
    if not ran_out or asks[ran_out[0]].alone or (entity and entity.lease_until_us > call.now_us):
        return right(asks, records, entity, call)
    answers = [Answer(Verdict.BUSY) for _ in asks]
    answers[ran_out[0]] = Answer(Verdict.FRESH)
    return Granted(answers, [], None)


def overtake(right, asks, records, entity, call):
    """Let the states behind one that ran out overtake it."""
    kept = [place for place, one in enumerate(records) if not (one and one.status is Status.CLAIMED)]
    if len(kept) in (0, len(asks)) or (entity and entity.lease_until_us > call.now_us):
        return right(asks, records, entity, call)
    granted = right([asks[place] for place in kept], [records[place] for place in kept], entity, call)
    answers = [Answer(Verdict.FRESH) for _ in asks]
    for place, answer in zip(kept, granted.answers, strict=True):
        answers[place] = answer
    return granted._replace(answers=answers, records=[(kept[place], record) for place, record in granted.records])


def granted_with(**fields):
    """Grant a chain whose answers say something else of the entity."""

    def grant(right, *args, **named):
        granted = right(*args, **named)
        answers = [replace(one, chain=_changed(one.chain, fields)) if one.chain else one for one in granted.answers]
        return granted._replace(answers=answers)

    return grant


def _changed(one, fields):
    return replace(one, **{name: value(one) if callable(value) else value for name, value in fields.items()})


def one_token_for_all(right, *args, **named):
    """Give all states of a chain the same token."""
    granted = right(*args, **named)
    answers = [replace(one, token=one.chain.top) if one.chain else one for one in granted.answers]
    records = [(place, replace(record, token=granted.entity.token)) for place, record in granted.records]
    return granted._replace(answers=answers, records=records)


def start_below(right, asks, records, entity, call, **named):
    """Count the tokens of a chain from the clock alone."""
    return right(asks, records, replace(entity, token=0), call, **named)


def forget_the_doubt(right, *args, **named):
    """Remember no run-out with the entity."""
    granted = right(*args, **named)
    return granted._replace(entity=replace(granted.entity, ran_out=False))


def repeat_grants_all(right, answers, records, entity, call):
    """Grant to a repeat what the call itself was not granted."""
    mine = [record and replace(record, nonce=call.nonce) for record in records]
    return right(answers, mine, entity, call)


def repeat_raises_attempts(right, *args):
    """Count an attempt for each repeat."""
    granted = right(*args)
    return granted._replace(answers=[replace(one, attempt=one.attempt + 1) for one in granted.answers])


def repeat_raises_tokens(right, *args):
    """Give a repeat other tokens."""
    granted = right(*args)
    return granted._replace(answers=[replace(one, token=one.token + 1) for one in granted.answers])


def keep(field):
    """Let a new claim keep a field of the one before."""
    return lambda right, ask, record, *rest, **named: replace(
        right(ask, record, *rest, **named), **({field: getattr(record, field)} if record else {})
    )


def claimed_after(**fields):
    """Claim as if the record before were another."""
    return lambda right, ask, record, *rest, **named: right(ask, record and replace(record, **fields), *rest, **named)


# --- what a ledger extends and settles -----------------------------------------------------------------------------


def extend_any_fact(right, held, record, entity, call):
    """Extend a fact under any token."""
    return right(replace(held, token=record.token) if record else held, record, entity, call)


def extend_any_chain(right, held, record, entity, call):
    """Extend a chain without comparing its top token."""
    if held.chain and entity:
        held = replace(held, chain=replace(held.chain, top=entity.token))
    return right(held, record, entity, call)


def extend_the_freed(right, held, record, entity, call):
    """Bring a chain that has ended back to life."""
    return right(held, record, entity and replace(entity, lease_until_us=1), call)


def extend_claimed_states_only(right, held, record, entity, call):
    """Refuse to extend a chain through a state that is settled."""
    is_settled = record and record.status in SETTLED
    return Kept(ok=False) if is_settled else right(held, record, entity, call)


def refuse_the_late(right, held, record, entity, call):
    """Refuse to extend once the lease ran out, though nobody took over."""
    until_us = (entity or record).lease_until_us if record else 0
    return right(held, record, entity, call) if until_us > call.now_us else Kept(ok=False)


def settle_any_token(right, settlement, record, entity, now_us):
    """Settle without looking at the record's token."""
    record = replace(record or Record(status=Status.CLAIMED), token=settlement.claim.token)
    if settlement.claim.ask.entity:
        entity = entity or Entity()
    return right(settlement, record, entity, now_us)


def settle_any_chain(right, settlement, record, entity, now_us):
    """Settle without comparing the top token."""
    if settlement.claim.chain and entity:
        entity = replace(entity, token=settlement.claim.chain.top)
    return right(settlement, record, entity, now_us)


def refuse_quietly(right, settlement, record, entity, now_us):
    """Refuse a late worker, but take its data."""
    kept = right(settlement, record, entity, now_us)
    if kept.ok or entity is None:
        return kept
    return kept._replace(entity=replace(entity, data=settlement.data))


def repeat_writes(right, settlement, record, entity, now_us):
    """Take the data of a settle that only finds its own outcome."""
    kept = right(settlement, record, entity, now_us)
    if not kept.ok or kept.record or entity is None:
        return kept
    return kept._replace(entity=replace(entity, data=settlement.data))


def settle_twice(right, settlement, record, entity, now_us):
    """Do again what was done already."""
    again = record and record.status == settlement.outcome.value
    return right(settlement, replace(record, status=Status.CLAIMED) if again else record, entity, now_us)


def settle_once(right, settlement, record, entity, now_us):
    """Refuse the repeat of a settle."""
    again = record and record.status == settlement.outcome.value
    return Kept(ok=False) if again else right(settlement, record, entity, now_us)


def repeat_in_force_only(right, settlement, record, entity, now_us):
    """Refuse the repeat of a settle once another worker has the entity."""
    chain = settlement.claim.chain
    lost = chain and entity and entity.token != chain.top
    return Kept(ok=False) if lost else right(settlement, record, entity, now_us)


def settle_otherwise(right, settlement, record, entity, now_us):
    """Let a settled claim be settled in another way."""
    own = record and record.token == settlement.claim.token and record.status != settlement.outcome.value
    return right(settlement, replace(record, status=Status.CLAIMED) if own else record, entity, now_us)


def ended_with(only=None, **wrong):
    """End claims with other fields than they should have."""

    def settle(right, settlement, record, entity, now_us):
        kept = right(settlement, record, entity, now_us)
        if kept.record and only in (None, settlement.outcome):
            fields = {name: value(record, settlement) for name, value in wrong.items()}
            kept = kept._replace(record=replace(kept.record, **fields))
        return kept

    return settle


def left_with(change):
    """Leave the entity otherwise than the settlement says."""

    def settle(right, settlement, record, entity, now_us):
        kept = right(settlement, record, entity, now_us)
        if kept.entity:
            kept = kept._replace(entity=change(kept.entity, settlement, entity))
        return kept

    return settle


def held_as_before(left, entity):
    """Keep an entity with its holder."""
    return replace(left, nonce=entity.nonce, lease_until_us=entity.lease_until_us)


def freed(left):
    """Free an entity."""
    return replace(left, nonce=b"", lease_until_us=0)


# --- what goes wrong, in which function, and which rules notice -----------------------------------------------------

MISTAKES = [
    # --- duplicates and conflicts
    (
        "no conflict",
        "has_other_content",
        lambda *_: False,
        "another_content_is_a_conflict conflict_is_told_in_spite_of a_conflict_in_a_chain",
    ),
    ("conflict always", "has_other_content", lambda *_: True, "same_content_is_no_conflict"),
    ("conflict wins", "claim_fact", give_way_to_conflict, "a_conflict_leaves_the_first_alone"),
    ("redelivery always", "duplicate_verdict", lambda *_: Verdict.REDELIVERY, "another_or_no_envelope"),
    ("republish always", "duplicate_verdict", lambda *_: Verdict.REPUBLISH, "same_envelope_is_a_redelivery"),
    (
        "no envelope is the same envelope",
        "duplicate_verdict",
        lambda right, ask, envelope: Verdict.REDELIVERY if ask.envelope == envelope else Verdict.REPUBLISH,
        "another_or_no_envelope",
    ),
    ("claimed is settled", "_known", settling(Status.CLAIMED), "being_worked_on_is_busy busy_ends_with_the_lease"),
    ("retry is settled", "_known", settling(Status.RETRY), "what_failed_or_was_given_back a_retry_counts"),
    ("release is settled", "_known", settling(Status.RELEASE), "what_failed_or_was_given_back release_does_not"),
    (
        "done is not settled",
        "_known",
        forgetting(Status.DONE),
        "a_settled_event_stays_settled same_envelope a_settled_state_is_a_duplicate_in_its_chain chain_of_duplicates",
    ),
    ("dead is not settled", "_known", forgetting(Status.DEAD), "a_dead_letter_is_settled a_settled_state_is_a_dup"),
    ("echo is not settled", "_known", forgetting(Status.ECHO), "an_echo_is_recorded echo_and_stale_are_ends"),
    ("stale is not settled", "_known", forgetting(Status.STALE), "what_is_strictly_older echo_and_stale_are_ends"),
    ("discard is not settled", "_known", forgetting(Status.DISCARD), "a_discard_leaves_a_tombstone"),
    ("redrive anything", "_known", redrive_anything, "a_redrive_needs_a_dead_letter"),
    ("redrive twice", "_known", redrive_again, "two_redrives_at_once_are_one"),
    (
        "no redrive",
        "_known",
        lambda right, ask, record: right(replace(ask, redrive=False), record),
        "a_redrive_claims_a_dead_letter",
    ),
    # --- facts
    ("no fact is own", "claim_fact", with_record(nonce=OTHER), "same_claim_call_gets the_same_batch_gets"),
    ("every fact is own", "claim_fact", fact_is_always_own, "being_worked_on_is_busy a_claim_taken_over_is_nobodys"),
    ("settled is own", "claim_fact", grant_the_settled, "a_settled_claim_is_nobodys_own"),
    ("two at a fact", "claim_fact", with_record(lease_until_us=0), "being_worked_on_is_busy an_extended_claim_stays"),
    (
        "facts run out together",
        "claim_fact",
        lambda right, ask, *rest: right(replace(ask, alone=True), *rest),
        "what_ran_out_among_others run_out_does_not_count_for_its_neighbours",
    ),
    # --- chains
    ("no chain is own", "claim_chain", with_entity(nonce=OTHER), "a_repeated_call_gets_the_same_chain"),
    (
        "every chain is own",
        "claim_chain",
        chain_is_always_own,
        "a_chain_taken_over_is_nobodys_own a_chain_is_busy_as_a_whole",
    ),
    (
        "two at an entity",
        "claim_chain",
        with_entity(lease_until_us=0),
        "one_event_at_a_time a_chain_is_busy_as_a_whole only_the_last_end_frees extending_one_keeps_all",
    ),
    ("busy first", "claim_chain", busy_first, "a_duplicate_is_told_while_its_entity_is_held chain_of_duplicates"),
    ("one state at a time", "claim_chain", only_the_first, "tokens_in_a_row two_chains_and_facts thousand_asks"),
    ("never cut", "claim_chain", never_cut, "a_state_that_ran_out_cuts a_chain_that_ran_out what_ran_out_among_others"),
    ("nothing before a cut", "claim_chain", nothing_before_a_cut, "that_ran_out_cuts call_is_cut_where_it_was"),
    ("overtaking", "claim_chain", overtake, "a_state_that_ran_out_cuts_its_chain a_repeated_call_is_cut_where_it_was"),
    (
        "a run-out is nothing",
        "claim_chain",
        lambda right, asks, records, entity, call: right(
            asks,
            records,
            replace(entity, lease_until_us=0) if entity and entity.lease_until_us <= call.now_us else entity,
            call,
        ),
        "a_run_out_is_said_until_a_settle no_echo_after_an_end_other_than_done",
    ),
    ("one token for a chain", "_grant", one_token_for_all, "tokens_in_a_row two_chains_and_facts"),
    ("tokens by the clock", "_grant", start_below, "tokens_of_an_entity_increase tokens_in_a_row"),
    ("a top too low", "_grant", granted_with(top=lambda one: one.top - 1), "tokens_in_a_row only_the_last_end_frees"),
    ("no data", "_grant", granted_with(data=b""), "data_comes_back_byte_for_byte an_echo_is_recorded"),
    (
        "data as text",
        "_grant",
        granted_with(data=lambda one: one.data.decode(errors="replace").encode()),
        "data_comes_back_byte_for_byte data_of_a_middle_end",
    ),
    ("data cut short", "_grant", granted_with(data=lambda one: one.data[:9999]), "data_comes_back_byte_for_byte"),
    ("another time", "_grant", granted_with(now_us=lambda one: one.now_us + 1), "an_answer_brings_the_ledgers_time"),
    ("no doubt kept", "_grant", forget_the_doubt, "a_run_out_is_said_until_a_settle a_refused_settle_leaves_the_doubt"),
    ("repeats are granted all", "_granted_again", repeat_grants_all, "a_repeated_call_is_cut_where_it_was"),
    ("some of its own stay", "_leaves_some_of_its_own", lambda *_: False, "lost_is_not_granted_in_part"),
    ("repeats raise attempts", "_granted_again", repeat_raises_attempts, "a_repeated_call_gets_the_same_chain"),
    ("repeats raise tokens", "_granted_again", repeat_raises_tokens, "a_repeated_call_gets_the_same_chain"),
    ("repeats get no data", "_granted_again", granted_with(data=b""), "a_repeated_call_gets_the_same_chain"),
    ("one token", "next_token", lambda *_: 2**60, "tokens_of_an_event_increase tokens_of_an_entity_increase"),
    ("counted tokens", "next_token", lambda right, old, _: old + 1, "not_below_the_clock increase_through_a_purge"),
    ("clock tokens", "next_token", lambda right, _, now: now, "tokens_of_an_event_increase tokens_of_an_entity"),
    # --- what a claim becomes
    ("every run-out counts", "_claimed", claimed_after(alone=True), "its_neighbours what_ran_out_among_others"),
    (
        "no run-out counts",
        "_claimed",
        claimed_after(alone=False),
        "a_run_out_alone_counts a_takeover_of_the_entity_counts_like_a_run_out a_chain_that_ran_out_is_claimed",
    ),
    ("first envelope", "_claimed", keep("envelope"), "the_original_is_the_delivery_that_did_the_work"),
    ("attempts from before", "_claimed", keep("attempts"), "a_redrive_starts_from_zero"),
    ("advice from before", "_claimed", keep("retry_at_us"), "again_at_is_advice"),
    (
        "no letter while redriven",
        "_claimed",
        lambda right, *args, **named: replace(right(*args, **named), letter=False),
        "a_redrive_that_fails_keeps_the_letter",
    ),
    (
        "long leases",
        "claim_fact",
        lambda right, ask, record, call: right(ask, record, replace(call, lease_us=10**12)),
        "what_is_known_of_a_claim busy_ends_with_the_lease",
    ),
    (
        "long leases of chains",
        "claim_chain",
        lambda right, asks, records, entity, call: right(asks, records, entity, replace(call, lease_us=10**12)),
        "what_is_known_of_a_claim every_state_of_a_chain_shows_the_lease",
    ),
    # --- extend
    ("extend any fact", "extend_claim", extend_any_fact, "another_token_changes_nothing"),
    ("extend any chain", "extend_claim", extend_any_chain, "another_token_changes_nothing a_late_worker_changes_no"),
    ("extend the freed", "extend_claim", extend_the_freed, "a_chain_that_was_freed_is_not_extended"),
    ("extend claimed states only", "extend_claim", extend_claimed_states_only, "extending_one_keeps_all"),
    (
        "extend in time only",
        "extend_claim",
        refuse_the_late,
        "worker_nobody_took_over_from_may_settle worker_nobody_took_over_from_ends_its_chain",
    ),
    (
        "extend nothing",
        "extend_claim",
        lambda right, *args: Kept(ok=right(*args).ok),
        "an_extended_claim_stays_busy an_extended_claim_keeps_its_entity extending_one_keeps_all",
    ),
    # --- settle
    ("settle any token", "settle_claim", settle_any_token, "cannot_touch_an_event_taken_over what_was_never_claimed"),
    (
        "settle any chain",
        "settle_claim",
        settle_any_chain,
        "cannot_touch_an_entity_taken_over a_late_worker_changes_nothing cannot_free_the_entity chains_one_by_one",
    ),
    ("late data", "settle_claim", refuse_quietly, "a_late_worker_changes_nothing"),
    ("repeats write data", "settle_claim", repeat_writes, "a_settle_repeated_after_a_takeover_is_fine"),
    ("settle twice", "settle_claim", settle_twice, "the_same_settle_again_is_fine a_dead_end_keeps_its_letter"),
    ("settle once", "settle_claim", settle_once, "the_same_settle_again_is_fine echo_and_stale_are_ends"),
    ("repeat in force only", "settle_claim", repeat_in_force_only, "a_settle_repeated_after_a_takeover_is_fine"),
    ("settle otherwise", "settle_claim", settle_otherwise, "another_settle_is_refused"),
    ("nothing counts", "settle_claim", ended_with(attempts=lambda *_: 0), "a_retry_counts a_middle_end_counts"),
    (
        "release counts",
        "settle_claim",
        ended_with(Outcome.RELEASE, attempts=lambda record, _: record.attempts + 1),
        "a_release_does_not_count a_middle_end_counts",
    ),
    (
        "release is nothing",
        "settle_claim",
        ended_with(Outcome.RELEASE, status=lambda *_: Status.CLAIMED),
        "a_settled_claim_is_not_extended",
    ),
    (
        "retry is dead",
        "settle_claim",
        ended_with(Outcome.RETRY, status=lambda *_: Status.DEAD, letter=lambda *_: True),
        "counts_add_up",
    ),
    (
        "letters stay",
        "settle_claim",
        ended_with(letter=lambda record, end: record.letter or end.outcome is Outcome.DEAD),
        "a_redrive_claims_a_dead_letter a_discard_leaves_a_tombstone",
    ),
    (
        "hold on after a failure",
        "settle_claim",
        left_with(lambda left, end, before: left if end.outcome is Outcome.DONE else held_as_before(left, before)),
        "an_entity_is_free_once_its_claim_has_ended only_the_last_end_frees",
    ),
    (
        "every end frees",
        "settle_claim",
        left_with(lambda left, *_: freed(left)),
        "only_the_last_end_frees a_purge_leaves_the_rest_of_a_chain extending_one_keeps_all",
    ),
    (
        "a failure frees",
        "settle_claim",
        left_with(lambda left, end, _: left if end.outcome is Outcome.DONE else freed(left)),
        "only_the_last_end_frees",
    ),
    (
        "data of done states only",
        "settle_claim",
        left_with(
            lambda left, end, before: left if end.outcome is Outcome.DONE else replace(left, data=before.data),
        ),
        "an_echo_moves_the_stale_line data_of_a_middle_end_outlives_its_worker",
    ),
    (
        "data at the end only",
        "settle_claim",
        left_with(lambda left, end, before: left if end.frees else replace(left, data=before.data)),
        "data_of_a_middle_end_outlives_its_worker",
    ),
    (
        "the doubt stays",
        "settle_claim",
        left_with(lambda left, _, before: replace(left, ran_out=before.ran_out)),
        "a_run_out_is_said_until_a_settle a_middle_end_ends_the_doubt",
    ),
]
