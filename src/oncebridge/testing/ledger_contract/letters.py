"""The ledger contract on dead letters and redrive, on finding and forgetting events, and on the secret."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pytest
from msgspec.structs import replace

from oncebridge.claim import Letter, Outcome, Status, Verdict
from oncebridge.errors import LedgerRefused
from oncebridge.ledgers.protocol import Query
from oncebridge.testing.ledger_contract.stage import (
    ENDS,
    FACT_TOPIC,
    LETTER,
    NS_PER_MS,
    STATE_TOPIC,
    LedgerStage,
    digest,
)

DAY_MS: Final = 86_400_000
SECRET: Final = b"a secret that was given, 32 bytes"


class LetterRules(LedgerStage):
    """Dead letters: kept whole, tried again, given up."""

    def test_a_dead_letter_is_kept_whole(self) -> None:
        """Raw, reason and detail come back byte for byte, also of the largest event there is."""
        for name, letter in {
            "plain": LETTER,
            "no text": Letter(raw=bytes(range(256)), reason="unreadable: is not UTF-8 (byte 128)"),
            "large": Letter(raw=b"\x00\xffm" * 350_000, reason="handler raised ValueError", detail="line\n" * 10_000),
            "odd": Letter(raw=b"", reason="¿größer als 1 😀?", detail="\x01\t'\"\\%_ \u2028 \U0010ffff"),
        }.items():
            self.do(self.fact(name), Outcome.DEAD, letter=letter)
            (entry,) = self.opened().get(digest(name))
            assert (entry.status, entry.reason, entry.detail) == (Status.DEAD, letter.reason, letter.detail)
            assert entry.raw == letter.raw

    def test_only_dead_letters_hold_what_was_sent(self) -> None:
        """Nothing but a dead letter has raw, and a scan never shows it."""
        self.do(self.fact("done"))
        self.do(self.fact("dead"), Outcome.DEAD)
        assert self.entry(self.fact("done")).raw is None
        shown = list(self.ledger.scan(Query(letters=True)))
        assert [(entry.key, entry.reason, entry.raw, entry.detail) for entry in shown] == [
            (digest("dead"), LETTER.reason, None, "")
        ]

    def test_a_redrive_claims_a_dead_letter(self) -> None:
        """A redrive is granted the dead letter's own key; once it is done, the letter is gone."""
        for ask in (self.fact("fact"), self.state("state", "here", 0)):
            self.do(ask, Outcome.DEAD)
            self.do(replace(ask, redrive=True))
            entry = self.entry(ask)
            assert (entry.status, entry.reason, entry.raw, entry.detail) == (Status.DONE, "", None, "")
            assert self.verdict(ask) is Verdict.REDELIVERY
        assert self.found(letters=True) == []

    def test_a_redrive_that_fails_keeps_the_letter(self) -> None:
        """While a redrive is under way, retried, released or dead again, the letter is still there."""
        ask = self.fact("one", redrive=True, alone=True)
        self.do(replace(ask, redrive=False), Outcome.DEAD)
        for outcome in (None, Outcome.RETRY, Outcome.RELEASE, Outcome.DEAD):
            if outcome is None:
                self.abandon(ask)
            else:
                self.do(ask, outcome)
            assert self.entry(ask).raw == LETTER.raw
            assert self.found(letters=True) == [ask.key]
        self.do(ask)
        assert self.found(letters=True) == []

    def test_a_redrive_needs_a_dead_letter(self) -> None:
        """A redrive is not granted an event that is unknown, claimed, failed or settled otherwise, and changes none."""
        self.take(self.fact("claimed"))
        for _ in range(2):
            self.do(self.fact("retry"), Outcome.RETRY)
        self.do(self.fact("release"), Outcome.RELEASE)
        self.do(self.fact("done"))
        for name in ("unknown", "claimed", "retry", "release", "done"):
            before = self.ledger.get(digest(name))
            answer = self.answer(self.fact(name, redrive=True))
            assert answer.verdict is not Verdict.FRESH
            assert answer.token == 0
            assert self.ledger.get(digest(name)) == before

    def test_two_redrives_at_once_are_one(self) -> None:
        """The second of two redrives is busy, and a duplicate once the first is done; so is a late original."""
        ask = self.fact("one")
        self.do(ask, Outcome.DEAD)
        redrive = replace(ask, redrive=True)
        claim = self.take(redrive)
        assert self.answer(redrive, by=self.opened()).verdict is Verdict.BUSY
        assert self.verdict(ask) is Verdict.BUSY
        assert self.end(claim)
        assert self.answer(redrive).token == 0
        assert self.verdict(redrive) is Verdict.REDELIVERY
        assert self.verdict(ask) is Verdict.REDELIVERY

    def test_a_redrive_may_be_stale(self) -> None:
        """A dead letter older than its entity's newest is stale when redriven, unless it is forced."""
        for force, verdict in ((False, Verdict.STALE), (True, Verdict.FRESH)):
            entity = digest(f"entity {force}")
            ask = self.state(f"one {force}", "here", 0, entity=entity)
            self.do(ask, Outcome.DEAD)
            self.do(self.state(f"two {force}", "away", 1000, entity=entity))
            assert self.verdict(replace(ask, redrive=True, force=force)) is verdict

    def test_a_discard_leaves_a_tombstone(self) -> None:
        """A discarded letter is gone, but its event stays settled."""
        for ask in (self.fact("fact"), self.state("state", "here", 0)):
            self.do(ask, Outcome.DEAD)
            claim = self.take(replace(ask, redrive=True, force=True))
            assert self.end(claim, Outcome.DISCARD)
            assert self.end(claim, Outcome.DISCARD), "a repeated settle finds its own outcome"
            entry = self.entry(ask)
            assert (entry.status, entry.raw, entry.reason) == (Status.DISCARD, None, "")
            answers = [self.answer(one) for one in (ask, replace(ask, envelope="another"))]
            assert [answer.verdict for answer in answers] == [Verdict.REDELIVERY, Verdict.REPUBLISH]
            assert {answer.was for answer in answers} == {Status.DISCARD}
            assert self.answer(replace(ask, redrive=True)).token == 0


class LookupRules(LedgerStage):
    """Finding things again."""

    def _fill(self) -> None:
        """Put one event of each kind into the ledger, a little time between them."""
        conversation, user = digest("a conversation"), digest("a user")
        self.take(self.fact("claimed", conversation=conversation))
        self.run_out()
        self.do(self.fact("retry", topic="v2.detail.events.conversation.{id}.wrapup", user=user), Outcome.RETRY)
        self.run_out()
        self.do(self.fact("dead", conversation=conversation, user=user), Outcome.DEAD)
        self.run_out()
        other = Letter(raw=b"", reason="unreadable: is empty")
        self.do(self.fact("unreadable", topic=""), Outcome.DEAD, letter=other)

    def test_a_scan_finds_the_longest_unchanged_first(self) -> None:
        """Without conditions a scan finds all that is unfinished or dead, the longest unchanged first."""
        self._fill()
        keys = [digest(name) for name in ("claimed", "retry", "dead", "unreadable")]
        assert self.found() == keys
        assert [self.found(limit=limit) for limit in (0, 1, 3, 9)] == [[], keys[:1], keys[:3], keys]

    def test_a_scan_filters(self) -> None:
        """Status, letter, topic pattern, reason, subject and time each narrow a scan, alone and together."""
        self._fill()
        claimed, retry, dead, unreadable = (digest(name) for name in ("claimed", "retry", "dead", "unreadable"))
        since_us = self.entry(self.fact("dead")).changed_us
        assert self.found(statuses=frozenset({Status.CLAIMED, Status.DEAD})) == [claimed, dead, unreadable]
        assert self.found(letters=True) == [dead, unreadable]
        assert self.found(topic=FACT_TOPIC) == [claimed, dead]
        assert self.found(topic="v2.detail.events.conversation.{any}.acw") == [claimed, dead]
        assert self.found(topic="v2.detail.*") == [claimed, retry, dead]
        assert self.found(topic="v2.detail.events.{id}.acw") == []
        assert self.found(topic="*") == [claimed, retry, dead, unreadable]
        assert self.found(reason="unreadable") == [unreadable]
        assert self.found(reason="ValueError") == [dead]
        assert self.found(reason="%") == []
        assert self.found(subject=digest("a conversation")) == [claimed, dead]
        assert self.found(subject=digest("a user")) == [retry, dead]
        assert self.found(since_us=since_us) == [dead, unreadable]
        assert self.found(until_us=since_us) == [claimed, retry]
        assert self.found(since_us=since_us, until_us=since_us + 1) == [dead]
        assert self.found(subject=digest("a user"), letters=True) == [dead]

    def test_done_events_are_found_where_they_are_kept(self) -> None:
        """A ledger that keeps the ids of done events finds them by status and by subject."""
        if not self.keeps_done:
            pytest.skip("this ledger keeps no ids of done events")
        self.do(self.fact("one", conversation=digest("a conversation")))
        assert self.found(statuses=frozenset({Status.DONE})) == [digest("one")]
        assert self.found(subject=digest("a conversation")) == [digest("one")]

    def test_a_scan_of_entities_finds_the_newest_states(self) -> None:
        """For each entity with a done event, a scan gives its newest one; a held one shows as claimed."""
        user, conversation = digest("a user"), digest("a conversation")
        self.do(self.state("old", "here", 0, user=user))
        self.run_out()
        self.do(self.state("other", "here", 0, entity=digest("Berta"), conversation=conversation))
        self.run_out()
        self.do(self.state("new", "away", 1000, user=user))
        self.verdict(self.state("stale", "gone", 500, user=user))
        self.take(self.state("first", "here", 0, entity=digest("Cleo")))
        newest = list(self.ledger.scan(Query(entities=True)))
        assert [(entry.key, entry.status, entry.topic) for entry in newest] == [
            (digest("other"), Status.DONE, STATE_TOPIC),
            (digest("new"), Status.DONE, STATE_TOPIC),
        ]
        assert [entry.time_ms for entry in newest] == [self.base_ns // NS_PER_MS, self.base_ns // NS_PER_MS + 1000]
        assert [entry.envelope for entry in newest] == ["envelope of other", "envelope of new"]
        assert self.found(entities=True, subject=user) == [digest("new")]
        assert self.found(entities=True, subject=conversation) == [digest("other")]
        assert self.found(entities=True, limit=1) == [digest("other")]
        self.take(self.state("newer", "here", 2000, user=user))
        (held,) = self.ledger.scan(Query(entities=True, subject=user))
        assert (held.key, held.status) == (digest("new"), Status.CLAIMED)

    def test_what_is_known_of_a_claim(self) -> None:
        """An event that is claimed shows its topic, its time, its attempts, since when, and when its lease ends."""
        for ask in (self.fact("fact"), self.state("state", "here", 0)):
            self.do(ask, Outcome.RETRY)
            before_us = self.now_us()
            claim = self.take(ask)
            entry = self.entry(ask)
            assert (entry.status, entry.topic, entry.time_ms) == (Status.CLAIMED, ask.topic, ask.time_ms)
            assert entry.attempts == 1
            assert before_us + self.lease_us <= entry.lease_until_us <= self.now_us() + self.lease_us
            assert before_us <= entry.changed_us <= self.now_us()
            assert entry.claimed_us == claim.token  # a token is the time of its claim

    def test_what_is_known_of_an_end(self) -> None:
        """An event that has ended shows when that was, and no lease."""
        held = []
        for outcome in ENDS:
            state = self.state(f"state {outcome}", outcome.value, 0, entity=digest(outcome.value))
            held += [(self.take(ask), outcome) for ask in (self.fact(f"fact {outcome}"), state)]
        self.run_out()
        for claim, outcome in held:
            before_us = self.now_us()
            assert self.end(claim, outcome)
            entry = self.entry(claim.ask)
            assert (entry.status, entry.lease_until_us) == (Status(outcome.value), 0)
            if self.keeps_done or outcome is not Outcome.DONE:
                assert before_us <= entry.changed_us <= self.now_us()

    def test_counts_add_up(self) -> None:
        """Each event of each handler is counted once, under its status."""
        for outcome in (Outcome.DONE, Outcome.RETRY, Outcome.RELEASE, Outcome.DEAD):
            for number in range(2):
                self.do(self.fact(f"{outcome} {number}"), outcome)
        self.take(self.fact("done 0", handler="another"))
        self.do(self.state("done", "here", 0))
        self.verdict(self.state("echo", "here", 1))
        self.verdict(self.state("stale", "gone", -1))
        assert self.counted() == {
            Status.DONE: 3,
            Status.RETRY: 2,
            Status.RELEASE: 2,
            Status.DEAD: 2,
            Status.CLAIMED: 1,
            Status.ECHO: 1,
            Status.STALE: 1,
        }

    def test_migrating_again_changes_nothing(self) -> None:
        """To migrate is safe to repeat, and while workers work."""
        claim = self.take(self.fact("one"))
        self.opened().migrate()
        self.ledger.migrate()
        assert self.end(claim)


class PurgeRules(LedgerStage):
    """Old events are forgotten, and nothing else."""

    def test_a_purge_forgets_what_was_settled_before(self) -> None:
        """Only events that were settled longer ago than the retention are fresh again."""
        # Days apart by event time as well: a ledger may forget in buckets of event times.
        old = self.fact("old", time_ms=self.base_ns // NS_PER_MS - 20 * DAY_MS)
        self.do(old)
        # Longer than a brief lease: what follows has to be over before the new event is old as well.
        retention_us = 15 * self.brief_us
        self.advance(retention_us * 1.01 / 1_000_000)
        self.do(self.fact("new"))
        assert self.ledger.purge(older_than_us=retention_us) == 1
        assert self.counted() == {Status.DONE: 1}
        assert self.ledger.purge(older_than_us=retention_us) == 0
        assert self.verdict(self.fact("new")) is Verdict.REDELIVERY
        self.take(old)

    def test_a_purge_counts_from_the_settle(self) -> None:
        """An event that was claimed long ago and settled just now is remembered, and so is its entity's data."""
        # Longer than a brief lease: what follows has to be over before the settle is old as well.
        retention_us = 8 * self.brief_us
        claims = [self.take(self.fact("fact")), self.take(self.state("state", "here", 0))]
        self.advance(retention_us * 1.01 / 1_000_000)
        assert all(self.end(claim) for claim in claims)
        assert self.ledger.purge(older_than_us=retention_us) == 0
        assert [self.verdict(claim.ask) for claim in claims] == [Verdict.REDELIVERY] * 2
        assert self.verdict(self.state("echo", "here", 100)) is Verdict.ECHO

    def test_a_purge_never_forgets_what_is_not_settled(self) -> None:
        """Dead letters, claims, retries and releases stay, however old they are."""
        kept = [(Outcome.DEAD, Status.DEAD), (Outcome.RETRY, Status.RETRY), (Outcome.RELEASE, Status.RELEASE)]
        for outcome, _ in kept:
            self.do(self.fact(outcome.value), outcome)
        claim = self.take(self.fact("claimed"))
        self.do(self.fact("done"))
        self.run_out()
        assert self.ledger.purge(older_than_us=0) == 1
        assert self.counted() == {Status.CLAIMED: 1, **{status: 1 for _, status in kept}}
        assert self.entry(self.fact("dead")).raw == LETTER.raw
        assert self.end(claim)

    def test_a_purge_leaves_a_held_entity_to_its_holder(self) -> None:
        """A claim on an entity stays in force through a purge, with its lease running and after it ran out."""
        running = self.take(self.state("running", "here", 0))
        late = self.take(self.state("late", "here", 0, entity=digest("Berta")), lease_us=self.brief_us)
        self.run_out()
        self.ledger.purge(older_than_us=0)
        assert self.verdict(self.state("meanwhile", "away", 1000)) is Verdict.BUSY
        assert self.extend(running)
        assert self.end(running)
        assert self.end(late)

    def test_tokens_increase_through_a_purge(self) -> None:
        """A claim after its event or entity was forgotten has a higher token than those before."""
        for ask in (self.fact("fact"), self.state("state", "here", 0)):
            before = self.do(ask)
            self.run_out()
            self.ledger.purge(older_than_us=0)
            assert self.take(ask).token > before.token


class SecretRules(LedgerStage):
    """One secret for all workers of a ledger."""

    def test_workers_agree_on_the_ledgers_own_secret(self) -> None:
        """A worker that opens a ledger without a secret gets the one it made; a worker that has it may open it."""
        first = self.unopened().open(None)
        assert len(first) >= len(digest("as long as a key"))
        assert self.unopened().open(None) == first
        assert self.unopened().open(first) == first

    def test_workers_agree_when_they_all_come_first(self) -> None:
        """Eight workers that open an empty ledger at the same moment get one secret."""
        handles = [self.unopened() for _ in range(8)]
        start = threading.Barrier(len(handles))

        def open_together(number: int) -> bytes:
            start.wait()
            return handles[number].open(None)

        with ThreadPoolExecutor(len(handles)) as pool:
            assert len(set(pool.map(open_together, range(len(handles))))) == 1

    def test_a_secret_given_first_is_the_ledgers(self) -> None:
        """A ledger first opened with a secret takes it again, and refuses another one and none at all."""
        assert self.unopened().open(SECRET) == SECRET
        assert self.unopened().open(SECRET) == SECRET
        for other in (SECRET[::-1], None):
            with pytest.raises(LedgerRefused):
                self.unopened().open(other)
        assert self.unopened().open(SECRET) == SECRET

    def test_another_secret_than_the_ledgers_own_is_refused(self) -> None:
        """A ledger that made its own secret refuses a worker with another."""
        own = self.unopened().open(None)
        with pytest.raises(LedgerRefused):
            self.unopened().open(SECRET)
        assert self.unopened().open(None) == own

    def test_a_given_secret_is_not_written_down(self) -> None:
        """A secret that was given stays with who gave it."""
        self.unopened().open(SECRET)
        stored = self.stored_bytes()
        if stored is None:
            pytest.skip("nobody can look into this ledger")
        assert SECRET not in stored
        assert SECRET.hex().encode() not in stored
