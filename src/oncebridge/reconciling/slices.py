"""The slices that a run reads one after the other, each conversation of them once, and what is kept of each."""

from __future__ import annotations

import zlib
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from oncebridge.genesys.details import by_batch, by_query
from oncebridge.reconciling.comparison import Comparison, Counts
from oncebridge.reconciling.gaps import Gap, Gaps

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from oncebridge.genesys.api import GenesysAPI
    from oncebridge.genesys.conversations import Conversation
    from oncebridge.ledgers.protocol import KeepsAttendance
    from oncebridge.reconciling.comparison import Known, Window

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
#: Genesys finds conversations by the day on which they began: those that ended in a window may have begun before it.
LOOK_BACK_MS: Final = DAY_MS
#: Conversations by these media may last for days, so that those which began so long before are looked for as well.
LASTING: Final = ("callback", "chat", "email", "message")
LOOK_FAR_BACK_MS: Final = 15 * DAY_MS
#: What is older than that, Genesys has begun to correct: it is read by job, a day at a time.
OLD_MS: Final = 2 * DAY_MS
#: The longest interval that Genesys takes.
INTERVAL_MS: Final = 30 * DAY_MS
#: More gaps than that of one slice are not kept for a run that goes on: the slice is read again.
GAPS_KEPT: Final = 2000
#: Conversations that are compared in one call of the ledger.
BATCH: Final = 500


class Slice(NamedTuple):
    """A part of the time that a run asks Genesys about."""

    from_ms: int
    until_ms: int
    as_batch: bool = False
    #: Only conversations by one of these; empty: all.
    media: tuple[str, ...] = ()
    #: Only this one; empty: all.
    conversation: str = ""

    @property
    def name(self) -> str:
        """Its name in the notes."""
        return f"{self.from_ms:015}"

    def pages(self, api: GenesysAPI) -> Iterator[list[Conversation]]:
        """Ask Genesys for its conversations; some of them may come twice, and others with them."""
        if self.as_batch:
            return by_batch(api, self.from_ms, self.until_ms, media=self.media)
        return by_query(api, self.from_ms, self.until_ms, conversation=self.conversation)

    def may_have(self, one: Conversation) -> bool:
        """Return whether a conversation went on in it: Genesys may answer with others, which are in other slices."""
        return one.started_ms < self.until_ms and (one.ended_ms is None or one.ended_ms >= self.from_ms)


def slices_of(window: Window, now_ms: int, conversation: str = "") -> list[Slice]:
    """Divide a window, and what lies before it, into days for jobs and hours for queries."""
    at_ms = (window.from_ms - LOOK_BACK_MS) // HOUR_MS * HOUR_MS
    far_ms = at_ms - LOOK_FAR_BACK_MS
    if conversation:
        return [
            Slice(from_ms, min(from_ms + INTERVAL_MS, window.until_ms), conversation=conversation)
            for from_ms in range(far_ms, window.until_ms, INTERVAL_MS)
        ]
    found = [Slice(far_ms, at_ms, as_batch=True, media=LASTING)]
    while at_ms < window.until_ms:
        day_ms, hour_ms = (min(at_ms + length_ms, window.until_ms) for length_ms in (DAY_MS, HOUR_MS))
        is_old = day_ms <= now_ms - OLD_MS
        until_ms = day_ms if is_old else hour_ms
        found.append(Slice(at_ms, until_ms, as_batch=is_old))
        at_ms = until_ms
    return found


class Part(msgspec.Struct, array_like=True):
    """What one slice brought, to be kept until the run is over."""

    counts: Counts
    gaps: list[Gap]
    #: The seconds in which events came, by family and day, compressed.
    activity: list[tuple[str, int, bytes]]
    #: Conversations that may be met again in later slices, by digest, and the end of each.
    open: dict[int, int]
    last_ended_ms: int | None = None


class Once:
    """Lets each conversation through once: pages move, and slices overlap."""

    def __init__(self) -> None:
        """Know of none."""
        self._here: set[int] = set()
        #: Of earlier slices, those that later ones may bring again, until they end.
        self.open: dict[int, int] = {}
        self._open_here: dict[int, int] = {}

    def new(self, conversations: Iterable[Conversation], part: Slice | None) -> list[Conversation]:
        """Return those that were not met before."""
        found = []
        for one in conversations:
            if part is not None and not part.may_have(one):
                continue
            digest = int.from_bytes(blake2b(one.id.encode(), digest_size=8).digest(), "big") >> 1
            if digest in self._here or digest in self.open:
                continue
            self._here.add(digest)
            found.append(one)
            if part is not None and (one.ended_ms is None or one.ended_ms >= part.until_ms):
                self._open_here[digest] = one.ended_ms or 2**60
        return found

    def end_slice(self, part: Slice) -> dict[int, int]:
        """Forget what later slices cannot bring again; return what they can."""
        kept, self._open_here, self._here = self._open_here, {}, set()
        self.go_on(part, kept)
        return kept

    def go_on(self, part: Slice, kept: dict[int, int]) -> None:
        """Take what an earlier slice may bring again."""
        self.open = {digest: end_ms for digest, end_ms in {**self.open, **kept}.items() if end_ms >= part.until_ms}


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Part).decode


def write_part(comparison: Comparison, gaps: Gaps, kept: dict[int, int]) -> bytes | None:
    """Write what a slice brought; None where that is too much."""
    if gaps.number > GAPS_KEPT:
        return None
    activity = [(family, day, zlib.compress(seconds, 1)) for (family, day), seconds in comparison.activity.days.items()]
    return zlib.compress(_encode(Part(comparison.counts, list(gaps), activity, kept, comparison.last_ended_ms)), 1)


def read_part(text: bytes) -> Part:
    """Read what a slice brought."""
    return _decode(zlib.decompress(text))


class Total:
    """What all slices have brought together."""

    def __init__(self, ledger: KeepsAttendance, known: Known, window: Window, gaps: Gaps) -> None:
        """Begin with nothing."""
        self._ledger, self._known, self._window = ledger, known, window
        self.gaps = gaps
        self.all = Comparison(ledger, known, window, gaps)

    def part(self, gaps: Gaps) -> Comparison:
        """Return a comparison for one slice."""
        return Comparison(self._ledger, self._known, self._window, gaps)

    def add(self, comparison: Comparison, gaps: Gaps) -> None:
        """Add what a slice brought."""
        self._add(comparison.counts, comparison.last_ended_ms)
        for (family, day), seconds in comparison.activity.days.items():
            self.all.activity.unite(family, day, seconds)
        for gap in gaps:
            self.gaps.add(gap)

    def add_kept(self, part: Part) -> None:
        """Add what an earlier run has kept of a slice."""
        self._add(part.counts, part.last_ended_ms)
        for family, day, seconds in part.activity:
            self.all.activity.unite(family, day, zlib.decompress(seconds))
        for gap in part.gaps:
            self.gaps.add(gap)

    def _add(self, counts: Counts, last_ended_ms: int | None) -> None:
        self.all.counts.add(counts)
        if last_ended_ms is not None:
            self.all.last_ended_ms = max(last_ended_ms, self.all.last_ended_ms or 0)


def in_batches(pages: Iterable[list[Conversation]]) -> Iterator[list[Conversation]]:
    """Yield conversations in batches of one size at least, however many a page has."""
    batch: list[Conversation] = []
    for page in pages:
        batch += page
        if len(batch) >= BATCH:
            yield batch
            batch = []
    if batch:
        yield batch
