"""A handler's own writes, in the one transaction that settles its event: all or nothing."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Final

from oncebridge.claim import attended
from oncebridge.errors import ClaimLost, HandlerWriteRefused, LedgerRefused, PermanentError
from oncebridge.ledgers.dynamodb.attendance import attendance_key, is_full, mark_write
from oncebridge.ledgers.dynamodb.errors import CONDITION_FAILED, ConditionFailed
from oncebridge.ledgers.dynamodb.items import Stored
from oncebridge.ledgers.dynamodb.letters import remove_parts
from oncebridge.ledgers.dynamodb.moves import entity_settle_write, key_of_entity, record_key, settle_write
from oncebridge.ledgers.grants import settle_claim

if TYPE_CHECKING:
    from oncebridge.claim import Settlement
    from oncebridge.ledgers.dynamodb.table import Patience, Table

WRITES_MAX: Final = 100  # of one transaction, by DynamoDB's own limit


def settle_with(table: Table, patience: Patience, settlement: Settlement, writes: list[Any]) -> None:
    """Settle together with the handler's writes, both or neither.

    Raises:
        ClaimLost: The claim was no longer in force.
        HandlerWriteRefused: A condition of the handler's own did not hold, or it may not write there.
        PermanentError: The handler's writes are no transaction that DynamoDB could ever accept.

    """
    ask, chain, came = settlement.claim.ask, settlement.claim.chain, attended(settlement)
    keys = [record_key(ask)]
    keys += [key_of_entity(ask)] if chain is not None else []
    keys += [attendance_key(came[0])] if came is not None else []
    event, *more = table.read_together(patience, *keys) if len(keys) > 1 else [table.read(patience, *keys)]
    entity = more[0] if chain is not None else Stored({})
    now_us = table.now_us()
    if settle_claim(settlement, event.record, entity.entity, now_us).record is None:
        raise ClaimLost
    own = [settle_write(table, settlement, None, now_us=now_us)]
    own += [entity_settle_write(table, settlement, now_us)] if chain is not None else []
    if came is not None and not is_full(more[-1]):
        own.append(mark_write(table, came[0], [came[1]], now_us=now_us))
    items = [*writes, *({write.kind: {"TableName": table.place.table, **write.arguments}} for write in own)]
    if len(items) > WRITES_MAX:
        raise PermanentError(
            f"the handler added {len(writes)} writes to its transaction; DynamoDB takes {WRITES_MAX - len(own)} at most"
        )
    _transact(table, patience, items, number_of_writes=len(writes))
    remove_parts(table, patience, ask, event.letter)


def _transact(table: Table, patience: Patience, items: list[Any], *, number_of_writes: int) -> None:
    # By this token DynamoDB recognises a repeated call, and answers it like the first.
    token = secrets.token_hex(16)
    try:
        table.call(patience, "transact_write_items", TransactItems=items, ClientRequestToken=token)
    except ConditionFailed as failed:
        if CONDITION_FAILED in failed.codes[number_of_writes:]:
            raise ClaimLost from None
        number = failed.codes.index(CONDITION_FAILED)
        raise HandlerWriteRefused(
            f"the condition of the handler's write {number + 1} of {number_of_writes} did not hold; nothing was written"
        ) from None
    except LedgerRefused as refused:
        if not number_of_writes:
            raise
        # The claim was written with the same rights, and in the same shape: only the handler's writes are new.
        raise HandlerWriteRefused(f"a write of the handler, or all of them together: {refused}") from None
