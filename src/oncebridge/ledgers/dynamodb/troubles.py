"""What DynamoDB and the way to it answer when something is wrong, told apart by what to do about it.

Told by the names of errors, so that nothing of AWS is imported before it is needed. What nobody has heard of
passes for passing trouble: trying again is safe for every call that the ledger makes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec

from oncebridge.errors import LedgerRefused

if TYPE_CHECKING:
    from oncebridge.ledgers.dynamodb.items import Item


class Place(msgspec.Struct, frozen=True):
    """Where a table is, in words for errors; a password in the address stays out of them."""

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
        """Take, for each write, the item that was found and what became of the write."""
        super().__init__("a condition did not hold")
        self.items = items
        self.codes = codes

    @property
    def item(self) -> Item | None:
        """What was found where there was one write."""
        return self.items[0]


class NoTable(LedgerRefused):
    """There is no such table."""


class AlreadyThere(LedgerRefused):
    """There is such a table already, or somebody else is just making it."""


class Passing(Exception):
    """Trouble that may be over at the next try."""


CONDITION_FAILED: Final = "ConditionalCheckFailed"
_CREDENTIALS: Final = (
    "AWS does not accept the credentials; check the access key (AWS_ACCESS_KEY_ID, AWS_PROFILE or the role), and that "
    "this machine's clock is right: a request signed more than five minutes off is refused"
)
_EXPIRED: Final = "the AWS credentials have expired; get new ones (such as `aws sso login`) and start again"
_MISSING: Final = "no AWS credentials were found; give the worker a role, or set AWS_PROFILE or AWS_ACCESS_KEY_ID"
_REGION: Final = "no such AWS region; name it in the URL (dynamodb://table?region=eu-central-1) or AWS_DEFAULT_REGION"
_SHAPE: Final = (
    "DynamoDB does not accept an item of this ledger; the table needs the string keys pk and sk and nothing else: let "
    "`oncebridge migrate` make it"
)
_SLOW: Final = "requests are throttled; use on-demand billing or raise the table's capacity"
_AWAY: Final = (
    "out of reach; check the region or address, the network's way to DynamoDB (a VPC endpoint or NAT) and that the "
    "security group lets port 443 out"
)

#: Error codes that will not pass by themselves, with what to do.
_REFUSED: Final = {
    **dict.fromkeys(("ExpiredTokenException", "ExpiredToken", "RequestExpired"), _EXPIRED),
    **dict.fromkeys(
        (
            "UnrecognizedClientException",
            "InvalidClientTokenId",
            "InvalidSignatureException",
            "SignatureDoesNotMatch",
            "IncompleteSignature",
            "IncompleteSignatureException",
            "MissingAuthenticationToken",
            "MissingAuthenticationTokenException",
        ),
        _CREDENTIALS,
    ),
    **dict.fromkeys(("ValidationException", "ValidationError"), _SHAPE),
}
_DENIED: Final = frozenset({"AccessDeniedException", "AccessDenied", "NotAuthorized", "UnauthorizedOperation"})
_NO_TABLE: Final = frozenset({"ResourceNotFoundException", "TableNotFoundException"})
_THROTTLED: Final = frozenset(
    {
        "ProvisionedThroughputExceededException",
        "ProvisionedThroughputExceeded",
        "ThrottlingException",
        "ThrottlingError",
        "Throttling",
        "RequestLimitExceeded",
        "TransactionConflict",
        "TransactionConflictException",
        "TransactionInProgressException",
    }
)
#: Errors of botocore itself that will not pass by themselves.
_LOCAL: Final = {
    **dict.fromkeys(("NoCredentialsError", "PartialCredentialsError", "ProfileNotFound"), _MISSING),
    **dict.fromkeys(("TokenRetrievalError", "SSOError", "UnauthorizedSSOTokenError", "LoginError"), _EXPIRED),
    **dict.fromkeys(("NoRegionError", "InvalidRegionError", "UnknownRegionError"), _REGION),
    "ParamValidationError": _SHAPE,
    "InvalidEndpointConfigurationError": "the endpoint_url in the ledger's URL is none",
}
#: What IAM calls that which an operation needs, where it is called otherwise.
_ACTIONS: Final = {
    "transact_write_items": "PutItem, dynamodb:UpdateItem and dynamodb:ConditionCheckItem",
    "transact_get_items": "GetItem",
}


def understood(error: Exception, operation: str, place: Place) -> Exception:
    """Say what an error means: a condition that did not hold, something to be changed, or trouble that may pass."""
    response = getattr(error, "response", None)
    if not isinstance(response, dict):
        return _understood_locally(error, place)
    code = str((response.get("Error") or {}).get("Code") or "")
    if code == "ConditionalCheckFailedException":
        return ConditionFailed([response.get("Item")], [CONDITION_FAILED])
    if code == "TransactionCanceledException":
        return _cancelled(response.get("CancellationReasons") or [], operation, place)
    return _coded(code, operation, place)


def _cancelled(reasons: list[dict[str, Any]], operation: str, place: Place) -> Exception:
    codes = [str(reason.get("Code") or "None") for reason in reasons]
    if CONDITION_FAILED in codes:
        return ConditionFailed([reason.get("Item") for reason in reasons], codes)
    refused = [code for code in codes if code in _REFUSED or code in _DENIED]
    passing = [code for code in codes if code != "None"] or ["TransactionCanceledException"]
    return _coded((refused or passing)[0], operation, place)


def _coded(code: str, operation: str, place: Place) -> Exception:
    if code in _REFUSED:
        return LedgerRefused(f"{place}: {_REFUSED[code]} ({code})")
    if code in _DENIED:
        action = _ACTIONS.get(operation, operation.title().replace("_", ""))
        return LedgerRefused(f"{place}: may not be used by this worker; allow it dynamodb:{action} on this table")
    if code in _NO_TABLE:
        return NoTable(f"{place}: does not exist; make it with: oncebridge migrate --ledger '{place.url}'")
    if code == "ResourceInUseException":
        return AlreadyThere(f"{place}: is there already, or being changed by somebody else")
    if code in _THROTTLED:
        return Passing(f"{_SLOW} ({code})")
    return Passing(f"answers with {code or 'an error without a name'}; look at AWS' health page")


def _understood_locally(error: Exception, place: Place) -> Exception:
    for kind in type(error).__mro__:
        if kind.__name__ in _LOCAL:
            return LedgerRefused(f"{place}: {_LOCAL[kind.__name__]} ({kind.__name__})")
    return Passing(f"{_AWAY} ({type(error).__name__})")
