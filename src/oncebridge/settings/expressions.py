"""JMESPath in settings: compiled when settings are loaded, so that a typing error is found before an event comes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from oncebridge.errors import MissingExtra
from oncebridge.settings.reading import read_text

Search: TypeAlias = Callable[[Any], Any]


def read_expression(value: Any) -> Search:
    """Compile the expression of a setting."""
    return compiled(read_text(value))


def compiled(text: str) -> Search:
    """Compile an expression; ValueError if it is none. What an event's fields do not suit finds nothing."""
    try:
        import jmespath
    except ImportError:
        raise MissingExtra(
            f"the expression {text!r} needs jmespath; install it with: pip install 'oncebridge[cli]'"
        ) from None
    failure = jmespath.exceptions.JMESPathError
    try:
        expression = jmespath.compile(text)
    except failure as error:
        raise ValueError from error
    if not _can_be_called(expression.parsed, jmespath.functions.Functions.FUNCTION_TABLE):
        raise ValueError
    search = expression.search

    def found(tree: Any) -> Any:
        try:
            return search(tree)
        except failure:
            return None

    return found


def _can_be_called(node: Any, functions: Mapping[str, Any]) -> bool:
    """Return whether all functions in an expression exist, and get as many values as they take."""
    if node["type"] == "function_expression":
        signature = functions.get(node["value"], {}).get("signature")
        if signature is None:
            return False
        given, wanted = len(node["children"]), len(signature)
        is_variadic = bool(signature) and bool(signature[-1].get("variadic"))
        if given < wanted or (given > wanted and not is_variadic):
            return False
    return all(_can_be_called(child, functions) for child in node["children"] if isinstance(child, dict))
