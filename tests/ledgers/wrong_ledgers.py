"""Mistakes that a ledger can make in its own verbs and in its transactions, and the rules that notice.

A wrong method is given the right one first, then its arguments.
"""

import secrets
import sqlite3
import threading
from contextlib import contextmanager

from msgspec.structs import replace

from ledgers.mistakes_in_attendance import ATTENDANCE_MISTAKES
from ledgers.mistakes_in_pages import PAGE_MISTAKES
from oncebridge.claim import Status
from oncebridge.errors import ClaimLost
from oncebridge.ledgers.sqlite.ledger import SQLiteLedger
from oncebridge.ledgers.sqlite.rows import settle_in_force

# --- verbs of the memory ledger ---------------------------------------------------------------------------------


def forget_everything(right, self, *, older_than_us):
    """Purge what is not settled, too."""
    forgotten = len(self.records)
    self.records.clear()
    self.entities.clear()
    return forgotten


def make_secret_hastily(right, self, secret):
    """Write the secret without looking a second time."""
    made = self._secret or secrets.token_bytes(32)
    threading.Event().wait(0.01)
    self._secret = made
    return made


def filtered(keep):
    """Scan, and leave out what is not to be kept."""
    return lambda right, self, query: (entry for entry in right(self, query) if keep(entry, query))


def mapped(change):
    """Get, with every entry changed."""
    return lambda right, self, key: [change(entry) for entry in right(self, key)]


def look_and_claim(right, self, asks):
    """Claim what is free on the way."""
    seen = right(self, asks)
    self.claim([ask for ask in asks if ask.entity is None], nonce=b"who asks", lease_us=1_000_000)
    return seen


def seen_without(**fields):
    """Look, and leave something out."""
    return lambda right, self, asks: [replace(one, **fields) for one in right(self, asks)]


def add_hastily(right, self, counts, *, keep_us):
    """Read what is there, and write the sum a moment later."""
    before = self.read_counts(list(counts))
    threading.Event().wait(0.001)
    for (page, numbers), kept in zip(counts.items(), before, strict=True):
        self._counts.setdefault(page, {})
        for name, number in numbers.items():
            self._counts[page][name] = kept.get(name, 0) + number, self._clock.now_us() + keep_us


def swap_hastily(right, self, page, name, *change, keep_us):
    """Look first, and write a moment later."""
    before, after = change
    found = next((note.value for note in self.read_notes(page) if note.name == name), None)
    threading.Event().wait(0.001)
    if found == before and after is not None:
        self.write_notes(page, {name: after}, keep_us=keep_us)
    elif found == before:
        self._notes[page].pop(name, None)
    return found == before


def for_ever(right, self, *args, keep_us, **rest):
    """Write, and never forget."""
    return right(self, *args, keep_us=10**18, **rest)


NOTE_MISTAKES = [
    ("counts of one worker", "add_counts", add_hastily, "counts_of_many_workers_add_up"),
    (
        "counts set",
        "add_counts",
        lambda right, self, counts, **kept: (
            [self._counts.pop(page, None) for page in counts],
            right(self, counts, **kept),
        ),
        "numbers_are_added_to_counts counts_of_many_workers_add_up",
    ),
    (
        "a page of 512 counts",
        "read_counts",
        lambda right, self, pages: [dict(list(page.items())[:512]) for page in right(self, pages)],
        "many_counts_fit_into_a_page",
    ),
    ("counts for ever", "add_counts", for_ever, "notes_are_forgotten"),
    ("notes for ever", "write_notes", for_ever, "notes_are_forgotten"),
    (
        "the first name first",
        "read_notes",
        lambda right, *args, **page: right(*args, **page)[::-1],
        "notes_are_read_from_the_last_name_on the_newest_notes_are_kept",
    ),
    (
        "no bound",
        "read_notes",
        lambda right, self, page, *, below=None, limit=1000: right(self, page, limit=limit),
        "notes_are_read_from_the_last_name_on",
    ),
    (
        "the first value stays",
        "write_notes",
        lambda right, self, page, values, **kept: right(
            self, page, {**values, **{note.name: note.value for note in self.read_notes(page)}}, **kept
        ),
        "a_note_is_written_over",
    ),
    (
        "half of the newest",
        "write_notes",
        lambda right, self, page, values, *, newest=None, **kept: right(
            self, page, values, newest=newest and newest // 2, **kept
        ),
        "the_newest_notes_are_kept",
    ),
    (
        "a swap of anything",
        "swap_note",
        lambda right, self, page, name, before, after, **kept: right(
            self, page, name, {note.name: note.value for note in self.read_notes(page)}.get(name), after, **kept
        ),
        "a_note_changes_only_as_it_was one_of_many_swaps_wins",
    ),
    ("a hasty swap", "swap_note", swap_hastily, "one_of_many_swaps_wins"),
    (
        "values as text",
        "write_notes",
        lambda right, self, page, values, **kept: right(
            self, page, {name: value.decode(errors="replace").encode() for name, value in values.items()}, **kept
        ),
        "names_and_values_may_be_anything",
    ),
]

VERB_MISTAKES = [
    *NOTE_MISTAKES,
    *PAGE_MISTAKES,
    *ATTENDANCE_MISTAKES,
    (
        "attempts from nought",
        "claim",
        lambda right, *args, **call: [replace(answer, attempt=answer.attempt - 1) for answer in right(*args, **call)],
        "the_first_delivery_is_fresh",
    ),
    (
        "answers in another order",
        "claim",
        lambda right, *args, **call: right(*args, **call)[::-1],
        "a_batch_is_answered_as_single_asks_are batches_may_be_large_and_empty two_chains_and_facts_in_one_call",
    ),
    (
        "one handler for all",
        "claim",
        lambda right, self, asks, **call: right(self, [replace(ask, handler="") for ask in asks], **call),
        "handlers_claim_for_themselves handlers_have_chains_of_their_own",
    ),
    (
        "only the first of a batch",
        "settle",
        lambda right, self, ends: right(self, ends[:1]) + [True for _ in ends[1:]],
        "a_batch_settles_and_extends_one_by_one batches_may_be_large a_call_of_a_thousand_asks",
    ),
    ("detail cut", "get", mapped(lambda entry: replace(entry, detail=entry.detail[:99])), "dead_letter_is_kept_whole"),
    (
        "raw as text",
        "get",
        mapped(lambda entry: replace(entry, raw=entry.raw and entry.raw.decode(errors="replace").encode())),
        "dead_letter_is_kept_whole",
    ),
    (
        "raw in a scan",
        "scan",
        lambda right, self, query: ((entry.reason and self.get(entry.key)[0]) or entry for entry in right(self, query)),
        "only_dead_letters_hold_what_was_sent",
    ),
    (
        "newest first",
        "scan",
        lambda right, self, query: reversed(list(right(self, query))),
        "a_scan_finds_the_longest_unchanged_first a_scan_of_entities",
    ),
    (
        "no limit",
        "scan",
        lambda right, self, query: right(self, replace(query, limit=None)),
        "a_scan_finds_the_longest_unchanged_first a_scan_of_entities",
    ),
    (
        "no pattern",
        "scan",
        lambda right, self, query: filtered(lambda entry, _: query.topic in (None, entry.topic))(
            right, self, replace(query, topic=None)
        ),
        "a_scan_filters",
    ),
    (
        "no subject",
        "scan",
        lambda right, self, query: right(self, replace(query, subject=None)),
        "a_scan_filters a_scan_of_entities",
    ),
    (
        "done not found",
        "scan",
        filtered(lambda entry, query: query.entities or entry.status is not Status.DONE),
        "done_events_are_found_where_they_are_kept",
    ),
    (
        "echoes not counted",
        "counts",
        lambda right, self: {status: number for status, number in right(self).items() if status is not Status.ECHO},
        "counts_add_up an_echo_is_recorded",
    ),
    ("claims by the way", "look", look_and_claim, "a_look_changes_nothing"),
    ("entities not seen", "look", seen_without(entity=None), "a_look_finds_what_a_claim_would"),
    ("records not seen", "look", seen_without(records={}), "a_look_finds_what_a_claim_would a_look_shows_every"),
    (
        "one handler seen",
        "look",
        lambda right, self, asks: [
            replace(one, records={name: kept for name, kept in one.records.items() if name == ask.handler})
            for ask, one in zip(asks, right(self, asks), strict=True)
        ],
        "a_look_shows_every_handler",
    ),
    (
        "only the first thousand seen",
        "look",
        lambda right, self, asks: right(self, asks[:1000]) + right(self, asks[:1]) * (len(asks) - 1000),
        "looks_may_be_large_and_empty",
    ),
    (
        "made to be looked at",
        "open_to_look",
        lambda right, self, given: right(self, given) or self.open(given),
        "a_look_makes_no_ledger",
    ),
    (
        "any secret may look",
        "open_to_look",
        lambda right, self, given: right(self, self._secret),
        "a_look_needs_the_secret",
    ),
    ("start anew", "migrate", lambda right, self: self.records.clear(), "migrating_again_changes_nothing"),
    ("forget all", "purge", forget_everything, "a_purge_never_forgets a_purge_leaves_a_held_entity"),
    ("forget none", "purge", lambda *_, **__: 0, "a_purge_forgets_what_was_settled_before"),
    ("many secrets", "open", lambda right, self, given: given or secrets.token_bytes(32), "agree_on_the_ledgers_own"),
    (
        "any secret",
        "open",
        lambda right, self, given: right(self, None),
        "a_secret_given_first_is_the_ledgers another_secret_than_the_ledgers_own_is_refused",
    ),
    ("hasty secret", "open", make_secret_hastily, "workers_agree_when_they_all_come_first"),
]


# --- transactions -----------------------------------------------------------------------------------------------


class Transactional(SQLiteLedger):
    """A transaction in parts, each of which can be done wrong."""

    @contextmanager
    def transaction(self, settlement):
        """Go through the parts."""
        self.begin(settlement)
        try:
            try:
                yield self.guard()
            finally:
                self._db.set_authorizer(None)
            self.finish(settlement)
        finally:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")

    def begin(self, settlement):
        """Keep everybody else out."""
        self._db.execute("BEGIN IMMEDIATE")

    def guard(self):
        """Give out a connection that cannot end the transaction."""
        self._db.set_authorizer(lambda action, *_: action == sqlite3.SQLITE_TRANSACTION)
        return self._db

    def finish(self, settlement):
        """Settle a claim in force, and commit."""
        if not self.end(settlement):
            raise ClaimLost
        self._db.execute("COMMIT")

    def end(self, settlement):
        """Settle inside the transaction."""
        return settle_in_force(self._db, settlement, self._clock.now_us())


def settle_first(right, self, settlement):
    """Settle before the handler begins."""
    self.settle([settlement])
    right(self, settlement)


def commit_first(right, self, settlement):
    """Commit what the handler wrote before looking whether that was right."""
    self._db.execute("COMMIT")
    if not self.settle([settlement])[0]:
        raise ClaimLost


def refuse_the_late(right, self, settlement):
    """Refuse who is late, though nobody took over."""
    if self.get(settlement.claim.ask.key)[0].lease_until_us <= self._clock.now_us():
        raise ClaimLost
    right(self, settlement)


def commit_at_once(right, self):
    """Let every statement be committed by itself."""
    self._db.execute("COMMIT")
    return self._db


TRANSACTION_MISTAKES = [
    ("settle first", "begin", settle_first, "an_error_rolls_back"),
    ("commit first", "finish", commit_first, "a_lost_claim_rolls_back a_settled_claim_commits_nothing_more"),
    ("commit at once", "guard", commit_at_once, "effect_and_settle_are_committed_together an_error_rolls_back"),
    ("no guard", "guard", lambda right, self: self._db, "a_handler_cannot_end_the_transaction"),
    (
        "lost is as good",
        "end",
        lambda right, self, settlement: right(self, settlement) or True,
        "a_lost_claim_rolls_back a_chain_taken_over_rolls_back",
    ),
    (
        "every state frees",
        "end",
        lambda right, self, settlement: right(self, replace(settlement, frees=True)),
        "a_transaction_ends_one_state_of_a_chain",
    ),
    ("in time only", "finish", refuse_the_late, "a_late_transaction_nobody_took_over_from_commits"),
]
