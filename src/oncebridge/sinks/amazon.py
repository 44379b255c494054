"""Clients of Amazon's services: made when first needed, and told where a queue's URL or a bus's ARN says they are."""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import Any, Final
from urllib.parse import urlsplit

from oncebridge.errors import ConfigurationError, MissingExtra

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


def require_boto3(setting: str) -> None:
    """Refuse a setting that needs boto3 where it is not installed."""
    if find_spec("boto3") is None:
        raise MissingExtra(f"{setting}: needs boto3; install it with: pip install 'oncebridge[aws]'")


def check_queue(url: str, setting: str) -> str:
    """Refuse what is no queue's URL; `setting` is what named it."""
    place = urlsplit(url)
    if place.scheme not in ("http", "https") or not place.hostname or place.path.count("/") < 2:  # noqa: PLR2004 - account and name
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
