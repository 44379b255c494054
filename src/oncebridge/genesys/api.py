"""Calls of Genesys Cloud's API: signed in, tried again where that helps, and no faster than Genesys wants."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from oncebridge.clock import NEVER
from oncebridge.errors import ConfigurationError, MissingExtra, OncebridgeError
from oncebridge.genesys.conversations import AnswerUnreadable
from oncebridge.retry import RetryPolicy
from oncebridge.settings.genesys import PERMISSION
from oncebridge.sinks.addresses import AddressForbidden, read_endpoint

try:
    from oncebridge.sinks.exchange import Answer, Exchanges, ReceiverUnavailable, ReceiverUnreachable
    from oncebridge.sinks.sign_in import SignIn, SignInRefused
    from oncebridge.sinks.webhook import seconds_to_wait
except ModuleNotFoundError as error:
    if error.name != "urllib3":
        raise
    raise MissingExtra("asking Genesys Cloud needs urllib3; install it with: pip install 'oncebridge[http]'") from None

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from oncebridge.clock import Clock
    from oncebridge.settings.genesys import GenesysSettings
    from oncebridge.sinks.addresses import Endpoint

T = TypeVar("T")

ANSWER_BYTES_MAX: Final = 256 * 1_048_576
TIMEOUT_SECONDS: Final = 60.0
RETRIES: Final = RetryPolicy(attempts=8, base_seconds=1.0, growth=2.0, cap_seconds=60.0)
#: Answers "too many requests" in a row: each says how long to wait, so they are no failures.
PAUSES_MAX: Final = 60
_UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND, _GONE, _TOO_MANY = 401, 403, 404, 410, 429
_SUCCESSES: Final = range(200, 300)
_FAILURES: Final = range(500, 600)


class GenesysUnavailable(OncebridgeError):
    """Genesys Cloud cannot be asked now; what was read is kept, so run the same again later."""


class NotThere(OncebridgeError):
    """Genesys Cloud does not know what was asked for, or no longer."""


class Rejected(ConfigurationError):
    """Genesys Cloud does not take a question as it is."""


class Stopped(OncebridgeError):
    """The run was stopped; what was read is kept, so run the same again to go on."""


class GenesysAPI:
    """Asks one region of Genesys Cloud."""

    def __init__(
        self,
        settings: GenesysSettings,
        clock: Clock,
        *,
        stopping: threading.Event = NEVER,
        tell: Callable[[str], None] = lambda _: None,
        retries: RetryPolicy = RETRIES,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        """Take the settings; nothing is connected before the first call. `tell` is told of long waits."""
        client_id, client_secret = settings.client()
        self._clock, self._stopping, self._tell, self._retries = clock, stopping, tell, retries
        self._api = _endpoint(settings.api_url or f"https://api.{settings.region}", "api_url")
        login = _endpoint(settings.login_url or f"https://login.{settings.region}", "login_url")
        if not login.target.endswith("/oauth/token"):
            login = login._replace(target=f"{login.target.rstrip('/')}/oauth/token")
        private = {"timeout_seconds": timeout_seconds, "private_addresses": True}  # the operator chose these URLs
        self._exchanges = Exchanges(self._api, clock, timeout_seconds=timeout_seconds, private_addresses=True)
        self._sign_in = SignIn(login, client_id, client_secret, clock, **private)  # type: ignore[arg-type]
        #: Whether a token was ever accepted: the client is the right one then, and a refusal passes.
        self._was_accepted = False
        #: How many calls were made, sign-ins not counted.
        self.calls = 0

    def close(self) -> None:
        """Close connections."""
        self._exchanges.close()
        self._sign_in.close()

    def get(self, path: str, read: Callable[[bytes], T]) -> T:
        """Ask for something; an answer that `read` cannot read was cut off, and is asked for again."""
        return self._asked("GET", path, None, read)

    def post(self, path: str, question: Any, read: Callable[[bytes], T]) -> T:
        """Ask with a question in the body. It changes nothing there, so it may be asked again."""
        return self._asked("POST", path, msgspec.json.encode(question), read)

    def wait(self, seconds: float) -> None:
        """Wait, unless the run is stopped."""
        if self._clock.wait(self._stopping, seconds):
            raise Stopped

    def _asked(self, method: str, path: str, body: bytes | None, read: Callable[[bytes], T]) -> T:
        attempt, pauses = 1, 0
        while True:
            if self._stopping.is_set():
                raise Stopped
            try:
                answer = self._signed(method, path, body)
                if answer.status in _SUCCESSES:
                    return read(answer.body)
                if answer.status == _TOO_MANY and pauses < PAUSES_MAX and self._retries.attempts > 1:
                    pauses += 1
                    self._pause(answer, pauses)
                    continue
                why = self._judged(answer, path)
            except SignInRefused as error:
                raise ConfigurationError(f"[genesys] client_id, client_secret: {error}") from None
            except AddressForbidden as error:
                raise ConfigurationError(f"[genesys] {error}") from None
            except (ReceiverUnavailable, AnswerUnreadable) as error:
                why = str(error)
                if isinstance(error, ReceiverUnreachable) and not self._was_accepted:
                    why += "; are region, login_url and api_url of [genesys] right?"
            if self._retries.is_last(attempt):
                raise GenesysUnavailable(f"Genesys Cloud cannot be asked: {why}")
            self.wait(self._retries.delay_seconds(attempt))
            attempt += 1

    def _signed(self, method: str, path: str, body: bytes | None) -> Answer:
        """Make one call; a token that is refused is renewed once."""
        token = self._sign_in.token()
        answer = self._call(method, path, body, token)
        if answer.status == _UNAUTHORIZED:
            answer = self._call(method, path, body, self._sign_in.token(refused=token))
        if answer.status in _SUCCESSES:
            self._was_accepted = True
        elif answer.status == _UNAUTHORIZED and not self._was_accepted:
            raise SignInRefused(f"{self._api} accepts no token of this client")
        return answer

    def _call(self, method: str, path: str, body: bytes | None, token: str) -> Answer:
        self.calls += 1
        headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        return self._exchanges.ask(method, self._api.target.rstrip("/") + path, body, headers, ANSWER_BYTES_MAX)

    def _pause(self, answer: Answer, pauses: int) -> None:
        asked = seconds_to_wait(answer.retry_after, self._clock.now_us())
        seconds = max(asked, self._retries.delay_seconds(min(pauses, self._retries.attempts)) if not asked else 0.0)
        self._tell(f"Genesys asks for a pause of {seconds:.0f} s")
        self.wait(seconds)

    def _judged(self, answer: Answer, path: str) -> str:
        """Return what is wrong with an answer that another try may mend; raise for any other."""
        where = path.partition("?")[0]
        if answer.status == _FORBIDDEN:
            raise ConfigurationError(
                f"[genesys] {self._api} does not allow this client {where}; give its role {PERMISSION}, in all "
                "divisions"
            )
        if answer.status in (_NOT_FOUND, _GONE):
            raise NotThere(f"[genesys] {self._api} has no {where}; is api_url right?")
        if answer.status not in _FAILURES and answer.status not in (_UNAUTHORIZED, 408, _TOO_MANY):
            raise Rejected(f"[genesys] {self._api} refuses {where} ({answer.status}); is api_url right?")
        return f"{self._api} answered {answer.status}"


def _endpoint(url: str, setting: str) -> Endpoint:
    return read_endpoint(url, f"[genesys] {setting}", private=True)
