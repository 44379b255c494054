"""The back-test: what each key would have done with exactly this traffic."""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from oncebridge.diagnosis.arrivals import JUMP_MS
from oncebridge.diagnosis.diagnosis import EXAMPLES_MAX
from oncebridge.diagnosis.grouping import IS_DUPLICATE, DeliveryClass

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from oncebridge.diagnosis.arrivals import Arrivals
    from oncebridge.diagnosis.keys import Key

_RECORD: Final = Struct("<QQ")


class Dropping:
    """What one key would have dropped."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.duplicates = 0
        self.lost = 0
        #: Pairs: the event that would have been lost, and the delivery that it would have been taken for.
        self.lost_examples: list[tuple[int, int]] = []
        #: The first duplicates that it would have let through; how many there are follows from those dropped.
        self.passed: list[int] = []

    def let_through(self, n: int) -> None:
        """Note a duplicate that is not dropped."""
        if len(self.passed) < EXAMPLES_MAX:
            self.passed.append(n)

    def drop(self, n: int, of: int, what: int) -> None:
        """Count a delivery that is dropped."""
        if IS_DUPLICATE[what]:
            self.duplicates += 1
        elif what == DeliveryClass.ORIGINAL:
            self.lost += 1
            if len(self.lost_examples) < EXAMPLES_MAX:
                self.lost_examples.append((n, of))

    def merge(self, other: Dropping) -> None:
        """Add another part's counts."""
        self.duplicates += other.duplicates
        self.lost += other.lost
        self.lost_examples = sorted([*self.lost_examples, *other.lost_examples])[:EXAMPLES_MAX]
        self.passed = sorted([*self.passed, *other.passed])[:EXAMPLES_MAX]


def try_keys(
    blocks: Iterable[bytes], keys: Sequence[Key], arrivals: Arrivals, classes: bytes | bytearray | memoryview
) -> list[Dropping]:
    """Try keys that compare the same on one part; return what each drops."""
    data = b"".join(blocks)
    if arrivals.is_disordered:
        data = b"".join(
            _RECORD.pack(*one) for one in sorted(_RECORD.iter_unpack(data), key=lambda one: arrivals.of(one[1]))
        )
    return [_tried(data, key, arrivals, classes) for key in keys]


def _is_over(since_ms: int, ttl_ms: float) -> bool:
    """Return whether a key is forgotten; long before the delivery that it remembers means that its clock was wrong."""
    return since_ms >= ttl_ms or since_ms < -JUMP_MS


def _tried(data: bytes, key: Key, arrivals: Arrivals, classes: bytes | bytearray | memoryview) -> Dropping:
    found = Dropping()
    first: dict[int, int] = {}
    known = first.setdefault
    ttl_ms = None if key.seconds is None else key.seconds * 1000
    for number, n in _RECORD.iter_unpack(data):
        of = known(number, n)
        what = classes[n - 1]
        is_compared = not (key.at_sending and what == DeliveryClass.RECEIVED_AGAIN)
        if of != n and is_compared:
            if ttl_ms is None or not _is_over(arrivals.of(n) - arrivals.of(of), ttl_ms):
                found.drop(n, of, what)
                continue
            first[number] = n
        if IS_DUPLICATE[what]:
            found.let_through(n)
    return found
