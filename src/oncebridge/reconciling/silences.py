"""Why something did not come: everything was silent, one family was, or it is a single conversation.

Seconds in which events came are marked, for each family and for all together. Between two of them lies a *silence*. One
that more conversations miss something in than single losses explain is no accident: the bus or the source, if it is one
of all families, a rule or a filter, if it is one of a single family.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import msgspec

from oncebridge.attendance import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from oncebridge.reconciling.expected import Due

#: How many conversations have to miss something in one silence: fewer may be neighbours by chance.
CONVERSATIONS_MIN: Final = 3
#: Where single events are often missing, more of them are neighbours: so many silences by chance are put up with.
BY_CHANCE: Final = 0.1
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


#: None: in none of all families.
_Within: TypeAlias = frozenset[Silence | None]


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

    def seconds(self, family: str) -> int:
        """Return in how many seconds events of a family came."""
        return sum(seconds.count(1) for (one, _), seconds in self.days.items() if one == family)

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


class _Missing(msgspec.Struct):
    """What is missing in a silence."""

    conversations: int = 0
    events: int = 0


class Silences:
    """Which silences are no accident: gaps are looked at once to count, and a second time to name causes."""

    def __init__(self, activity: Activity, conversations: int, *, several: bool) -> None:
        """Take when events came, of how many conversations, and whether more than one family is expected."""
        self._activity = activity
        self._conversations = conversations
        #: What is missing in a silence, by the silences of all families that what a conversation misses in it lies in.
        self._missing_in: dict[Silence, dict[_Within, _Missing]] = defaultdict(lambda: defaultdict(_Missing))
        self._families: dict[Silence, set[str]] = defaultdict(set)
        #: What is missing though something came in the same second.
        self._alone: Counter[str] = Counter()
        self._several = several
        #: From how many conversations on a silence is no accident, by family; known once all gaps were counted.
        self._least: dict[str, int] = {}
        #: The silence of each family that was found last: the next event is often in the same one.
        self._last: dict[str, Silence] = {}
        #: From when to when something was missing in a silence, and in how many conversations.
        self.seen: dict[Silence, list[int]] = {}

    def count(self, missing: Iterable[Due]) -> None:
        """Count what one conversation misses: it is one in each silence, however much of it is missing there."""
        within: dict[Silence, list[Silence | None]] = defaultdict(list)
        for one in missing:
            of_all = list(self._around(ALL, one.at_ms // 1000))
            of_family = list(self._around(one.family, one.at_ms // 1000))
            for silence in of_all:
                self._families[silence].add(one.family)
            for silence in (*of_all, *of_family):
                within[silence].append(of_all[0] if of_all and silence.family != ALL else None)
            self._alone[ALL] += not of_all
            self._alone[one.family] += not of_family
        for silence, of_alls in within.items():
            some = self._missing_in[silence][frozenset(of_alls)]
            some.conversations += 1
            some.events += len(of_alls)

    def cause(self, missing: Sequence[Due], *, never: bool) -> Cause:
        """Return why a conversation misses something: the widest silence that any of it lies in.

        Of one that never came, a silence has to explain at least half.
        """
        found: dict[str, dict[Silence, int]] = {}
        explained: Counter[bool] = Counter()
        for one in missing:
            second = one.at_ms // 1000
            for family in (ALL, one.family):
                silences = [one for one in self._around(family, second) if self._is_no_accident(one)]
                if silences:
                    found.setdefault(family, {}).update(dict.fromkeys(silences, second))
                    explained[family == ALL] += 1
                    break
        least = len(missing) / 2 if never else 1
        if explained[True] >= least:
            self._note(found[ALL])
            return Cause.EVERYTHING
        if explained[False] and explained.total() >= least:
            for silences_of_one in found.values():
                self._note(silences_of_one)
            return Cause.TOPIC
        return Cause.SINGLE

    def _note(self, silences: dict[Silence, int]) -> None:
        for silence, second in silences.items():
            first, last, conversations = self.seen.get(silence, (second, second, 0))
            self.seen[silence] = [min(first, second), max(last, second), conversations + 1]

    def _is_no_accident(self, silence: Silence) -> bool:
        by = self._missing_in.get(silence, {}).items()
        # What the silence of all explains makes none of a family that goes on beside it.
        own = [
            some
            for of_alls, some in by
            if any(of_all is None or not self._is_no_accident(of_all) for of_all in of_alls)
        ]
        conversations, events = sum(some.conversations for some in own), sum(some.events for some in own)
        if conversations < CONVERSATIONS_MIN or max(conversations, events / 2) < self._least_of(silence.family):
            return False  # two events of one conversation say less than those of two
        # All are silent only if more than one is missed; otherwise the others just had nothing to say.
        return silence.family != ALL or not self._several or len(self._families[silence]) > 1

    def _least_of(self, family: str) -> int:
        """Return from how many conversations on losing them one by one would hardly make such a silence anywhere."""
        least = self._least.get(family)
        if least is None:
            by_silence = (by for silence, by in self._missing_in.items() if silence.family == family)
            numbers = (sum(some.conversations for some in by.values()) for by in by_silence)
            lost = self._alone[family] + sum(n for n in numbers if n < CONVERSATIONS_MIN)
            came = self._activity.seconds(family)
            least = CONVERSATIONS_MIN
            if lost and came:
                chances = self._conversations * len(FAMILIES)
                neighbours = math.log(BY_CHANCE / chances) / math.log(lost / (came + lost))
                least = max(least, math.ceil(neighbours))
            self._least[family] = least
        return least

    def _around(self, family: str, second: int) -> Iterator[Silence]:
        silence = self._silence(family, second)
        if silence is not None:
            yield silence
            return
        for beside in (second - 1, second + 1):  # at the edge of a silence, or in none
            edge = self._silence(family, beside)
            if edge is not None:
                yield edge

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
