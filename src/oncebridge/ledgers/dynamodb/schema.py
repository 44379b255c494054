"""Making the table of the DynamoDB ledger, and agreeing on its secret."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from oncebridge.errors import LedgerRefused
from oncebridge.ledgers.dynamodb.errors import AlreadyThere, ConditionFailed, NoTable
from oncebridge.ledgers.dynamodb.items import EXPIRES, put, wrapped
from oncebridge.ledgers.secret import CHECK, SECRET, agreed, first_kept

if TYPE_CHECKING:
    from oncebridge.ledgers.dynamodb.table import Patience, Table

SCHEMA_VERSION: Final = 1
KEYS: Final = [{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}]
META: Final = wrapped({"pk": "ledger", "sk": "meta"})
_OPENING_US: Final = 10_000_000  # the user who mistyped an address is waiting for the answer
_MAKING_US: Final = 120_000_000  # AWS takes some seconds, now and then more


def opened(table: Table, secret: bytes | None) -> bytes:
    """Agree on the secret with the process that opened the table first: one conditional write decides that."""
    patience = table.patience(_OPENING_US)
    meta = table.read(patience, META)
    if not meta.said:
        first = {name.replace(" ", "_"): value for name, value in first_kept(secret).items()}
        item = META | wrapped({**first, "schema": SCHEMA_VERSION, "lists": True, "rev": table.now_us()})
        with suppress(ConditionFailed):  # another process was faster, or this very write was repeated
            table.write(patience, put(item, None))
        meta = table.read(patience, META)
    if meta.said["schema"] > SCHEMA_VERSION:
        raise LedgerRefused(
            f"{table.place} was written by a newer Oncebridge (schema {meta.said['schema']}); update this one"
        )
    table.lists_letters = meta.said.get("lists", False)
    kept = {name: meta.said.get(name.replace(" ", "_")) for name in (SECRET, CHECK)}
    return agreed({name: value for name, value in kept.items() if value is not None}, secret)


def was_opened(table: Table) -> bool:
    """Return whether a process has opened the table before; nothing is written."""
    try:
        return bool(table.read(table.patience(_OPENING_US), META).said)
    except NoTable:
        return False


def migrate(table: Table) -> None:
    """Create the table if it is missing, wait until it can be used, and switch its time to live on."""
    patience = table.patience(_MAKING_US)
    description = _description(table, patience)
    if description is None:
        _create(table, patience)
    attempt = 0
    while description is None or description.get("TableStatus") == "CREATING":
        patience.wait(attempt, f"{table.place} is still being made; run `oncebridge migrate` again in a minute")
        description = _description(table, patience)
        attempt += 1
    if description.get("KeySchema") != KEYS:
        raise LedgerRefused(f"{table.place} is no ledger: its keys are not pk and sk; choose another name")
    if not expires(table, patience):
        _let_expire(table, patience)


def expires(table: Table, patience: Patience) -> bool:
    """Return whether DynamoDB removes expired items."""
    response = table.on_table(patience, "describe_time_to_live", needs="TimeToLiveDescription")
    found = response["TimeToLiveDescription"]
    return found.get("TimeToLiveStatus") in ("ENABLED", "ENABLING") and found.get("AttributeName") == EXPIRES


def _description(table: Table, patience: Patience) -> dict[str, Any] | None:
    """Describe the table; None if there is none."""
    try:
        return dict(table.on_table(patience, "describe_table", needs="Table")["Table"])
    except NoTable:
        return None


def _create(table: Table, patience: Patience) -> None:
    """Create the table, protected from deletion; billed by request, so that nothing throttles at first."""
    with suppress(AlreadyThere):  # another process was faster, or this very call was repeated
        table.on_table(
            patience,
            "create_table",
            KeySchema=KEYS,
            AttributeDefinitions=[{"AttributeName": key["AttributeName"], "AttributeType": "S"} for key in KEYS],
            BillingMode="PAY_PER_REQUEST",
            DeletionProtectionEnabled=True,
        )


def _let_expire(table: Table, patience: Patience) -> None:
    enabled = {"Enabled": True, "AttributeName": EXPIRES}
    try:
        table.on_table(patience, "update_time_to_live", TimeToLiveSpecification=enabled)
    except LedgerRefused:
        if not expires(table, patience):  # else another process was faster
            raise
