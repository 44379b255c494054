"""A remote claim as a signed text: its client cannot change it, and any worker can read it.

The text holds keys, digests, the topic and the envelope's id, and nothing of the event's content.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from typing import Final

import msgspec
from msgspec.structs import asdict

from oncebridge.claim import Ask, Chain, Claim
from oncebridge.identity import Moment, digest
from oncebridge.sources.remote_claims import RemoteClaim

VERSION: Final = 2
#: With a mark of attendance: only where attendance is kept, so that elsewhere earlier workers read these texts too.
VERSION_WITH_MARK: Final = 3
MAC_BYTES: Final = 16


class _Claim2(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """The content of a text, version 2. A changed content needs another number: texts outlive a deployment."""

    token: int
    attempt: int
    lease_us: int
    lent_us: int
    raw: bytes
    key: bytes
    handler: str
    envelope: str | None
    content: bytes | None
    entity: bytes | None
    state: bytes | None
    times: tuple[int | None, ...]
    version: int | None
    echoes: bool
    echo_window_ns: int
    stale: bool
    topic: str
    time_ms: int | None
    shared_ms: int | None
    conversation: bytes | None
    user: bytes | None
    #: Of a state: its entity's claim.
    top: int
    data: bytes
    ran_out: bool
    now_us: int


class _Claim3(_Claim2, array_like=True, forbid_unknown_fields=True, frozen=True):
    """The content of a text, version 3."""

    mark: bytes


_encode = msgspec.msgpack.Encoder().encode
_DECODERS: Final = {
    VERSION: msgspec.msgpack.Decoder(_Claim2).decode,
    VERSION_WITH_MARK: msgspec.msgpack.Decoder(_Claim3).decode,
}


def sign_claim(secret: bytes, lent: RemoteClaim) -> str:
    """Return the text of a claim for its client."""
    claim, ask = lent.claim, lent.claim.ask
    chain = claim.chain or Chain(0)
    held = _Claim2(
        token=claim.token,
        attempt=claim.attempt,
        lease_us=lent.lease_us,
        lent_us=lent.lent_us,
        raw=lent.raw,
        key=ask.key,
        handler=ask.handler,
        envelope=ask.envelope,
        content=ask.content,
        entity=ask.entity,
        state=ask.state,
        times=ask.moment.times,
        version=ask.moment.version,
        echoes=ask.moment.echoes,
        echo_window_ns=ask.echo_window_ns,
        stale=ask.stale,
        topic=ask.topic,
        time_ms=ask.time_ms,
        shared_ms=ask.shared_ms,
        conversation=ask.conversation,
        user=ask.user,
        top=chain.top,
        data=chain.data,
        ran_out=chain.ran_out,
        now_us=chain.now_us,
    )
    version = VERSION
    if ask.mark:
        version, held = VERSION_WITH_MARK, _Claim3(**asdict(held), mark=ask.mark)
    data = bytes([version]) + _encode(held)
    return base64.urlsafe_b64encode(_mac(secret, data) + data).rstrip(b"=").decode()


def verify_claim(secret: bytes, text: str) -> RemoteClaim:
    """Return the claim of a text; raise ValueError, with a message for the client, if the signature is wrong."""
    try:
        signed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(_NOT_OURS) from None
    mac, data = signed[:MAC_BYTES], signed[MAC_BYTES:]
    if not data or not hmac.compare_digest(mac, _mac(secret, data)):
        raise ValueError(_NOT_OURS)
    if data[0] not in _DECODERS:
        raise ValueError("comes from another version of this service; let the claim run out, and claim again")
    return _lent(_DECODERS[data[0]](data[1:]))


_NOT_OURS: Final = "is not a claim of this ledger, or was cut or changed; send it exactly as it was answered"


def _mac(secret: bytes, data: bytes) -> bytes:
    return digest(secret, b"claim text", (data,))


def _lent(held: _Claim2) -> RemoteClaim:
    ask = Ask(
        key=held.key,
        handler=held.handler,
        envelope=held.envelope,
        content=held.content,
        entity=held.entity,
        state=held.state,
        moment=Moment(held.times, held.version, held.echoes),
        echo_window_ns=held.echo_window_ns,
        stale=held.stale,
        topic=held.topic,
        time_ms=held.time_ms,
        shared_ms=held.shared_ms,
        conversation=held.conversation,
        user=held.user,
        mark=held.mark if isinstance(held, _Claim3) else b"",
    )
    chain = Chain(held.top, held.data, held.ran_out, held.now_us) if held.top else None
    claim = Claim(ask, held.token, held.attempt, chain)
    return RemoteClaim(claim=claim, lease_us=held.lease_us, lent_us=held.lent_us, raw=held.raw)
