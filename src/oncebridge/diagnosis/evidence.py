"""How a duplicate is related to the deliveries before it: pure, on what AWS wrote around them and when they came."""

from __future__ import annotations

import re
from enum import IntEnum
from typing import TYPE_CHECKING, Final

import msgspec

from oncebridge.diagnosis.arrivals import UNKNOWN
from oncebridge.event import is_uuid
from oncebridge.quantities import span
from oncebridge.sources.captures.found import NOTHING_AROUND, Surroundings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oncebridge.diagnosis.arrivals import Arrivals
    from oncebridge.diagnosis.sighting import Sighting

#: Copies that two rules make arrive this close together.
AT_ONCE_MS: Final = 2000
#: A second rule's path may be this much slower. EventBridge gives a target five seconds to answer: what comes later was
#: sent again, however many do, as to an endpoint that is always too slow.
SLOWER_PATH_MS_MAX: Final = 5_000
#: Where only a bound is known: whatever is within it came sooner than a queue shows a message again (30 seconds unless
#: set), or Lambda tries again (a minute).
SOONER_THAN_RETRIES_MS: Final = 20_000
#: Within one invocation a function may log its event more than once; Lambda's first retry comes after a minute.
INVOCATION_MS_MAX: Final = 20_000
#: Lambda's retries come after one minute, and after two more.
RHYTHM_MS: Final = ((50_000, 80_000), (110_000, 200_000))
#: What EventBridge itself logs to is named so.
TARGET_LOGS: Final = "/aws/events/"
#: As Lambda names the streams of a function's log: the day, the version, and a number of its own.
_STREAM_OF_FUNCTION: Final = re.compile(r"\d{4}/\d\d/\d\d/.{0,256}\[[^\]]{1,128}\]\w{1,64}")


class Relation(IntEnum):
    """What a duplicate shares with an earlier delivery of its event."""

    SAME_MESSAGE = 1  # one message of SQS, received again
    CAPTURED_TWICE = 2  # everything around it is the same, too
    SAME_REQUEST = 3  # one invocation of Lambda, tried again
    SAME_INVOCATION = 4  # logged twice while it was handled once
    IN_RHYTHM = 5  # in a function's log, as long after as Lambda waits
    OTHER_TARGET = 6  # one envelope at two queues or functions
    AT_ONCE = 7  # one envelope twice at the same time
    PERHAPS_AT_ONCE = 8  # one envelope twice, and nothing says how long after
    LATER = 9  # one envelope in another message, request or log record, later
    SENT_AGAIN = 10  # the same, too late for a slower path, or after it came twice at once
    LATER_UNTOLD = 11  # one envelope again, later, with nothing around it
    REPLAY = 12
    OTHER_ORIGIN = 13  # another envelope from another integration or bus
    NEW_ENVELOPE = 14  # another envelope from the same integration
    NO_ENVELOPE = 15  # nothing tells the deliveries apart
    ECHO = 16
    OTHER_TOPIC = 17
    OTHER_FILE = 18  # one envelope in two files, with nothing around it: they may overlap
    PERHAPS_THRICE = 19  # one envelope a third time, and nothing says how long after
    PERHAPS_OFTEN = 20  # the same a fourth time or more
    SOON = 21  # one envelope twice, and what stands below it came before any retry of a queue or of Lambda


class Evidence(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Why a delivery is a duplicate, before all the others were looked at."""

    n: int
    id: str | None
    topic: str
    relation: Relation
    #: After the first delivery of its event, and after the one that it repeats; -1 where the capture does not say.
    lag_ms: int
    since_ms: int
    #: The one that it repeats.
    of: int
    #: The receive count, the replay, the integration, the other topic, or the bound of a lag.
    named: str = ""
    #: How many deliveries of its envelope came before.
    before: int = 0


def related(one: Sighting, earlier: Sequence[Sighting], arrivals: Arrivals) -> Evidence:
    """Relate a delivery to the earlier ones of the same event, the oldest first."""
    same = [other for other in earlier if other.id == one.id]
    relation, of, named = _relation(one, earlier, same, arrivals)
    since_ms = max(0, arrivals.between(of, one))
    lag_ms = since_ms if of is earlier[0] else max(0, arrivals.between(earlier[0], one))
    if relation is Relation.SAME_MESSAGE and not arrivals.is_told(one):
        lag_ms = UNKNOWN  # SQS says when a message was received first, and not when again
    return Evidence(one.n, one.id, one.topic, relation, lag_ms, since_ms, of.n, named, len(same))


def _relation(
    one: Sighting, earlier: Sequence[Sighting], same: Sequence[Sighting], arrivals: Arrivals
) -> tuple[Relation, Sighting, str]:
    around = one.around
    if around is not None and around.message_id is not None:
        for other in reversed(earlier):
            if _around(other).message_id == around.message_id:
                return _same_message(around, _around(other)), other, _times(around.receive_count)
    if same and one.id is not None:
        again = next((other for other in reversed(same) if _is_counted_on(_around(one), _around(other))), None)
        if again is not None:
            return Relation.SAME_MESSAGE, again, _times(_around(one).receive_count)
        in_replay = [other for other in same if other.replay == one.replay]
        if in_replay:
            return _same_envelope(one, in_replay, arrivals)
        return Relation.REPLAY, same[-1], one.replay or same[-1].replay or ""
    return _other_envelope(one, earlier)


def _is_counted_on(one: Surroundings, other: Surroundings) -> bool:
    """Return whether a message without its id is one that came before: sent at the same time, and received more."""
    if one.message_id is not None or one.receive_count is None or other.receive_count is None:
        return False
    return other.message_id is None and one.sent_ms == other.sent_ms and one.receive_count > other.receive_count


def _same_message(one: Surroundings, other: Surroundings) -> Relation:
    if one == other and one.receive_count is not None:
        return Relation.CAPTURED_TWICE
    is_logged = one.request_id is not None and one.request_id == other.request_id
    return Relation.SAME_INVOCATION if is_logged and one.receive_count == other.receive_count else Relation.SAME_MESSAGE


def _same_envelope(one: Sighting, same: Sequence[Sighting], arrivals: Arrivals) -> tuple[Relation, Sighting, str]:
    """Relate two deliveries of one envelope, which are not one message of SQS."""
    around = one.around
    if around is None:
        here = [other for other in same if other.file == one.file or other.around is not None]
        if not here:
            return Relation.OTHER_FILE, same[-1], ""
        nearest = here[-1] if len(here) == 1 else min(here, key=lambda other: abs(arrivals.between(other, one)))
        return _by_time(one, nearest, here, arrivals)
    for other in reversed(same):
        if _is_same_request(around, _around(other)):
            return _same_request(one, other, arrivals), other, ""
    for other in same:
        if around.logged_ms is not None and around == _around(other):
            return Relation.CAPTURED_TWICE, other, ""
    nearest = min(same, key=lambda other: abs(arrivals.between(other, one)))
    for name in ("queue", "log_group"):
        mine = getattr(around, name)
        others = [getattr(_around(other), name) for other in same]
        if mine is not None and None not in others and mine not in others:
            return Relation.OTHER_TARGET, nearest, "queues" if name == "queue" else "functions"
    return _by_time(one, nearest, same, arrivals)


def _is_same_request(one: Surroundings, other: Surroundings) -> bool:
    """Return whether two deliveries are of one invocation; one that takes messages takes many at once."""
    has_messages = one.message_id is not None and other.message_id is not None
    return one.request_id is not None and one.request_id == other.request_id and not has_messages


def _same_request(one: Sighting, other: Sighting, arrivals: Arrivals) -> Relation:
    around, before = _around(one), _around(other)
    if around.logged_ms is not None and around == before:
        return Relation.CAPTURED_TWICE
    is_timed = around.logged_ms is not None and before.logged_ms is not None
    if is_timed and arrivals.between(other, one) < INVOCATION_MS_MAX:
        return Relation.SAME_INVOCATION
    return Relation.SAME_REQUEST


def _by_time(
    one: Sighting, nearest: Sighting, same: Sequence[Sighting], arrivals: Arrivals
) -> tuple[Relation, Sighting, str]:
    """Relate two deliveries of one envelope by how far apart they are."""
    last = same[-1]
    least_ms, most_ms = arrivals.apart(nearest, one)
    if most_ms is not None and most_ms <= AT_ONCE_MS:
        return Relation.AT_ONCE, nearest, ""
    if least_ms <= AT_ONCE_MS:
        if most_ms is not None and most_ms <= SOONER_THAN_RETRIES_MS:
            return Relation.SOON, nearest, span(most_ms)
        return _PERHAPS.get(len(same), Relation.PERHAPS_OFTEN), nearest, ""
    if _is_told(_around(one)) and _is_told(_around(last)):
        twins = any(abs(arrivals.between(same[0], other)) <= AT_ONCE_MS for other in same[1:])
        is_sent_again = twins or arrivals.between(last, one) > SLOWER_PATH_MS_MAX
        return (Relation.SENT_AGAIN if is_sent_again else Relation.LATER), last, ""
    if _is_of_function(_around(one).log_stream) and _is_in_rhythm(arrivals.between(last, one)):
        return Relation.IN_RHYTHM, last, ""
    return Relation.LATER_UNTOLD, last, ""


#: By how many deliveries of the envelope came before.
_PERHAPS: Final = {1: Relation.PERHAPS_AT_ONCE, 2: Relation.PERHAPS_THRICE}


def _is_told(around: Surroundings) -> bool:
    """Return whether it is known what carried a delivery, so that only EventBridge can have sent it again."""
    if around.message_id is not None or around.request_id is not None or around.arrived_ms is not None:
        return True
    if around.log_group is not None:
        return around.log_group.startswith(TARGET_LOGS)
    return around.log_stream is not None and is_uuid(around.log_stream)


def _is_of_function(log_stream: str | None) -> bool:
    return log_stream is not None and _STREAM_OF_FUNCTION.fullmatch(log_stream) is not None


def _is_in_rhythm(since_ms: int) -> bool:
    return any(least <= since_ms <= most for least, most in RHYTHM_MS)


def _other_envelope(one: Sighting, earlier: Sequence[Sighting]) -> tuple[Relation, Sighting, str]:
    """Relate a delivery to those of other envelopes."""
    last = earlier[-1]
    if one.replay is not None and _is_replayed(one, earlier):
        return Relation.REPLAY, last, one.replay
    known = [other for other in earlier if other.id is not None]
    if one.id is None or not known:
        around = _around(one)
        for other in reversed(earlier):
            if around.request_id is not None and around.request_id == _around(other).request_id:
                return Relation.SAME_REQUEST, other, ""
        return Relation.NO_ENVELOPE, last, ""
    from_here = [other for other in known if other.origin == one.origin and other.replay == one.replay]
    if from_here:
        return Relation.NEW_ENVELOPE, from_here[-1], ""
    if all(other.replay is not None for other in known):
        return Relation.REPLAY, last, last.replay or ""
    return Relation.OTHER_ORIGIN, known[-1], f"{known[-1].origin} and {one.origin}"


def _is_replayed(one: Sighting, earlier: Sequence[Sighting]) -> bool:
    """Return whether a replay brings one of the envelopes before it; more than there were are copies of their own."""
    within = {other.id for other in earlier if other.replay == one.replay}
    outside = {other.id for other in earlier if other.replay != one.replay}
    return len(outside) > len(within)


def _around(one: Sighting) -> Surroundings:
    return NOTHING_AROUND if one.around is None else one.around


def _times(receive_count: int | None) -> str:
    return "" if receive_count is None else str(receive_count)
