"""Which families an installation gets: what it does not subscribe to is not missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncebridge.attendance import TOPIC_OF
from oncebridge.errors import ConfigurationError
from oncebridge.topics import topic_pattern

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from oncebridge.engine.attending import Kept


def expected_by_name(names: Iterable[str]) -> frozenset[str]:
    """Read what a person expects: families or topics, with `*` for several."""
    found: set[str] = set()
    for name in names:
        pattern = topic_pattern(name)
        chosen = {family for family, topic in TOPIC_OF.items() if pattern.fullmatch(family) or pattern.fullmatch(topic)}
        if not chosen:
            raise ConfigurationError(f"--expect: {name!r} is none of {', '.join(TOPIC_OF)}, nor of their topics")
        found |= chosen
    return frozenset(found)


def subscribed(kept: Kept | None, patterns: Sequence[str], *, since_us: int) -> frozenset[str]:
    """Return the families that came since then, and those that a handler names without a `*`."""
    came = {family for family, last_us in ({} if kept is None else kept.families).items() if last_us >= since_us}
    named = {
        family
        for family, topic in TOPIC_OF.items()
        for pattern in patterns
        if "*" not in pattern and topic_pattern(pattern).fullmatch(topic)
    }
    return frozenset(came | named) & TOPIC_OF.keys()
