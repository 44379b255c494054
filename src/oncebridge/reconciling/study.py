"""One run: reads conversations slice by slice, compares them, and answers; what was read survives an interruption."""

from __future__ import annotations

import secrets
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from msgspec.structs import replace

from oncebridge.attendance import conversation_digest
from oncebridge.genesys.conversations import iso, milliseconds
from oncebridge.genesys.details import watermark_ms
from oncebridge.reconciling.changes import Changes, Comparing, in_words
from oncebridge.reconciling.comparison import Window
from oncebridge.reconciling.gaps import Gaps
from oncebridge.reconciling.result import GAPS_SHOWN, Run, shown_silences, with_causes
from oncebridge.reconciling.runs import Progress
from oncebridge.reconciling.silences import Silences
from oncebridge.reconciling.slices import (
    Once,
    Total,
    in_batches,
    slices_of,
    write_part,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from oncebridge.genesys.api import GenesysAPI
    from oncebridge.genesys.conversations import Conversation
    from oncebridge.reconciling.gaps import Gap
    from oncebridge.reconciling.place import Place
    from oncebridge.reconciling.result import ShownGap

#: Gets how many slices are done, how many there are, and how many conversations were judged.
OnSlice: TypeAlias = "Callable[[int, int, int], None]"


class Question(NamedTuple):
    """What a person asks."""

    window: Window
    #: Only this one; None: all.
    conversation: str | None = None
    #: The words of the question, to recognise it.
    asked: tuple[str, ...] = ()

    def chosen(self, conversations: list[Conversation]) -> list[Conversation]:
        """Return those that are asked about."""
        wanted = self.conversation
        return conversations if wanted is None else [one for one in conversations if one.id == wanted]


class Study:
    """What a run found. Its gaps are read once: causes and changes are known behind the last of them."""

    def __init__(self, total: Total, window: Window, made: str, place: Place, *, everything: bool) -> None:
        """Take what all slices brought, and whether they were asked for all conversations."""
        self._total, self._place = total, place
        #: What changed since an earlier run; known once all gaps were read.
        self.changes = Changes()
        families = sorted(place.known.subscribed)
        self._silences = Silences(total.all.activity, total.all.counts.ended, several=len(families) > 1)
        mark = window.watermark_ms if window.watermark_ms is not None else total.all.last_ended_ms
        self._run = Run(
            made=made,
            since=iso(window.from_ms),
            until=iso(window.until_ms),
            watermark="" if mark is None else iso(mark),
            counts=total.all.counts,
            families=families,
        )
        runs = place.runs.latest() if everything else []  # a single conversation says little of others
        self._comparing = Comparing(runs, self._run, self._came_since)

    def _came_since(self, conversations: Sequence[str], made: str) -> set[str]:
        """Return of which conversations something came since another run, by the ledger's clock."""
        digests = [conversation_digest(one, self._place.known.secret) for one in conversations]
        found = zip(conversations, self._place.ledger.attendance(digests), strict=True)
        made_us = (milliseconds(made) or 0) * 1000
        return {one for one, attendance in found if attendance is not None and attendance.last_us > made_us}

    def gaps(self, fill: Callable[[Gap, str], None] = lambda *_: None) -> Iterator[ShownGap]:
        """Yield all gaps with their causes, once `fill` got each."""
        causes: Counter[str] = Counter()
        shown: list[ShownGap] = []
        for gap, seen in with_causes(self._total.gaps, self._silences):
            self._comparing.look(seen)
            causes[seen.cause.value] += 1
            if len(shown) < GAPS_SHOWN:
                shown.append(seen)
            fill(gap, seen.cause.value)
            yield seen
        self._run = replace(
            self._run,
            causes=dict(causes.most_common()),
            silences=shown_silences(self._silences),
            gaps=shown,
            gaps_left_out=causes.total() - len(shown),
        )
        self.changes = self._comparing.changes()
        self._run = replace(self._run, changes=in_words(self.changes))

    @property
    def run(self) -> Run:
        """The run; whole once all gaps were read."""
        return self._run


def study_files(
    conversations: Iterable[Conversation], question: Question, made: str, place: Place, gaps: Gaps
) -> Study:
    """Compare conversations of saved answers."""
    total, once = Total(place.ledger, place.known, question.window, gaps), Once()
    for batch in in_batches([one] for one in conversations):
        total.all.add(question.chosen(once.new(batch, None)))
    return Study(total, question.window, made, place, everything=question.conversation is None)


def study_genesys(
    api: GenesysAPI, question: Question, place: Place, gaps: Gaps, *, now_ms: int, anew: bool, on_slice: OnSlice
) -> tuple[Study, Progress]:
    """Ask Genesys for conversations, a slice at a time, and compare them.

    A run that was interrupted goes on: slices that it has kept are not asked for again.
    """
    progress = None if anew else place.runs.interrupted(question.asked, place.known.subscribed)
    if progress is None:
        progress = _begun(api, question, now_ms, place)
    window = Window(progress.from_ms, progress.until_ms, progress.watermark_ms)
    total, once = Total(place.ledger, place.known, window, gaps), Once()
    parts = place.runs.parts(progress)
    slices = slices_of(window, progress.now_ms, question.conversation or "")
    for done, part in enumerate(slices):
        on_slice(done, len(slices), total.all.counts.ended)
        kept = parts.get(part.name)
        if kept is not None:
            total.add_kept(kept)
            once.go_on(part, kept.open)
            continue
        with Gaps() as found:
            comparison = total.part(found)
            for batch in in_batches(part.pages(api)):
                comparison.add(question.chosen(once.new(batch, part)))
            open_ = once.end_slice(part)
            total.add(comparison, found)
            place.runs.keep_part(progress, part, write_part(comparison, found, open_))
    on_slice(len(slices), len(slices), total.all.counts.ended)
    return Study(total, window, progress.made, place, everything=question.conversation is None), progress


def _begun(api: GenesysAPI, question: Question, now_ms: int, place: Place) -> Progress:
    """Begin a run: ask for the watermark, and note the question."""
    progress = Progress(
        asked=[*question.asked],
        id=secrets.token_hex(8),
        made=iso(now_ms, "milliseconds"),
        from_ms=question.window.from_ms,
        until_ms=question.window.until_ms,
        watermark_ms=watermark_ms(api),
        now_ms=now_ms,
        families=sorted(place.known.subscribed),
    )
    place.runs.begin(progress)
    return progress
