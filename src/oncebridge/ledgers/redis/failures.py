"""Errors of a Redis, in our words and with the fix."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from oncebridge import handles
from oncebridge.errors import LedgerRefused, LedgerUnavailable
from oncebridge.ledgers.redis.connection import ERRORS, ServerError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncebridge.ledgers.redis.address import Address


@contextmanager
def in_our_words(address: Address) -> Iterator[None]:
    """Translate any error of the client into ours, with the fix."""
    try:
        yield
    except ERRORS as error:
        raise translated(error, address) from error


def translated(error: Exception, address: Address) -> LedgerUnavailable | LedgerRefused:
    """Describe an error in our words, without passwords and keys."""
    where, text = repr(address), str(error)
    signs_of = f"{type(error).__name__} {text}"
    for kinds, signs, advice in _REFUSED:
        if isinstance(error, kinds) and any(sign in signs_of for sign in signs):
            return LedgerRefused(f"{where}: {advice}")
    for sign, advice in _ADVICE:
        if sign in signs_of:
            return LedgerUnavailable(f"{where}: {advice}; nothing was acknowledged")
    if isinstance(error, TimeoutError):
        tls = "that it speaks TLS (rediss://), " if address.tls else ""
        return LedgerUnavailable(
            f"{where} does not answer in time; check the address, {tls}that VPC and security group let this host "
            "through, and the server's load; nothing was acknowledged"
        )
    if isinstance(error, ServerError):
        return LedgerUnavailable(f"{where} answered with an error: {text[:200]}; nothing was acknowledged")
    return LedgerUnavailable(
        f"{where} is out of reach ({type(error).__name__}); check the address, that the server runs, that VPC and "
        "security group let this host through, and TLS (rediss:// or redis://); nothing was acknowledged"
    )


_SLOT_MOVES: Final = "one of its slots is being moved to another server; try again when that is over"
_REFUSED: Final = (
    (
        ServerError,
        ("WRONGPASS", "NOAUTH", "invalid username-password", "AUTH"),
        "user or password are not accepted; check them in the URL (percent-encode special characters)",
    ),
    (ServerError, ("NOPERM",), "this user may not do that; the ACL it needs is in docs/ledgers.md"),
    (ServerError, ("DB index is out of range",), "there is no such database; the number at the end of the URL"),
    (ServerError, ("WRONGTYPE",), "keys that are not the ledger's are in its place; give it another ?name="),
    (OSError, ("CERTIFICATE_VERIFY_FAILED",), "its certificate is not trusted; name the CA with ?ca_file="),
)
_ADVICE: Final = (
    ("'maxmemory'", "its memory is full; raise maxmemory or forget more (oncebridge purge)"),
    ("MISCONF", "it cannot write to its disk; look at the server's log"),
    ("READONLY", "this is a replica; name the master, or its sentinels"),
    ("LOADING", "it is still loading its data; try again soon"),
    ("BUSY ", "another client's script blocks it"),
    ("NOREPLICAS", "too few of its replicas are there"),
    (
        "No master found",
        "the sentinels know no master by this name, or it is down; check its name, and TLS (rediss+ is for both)",
    ),
    ("CLUSTERDOWN", "the cluster is down: some of its slots have no master"),
    ("ASK ", _SLOT_MOVES),
    ("TRYAGAIN", _SLOT_MOVES),
    ("MOVED", _SLOT_MOVES),
    ("SSL", "TLS failed; check rediss:// against redis://, and the certificates"),
    ("Too many open files", handles.ADVICE),
    ("max number of clients", "it takes no more clients; raise maxclients or run fewer workers"),
)
