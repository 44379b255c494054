"""The moves of events: claim, extend, settle, each a write on the condition that the item has not changed.

A fact is one item, and every verb one write: a claim assumes that the event is new, a settle or an extend that the
claim is in force. Only if that is wrong, the answer shows the item, and the pure rules decide on it.

The states of an entity are a chain. A claim reads all of it at one moment, takes the entity's lease by one conditional
update, and then writes the records, each by itself: nobody else can change them meanwhile. A settle ends any number of
its states and writes the entity in one transaction, since the last one frees the entity.

A mark of attendance is written together with the end that it belongs to, so there a fact is a transaction, too.
"""

from __future__ import annotations

from itertools import compress
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from oncebridge.claim import SETTLED, Answer, Chain, Outcome, Status, Verdict, attended
from oncebridge.ledgers.dynamodb.attendance import attendance_key, is_full, mark_write
from oncebridge.ledgers.dynamodb.errors import CONDITION_FAILED, ConditionFailed
from oncebridge.ledgers.dynamodb.items import (
    ABSENT,
    EXPIRES,
    OF_FIRST_SCHEMA,
    OF_LETTER,
    Item,
    Stored,
    Write,
    about,
    entity_attributes,
    entity_key,
    event_key,
    put,
    record_attributes,
    update,
    wrapped,
)
from oncebridge.ledgers.dynamodb.letters import Written, remove_parts, write_parts
from oncebridge.ledgers.dynamodb.table import Contention
from oncebridge.ledgers.grants import Granted, claim_chain, claim_fact, extend_claim, settle_claim
from oncebridge.ledgers.marks import marks_by_conversation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oncebridge.claim import Ask, Claim, Settlement
    from oncebridge.ledgers.dynamodb.table import Patience, Table
    from oncebridge.ledgers.grants import Call, Entity, Record

_NOTHING: Final = Stored({})
CHAIN_MAX: Final = 90  # states of an entity in one call: DynamoDB reads and writes 100 items together
MARKED_MAX: Final = 45  # where each may have a conversation of its own beside it


def record_key(ask: Ask) -> Item:
    """Return the key of an event's record."""
    return event_key(ask.key, ask.handler)


def key_of_entity(ask: Ask) -> Item:
    """Return the key of a state's entity."""
    assert ask.entity is not None
    return entity_key(ask.entity)


# --- claim -------------------------------------------------------------------------------------------


def claim(table: Table, patience: Patience, asks: Sequence[Ask], nonce: bytes, lease_us: int) -> list[Answer]:
    """Claim one fact, or the states of one entity."""
    if asks[0].entity is None:
        return [_claim_fact(table, patience, asks[0], nonce, lease_us)]
    behind = [Answer(Verdict.BUSY)] * (len(asks) - CHAIN_MAX)  # they are claimed again once these have ended
    return _claim_chain(table, patience, asks[:CHAIN_MAX], nonce, lease_us) + behind


def _claim_fact(table: Table, patience: Patience, ask: Ask, nonce: bytes, lease_us: int) -> Answer:
    contention = Contention(table, patience)
    # A fact is assumed to be new: if it is not, the refused write shows it.
    event = table.read(patience, record_key(ask)) if ask.redrive else _NOTHING
    while True:
        call = table.calling(nonce, lease_us)
        answer, record = claim_fact(ask, event.record, call)
        if record is None:
            return answer
        try:
            table.write(patience, _record_write(table, ask, event, record, call))
        except ConditionFailed as failed:
            contention.again()
            event = table.found(patience, failed, record_key(ask))
            continue
        return answer


def _claim_chain(table: Table, patience: Patience, asks: Sequence[Ask], nonce: bytes, lease_us: int) -> list[Answer]:
    contention = Contention(table, patience)
    while True:
        entity, *events = table.read_together(patience, key_of_entity(asks[0]), *map(record_key, asks))
        call = table.calling(nonce, lease_us)
        records = [event.record for event in events]
        granted = _resumed(asks, records, entity.entity, call) or claim_chain(asks, records, entity.entity, call)
        try:
            if granted.entity is not None:
                table.write(patience, _entity_write(table, asks[0], entity, granted.entity, call))
            for place, record in granted.records:
                table.write(patience, _record_write(table, asks[place], events[place], record, call))
        except ConditionFailed:
            # Another worker was faster, or this very call was: then it resumes where it was cut off.
            contention.again()
            continue
        return granted.answers


def _resumed(
    asks: Sequence[Ask], records: Sequence[Record | None], entity: Entity | None, call: Call
) -> Granted | None:
    """Resume this very call, cut off with the entity held but not all records written; None if it was not."""
    if entity is None or not entity.lease_until_us or entity.nonce != call.nonce:
        return None
    # As if the entity were free again: the same asks are granted, and their tokens end with the entity's.
    free = replace(entity, token=0, nonce=b"", lease_until_us=0)
    before = [
        replace(record, status=Status.RELEASE) if record is not None and record.nonce == call.nonce else record
        for record in records
    ]
    again = claim_chain(asks, before, free, call)
    first = entity.token - len(again.records) + 1
    chain = Chain(entity.token, entity.data, entity.ran_out, call.now_us)
    answers, missing = list(again.answers), []
    for token, (place, record) in enumerate(again.records, first):
        own = records[place]
        if own is None or own.nonce != call.nonce:
            own = replace(record, token=token)
            missing.append((place, own))
        answers[place] = Answer(Verdict.FRESH, token, own.attempts + 1, chain=chain)
    return Granted(answers, missing, None)


def _record_write(table: Table, ask: Ask, event: Stored, record: Record, call: Call) -> Write:
    """Write a record on the condition that it has not changed; a new one with all data of the event."""
    said = {**record_attributes(record), EXPIRES: table.expires() if record.status in SETTLED else None}
    if event.record is None:
        return put(record_key(ask) | wrapped({**said, **about(ask), "rev": call.now_us}), event.seen)
    gone = {} if record.letter else dict.fromkeys(OF_LETTER)
    return update(record_key(ask), {**said, **gone}, event.seen or ())


def _entity_write(table: Table, ask: Ask, entity: Stored, held: Entity, call: Call) -> Write:
    """Write an entity on the condition that it has not changed. While it is held it does not expire."""
    said = {**entity_attributes(held), EXPIRES: None if held.lease_until_us else table.expires()}
    if entity.entity is None:
        return put(key_of_entity(ask) | wrapped({**said, "rev": call.now_us}), entity.seen)
    return update(key_of_entity(ask), said, entity.seen or ())


# --- extend ------------------------------------------------------------------------------------------


def extend(table: Table, patience: Patience, claim: Claim, lease_us: int) -> bool:
    """Extend one claim, if it is in force; a state's whole chain with it.

    Only ever longer: a delayed extension must not undo a later one.
    """
    ask = claim.ask
    contention = Contention(table, patience)
    while True:
        call = table.calling(b"", lease_us)
        until_us = call.now_us + call.lease_us
        longer = [("lease_until_us", "<", until_us)]
        try:
            if claim.chain is None:
                in_force = [("status", "=", Status.CLAIMED.value), ("token", "=", claim.token), *longer]
                table.write(patience, update(record_key(ask), {"lease_until_us": until_us}, in_force))
            else:
                held = [("token", "=", claim.chain.top), *longer]
                table.write(patience, update(key_of_entity(ask), {"lease_until_us": until_us}, held))
        except ConditionFailed as failed:
            found = table.found(patience, failed, record_key(ask) if claim.chain is None else key_of_entity(ask))
            record, entity = (found.record, None) if claim.chain is None else (None, found.entity)
            kept = extend_claim(claim, record, entity, call)
            if not kept.ok or found.said.get("lease_until_us", 0) >= until_us:
                return kept.ok
            contention.again()
            continue
        return True


# --- settle ------------------------------------------------------------------------------------------


def settle(table: Table, patience: Patience, settlements: Sequence[Settlement]) -> list[bool]:
    """End the claim of one fact, or of facts that mark one conversation, or claims of one chain, in order."""
    written = [write_parts(table, patience, one.claim.ask, one.letter) if one.letter else None for one in settlements]
    ends = _settle(table, patience, settlements, written)
    for one, letter, (_, before, after) in zip(settlements, written, ends, strict=True):
        ask, name = one.claim.ask, after.letter[0] if after.letter else None
        if letter is not None and name != letter.letter:
            remove_parts(table, patience, ask, (letter.letter, letter.parts))
        if before.letter is not None and name != before.letter[0]:
            remove_parts(table, patience, ask, before.letter)
    return [ok for ok, _, _ in ends]


#: Whether a claim was in force, and its event before and after.
_End = tuple[bool, Stored, Stored]


def _settle(
    table: Table, patience: Patience, settlements: Sequence[Settlement], written: Sequence[Written | None]
) -> list[_End]:
    if settlements[0].claim.chain is None:
        return _settle_facts(table, patience, settlements, written)
    ends: list[_End] = []
    at_once = MARKED_MAX if any(map(attended, settlements)) else CHAIN_MAX
    for start in range(0, len(settlements), at_once):
        part = slice(start, start + at_once)
        ends += _settle_chain(table, patience, settlements[part], written[part])
    return ends


def _settle_facts(
    table: Table, patience: Patience, settlements: Sequence[Settlement], written: Sequence[Written | None]
) -> list[_End]:
    """End facts of one conversation together where all are in force, else one after the other."""
    ends: list[_End] = []
    for start in range(0, len(settlements), CHAIN_MAX):
        part = slice(start, start + CHAIN_MAX)
        some = list(zip(settlements[part], written[part], strict=True))
        if len(some) > 1 and _settle_together(table, patience, some):
            ends += [(True, _NOTHING, _after(_NOTHING, *one)) for one in some]
        else:
            ends += [_settle_fact(table, patience, *one) for one in some]
    return ends


def _settle_together(table: Table, patience: Patience, ends: Sequence[tuple[Settlement, Written | None]]) -> bool:
    """End facts in one transaction; False if one of them must be looked at, and nothing was written."""
    asks = [one.claim.ask for one, _ in ends]
    if len({(ask.key, ask.handler) for ask in asks}) < len(asks):
        return False
    now_us = table.now_us()
    writes = [settle_write(table, *end, _NO_LETTER, now_us=now_us) for end in ends]
    marked = marks_by_conversation(one for one, _ in ends)
    writes += [mark_write(table, *one, now_us=now_us) for one in marked.items()]
    try:
        table.write(patience, *writes)
    except ConditionFailed:
        return False
    return True


def _settle_fact(table: Table, patience: Patience, settlement: Settlement, written: Written | None) -> _End:
    contention = Contention(table, patience)
    event = _NOTHING
    came = attended(settlement)
    while True:
        now_us = table.now_us()
        if event.said:
            kept = settle_claim(settlement, event.record, None, now_us)
            if kept.record is None:
                return kept.ok, event, event
        try:
            if came is None:
                end = settle_write(table, settlement, written, now_us=now_us)
                before = table.write(patience, end, ReturnValues="ALL_OLD")
            else:
                unseen = [] if event.said else [_NO_LETTER]
                # A transaction does not return the old item, so a letter that is to be erased must have been seen.
                end = settle_write(table, settlement, written, *unseen, now_us=now_us)
                table.write(patience, end, mark_write(table, came[0], [came[1]], now_us=now_us))
                before = event
        except ConditionFailed as failed:
            if failed.codes[0] != CONDITION_FAILED:
                came = None  # the conversation is full
                continue
            event = table.found(patience, failed, record_key(settlement.claim.ask))
            if not event.said:
                return False, event, event
            contention.again()
            continue
        return True, before, _after(before, settlement, written)


def _settle_chain(
    table: Table, patience: Patience, settlements: Sequence[Settlement], written: Sequence[Written | None]
) -> list[_End]:
    """End states of one chain and write their entity, all or nothing; if that fails, only those in force."""
    contention = Contention(table, patience)
    asks = [one.claim.ask for one in settlements]
    conversations = marks_by_conversation(settlements)
    keys = [*map(record_key, asks), *map(attendance_key, conversations)]
    while True:
        entity, *found = table.read_together(patience, key_of_entity(asks[0]), *keys)
        events, full = found[: len(asks)], set(compress(conversations, map(is_full, found[len(asks) :])))
        now_us = table.now_us()
        kept = [
            settle_claim(one, event.record, entity.entity, now_us)
            for one, event in zip(settlements, events, strict=True)
        ]
        places = [place for place, one in enumerate(kept) if one.record is not None]
        if places:
            writes = [settle_write(table, settlements[place], written[place], now_us=now_us) for place in places]
            writes.append(entity_settle_write(table, settlements[places[-1]], now_us))
            came = marks_by_conversation(settlements[place] for place in places)
            writes += [mark_write(table, *one, now_us=now_us) for one in came.items() if one[0] not in full]
            try:
                table.write(patience, *writes)
            except ConditionFailed:
                contention.again()
                continue
        return [
            (one.ok, event, event if one.record is None else _after(event, settlement, letter))
            for one, event, settlement, letter in zip(kept, events, settlements, written, strict=True)
        ]


def _after(before: Stored, settlement: Settlement, written: Written | None) -> Stored:
    """Return the letter's attributes after a settle: nothing else is needed then."""
    if written is not None:
        return Stored(written.attributes)
    return _NOTHING if Status(settlement.outcome.value) in SETTLED else before


#: The condition that no dead letter of the event is kept.
_NO_LETTER: Final = ("letter", ABSENT, None)


def settle_write(
    table: Table, settlement: Settlement, written: Written | None, *conditions: tuple[str, str, Any], now_us: int
) -> Write:
    """Write the end of a claim on the condition that it is in force: the result of `settle_claim`, as one update."""
    claim, outcome = settlement.claim, settlement.outcome
    over = Status(outcome.value) in SETTLED and outcome is not Outcome.DEAD
    changes: dict[str, Any] = {
        "status": outcome.value,
        "changed_us": now_us,
        "nonce": None,
        "lease_until_us": None,
        "retry_at_us": now_us + settlement.retry_in_us if outcome is Outcome.RETRY else None,
        EXPIRES: table.expires() if over else None,
        **(dict.fromkeys(OF_LETTER) if over else {}),
        **(written.attributes if written is not None else {}),
    }
    in_force = [("status", "=", Status.CLAIMED.value), ("token", "=", claim.token), *conditions]
    failed = 1 if outcome in (Outcome.RETRY, Outcome.DEAD) else 0
    return update(record_key(claim.ask), changes, in_force, attempts=failed)


def entity_settle_write(table: Table, settlement: Settlement, now_us: int) -> Write:
    """Write the entity of a chain for the last end in a call.

    On the condition of the top token alone: while the entity is held, only its holder changes it, and an extension from
    the background is no reason to start again.
    """
    claim = settlement.claim
    assert claim.chain is not None
    freed = {"nonce": None, "lease_until_us": None, EXPIRES: table.expires()} if settlement.frees else {}
    changes = {
        "data": settlement.data,
        "ran_out": None,
        "changed_us": now_us,
        **freed,
        **dict.fromkeys(OF_FIRST_SCHEMA),
    }
    return update(key_of_entity(claim.ask), changes, [("token", "=", claim.chain.top)])
