"""The table: calls that are repeated through passing errors, and the conditional writes that the ledger consists of.

botocore repeats nothing, since its repeats would go unnoticed: every call of the ledger is made so that it may be
repeated here, with the same arguments, whether or not the one before took effect.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from oncebridge import handles
from oncebridge.amazon import make_client, require_boto3
from oncebridge.errors import ConfigurationError, LedgerUnavailable
from oncebridge.ledgers.dynamodb.errors import ConditionFailed, Passing, Place, translate_error
from oncebridge.ledgers.dynamodb.items import Item, Stored, Write, stored
from oncebridge.ledgers.grants import Call
from oncebridge.retry import RetryPolicy
from oncebridge.threads import call_apart

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncebridge.clock import Clock
    from oncebridge.ledgers.dynamodb.server_time import ServerTime

PARALLEL: Final = 16  # calls of one batch under way at once
READ_SECONDS: Final = 5
PATIENCE_US: Final = 20_000_000

_SINGLE: Final = {"Put": "put_item", "Update": "update_item", "Delete": "delete_item"}
_BACKOFF: Final = RetryPolicy(base_seconds=0.025, growth=2, cap_seconds=1.0)


class Patience:
    """How long one verb tries: less than its lease, so that nobody takes over a claim that is still being made."""

    def __init__(self, clock: Clock, within_us: int) -> None:
        """Start now."""
        self._clock = clock
        self._until_us = clock.monotonic_us() + within_us

    def wait(self, attempt: int, why: str) -> None:
        """Wait before the next attempt; attempts count from zero."""
        seconds = _BACKOFF.delay_seconds(attempt + 1)
        if self._clock.monotonic_us() + seconds * 1_000_000 > self._until_us:
            raise LedgerUnavailable(why)
        self._clock.wait(threading.Event(), seconds)


class Contention(msgspec.Struct):
    """Counts how often others were faster, and waits a little longer each time except the first."""

    table: Table
    patience: Patience
    lost: int = 0

    def again(self) -> None:
        """Go on, or give up when patience ends."""
        if self.lost:
            self.patience.wait(self.lost, f"{self.table.place}: others keep changing the same item")
        self.lost += 1


def connected(place: Place) -> Any:
    """Make a client; AWS' own settings have the credentials."""
    require_boto3("ledger: dynamodb://")
    try:
        return make_client(
            "dynamodb",
            region=place.region,
            endpoint=place.endpoint_url,
            read_seconds=READ_SECONDS,
            tries=1,
            connections=PARALLEL + 2,  # a batch, the background's extensions, and one to examine with
        )
    except Exception as error:  # noqa: BLE001 - any error of boto3 becomes ours
        trouble = translate_error(error, "open", place)
        if isinstance(trouble, ConfigurationError):
            raise trouble from None
        if handles.are_wanting(error):
            raise LedgerUnavailable(f"{place}: {handles.ADVICE}") from None
        raise ConfigurationError(f"{place}: {type(error).__name__}; check region and endpoint_url in the URL") from None


class Table:
    """One table, as a client sees it."""

    def __init__(self, client: Any, place: Place, *, clock: Clock, time: ServerTime, retention_us: int) -> None:
        """Take the client, the clock for waiting, and the server's time."""
        self._client = client
        self.place = place
        self.clock = clock
        self.time = time
        self.retention_us = retention_us
        #: Whether every dead letter has a line in the list: set once the table is opened.
        self.lists_letters = False

    def patience(self, within_us: int = PATIENCE_US) -> Patience:
        """Begin a verb."""
        return Patience(self.clock, within_us)

    def close(self) -> None:
        """Close connections."""
        self._client.close()

    # --- time ----------------------------------------------------------------------------------------

    def now_us(self) -> int:
        """Return the earliest possible present time: a lease that has ended by then has surely ended."""
        return self.time.bounds().earliest_us

    def calling(self, nonce: bytes, lease_us: int) -> Call:
        """Make a call as of now: leases of others are judged by the earliest possible time, own ones last longer."""
        earliest_us, latest_us = self.time.bounds()
        return Call(nonce, lease_us + latest_us - earliest_us, earliest_us)

    def expires(self) -> int:
        """Return when an event that is settled now may be forgotten, in whole seconds."""
        return -(-(self.time.bounds().latest_us + self.retention_us) // 1_000_000)

    # --- calls ---------------------------------------------------------------------------------------

    def call(self, patience: Patience, operation: str, *, needs: str = "", **arguments: Any) -> dict[str, Any]:
        """Call until there is an answer, with the field `needs` in it, or patience ends.

        Raises:
            ConditionFailed: Nothing was written, or it was already written by the same call before.
            LedgerRefused: Something must be changed first.
            LedgerUnavailable: It is not known whether it took effect.

        """
        request = partial(getattr(self._client, operation), **arguments)
        attempt = 0
        while True:
            sent_us = self.clock.monotonic_us()
            try:
                response: dict[str, Any] = call_apart(request)
            except Exception as error:  # noqa: BLE001 - any error of botocore becomes ours
                self._hear(getattr(error, "response", None), sent_us)
                trouble = translate_error(error, operation, self.place)
            else:
                self._hear(response, sent_us)
                if not needs or needs in response:
                    return response
                trouble = Passing("the answer was cut short")
            if not isinstance(trouble, Passing):
                # Without its cause: a refused signature quotes the session's token.
                raise trouble from None
            patience.wait(attempt, f"{self.place}: {trouble}")
            attempt += 1

    def _hear(self, response: Any, sent_us: int) -> None:
        metadata = response.get("ResponseMetadata") if isinstance(response, dict) else None
        self.time.hear(((metadata or {}).get("HTTPHeaders") or {}).get("date"), sent_us)

    def on_table(self, patience: Patience, operation: str, **arguments: Any) -> dict[str, Any]:
        """Call an operation on the table itself."""
        return self.call(patience, operation, TableName=self.place.table, **arguments)

    # --- reading -------------------------------------------------------------------------------------

    def read(self, patience: Patience, key: Item) -> Stored:
        """Read one item, consistently."""
        response = self.on_table(patience, "get_item", Key=key, ConsistentRead=True)
        return stored(response.get("Item"), self.now_us())

    def read_together(self, patience: Patience, *keys: Item) -> list[Stored]:
        """Read items consistently, all at one moment."""
        gets = [{"Get": {"TableName": self.place.table, "Key": key}} for key in keys]
        responses = self.call(patience, "transact_get_items", needs="Responses", TransactItems=gets)["Responses"]
        now_us = self.now_us()
        return [stored(response.get("Item"), now_us) for response in responses]

    def pages(self, patience: Patience, operation: str, **arguments: Any) -> Iterator[Stored]:
        """Read all items of a query or scan."""
        start: dict[str, Any] = {}
        while True:
            response = self.on_table(patience, operation, needs="Items", ConsistentRead=True, **arguments, **start)
            now_us = self.now_us()
            found = (stored(item, now_us) for item in response["Items"])
            yield from (one for one in found if not one.expired)
            if not response.get("LastEvaluatedKey"):
                return
            start = {"ExclusiveStartKey": response["LastEvaluatedKey"]}

    # --- writing -------------------------------------------------------------------------------------

    def write(self, patience: Patience, *writes: Write, **options: str) -> Stored:
        """Write one item by itself, or several together; return the old item of a single write, if requested."""
        if len(writes) == 1:
            (write,) = writes
            response = self.on_table(patience, _SINGLE[write.kind], **write.arguments, **options)
            return stored(response.get("Attributes"), 0)
        items = [{write.kind: {"TableName": self.place.table, **write.arguments}} for write in writes]
        self.call(patience, "transact_write_items", TransactItems=items, **options)
        return Stored({})

    def found(self, patience: Patience, failed: ConditionFailed, key: Item) -> Stored:
        """Return the item that made a write fail; if the answer does not show it, read it."""
        return stored(failed.item, self.now_us()) if failed.item else self.read(patience, key)
