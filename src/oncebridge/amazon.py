"""Amazon's services: boto3 clients with timeouts, and the one table that says what an AWS error means.

Ledger, sources and sinks all ask this table, so an error means the same to each of them. Errors are recognised
by their names, so that nothing of AWS is imported before it is needed.
"""

from __future__ import annotations

import re
import threading
from enum import Enum
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from oncebridge import forks, handles
from oncebridge.errors import ConfigurationError, MissingExtra

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# --- clients -----------------------------------------------------------------------------------------

CONNECT_SECONDS: Final = 3
READ_SECONDS: Final = 10


def require_boto3(setting: str) -> None:
    """Refuse a setting that needs boto3 where it is not installed."""
    if find_spec("boto3") is None:
        raise MissingExtra(f"{setting}: needs boto3; install it with: pip install 'oncebridge[aws]'")


def make_client(
    service: str,
    *,
    region: str | None = None,
    endpoint: str | None = None,
    connect_seconds: float = CONNECT_SECONDS,
    read_seconds: float = READ_SECONDS,
    tries: int = 2,
    connections: int = 10,
) -> Any:
    """Make a client with timeouts; region and credentials come from AWS' own settings unless given."""
    # Imported late: boto3 takes longer to load than everything else together.
    import boto3
    from botocore.config import Config

    config = Config(
        retries={"total_max_attempts": tries, "mode": "standard"},
        connect_timeout=connect_seconds,
        read_timeout=read_seconds,
        max_pool_connections=connections,
        tcp_keepalive=True,
    )
    # The stubs know each service by a literal name; here it is a variable.
    session: Any = boto3.session.Session(region_name=region)
    return session.client(service, endpoint_url=endpoint, config=config)


class LazyClient:
    """A client that is made when it is first needed, in each process."""

    def __init__(self, make: Callable[[], Any]) -> None:
        """Take the function that makes it."""
        self._make = make
        self._made: Any = None
        self._lock = threading.Lock()
        forks.register(self)

    def before_fork(self) -> None:
        """Do nothing: calls of other threads go on in the parent."""

    def after_fork(self, *, in_child: bool) -> None:
        """Make another client in a child: shared connections would mix up the answers of both processes."""
        if in_child:
            forks.leave_to_parent(self._made)
            self._lock = threading.Lock()
            self._made = None

    def __call__(self) -> Any:
        """Return it."""
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made

    def close(self) -> None:
        """Close its connections; the next call makes another client."""
        with self._lock:
            made, self._made = self._made, None
        if made is not None:
            made.close()


# --- queues and buses --------------------------------------------------------------------------------

#: Amazon's own hosts, new and old, and those of endpoints in a VPC: all name the region.
_PUBLIC: Final = re.compile(r"(?:sqs\.([a-z0-9-]+)|([a-z0-9-]+)\.queue)\.amazonaws\.com(?:\.cn)?")
_OTHER: Final = re.compile(
    r"(?:[a-z0-9-]+\.)*sqs(?:-fips)?\.([a-z0-9-]+)\.(?:vpce\.)?(?:amazonaws\.com(?:\.cn)?|api\.aws)"
)
_BUS: Final = re.compile(
    r"arn:aws[a-z-]*:events:(?P<region>[a-z0-9-]+):\d{12}:event-bus/.{1,256}|[/.A-Za-z0-9_-]{1,256}"
)
_QUEUE_PATH: Final = re.compile(r"(?:/[^/\s]+)*/[^/\s]+/[^/\s]+")  # account and name


def check_queue(url: str, setting: str) -> str:
    """Refuse a text that is not the URL of a queue; `setting` is where it comes from."""
    try:
        parts = urlsplit(url)
        is_queue = parts.scheme in ("http", "https") and parts.hostname and "@" not in parts.netloc
    except ValueError:  # such as an address whose brackets do not match
        is_queue = False
    if not is_queue or not _QUEUE_PATH.fullmatch(parts.path) or not url.isascii():
        raise ConfigurationError(
            f"{setting}: expected a queue's URL, such as https://sqs.eu-central-1.amazonaws.com/123456789012/events"
        )
    return url


def check_bus(bus: str, setting: str) -> str:
    """Refuse a text that is neither the name nor the ARN of a bus."""
    if not _BUS.fullmatch(bus):
        raise ConfigurationError(f"{setting}: expected the name or the ARN of an event bus, got {bus!r}")
    return bus


def queue_client(url: str, setting: str, *, read_seconds: float = READ_SECONDS, connections: int = 10) -> Any:
    """Make a client for the queue at this URL."""
    region, endpoint = region_and_endpoint(check_queue(url, setting))
    return make_client("sqs", region=region, endpoint=endpoint, read_seconds=read_seconds, connections=connections)


def region_and_endpoint(url: str) -> tuple[str | None, str | None]:
    """Return the region and the endpoint of a queue; None where boto3 knows better than the URL."""
    parts = urlsplit(url)
    public = _PUBLIC.fullmatch(parts.hostname or "")
    if public is not None:
        return public[1] or public[2], None
    other = _OTHER.fullmatch(parts.hostname or "")  # or an emulator
    return None if other is None else other[1], f"{parts.scheme}://{parts.netloc}"


def bus_client(bus: str, setting: str) -> Any:
    """Make a client for the bus of this name or ARN."""
    match = _BUS.fullmatch(check_bus(bus, setting))
    return make_client("events", region=None if match is None else match["region"])


# --- the meaning of an error -------------------------------------------------------------------------


class Meaning(Enum):
    """The meaning of an error; the value says it to a person, with the fix."""

    NO_CREDENTIALS = "no AWS credentials were found; give the worker a role, or set AWS_PROFILE or AWS_ACCESS_KEY_ID"
    NOT_FETCHED = (
        "the AWS credentials could not be fetched; check the place that AWS' settings name: the role of the task or "
        "machine, or the profile's credential_process, run by hand"
    )
    EXPIRED = "the AWS credentials have expired; get new ones (such as `aws sso login`) and start again"
    CREDENTIALS = (
        "AWS does not accept the credentials; check the access key (AWS_ACCESS_KEY_ID, AWS_PROFILE or the role), and "
        "that this machine's clock is right: a request signed more than five minutes off is refused"
    )
    SETTINGS = "AWS' own settings cannot be used; check AWS_CONFIG_FILE or ~/.aws/config, and the AWS_* variables"
    REGION = "no such AWS region or endpoint is known; set AWS_REGION or AWS_DEFAULT_REGION, and check the address"
    NOT_ENABLED = "this AWS account may not use {service} in this region; enable the region or sign up for the service"
    DENIED = "may not be used by this worker; allow it in the policy of its role"
    KEY = "its encryption key may not be used by this worker; allow it kms:Decrypt and kms:GenerateDataKey with the key"
    MISSING = "does not exist; check account, region and name"
    UNSUPPORTED = "{service} does not offer this operation there; check the address"
    REFUSED = "{service} does not accept the request as it is"
    FULL = "too many of its messages are in flight; look for workers that neither finish nor delete them"
    THROTTLED = "requests are throttled"
    FAILED = "{service} answers with an error; look at AWS' health page"
    UNREACHABLE = (
        "{service} is out of reach; check the region or address, the network's way to it (a VPC endpoint or NAT) and "
        "that the security group lets port 443 out"
    )
    NO_HANDLES = handles.ADVICE
    UNKNOWN = "{service} answers with an error that is not known here; look at AWS' health page"

    @property
    def passes(self) -> bool:
        """Whether it may pass without a change of settings, rights or request."""
        return self in _PASSING

    def words(self, service: str, own: Mapping[Meaning, str] | None = None) -> str:
        """Say it of a service; `own` has words that only the caller knows, such as the rights that it needs."""
        return (own or {}).get(self) or self.value.format(service=service)


_PASSING: Final = frozenset(
    {Meaning.FULL, Meaning.THROTTLED, Meaning.FAILED, Meaning.UNREACHABLE, Meaning.NO_HANDLES, Meaning.UNKNOWN},
)

#: Error codes of AWS, without the names around them (`short_code`).
CODES: Final[dict[str, Meaning]] = {
    code: meaning
    for meaning, codes in {
        Meaning.EXPIRED: "ExpiredToken ExpiredTokenException RequestExpired",
        Meaning.CREDENTIALS: """
            IncompleteSignature IncompleteSignatureException InvalidAccessKeyId InvalidClientTokenId InvalidSecurity
            InvalidSignatureException MissingAuthenticationToken MissingAuthenticationTokenException
            SignatureDoesNotMatch UnrecognizedClientException""",
        Meaning.NOT_ENABLED: "OptInRequired SubscriptionRequiredException",
        Meaning.DENIED: "AccessDenied AccessDeniedException NotAuthorized UnauthorizedOperation",
        Meaning.KEY: """
            KmsAccessDenied KmsDisabled KmsInvalidKeyUsage KmsInvalidState KmsNotFound KmsOptInRequired""",
        Meaning.MISSING: """
            InvalidAddress NonExistentQueue QueueDeletedRecently QueueDoesNotExist ResourceNotFoundException
            TableNotFoundException""",
        Meaning.UNSUPPORTED: "InvalidAction UnknownOperationException UnsupportedOperation",
        Meaning.REFUSED: """
            BatchRequestTooLong EntityTooLarge InvalidArgument InvalidAttributeValue InvalidMessageContents
            InvalidParameterValue MalformedDetail RequestEntityTooLarge RequestTooLarge ValidationError
            ValidationException""",
        Meaning.FULL: "OverLimit",
        Meaning.THROTTLED: """
            KmsThrottled KmsThrottling LimitExceededException ProvisionedThroughputExceeded
            ProvisionedThroughputExceededException RequestLimitExceeded RequestThrottled RequestThrottledException
            SlowDown ThrottledException Throttling ThrottlingError ThrottlingException TooManyRequestsException
            TransactionConflict TransactionConflictException TransactionInProgressException""",
        Meaning.FAILED: """
            InternalError InternalException InternalFailure InternalServerError RequestTimeout
            RequestTimeoutException ServiceUnavailable ServiceUnavailableException""",
    }.items()
    for code in codes.split()
}

#: Errors that boto3, or we, raise before AWS has answered. Any other name means that no answer came.
EXCEPTIONS: Final[dict[str, Meaning]] = {
    name: meaning
    for meaning, names in {
        Meaning.NO_CREDENTIALS: """
            NoAuthTokenError NoCredentialsError PartialCredentialsError ProfileNotFound UnknownCredentialError
            UnknownTokenProviderError""",
        Meaning.NOT_FETCHED: "CredentialRetrievalError MetadataRetrievalError",
        Meaning.EXPIRED: "LoginError RefreshWithMFAUnsupportedError SSOError TokenRetrievalError",
        Meaning.SETTINGS: "ConfigNotFound ConfigParseError ConfigurationError InvalidConfigError",
        Meaning.REGION: """
            BaseEndpointResolverError EndpointProviderError InvalidEndpointConfigurationError InvalidRegionError
            ServiceNotInRegionError UnknownRegionError""",
        Meaning.REFUSED: "ParamValidationError",
    }.items()
    for name in names.split()
}

_CODE: Final = re.compile(r"[A-Za-z0-9_-]{1,80}")
_KEY_SERVICE: Final = "KMS."
_TOO_LARGE: Final = 413
_TOO_MANY: Final = 429
_THEIR_FAULT: Final = 500


def meaning_of(error: Exception) -> Meaning:
    """Look up the meaning of an error that a call of boto3 raised."""
    status = status_of(error)
    if status is not None:
        return meaning_of_code(code_of(error), status)
    names = (kind.__name__ for kind in type(error).__mro__)
    known = next((EXCEPTIONS[name] for name in names if name in EXCEPTIONS), None)
    return known or (Meaning.NO_HANDLES if handles.are_wanting(error) else Meaning.UNREACHABLE)


def meaning_of_code(code: str, status: int = 0) -> Meaning:
    """Look up the meaning of a code; for an unknown one the HTTP status decides."""
    if code in CODES:
        return CODES[code]
    if status == _TOO_MANY:
        return Meaning.THROTTLED
    if status == _TOO_LARGE:
        return Meaning.REFUSED
    return Meaning.FAILED if status >= _THEIR_FAULT else Meaning.UNKNOWN


def code_of(error: Exception) -> str:
    """Return the short name of an error: Amazon's code for it, or boto3's name where Amazon never answered.

    An error's own words are never shown: a refused signature quotes the session's token, other errors the event.
    """
    response = getattr(error, "response", None)
    if not isinstance(response, dict):
        return type(error).__name__
    return short_code((response.get("Error") or {}).get("Code"))


def short_code(code: object) -> str:
    """Take a code out of the names around it, such as `AWS.SimpleQueueService.NonExistentQueue`."""
    text = code if isinstance(code, str) else ""
    short = re.split(r"[.#:]", text)[-1]
    if text.startswith(_KEY_SERVICE):
        short = "Kms" + short.removesuffix("Exception")
    return short if _CODE.fullmatch(short) else "an unknown error"


def status_of(error: Exception) -> int | None:
    """Return the HTTP status that Amazon answered with; None if it did not answer, 0 if the status is not known."""
    response = getattr(error, "response", None)
    if not isinstance(response, dict):
        return None
    status = (response.get("ResponseMetadata") or {}).get("HTTPStatusCode")
    return status if isinstance(status, int) else 0
