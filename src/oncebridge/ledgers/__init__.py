"""The ledgers, which remember claims and outcomes. A new ledger is one folder and one line in `SCHEMES`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from oncebridge.errors import ConfigurationError, MissingExtra

if TYPE_CHECKING:
    from oncebridge.ledgers.protocol import Ledger

DAY_MS: Final = 86_400_000
DAY_US: Final = DAY_MS * 1000
RETENTION_US: Final = 30 * DAY_US  # unless set

#: URL scheme -> module, class, extra. Imported only when needed: cold starts count.
SCHEMES: Final = {
    "memory": ("oncebridge.ledgers.memory", "MemoryLedger", ""),
    "sqlite": ("oncebridge.ledgers.sqlite.ledger", "SQLiteLedger", ""),
    "redis": ("oncebridge.ledgers.redis.ledger", "RedisLedger", "redis"),
    "rediss": ("oncebridge.ledgers.redis.ledger", "RedisLedger", "redis"),
    "redis+sentinel": ("oncebridge.ledgers.redis.ledger", "RedisLedger", "redis"),
    "rediss+sentinel": ("oncebridge.ledgers.redis.ledger", "RedisLedger", "redis"),
    "redis+cluster": ("oncebridge.ledgers.redis.ledger", "RedisLedger", "redis"),
    "rediss+cluster": ("oncebridge.ledgers.redis.ledger", "RedisLedger", "redis"),
    "postgresql": ("oncebridge.ledgers.postgres.ledger", "PostgresLedger", "postgres"),
    "postgres": ("oncebridge.ledgers.postgres.ledger", "PostgresLedger", "postgres"),
    "dynamodb": ("oncebridge.ledgers.dynamodb.ledger", "DynamoDBLedger", "aws"),
}

# Python's errors for a URL that it cannot parse quote parts of it, and so perhaps a password.
_UNREADABLE: Final = (
    "ledger: this URL cannot be read; put an IPv6 address in brackets, write the port as a number, and "
    "percent-encode special characters of the password (@ is %40, / is %2F, : is %3A, # is %23)"
)


def ledger_from_url(url: str, *, retention_us: int = RETENTION_US) -> Ledger:
    """Make the ledger that a URL names; it connects when it is opened, not here.

    Args:
        url: Such as `redis://localhost:6379/0`.

        retention_us: How long settled events are remembered, for ledgers that forget by themselves.

    """
    scheme = scheme_of(url)
    if scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in SCHEMES)
        # The URL itself may hold a password: only its scheme is shown, if it surely has one.
        shown = scheme if scheme and "://" in url else "a URL without a scheme"
        raise ConfigurationError(f"ledger: no ledger for {shown!r}; use one of {known}")
    module, name, extra = SCHEMES[scheme]
    try:
        found = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if not extra or (error.name or "").startswith("oncebridge"):
            raise
        raise MissingExtra(
            f"ledger: {scheme}:// needs the package {error.name}; install it with: pip install 'oncebridge[{extra}]'"
        ) from None
    try:
        ledger: Ledger = found.from_url(url, retention_us=retention_us)
    except ValueError:
        raise ConfigurationError(_UNREADABLE) from None
    return ledger


def kind_of(ledger: Ledger, url: str) -> str:
    """Return the scheme of a ledger: that of its URL, or one that would make it; else the name of its class."""
    schemes = [scheme for scheme, (module, name, _) in SCHEMES.items() if _is(ledger, module, name)]
    scheme = scheme_of(url)
    return scheme if scheme in schemes else (schemes or [type(ledger).__name__])[0]


def _is(ledger: Ledger, module: str, name: str) -> bool:
    return any((one.__module__, one.__name__) == (module, name) for one in type(ledger).__mro__)


def scheme_of(url: str) -> str:
    """Return the kind of ledger that a URL names; empty if it names none."""
    try:
        return urlsplit(url).scheme
    except ValueError:
        raise ConfigurationError(_UNREADABLE) from None
