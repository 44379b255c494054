"""The agreement of a ledger's workers, in one hash of the server: its secret, its shards, and its mark.

The mark is in every shard too, and each claim compares it. So the next claim notices a server that was restarted empty,
or was emptied by hand, whether connections were cut or not. Workers that were running before write the agreement again,
so that later ones make the same keys.
"""

from __future__ import annotations

import secrets
from itertools import chain
from typing import TYPE_CHECKING, Final

from oncebridge.errors import LedgerRefused
from oncebridge.ledgers.redis.scripts import script
from oncebridge.ledgers.secret import CHECK, SECRET, agreed, first_kept

if TYPE_CHECKING:
    from oncebridge.ledgers.redis.address import Address
    from oncebridge.ledgers.redis.calls import Calls

#: Of the keys. Those of the first layout have other names, and are never read.
LAYOUT: Final = 2
SHARDS: Final = {"single": 1, "sentinel": 1, "cluster": 16}
_MARK: Final = b"mark"


class Agreement:
    """The agreement of this worker and the others."""

    def __init__(self, address: Address, calls: Calls, secret: bytes | None) -> None:
        """Read the agreement that the first worker wrote; write it if this one is the first."""
        self._address = address
        first = {name.encode(): value for name, value in first_kept(secret).items()}
        shards = b"%d" % SHARDS[address.kind]
        self._kept = self._agree(
            calls, {b"layout": b"%d" % LAYOUT, b"shards": shards, _MARK: secrets.token_hex(8).encode(), **first}
        )
        self._check_layout(int(self._kept[b"layout"]))
        names = {name.decode(): value for name, value in self._kept.items()}
        self.secret = agreed({name: names[name] for name in (SECRET, CHECK) if name in names}, secret)
        self.prefixes = _prefixes(address, int(self._kept[b"shards"]))

    def _check_layout(self, layout: int) -> None:
        """Refuse a ledger whose keys this version would misread; nothing has been written by then."""
        if layout > LAYOUT:
            raise LedgerRefused("this Redis ledger was written by a newer Oncebridge; update this one")
        if layout < LAYOUT:
            name = self._address.name
            raise LedgerRefused(
                f"{self._address!r}: the ledger {name!r} was written by an older Oncebridge, in a layout that this one "
                f"cannot read. Nothing was changed. Give this one a ledger of its own, such as ?name={name[:62]}-2 in "
                "the URL, once the older workers have ended; their dead letters stay where they are, for the version "
                "that wrote them"
            )

    @property
    def mark(self) -> bytes:
        """Return the mark that distinguishes this ledger from one that was started over."""
        return self._kept.get(_MARK, b"")

    def renew(self, calls: Calls) -> bool:
        """Write the agreement again; return whether it is still valid, since others may have made another by now."""
        found = self._agree(calls, self._kept)
        if _without_mark(found) != _without_mark(self._kept):
            return False
        self._kept = found
        calls.run(script("begin"), [(prefix, [self.mark]) for prefix in self.prefixes])
        return True

    def _agree(self, calls: Calls, ours: dict[bytes, bytes]) -> dict[bytes, bytes]:
        """Write ours if there is none yet, and return the valid one. Atomic, since it is one script."""
        meta = _meta(self._address)
        (found,) = calls.run(script("open"), [(meta, [*chain.from_iterable(ours.items())])])
        return dict(zip(found[::2], found[1::2], strict=True))


def was_made(address: Address, calls: Calls) -> bool:
    """Return whether there is an agreement; none is written."""
    meta = _meta(address)
    return bool(calls.command(meta, b"EXISTS", meta))


def prefixes_of(address: Address, calls: Calls) -> list[bytes]:
    """Return what the keys of each shard begin with; none if there is no ledger, or one of another layout."""
    meta = _meta(address)
    layout, shards = calls.command(meta, b"HMGET", meta, b"layout", b"shards")
    return _prefixes(address, int(shards)) if layout == b"%d" % LAYOUT else []


def _prefixes(address: Address, shards: int) -> list[bytes]:
    # A cluster chooses the slot by the part in braces.
    return [f"{base_of(address)}.{shard}}}{LAYOUT}:".encode() for shard in range(shards)]


def _meta(address: Address) -> bytes:
    return f"{base_of(address)}}}:meta".encode()


def base_of(address: Address) -> str:
    """Return the text that every key of a ledger starts with."""
    return f"ob:{{{address.name}"


def _without_mark(kept: dict[bytes, bytes]) -> dict[bytes, bytes]:
    return {name: value for name, value in kept.items() if name != _MARK}
