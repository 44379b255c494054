"""The ledger contract on reading in pages: dead letters by page and by group, and what is known of one subject."""

from __future__ import annotations

from typing import Any, Final

import pytest
from msgspec.structs import replace

from oncebridge.claim import Ask, Letter, Outcome
from oncebridge.errors import ConfigurationError
from oncebridge.ledgers.protocol import Entry, LetterGroup, LetterGroups, Query, ReadsInPages
from oncebridge.testing.ledger_contract.stage import (
    FACT_TOPIC,
    LETTER,
    STATE_TOPIC,
    LedgerStage,
    claim_of,
    digest,
    settlement_of,
)

LONG_SECONDS: Final = 30.0
GROUPS_MAX: Final = 200
OTHER: Final = Letter(raw=b"{", reason="unreadable: is no JSON")
NO_PAGES: Final = ["x", "1", "1.2", "..", "1.zz.", "-1.00.", "1.00.!", "1" * 40 + ".00.", "{}", "\0", "é", "a" * 5000]


class PageRules(LedgerStage):
    """Pages: every letter on one of them, the newest first, counted by group; and all about one subject."""

    @property
    def paged(self) -> ReadsInPages:
        """The ledger; one that cannot be read in pages passes without these rules."""
        if not isinstance(self.ledger, ReadsInPages):
            pytest.skip("this ledger cannot be read in pages")
        return self.ledger

    def walk(self, limit: int = 3, **filters: Any) -> list[Entry]:
        """Turn pages to the end, and return what was on them."""
        found: list[Entry] = []
        after: str | None = None
        for _ in range(100):
            page = self.paged.letter_page(Query(**filters), after=after, limit=limit)
            assert len(page.entries) <= limit
            changed = [entry.changed_us for entry in page.entries]
            assert changed == sorted(changed, reverse=True)
            found += page.entries
            if page.next is None:
                return found
            assert page.next != after, "a page leads to itself"
            after = page.next
        pytest.fail("the pages have no end")

    def walked(self, **filters: Any) -> list[bytes]:
        """Return the keys on all pages, in order."""
        return [entry.key for entry in self.walk(**filters)]

    def die(self, *asks: Ask, letter: Letter = LETTER) -> list[bytes]:
        """Make several events dead letters in one call, and return their keys."""
        answers = self.answers(*asks)
        claims = [claim_of(ask, answer) for ask, answer in zip(asks, answers, strict=True)]
        assert all(self.ledger.settle([settlement_of(claim, Outcome.DEAD, letter=letter) for claim in claims]))
        return [ask.key for ask in asks]

    def facts(self, number: int, **fields: Any) -> list[Ask]:
        """Make asks for so many events."""
        return [self.fact(f"letter {place}", **fields) for place in range(number)]

    def counted_groups(self) -> LetterGroups:
        """Return the groups; all letters are counted, and each group once."""
        found = self.paged.letter_groups()
        assert found.complete
        assert len({(one.handler, one.reason, one.topic) for one in found.groups}) == len(found.groups)
        return found

    # --- pages of letters ----------------------------------------------------------------------------------

    def test_letters_come_in_pages_the_newest_first(self) -> None:
        """Every letter is on one page, as a scan shows it, and the pages lead from the newest to the oldest."""
        assert self.walk() == []
        number = 8
        for place in range(number):
            self.do(self.fact(f"letter {place}", handler="h" * (place % 2)), Outcome.DEAD)
            self.advance(0.001)
        self.do(self.fact("done"))
        self.do(self.fact("to be retried"), Outcome.RETRY)
        shown = list(self.ledger.scan(Query(letters=True)))
        assert len(shown) == number
        found = self.walk()
        assert sorted(found, key=lambda entry: entry.changed_us) == shown
        if self.paged.letter_page(Query()).newest_first:
            assert found == shown[::-1]

    def test_letters_of_one_moment_are_on_one_page_each(self) -> None:
        """Letters that died in one call are all on the pages, each once."""
        keys = self.die(*self.facts(25))
        assert sorted(self.walked(limit=4)) == sorted(keys)
        assert sorted(self.walked(limit=1)) == sorted(keys)
        assert sorted(self.walked(limit=1000)) == sorted(keys)

    def test_a_page_has_no_content(self) -> None:
        """Neither raw nor detail are on a page."""
        self.die(*self.facts(2))
        assert [(entry.reason, entry.raw, entry.detail) for entry in self.walk()] == [(LETTER.reason, None, "")] * 2

    def test_filters_narrow_pages(self) -> None:
        """Topic pattern, part of the reason, handler and time each narrow the pages, alone and together."""
        (old,) = self.die(self.fact("old"))
        self.advance(0.002)
        (state,) = self.die(self.state("state", "here", 0, handler="other"))
        (unreadable,) = self.die(self.fact("unreadable", topic="", handler="other"), letter=OTHER)
        first, *_ = [entry.changed_us for entry in self.ledger.get(state)]
        assert self.walked(topic=FACT_TOPIC) == [old]
        assert self.walked(topic="v2.*") in ([state, old], [old, state])
        assert self.walked(reason="no JSON") == [unreadable]
        assert self.walked(handler="") == [old]
        assert set(self.walked(handler="other")) == {state, unreadable}
        assert set(self.walked(since_us=first)) == {state, unreadable}
        assert self.walked(until_us=first) == [old]
        assert self.walked(handler="other", topic=STATE_TOPIC, since_us=first) == [state]
        assert self.walked(handler="nobody") == self.walked(handler="", reason="no JSON") == []

    def test_a_rare_letter_is_found_behind_many_others(self) -> None:
        """Pages of a filter that few letters match lead to all of them."""
        rare = self.die(self.fact("rare", handler="rare"))
        self.die(*self.facts(30))
        assert self.walked(handler="rare") == rare

    def test_a_scan_can_be_narrowed_to_a_handler(self) -> None:
        """A scan for a handler finds its events alone; that without a name is a handler as well."""
        self.die(self.fact("one"), self.fact("two", handler="other"))
        assert self.found(handler="other") == self.found(handler="other", letters=True) == [digest("two")]
        assert self.found(handler="") == [digest("one")]
        assert self.found(handler="nobody") == []

    def test_pages_go_on_behind_a_letter_that_is_gone(self) -> None:
        """The next page begins where the last one ended, even if the letter there was discarded since."""
        asks = self.facts(9)
        self.die(*asks)
        page = self.paged.letter_page(Query(), limit=4)
        for entry in page.entries[1:]:
            (gone,) = [ask for ask in asks if ask.key == entry.key]
            self.do(replace(gone, redrive=True), Outcome.DISCARD)
        assert page.next is not None
        rest = self.paged.letter_page(Query(), after=page.next, limit=100).entries
        left = {ask.key for ask in asks} - {entry.key for entry in page.entries}
        assert sorted(entry.key for entry in rest) == sorted(left)

    def test_pages_hold_letters_as_long_as_they_are_kept(self) -> None:
        """A letter that is being redriven stays on a page; one that is done or discarded is gone from there."""
        one, two, three = self.facts(3)
        self.die(one, two, three)
        self.take(replace(one, redrive=True))
        self.do(replace(two, redrive=True))
        self.do(replace(three, redrive=True), Outcome.DISCARD)
        assert self.walked() == [one.key]
        assert self.counted_groups().total == 1

    def test_a_text_that_no_page_gave_is_refused(self) -> None:
        """A place to go on from that is none raises an error that says so; an empty one is the first page."""
        (key,) = self.die(self.fact("one"))
        for text in NO_PAGES:
            with pytest.raises(ConfigurationError, match="page"):
                self.paged.letter_page(Query(), after=text)
        assert [entry.key for entry in self.paged.letter_page(Query(), after="").entries] == [key]

    # --- groups --------------------------------------------------------------------------------------------

    def test_letters_are_counted_by_group(self) -> None:
        """Letters are counted by handler, reason and topic, the most frequent first, for every worker alike."""
        assert self.counted_groups() == LetterGroups([], 0, complete=True)
        self.die(*self.facts(4))
        self.die(self.fact("a"), self.fact("b"), letter=OTHER)
        self.die(*self.facts(3, handler="other"))
        self.die(self.fact("c", topic=""))
        other = self.opened()
        assert isinstance(other, ReadsInPages)
        found = other.letter_groups()
        assert found == self.counted_groups()
        assert found.total == sum(group.number for group in found.groups)
        assert found.groups == [
            LetterGroup("", LETTER.reason, FACT_TOPIC, 4),
            LetterGroup("other", LETTER.reason, FACT_TOPIC, 3),
            LetterGroup("", OTHER.reason, FACT_TOPIC, 2),
            LetterGroup("", LETTER.reason, "", 1),
        ]

    def test_a_letter_is_counted_once(self) -> None:
        """A letter that dies again is counted once, under its latest reason; a repeated settle counts nothing."""
        ask = self.fact("one")
        claim = self.do(ask, Outcome.DEAD)
        assert self.end(claim, Outcome.DEAD)
        assert self.counted_groups().groups == [LetterGroup("", LETTER.reason, FACT_TOPIC, 1)]
        self.do(replace(ask, redrive=True), Outcome.RETRY)
        self.do(replace(ask, redrive=True), Outcome.DEAD, letter=OTHER)
        assert self.counted_groups() == LetterGroups([LetterGroup("", OTHER.reason, FACT_TOPIC, 1)], 1, complete=True)
        self.do(replace(ask, redrive=True))
        assert self.counted_groups() == LetterGroups([], 0, complete=True)

    def test_many_groups_are_cut_off(self) -> None:
        """Of many groups the most frequent are returned, and the total counts the others, too."""
        self.die(*[self.fact(f"letter {number}", topic=f"v2.{number}") for number in range(GROUPS_MAX + 10)])
        self.die(self.fact("more", topic="v2.7"))
        found = self.counted_groups()
        assert found.groups[0] == LetterGroup("", LETTER.reason, "v2.7", 2)
        assert (len(found.groups), found.total) == (GROUPS_MAX, GROUPS_MAX + 11)

    def test_forgetting_leaves_pages_and_groups(self) -> None:
        """A purge leaves every letter on its page and in its group."""
        keys = self.die(*self.facts(3))
        self.do(self.fact("done"))
        self.advance(0.002)
        self.ledger.purge(older_than_us=0)
        assert sorted(self.walked()) == sorted(keys)
        assert self.counted_groups().total == len(keys)

    # --- one subject ---------------------------------------------------------------------------------------

    def test_a_subject_is_found(self) -> None:
        """What is unfinished or dead is found by its conversation and its user, and so are newest states."""
        conversation, user = digest("a conversation"), digest("a user")
        asks = [self.fact(f"fact {number}", conversation=conversation, user=user) for number in range(4)]
        for ask, outcome in zip(asks, (Outcome.RETRY, Outcome.RELEASE, Outcome.DEAD), strict=False):
            self.do(ask, outcome)
        self.take(asks[3])
        self.do(self.state("state", "here", 0, user=user))
        self.do(self.fact("elsewhere", conversation=digest("another"), user=digest("somebody")), Outcome.DEAD)
        for subject, newest in ((conversation, []), (user, [digest("state")])):
            found = self.paged.about(subject, seconds=LONG_SECONDS)
            assert found.complete
            assert {entry.key for entry in found.entries} - {digest("state")} == {ask.key for ask in asks}
            assert all(entry.raw is None and not entry.detail for entry in found.entries)
            changed = [entry.changed_us for entry in found.entries]
            assert changed == sorted(changed, reverse=True)
            assert [entry.key for entry in found.newest] == newest
        nobody = self.paged.about(digest("nobody"), seconds=LONG_SECONDS)
        assert (nobody.entries, nobody.newest, nobody.complete) == ([], [], True)

    def test_a_subject_shows_what_a_scan_does(self) -> None:
        """An entry about a subject is the same as in a scan, and as it is now."""
        user = digest("a user")
        one, two = self.fact("one", user=user), self.fact("two", user=user, handler="other")
        self.do(one, Outcome.RETRY)
        self.do(two, Outcome.DEAD)
        self.do(one, Outcome.DEAD)
        found = self.paged.about(user, seconds=LONG_SECONDS).entries
        assert sorted(found, key=lambda entry: entry.changed_us) == list(self.ledger.scan(Query(subject=user)))
        self.do(replace(two, redrive=True), Outcome.DISCARD)
        found = self.paged.about(user, seconds=LONG_SECONDS).entries
        assert [entry.key for entry in found if entry.reason] == [one.key]

    def test_what_is_left_out_about_a_subject_is_told(self) -> None:
        """Of a subject with very many events some are returned, and that it is not all of them is told."""
        user = digest("a user")
        for start in range(0, 240, 80):
            self.die(*[self.fact(f"letter {number}", user=user) for number in range(start, start + 80)])
        found = self.paged.about(user, seconds=LONG_SECONDS)
        assert len(found.entries) == GROUPS_MAX
        assert not found.complete
