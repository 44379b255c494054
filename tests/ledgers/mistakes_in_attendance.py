"""Mistakes that a ledger can make with attendance, and the rules that notice.

A wrong method is given the right one first, then its arguments.
"""

import threading

from msgspec.structs import replace

from oncebridge.claim import MARK_BYTES, Outcome, Settlement
from oncebridge.ledgers.marks import marks_in
from oncebridge.ledgers.protocol import Attendance


def marked(settlement, **fields):
    """Return a settlement whose event says something else of its attendance."""
    claim = settlement.claim
    return replace(settlement, claim=replace(claim, ask=replace(claim.ask, **fields)))


def settle_with(change):
    """Settle as if something else had been asked."""
    return lambda right, self, settlements: right(self, [change(one) for one in settlements])


def without_marks_of(*outcomes):
    """Settle, and let no event with these ends leave a mark."""
    return settle_with(lambda one: marked(one, mark=b"") if one.outcome in outcomes else one)


def keep(self, settlement, mark=None):
    """Add a mark without looking whether anything is in force."""
    ask = settlement.claim.ask
    mark = ask.mark if mark is None else mark
    before = self.attendances.get(ask.conversation)
    kept = {mark} if before is None else {mark} | marks_in(before.marks)
    now_us = self._clock.now_us()
    first_us = now_us if before is None else before.first_us
    self.attendances[ask.conversation] = Attendance(b"".join(sorted(kept)), first_us, now_us)


def mark_any_end(right, self, settlements):
    """Let events that are to be tried again leave their marks, too."""
    ends = right(self, settlements)
    for settlement, ok in zip(settlements, ends, strict=True):
        if ok and settlement.claim.ask.mark:
            keep(self, settlement)
    return ends


def mark_the_late(right, self, settlements):
    """Let settles that are not in force leave their marks, too."""
    for settlement in settlements:
        if settlement.claim.ask.mark and settlement.outcome is Outcome.DONE:
            keep(self, settlement)
    return right(self, settlements)


def mark_all_or_nothing(right, self, settlements):
    """Leave no marks of a call in which a claim is lost."""
    before = dict(self.attendances)
    ends = right(self, settlements)
    if not all(ends):
        self.attendances = before
    return ends


def mark_everything(right, self, settlements):
    """Let events without a mark leave an empty one."""
    ends = right(self, settlements)
    for settlement in settlements:
        if settlement.claim.ask.conversation is not None and not settlement.claim.ask.mark:
            keep(self, settlement, bytes(MARK_BYTES))
    return ends


def write_what_was_read(right, self, settlements):
    """Read what came, and write it back with the new marks a moment later."""
    before = dict(self.attendances)
    threading.Event().wait(0.0005)
    ends = right(self, settlements)
    for settlement in settlements:
        conversation = settlement.claim.ask.conversation
        if conversation in before and settlement.claim.ask.mark:
            self.attendances[conversation] = before[conversation]
            keep(self, settlement)
    return ends


def count_marks(right, self, settlements):
    """Append marks, however often they come."""
    before = {key: one.marks for key, one in self.attendances.items()}
    ends = right(self, settlements)
    for settlement in settlements:
        ask = settlement.claim.ask
        if ask.mark and ask.conversation in self.attendances:
            joined = before[ask.conversation] = before.get(ask.conversation, b"") + ask.mark
            self.attendances[ask.conversation] = replace(self.attendances[ask.conversation], marks=joined)
    return ends


def take_any_number(right, self, settlements):
    """Take marks without a bound."""
    ends = right(self, settlements)
    for settlement in settlements:
        if settlement.claim.ask.mark and settlement.outcome is Outcome.DONE:
            keep(self, settlement)
    return ends


def refuse_more(right, self, settlements):
    """Refuse to end an event whose conversation is full."""
    full = {key for key, one in self.attendances.items() if len(one.marks) >= 1000 * MARK_BYTES}
    taken = [one for one in settlements if one.claim.ask.conversation not in full]
    ended = dict(zip(map(id, taken), right(self, taken), strict=True))
    return [ended.get(id(one), False) for one in settlements]


def found_with(change):
    """Look up, with what is found changed."""

    def attendance(right, self, conversations, *, since_us=0):
        return [None if one is None else change(one) for one in right(self, conversations, since_us=since_us)]

    return attendance


def only_what_is_there(right, self, conversations, *, since_us=0):
    """Leave out conversations that nothing came of."""
    return [one for one in right(self, conversations, since_us=since_us) if one is not None]


def each_once(right, self, conversations, *, since_us=0):
    """Answer a conversation that is asked for twice once."""
    return right(self, list(dict.fromkeys(conversations)), since_us=since_us)


def nothing_since(right, self, conversations, *, since_us=0):
    """Leave out everything where a time is given."""
    return [None if since_us else one for one in right(self, conversations)]


def keep_for_ever(right, self, *, older_than_us):
    """Forget no conversation."""
    before = dict(self.attendances)
    forgotten = right(self, older_than_us=older_than_us)
    self.attendances = before
    return forgotten


def forget_all(right, self, *, older_than_us):
    """Forget every conversation."""
    forgotten = right(self, older_than_us=older_than_us)
    self.attendances.clear()
    return forgotten


def transaction_without_a_mark(right, self, settlement: Settlement):
    """Settle in a transaction, and leave no mark."""
    return right(self, marked(settlement, mark=b""))


def transaction_that_marks_first(right, self, settlement: Settlement):
    """Leave the mark before the handler begins."""
    if settlement.claim.ask.mark:
        keep(self, settlement)
    return right(self, settlement)


ATTENDANCE_MISTAKES = [
    ("no marks", "settle", settle_with(lambda one: marked(one, mark=b"")), "events_that_came_are_marked"),
    ("no marks of the dead", "settle", without_marks_of(Outcome.DEAD), "every_end_for_good_counts"),
    ("no marks of echoes", "settle", without_marks_of(Outcome.ECHO), "states_of_a_chain_are_marked"),
    ("no marks of stale states", "settle", without_marks_of(Outcome.STALE), "states_of_a_chain_are_marked"),
    ("marks of any end", "settle", mark_any_end, "every_end_for_good_counts"),
    ("marks of the late", "settle", mark_the_late, "a_late_settle_marks_nothing"),
    ("marks of all or none", "settle", mark_all_or_nothing, "one_lost_claim_does_not_cost_the_others_theirs"),
    ("marks of nothing", "settle", mark_everything, "events_without_a_mark_leave_none"),
    ("marks hastily", "settle", write_what_was_read, "workers_do_not_lose_each_others_marks"),
    ("marks counted", "settle", count_marks, "a_mark_counts_once"),
    ("any number of marks", "settle", take_any_number, "a_conversation_keeps_a_bounded_number"),
    ("full is refused", "settle", refuse_more, "a_conversation_keeps_a_bounded_number"),
    ("only what is there", "attendance", only_what_is_there, "looked_up_in_order events_that_came_are_marked"),
    ("each conversation once", "attendance", each_once, "looked_up_in_order"),
    ("attendance for ever", "purge", keep_for_ever, "attendance_is_kept_for_the_retention"),
    ("attendance forgotten", "purge", forget_all, "attendance_is_kept_for_the_retention"),
    (
        "one time",
        "attendance",
        found_with(lambda one: replace(one, last_us=one.first_us)),
        "times_are_the_ledgers",
    ),
    ("no time", "attendance", found_with(lambda one: replace(one, first_us=1)), "times_are_the_ledgers"),
    ("nothing since", "attendance", nothing_since, "times_are_the_ledgers"),
    ("a transaction without a mark", "transaction", transaction_without_a_mark, "a_transaction_marks_with_its_commit"),
    ("a transaction marks first", "transaction", transaction_that_marks_first, "a_transaction_marks_with_its_commit"),
]
