"""What one part came to, on one ledger: the same fields for all, so that a table and a page can hold them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Options:
    """What a part is asked for."""

    #: A kind of ledger, whose server is started, or a URL; empty where a part needs none.
    ledger: str
    seed: int
    amount: int
    #: It ends then, whatever is left; a part that ended early says so.
    seconds: float
    #: For files of this run.
    folder: Path
    #: Called with how much is done, now and then.
    progress: Any = None


@dataclass
class Outcome:
    """What was tried, and what came of it."""

    tried: int = 0
    lost: int = 0
    #: At sinks that can prevent it: in the transaction, or by the key.
    doubled: int = 0
    #: At sinks that cannot: allowed, and counted.
    doubled_plain: int = 0
    #: Every promise that was broken, by name, and how often; loss and doubles too.
    broken: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    #: Figures of the part's own, and what a reader should know.
    figures: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    #: The smallest known way to see it fail, as lines for a person.
    history: list[str] = field(default_factory=list)

    @property
    def held(self) -> bool:
        """Whether every promise was kept, and anything was tried at all."""
        return not self.broken and self.tried > 0

    def as_dict(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        return {"held": self.held, **asdict(self)}
