"""Claims, verdicts and outcomes, and the legal moves between them: pure decisions, shared by every ledger.

A ledger fetches the record of an event and, for a state, that of its entity, lets `decide_claim`,
`decide_extend` or `decide_settle` work out what they become, and writes that back, all in one atomic step.
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
VERSIONS_BEHIND_MAX: Final = 1000  # further apart, two versions tell nothing: one of them may be made up


class Verdict(StrEnum):
    """What a delivery turned out to be: the ledger's answer to a claim, but for the last two."""

    CONFLICT = "conflict"  # the same explicit id with another content
    REDELIVERY = "redelivery"  # settled for good, same envelope id
    REPUBLISH = "republish"  # settled for good, under another envelope id or without one
    BUSY = "busy"  # the event or its entity is claimed, and the lease runs
    ECHO = "echo"  # a state again that its entity has already, within the window
    STALE = "stale"  # a state older than the one its entity has
    FRESH = "fresh"  # to be processed
    DEAD = "dead"  # could not even be read: never asked of a ledger, but reported like the others
    UNHANDLED = "unhandled"  # no handler takes its topic: not asked of a ledger either


class Outcome(StrEnum):
    """How a claim ends."""

    DONE = "done"
    RETRY = "retry"  # failed; again at a later time
    RELEASE = "release"  # not tried, so not counted
    DEAD = "dead"  # will not be tried again by itself
    DISCARD = "discard"  # a dead letter given up for good


class Status(StrEnum):
    """What a ledger says of an event."""

    CLAIMED = "claimed"
    RETRY = "retry"
    RELEASE = "release"
    DONE = "done"
    ECHO = "echo"
    STALE = "stale"
    DEAD = "dead"
    DISCARD = "discard"


SETTLED: Final = frozenset({Status.DONE, Status.ECHO, Status.STALE, Status.DEAD, Status.DISCARD})


class Ask(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a claim is asked for: one event for one handler. All of it is finished before a ledger is asked."""

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
    conversation: bytes | None = None
    user: bytes | None = None
    #: Whether nothing else is claimed at the same time: only then does a run-out count as this event's own.
    alone: bool = False
    #: Whether this is a dead letter tried again; `force` then skips echo and stale.
    redrive: bool = False
    force: bool = False


class Answer(msgspec.Struct, frozen=True, gc=False):
    """A ledger's answer to an ask. `token` is 0 unless the claim was granted."""

    verdict: Verdict
    token: int = 0
    attempt: int = 1
    #: The envelope id of the delivery that did the work, where the ledger knows it, and how it was settled.
    of: str | None = None
    was: Status | None = None
    #: How long the claim in the way may still run.
    busy_us: int = 0

    @property
    def wants_alone(self) -> bool:
        """Whether the event must be asked for alone, because its last claim ran out among others."""
        return self.verdict is Verdict.FRESH and self.token == 0


class Claim(msgspec.Struct, frozen=True, gc=False):
    """The exclusive right to give one event to one handler, fenced by its token."""

    ask: Ask
    token: int
    attempt: int = 1


class Letter(Discreet, msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What is kept of a dead letter. `reason` is free of personal data; `detail` may not be."""

    shown = ("reason",)

    raw: bytes
    reason: str
    detail: str = ""


class Settlement(msgspec.Struct, frozen=True, gc=False):
    """The end of a claim."""

    claim: Claim
    outcome: Outcome
    #: For `retry`: advice when to come again, by the ledger's clock.
    retry_in_us: int = 0
    letter: Letter | None = None


class Record(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a ledger remembers of one event for one handler. Times are the ledger's, in microseconds."""

    status: Status
    token: int = 0
    nonce: bytes = b""
    #: For facts; a state's lease lives on its entity.
    lease_until_us: int = 0
    alone: bool = False
    attempts: int = 0
    content: bytes | None = None
    envelope: str | None = None
    changed_us: int = 0
    retry_at_us: int = 0
    letter: bool = False


class Entity(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a ledger remembers of an entity: who holds it, and its newest state."""

    token: int = 0
    lease_until_us: int = 0  # 0: not held
    #: The newest done event: its state, its moment, its key.
    state: bytes | None = None
    moment: Moment = Moment()
    key: bytes | None = None
    #: By which stale is judged: the newest done or echoed moment.
    line: Moment = Moment()
    #: Whether a claim since then ended otherwise than done, so the sink may show another state.
    unsure: bool = False
    changed_us: int = 0


class Call(msgspec.Struct, frozen=True, gc=False):
    """One claim call: its nonce, which only its own repeat sends again, the lease, and the ledger's time."""

    nonce: bytes
    lease_us: int
    now_us: int


Move = tuple[Answer, Record | None, Entity | None]
Kept = tuple[bool, Record | None, Entity | None]

# --- the rules, each by itself -----------------------------------------------------------------------


def has_other_content(ask: Ask, record: Record) -> bool:
    """Tell whether the same explicit id came with another content."""
    return ask.content is not None and record.content is not None and ask.content != record.content


def duplicate_verdict(ask: Ask, record: Record) -> Verdict:
    """Tell a redelivery from a republish: only the same, present envelope id is a redelivery."""
    same = ask.envelope is not None and ask.envelope == record.envelope
    return Verdict.REDELIVERY if same else Verdict.REPUBLISH


def is_settled(record: Record) -> bool:
    """Tell whether an event is settled for good; one that is only claimed or failed is not."""
    return record.status in SETTLED


def older(one: Moment, other: Moment) -> bool:
    """Tell whether one moment is strictly older: no time later, and at least one earlier."""
    if one.version is not None and other.version is not None:
        return 0 < other.version - one.version <= VERSIONS_BEHIND_MAX
    pairs = [(a, b) for a, b in zip(one.times, other.times, strict=False) if a is not None and b is not None]
    return any(a < b for a, b in pairs) and not any(a > b for a, b in pairs)


def within_window(one: Moment, other: Moment, window_ns: int) -> bool:
    """Tell whether all times of two moments lie within the echo window."""
    comparable = one.echoes and other.echoes and bool(one.times) and len(one.times) == len(other.times)
    pairs = zip(one.times, other.times, strict=False)
    return comparable and all(a == b or (a is not None and b is not None and abs(a - b) <= window_ns) for a, b in pairs)


def is_echo(ask: Ask, entity: Entity) -> bool:
    """Tell whether an event says again what its entity's newest done event has said."""
    if entity.unsure or entity.lease_until_us or entity.state is None:
        return False
    return ask.state == entity.state and within_window(ask.moment, entity.moment, ask.echo_window_ns)


def is_stale(ask: Ask, entity: Entity) -> bool:
    """Tell whether an event is older than what its entity has seen."""
    return ask.stale and older(ask.moment, entity.line)


def is_believable(moment: Moment, now_us: int) -> bool:
    """Tell whether a moment may become an entity's newest: one from the future would block it for ever."""
    if moment.version is not None:
        return True
    known = [time for time in moment.times if time is not None]
    return bool(known) and max(known) // 1000 <= now_us + AHEAD_US_MAX


def next_token(previous: int, now_us: int) -> int:
    """Return a token above every earlier one, even those of a record that was forgotten since."""
    return max(previous + 1, now_us)


def holds(claim: Claim, record: Record | None, entity: Entity | None) -> bool:
    """Tell whether a claim is still the one in force: nobody has claimed the event or its entity since."""
    if record is None or record.token != claim.token:
        return False
    return claim.ask.entity is None or (entity is not None and entity.token == claim.token)


# --- claim -------------------------------------------------------------------------------------------


def decide_claim(ask: Ask, record: Record | None, entity: Entity | None, call: Call) -> Move:
    """Work out the verdict, and what event and entity become; None where they stay as they are."""
    if record is not None:
        if has_other_content(ask, record):
            return Answer(Verdict.CONFLICT, of=record.envelope), None, None
        own = _own_answer(ask, record, entity, call)
        if own is not None:
            return own, None, None
        if is_settled(record) and not (ask.redrive and record.status is Status.DEAD):
            return Answer(duplicate_verdict(ask, record), of=record.envelope, was=record.status), None, None
    if ask.redrive and (record is None or not record.letter):
        return Answer(Verdict.REPUBLISH), None, None
    if ask.entity is None:
        return _claim_fact(ask, record, call)
    return _claim_state(ask, record, entity or Entity(), call)


def _own_answer(ask: Ask, record: Record, entity: Entity | None, call: Call) -> Answer | None:
    """Answer the repeat of a call whose reply was lost as that reply did."""
    if record.nonce != call.nonce:
        return None
    if record.status is Status.CLAIMED and holds(Claim(ask, record.token), record, entity):
        return Answer(Verdict.FRESH, record.token, record.attempts + 1)
    if record.status in (Status.ECHO, Status.STALE):
        return Answer(Verdict(record.status.value))
    return None


def _claim_fact(ask: Ask, record: Record | None, call: Call) -> Move:
    if record is not None and record.status is Status.CLAIMED and record.lease_until_us > call.now_us:
        return Answer(Verdict.BUSY, busy_us=record.lease_until_us - call.now_us), None, None
    if _ran_out(record) and not ask.alone:
        return Answer(Verdict.FRESH), None, None
    granted = _granted(ask, record, next_token(record.token if record else 0, call.now_us), call)
    return Answer(Verdict.FRESH, granted.token, granted.attempts + 1), granted, None


def _claim_state(ask: Ask, record: Record | None, entity: Entity, call: Call) -> Move:
    if entity.lease_until_us > call.now_us:
        return Answer(Verdict.BUSY, busy_us=entity.lease_until_us - call.now_us), None, None
    if not ask.force and is_echo(ask, entity):
        recorded = _recorded(ask, record, Status.ECHO, call)
        return Answer(Verdict.ECHO), recorded, _after_echo(ask, entity, call.now_us)
    if not ask.force and is_stale(ask, entity):
        return Answer(Verdict.STALE), _recorded(ask, record, Status.STALE, call), None
    if _ran_out(record) and not ask.alone:
        return Answer(Verdict.FRESH), None, None
    token = next_token(entity.token, call.now_us)
    granted = replace(_granted(ask, record, token, call), lease_until_us=0)
    held = replace(entity, token=token, lease_until_us=call.now_us + call.lease_us, changed_us=call.now_us)
    return Answer(Verdict.FRESH, token, granted.attempts + 1), granted, held


def _ran_out(record: Record | None) -> bool:
    """Tell whether a claim was never settled. Asked only once its lease is known to be over."""
    return record is not None and record.status is Status.CLAIMED


def _granted(ask: Ask, record: Record | None, token: int, call: Call) -> Record:
    attempts = 0 if record is None else record.attempts
    if record is not None and record.status is Status.DEAD:
        attempts = 0  # redriven: a new start
    elif record is not None and _ran_out(record) and record.alone:
        attempts += 1
    return Record(
        status=Status.CLAIMED,
        token=token,
        nonce=call.nonce,
        lease_until_us=call.now_us + call.lease_us,
        alone=ask.alone,
        attempts=attempts,
        content=ask.content if ask.content is not None or record is None else record.content,
        envelope=ask.envelope,
        changed_us=call.now_us,
        letter=record is not None and record.letter,
    )


def _recorded(ask: Ask, record: Record | None, status: Status, call: Call) -> Record:
    """Make the record of an event that needs no work, under its own identity."""
    return Record(
        status=status,
        token=0 if record is None else record.token,
        nonce=call.nonce,
        attempts=0 if record is None else record.attempts,
        content=ask.content,
        envelope=ask.envelope,
        changed_us=call.now_us,
    )


def _after_echo(ask: Ask, entity: Entity, now_us: int) -> Entity:
    """Let an echo move the time by which stale is judged, forward only; the newest done event stays."""
    forward = older(entity.line, ask.moment) and is_believable(ask.moment, now_us)
    return replace(entity, line=_filled(ask.moment, entity.line) if forward else entity.line, changed_us=now_us)


def _filled(moment: Moment, line: Moment) -> Moment:
    """Take from the line what a moment does not say: an event without its own time sets back no other's."""
    times = tuple(b if a is None else a for a, b in zip_longest(moment.times, line.times))
    return Moment(times, line.version if moment.version is None else moment.version, moment.echoes)


# --- extend and settle -------------------------------------------------------------------------------


def decide_extend(claim: Claim, record: Record | None, entity: Entity | None, call: Call) -> Kept:
    """Let a claim in force run longer; one that is not in force stays lost."""
    if record is None or record.status is not Status.CLAIMED or not holds(claim, record, entity):
        return False, None, None
    until = call.now_us + call.lease_us
    if entity is not None:
        return True, None, replace(entity, lease_until_us=until)
    return True, replace(record, lease_until_us=until), None


def decide_settle(settlement: Settlement, record: Record | None, entity: Entity | None, now_us: int) -> Kept:
    """End a claim in force. A repeat that finds its own outcome is fine; whoever comes late changes nothing."""
    claim, outcome = settlement.claim, settlement.outcome
    if record is None or record.token != claim.token:
        return False, None, None
    status = Status(outcome.value)
    if record.status is status:
        return True, None, None
    if record.status is not Status.CLAIMED or not holds(claim, record, entity):
        return False, None, None
    failed = outcome in (Outcome.RETRY, Outcome.DEAD)
    ended = replace(
        record,
        status=status,
        nonce=b"",
        lease_until_us=0,
        attempts=record.attempts + (1 if failed else 0),
        changed_us=now_us,
        retry_at_us=now_us + settlement.retry_in_us if outcome is Outcome.RETRY else 0,
        letter=outcome is Outcome.DEAD or (record.letter and status not in SETTLED),
    )
    if entity is None:
        return True, ended, None
    free = replace(entity, lease_until_us=0, changed_us=now_us)
    return True, ended, _after_done(claim.ask, free, now_us) if outcome is Outcome.DONE else replace(free, unsure=True)


def _after_done(ask: Ask, entity: Entity, now_us: int) -> Entity:
    """Let a done event become its entity's newest, unless it is older or not believable.

    An equal time wins too: of two states in one millisecond the sink shows the one that was handled last.
    """
    if older(ask.moment, entity.line) or not is_believable(ask.moment, now_us):
        return replace(entity, unsure=True)
    line = _filled(ask.moment, entity.line)
    return replace(entity, state=ask.state, moment=ask.moment, key=ask.key, line=line, unsure=False)
