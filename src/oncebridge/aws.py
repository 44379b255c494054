"""The Lambda entry that needs no code: everything it does is in the settings.

Set a function's handler to `oncebridge.aws.handler`. Whoever has handlers of their own writes a module of their own,
with `lambda_handler = bridge.lambda_handler`.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from typing import Any

from oncebridge.bridge import Bridge
from oncebridge.errors import ConfigurationError, OncebridgeError
from oncebridge.settings import DEFAULT_LEDGER


def handler(event: Any, context: Any = None) -> Any:
    """Give whatever Lambda hands over to the sinks in the settings, once, and answer as its shape wants it."""
    return _bridge().lambda_handler(event, context)


@cache  # what raises is not remembered: the next invocation looks again
def _bridge() -> Bridge:
    bridge = Bridge.from_settings()
    if bridge.settings.ledger == DEFAULT_LEDGER:
        raise ConfigurationError(
            "ledger: a file beside one function is read-only, and no other function sees it; name a server in "
            "ONCEBRIDGE_LEDGER, such as redis://cache.internal:6379/0, or set REDIS_HOST"
        )
    if not bridge.add_downstream():
        raise ConfigurationError(
            "nothing takes the events, so they would only be counted; set ONCEBRIDGE_DOWNSTREAM_URL, or add a table "
            "[sinks.NAME] with a url to oncebridge.toml"
        )
    return bridge


# Imported, a function has more of the machine than later, so as much as possible is done now. If that fails, each
# invocation says why: an error here would tell of an import, and only once.
with suppress(OncebridgeError):
    _bridge()
