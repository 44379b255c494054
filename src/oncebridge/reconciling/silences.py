"""Why something did not come: everything was silent, one family was, or it is a single conversation.

Seconds in which events came are marked, for each family and for all together. Between two of them lies a *silence*. One
that several conversations miss something in is no accident: the bus or the source, if it is one of all families, a rule
or a filter, if it is one of a single family.
"""

from __future__ import annotations

from collections import defaultdict
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from oncebridge.reconciling.expected import Due

#: How many conversations have to miss something in one silence: fewer may be neighbours by chance.
CONVERSATIONS_MIN: Final = 3
ALL: Final = ""
_DAY_SECONDS: Final = 86_400
#: A silence is looked for this far: the longest time that one run may ask about, and more.
_DAYS_MAX: Final = 64


class Cause(StrEnum):
    """Why something did not come."""

    EVERYTHING = "everything_silent"
    TOPIC = "topic_silent"
    SINGLE = "single"


class Silence(NamedTuple):
    """The seconds between two events of a family, or of all; None: there was none before, or after."""

    family: str
    after_s: int | None
    before_s: int | None


class Activity:
    """The seconds in which events came, by family: a byte for each second of a day on which any came."""

    def __init__(self) -> None:
        """Know of none."""
        self.days: dict[tuple[str, int], bytearray] = {}

    def add(self, came: Iterable[Due]) -> None:
        """Mark the seconds of events that came."""
        for one in came:
            for family in (one.family, ALL):
                self.mark(family, one.at_ms // 1000)

    def mark(self, family: str, second: int) -> None:
        """Mark one second."""
        day, at = divmod(second, _DAY_SECONDS)
        seconds = self.days.get((family, day))
        if seconds is None:
            seconds = self.days[family, day] = bytearray(_DAY_SECONDS)
        seconds[at] = 1

    def unite(self, family: str, day: int, seconds: bytes | bytearray) -> None:
        """Mark the seconds of a day that another part has marked."""
        own = self.days.get((family, day))
        both = int.from_bytes(seconds, "big") | (0 if own is None else int.from_bytes(own, "big"))
        self.days[family, day] = bytearray(both.to_bytes(_DAY_SECONDS, "big"))

    def silence(self, family: str, second: int) -> Silence:
        """Return the silence that a second lies in; one in which something came borders on two, and has none."""
        day, at = divmod(second, _DAY_SECONDS)
        return Silence(family, self._before(family, day, at), self._after(family, day, at))

    def _before(self, family: str, day: int, at: int) -> int | None:
        for back in range(_DAYS_MAX):
            seconds = self.days.get((family, day - back))
            found = -1 if seconds is None else seconds.rfind(1, 0, at + 1 if back == 0 else None)
            if found >= 0:
                return (day - back) * _DAY_SECONDS + found
        return None

    def _after(self, family: str, day: int, at: int) -> int | None:
        for ahead in range(_DAYS_MAX):
            seconds = self.days.get((family, day + ahead))
            found = -1 if seconds is None else seconds.find(1, at if ahead == 0 else 0)
            if found >= 0:
                return (day + ahead) * _DAY_SECONDS + found
        return None


class Silences:
    """Which silences are no accident: gaps are looked at once to count, and a second time to name causes."""

    def __init__(self, activity: Activity, *, several: bool) -> None:
        """Take the seconds in which events came, and whether more than one family is expected."""
        self._activity = activity
        self._by: dict[Silence, set[int]] = defaultdict(set)
        self._families: dict[Silence, set[str]] = defaultdict(set)
        self._several = several
        #: The silence of each family that was found last: the next event is often in the same one.
        self._last: dict[str, Silence] = {}
        #: From when to when something was missing in a silence, and in how many conversations.
        self.seen: dict[Silence, list[int]] = {}

    def count(self, number: int, missing: Iterable[Due]) -> None:
        """Count what one conversation misses; `number` tells it from others."""
        for silence, _, family in self._around(missing):
            if silence.family == ALL:
                self._families[silence].add(family)
            conversations = self._by[silence]
            if len(conversations) < CONVERSATIONS_MIN:
                conversations.add(number)

    def cause(self, missing: Iterable[Due]) -> Cause:
        """Return why a conversation misses something: what explains the most of it."""
        found = {silence: second for silence, second, _ in self._around(missing) if self._is_no_accident(silence)}
        all_of_them = {silence: second for silence, second in found.items() if silence.family == ALL}
        chosen = all_of_them or found
        for silence, second in chosen.items():
            first, last, conversations = self.seen.get(silence, (second, second, 0))
            self.seen[silence] = [min(first, second), max(last, second), conversations + 1]
        return Cause.EVERYTHING if all_of_them else Cause.TOPIC if found else Cause.SINGLE

    def _is_no_accident(self, silence: Silence) -> bool:
        if len(self._by.get(silence, ())) < CONVERSATIONS_MIN:
            return False
        # All are silent only if more than one is missed; otherwise the others just had nothing to say.
        return silence.family != ALL or not self._several or len(self._families[silence]) > 1

    def _around(self, missing: Iterable[Due]) -> Iterator[tuple[Silence, int, str]]:
        for one in missing:
            second = one.at_ms // 1000
            for family in (ALL, one.family):
                silence = self._silence(family, second)
                if silence is not None:
                    yield silence, second, one.family
                    continue
                for beside in (second - 1, second + 1):  # at the edge of a silence, or in none
                    edge = self._silence(family, beside)
                    if edge is not None:
                        yield edge, second, one.family

    def _silence(self, family: str, second: int) -> Silence | None:
        """Return the silence that a second lies in; None if something came in it."""
        last = self._last.get(family)
        if last is not None and _is_within(last, second):
            return last
        found = self._activity.silence(family, second)
        if found.after_s is not None and found.after_s == found.before_s:
            return None
        self._last[family] = found
        return found


def _is_within(silence: Silence, second: int) -> bool:
    return (silence.after_s is None or silence.after_s < second) and (
        silence.before_s is None or second < silence.before_s
    )
