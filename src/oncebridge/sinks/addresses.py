"""Where a sink may send to: what its URL may be, and which addresses it may lead to.

Addresses are judged as they were resolved, just before the connection, so that neither another spelling of an address
nor a name that leads elsewhere the next time gets around it.
"""

from __future__ import annotations

import ipaddress
import queue
import re
import socket
import threading
from enum import IntEnum
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from oncebridge.errors import ConfigurationError, SaysWhy


class AddressForbidden(SaysWhy):
    """A host leads to an address that its sink must not connect to; nothing was sent."""


class AddressKind(IntEnum):
    """What an address is, from harmless to worst."""

    PUBLIC = 0
    #: This machine, a private network, or reserved for examples and the like.
    PRIVATE = 1
    #: No receiver of webhooks: metadata of clouds, link-local, multicast, no address at all.
    NEVER = 2


class Endpoint(NamedTuple):
    """Where a sink's URL leads."""

    scheme: str
    host: str
    port: int
    #: Path and query, which may hold secrets: never shown.
    target: str

    def __str__(self) -> str:
        """Show the host and its port alone."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __repr__(self) -> str:
        """Show no more than that."""
        return f"<Endpoint {self}>"


class ResolvedAddress(NamedTuple):
    """A host as it was resolved."""

    family: int
    at: tuple[Any, ...]


# --- what a URL may be -------------------------------------------------------------------------------

_PORTS: Final = {"https": 443, "http": 80}
_CHARACTERS: Final = re.compile(r"[\x21-\x5b\x5d-\x7e]+")  # no backslash: not all agree what it stands for
_NAME: Final = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9_-]{1,63}(?:\.[A-Za-z0-9_-]{1,63})*\.?")


def read_endpoint(url: str, setting: str, *, private: bool) -> Endpoint:
    """Read a sink's URL; refuse what can be seen to be wrong before anything is sent.

    The URL itself is never shown: its path may hold a token, and a password may stand where none belongs.
    """
    if not _CHARACTERS.fullmatch(url):
        raise ConfigurationError(f"{setting}: expected printable ASCII; percent-encode anything else")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise ConfigurationError(
            f"{setting}: cannot be read; put an IPv6 address in brackets, and write the port as a number to 65535"
        ) from None
    if parts.scheme not in _PORTS:
        raise ConfigurationError(f"{setting}: expected one that starts with https:// or http://")
    if "@" in parts.netloc:
        raise ConfigurationError(f"{setting}: holds a user or a password; take them out, and name them in bearer,"
                                 " api_key or headers")  # fmt: skip
    if "#" in url:
        raise ConfigurationError(f"{setting}: holds a fragment, which is never sent; drop everything from # on")
    if not _is_host(host) or port == 0:
        raise ConfigurationError(
            f"{setting}: expected a host such as crm.example after {parts.scheme}://, and no port or one from 1 to "
            f"65535; names outside ASCII are written as xn--..."
        )
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    endpoint = Endpoint(parts.scheme, host, port or _PORTS[parts.scheme], target)
    _check_at_once(endpoint, setting, private=private)
    return endpoint


def _is_host(host: str) -> bool:
    if _NAME.fullmatch(host):
        return True
    try:
        return ipaddress.IPv6Address(host).scope_id is None  # only link-local ones have a scope
    except ValueError:
        return False


def _check_at_once(endpoint: Endpoint, setting: str, *, private: bool) -> None:
    """Refuse a host that is wrong before any name server is asked."""
    if endpoint.scheme == "http" and not private:
        raise ConfigurationError(
            f"{setting}: http:// to {endpoint} can be read and changed on its way; use https://, or set "
            "private_addresses = true if it stays within a network of your own"
        )
    try:
        check_addresses(endpoint.host, _look_up(endpoint.host, endpoint.port, socket.AI_NUMERICHOST), private=private)
    except AddressForbidden as error:
        raise ConfigurationError(f"{setting}: {error}") from None
    except OSError:
        pass  # a name: looked up whenever a connection is made


# --- which addresses a host leads to -----------------------------------------------------------------


def resolve(host: str, port: int, seconds: float) -> list[ResolvedAddress]:
    """Look a host up; raise OSError (TimeoutError in it) if that fails or takes longer than this."""
    try:
        return _look_up(host, port, socket.AI_NUMERICHOST)
    except OSError:
        pass
    found: queue.SimpleQueue[list[ResolvedAddress] | OSError] = queue.SimpleQueue()

    def look_up() -> None:
        try:
            found.put(_look_up(host, port, 0))
        except OSError as error:
            found.put(error)

    # In a thread, since name servers that do not answer are waited for longer than any deadline.
    threading.Thread(target=look_up, name="oncebridge-resolve", daemon=True).start()
    try:
        answer = found.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError from None
    if isinstance(answer, OSError):
        raise answer
    return answer


def _look_up(host: str, port: int, flags: int) -> list[ResolvedAddress]:
    answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    return [ResolvedAddress(family, at) for family, _, _, _, at in answers]


def check_addresses(host: str, addresses: list[ResolvedAddress], *, private: bool) -> None:
    """Refuse a host if any of its addresses is one that its sink must not connect to."""
    for address in addresses:
        text = str(address.at[0])
        kind = judge(text)
        if kind is AddressKind.NEVER:
            raise AddressForbidden(f"{host} leads to {text}, and nothing is ever sent to such an address")
        if kind is AddressKind.PRIVATE and not private:
            raise AddressForbidden(
                f"{host} leads to {text}, which is not public (private_addresses = true would allow it)"
            )


# --- what an address is ------------------------------------------------------------------------------

#: Besides those that `ipaddress` knows as link-local, multicast or reserved.
_NEVER: Final = [
    ipaddress.ip_network(text)
    for text in (
        "0.0.0.0/8",  # this machine on Linux
        "168.63.129.16",  # Azure's own, though it looks public
        "192.0.0.192",  # Oracle's metadata
        "100.100.100.200",  # Alibaba's metadata
        "64:ff9b:1::/48",  # wraps IPv4 in a endpoint that only its own network knows
        "fd00:ec2::/32",  # Amazon's metadata and its like
        "fd00:42::42",  # Scaleway's
        "fd00:c1::a9fe:a9fe",  # Oracle's
        "fd20:ce::254",  # Google's
    )
]
#: Not for the internet, though some versions of `ipaddress` call them global.
_PRIVATE: Final = [ipaddress.ip_network(text) for text in ("192.0.0.0/24", "192.88.99.0/24", "2001::/23", "3fff::/20")]
_GIVEN_OUT: Final = ipaddress.IPv6Network("2000::/3")  # the only part of IPv6 that is
#: Networks whose addresses end in one of IPv4, besides those that `ipaddress` unwraps: NAT64, compatible, translated.
_ENDS_IN_V4: Final = [ipaddress.IPv6Network(text) for text in ("64:ff9b::/96", "::/96", "::ffff:0:0:0/96")]
_LOOPBACK: Final = ipaddress.IPv6Address("::1")

_IP: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address


def judge(text: str) -> AddressKind:
    """Tell what an address is; one that wraps another is what it wraps."""
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv4Address):
        return _judge_one(address)
    return max(_judge_one(one) for one in _wrapped_by(address) or [address])


def _judge_one(address: _IP) -> AddressKind:
    is_v4 = isinstance(address, ipaddress.IPv4Address)
    if address.is_link_local or address.is_multicast or (is_v4 and address.is_reserved):
        return AddressKind.NEVER
    if any(address in network for network in _NEVER):
        return AddressKind.NEVER
    is_public = address.is_global and (is_v4 or address in _GIVEN_OUT)
    if not is_public or any(address in network for network in _PRIVATE):
        return AddressKind.PRIVATE
    return AddressKind.PUBLIC


def _wrapped_by(address: ipaddress.IPv6Address) -> list[_IP]:
    """Return the addresses that decide about this one, if it wraps any."""
    last = ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    if address.teredo is not None:
        return [*address.teredo]  # server and client
    if address.ipv4_mapped is not None or address.sixtofour is not None:
        return [one for one in (address.ipv4_mapped, address.sixtofour) if one is not None]
    if address != _LOOPBACK and any(address in network for network in _ENDS_IN_V4):
        return [last]
    # ISATAP wraps one under any prefix; one bit of its mark is left open.
    is_isatap = (int(address) >> 32) & 0xFDFF_FFFF == 0x0000_5EFE  # noqa: PLR2004
    return [address, last] if is_isatap else []
