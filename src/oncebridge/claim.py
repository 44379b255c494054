"""Claims, verdicts and outcomes, and every rule of order: which state is an echo, which is stale, which is news.

Ledgers know none of these rules. A ledger grants an entity to one worker at a time, together with bytes that are
opaque to it. The worker reads them as a `Newest`, judges each state of its chain on the entity as the state before left
it, and settles each with the bytes that result.
"""

from __future__ import annotations

from enum import StrEnum
from itertools import zip_longest
from typing import Final

import msgspec
from msgspec.structs import replace

from oncebridge.discreet import Discreet
from oncebridge.identity import Moment

AHEAD_US_MAX: Final = 10 * 60 * 1_000_000  # a stamp further ahead of the ledger's clock is not believed
MARK_BYTES: Final = 4  # of a mark of attendance
MARKS_MAX: Final = 1000  # marks that a ledger keeps of one conversation: more would cost more than they tell
VERSIONS_BEHIND_MAX: Final = 1000  # further apart, two versions cannot be compared: one of them may be made up


class Verdict(StrEnum):
    """What a delivery turned out to be. Ledgers answer the first four and `fresh`; the rules below decide the rest."""

    CONFLICT = "conflict"  # the same explicit id with another content
    REDELIVERY = "redelivery"  # settled for good, same envelope id
    REPUBLISH = "republish"  # settled for good, under another envelope id or without one
    BUSY = "busy"  # the event or its entity is claimed, and the lease runs
    ECHO = "echo"  # a state that its entity already has, within the window
    STALE = "stale"  # a state older than the one its entity has
    FRESH = "fresh"  # to be processed
    DEAD = "dead"  # unreadable: never sent to a ledger, but reported like the others
    UNHANDLED = "unhandled"  # no handler takes its topic: not sent to a ledger either


class Outcome(StrEnum):
    """How a claim ends."""

    DONE = "done"
    ECHO = "echo"
    STALE = "stale"
    RETRY = "retry"  # failed; to be tried again later
    RELEASE = "release"  # not tried, so not counted
    DEAD = "dead"  # not retried by itself
    DISCARD = "discard"  # a dead letter given up for good


class Status(StrEnum):
    """The status of an event in a ledger."""

    CLAIMED = "claimed"
    RETRY = "retry"
    RELEASE = "release"
    DONE = "done"
    ECHO = "echo"
    STALE = "stale"
    DEAD = "dead"
    DISCARD = "discard"


SETTLED: Final = frozenset({Status.DONE, Status.ECHO, Status.STALE, Status.DEAD, Status.DISCARD})


class Ask(msgspec.Struct, frozen=True, gc=False):
    """A request for a claim: one event for one handler, complete before a ledger gets it.

    The asks of one call that share an entity are a chain, in order of arrival. `state`, `moment`, `echo_window_ns` and
    `stale` are for the rules of order alone: no ledger reads them.
    """

    key: bytes
    handler: str = ""
    envelope: str | None = None
    content: bytes | None = None
    entity: bytes | None = None
    state: bytes | None = None
    moment: Moment = Moment()
    echo_window_ns: int = 0
    stale: bool = True
    topic: str = ""
    time_ms: int | None = None
    #: The event time where it is part of the identity: every delivery of the event has it, so it may choose a place.
    shared_ms: int | None = None
    #: Where a dead letter is kept, as its ledger's own `Entry.home` says; otherwise entity or key decide.
    home: bytes | None = None
    #: The entity that a conflict's letter is kept near, for ledgers in several parts: redriven, it is a state of it.
    near: bytes | None = None
    conversation: bytes | None = None
    user: bytes | None = None
    #: Whether nothing else is claimed at the same time: only then does a run-out count as this event's own.
    alone: bool = False
    #: Whether this is a dead letter tried again; `force` then skips echo and stale.
    redrive: bool = False
    force: bool = False
    #: What a ledger that keeps attendance adds to the conversation, once the event has ended: `MARK_BYTES`, or none.
    mark: bytes = b""


class Chain(msgspec.Struct, frozen=True, gc=False):
    """The claim of an entity, for the states of one call, with the ledger's data of the entity.

    The states have tokens in a row, and `top` is the last of them: every write compares it.
    """

    top: int
    #: The data that the last settle left, or nothing: opaque to the ledger.
    data: bytes = b""
    #: Whether the lease before this one ran out, so that the effects of its holder are unknown.
    ran_out: bool = False
    #: The ledger's time when it granted this.
    now_us: int = 0


class Answer(msgspec.Struct, frozen=True, gc=False):
    """A ledger's answer to an ask. `token` is 0 unless the claim was granted."""

    verdict: Verdict
    token: int = 0
    attempt: int = 1
    #: The envelope id of the delivery that did the work, where the ledger knows it, and how it was settled.
    of: str | None = None
    was: Status | None = None
    #: How long the claim in the way may still run; 0 for a state that waits for one before it in its own chain.
    busy_us: int = 0
    #: Of a state that was granted: its entity's claim, the same for all states of the chain.
    chain: Chain | None = None
    #: Of a republish, where the ledger keeps no more than a mark of the envelope id that did the work.
    of_mark: bytes | None = None

    @property
    def wants_alone(self) -> bool:
        """Whether the event must be claimed alone, because its last claim ran out among others."""
        return self.verdict is Verdict.FRESH and self.token == 0


class Claim(msgspec.Struct, frozen=True, gc=False):
    """The exclusive right to give one event to one handler, fenced by its token; a state's is part of a chain."""

    ask: Ask
    token: int
    attempt: int = 1
    chain: Chain | None = None


class Letter(Discreet, msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The content of a dead letter. `reason` is free of personal data; `detail` may not be."""

    shown = ("reason",)

    raw: bytes
    reason: str
    detail: str = ""


class Settlement(msgspec.Struct, frozen=True, gc=False):
    """The end of a claim. Those of one chain are in its order."""

    claim: Claim
    outcome: Outcome
    #: For `retry`: advice when to try again, by the ledger's clock.
    retry_in_us: int = 0
    letter: Letter | None = None
    #: For a state: the new data of its entity.
    data: bytes = b""
    #: For a state: whether it is the last of its chain. Only that one frees the entity.
    frees: bool = True


def attended(settlement: Settlement) -> tuple[bytes, bytes] | None:
    """Return the conversation and the mark that the end of a claim adds to its attendance; None: it adds nothing.

    An event came when it needs no further delivery, so one that is to be tried again has not come yet.
    """
    ask = settlement.claim.ask
    if not ask.mark or ask.conversation is None or settlement.outcome not in _CAME:
        return None
    return ask.conversation, ask.mark


_CAME: Final = frozenset({Outcome.DONE, Outcome.ECHO, Outcome.STALE, Outcome.DEAD})


class Newest(Discreet, msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """A worker's knowledge of an entity that it holds; to its ledger, these are bytes."""

    shown = ("moment", "line", "unsure")

    #: The newest done event: its state, its moment, and the fields that people want to see.
    state: bytes | None = None
    moment: Moment = Moment()
    #: The newest done or echoed moment: a state older than this line is stale.
    line: Moment = Moment()
    #: Whether a later claim ended otherwise than done, so that the sink may show another state.
    unsure: bool = False
    key: bytes | None = None
    topic: str = ""
    time_ms: int | None = None
    envelope: str | None = None
    conversation: bytes | None = None
    user: bytes | None = None


_NOTHING_KNOWN: Final = Newest()
_decode = msgspec.msgpack.Decoder(Newest).decode
_encode = msgspec.msgpack.Encoder().encode


def read_newest(data: bytes) -> Newest:
    """Read an entity's data as the last settle left it."""
    return _decode(data) if data else _NOTHING_KNOWN


def write_newest(newest: Newest) -> bytes:
    """Write an entity's data for its ledger."""
    return _encode(newest)


def newest_of(chain: Chain) -> Newest:
    """Return a worker's own copy of an entity that it has claimed; after a run-out it is unsure."""
    newest = read_newest(chain.data)
    return replace(newest, unsure=True) if chain.ran_out and not newest.unsure else newest


# --- duplicates --------------------------------------------------------------------------------------


def has_other_content(ask: Ask, content: bytes | None) -> bool:
    """Return whether the same explicit id has another content."""
    return ask.content is not None and content is not None and ask.content != content


def duplicate_verdict(ask: Ask, envelope: str | None) -> Verdict:
    """Distinguish a redelivery from a republish: only the same, present envelope id is a redelivery."""
    same = ask.envelope is not None and ask.envelope == envelope
    return Verdict.REDELIVERY if same else Verdict.REPUBLISH


# --- order -------------------------------------------------------------------------------------------


def judge(ask: Ask, newest: Newest) -> Verdict:
    """Return whether a claimed state is an echo, stale, or news to its entity."""
    if ask.force:
        return Verdict.FRESH
    if _is_echo(ask, newest):
        return Verdict.ECHO
    return Verdict.STALE if ask.stale and older(ask.moment, newest.line) else Verdict.FRESH


def newest_after(newest: Newest, ask: Ask, outcome: Outcome, now_us: int) -> Newest:
    """Return an entity's newest once a state of it has ended; `now_us` is the ledger's time of its claim."""
    if outcome is Outcome.DONE:
        return _after_done(newest, ask, now_us)
    if outcome is Outcome.ECHO:
        return _after_echo(newest, ask, now_us)
    if outcome is Outcome.STALE or newest.unsure:
        return newest
    return replace(newest, unsure=True)


def older(one: Moment, other: Moment) -> bool:
    """Return whether one moment is strictly older: no time later, and at least one earlier."""
    if one.version is not None and other.version is not None:
        return 0 < other.version - one.version <= VERSIONS_BEHIND_MAX
    pairs = [(a, b) for a, b in zip(one.times, other.times, strict=False) if a is not None and b is not None]
    return any(a < b for a, b in pairs) and not any(a > b for a, b in pairs)


def within_window(one: Moment, other: Moment, window_ns: int) -> bool:
    """Return whether all times of two moments lie within the echo window."""
    comparable = one.echoes and other.echoes and bool(one.times) and len(one.times) == len(other.times)
    pairs = zip(one.times, other.times, strict=False)
    return comparable and all(a == b or (a is not None and b is not None and abs(a - b) <= window_ns) for a, b in pairs)


def is_believable(moment: Moment, now_us: int) -> bool:
    """Return whether a moment may become an entity's newest: one from the future would block it for ever."""
    if moment.version is not None:
        return True
    known = [time for time in moment.times if time is not None]
    return bool(known) and max(known) // 1000 <= now_us + AHEAD_US_MAX


def _is_echo(ask: Ask, newest: Newest) -> bool:
    """Return whether a state repeats its entity's newest done event."""
    if newest.unsure or newest.state is None or ask.state != newest.state:
        return False
    return within_window(ask.moment, newest.moment, ask.echo_window_ns)


def _after_echo(newest: Newest, ask: Ask, now_us: int) -> Newest:
    """Move the line for stale, forward only; the newest done event stays."""
    if not (older(newest.line, ask.moment) and is_believable(ask.moment, now_us)):
        return newest
    return replace(newest, line=_filled(ask.moment, newest.line))


def _after_done(newest: Newest, ask: Ask, now_us: int) -> Newest:
    """Make a done event its entity's newest, unless it is older or not believable.

    An equal time wins too: of two states in one millisecond the sink shows the one that was handled last.
    """
    if older(ask.moment, newest.line) or not is_believable(ask.moment, now_us):
        return newest if newest.unsure else replace(newest, unsure=True)
    return Newest(
        state=ask.state,
        moment=ask.moment,
        line=_filled(ask.moment, newest.line),
        key=ask.key,
        topic=ask.topic,
        time_ms=ask.time_ms,
        envelope=ask.envelope,
        conversation=ask.conversation,
        user=ask.user,
    )


def _filled(moment: Moment, line: Moment) -> Moment:
    """Fill the empty places of a moment from the line: a missing time sets no other back."""
    times = tuple(b if a is None else a for a, b in zip_longest(moment.times, line.times))
    return Moment(times, line.version if moment.version is None else moment.version, moment.echoes)
