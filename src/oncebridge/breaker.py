"""The one circuit breaker, and the one way to say that something is out of reach and that it is back.

Closed, a breaker lets every call through. After several failures in a row it opens and refuses at once, so that no
call waits in vain. After a while it lets one call through as a probe: a success closes the breaker, a failure opens it
for twice as long. It has no thread, and knows time only from its clock.

A failure may be about the other side, or about the one event that was sent there. Where that is in doubt, an event
counts once however often it fails: several events in a row open the breaker, one event alone never does.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from oncebridge import forks
from oncebridge.errors import RetryLater, SaysWhy
from oncebridge.interrupts import was_raised_by_signal
from oncebridge.retry import RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncebridge.clock import Clock

OPEN_FOR: Final = RetryPolicy(base_seconds=0.5, growth=2, cap_seconds=10.0)


class Open(SaysWhy):
    """The breaker is open: the call was not made, or only as a probe. Raised inside the bridge only."""

    def __init__(self, failures: int, retry_in_us: int, last: str, *, was_called: bool = False) -> None:
        """Take how often it failed in a row, the last failure, when the next call is due, and whether one was made."""
        super().__init__(f"failed {failures} times in a row, tried next in {retry_in_us / 1e6:.1f} s: {last}")
        self.failures = failures
        self.retry_in_us = retry_in_us
        self.last = last
        self.was_called = was_called


class NoAttempt(SaysWhy):
    """The other side would fail like this for every event, so none has used up an attempt."""


class Outage:
    """Whether something is out of reach: reported once when that begins, and once when it ends."""

    def __init__(self, say: Callable[[str], None], over: str, *, prefix: str = "") -> None:
        """Take the function that reports it, the words for the end, and the words before each reason."""
        self._say = say
        self._over = over
        self._prefix = prefix
        self._since_us: int | None = None
        self._lock = threading.Lock()
        forks.free_locks(self, "_lock")

    def __bool__(self) -> bool:
        """Whether it lasts."""
        return self._since_us is not None

    def began(self, words: str, now_us: int) -> None:
        """Note a call that failed."""
        with self._lock:
            said, self._since_us = bool(self), now_us
        if not said:
            self._say(self._prefix + words)

    def answered(self, asked_us: int) -> None:
        """Note an answer; one to a call made before the last failure says nothing about the time since."""
        if self._since_us is None:
            return  # nearly always
        with self._lock:
            over = self._since_us is not None and asked_us >= self._since_us
            if over:
                self._since_us = None
        if over:
            self._say(self._over)

    def forget(self) -> None:
        """Start over, without a report."""
        self._since_us = None


class Breaker:
    """Guards calls to one other side; may be shared by threads."""

    def __init__(
        self,
        clock: Clock,
        *,
        failures: int = 3,
        open_for: RetryPolicy = OPEN_FOR,
        outage: Outage | None = None,
    ) -> None:
        """Take the failures in a row that open it, and for how long: from half the policy's ceiling to all of it.

        `outage` begins when it opens, and ends when it closes.
        """
        self._clock = clock
        self._limit = failures
        self._outage = Outage(lambda _: None, "") if outage is None else outage
        self._open_for = open_for
        self._base_us = int(open_for.base_seconds * 1_000_000)
        # A probe that never returns is given up after this time, and the next call becomes the probe.
        self._probe_us = int(open_for.cap_seconds * 1_000_000)
        self._lock = threading.Lock()
        forks.register(self)
        #: In a row.
        self._failures = 0
        #: The events among them whose failure may be their own.
        self._doubted: set[str] = set()
        self._openings = 0  # 0: closed
        self._again_us = 0
        self._probing = False
        #: Counts changes, so that the failure of a call made before the last change is ignored.
        self._turn = 0
        #: In words only: an exception would keep alive everything that its frames hold.
        self._last = ""

    def before_fork(self) -> None:
        """Do nothing: the parent keeps its state."""

    def after_fork(self, *, in_child: bool) -> None:
        """Begin closed in the child: it has connections of its own."""
        if in_child:
            self._lock = threading.Lock()
            self._failures = self._openings = 0
            self._doubted.clear()
            self._probing = False
            self._turn += 1
            self._outage.forget()

    def __repr__(self) -> str:
        """Show whether it is open."""
        return f"<Breaker {'open' if self._openings else 'closed'} after {self._failures} failures in a row>"

    @property
    def is_open(self) -> bool:
        """Whether the last call failed to reach the other side: a call that is let through is a probe."""
        return self._openings > 0

    @property
    def is_failing(self) -> bool:
        """Whether the last call that had an end has failed, be it the first one to do so."""
        return self._failures > 0

    @property
    def retry_in_us(self) -> int:
        """How long calls are refused from now on; 0 if one would be let through."""
        with self._lock:
            return self._refused_us(self._clock.monotonic_us())

    def call(self, *failures: type[Exception]) -> _Guard:
        """Guard one call: these exceptions are failures, any other end is an answer. Raises `Open` instead of calling.

        An interrupt (`KeyboardInterrupt` and the like) is neither, and gives a probe back.
        """
        return _Guard(self, failures, may_refuse=True)

    def attempt(
        self, *failures: type[Exception], doubtful: tuple[type[Exception], ...] = (), event: str = ""
    ) -> _Guard:
        """Guard an attempt at an event, as `call` does, and raise `Open` if the event has not used it up.

        That is a failed probe, and a failure that every event would get (`NoAttempt`). A doubtful failure may be about
        the event, which `event` names.
        """
        return _Guard(self, failures, may_refuse=True, spares_attempts=True, doubtful=doubtful, event=event)

    def informed_by(self, *failures: type[Exception]) -> _Guard:
        """Learn from a call that must be made whether or not the breaker is open."""
        return _Guard(self, failures, may_refuse=False)

    def enter(self, *, may_refuse: bool) -> int:
        """Let a call through, or raise; return the turn that it belongs to."""
        with self._lock:
            if self._openings and may_refuse:
                now_us = self._clock.monotonic_us()
                refused_us = self._refused_us(now_us)
                if refused_us:
                    raise Open(self._failures, refused_us, self._last)
                self._probing = True
                self._again_us = now_us + self._probe_us
                self._turn += 1
            return self._turn

    def _refused_us(self, now_us: int) -> int:
        if not self._openings:
            return 0
        left_us = max(0, self._again_us - now_us)
        return min(left_us, self._base_us) if self._probing else left_us  # a probe usually returns much sooner

    def answered(self) -> None:
        """Close: the other side has answered some call."""
        if not self._failures:  # nearly always
            return
        with self._lock:
            if self._failures:
                was_open = self.is_open
                self._failures = self._openings = 0
                self._doubted.clear()
                self._probing = False
                self._turn += 1
                self._last = ""
                if was_open:
                    self._outage.answered(self._clock.monotonic_us())

    def failed(self, turn: int, words: str, event: str | None = None) -> None:
        """Count a failure, and open if it is one too many; `event` is named where it may be its own."""
        with self._lock:
            if turn != self._turn:
                return  # called before the last change, so it says nothing about the time since
            if event is not None and not self._openings:
                if event in self._doubted:
                    return  # nothing new: it failed before
                self._doubted.add(event)
            self._failures += 1
            self._last = words
            now_us = self._clock.monotonic_us()
            waiting = self._openings and not self._probing and now_us < self._again_us
            if not waiting and (self._openings or self._failures >= self._limit):
                self._openings += 1
                self._probing = False
                self._again_us = now_us + self._draw_us()
                self._turn += 1
                if self._openings == 1:
                    self._outage.began(words, now_us)

    def _draw_us(self) -> int:
        """Draw how long to stay open: not all workers should probe at the same moment."""
        return int(self._open_for.delay_seconds(self._openings) * 1_000_000)

    def spared(self, error: Exception) -> Open:
        """Make the error for a failure that is no attempt; it has the reason, and when the next call may be made."""
        asked_us = int(error.after_seconds * 1_000_000) if isinstance(error, RetryLater) else 0
        retry_in_us = max(self.retry_in_us, self._base_us, asked_us)
        return Open(max(1, self._failures), retry_in_us, str(error), was_called=True)

    def interrupted(self, turn: int) -> None:
        """Give back a probe that ended without an answer."""
        with self._lock:
            if self._probing and turn == self._turn:
                self._probing = False
                self._again_us = self._clock.monotonic_us()


class _Guard:
    """Wraps one call. A class rather than a generator: every delivery passes it."""

    __slots__ = (
        "_breaker",
        "_certain",
        "_event",
        "_failures",
        "_is_probe",
        "_may_refuse",
        "_spares_attempts",
        "_turn",
    )

    def __init__(
        self,
        breaker: Breaker,
        failures: tuple[type[Exception], ...],
        *,
        may_refuse: bool,
        spares_attempts: bool = False,
        doubtful: tuple[type[Exception], ...] = (),
        event: str = "",
    ) -> None:
        self._breaker = breaker
        #: The event whose failure counts once; failures of the first kinds count each time.
        self._event = event
        self._certain = failures
        self._failures = failures + doubtful
        self._may_refuse = may_refuse
        self._spares_attempts = spares_attempts
        self._is_probe = False
        self._turn = 0

    def __enter__(self) -> None:
        self._turn = self._breaker.enter(may_refuse=self._may_refuse)
        self._is_probe = self._breaker.is_open

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None:
            self._breaker.answered()
        elif isinstance(error, self._failures):
            event = None if isinstance(error, self._certain) else self._event
            self._breaker.failed(self._turn, str(error), event)
            if self._spares_attempts and (self._is_probe or isinstance(error, NoAttempt)):
                raise self._breaker.spared(error) from error
        elif isinstance(error, Exception) and not was_raised_by_signal(error):
            self._breaker.answered()
        else:
            self._breaker.interrupted(self._turn)
