"""Makes text from outside safe to show: nothing in it controls a terminal, and nothing looks different than it is.

Terminals obey control characters: they set titles, write to the clipboard, clear the screen. Direction marks and
separators make a line read differently than it is, blank letters a name like another one, and heaps of marks on one
letter cover the lines around it and are wider than any page. All of these are written as escapes.
"""

from __future__ import annotations

import re
from typing import Any, Final
from unicodedata import category

import msgspec

#: Characters that JSON allows in a text, and nobody sees: DEL, C1, zero-width joiners and spaces, direction marks, line
#: and paragraph separators, annotations and tags. JSON itself escapes everything below the space.
_UNSEEN: Final = re.compile(
    "[\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U0001d173-\U0001d17a\U000e0000-\U000e007f]"
)

#: Letters and marks without ink, which count as printable.
_BLANK: Final = "\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0"
#: More marks than any script puts on one letter.
MARKS_MAX: Final = 8


def visible(text: str) -> str:
    """Write a text on one line, with every character that is not visible as an escape."""
    if text.isascii() and text.isprintable():
        return text
    shown, marks = [], 0
    for character in text:
        marks = marks + 1 if category(character).startswith("M") else 0
        is_shown = character.isprintable() and character not in _BLANK and marks <= MARKS_MAX
        shown.append(character if is_shown else character.encode("unicode_escape").decode())
    return "".join(shown)


def visible_lines(text: str) -> str:
    """Write a text of several lines, those after the first indented, so that none is mistaken for one of ours."""
    return "\n  ".join(visible(line) for line in text.split("\n"))


def visible_json(value: Any) -> str:
    """Write JSON on one line; a program reads the same, and a terminal obeys nothing in it."""
    text = msgspec.json.encode(value).decode()
    if text.isascii() and "\x7f" not in text:
        return text
    return _UNSEEN.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    """Write a character as JSON does: one above the basic plane as two."""
    code = found[0].encode("utf-16-be")
    return "".join(f"\\u{code[at : at + 2].hex()}" for at in range(0, len(code), 2))
