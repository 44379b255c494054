"""The secret that keys are hashed with: every ledger keeps one, or a check of the one it was given."""

from __future__ import annotations

import hmac
import secrets
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from oncebridge.errors import LedgerRefused

if TYPE_CHECKING:
    from collections.abc import Mapping

SECRET: Final = "secret"  # noqa: S105 - a name
CHECK: Final = "secret check"


def first_kept(secret: bytes | None) -> dict[str, bytes]:
    """Return the value that a new ledger keeps: its own secret, or a check of the given one."""
    return {CHECK: _check(secret)} if secret else {SECRET: secrets.token_bytes(32)}


def agreed(kept: Mapping[str, bytes], secret: bytes | None) -> bytes:
    """Return the secret that worker and ledger agree on, or refuse the worker."""
    own = kept.get(SECRET)
    if own is not None and (secret is None or hmac.compare_digest(own, secret)):
        return bytes(own)
    if own is None and secret is not None and hmac.compare_digest(kept[CHECK], _check(secret)):
        return secret
    given = "another secret" if secret else "no secret"
    raise LedgerRefused(
        f"this ledger was first opened with {'its own' if own else 'a'} secret, and this worker has {given}: every "
        "event would look fresh. Give it the same secret (ONCEBRIDGE_SECRET), or none if it made its own"
    )


def _check(secret: bytes) -> bytes:
    return blake2b(secret, digest_size=16, person=b"ob1 check").digest()
