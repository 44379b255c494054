"""Clients of Amazon's services: made when first needed, and told where a queue's URL or a bus's ARN says they are.

Errors are told apart by their names, so that nothing of AWS is imported before it is needed.
"""

from __future__ import annotations

import re
import threading
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from oncebridge import forks
from oncebridge.errors import ConfigurationError, MissingExtra
from oncebridge.ledgers.findings import Finding, good, warning, wrong

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from oncebridge.clock import Clock

CONNECT_SECONDS: Final = 3
READ_SECONDS: Final = 10
#: Hosts of Amazon's own, new and old, and those of endpoints in a VPC: all name the region.
_PUBLIC: Final = re.compile(r"(?:sqs\.([a-z0-9-]+)|([a-z0-9-]+)\.queue)\.amazonaws\.com(?:\.cn)?")
_OTHER: Final = re.compile(
    r"(?:[a-z0-9-]+\.)*sqs(?:-fips)?\.([a-z0-9-]+)\.(?:vpce\.)?(?:amazonaws\.com(?:\.cn)?|api\.aws)"
)
_BUS: Final = re.compile(
    r"arn:aws[a-z-]*:events:(?P<region>[a-z0-9-]+):\d{12}:event-bus/.{1,256}|[/.A-Za-z0-9_-]{1,256}"
)
_QUEUE_PATH: Final = re.compile(r"(?:/[^/\s]+)*/[^/\s]+/[^/\s]+")  # account and name


def require_boto3(setting: str) -> None:
    """Refuse a setting that needs boto3 where it is not installed."""
    if find_spec("boto3") is None:
        raise MissingExtra(f"{setting}: needs boto3; install it with: pip install 'oncebridge[aws]'")


def check_queue(url: str, setting: str) -> str:
    """Refuse what is no queue's URL; `setting` is what named it."""
    try:
        place = urlsplit(url)
        is_queue = place.scheme in ("http", "https") and place.hostname and "@" not in place.netloc
    except ValueError:  # such as an address whose brackets do not match
        is_queue = False
    if not is_queue or not _QUEUE_PATH.fullmatch(place.path) or not url.isascii():
        raise ConfigurationError(
            f"{setting}: expected a queue's URL, such as https://sqs.eu-central-1.amazonaws.com/123456789012/events"
        )
    return url


def check_bus(bus: str, setting: str) -> str:
    """Refuse what is neither the name nor the ARN of a bus."""
    if not _BUS.fullmatch(bus):
        raise ConfigurationError(f"{setting}: expected the name or the ARN of an event bus, got {bus!r}")
    return bus


def queue_client(url: str, setting: str, *, read_seconds: float = READ_SECONDS, connections: int = 10) -> Any:
    """Make a client for the queue at this URL."""
    region, endpoint = place_of_queue(check_queue(url, setting))
    return _client("sqs", region, endpoint, read_seconds=read_seconds, connections=connections)


def place_of_queue(url: str) -> tuple[str | None, str | None]:
    """Return the region and the endpoint of a queue; None where boto3 knows better than its URL."""
    place = urlsplit(url)
    public = _PUBLIC.fullmatch(place.hostname or "")
    if public is not None:
        return public[1] or public[2], None
    other = _OTHER.fullmatch(place.hostname or "")  # or an emulator
    return None if other is None else other[1], f"{place.scheme}://{place.netloc}"


def bus_client(bus: str, setting: str) -> Any:
    """Make a client for the bus of this name or ARN."""
    match = _BUS.fullmatch(check_bus(bus, setting))
    region = None if match is None else match["region"]
    return _client("events", region, None, read_seconds=READ_SECONDS, connections=10)


def _client(service: str, region: str | None, endpoint: str | None, *, read_seconds: float, connections: int) -> Any:
    # Not before it is needed: it takes longer to load than all the rest together.
    import boto3
    from botocore.config import Config
    from botocore.exceptions import NoRegionError

    config = Config(
        retries={"total_max_attempts": 2, "mode": "standard"},
        connect_timeout=CONNECT_SECONDS,
        read_timeout=read_seconds,
        max_pool_connections=connections,
        tcp_keepalive=True,
    )
    try:
        return boto3.session.Session(region_name=region).client(service, endpoint_url=endpoint, config=config)
    except NoRegionError:
        raise ConfigurationError("no AWS region is known; set AWS_REGION or AWS_DEFAULT_REGION") from None


class OnceMade:
    """A client that is made by the first who needs it, in each process."""

    def __init__(self, make: Callable[[], Any]) -> None:
        """Take what makes it."""
        self._make = make
        self._made: Any = None
        self._lock = threading.Lock()
        forks.register(self)

    def before_fork(self) -> None:
        """Do nothing: calls of other threads go on in the parent."""

    def after_fork(self, *, in_child: bool) -> None:
        """Let a child make another: its connections would mix up both sides' answers."""
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
        """Let go of its connections; whoever needs it again makes another."""
        with self._lock:
            made, self._made = self._made, None
        if made is not None:
            made.close()


# --- a bus that is not there -------------------------------------------------------------------------

#: How long a bus is taken to be there.
LOOK_EACH_US: Final = 60_000_000
_ARN: Final = "arn:"
NOT_FOUND: Final = "ResourceNotFoundException"


class BusLook:
    """Sees that a bus is there, now and then: one that is not takes every event without a word, and drops it."""

    def __init__(self, bus: str, clock: Clock, *, doubts: bool) -> None:
        """Take its name or ARN. With `doubts` one of another account that is not found may only be unseen from here."""
        self._bus = bus
        self._clock = clock
        self._doubts = doubts and bus.startswith(_ARN)
        self._look_again_us: int | None = None
        self._was_seen = False

    def __call__(self, client: Any) -> None:
        """Look, unless that was done lately; raise what Amazon says of a bus that is not there, or does not answer."""
        now_us = self._clock.monotonic_us()
        if self._look_again_us is not None and now_us < self._look_again_us:
            return
        try:
            self._describe(client)
            self._was_seen = True
        except Exception as error:
            if status_of(error) is None or self._is_missing(error):
                raise
        self._look_again_us = now_us + LOOK_EACH_US

    def _describe(self, client: Any) -> None:
        try:
            client.describe_event_bus(Name=self._bus)
        except Exception as error:
            if code_of(error) != NOT_FOUND or not self._is_there_by_name(client):
                raise

    def _is_there_by_name(self, client: Any) -> bool:
        """Tell whether a bus of this account has the ARN: emulators of AWS know buses by their names alone."""
        _, is_arn, name = self._bus.rpartition("event-bus/")
        with suppress(Exception):
            return bool(is_arn) and client.describe_event_bus(Name=name).get("Arn") == self._bus
        return False

    def _is_missing(self, error: Exception) -> bool:
        """Tell a bus that does not exist from one that cannot be seen."""
        return code_of(error) == NOT_FOUND and (self._was_seen or not self._doubts)

    def findings(self, client: Callable[[], Any], setting: str) -> Iterator[Finding]:
        """Say whether the bus is there; `setting` is what names it."""
        drops = "EventBridge takes events for a bus that does not exist, and drops them"
        try:
            self._describe(client())
        except Exception as error:  # noqa: BLE001 - whatever boto3 raises becomes ours
            code = code_of(error)
            if self._is_missing(error):
                yield wrong("bus", f"does not exist ({code}), and {drops}", f"create it, or correct `{setting}`")
            elif status_of(error) is None:
                yield wrong("bus", f"cannot be looked at ({code})", "check credentials, region and the way to AWS")
            else:
                fix = "allow events:DescribeEventBus; of a bus in another account, check the ARN by hand"
                yield warning("bus", f"cannot be looked at ({code})", fix, weakens=f"nobody sees it missing: {drops}")
        else:
            yield good("bus", "is there")


# --- errors ------------------------------------------------------------------------------------------

#: Codes of calls that a policy forbids.
DENIED: Final = frozenset({"AccessDenied", "AccessDeniedException", "NotAuthorized", "UnauthorizedOperation"})
_CODE: Final = re.compile(r"[A-Za-z0-9_-]{1,80}")


def code_of(error: Exception) -> str:
    """Return the short name of an error: Amazon's code for it, or what boto3 calls it if Amazon never answered.

    An error's own words are never shown: a refused signature quotes the session's token, other errors the event.
    """
    response = getattr(error, "response", None)
    if not isinstance(response, dict):
        return type(error).__name__
    return short_code((response.get("Error") or {}).get("Code"))


def short_code(code: object) -> str:
    """Take a code out of the names that may stand around it, such as `AWS.SimpleQueueService.NonExistentQueue`."""
    short = re.split(r"[.#:]", str(code))[-1] if isinstance(code, str) else ""
    return short if _CODE.fullmatch(short) else "an unknown error"


def status_of(error: Exception) -> int | None:
    """Return the HTTP status that Amazon answered with; None if it did not, 0 if that is not known."""
    response = getattr(error, "response", None)
    if not isinstance(response, dict):
        return None
    status = (response.get("ResponseMetadata") or {}).get("HTTPStatusCode")
    return status if isinstance(status, int) else 0


# --- what a queue takes ------------------------------------------------------------------------------

_FACT_MAX: Final = 500


def message_attributes(facts: Mapping[str, str | int]) -> dict[str, dict[str, str]]:
    """Write facts as attributes of a message; empty ones are left out, since a queue does not take them."""
    return {
        name: {"DataType": "Number" if isinstance(fact, int) else "String", "StringValue": str(fact)}
        for name, fact in facts.items()
        if fact != ""
    }


def printable(text: str) -> str:
    """Write a text from outside in a line that queues, logs and terminals take."""
    if not text.isprintable():
        text = "".join(character if character.isprintable() else "?" for character in text)
    return text[:_FACT_MAX]


def queue_findings(client: Callable[[], Any], url: str, setting: str, bytes_max: int) -> Iterator[Finding]:
    """Say whether a queue is there, and takes messages of so many bytes; `setting` is what names it."""
    try:
        answer = client().get_queue_attributes(QueueUrl=url, AttributeNames=["MaximumMessageSize"])
    except Exception as error:  # noqa: BLE001 - whatever boto3 raises becomes ours
        if code_of(error) not in DENIED:
            fix = f"check `{setting}`, credentials, region and the way to AWS"
            yield wrong("queue", f"cannot be used ({code_of(error)})", fix)
        return
    size = int(answer.get("Attributes", {}).get("MaximumMessageSize", bytes_max))
    if size < bytes_max:
        found = f"takes messages of up to {size:,} bytes; larger events would become dead letters"
        yield warning("queue", found, f"set its MaximumMessageSize to {bytes_max}")
    else:
        yield good("queue", "is there")
