"""The moves of one event: claim, extend, settle, each a conditional write on what was seen.

A fact is one item, and every verb one write: a claim supposes that the event is new, a settle or an extend that
the claim is in force. Only where that turns out wrong, the answer shows the item, and the pure rules decide on it.
A state is two items, its own and its entity's: they are read at one moment and written in one transaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from oncebridge.claim import SETTLED, Outcome, Status, decide_claim, decide_extend, decide_settle
from oncebridge.ledgers.dynamodb.errors import ConditionFailed
from oncebridge.ledgers.dynamodb.items import (
    EXPIRES,
    OF_LETTER,
    Item,
    Stored,
    Write,
    about,
    check,
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

if TYPE_CHECKING:
    from oncebridge.claim import Answer, Ask, Call, Claim, Entity, Record, Settlement
    from oncebridge.ledgers.dynamodb.table import Patience, Table

_NOTHING: Final = Stored({})


def keys_of(ask: Ask) -> tuple[Item, Item]:
    """Return where a state's own item and its entity's are."""
    assert ask.entity is not None
    return event_key(ask.key, ask.handler), entity_key(ask.entity)


# --- claim -------------------------------------------------------------------------------------------


def claim(table: Table, patience: Patience, ask: Ask, nonce: bytes, lease_us: int) -> Answer:
    """Ask for one event."""
    contention = Contention(table, patience)
    event, entity = _first_look(table, patience, ask)
    while True:
        call = table.calling(nonce, lease_us)
        answer, record, held = decide_claim(ask, event.record, entity.entity, call)
        if record is None:
            return answer
        writes = [_record_write(table, ask, event, record, call)]
        if held is not None:
            writes.append(_entity_write(table, ask, entity, held, call))
        elif entity.said:  # the verdict hangs on the entity, so it must still be what was seen
            writes.append(check(keys_of(ask)[1], entity.seen))
        try:
            table.write(patience, *writes)
        except ConditionFailed as failed:
            contention.again()
            event, entity = _looked_again(table, patience, ask, failed)
            continue
        if not record.letter:
            remove_parts(table, patience, ask.key, event.letter)
        return answer


def _first_look(table: Table, patience: Patience, ask: Ask) -> tuple[Stored, Stored]:
    """Suppose that a fact is new: if not, the refused write shows it. An entity is nearly always there already."""
    if ask.entity is not None:
        event, entity = table.read_together(patience, *keys_of(ask))
        return event, entity
    return (table.read(patience, event_key(ask.key, ask.handler)) if ask.redrive else _NOTHING), _NOTHING


def _looked_again(table: Table, patience: Patience, ask: Ask, failed: ConditionFailed) -> tuple[Stored, Stored]:
    if ask.entity is not None:
        event, entity = table.read_together(patience, *keys_of(ask))
        return event, entity
    return table.found(patience, failed, event_key(ask.key, ask.handler)), _NOTHING


def _record_write(table: Table, ask: Ask, event: Stored, record: Record, call: Call) -> Write:
    """Write a record over what was seen; a new one with all that is known of the event."""
    key = event_key(ask.key, ask.handler)
    said = {**record_attributes(record), EXPIRES: table.expires() if record.status in SETTLED else None}
    if event.record is None:
        return put(key | wrapped({**said, **about(ask), "rev": call.now_us}), event.seen)
    gone = {} if record.letter else dict.fromkeys(OF_LETTER)
    return update(key, {**said, **gone}, event.seen or ())


def _entity_write(table: Table, ask: Ask, entity: Stored, held: Entity, call: Call) -> Write:
    """Write an entity over what was seen. While it is held it does not expire."""
    key = keys_of(ask)[1]
    said = {**entity_attributes(held), EXPIRES: None if held.lease_until_us else table.expires()}
    if entity.entity is None:
        return put(key | wrapped({**said, "rev": call.now_us}), entity.seen)
    return update(key, said, entity.seen or ())


# --- extend ------------------------------------------------------------------------------------------


def extend(table: Table, patience: Patience, claim: Claim, lease_us: int) -> bool:
    """Let one claim run longer, if it is in force.

    Only ever longer: an extension that was held up on its way must not take back a later one.
    """
    ask = claim.ask
    contention = Contention(table, patience)
    while True:
        call = table.calling(b"", lease_us)
        until_us = call.now_us + call.lease_us
        longer = [("token", "=", claim.token), ("lease_until_us", "<", until_us)]
        in_force = [("status", "=", Status.CLAIMED.value), ("token", "=", claim.token)]
        key = event_key(ask.key, ask.handler)
        try:
            if ask.entity is None:
                table.write(patience, update(key, {"lease_until_us": until_us}, [in_force[0], *longer]))
            else:
                running = update(keys_of(ask)[1], {"lease_until_us": until_us}, longer)
                table.write(patience, check(key, in_force), running)
        except ConditionFailed as failed:
            event, entity = _looked_again(table, patience, ask, failed)
            kept, *_ = decide_extend(claim, event.record, entity.entity, call)
            runs_until_us = (entity if ask.entity else event).said.get("lease_until_us", 0)
            if not kept or runs_until_us >= until_us:
                return kept
            contention.again()
            continue
        return True


# --- settle ------------------------------------------------------------------------------------------


def settle(table: Table, patience: Patience, settlement: Settlement) -> bool:
    """End one claim, if it is in force."""
    key = settlement.claim.ask.key
    written = write_parts(table, patience, key, settlement.letter) if settlement.letter else None
    kept, before, after = _settle(table, patience, settlement, written)
    names = after.letter[0] if after.letter else None
    if written is not None and names != written.letter:
        remove_parts(table, patience, key, (written.letter, written.parts))
    if before.letter is not None and names != before.letter[0]:
        remove_parts(table, patience, key, before.letter)
    return kept


def _settle(
    table: Table, patience: Patience, settlement: Settlement, written: Written | None
) -> tuple[bool, Stored, Stored]:
    """End a claim; return whether it was in force, and its event before and after."""
    ask = settlement.claim.ask
    contention = Contention(table, patience)
    event, entity = (_NOTHING, _NOTHING) if ask.entity is None else table.read_together(patience, *keys_of(ask))
    while True:
        free: Entity | None = None
        now_us = table.now_us()
        if event.said or ask.entity is not None:
            kept, record, free = decide_settle(settlement, event.record, entity.entity, now_us)
            if record is None:
                return kept, event, event
        ending = settle_write(table, settlement, now_us, written)
        try:
            if free is None:
                before = table.write(patience, ending, ReturnValues="ALL_OLD")
            else:
                table.write(patience, ending, freeing_write(table, settlement, free))
                before = event
        except ConditionFailed as failed:
            event, entity = _looked_again(table, patience, ask, failed)
            if not event.said:
                return False, event, event
            contention.again()
            continue
        return True, before, _after(before, settlement, written)


def _after(before: Stored, settlement: Settlement, written: Written | None) -> Stored:
    """Return what a settled event says of its letter: all that is of interest then."""
    if written is not None:
        return Stored(written.attributes)
    return _NOTHING if Status(settlement.outcome.value) in SETTLED else before


def settle_write(table: Table, settlement: Settlement, now_us: int, written: Written | None) -> Write:
    """Write the end of a claim on the condition that it is in force: what `decide_settle` says, as one update."""
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
    in_force = [("status", "=", Status.CLAIMED.value), ("token", "=", claim.token)]
    failed = 1 if outcome in (Outcome.RETRY, Outcome.DEAD) else 0
    return update(event_key(claim.ask.key, claim.ask.handler), changes, in_force, attempts=failed)


def freeing_write(table: Table, settlement: Settlement, free: Entity) -> Write:
    """Write the entity of a claim that ends.

    On the condition of the token alone: while it is held, nobody but its holder changes it, and an extension from
    the background is no reason to start again.
    """
    ask, token = settlement.claim.ask, settlement.claim.token
    newest = about(ask) if settlement.outcome is Outcome.DONE and free.key == ask.key else {}
    newest = {**newest, "envelope": ask.envelope} if newest else {}
    changes = {**entity_attributes(free), **newest, EXPIRES: table.expires()}
    changes.pop("entity", None)
    return update(keys_of(ask)[1], changes, [("token", "=", token)])
