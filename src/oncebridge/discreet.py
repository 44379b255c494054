"""Records that hold payload content without showing it: a repr ends up in logs, tracebacks and error trackers."""

from __future__ import annotations

from typing import ClassVar


class Discreet:
    """For records: the repr shows the fields that they name here, and no others."""

    __slots__ = ()
    shown: ClassVar[tuple[str, ...]] = ()

    def __repr__(self) -> str:
        """Show the fields that may be shown."""
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.shown)
        return f"{type(self).__name__}({fields})"
