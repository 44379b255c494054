"""What the ledger's functions are called with, and what they answer: one array for each field."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from oncebridge.claim import Answer, Status, Verdict
from oncebridge.ledgers import DAY_MS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from oncebridge.claim import Ask, Claim, Settlement
    from oncebridge.identity import Moment

UNDATED: Final = -1
_DAY_MAX: Final = 2**31 - 1

_VERDICTS: Final = {verdict.value: verdict for verdict in Verdict}
_STATUSES: Final = {status.value: status for status in Status}


def day_of(ask: Ask) -> int:
    """Return the day that an event is kept under: the same for all its deliveries."""
    if ask.home is not None:
        return int.from_bytes(ask.home, "big", signed=True)  # as int4send writes it
    if ask.shared_ms is None:
        return UNDATED
    return max(UNDATED, min(ask.shared_ms // DAY_MS, _DAY_MAX))


def storable(text: str | None) -> str | None:
    """Return a text that Postgres can keep: it has no place for U+0000 and for halves of characters."""
    if text is None or (text.isascii() and "\0" not in text):
        return text
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\N{SYMBOL FOR NULL}")


def in_order(asks: Sequence[Ask]) -> list[int]:
    """Return the places in the order of their keys: calls that lock in one order never wait for each other."""
    return sorted(range(len(asks)), key=lambda place: (asks[place].key, asks[place].handler))


def back_in_place(order: Iterable[int], answers: Iterable[Any]) -> list[Any]:
    """Return answers in the order of the question."""
    return [answer for _, answer in sorted(zip(order, answers, strict=True), key=lambda pair: pair[0])]


def _column(values: Iterable[Any], default: Any = None) -> list[Any] | None:
    """Return an array; None where all are the default, which most are."""
    found = list(values)
    return None if all(value is default for value in found) else found


def _times(moment: Moment) -> str:
    return "{" + ",".join("NULL" if time is None else str(time) for time in moment.times) + "}"


def _entities(asks: Sequence[Ask]) -> list[Any]:
    """Return what only states have: entities, states, times, versions and whether they echo."""
    entities = _column(ask.entity for ask in asks)
    if entities is None:
        return [None] * 5
    return [
        entities,
        _column(ask.state for ask in asks),
        [_times(ask.moment) for ask in asks],
        _column(ask.moment.version for ask in asks),
        _column((ask.moment.echoes for ask in asks), default=True),
    ]


def claim_arguments(asks: Sequence[Ask], nonce: bytes, lease_us: int) -> list[Any]:
    """Return the arguments of `claim`."""
    states = _entities(asks)
    return [
        [day_of(ask) for ask in asks],
        [ask.key for ask in asks],
        [storable(ask.handler) for ask in asks],
        _column(storable(ask.envelope) for ask in asks),
        _column(ask.content for ask in asks),
        *states,
        [ask.echo_window_ns for ask in asks] if states[0] else None,
        _column((ask.stale for ask in asks), default=True),
        [storable(ask.topic) for ask in asks],
        _column(ask.time_ms for ask in asks),
        _column(ask.conversation for ask in asks),
        _column(ask.user for ask in asks),
        _column((ask.alone for ask in asks), default=False),
        _column((ask.redrive for ask in asks), default=False),
        _column((ask.force for ask in asks), default=False),
        nonce,
        lease_us,
    ]


def answers(row: Sequence[list[Any]]) -> list[Answer]:
    """Read what `claim` answers: verdicts, tokens, attempts, originals, statuses, and how long the busy ones may be."""
    return [
        Answer(_VERDICTS[verdict], token, attempt, of, None if was is None else _STATUSES[was], busy_us)
        for verdict, token, attempt, of, was, busy_us in zip(*row, strict=True)
    ]


def extend_arguments(claims: Sequence[Claim], lease_us: int) -> list[Any]:
    """Return the arguments of `extend`."""
    asks = [claim.ask for claim in claims]
    return [
        [day_of(ask) for ask in asks],
        [ask.key for ask in asks],
        [storable(ask.handler) for ask in asks],
        _column(ask.entity for ask in asks),
        [claim.token for claim in claims],
        lease_us,
    ]


def settle_arguments(settlements: Sequence[Settlement]) -> list[Any]:
    """Return the arguments of `settle`."""
    asks = [settlement.claim.ask for settlement in settlements]
    letters = [settlement.letter for settlement in settlements]
    entities, *states = _entities(asks)
    return [
        [day_of(ask) for ask in asks],
        [ask.key for ask in asks],
        [storable(ask.handler) for ask in asks],
        entities,
        [settlement.claim.token for settlement in settlements],
        [settlement.outcome.value for settlement in settlements],
        _column((settlement.retry_in_us for settlement in settlements), default=0),
        *states,
        _column(None if letter is None else letter.raw for letter in letters),
        _column(None if letter is None else storable(letter.reason) for letter in letters),
        _column(None if letter is None else storable(letter.detail) for letter in letters),
    ]


def call(schema: str, function: str, number: int) -> str:
    """Write the call of a function with so many arguments."""
    return f"SELECT * FROM {schema}.{function}({', '.join(['%b'] * number)})"  # noqa: S608 - a checked name
