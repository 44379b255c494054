"""The runs that a ledger keeps in its notes, and the parts of one that was interrupted."""

from __future__ import annotations

import zlib
from collections import defaultdict
from typing import TYPE_CHECKING, Final

import msgspec

from oncebridge.ledgers import DAY_US
from oncebridge.reconciling.result import Run
from oncebridge.reconciling.slices import read_part

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet

    from oncebridge.clock import Clock
    from oncebridge.ledgers.notes import Notes
    from oncebridge.reconciling.slices import Part, Slice

PAGE: Final = "reconcile"
PROGRESS: Final = "reconcile.progress"
PARTS: Final = "reconcile.parts"
NAME: Final = "run"
RUNS_KEPT: Final = 100
#: How long a run that was interrupted can go on: later, "the last 24 hours" are others.
PROGRESS_US: Final = DAY_US // 2
#: Of a note, since ledgers have bounds. A part may have so many; more is not kept, and its slice is read again.
NOTE_BYTES_MAX: Final = 200_000
NOTES_OF_PART_MAX: Final = 20
RUN_BYTES_MAX: Final = 300_000


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """A run that is under way, or was interrupted."""

    #: What was asked for, so that another question begins another run.
    asked: list[str]
    #: Tells its parts from those of others.
    id: str
    made: str
    from_ms: int
    until_ms: int
    watermark_ms: int
    now_ms: int
    families: list[str]


_encode = msgspec.json.Encoder().encode
_run = msgspec.json.Decoder(Run).decode
_progress = msgspec.json.Decoder(Progress).decode


class Runs:
    """Reads and writes runs."""

    def __init__(self, notes: Notes, clock: Clock, keep_us: int) -> None:
        """Take the notes of a ledger that is open, and how long runs are kept."""
        self._notes = notes
        self._clock = clock
        self._keep_us = max(keep_us, DAY_US)

    def latest(self, number: int = RUNS_KEPT) -> list[Run]:
        """Return runs, the latest first."""
        found = []
        for note in self._notes.read_notes(PAGE, limit=number):
            try:
                found.append(_run(zlib.decompress(note.value)))
            except (zlib.error, msgspec.DecodeError):
                continue  # of another version
        return found

    def keep(self, run: Run) -> None:
        """Keep a run; one with very many gaps without the last of them."""
        value = zlib.compress(_encode(run))
        while len(value) > RUN_BYTES_MAX and run.gaps:
            half = len(run.gaps) // 2
            left_out = run.gaps_left_out + len(run.gaps) - half
            run = msgspec.structs.replace(run, gaps=run.gaps[:half], gaps_left_out=left_out)
            value = zlib.compress(_encode(run))
        self._notes.write_notes(PAGE, {run.made: value}, keep_us=self._keep_us, newest=RUNS_KEPT)

    def interrupted(self, asked: Sequence[str], families: AbstractSet[str]) -> Progress | None:
        """Return the run that was interrupted, if it was asked for in the same words and about the same families."""
        for note in self._notes.read_notes(PROGRESS):
            try:
                progress = _progress(note.value)
            except msgspec.DecodeError:
                continue
            if progress.asked == [*asked] and progress.families == sorted(families):
                return progress
        return None

    def begin(self, progress: Progress) -> None:
        """Note a run that begins."""
        self._notes.write_notes(PROGRESS, {NAME: _encode(progress)}, keep_us=PROGRESS_US)

    def keep_part(self, progress: Progress, part: Slice, text: bytes | None) -> None:
        """Keep what a slice brought."""
        if text is None or len(text) > NOTE_BYTES_MAX * NOTES_OF_PART_MAX:
            return
        pieces = [text[at : at + NOTE_BYTES_MAX] for at in range(0, len(text), NOTE_BYTES_MAX)]
        for number, piece in enumerate(pieces, 1):  # a part counts only with the last of them
            name = f"{part.name}.{number:02}.{len(pieces):02}"
            self._notes.write_notes(f"{PARTS}:{progress.id}", {name: piece}, keep_us=PROGRESS_US)

    def parts(self, progress: Progress) -> dict[str, Part]:
        """Return what slices of an interrupted run brought, by their names."""
        page, below = f"{PARTS}:{progress.id}", None
        pieces: dict[tuple[str, str], list[bytes]] = defaultdict(list)
        while notes := self._notes.read_notes(page, below=below, limit=50):
            for note in notes:  # the last one first
                name, _, number = note.name.split(".")
                pieces[name, number].append(note.value)
            below = notes[-1].name
        whole = {name: texts for (name, number), texts in pieces.items() if len(texts) == int(number)}
        return {name: read_part(b"".join(reversed(texts))) for name, texts in whole.items()}

    def end(self, progress: Progress) -> None:
        """Forget the progress of a run that is over; its parts expire by themselves."""
        self._notes.swap_note(PROGRESS, NAME, _encode(progress), None, keep_us=PROGRESS_US)
