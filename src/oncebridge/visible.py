"""Text from outside, made safe to look at: nothing in it drives a terminal, and nothing is shown other than it stands.

Terminals obey control characters: they set titles, write to the clipboard, clear the screen. Marks of direction and
separators make a line read other than it is. All of these are written as escapes.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

#: What JSON allows in a text, and nobody sees: DEL, C1, joiners and spaces of no width, marks of direction, separators
#: of lines and paragraphs, annotations and tags. JSON escapes everything below the space itself.
_UNSEEN: Final = re.compile(
    "[\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U0001d173-\U0001d17a\U000e0000-\U000e007f]"
)


def visible(text: str) -> str:
    """Write a text on one line, with everything that is not seen as it stands as an escape."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


def visible_lines(text: str) -> str:
    """Write a text of several lines, those after the first indented: so none is taken for one of ours."""
    return "\n  ".join(visible(line) for line in text.split("\n"))


def visible_json(value: Any) -> str:
    """Write JSON on one line, which says the same to a program and nothing to a terminal."""
    text = msgspec.json.encode(value).decode()
    if text.isascii() and "\x7f" not in text:
        return text
    return _UNSEEN.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    """Write a character as JSON does: one above the basic plane as two."""
    code = found[0].encode("utf-16-be")
    return "".join(f"\\u{code[at : at + 2].hex()}" for at in range(0, len(code), 2))
