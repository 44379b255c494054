"""Texts as notes may hold them: printable, and bounded."""

from __future__ import annotations


def plain(text: str, most: int) -> str:
    """Return a text without characters that do not print, and no longer than this."""
    shown = "".join(letter if letter.isprintable() else " " for letter in text)
    return shown if len(shown) <= most else shown[: most - 1] + "…"
