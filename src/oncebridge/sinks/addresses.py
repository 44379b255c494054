"""Where a sink may send to: what its URL may be, and which addresses it may lead to.

Addresses are judged as they were resolved, just before the connection, so that neither another spelling of an address
nor a name that leads elsewhere the next time gets around it. The tables are our own: Python's change with its version.
"""

from __future__ import annotations

import ipaddress
import queue
import re
import socket
import threading
from enum import IntEnum
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from oncebridge.errors import ConfigurationError, SaysWhy


class AddressForbidden(SaysWhy):
    """A host leads to an address that its sink must not connect to; nothing was sent."""


class Kind(IntEnum):
    """What an address is, from harmless to worst."""

    PUBLIC = 0
    #: This machine, a network of one's own, or reserved for examples and the like.
    PRIVATE = 1
    #: Nothing that takes webhooks: metadata of clouds, link-local, multicast, no address at all.
    NEVER = 2


class Place(NamedTuple):
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
        return f"<Place {self}>"


class Address(NamedTuple):
    """A host as it was resolved."""

    family: int
    at: tuple[Any, ...]


# --- what a URL may be -------------------------------------------------------------------------------

_PORTS: Final = {"https": 443, "http": 80}
_CHARACTERS: Final = re.compile(r"[\x21-\x5b\x5d-\x7e]+")  # no backslash: not all agree what it stands for
_NAME: Final = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9_-]{1,63}(?:\.[A-Za-z0-9_-]{1,63})*\.?")


def read_place(url: str, setting: str, *, private: bool) -> Place:
    """Read a sink's URL; refuse what can be seen to be wrong before anything is sent.

    The URL itself is never shown: its path may hold a token, and a password may stand where none belongs.
    """
    if not _CHARACTERS.fullmatch(url):
        raise ConfigurationError(f"{setting}: expected printable ASCII; percent-encode whatever else it holds")
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
    place = Place(parts.scheme, host, port or _PORTS[parts.scheme], target)
    _check_at_once(place, setting, private=private)
    return place


def _is_host(host: str) -> bool:
    if _NAME.fullmatch(host):
        return True
    try:
        return ipaddress.IPv6Address(host).scope_id is None  # only link-local ones have a scope
    except ValueError:
        return False


def _check_at_once(place: Place, setting: str, *, private: bool) -> None:
    """Refuse what needs no name server to be seen."""
    if place.scheme == "http" and not private:
        raise ConfigurationError(
            f"{setting}: http:// to {place} can be read and changed on its way; use https://, or set "
            "private_addresses = true if it stays within a network of your own"
        )
    try:
        check_addresses(place.host, _look_up(place.host, place.port, socket.AI_NUMERICHOST), private=private)
    except AddressForbidden as error:
        raise ConfigurationError(f"{setting}: {error}") from None
    except OSError:
        pass  # a name: looked up whenever a connection is made


# --- which addresses a host leads to -----------------------------------------------------------------


def resolve(host: str, port: int, seconds: float) -> list[Address]:
    """Look a host up; raise OSError (TimeoutError in it) if that fails or takes longer than this."""
    try:
        return _look_up(host, port, socket.AI_NUMERICHOST)
    except OSError:
        pass
    found: queue.SimpleQueue[list[Address] | OSError] = queue.SimpleQueue()

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


def _look_up(host: str, port: int, flags: int) -> list[Address]:
    answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    return [Address(family, at) for family, _, _, _, at in answers]


def check_addresses(host: str, addresses: list[Address], *, private: bool) -> None:
    """Refuse a host if any of its addresses is one that its sink must not connect to."""
    for address in addresses:
        text = str(address.at[0])
        kind = judge(text)
        if kind is Kind.NEVER:
            raise AddressForbidden(f"{host} leads to {text}, and nothing is ever sent to such an address")
        if kind is Kind.PRIVATE and not private:
            raise AddressForbidden(
                f"{host} leads to {text}, which is not public (private_addresses = true would allow it)"
            )


# --- what an address is ------------------------------------------------------------------------------


def judge(text: str) -> Kind:
    """Tell what an address is; one that wraps another is what it wraps."""
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv4Address):
        return _judge_v4(int(address))
    number = int(address)
    if number == 1:
        return Kind.PRIVATE  # the loopback; everything around it wraps an IPv4 address
    wrapped = [_judge_v4((number >> shift ^ flip) & _V4) for shift, flip in _wrappings(address)]
    if wrapped:
        return max(wrapped)
    kind = _judge_v6(address)
    return max(kind, _judge_v4(number & _V4)) if _is_isatap(number) else kind


_V4: Final = 0xFFFF_FFFF
_V4_NEVER: Final = [
    ipaddress.IPv4Network(text)
    for text in (
        "0.0.0.0/8",  # this machine on Linux
        "168.63.129.16",  # Azure's own, though it looks public
        "169.254.0.0/16",  # link-local, and metadata of nearly every cloud
        "192.0.0.192",  # Oracle's metadata
        "100.100.100.200",  # Alibaba's metadata
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
]
_V4_PRIVATE: Final = [
    ipaddress.IPv4Network(text)
    for text in (
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
    )
]
_V6_NEVER: Final = [
    ipaddress.IPv6Network(text)
    for text in (
        "64:ff9b:1::/48",  # wraps IPv4 in a place that only its own network knows
        "fd00:ec2::/32",  # Amazon's metadata and its like
        "fd00:42::42",  # Scaleway's
        "fd00:c1::a9fe:a9fe",  # Oracle's
        "fd20:ce::254",  # Google's
        "fe80::/10",  # link-local
        "ff00::/8",  # multicast
    )
]
_V6_PUBLIC: Final = ipaddress.IPv6Network("2000::/3")  # the only part that is given out
_V6_PRIVATE: Final = [ipaddress.IPv6Network(text) for text in ("2001::/23", "2001:db8::/32", "3fff::/20")]
#: Networks whose addresses wrap one of IPv4: how far it is shifted, and what is flipped in it.
_WRAPPINGS: Final = [
    (ipaddress.IPv6Network(text), shift, flip)
    for text, shift, flip in (
        ("::/96", 0, 0),  # compatible, as it was once called
        ("::ffff:0:0/96", 0, 0),  # mapped
        ("::ffff:0:0:0/96", 0, 0),  # translated
        ("64:ff9b::/96", 0, 0),  # NAT64
        ("2002::/16", 80, 0),  # 6to4
        ("2001::/32", 64, 0),  # Teredo: its server
        ("2001::/32", 0, _V4),  # Teredo: its client
    )
]


def _judge_v4(number: int) -> Kind:
    address = ipaddress.IPv4Address(number)
    if any(address in network for network in _V4_NEVER):
        return Kind.NEVER
    return Kind.PRIVATE if any(address in network for network in _V4_PRIVATE) else Kind.PUBLIC


def _judge_v6(address: ipaddress.IPv6Address) -> Kind:
    if any(address in network for network in _V6_NEVER):
        return Kind.NEVER
    if address not in _V6_PUBLIC or any(address in network for network in _V6_PRIVATE):
        return Kind.PRIVATE
    return Kind.PUBLIC


def _wrappings(address: ipaddress.IPv6Address) -> list[tuple[int, int]]:
    return [(shift, flip) for network, shift, flip in _WRAPPINGS if address in network]


def _is_isatap(number: int) -> bool:
    """Tell whether the interface part of an address wraps one of IPv4, under whatever prefix."""
    return (number >> 32) & 0xFDFF_FFFF == 0x0000_5EFE  # noqa: PLR2004 - the mark of ISATAP, one bit of it left open
