"""Mistakes that a ledger can make: each is one function of `oncebridge.claim` done wrong, and the rules that notice.

A wrong function is given the right one first, then its arguments.
"""

from msgspec.structs import replace

from oncebridge import claim
from oncebridge.claim import Answer, Outcome, Status, Verdict

# --- wrong functions that need more than a line -------------------------------------------------------------------


def compare_milliseconds(right, one, other):
    """Compare moments more coarsely than they are."""

    def coarse(moment):
        return replace(moment, times=tuple(None if time is None else time // 1_000_000 for time in moment.times))

    return right(coarse(one), coarse(other))


def be_content_with_one_time(right, one, other, window_ns):
    """Look for any time within the window."""
    pairs = zip(one.times, other.times, strict=False)
    return any(right(replace(one, times=(a,)), replace(other, times=(b,)), window_ns) for a, b in pairs)


def refuse_the_late(right, held, record, entity, call):
    """Refuse to extend once the lease ran out, though nobody took over."""
    until_us = (entity or record).lease_until_us if record else 0
    return right(held, record, entity, call) if until_us > call.now_us else (False, None, None)


def grant_the_settled(right, ask, record, entity, call):
    """Give a settled claim once more to a call that may have had it."""
    return Answer(Verdict.FRESH, record.token, 1) if record.nonce in (call.nonce, b"") else None


def keep(field):
    """Let a new claim keep a field of the one before."""
    return lambda right, ask, record, *rest: replace(
        right(ask, record, *rest), **({field: getattr(record, field)} if record else {})
    )


def after_echo(right, ask, record, entity, call):
    """Let an echo move the window."""
    answer, made, held = right(ask, record, entity, call)
    return answer, made, replace(held, moment=held.line) if answer.verdict is Verdict.ECHO else held


def after_stale(right, ask, record, entity, call):
    """Let a stale event make the newest unsure."""
    answer, made, held = right(ask, record, entity, call)
    return answer, made, replace(entity, unsure=True) if answer.verdict is Verdict.STALE else held


def busy_first(right, ask, record, entity, call):
    """Look at busy before duplicates."""
    if record and record.status in claim.SETTLED and entity and entity.lease_until_us > call.now_us:
        return Answer(Verdict.BUSY, busy_us=1), None, None
    return right(ask, record, entity, call)


def redrive_again(right, ask, record, entity, call):
    """Let a redrive claim what was redriven already."""
    again = record and ask.redrive and record.status in (Status.CLAIMED, Status.DONE)
    return right(ask, replace(record, status=Status.DEAD, letter=True) if again else record, entity, call)


def give_way_to_conflict(right, ask, record, entity, call):
    """Let a conflict take the first one's place."""
    answer, made, held = right(ask, record, entity, call)
    conflict = answer.verdict is Verdict.CONFLICT
    return answer, replace(record, content=ask.content) if conflict else made, held


def settle_anything(right, settlement, record, entity, now_us):
    """Settle without looking at tokens."""
    token = settlement.claim.token
    record = replace(record or claim.Record(status=Status.CLAIMED), token=token)
    if settlement.claim.ask.entity:
        entity = replace(entity or claim.Entity(), token=token)
    return right(settlement, record, entity, now_us)


def settle_twice(right, settlement, record, entity, now_us):
    """Do again what was done already."""
    again = record and record.status == settlement.outcome.value
    return right(settlement, replace(record, status=Status.CLAIMED) if again else record, entity, now_us)


def settle_once(right, settlement, record, entity, now_us):
    """Refuse the repeat of a settle."""
    again = record and record.status == settlement.outcome.value
    return (False, None, None) if again else right(settlement, record, entity, now_us)


def settle_otherwise(right, settlement, record, entity, now_us):
    """Let a settled claim be settled in another way."""
    own = record and record.token == settlement.claim.token and record.status != settlement.outcome.value
    return right(settlement, replace(record, status=Status.CLAIMED) if own else record, entity, now_us)


def ended_with(only=None, **wrong):
    """End claims with other fields than they should have."""

    def settle(right, settlement, record, entity, now_us):
        ok, ended, free = right(settlement, record, entity, now_us)
        if ended and only in (None, settlement.outcome):
            ended = replace(ended, **{name: value(record, settlement) for name, value in wrong.items()})
        return ok, ended, free

    return settle


def hold_on(right, settlement, record, entity, now_us):
    """Keep the entity after a failure."""
    ok, ended, free = right(settlement, record, entity, now_us)
    failed = free and settlement.outcome is not Outcome.DONE
    return ok, ended, replace(free, lease_until_us=entity.lease_until_us) if failed else free


def make_newest(right, settlement, record, entity, now_us):
    """Let a failed event be the newest."""
    ok, ended, free = right(settlement, record, entity, now_us)
    return ok, ended, free and claim._after_done(settlement.claim.ask, free, now_us)


def forget_a_time(right, ask, entity, now_us):
    """Let an echo that moves the line take away the times that it does not say."""
    after = right(ask, entity, now_us)
    return after if after.line == entity.line else replace(after, line=ask.moment)


def first_of_equals(right, ask, entity, now_us):
    """Let the first of two equals stay the newest."""
    return entity if entity.state and ask.moment == entity.line else right(ask, entity, now_us)


def always_newest(right, ask, entity, now_us):
    """Make every done event the newest."""
    return replace(entity, state=ask.state, moment=ask.moment, key=ask.key, line=ask.moment, unsure=False)


def forgetting(status):
    """Do not take one status for settled."""
    return lambda right, record: record.status is not status and right(record)


def settling(*statuses):
    """Take more than what is settled for settled."""
    return lambda right, record: record.status in statuses or right(record)


# --- what goes wrong, in which function, and which rules notice -----------------------------------------------------

MISTAKES = [
    (
        "no conflict",
        "has_other_content",
        lambda *_: False,
        "another_content_is_a_conflict conflict_is_told_in_spite_of",
    ),
    ("conflict always", "has_other_content", lambda *_: True, "same_content_is_no_conflict"),
    ("redelivery always", "duplicate_verdict", lambda *_: Verdict.REDELIVERY, "another_or_no_envelope"),
    ("republish always", "duplicate_verdict", lambda *_: Verdict.REPUBLISH, "same_envelope_is_a_redelivery"),
    (
        "no envelope is the same envelope",
        "duplicate_verdict",
        lambda right, ask, record: Verdict.REDELIVERY if ask.envelope == record.envelope else Verdict.REPUBLISH,
        "another_or_no_envelope",
    ),
    ("claimed is settled", "is_settled", settling(Status.CLAIMED), "being_worked_on_is_busy busy_ends_with_the_lease"),
    ("retry is settled", "is_settled", settling(Status.RETRY), "what_failed_or_was_given_back a_retry_counts"),
    ("release is settled", "is_settled", settling(Status.RELEASE), "what_failed_or_was_given_back release_does_not"),
    ("done is not settled", "is_settled", forgetting(Status.DONE), "a_settled_event_stays_settled same_envelope"),
    ("dead is not settled", "is_settled", forgetting(Status.DEAD), "a_dead_letter_is_settled"),
    ("echo is not settled", "is_settled", forgetting(Status.ECHO), "an_echo_is_recorded"),
    ("stale is not settled", "is_settled", forgetting(Status.STALE), "what_is_strictly_older_is_stale"),
    ("discard is not settled", "is_settled", forgetting(Status.DISCARD), "a_discard_leaves_a_tombstone"),
    ("a tie is older", "older", lambda right, a, b: right(a, b) or bool(a.times and a == b), "a_tie_loses_nothing"),
    (
        "one time only",
        "older",
        lambda right, a, b: right(replace(a, times=a.times[:1]), replace(b, times=b.times[:1])),
        "several_times_are_compared",
    ),
    (
        "no version",
        "older",
        lambda right, a, b: right(replace(a, version=None), replace(b, version=None)),
        "a_version_orders_instead_of_time",
    ),
    ("milliseconds", "older", compare_milliseconds, "what_is_strictly_older_is_stale"),
    (
        "exclusive window",
        "within_window",
        lambda right, a, b, ns: right(a, b, ns - 1),
        "window_is_inclusive own_window",
    ),
    ("no window", "within_window", lambda *_: True, "window_is_inclusive echo_does_not_move_the_window"),
    ("one time in the window", "within_window", be_content_with_one_time, "every_time_must_lie_within"),
    (
        "envelope times echo",
        "within_window",
        lambda right, a, b, ns: right(replace(a, echoes=True), replace(b, echoes=True), ns),
        "envelope_times_give_no_echo",
    ),
    ("no echo", "is_echo", lambda *_: False, "an_echo_is_recorded echoes_again_after echo_comes_before_stale"),
    (
        "any state echoes",
        "is_echo",
        lambda right, ask, entity: right(replace(ask, state=entity.state), entity),
        "an_echo_has_the_same_state",
    ),
    (
        "never unsure",
        "is_echo",
        lambda right, ask, entity: right(ask, replace(entity, unsure=False)),
        "no_echo_after_an_end_other_than_done no_echo_after_a_stamp_from_the_future",
    ),
    (
        "a run-out is nothing",
        "is_echo",
        lambda right, ask, entity: right(ask, replace(entity, lease_until_us=0)),
        "no_echo_after_an_end_other_than_done",
    ),
    ("nothing stale", "is_stale", lambda *_: False, "what_is_strictly_older_is_stale a_redrive_may_be_stale"),
    (
        "always stale",
        "is_stale",
        lambda right, ask, entity: right(replace(ask, stale=True), entity),
        "a_topic_may_have_nothing_stale",
    ),
    (
        "echoes move no line",
        "is_stale",
        lambda right, ask, entity: right(ask, replace(entity, line=entity.moment)),
        "an_echo_moves_the_stale_line",
    ),
    ("every stamp", "is_believable", lambda *_: True, "future_is_never_the_newest echo_from_the_future_moves_no_line"),
    ("no stamp", "is_believable", lambda *_: False, "future_is_never_the_newest a_tie_loses_nothing"),
    ("one token", "next_token", lambda *_: 2**60, "tokens_of_an_event_increase tokens_of_an_entity_increase"),
    ("counted tokens", "next_token", lambda right, old, _: old + 1, "not_below_the_clock increase_through_a_purge"),
    ("clock tokens", "next_token", lambda right, _, now: now, "tokens_of_an_event_increase tokens_of_an_entity"),
    ("no token", "holds", lambda *_: True, "cannot_touch_an_entity_taken_over entity_taken_over_keeps_the_owners"),
    (
        "extend whoever asks",
        "decide_extend",
        lambda right, held, record, *rest: right(replace(held, token=record and record.token), record, *rest),
        "another_token_changes_nothing",
    ),
    ("extend in time only", "decide_extend", refuse_the_late, "a_late_worker_nobody_took_over_from_may_settle"),
    (
        "extend nothing",
        "decide_extend",
        lambda right, *args: (right(*args)[0], None, None),
        "an_extended_claim_stays_busy an_extended_claim_keeps_its_entity",
    ),
    ("nothing is own", "_own_answer", lambda *_: None, "same_claim_call_gets the_same_batch_gets_the_same_answers"),
    (
        "everything is own",
        "_own_answer",
        lambda right, ask, record, entity, call: right(ask, record, entity, replace(call, nonce=record.nonce)),
        "being_worked_on_is_busy same_claim_call_gets a_claim_taken_over_is_nobodys_own",
    ),
    ("settled is own", "_own_answer", grant_the_settled, "a_settled_claim_is_nobodys_own"),
    ("no run-out", "_ran_out", lambda *_: False, "what_ran_out_among_others a_run_out_alone_counts"),
    (
        "every run-out counts",
        "_granted",
        lambda right, ask, record, *rest: right(ask, record and replace(record, alone=True), *rest),
        "run_out_does_not_count_for_its_neighbours what_ran_out_among_others",
    ),
    (
        "no run-out counts",
        "_granted",
        lambda right, ask, record, *rest: right(ask, record and replace(record, alone=False), *rest),
        "a_run_out_alone_counts a_takeover_of_the_entity_counts_like_a_run_out",
    ),
    ("first envelope", "_granted", keep("envelope"), "the_original_is_the_delivery_that_did_the_work"),
    ("attempts from before", "_granted", keep("attempts"), "a_redrive_starts_from_zero"),
    ("advice from before", "_granted", keep("retry_at_us"), "again_at_is_advice"),
    (
        "no letter while redriven",
        "_granted",
        lambda right, *args: replace(right(*args), letter=False),
        "a_redrive_that_fails_keeps_the_letter",
    ),
    (
        "long leases",
        "_granted",
        lambda right, ask, record, token, call: right(ask, record, token, replace(call, lease_us=10**12)),
        "what_is_known_of_a_claim busy_ends_with_the_lease",
    ),
    ("echo moves no line", "_after_echo", lambda right, ask, entity, now_us: entity, "an_echo_moves_the_stale_line"),
    (
        "echo moves it back",
        "_after_echo",
        lambda right, ask, entity, now_us: replace(entity, line=ask.moment),
        "an_early_echo_does_not_move_the_stale_line_back",
    ),
    ("echo forgets a time", "_after_echo", forget_a_time, "an_echo_sets_back_no_time_that_it_does_not_say"),
    ("always newest", "_after_done", always_newest, "a_topic_may_have_nothing_stale without_a_time_everything"),
    ("first of equals", "_after_done", first_of_equals, "a_tie_loses_nothing"),
    (
        "two at a time",
        "_claim_state",
        lambda right, ask, record, entity, call: right(ask, record, replace(entity, lease_until_us=0), call),
        "one_event_at_a_time busy_comes_before_echo_and_stale",
    ),
    ("echo moves the window", "_claim_state", after_echo, "an_echo_does_not_move_the_window"),
    ("stale makes unsure", "_claim_state", after_stale, "a_stale_event_changes_nothing"),
    (
        "no force",
        "_claim_state",
        lambda right, ask, *rest: right(replace(ask, force=False), *rest),
        "a_redrive_may_be_stale",
    ),
    ("busy first", "decide_claim", busy_first, "a_duplicate_is_told_while_its_entity_is_held"),
    (
        "redrive anything",
        "decide_claim",
        lambda right, ask, record, *rest: right(replace(ask, redrive=bool(record and record.letter)), record, *rest),
        "a_redrive_needs_a_dead_letter",
    ),
    ("redrive twice", "decide_claim", redrive_again, "two_redrives_at_once_are_one"),
    (
        "no redrive",
        "decide_claim",
        lambda right, ask, *rest: right(replace(ask, redrive=False), *rest),
        "a_redrive_claims_a_dead_letter",
    ),
    ("conflict wins", "decide_claim", give_way_to_conflict, "a_conflict_leaves_the_first_alone"),
    (
        "failed is never stale",
        "decide_claim",
        lambda right, ask, record, *rest: right(replace(ask, stale=ask.stale and record is None), record, *rest),
        "a_failed_event_may_turn_stale",
    ),
    (
        "one handler",
        "decide_claim",
        lambda right, ask, *rest: right(replace(ask, envelope="one"), *rest),
        "another_or_no_envelope",
    ),
    ("settle anything", "decide_settle", settle_anything, "cannot_touch_an_event_taken_over what_was_never_claimed"),
    ("settle twice", "decide_settle", settle_twice, "the_same_settle_again_is_fine a_dead_end_keeps_its_letter"),
    ("settle once", "decide_settle", settle_once, "the_same_settle_again_is_fine"),
    ("settle otherwise", "decide_settle", settle_otherwise, "another_settle_is_refused"),
    ("nothing counts", "decide_settle", ended_with(attempts=lambda *_: 0), "a_retry_counts"),
    (
        "release counts",
        "decide_settle",
        ended_with(Outcome.RELEASE, attempts=lambda record, _: record.attempts + 1),
        "a_release_does_not_count",
    ),
    (
        "release is nothing",
        "decide_settle",
        ended_with(Outcome.RELEASE, status=lambda *_: Status.CLAIMED),
        "a_settled_claim_is_not_extended",
    ),
    (
        "retry is dead",
        "decide_settle",
        ended_with(Outcome.RETRY, status=lambda *_: Status.DEAD, letter=lambda *_: True),
        "counts_add_up",
    ),
    (
        "letters stay",
        "decide_settle",
        ended_with(letter=lambda record, _: record.letter or _.outcome is Outcome.DEAD),
        "a_redrive_claims_a_dead_letter a_discard_leaves_a_tombstone",
    ),
    ("hold on", "decide_settle", hold_on, "an_entity_is_free_once_its_claim_has_ended"),
    ("failed is newest", "decide_settle", make_newest, "only_done_events_make_others_stale"),
]
