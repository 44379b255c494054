"""Dead letters: list, show, redrive, discard."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from msgspec.structs import replace

from oncebridge.claim import Ask, Claim, Outcome, Settlement, Verdict
from oncebridge.identity import key_text, unreadable_key
from oncebridge.intake.results import Result, reason_for
from oncebridge.ledgers.protocol import Query
from oncebridge.telemetry import Move

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncebridge.intake.flow import Flow
    from oncebridge.ledgers.protocol import Entry

DISCARD_LEASE_US = 10_000_000


class DeadLetters:
    """The dead letters of one ledger."""

    def __init__(self, flow: Flow) -> None:
        """Take the flow whose ledger keeps them, and whose handlers they are redriven to."""
        self._flow = flow

    def matching(self, query: Query = Query()) -> Iterator[Entry]:  # noqa: B008 - frozen
        """Return those that match, the oldest first, without what they hold."""
        return self._flow.ledger.scan(replace(query, letters=True))

    def show(self, key: bytes) -> list[Entry]:
        """Return those of one event, with what they hold: this may be personal data."""
        return [entry for entry in self._flow.ledger.get(key) if entry.raw is not None]

    def redrive(self, entry: Entry, *, force: bool = False) -> Result:
        """Try one again under its own key, with attempts from zero; `force` skips echo and stale.

        Like any delivery it may fail again, be busy, or turn out to be done meanwhile.
        """
        return self._recorded("redriven", entry, self._redrive(entry, force=force))

    def _redrive(self, entry: Entry, *, force: bool) -> Result:
        letter = next((found for found in self.show(entry.key) if found.handler == entry.handler), None)
        if letter is None or letter.raw is None:
            return _result(entry, Verdict.REPUBLISH, "no dead letter is kept under this key any more")
        delivery = self._flow.read(letter.raw)
        delivery.tasks = [task for task in delivery.tasks if task.ask.handler == entry.handler]
        if not delivery.tasks:
            name = f"named {entry.handler!r} " if entry.handler else ""
            return _result(entry, Verdict.BUSY, f"no handler {name}takes its topic; it stays a dead letter")
        (task,) = delivery.tasks
        if task.bury is not None:
            return _result(entry, Verdict.DEAD, f"still {task.bury}", Outcome.DEAD)
        was_unreadable = entry.key == unreadable_key(self._flow.secret, letter.raw)
        if not was_unreadable:
            # Always under the letter's own key: a conflict's is not the event's, and profiles may have changed.
            shared_ms = task.ask.shared_ms if task.ask.key == entry.key else None
            task.ask = replace(task.ask, key=entry.key, shared_ms=shared_ms, home=entry.home, redrive=True, force=force)
        self._flow.work_off([delivery])
        if was_unreadable and delivery.result.acknowledged:
            self._discard(entry)  # it goes on under the key of what it turned out to be
        return delivery.result

    def discard(self, entry: Entry) -> Result:
        """Give one up for good: what it holds is erased, a tombstone keeps it from coming back."""
        return self._recorded("discarded", entry, self._discard(entry))

    def _recorded(self, move: str, entry: Entry, result: Result) -> Result:
        """Tell logs and counters that somebody decided about a dead letter, and what came of it."""
        self._flow.telemetry.record(
            Move(
                move=move,
                key=key_text(entry.key),
                topic=entry.topic,
                handler=entry.handler,
                verdict=result.verdict,
                outcome=result.outcome,
                reason=result.reason,
            )
        )
        return result

    def _discard(self, entry: Entry) -> Result:
        ask = Ask(
            key=entry.key,
            handler=entry.handler,
            envelope=entry.envelope,
            topic=entry.topic,
            home=entry.home,
            alone=True,
            redrive=True,
            force=True,
        )
        (answer,) = self._flow.ledger.claim([ask], nonce=secrets.token_bytes(8), lease_us=DISCARD_LEASE_US)
        if not answer.token:
            return _result(entry, answer.verdict, reason_for(answer))
        claim = Claim(ask, answer.token, answer.attempt)
        (ok,) = self._flow.ledger.settle([Settlement(claim, Outcome.DISCARD)])
        if not ok:
            return _result(entry, Verdict.BUSY, "somebody else has taken it")
        return _result(entry, Verdict.FRESH, "discarded", Outcome.DISCARD)


def _result(entry: Entry, verdict: Verdict, reason: str, outcome: Outcome | None = None) -> Result:
    return Result(
        verdict=verdict,
        outcome=outcome,
        reason=reason,
        key=key_text(entry.key),
        topic=entry.topic,
        envelope=entry.envelope,
    )
