"""Sends dead letters on."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oncebridge.handlers import Handler
    from oncebridge.settings import Settings


def make_copiers(settings: Settings) -> tuple[Handler, ...]:
    """Make what sends dead letters to where the settings say."""
    return ()
