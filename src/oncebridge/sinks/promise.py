"""How often an event takes effect at a sink, as far as the sink can know."""

from __future__ import annotations

from typing import Final

import msgspec

EXACTLY_ONCE: Final = "exactly once"
EFFECTIVELY_ONCE: Final = "effectively once"
AT_LEAST_ONCE: Final = "at least once"


class SinkPromise(msgspec.Struct, frozen=True):
    """One of the three above, and why, as the rest of a sentence that begins with `because`."""

    level: str
    why: str
    #: Whether it holds even if the ledger forgets its claims, because the sink itself knows each event it has seen.
    whatever_the_ledger: bool = False
