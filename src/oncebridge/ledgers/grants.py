"""The rules by which a ledger grants, fences and frees: pure decisions on records and entities, none about order.

A ledger fetches the records of a call, computes with these functions how they change, and writes them back, all in
one atomic step. Ledgers that decide inside their server (Lua, SQL) follow the same rules there; the contract and random
histories compare them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from oncebridge.claim import (
    SETTLED,
    Answer,
    Chain,
    Outcome,
    Status,
    Verdict,
    duplicate_verdict,
    has_other_content,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oncebridge.claim import Ask, Claim, Settlement


class Record(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A ledger's record of one event for one handler. Times are the ledger's, in microseconds."""

    status: Status
    token: int = 0
    nonce: bytes = b""
    #: For facts; a state's lease is its entity's.
    lease_until_us: int = 0
    alone: bool = False
    attempts: int = 0
    content: bytes | None = None
    envelope: str | None = None
    changed_us: int = 0
    retry_at_us: int = 0
    letter: bool = False


class Entity(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A ledger's record of an entity: who holds it, and bytes that are opaque to the ledger."""

    #: The top token of the chain that holds it, or held it last.
    token: int = 0
    #: Of the call that claimed it, while it is held.
    nonce: bytes = b""
    lease_until_us: int = 0  # 0: not held
    #: Whether its present holder found that the previous lease ran out. The next settle notes that in its data.
    ran_out: bool = False
    data: bytes = b""
    changed_us: int = 0


class Seen(msgspec.Struct, frozen=True, gc=False):
    """What a look finds for one ask: the records of its event by handler, its entity, and the ledger's time.

    A ledger that keeps less of an event leaves that out: `changed_us` is 0, or the envelope id is None.
    """

    records: dict[str, Record]
    entity: Entity | None
    now_us: int


class Call(msgspec.Struct, frozen=True, gc=False):
    """One claim call: its nonce, which only its own repeat has too, the lease, and the ledger's time."""

    nonce: bytes
    lease_us: int
    now_us: int


class Granted(NamedTuple):
    """The answers to a chain, in order, and the records that change, each with its place; None: the entity stays."""

    answers: list[Answer]
    records: list[tuple[int, Record]]
    entity: Entity | None


class Kept(NamedTuple):
    """Whether a claim was in force, and the new record and entity; None where they stay."""

    ok: bool
    record: Record | None = None
    entity: Entity | None = None


def next_token(previous: int, now_us: int) -> int:
    """Return a token above every earlier one, even those of a record that has been forgotten."""
    return max(previous + 1, now_us)


# --- claim -------------------------------------------------------------------------------------------


def claim_fact(ask: Ask, record: Record | None, call: Call) -> tuple[Answer, Record | None]:
    """Answer the ask for a fact; the record is None if it stays."""
    if record is None and not ask.redrive:  # nearly always
        token = next_token(0, call.now_us)
        return Answer(Verdict.FRESH, token), _claimed(ask, None, token, call, call.now_us + call.lease_us)
    known = _known(ask, record)
    if known is not None:
        return known, None
    if record is not None and record.status is Status.CLAIMED:
        if record.nonce == call.nonce:  # the repeat of a call whose reply was lost
            return Answer(Verdict.FRESH, record.token, record.attempts + 1), None
        if record.lease_until_us > call.now_us:
            return Answer(Verdict.BUSY, busy_us=record.lease_until_us - call.now_us), None
        if not ask.alone:
            return Answer(Verdict.FRESH), None
    token = next_token(0 if record is None else record.token, call.now_us)
    granted = _claimed(ask, record, token, call, lease_until_us=call.now_us + call.lease_us)
    return Answer(Verdict.FRESH, token, granted.attempts + 1), granted


def claim_chain(asks: Sequence[Ask], records: Sequence[Record | None], entity: Entity | None, call: Call) -> Granted:
    """Answer the asks for states of one entity, in their order.

    A state whose last claim ran out cuts the chain: it is claimed alone. The states before it are granted first, and
    those behind it wait. A call that had its claims once, and lost them, gets none of them while others of its own stay
    behind: its repeat could not tell the old ones from the new.
    """
    entity = entity or Entity()
    answers = [_known(ask, record) for ask, record in zip(asks, records, strict=True)]
    places = [place for place, answer in enumerate(answers) if answer is None]
    if not places:
        return _answered(answers, Answer(Verdict.BUSY))
    if entity.lease_until_us and entity.nonce == call.nonce:
        return _granted_again(answers, records, entity, call)
    if entity.lease_until_us > call.now_us:
        return _answered(answers, Answer(Verdict.BUSY, busy_us=entity.lease_until_us - call.now_us))
    cut = next((n for n, place in enumerate(places) if _ran_out(records[place]) and not asks[place].alone), len(places))
    if cut == 0 or _leaves_some_of_its_own(records, places[cut:], call):
        answers[places[0]] = Answer(Verdict.FRESH)
        return _answered(answers, Answer(Verdict.BUSY))
    return _grant(asks, records, entity, call, answers=answers, places=places[:cut])


def expected_answer(ask: Ask, seen: Seen) -> Answer:
    """Return the answer that a claim would get now; nothing is claimed, so the token is nobody's."""
    call = Call(_NOBODYS, 0, seen.now_us)
    # Alone, since that is how an event whose last claim ran out is asked for in the end.
    ask, record = replace(ask, alone=True), seen.records.get(ask.handler)
    if ask.entity is None:
        return claim_fact(ask, record, call)[0]
    (answer,) = claim_chain([ask], [record], seen.entity, call).answers
    return answer


_NOBODYS: Final = b"a look"  # a nonce has eight bytes, so this is no call's


def _grant(
    asks: Sequence[Ask],
    records: Sequence[Record | None],
    entity: Entity,
    call: Call,
    *,
    answers: list[Answer | None],
    places: list[int],
) -> Granted:
    first = next_token(entity.token, call.now_us)
    chain = Chain(
        top=first + len(places) - 1,
        data=entity.data,
        ran_out=entity.ran_out or entity.lease_until_us != 0,
        now_us=call.now_us,
    )
    changed = []
    for token, place in enumerate(places, first):
        granted = _claimed(asks[place], records[place], token, call)
        answers[place] = Answer(Verdict.FRESH, token, granted.attempts + 1, chain=chain)
        changed.append((place, granted))
    held = replace(
        entity,
        token=chain.top,
        nonce=call.nonce,
        lease_until_us=call.now_us + call.lease_us,
        ran_out=chain.ran_out,
        changed_us=call.now_us,
    )
    return Granted(_answered(answers, Answer(Verdict.BUSY)).answers, changed, held)


def _granted_again(
    answers: list[Answer | None], records: Sequence[Record | None], entity: Entity, call: Call
) -> Granted:
    """Answer the repeat of a call whose reply was lost with the same answers."""
    chain = Chain(top=entity.token, data=entity.data, ran_out=entity.ran_out, now_us=call.now_us)
    for place, record in enumerate(records):
        if answers[place] is None and record is not None and record.nonce == call.nonce:
            answers[place] = Answer(Verdict.FRESH, record.token, record.attempts + 1, chain=chain)
    return _answered(answers, Answer(Verdict.BUSY))


def _answered(answers: Sequence[Answer | None], otherwise: Answer) -> Granted:
    return Granted([answer or otherwise for answer in answers], [], None)


def _known(ask: Ask, record: Record | None) -> Answer | None:
    """Answer an ask that the record alone decides: there is nothing to claim."""
    if record is None:
        return Answer(Verdict.REPUBLISH) if ask.redrive else None
    if has_other_content(ask, record.content):
        return Answer(Verdict.CONFLICT, of=record.envelope)
    if record.status in SETTLED and not (ask.redrive and record.status is Status.DEAD):
        return Answer(duplicate_verdict(ask, record.envelope), of=record.envelope, was=record.status)
    return Answer(Verdict.REPUBLISH) if ask.redrive and not record.letter else None


def _ran_out(record: Record | None) -> bool:
    """Return whether a claim was never settled. Called only once its lease is known to have ended."""
    return record is not None and record.status is Status.CLAIMED


def _leaves_some_of_its_own(records: Sequence[Record | None], places: Sequence[int], call: Call) -> bool:
    left = [records[place] for place in places]
    return any(record is not None and record.nonce == call.nonce for record in left)


def _claimed(ask: Ask, record: Record | None, token: int, call: Call, lease_until_us: int = 0) -> Record:
    attempts = 0 if record is None else record.attempts
    if record is not None and record.status is Status.DEAD:
        attempts = 0  # redriven: a new start
    elif record is not None and _ran_out(record) and record.alone:
        attempts += 1
    return Record(
        status=Status.CLAIMED,
        token=token,
        nonce=call.nonce,
        lease_until_us=lease_until_us,
        alone=ask.alone,
        attempts=attempts,
        content=ask.content if ask.content is not None or record is None else record.content,
        envelope=ask.envelope,
        changed_us=call.now_us,
        letter=record is not None and record.letter,
    )


# --- extend and settle -------------------------------------------------------------------------------


def extend_claim(claim: Claim, record: Record | None, entity: Entity | None, call: Call) -> Kept:
    """Extend a claim in force; a state's whole chain with it."""
    until_us = call.now_us + call.lease_us
    if claim.chain is not None:
        if entity is None or entity.token != claim.chain.top or not entity.lease_until_us:
            return Kept(ok=False)
        return Kept(ok=True, entity=replace(entity, lease_until_us=until_us))
    if record is None or record.status is not Status.CLAIMED or record.token != claim.token:
        return Kept(ok=False)
    return Kept(ok=True, record=replace(record, lease_until_us=until_us))


def settle_claim(settlement: Settlement, record: Record | None, entity: Entity | None, now_us: int) -> Kept:
    """End a claim in force. A repeat that finds its own outcome is fine; a late worker changes nothing."""
    claim, outcome = settlement.claim, settlement.outcome
    if record is None or record.token != claim.token:
        return Kept(ok=False)
    status = Status(outcome.value)
    if record.status is status:
        return Kept(ok=True)
    if record.status is not Status.CLAIMED:
        return Kept(ok=False)
    if claim.chain is not None and (entity is None or entity.token != claim.chain.top):
        return Kept(ok=False)
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
    if claim.chain is None or entity is None:
        return Kept(ok=True, record=ended)
    left = replace(entity, data=settlement.data, ran_out=False, changed_us=now_us)
    return Kept(ok=True, record=ended, entity=replace(left, nonce=b"", lease_until_us=0) if settlement.frees else left)
