"""Sends events to a URL: one POST each, under a key that is the same however often it is tried.

HTTP allows no stronger promise: where an answer was lost the event is sent again, and takes effect once at a receiver
that remembers `Idempotency-Key`.
"""

from __future__ import annotations

import re
from datetime import UTC
from email.utils import parsedate_to_datetime
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Final

from oncebridge.breaker import Open
from oncebridge.errors import MissingExtra, PermanentError, RetryLater, SaysWhy
from oncebridge.settings.secrets import Secret
from oncebridge.sinks.addresses import read_endpoint
from oncebridge.sinks.event_tree import body_of
from oncebridge.sinks.promise import EFFECTIVELY_ONCE, SinkPromise

try:
    from oncebridge.sinks.exchange import Answer, Exchanges, ReceiverUnavailable
    from oncebridge.sinks.sign_in import SignIn, SignInRefused
except ModuleNotFoundError as error:
    if error.name != "urllib3":
        raise
    raise MissingExtra("sinks need urllib3; install it with: pip install 'oncebridge[http]'") from None

if TYPE_CHECKING:
    from oncebridge.event import Event
    from oncebridge.settings.sinks.webhook import WebhookSettings
    from oncebridge.sinks import SinkContext

#: However long a receiver asks to be left alone: one wrong header must not keep events back for days.
RETRY_AFTER_MAX: Final = 3600.0
SUCCESSES: Final = range(200, 300)
UNAUTHORIZED: Final = 401
#: Beside all of 5xx: others of 3xx and 4xx say that the same request will never be accepted.
PASSING: Final = frozenset({408, 409, 425, 429})
REFUSALS: Final = range(300, 500)
FAILURES: Final = range(500, 600)
#: These are about the receiver or a proxy in front of it, not about one event.
UNWELL: Final = frozenset({429, 502, 503, 504})


class ReceiverOverloaded(RetryLater, ReceiverUnavailable):
    """The receiver asks for a pause, or a proxy in front of it cannot reach it."""


class ReceiverDeferred(RetryLater, SaysWhy):
    """The receiver did not take this event now, and may do so later."""


class ReceiverFailed(ReceiverDeferred):
    """The receiver failed with this event; so it may do with every other."""


class ReceiverRefused(PermanentError, SaysWhy):
    """The receiver will never take this event as it is."""


class Webhook:
    """Posts each event to one URL. A pause that the receiver asks for is for this URL, its breaker for the host."""

    def __init__(self, settings: WebhookSettings, context: SinkContext) -> None:
        """Take the settings; nothing is connected before the first event."""
        self._clock = context.clock
        self._name = settings.name
        self._search = settings.body
        url = f"sink {settings.name}: url" if settings.name else "downstream_url"
        self._endpoint = read_endpoint(settings.url, url, private=settings.private_addresses)
        self._headers = _fixed_headers(settings)
        self._exchanges = Exchanges(
            self._endpoint,
            context.clock,
            timeout_seconds=settings.timeout_seconds,
            private_addresses=settings.private_addresses,
        )
        self._sign_in = _sign_in(settings, context)
        self._breaker = context.breakers.of(str(self._endpoint))
        self._not_before_us = 0

    @property
    def promise(self) -> SinkPromise:
        """How often an event takes effect there, and why."""
        why = (
            "an answer may be lost and the event sent again, under the same Idempotency-Key; that takes a receiver "
            "that honours the key for as long as retries may come, otherwise it is at least once"
        )
        return SinkPromise(EFFECTIVELY_ONCE, why)

    def __repr__(self) -> str:
        """Show the host, not the path or anything else that may be secret."""
        return f"<Webhook {self._name or 'downstream_url'} to {self._endpoint}>"

    def __call__(self, event: Event) -> None:
        """Post one event; return once the receiver has accepted it."""
        body = body_of(event, self._search)
        self._keep_pause()
        with self._breaker.attempt(ReceiverUnavailable, doubtful=(ReceiverFailed,), event=event.key):
            self._judge(self._posted(body, self._headers_of(event)))

    def _posted(self, body: bytes, headers: dict[str, str]) -> Answer:
        """Post with a token, if one is needed; one that is refused is renewed once."""
        if self._sign_in is None:
            return self._exchanges.post(body, headers)
        token = self._sign_in.token()
        answer = self._exchanges.post(body, {**headers, "Authorization": f"Bearer {token}"})
        if answer.status == UNAUTHORIZED:
            token = self._sign_in.token(refused=token)
            answer = self._exchanges.post(body, {**headers, "Authorization": f"Bearer {token}"})
            if answer.status == UNAUTHORIZED:
                raise SignInRefused(f"{self._endpoint} accepts no token of this client")
        return answer

    def close(self) -> None:
        """Close the connections; the sink may be used again."""
        self._exchanges.close()
        if self._sign_in is not None:
            self._sign_in.close()

    def _headers_of(self, event: Event) -> dict[str, str]:
        """Add the event's key, token and attempt, all made by ourselves, to the fixed headers."""
        return {
            **self._headers,
            # Two sinks at one host are two effects.
            "Idempotency-Key": f"{event.key}.{self._name}" if self._name else event.key,
            "Oncebridge-Token": str(event.token),
            "Oncebridge-Attempt": str(event.attempt),
        }

    def _keep_pause(self) -> None:
        """Do not call a receiver that has asked for a pause."""
        left_us = self._not_before_us - self._clock.monotonic_us()
        if left_us > 0:
            raise Open(1, left_us, f"{self._endpoint} asked for a pause")

    def _judge(self, answer: Answer) -> None:
        """Turn an answer into the end of an attempt."""
        if answer.status in SUCCESSES:
            return
        words = f"{self._endpoint} answered {answer.status}"
        if answer.status in REFUSALS and answer.status not in PASSING:
            raise ReceiverRefused(words)
        seconds = seconds_to_wait(answer.retry_after, self._clock.now_us())
        if answer.status not in UNWELL:
            kind = ReceiverFailed if answer.status in FAILURES else ReceiverDeferred
            raise kind(words, after_seconds=seconds)
        self._not_before_us = max(self._not_before_us, self._clock.monotonic_us() + int(seconds * 1_000_000))
        raise ReceiverOverloaded(words, after_seconds=seconds)


def seconds_to_wait(retry_after: str | None, now_us: int) -> float:
    """Read `Retry-After`: seconds or a date; what makes no sense, or is over already, is no wish."""
    if retry_after is None or len(retry_after) > _RETRY_AFTER_LENGTH_MAX:
        return 0.0
    if _SECONDS.fullmatch(retry_after):
        return min(float(retry_after), RETRY_AFTER_MAX)
    try:
        moment = parsedate_to_datetime(retry_after)
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        seconds = moment.timestamp() - now_us / 1_000_000
    except (ValueError, TypeError, IndexError, OverflowError):
        return 0.0
    return min(max(seconds, 0.0), RETRY_AFTER_MAX)


_SECONDS: Final = re.compile(r"[0-9]+")
_RETRY_AFTER_LENGTH_MAX: Final = 40  # a date has 29


def _sign_in(settings: WebhookSettings, context: SinkContext) -> SignIn | None:
    oauth = settings.oauth
    if oauth is None:
        return None
    private = settings.private_addresses
    return SignIn(
        read_endpoint(oauth.token_url, f"sink {settings.name}: oauth token_url", private=private),
        oauth.client_id,
        oauth.client_secret,
        context.clock,
        scope=oauth.scope,
        timeout_seconds=settings.timeout_seconds,
        private_addresses=private,
    )


def _fixed_headers(settings: WebhookSettings) -> dict[str, str]:
    headers: dict[str, Any] = {"Content-Type": "application/json", "User-Agent": f"oncebridge/{_version()}"}
    headers |= dict(settings.headers)
    if settings.bearer is not None:
        headers["Authorization"] = f"Bearer {settings.bearer.value}"
    if settings.api_key is not None:
        headers[settings.api_key_header] = settings.api_key
    return {name: value.value if isinstance(value, Secret) else value for name, value in headers.items()}


def _version() -> str:
    try:
        return version("oncebridge")
    except PackageNotFoundError:  # run from sources, not installed
        return "0"
