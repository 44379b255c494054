"""What changed since an earlier run about the same time: late is not lost, and Genesys corrects itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from oncebridge.quantities import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from oncebridge.reconciling.result import Run, ShownGap

    #: Gets ids of conversations and the time of a run; returns those of which something came since.
    CameSince: TypeAlias = Callable[[Sequence[str], str], Collection[str]]

LATE_SHOWN: Final = 100


class Changes(msgspec.Struct, frozen=True):
    """An earlier run, compared with this one."""

    #: When the earlier run was made; empty if there is none.
    run: str = ""
    #: Of its gaps that are asked about again: those that came since, wholly or in part, and those that did not.
    came: int = 0
    in_part: int = 0
    still: int = 0
    #: Those of which nothing came, and yet nothing is missing any more: Genesys says something else of them now.
    corrected: int = 0
    #: Gaps that it did not have, though it judged their time.
    new: int = 0
    #: Conversations that came since.
    late: list[str] = []


class Comparing:
    """Takes the gaps of this run one after the other."""

    def __init__(self, runs: Sequence[Run], this: Run, came_since: CameSince) -> None:
        """Choose the latest run about the same time."""
        until = this.judged_until
        about = [run for run in runs if run.since < until and this.since < run.judged_until]
        self._run = about[0] if about else None
        self._families = frozenset(this.families)
        self._came_since = came_since
        gaps = [] if self._run is None else self._run.gaps
        asked_again = (gap for gap in gaps if this.since <= gap.ended < until)
        #: What it missed of each conversation, as far as it is expected now.
        self._before = {
            gap.conversation: missing for gap in asked_again if (missing := self._families.intersection(gap.missing))
        }
        self._left = dict(self._before)
        self._smaller: list[str] = []
        self._still = self._new = 0

    def look(self, gap: ShownGap) -> None:
        """Look at one gap of this run."""
        before = self._left.pop(gap.conversation, None)
        if before is not None:
            if before > set(gap.missing):
                self._smaller.append(gap.conversation)
            else:
                self._still += 1
        elif self._run is not None and self._is_new(gap, self._run):
            self._new += 1

    def _is_new(self, gap: ShownGap, before: Run) -> bool:
        was_judged = before.since <= gap.ended < before.judged_until
        return was_judged and not set(before.families).isdisjoint(gap.missing)

    def changes(self) -> Changes:
        """Return what changed, once all gaps were looked at."""
        if self._run is None:
            return Changes()
        came = self._came_since([*self._left, *self._smaller], self._run.made)
        late = [one for one in self._left if one in came]
        in_part = sum(one in came for one in self._smaller)
        return Changes(
            self._run.made,
            len(late),
            in_part,
            self._still + len(self._smaller) - in_part,
            len(self._left) - len(late),
            0 if self._run.gaps_left_out else self._new,
            late[:LATE_SHOWN],
        )


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
    if changes.corrected:
        found.append(
            f"{counted(changes.corrected, 'conversation')} of that run did not come since, but Genesys has corrected "
            "its data: nothing of them is missing any more"
        )
    if changes.new:
        found.append(
            f"{counted(changes.new, 'gap')} the run of {changes.run} did not have: Genesys has corrected its data since"
        )
    return found or [f"nothing changed since the run of {changes.run}"]
