"""Settings of the console: the table `[console]`."""

from typing import Annotated

import msgspec
from msgspec import Meta

from oncebridge.settings.secrets import References


class ConsoleSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the console listens, and who may look."""

    listen: Annotated[
        str,
        Meta(
            pattern=r"\A(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):\d{1,5}\Z",
            description="where `oncebridge console` listens; without keys on loopback only",
            extra={"expected": "a host and a port such as 127.0.0.1:8090"},
        ),
    ] = "127.0.0.1:8090"
    operator_keys: Annotated[
        References,
        Meta(description="secrets of which a person has to give one to look and to act; two while you change them"),
    ] = ()
    reader_keys: Annotated[References, Meta(description="the same for those who may only look")] = ()
    session_minutes: Annotated[
        float, Meta(ge=1, le=10_080, description="after how long a person has to give the key again")
    ] = 480.0

    def __repr__(self) -> str:
        """Show no key."""
        return f"<ConsoleSettings {self.listen}>"
