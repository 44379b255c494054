"""What changed since an earlier run about the same time: late is not lost, and Genesys corrects itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from oncebridge.quantities import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oncebridge.reconciling.result import Run, ShownGap

LATE_SHOWN: Final = 100


class Changes(msgspec.Struct, frozen=True):
    """An earlier run, compared with this one."""

    #: When the earlier run was made; empty if there is none.
    run: str = ""
    #: Of its gaps that are asked about again: those that came since, wholly or in part, and those that did not.
    came: int = 0
    in_part: int = 0
    still: int = 0
    #: Gaps that it did not have, though it judged their time.
    new: int = 0
    #: Conversations that came since.
    late: list[str] = []


class Comparing:
    """Takes the gaps of this run one after the other."""

    def __init__(self, runs: Sequence[Run], since: str, until: str) -> None:
        """Choose the latest run about the same time."""
        about = [run for run in runs if run.since < until and since < _judged_until(run)]
        self._run = about[0] if about else None
        gaps = [] if self._run is None else self._run.gaps
        self._before = {gap.conversation: gap for gap in gaps if since <= gap.ended < until}
        self._left = dict(self._before)
        self._in_part = self._still = self._new = 0

    def look(self, gap: ShownGap) -> None:
        """Look at one gap of this run."""
        before = self._left.pop(gap.conversation, None)
        if before is not None:
            is_smaller = set(gap.missing) < set(before.missing)
            self._in_part += is_smaller
            self._still += not is_smaller
        elif self._run is not None and self._run.since <= gap.ended < _judged_until(self._run):
            self._new += 1

    def changes(self) -> Changes:
        """Return what changed, once all gaps were looked at."""
        if self._run is None:
            return Changes()
        new = 0 if self._run.gaps_left_out else self._new
        late = [*self._left]
        return Changes(self._run.made, len(late), self._in_part, self._still, new, late[:LATE_SHOWN])


def _judged_until(run: Run) -> str:
    return min(run.until, run.watermark or run.until)


def in_words(changes: Changes) -> list[str]:
    """Say what changed."""
    if not changes.run:
        return []
    found = []
    if changes.came:
        found.append(
            f"{counted(changes.came, 'conversation')} that the run of {changes.run} missed came late: not lost"
        )
    if changes.in_part:
        found.append(f"of {counted(changes.in_part, 'conversation')} more came, but not all")
    if changes.still:
        found.append(f"{counted(changes.still, 'conversation')} of that run did not come since")
    if changes.new:
        found.append(
            f"{counted(changes.new, 'gap')} the run of {changes.run} did not have: Genesys has corrected its data since"
        )
    return found or [f"nothing changed since the run of {changes.run}"]
