"""Whether a function can be a handler. One that fails on every call would make each event a dead letter."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, Final

from oncebridge.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

TRANSACTION: Final = "transaction"


def takes_transaction(function: Callable[..., Any]) -> bool:
    """Return whether a handler asks for the ledger's transaction."""
    signature = _signature(function)
    return signature is not None and TRANSACTION in signature.parameters


def name_of(function: object) -> str:
    """Name a function as its author does: `Crm.save`."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__)


def refuse_wrong_function(pattern: str, function: Callable[..., Any]) -> None:
    """Refuse what cannot be a handler, with its name, its parameters and the fix."""
    where = f"handler for {pattern!r}"
    if not callable(function):
        raise ConfigurationError(
            f"{where}: {type(function).__name__} is no function; register a function that takes the event"
        )
    name = name_of(function)
    if isinstance(function, type):
        raise ConfigurationError(
            f"{where}: {name} is a class, and calling it only makes an object; register a function, a method of an "
            f"object, or an object with a __call__(self, event)"
        )
    if _yields(function):
        raise ConfigurationError(f"{where}: {name}: calling a generator does nothing; drop its yield")
    signature = _signature(function)
    if signature is not None and not _fits(signature):
        raise ConfigurationError(
            f"{where}: handlers are called with the event, and with the ledger's transaction if they have a parameter "
            f"`{TRANSACTION}`; {name}{signature}: it cannot be called so; {_fix(name, signature)}"
        )


def _yields(function: Callable[..., Any]) -> bool:
    """Return whether a call would only make a generator: of a function, a partial, a method, or an object."""
    calls = (function, type(function).__call__)
    return any(inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call) for call in calls)


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    """Return a function's parameters; some built-ins do not have them."""
    try:
        return inspect.signature(function)
    except ValueError:
        return None


def _fits(signature: inspect.Signature) -> bool:
    try:
        signature.bind(None, **({TRANSACTION: None} if TRANSACTION in signature.parameters else {}))
    except TypeError:
        return False
    return True


def _fix(name: str, signature: inspect.Signature) -> str:
    """Say which change of the parameters would make a function a handler."""
    required = [one for one in signature.parameters.values() if one.default is one.empty and one.kind not in _ANY]
    by_place = [one.name for one in required if one.kind is not one.KEYWORD_ONLY]
    if by_place[:1] == ["self"]:
        kind, _, method = name.rpartition(".")
        return f"register the method of an object, such as {kind.rpartition('.')[2] or 'Crm'}().{method}"
    if not by_place or by_place[0] == TRANSACTION:
        return f"make the event its first parameter: (event{f', {TRANSACTION}' if TRANSACTION in by_place else ''})"
    others = [one.name for one in required if one.name not in (by_place[0], TRANSACTION)]
    if others == ["context"]:
        return "drop `context`: Lambda calls bridge.lambda_handler, which calls handlers with the event alone"
    if not others:
        return f"make `{TRANSACTION}` a parameter that can be given by its name"
    return f"drop {', '.join(f'`{one}`' for one in others)}, give defaults, or bind values with functools.partial"


_ANY: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
