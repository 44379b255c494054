"""JMESPath in settings: compiled when settings are loaded, so that a typing error is found before an event comes."""

from __future__ import annotations

from collections.abc import Callable
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
        search = jmespath.compile(text).search
    except failure as error:
        raise ValueError from error

    def found(tree: Any) -> Any:
        try:
            return search(tree)
        except failure:
            return None

    return found
