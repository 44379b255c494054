"""Signs in with OAuth client credentials: one token for all who ask, renewed before it ends or when it is refused."""

from __future__ import annotations

import base64
import re
import threading
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

import msgspec

from oncebridge import forks
from oncebridge.sinks.exchange import AnswerLost, Exchanges, ReceiverTimedOut, ReceiverUnavailable, ReceiverUnreachable

if TYPE_CHECKING:
    from oncebridge.clock import Clock
    from oncebridge.settings.secrets import Secret
    from oncebridge.sinks.addresses import Endpoint

ANSWER_BYTES_MAX: Final = 65_536
#: Where an answer does not say how long its token is valid.
VALID_SECONDS: Final = 600
#: A token is not used for the last tenth of its time, nor for the last minute of a long one.
_LAST_TENTH: Final = 0.9
_LAST_SECONDS: Final = 60
_OK: Final = 200
_REFUSALS: Final = frozenset({400, 401, 403})
_TOKEN: Final = re.compile(r"[\x21-\x7e]{1,16384}")


class SignInRefused(ReceiverUnavailable):
    """The sign-in does not take this client; nothing can be sent before its id and secret are right."""


class _Granted(msgspec.Struct):
    access_token: str
    expires_in: float | None = None


_granted = msgspec.json.Decoder(_Granted, strict=False).decode


class SignIn:
    """Client credentials at one endpoint; may be used from several threads at once."""

    def __init__(
        self,
        endpoint: Endpoint,
        client_id: str,
        client_secret: Secret,
        clock: Clock,
        *,
        scope: str = "",
        timeout_seconds: float,
        private_addresses: bool,
    ) -> None:
        """Take where to sign in and as whom; nothing is connected before the first token is needed."""
        self._endpoint = endpoint
        self._clock = clock
        self._exchanges = Exchanges(
            endpoint, clock, timeout_seconds=timeout_seconds, private_addresses=private_addresses
        )
        basic = base64.b64encode(f"{client_id}:{client_secret.value}".encode()).decode()
        self._headers = {
            "Authorization": f"Basic {basic}",
            "Content-Type": "application/x-www-form-urlencoded",
            "Accept": "application/json",
        }
        form = {"grant_type": "client_credentials", **({"scope": scope} if scope else {})}
        self._body = urlencode(form).encode()
        self._lock = threading.Lock()
        self._token: str | None = None
        self._until_us = 0
        forks.register(self)

    def __repr__(self) -> str:
        """Show where, and neither as whom nor with what."""
        return f"<SignIn at {self._endpoint}>"

    def before_fork(self) -> None:
        """Do nothing: the child has a lock of its own."""

    def after_fork(self, *, in_child: bool) -> None:
        """Begin in a child with a free lock; the token stays valid."""
        if in_child:
            self._lock = threading.Lock()

    def token(self, *, refused: str | None = None) -> str:
        """Return a valid token; `refused` is one that was not accepted, so that another one is needed."""
        with self._lock:
            token = self._token
            if token is None or token == refused or self._clock.monotonic_us() >= self._until_us:
                self._token = None
                token, seconds = self._renewed()
                usable = max(seconds * _LAST_TENTH, seconds - _LAST_SECONDS)
                self._token, self._until_us = token, self._clock.monotonic_us() + int(usable * 1_000_000)
            return token

    def close(self) -> None:
        """Close connections."""
        self._exchanges.close()

    def _renewed(self) -> tuple[str, float]:
        try:
            answer = self._exchanges.ask("POST", self._endpoint.target, self._body, self._headers, ANSWER_BYTES_MAX)
        except (ReceiverTimedOut, AnswerLost):
            raise ReceiverUnreachable(f"{self._endpoint} did not answer the sign-in, so nothing was sent") from None
        if answer.status in _REFUSALS:
            raise SignInRefused(
                f"{self._endpoint} refuses the sign-in ({answer.status}): client id or secret are wrong, or of another "
                "region"
            )
        if answer.status != _OK:
            raise ReceiverUnavailable(f"{self._endpoint} answered the sign-in with {answer.status}")
        try:
            granted = _granted(answer.body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise ReceiverUnavailable(f"{self._endpoint} answered the sign-in with no token") from None
        if not _TOKEN.fullmatch(granted.access_token):
            raise ReceiverUnavailable(f"{self._endpoint} answered the sign-in with no valid token")
        seconds = granted.expires_in
        return granted.access_token, VALID_SECONDS if seconds is None or seconds <= 0 else min(seconds, 86_400 * 30)
