"""The arguments of the ledger's functions and their answers: one array for each field."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from oncebridge.claim import Answer, Chain, Status, Verdict
from oncebridge.ledgers import DAY_MS
from oncebridge.ledgers.grants import Entity, Record
from oncebridge.ledgers.postgres.arrays import Bigints, Booleans, Bytes, Integers, Texts

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from oncebridge.claim import Ask, Claim, Settlement

_Name = TypeVar("_Name", bytes, tuple[bytes, int])
_Values = TypeVar("_Values", bound="list[Any]")

UNDATED: Final = -1
_DAY_MAX: Final = 2**31 - 1

#: The word of `claim_batch` for an ask -> its verdict.
_VERDICTS: Final = {
    **{verdict.value: verdict for verdict in Verdict},
    "claimed": Verdict.FRESH,
    "own": Verdict.FRESH,
    "alone": Verdict.FRESH,
    "waits": Verdict.BUSY,
    "unknown": Verdict.REPUBLISH,
}
_GRANTED: Final = frozenset({"claimed", "own"})
_DUPLICATES: Final = frozenset({"redelivery", "republish"})
_STATUSES: Final = {status.value: status for status in Status}


def day_of(ask: Ask) -> int:
    """Return the day under which an event is kept: the same for all its deliveries."""
    if ask.home is not None:
        return int.from_bytes(ask.home, "big", signed=True)  # as int4send writes it
    if ask.shared_ms is None:
        return UNDATED
    return max(UNDATED, min(ask.shared_ms // DAY_MS, _DAY_MAX))


def storable(text: str | None) -> str | None:
    """Return a text that Postgres can keep: it rejects U+0000 and surrogate halves."""
    if text is None or (text.isascii() and "\0" not in text):
        return text
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\N{SYMBOL FOR NULL}")


def in_order(asks: Sequence[Ask]) -> list[int]:
    """Return the places in the order of their keys: calls that lock in one order never deadlock."""
    return sorted(range(len(asks)), key=lambda place: (asks[place].key, asks[place].handler))


def back_in_place(order: Iterable[int], answers: Iterable[Any]) -> list[Any]:
    """Return answers in the order of the asks."""
    return [answer for _, answer in sorted(zip(order, answers, strict=True), key=lambda pair: pair[0])]


def _unless_all(default: Any, values: _Values) -> _Values | None:
    """Return a column; None if all values are the default, which most are."""
    return None if all(value is default for value in values) else values


def _numbered(names: Sequence[_Name | None]) -> tuple[Integers | None, list[_Name]]:
    """Number entities from 1 in the order of their keys; return the number at each place, and the entities."""
    distinct = sorted({name for name in names if name is not None})
    numbers = {name: number for number, name in enumerate(distinct, 1)}
    return (Integers([None if name is None else numbers[name] for name in names]) if distinct else None), distinct


def claim_arguments(asks: Sequence[Ask], order: Sequence[int], nonce: bytes, lease_us: int) -> list[Any]:
    """Return the arguments of `claim_batch`, for asks in the order of their keys and the places they came from."""
    chains, entities = _numbered([ask.entity for ask in asks])
    return [
        Integers([day_of(ask) for ask in asks]),
        Bytes([ask.key for ask in asks]),
        Texts([storable(ask.handler) for ask in asks]),
        Texts([storable(ask.envelope) for ask in asks]),
        _unless_all(None, Bytes([ask.content for ask in asks])),
        chains,
        Integers(order) if entities else None,
        _unless_all(False, Booleans([ask.alone for ask in asks])),
        _unless_all(False, Booleans([ask.redrive for ask in asks])),
        Bytes(entities) if entities else None,
        Texts([storable(ask.topic) for ask in asks]),
        Bigints([ask.time_ms for ask in asks]),
        _unless_all(None, Bytes([ask.conversation for ask in asks])),
        _unless_all(None, Bytes([ask.user for ask in asks])),
        nonce,
        lease_us,
    ]


def answers(row: Sequence[Any], asks: Sequence[Ask]) -> list[Answer]:
    """Read the answers of `claim_batch`: one to each ask, and one to each entity."""
    numbers, _ = _numbered([ask.entity for ask in asks])
    *asked, tops, run_outs, datas, now_us = row
    chains = [
        Chain(top, data, ran_out, now_us)
        for top, data, ran_out in zip(tops or (), datas or (), run_outs or (), strict=True)
    ]
    found = []
    for place, (move, token, attempt, of, was, busy_us) in enumerate(zip(*asked, strict=True)):
        number = numbers[place] if numbers and move in _GRANTED else None
        found.append(
            Answer(
                _VERDICTS[move],
                token,
                attempt,
                of,
                _STATUSES[was] if move in _DUPLICATES else None,
                busy_us,
                None if number is None else chains[number - 1],
            )
        )
    return found


def _name_of(claim: Claim) -> tuple[bytes, int] | None:
    """Return the key of a claimed entity, with its chain's top token."""
    return None if claim.chain is None or claim.ask.entity is None else (claim.ask.entity, claim.chain.top)


class Extension:
    """The extension of some claims: one by one for facts, one for each chain."""

    def __init__(self, claims: Sequence[Claim]) -> None:
        """Separate facts and chains."""
        self._claims = claims
        self._names = [_name_of(claim) for claim in claims]
        _, self._chains = _numbered(self._names)
        facts = {
            (claim.ask.key, claim.ask.handler, claim.token): claim
            for claim, name in zip(claims, self._names, strict=True)
            if name is None
        }
        self._facts = sorted(facts.items(), key=lambda pair: pair[0])

    def arguments(self, lease_us: int) -> list[Any]:
        """Return the arguments of `extend_batch`."""
        asks = [claim.ask for _, claim in self._facts]
        return [
            Integers([day_of(ask) for ask in asks]),
            Bytes([ask.key for ask in asks]),
            Texts([storable(ask.handler) for ask in asks]),
            Bigints([claim.token for _, claim in self._facts]),
            Bytes([entity for entity, _ in self._chains]),
            Bigints([top for _, top in self._chains]),
            lease_us,
        ]

    def answers(self, row: Sequence[Any]) -> list[bool]:
        """Read the answers of `extend_batch`."""
        kept, held = row
        in_force = {name for (name, _), ok in zip(self._facts, kept or (), strict=True) if ok}
        chains = {name for name, ok in zip(self._chains, held or (), strict=True) if ok}
        return [
            (claim.ask.key, claim.ask.handler, claim.token) in in_force if name is None else name in chains
            for claim, name in zip(self._claims, self._names, strict=True)
        ]


def settle_arguments(settlements: Sequence[Settlement], order: Sequence[int]) -> list[Any]:
    """Return the arguments of `settle_batch`, for settlements in the order of keys and the places they came from."""
    claims = [settlement.claim for settlement in settlements]
    asks = [claim.ask for claim in claims]
    letters = [settlement.letter for settlement in settlements]
    chains, entities = _numbered([_name_of(claim) for claim in claims])
    return [
        Integers([day_of(ask) for ask in asks]),
        Bytes([ask.key for ask in asks]),
        Texts([storable(ask.handler) for ask in asks]),
        Bigints([claim.token for claim in claims]),
        Texts([settlement.outcome.value for settlement in settlements]),
        _unless_all(0, Bigints([settlement.retry_in_us for settlement in settlements])),
        chains,
        Integers(order) if entities else None,
        Bytes([settlement.data for settlement in settlements]) if entities else None,
        Booleans([not settlement.frees for settlement in settlements]) if entities else None,
        Bytes([entity for entity, _ in entities]) if entities else None,
        Bigints([top for _, top in entities]) if entities else None,
        _unless_all(None, Bytes([None if letter is None else letter.raw for letter in letters])),
        _unless_all(None, Texts([None if letter is None else storable(letter.reason) for letter in letters])),
        _unless_all(None, Texts([None if letter is None else storable(letter.detail) for letter in letters])),
    ]


def call(schema: str, function: str, number: int) -> str:
    """Write the call of a function with this many arguments."""
    return f"SELECT * FROM {schema}.{function}({', '.join(['%b'] * number)})"  # nosec B608 # a checked name


# --- rows that a look reads ------------------------------------------------------------------------------


def record(status: str, rest: Sequence[Any]) -> Record:
    """Read the record of an event from its columns, in the order of the fields."""
    names = Record.__struct_fields__[1:]
    return Record(status=_STATUSES[status], **dict(zip(names, rest, strict=True)))


def entity(columns: Sequence[Any]) -> Entity:
    """Read an entity from its columns, in the order of the fields."""
    return Entity(**dict(zip(Entity.__struct_fields__, columns, strict=True)))
