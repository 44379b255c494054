"""The ledger contract on notes: counts and texts for people, which the promise does not depend on."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pytest

from oncebridge.ledgers.notes import KeepsNotes, Note, Notes
from oncebridge.testing.ledger_contract.stage import LedgerStage

HOUR_US: Final = 3_600_000_000
ODD_NAMES: Final = ["a b", "a|b", "\u00e9\u00df", "\U0001f600", "x" * 200, "'; --", "%_", "{id}", "\\"]


class NoteRules(LedgerStage):
    """Notes: counted up, listed from the last on, changed only as they were."""

    @property
    def notes(self) -> Notes:
        """The notes of the ledger; one that keeps none passes without these rules."""
        if not isinstance(self.ledger, KeepsNotes):
            pytest.skip("this ledger keeps no notes")
        return self.ledger.notes

    def test_numbers_are_added_to_counts(self) -> None:
        """Numbers are added to what is there, each page and name by itself, and every handle sees the sum."""
        self.notes.add_counts({"one": {"a": 1, "b": 2}, "two": {"a": 5}}, keep_us=HOUR_US)
        other = self.opened()
        assert isinstance(other, KeepsNotes)
        other.notes.add_counts({"one": {"b": 40, "c": -1}}, keep_us=HOUR_US)
        assert self.notes.read_counts(["two", "none", "one"]) == [{"a": 5}, {}, {"a": 1, "b": 42, "c": -1}]

    def test_counts_of_many_workers_add_up(self) -> None:
        """Workers that count at the same time lose no number."""
        names = {f"topic {number}": 1 for number in range(10)}
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: self.notes.add_counts({"minute": names}, keep_us=HOUR_US), range(20)))
        assert self.notes.read_counts(["minute"]) == [dict.fromkeys(names, 20)]

    def test_many_counts_fit_into_a_page(self) -> None:
        """A page has room for a thousand counts."""
        numbers = {f"v2.topic.{number:04d}|handler|processed": number for number in range(1000)}
        self.notes.add_counts({"full": numbers}, keep_us=HOUR_US)
        assert self.notes.read_counts(["full"]) == [numbers]

    def test_notes_are_read_from_the_last_name_on(self) -> None:
        """Notes come in the reverse order of their names, a limited number, below a name if one is given."""
        self.notes.write_notes("log", {f"{number:03d}": b"%d" % number for number in range(30)}, keep_us=HOUR_US)
        self.notes.write_notes("other", {"999": b"elsewhere"}, keep_us=HOUR_US)
        assert self.notes.read_notes("log", limit=2) == [Note("029", b"29"), Note("028", b"28")]
        assert self.notes.read_notes("log", below="028", limit=2) == [Note("027", b"27"), Note("026", b"26")]
        assert [note.name for note in self.notes.read_notes("log", below="002")] == ["001", "000"]
        assert self.notes.read_notes("log", below="000") == self.notes.read_notes("none") == []

    def test_a_note_is_written_over(self) -> None:
        """A note that is written again has its new value."""
        self.notes.write_notes("workers", {"one": b"old", "two": b"kept"}, keep_us=HOUR_US)
        self.notes.write_notes("workers", {"one": b"new"}, keep_us=HOUR_US)
        assert self.notes.read_notes("workers") == [Note("two", b"kept"), Note("one", b"new")]

    def test_the_newest_notes_are_kept(self) -> None:
        """However many are written, the newest are all there."""
        for start in range(0, 40, 10):
            values = {f"{number:03d}": b"" for number in range(start, start + 10)}
            self.notes.write_notes("sample", values, keep_us=HOUR_US, newest=15)
        assert [note.name for note in self.notes.read_notes("sample")[:15]] == [f"{n:03d}" for n in range(39, 24, -1)]

    def test_a_note_changes_only_as_it_was(self) -> None:
        """A swap takes effect if the note has the value named, or is not there where none is named."""

        def swap(before: bytes | None, after: bytes | None) -> bool:
            return self.notes.swap_note("requests", "one", before, after, keep_us=HOUR_US)

        assert not swap(b"x", b"y")
        assert swap(None, b"asked")
        assert not swap(None, b"again")
        assert not swap(b"taken", b"done")
        assert swap(b"asked", b"taken")
        assert self.notes.read_notes("requests") == [Note("one", b"taken")]
        assert not swap(b"asked", None)
        assert swap(b"taken", None)
        assert self.notes.read_notes("requests") == []
        assert swap(None, b"anew")

    def test_one_of_many_swaps_wins(self) -> None:
        """Of workers that take the same request at the same time one gets it."""
        for name in map(str, range(5)):
            self.notes.write_notes("requests", {name: b"asked"}, keep_us=HOUR_US)

            def take(worker: int, name: str = name) -> bool:
                return self.notes.swap_note("requests", name, b"asked", b"by %d" % worker, keep_us=HOUR_US)

            with ThreadPoolExecutor(8) as pool:
                assert list(pool.map(take, range(8))).count(True) == 1

    def test_names_and_values_may_be_anything(self) -> None:
        """Whatever is in a name or a value comes back as it was, and is ordered by its bytes."""
        values = {name: bytes(range(256)) + name.encode() for name in ODD_NAMES}
        self.notes.write_notes("odd 'page'", values, keep_us=HOUR_US)
        self.notes.add_counts({"odd 'page'": dict.fromkeys(ODD_NAMES, 2**40)}, keep_us=HOUR_US)
        ordered = sorted(values, key=str.encode, reverse=True)
        assert self.notes.read_notes("odd 'page'") == [Note(name, values[name]) for name in ordered]
        assert self.notes.read_counts(["odd 'page'"]) == [dict.fromkeys(ODD_NAMES, 2**40)]

    def test_notes_are_forgotten(self) -> None:
        """What was to be kept for a moment is not found later, and can be written again."""
        self.notes.add_counts({"brief": {"a": 1}}, keep_us=self.brief_us)
        self.notes.write_notes("brief", {"a": b"1"}, keep_us=self.brief_us)
        assert self.notes.read_counts(["brief"]) == [{"a": 1}]
        assert self.notes.read_notes("brief") == [Note("a", b"1")]
        self.advance(2 * self.brief_us / 1_000_000 + 1)
        assert self.notes.read_counts(["brief"]) == [{}]
        assert self.notes.read_notes("brief") == []
        assert self.notes.swap_note("brief", "a", None, b"2", keep_us=HOUR_US)
        assert self.notes.read_notes("brief") == [Note("a", b"2")]
