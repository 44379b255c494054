"""Errors of DynamoDB, translated: a condition that did not hold, something to be changed, or an error that may pass.

`oncebridge.amazon` has the meaning of each error. An unknown one may pass: every call of the ledger may be repeated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec

from oncebridge.amazon import Meaning, code_of, meaning_of, meaning_of_code, short_code
from oncebridge.errors import LedgerRefused

if TYPE_CHECKING:
    from oncebridge.ledgers.dynamodb.items import Item


class Place(msgspec.Struct, frozen=True):
    """The place of a table, in words for errors, without a password in its address."""

    table: str
    region: str | None = None
    endpoint_url: str | None = None

    def __str__(self) -> str:
        """Name table and place."""
        where = f" at {self.address}" if self.endpoint_url else ""
        return f"DynamoDB table {self.table}{f' in {self.region}' if self.region else ''}{where}"

    def __repr__(self) -> str:
        """Show no more than that."""
        return f"<{self}>"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Show the same where errors are shown in colour."""
        return [("table", str(self))]

    @property
    def address(self) -> str:
        """The endpoint's host and port."""
        return urlsplit(self.endpoint_url or "").netloc.rpartition("@")[2]

    @property
    def url(self) -> str:
        """The ledger's URL, for commands."""
        scheme = urlsplit(self.endpoint_url or "").scheme
        query = {"region": self.region, "endpoint_url": self.endpoint_url and f"{scheme}://{self.address}"}
        text = "&".join(f"{name}={value}" for name, value in query.items() if value)
        return f"dynamodb://{self.table}" + (f"?{text}" if text else "")


class ConditionFailed(Exception):
    """A condition did not hold, so nothing was written; with the items that were found instead."""

    def __init__(self, items: list[Item | None], codes: list[str]) -> None:
        """Take, for each write, the item found and the reason that DynamoDB gives for that write."""
        super().__init__("a condition did not hold")
        self.items = items
        self.codes = codes

    @property
    def item(self) -> Item | None:
        """The item that was found, of a single write."""
        return self.items[0]


class NoTable(LedgerRefused):
    """There is no such table."""


class AlreadyThere(LedgerRefused):
    """There is such a table already, or another process is just creating it."""


class Passing(Exception):
    """An error that may be gone at the next try."""


CONDITION_FAILED: Final = "ConditionalCheckFailed"
#: The words for errors of this ledger alone.
_OWN_WORDS: Final = {
    Meaning.REGION: (
        "no such AWS region or endpoint; name it in the URL (dynamodb://table?region=eu-central-1) or "
        "AWS_DEFAULT_REGION, and check endpoint_url"
    ),
    Meaning.REFUSED: (
        "DynamoDB does not accept an item of this ledger; the table needs the string keys pk and sk and nothing else: "
        "make it with `oncebridge migrate`"
    ),
    Meaning.THROTTLED: "requests are throttled; use on-demand billing or raise the table's capacity",
}
#: The rights that an operation needs, where IAM has other names for them.
_ACTIONS: Final = {
    "transact_write_items": "PutItem and dynamodb:UpdateItem",
    "transact_get_items": "GetItem",
}


def translate_error(error: Exception, operation: str, place: Place) -> Exception:
    """Return our own error for one of boto3's."""
    response = getattr(error, "response", None)
    code = code_of(error)
    if isinstance(response, dict):
        if code == "ConditionalCheckFailedException":
            return ConditionFailed([response.get("Item")], [CONDITION_FAILED])
        if code == "TransactionCanceledException":
            return _cancelled(response.get("CancellationReasons") or [], operation, place)
        if code == "ResourceInUseException":
            return AlreadyThere(f"{place}: is there already, or another process is changing it")
    return _meant(meaning_of(error), code, operation, place)


def _cancelled(reasons: list[dict[str, Any]], operation: str, place: Place) -> Exception:
    codes = [str(reason.get("Code") or "None") for reason in reasons]
    if CONDITION_FAILED in codes:
        return ConditionFailed([reason.get("Item") for reason in reasons], codes)
    named = [short_code(code) for code in codes if code != "None"] or ["TransactionCanceledException"]
    code = next((code for code in named if not meaning_of_code(code).passes), named[0])
    return _meant(meaning_of_code(code), code, operation, place)


def _meant(meaning: Meaning, code: str, operation: str, place: Place) -> Exception:
    if meaning is Meaning.DENIED:
        action = _ACTIONS.get(operation, operation.title().replace("_", ""))
        return LedgerRefused(f"{place}: may not be used by this worker; allow it dynamodb:{action} on this table")
    if meaning is Meaning.MISSING:
        return NoTable(f"{place}: does not exist; make it with: oncebridge migrate --ledger '{place.url}'")
    words = f"{meaning.words('DynamoDB', _OWN_WORDS)} ({code})"
    return Passing(words) if meaning.passes else LedgerRefused(f"{place}: {words}")
