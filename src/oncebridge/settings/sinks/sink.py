"""What the settings of every sink have."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from oncebridge.settings.checks import Check, read_text, read_texts
from oncebridge.settings.expressions import compiled


class SinkSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One sink: which topics it takes. Where it sends them is for its kind to say."""

    #: Under which its claims are remembered; empty for the one that `downstream_url` names.
    name: str
    topics: tuple[str, ...] = ("*",)

    def __repr__(self) -> str:
        """Show nothing of where it sends to, which may hold a secret."""
        return f"<{type(self).__name__} {self.name or 'downstream_url'} for {', '.join(self.topics)}>"


def _read_topics(value: Any) -> tuple[str, ...]:
    topics = read_texts(value)
    if not topics:
        raise ValueError
    return topics


TOPICS: Final = Check('a list of topics, such as ["v2.users.{id}.presence"]', _read_topics)
BODY: Final = Check(
    "a JMESPath expression over the envelope, such as detail.eventBody", lambda value: compiled(read_text(value))
)
