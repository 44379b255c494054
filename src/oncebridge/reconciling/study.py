"""One run: reads conversations slice by slice, compares them, and answers; what was read survives an interruption."""

from __future__ import annotations

import secrets
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from msgspec.structs import replace

from oncebridge.genesys.conversations import iso
from oncebridge.genesys.details import by_query, watermark_ms
from oncebridge.reconciling.changes import Changes, Comparing, in_words
from oncebridge.reconciling.comparison import Window
from oncebridge.reconciling.gaps import Gaps
from oncebridge.reconciling.result import GAPS_SHOWN, Run, shown_silences, with_causes
from oncebridge.reconciling.runs import Progress
from oncebridge.reconciling.silences import Silences
from oncebridge.reconciling.slices import (
    LOOK_BACK_MS,
    Once,
    Slice,
    Total,
    in_batches,
    slices_of,
    write_part,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

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

    def __init__(self, total: Total, window: Window, made: str, place: Place) -> None:
        """Take what all slices brought."""
        self._total, self._window, self._made, self._place = total, window, made, place
        families = sorted(place.known.subscribed)
        self._silences = Silences(total.all.activity, several=len(families) > 1)
        since, until = iso(window.from_ms), iso(window.until_ms)
        self._comparing = Comparing(place.runs.latest(), since, until)
        mark = window.watermark_ms if window.watermark_ms is not None else total.all.last_ended_ms
        self._run = Run(
            made=made,
            since=since,
            until=until,
            watermark="" if mark is None else iso(mark),
            counts=total.all.counts,
            families=families,
        )

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
            changes=in_words(self.changes),
        )

    @property
    def changes(self) -> Changes:
        """What changed since an earlier run; known once all gaps were read."""
        return self._comparing.changes()

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
    return Study(total, question.window, made, place)


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
    slices = slices_of(window, progress.now_ms)
    if question.conversation is not None:
        slices = [Slice(window.from_ms - LOOK_BACK_MS, window.until_ms)]
    for done, part in enumerate(slices):
        on_slice(done, len(slices), total.all.counts.ended)
        kept = parts.get(part.name)
        if kept is not None:
            total.add_kept(kept)
            once.go_on(part, kept.open)
            continue
        with Gaps() as found:
            comparison = total.part(found)
            for batch in in_batches(_pages(api, part, question)):
                comparison.add(question.chosen(once.new(batch, part)))
            open_ = once.end_slice(part)
            total.add(comparison, found)
            place.runs.keep_part(progress, part, write_part(comparison, found, open_))
    on_slice(len(slices), len(slices), total.all.counts.ended)
    return Study(total, window, progress.made, place), progress


def _pages(api: GenesysAPI, part: Slice, question: Question) -> Iterator[list[Conversation]]:
    if question.conversation is not None:
        return by_query(api, part.from_ms, part.until_ms, conversation=question.conversation)
    return part.pages(api, part.from_ms, part.until_ms)


def _begun(api: GenesysAPI, question: Question, now_ms: int, place: Place) -> Progress:
    """Begin a run: ask for the watermark, and note the question."""
    progress = Progress(
        asked=[*question.asked],
        id=secrets.token_hex(8),
        made=iso(now_ms),
        from_ms=question.window.from_ms,
        until_ms=question.window.until_ms,
        watermark_ms=watermark_ms(api),
        now_ms=now_ms,
        families=sorted(place.known.subscribed),
    )
    place.runs.begin(progress)
    return progress
