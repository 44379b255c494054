"""Environment variables that begin as ours do: one that nothing reads is refused, since it is most likely mistyped."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from oncebridge.errors import ConfigurationError
from oncebridge.validation import most_similar, shown_name

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

PREFIX: Final = "ONCEBRIDGE_"
SETTINGS_VARIABLE: Final = "ONCEBRIDGE_SETTINGS"
#: Read by commands alone, and before the settings: an error in these has the format, too.
LOG_FORMAT_VARIABLE: Final = "ONCEBRIDGE_LOG_FORMAT"
_NO_SETTINGS: Final = (SETTINGS_VARIABLE, LOG_FORMAT_VARIABLE)
#: Variables of this project's own tests.
_TESTS: Final = "ONCEBRIDGE_TEST_"
#: What Kubernetes and Docker set in every container beside a service that is called oncebridge, or oncebridge-...
_SERVICE: Final = re.compile(
    r"ONCEBRIDGE_(?:\w+_)?(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT_\d+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)"
)
_SERVICE_ADDRESS: Final = re.compile(r"(?:tcp|udp|sctp)://.*")


def refuse_unknown(environment: Mapping[str, str], known: Collection[str], references: Collection[str]) -> None:
    """Refuse a variable that is neither a setting, nor named by a reference such as `env:ONCEBRIDGE_CRM_TOKEN`."""
    for name in sorted(environment):
        if not name.startswith(PREFIX) or name in known or name in references:
            continue
        if name in _NO_SETTINGS or name.startswith(_TESTS) or describes_service(name, environment[name]):
            continue
        raise ConfigurationError(f"{shown_name(name)}: no such setting; {_fix(name, known)}")  # the value may be secret


def _fix(name: str, known: Collection[str]) -> str:
    # All begin alike; only the rest can be similar.
    close = most_similar(name.removeprefix(PREFIX), [one.removeprefix(PREFIX) for one in (*known, *_NO_SETTINGS)])
    if close is not None:
        return f"did you mean {PREFIX}{close}?"
    return (
        "docs/settings.md lists them all; a variable of your own needs another name, unless a setting refers to it as "
        f"env:{shown_name(name)}"
    )


def describes_service(name: str, value: str) -> bool:
    """Return whether a container platform has set a variable, to say where a service is."""
    address = name.endswith("_PORT") and _SERVICE_ADDRESS.fullmatch(value) is not None
    return address or _SERVICE.fullmatch(name) is not None
