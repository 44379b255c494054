"""What the settings of every sink have."""

from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from oncebridge.retry import RetryPolicy
from oncebridge.settings.expressions import Search, read_expression
from oncebridge.settings.reading import Text, read_by

Body: TypeAlias = Annotated[
    Search | None,
    read_by(read_expression, "a JMESPath expression over the envelope, such as detail.eventBody"),
    Meta(
        description="the body to send, as a JMESPath expression over the envelope; without it the envelope as it came"
    ),
]


class SinkSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One sink: which topics it takes. Where it sends them is for its kind to say."""

    #: Part of the keys of its claims; empty for the sink that `downstream_url` names.
    name: str
    topics: Annotated[
        tuple[Text, ...],
        Meta(
            min_length=1,
            description="which topics it takes",
            extra={"expected": 'a list of topics, such as ["v2.users.{id}.presence"]'},
        ),
    ] = ("*",)
    #: How often and when it is tried; None: as `[retry]` says. In the file `[sinks.NAME.retry]`.
    retry: RetryPolicy | None = None

    def __repr__(self) -> str:
        """Show nothing of where it sends to, which may hold a secret."""
        return f"<{type(self).__name__} {self.name or 'downstream_url'} for {', '.join(self.topics)}>"
