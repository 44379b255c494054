"""Where claims and outcomes are remembered. A new ledger is one file and one line in `SCHEMES`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from oncebridge.errors import ConfigurationError

if TYPE_CHECKING:
    from oncebridge.ledgers.protocol import Ledger

#: URL scheme -> module and class. Imported only when asked for: cold starts count.
SCHEMES: Final = {
    "memory": ("oncebridge.ledgers.memory", "MemoryLedger"),
    "sqlite": ("oncebridge.ledgers.sqlite", "SQLiteLedger"),
}


def ledger_from_url(url: str) -> Ledger:
    """Make the ledger that a URL names; it connects when it is opened, not here."""
    scheme = urlsplit(url).scheme
    if scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in SCHEMES)
        # The URL itself may hold a password: only its scheme is shown.
        raise ConfigurationError(f"ledger: no ledger for {scheme or 'a URL without a scheme'!r}; use one of {known}")
    module, name = SCHEMES[scheme]
    ledger: Ledger = getattr(import_module(module), name).from_url(url)
    return ledger
