"""Dead letters: list, show, redrive, discard."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Self, Unpack, overload

import msgspec
from msgspec.structs import replace

from oncebridge.claim import Ask, Outcome, Status, Verdict
from oncebridge.discreet import Discreet
from oncebridge.engine.limits import GOES_ON
from oncebridge.engine.result import Result, joined, reason_for, with_error
from oncebridge.engine.task import Ended, Task, results_of
from oncebridge.errors import ConfigurationError, NothingFound
from oncebridge.identity import key_text, unreadable_key
from oncebridge.ledgers.protocol import longest_unchanged
from oncebridge.letter_filter import Filters, is_any_given, read_filters, read_key
from oncebridge.sources.unwrap import unwrap
from oncebridge.telemetry import Move

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from oncebridge.engine.flow import Flow
    from oncebridge.engine.task import Delivery
    from oncebridge.ledgers.protocol import Entry

DISCARD_LEASE_US = 10_000_000


class DeadLetter(Discreet, msgspec.Struct, frozen=True, kw_only=True):
    """An event that is not retried by itself, for one handler."""

    shown = ("key", "handler", "status", "topic", "time_ms", "attempts", "reason")

    key: str
    #: The name of its handler; empty if that has none, or if no handler ever got the event.
    handler: str
    #: Dead, or claimed or to be retried while it is redriven.
    status: Status
    topic: str
    time_ms: int | None
    envelope_id: str | None
    attempts: int
    #: When it became a dead letter, or was last redriven.
    changed_ms: int
    retry_at_ms: int | None
    lease_until_ms: int | None
    reason: str
    #: Only from `show`: its content, and the error with its traceback. Both may be personal data.
    raw: bytes | None = None
    detail: str = ""

    @classmethod
    def of(cls, entry: Entry) -> Self:
        """Read a ledger's entry of one."""
        return cls(
            key=key_text(entry.key),
            handler=entry.handler,
            status=entry.status,
            topic=entry.topic,
            time_ms=entry.time_ms,
            envelope_id=entry.envelope,
            attempts=entry.attempts,
            changed_ms=entry.changed_us // 1000,
            retry_at_ms=entry.retry_at_us // 1000 or None,
            lease_until_ms=entry.lease_until_us // 1000 or None,
            reason=entry.reason,
            raw=entry.raw,
            detail=entry.detail,
        )

    def __repr__(self) -> str:
        """Show the fields that a list may show, and none of the content."""
        return f"<DeadLetter {self.key} {self.topic or '?'} for {self.handler or 'any handler'}: {self.reason}>"


class LetterCount(msgspec.Struct, frozen=True, kw_only=True):
    """How many dead letters have the same reason and topic, and since when and until when they became ones."""

    number: int
    reason: str
    topic: str
    oldest_ms: int
    newest_ms: int


class DeadLetters:
    """The dead letters of one bridge's ledger, for programs and commands alike."""

    def __init__(self, open_flow: Callable[[], Flow]) -> None:
        """Take the function that opens the ledger that keeps them, and the handlers that they are redriven to."""
        self._open = open_flow

    def list(self, **filters: Unpack[Filters]) -> Iterator[DeadLetter]:
        """Return those that match, the oldest first, without their content.

        The oldest come first because that is the order to redrive them in: a state that follows a newer one is stale.

        Args:
            filters: Those of `oncebridge.letter_filter.Filters`: `keys`, `topic`, `reason`, `handler`, `since`,
                `until`, `limit`.

        """
        flow = self._open()
        chosen = read_filters(flow.clock.now_us(), **filters)
        if not chosen.keys:
            return (DeadLetter.of(entry) for entry in flow.ledger.scan(chosen.query))
        entries = [entry for key in chosen.keys for entry in self._known(key) if chosen.chooses(entry)]
        found = longest_unchanged(entries, chosen.query.limit)
        return (DeadLetter.of(replace(entry, raw=None, detail="")) for entry in found)

    def counts(self, **filters: Unpack[Filters]) -> tuple[LetterCount, ...]:
        """Count those that match by reason and topic, the most frequent first."""
        return count_letters(self.list(**filters))

    def show(self, key: str) -> tuple[DeadLetter, ...]:
        """Return those of one event, one for each handler, with their content, which may be personal data."""
        return tuple(DeadLetter.of(entry) for entry in self._entries(read_key(key)))

    @overload
    def redrive(self, letter: DeadLetter | str, *, force: bool = False) -> Result: ...

    @overload
    def redrive(
        self, letter: None = None, *, force: bool = False, all: bool = False, **filters: Unpack[Filters]
    ) -> tuple[Result, ...]: ...

    def redrive(
        self,
        letter: DeadLetter | str | None = None,
        *,
        force: bool = False,
        all: bool = False,  # noqa: A002 - as the command says it
        **filters: Unpack[Filters],
    ) -> Result | tuple[Result, ...]:
        """Try one again, once, under its own key, with attempts from zero; with a key, those of all its handlers.

        Like any delivery it may fail again, be busy, or turn out to be done meanwhile. It is `unhandled` if its handler
        is not registered, and stays a dead letter. Without a letter it tries each that the filters choose, the oldest
        first, and returns a result for each.

        Args:
            letter: A dead letter, or its key.

            force: Even if it is an echo or stale by now.

            all: Every one, where no filter is given.

            filters: Those of `list`.

        """
        if letter is None:
            return tuple([self._redriven(one, force=force) for one in self._matching(filters, every=all)])
        _refuse_filters(filters, every=all)
        return joined([self._redriven(one, force=force) for one in self._chosen(letter)])

    @overload
    def discard(self, letter: DeadLetter | str) -> Result: ...

    @overload
    def discard(self, letter: None = None, *, all: bool = False, **filters: Unpack[Filters]) -> tuple[Result, ...]: ...

    def discard(
        self,
        letter: DeadLetter | str | None = None,
        *,
        all: bool = False,  # noqa: A002 - as the command says it
        **filters: Unpack[Filters],
    ) -> Result | tuple[Result, ...]:
        """Give one up for good: its content is erased, and a tombstone keeps the event from being processed again.

        Without a letter it gives up each that the filters choose, and returns a result for each.

        Args:
            letter: A dead letter, or its key.

            all: Every one, where no filter is given.

            filters: Those of `list`.

        """
        if letter is None:
            return tuple([self._discarded(one) for one in self._matching(filters, every=all)])
        _refuse_filters(filters, every=all)
        return joined([self._discarded(one) for one in self._chosen(letter)])

    def _matching(self, filters: Filters, *, every: bool) -> Sequence[DeadLetter]:
        """Return the letters that filters choose; every one only when asked for."""
        if not every and not is_any_given(filters):
            raise ConfigurationError("name a letter, filters such as topic=..., or all=True for every dead letter")
        return [*self.list(**filters)]

    def _known(self, key: bytes) -> tuple[Entry, ...]:
        """Return the letters of a key, which must have some."""
        entries = self._entries(key)
        if not entries:
            raise NothingFound(f"no dead letter under {key_text(key)}; see: oncebridge dead list")
        return entries

    def _entries(self, key: bytes) -> tuple[Entry, ...]:
        return tuple(entry for entry in self._open().ledger.get(key) if entry.raw is not None)

    def _chosen(self, letter: DeadLetter | str) -> tuple[DeadLetter, ...]:
        """Return the letters meant: the one, or all of a key, which must have some."""
        if isinstance(letter, DeadLetter):
            return (letter,)
        return tuple(DeadLetter.of(entry) for entry in self._known(read_key(letter)))

    def _entry(self, letter: DeadLetter) -> Entry | None:
        """Return the ledger's present entry of a letter; it may be gone since it was listed."""
        entries = self._entries(read_key(letter.key))
        return next((entry for entry in entries if entry.handler == letter.handler), None)

    # --- redrive -------------------------------------------------------------------------------------

    def _redriven(self, letter: DeadLetter, *, force: bool) -> Result:
        if self._open().is_shadow:
            raise ConfigurationError(
                "shadow: no handler is called, so a redriven letter would be gone; redrive it without --shadow, "
                "ONCEBRIDGE_SHADOW and `shadow` in the settings"
            )
        entry = self._entry(letter)
        if entry is None:
            return self._gone(letter)
        return self._recorded("redriven", letter, self._redrive(entry, force=force))

    def _redrive(self, entry: Entry, *, force: bool) -> Result:
        flow = self._open()
        raw = entry.raw or b""
        # A delivery that no handler ever got is kept under its bytes, and goes to any handler that takes it now.
        nobodys = entry.key == unreadable_key(flow.secret, raw)
        delivery = flow.read(raw)
        parts = unwrap(raw) if nobodys else []
        if len(parts) > 1:
            return self._redrive_each(flow, entry, parts)
        if not nobodys:
            delivery.tasks = [task for task in delivery.tasks if task.dead_reason or task.ask.handler == entry.handler]
        still = _still_dead(entry, delivery, nobodys=nobodys)
        if still is not None:
            return still
        if not nobodys:
            (task,) = delivery.tasks
            # Always under the letter's own key: a conflict's key is not the event's, and profiles may have changed.
            shared_ms = task.ask.shared_ms if task.ask.key == entry.key else None
            task.ask = replace(task.ask, key=entry.key, shared_ms=shared_ms, home=entry.home, redrive=True, force=force)
        (result,) = results_of([delivery], flow.process([delivery], limits=GOES_ON))
        if nobodys and result.acknowledged:
            self._discard(entry)  # it goes on under the key of the event that it turned out to be
        return result

    def _redrive_each(self, flow: Flow, entry: Entry, parts: Sequence[bytes]) -> Result:
        """Try each of the deliveries from one request that were unreadable at the time."""
        deliveries = [flow.read(raw) for raw in parts]
        stills = [_still_dead(entry, delivery, nobodys=True) for delivery in deliveries]
        tried = [delivery for delivery, still in zip(deliveries, stills, strict=True) if still is None]
        results = iter(results_of(tried, flow.process(tried)))
        result = joined([next(results) if still is None else still for still in stills])
        if not any(stills) and result.acknowledged:
            self._discard(entry)
        return with_error(replace(result, key=key_text(entry.key)), result.error)

    # --- discard -------------------------------------------------------------------------------------

    def _discarded(self, letter: DeadLetter) -> Result:
        entry = self._entry(letter)
        if entry is None:
            return self._gone(letter)
        return self._recorded("discarded", letter, self._discard(entry))

    def _discard(self, entry: Entry) -> Result:
        ask = Ask(
            key=entry.key,
            handler=entry.handler,
            envelope=entry.envelope,
            topic=entry.topic,
            home=entry.home,
            redrive=True,
            force=True,
        )
        task = Task(ask=ask, raw=b"")
        flow = self._open()
        answer = flow.claim_alone(task, lease_us=DISCARD_LEASE_US)
        if not answer.token:
            return _result(entry, answer.verdict, reason_for(answer))
        if not flow.settle_alone(task, Ended(outcome=Outcome.DISCARD, reason="discarded")):
            return _result(entry, Verdict.BUSY, "another worker has taken it")
        return _result(entry, Verdict.FRESH, "discarded", Outcome.DISCARD)

    # --- reporting -------------------------------------------------------------------------------------

    def _gone(self, letter: DeadLetter) -> Result:
        return Result(
            verdict=Verdict.REPUBLISH,
            reason="no dead letter is kept under this key any more",
            key=letter.key,
            topic=letter.topic,
            envelope_id=letter.envelope_id,
        )

    def _recorded(self, move: str, letter: DeadLetter, result: Result) -> Result:
        """Report an operator's decision on a dead letter, and its result, to logs and counters."""
        self._open().telemetry.record(
            Move(
                move=move,
                key=letter.key,
                topic=letter.topic,
                handler=letter.handler,
                verdict=result.verdict,
                outcome=result.outcome,
                reason=result.reason,
            )
        )
        return result


def count_letters(letters: Iterable[DeadLetter]) -> tuple[LetterCount, ...]:
    """Count dead letters by reason and topic, the most frequent first."""
    numbers: Counter[tuple[str, str]] = Counter()
    times: dict[tuple[str, str], tuple[int, int]] = {}
    for letter in letters:
        group = letter.reason, letter.topic
        oldest, newest = times.get(group, (letter.changed_ms, letter.changed_ms))
        times[group] = min(oldest, letter.changed_ms), max(newest, letter.changed_ms)
        numbers[group] += 1
    return tuple(
        LetterCount(number=number, reason=reason, topic=topic, oldest_ms=oldest, newest_ms=newest)
        for (reason, topic), number in numbers.most_common()
        for oldest, newest in [times[reason, topic]]
    )


def _still_dead(entry: Entry, delivery: Delivery, *, nobodys: bool) -> Result | None:
    """Return why a letter cannot be tried at all; None if it can."""
    buried = next((task for task in delivery.tasks if task.dead_reason is not None), None)
    if buried is not None and buried.reported_verdict is not Verdict.UNHANDLED:
        return _result(entry, Verdict.DEAD, f"still {buried.dead_reason}", Outcome.DEAD)
    if delivery.tasks and buried is None:
        return None
    if nobodys:
        who = "no handler"
    elif entry.handler:
        who = f"no handler named {entry.handler!r}"
    else:
        who = "no handler without a name, as its own was,"
    return _result(entry, Verdict.UNHANDLED, f"{who} takes its topic here; it stays a dead letter", Outcome.DEAD)


def _result(entry: Entry, verdict: Verdict, reason: str, outcome: Outcome | None = None) -> Result:
    return Result(
        verdict=verdict,
        outcome=outcome,
        reason=reason,
        key=key_text(entry.key),
        topic=entry.topic,
        envelope_id=entry.envelope,
    )


def _refuse_filters(filters: Filters, *, every: bool) -> None:
    """Refuse filters beside a letter: it is not clear which of both is meant."""
    if every or filters:
        raise ConfigurationError("a letter and filters: name one of them; keys=[...] is a filter like any other")
