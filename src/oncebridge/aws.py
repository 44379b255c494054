"""The Lambda entry point that needs no code: settings decide everything.

Set a function's handler to `oncebridge.aws.handler`. If you have handlers of your own, write a module of your own, with
`lambda_handler = bridge.lambda_handler`.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from typing import Any

from oncebridge.bridge import Bridge
from oncebridge.errors import ConfigurationError, OncebridgeError
from oncebridge.settings import DEFAULT_LEDGER


def handler(event: Any, context: Any = None) -> Any:
    """Give an invocation's events to the sinks in the settings, once, and reply in the invocation's format."""
    return _bridge().lambda_handler(event, context)


@cache  # errors are not cached: the next invocation tries again
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


# During import a function has more of the machine than later, so as much as possible is done now. If that fails, each
# invocation says why: an error here would only say that an import failed, and only once.
with suppress(OncebridgeError):
    _bridge()
