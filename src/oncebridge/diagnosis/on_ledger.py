"""Foresees the verdicts that deliveries would get on a ledger as it is now. Nothing is claimed, and nothing changes.

The ledger shows what a claim would find; the rules that workers go by make the verdict of it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from oncebridge.claim import SETTLED, Status, Verdict, judge, newest_of
from oncebridge.diagnosis.explain import Foreseen
from oncebridge.engine.reader import Reader
from oncebridge.event import is_uuid
from oncebridge.identity import NS_PER_MS
from oncebridge.ledgers.grants import expected_answer
from oncebridge.letter_filter import EPOCH
from oncebridge.topics import Profiles

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oncebridge.bridge import Bridge
    from oncebridge.claim import Answer, Ask, Newest
    from oncebridge.engine.task import Task
    from oncebridge.identity import Moment
    from oncebridge.ledgers.grants import Record, Seen
    from oncebridge.ledgers.protocol import ShowsRecords


class OnLedger:
    """Foresees verdicts at the handlers of a bridge, on its ledger, which is open to look."""

    def __init__(self, bridge: Bridge, ledger: ShowsRecords, secret: bytes) -> None:
        """Take the bridge with its handlers and settings, and the secret that its ledger was opened with."""
        bridge.add_downstream()
        self._ledger = ledger
        #: Whether it is known which handlers take an event. If not, those are asked for that have a record of it.
        self.knows_handlers = bool(bridge.handlers) or bridge.settings.shadow
        self._reader = Reader(
            secret,
            handlers=bridge.handlers,
            profiles=Profiles(bridge.settings.profiles),
            settings=bridge.settings,
            on_unhandled=lambda _: None,
        )

    def foresee(self, raws: Sequence[bytes]) -> list[list[Foreseen]]:
        """Return the verdicts of each delivery, one for each handler, as if it were the only one to come."""
        verdicts: list[list[Foreseen]] = [[] for _ in raws]
        asked: list[tuple[int, Task]] = []
        for number, raw in enumerate(raws):
            if not self.knows_handlers:
                asked.append((number, self._reader.read_for(raw, "")))
                continue
            delivery = self._reader.read(raw)
            asked += [(number, task) for task in delivery.tasks]
            if delivery.unhandled is not None:
                reason = delivery.unhandled.reason
                verdicts[number].append(Foreseen(handler="", verdict=Verdict.UNHANDLED, reason=reason))
        seen = self._look_for(asked, verdicts)
        if not self.knows_handlers:
            named = [
                (number, self._reader.read_for(raws[number], name))
                for (number, task), one in zip(asked, seen, strict=True)
                if task.event is not None
                for name in sorted(one.records)
                if name
            ]
            self._look_for(named, verdicts)
        return verdicts

    def _look_for(self, asked: Sequence[tuple[int, Task]], verdicts: list[list[Foreseen]]) -> list[Seen]:
        seen = self._ledger.look([task.ask for _, task in asked])
        for (number, task), one in zip(asked, seen, strict=True):
            verdict, reason = _foreseen(task, one)
            verdicts[number].append(Foreseen(handler=task.ask.handler, verdict=verdict, reason=reason))
        return seen


def _foreseen(task: Task, seen: Seen) -> tuple[Verdict, str]:
    ask, record = task.ask, seen.records.get(task.ask.handler)
    answer = expected_answer(ask, seen)
    if answer.verdict is Verdict.BUSY:
        return answer.verdict, _why_busy(answer, record, seen)
    if task.reported_verdict is not None:
        return task.reported_verdict, f"{task.dead_reason}; {_letter_text(record)}"
    if answer.verdict is not Verdict.FRESH:
        assert record is not None, "only a record makes a duplicate or a conflict"
        return answer.verdict, _why_known(answer.verdict, ask, record)
    fresh = _why_fresh(answer, record, seen)
    if answer.chain is None:
        return answer.verdict, fresh
    newest = newest_of(answer.chain)
    verdict = judge(ask, newest)
    if verdict is Verdict.FRESH:
        return verdict, f"{fresh}; {_about_entity(ask, newest)}"
    return verdict, _why_no_news(verdict, ask, newest)


# --- duplicates --------------------------------------------------------------------------------------


_SETTLED_AS: Final = {
    Status.DONE: "was done",
    Status.ECHO: "was recorded as an echo",
    Status.STALE: "was recorded as stale",
    Status.DEAD: "was kept as a dead letter",
    Status.DISCARD: "was kept as a dead letter, and discarded",
}


def _why_known(verdict: Verdict, ask: Ask, record: Record) -> str:
    if verdict is Verdict.CONFLICT:
        return f"its id {_last_seen(record)} with other content; it would be kept as a dead letter"
    was = f"{_SETTLED_AS[record.status]} {_when(record)}"
    if verdict is Verdict.REDELIVERY:
        return f"the same event in the same envelope {was}"
    if ask.envelope is None:
        return f"the same event {was}; this delivery has no envelope id"
    if record.envelope is None:
        known = "whose id is not kept" if not record.changed_us else "without an id"
    else:  # one that is no envelope's may hold anything
        known = f"with the id {record.envelope}" if is_uuid(record.envelope) else "with another id"
    return f"the same event {was}, in an envelope {known}"


def _letter_text(record: Record | None) -> str:
    if record is None or record.status not in SETTLED:
        return "the ledger does not know it yet"
    return f"it {_SETTLED_AS[record.status]} {_when(record)}"


def _last_seen(record: Record) -> str:
    return f"{_SETTLED_AS[record.status]} {_when(record)}" if record.status in SETTLED else f"came {_when(record)}"


def _when(record: Record) -> str:
    return f"at {_us_text(record.changed_us)}" if record.changed_us else "at a time that this ledger does not keep"


# --- busy and fresh ----------------------------------------------------------------------------------


def _why_busy(answer: Answer, record: Record | None, seen: Seen) -> str:
    until = f"claimed until {_us_text(seen.now_us + answer.busy_us)}, unless it is settled or extended"
    entity = seen.entity
    is_own = record is not None and record.status is Status.CLAIMED and (entity is None or record.nonce == entity.nonce)
    return until if is_own else f"its entity is {until}, for another event"


def _why_fresh(answer: Answer, record: Record | None, seen: Seen) -> str:
    if record is None:
        return "the ledger does not know it"
    attempt = f"; this would be attempt {answer.attempt}" if answer.attempt > 1 else ""
    if record.status is Status.CLAIMED:
        lease_us = record.lease_until_us or (0 if seen.entity is None else seen.entity.lease_until_us)
        ended = f" at {_us_text(lease_us)}" if lease_us else ""
        return f"its last claim ran out{ended} without an end{attempt}"
    if record.status is Status.RELEASE:
        return f"it was given back untried {_when(record)}{attempt}"
    times = "once" if record.attempts == 1 else f"{record.attempts} times"
    return f"it failed {times}, the last time {_when(record)}{attempt}"


# --- order -------------------------------------------------------------------------------------------


def _why_no_news(verdict: Verdict, ask: Ask, newest: Newest) -> str:
    if verdict is Verdict.STALE:
        return _compared(ask.moment, newest.line)
    window_ms = ask.echo_window_ns // NS_PER_MS
    return f"{_compared(ask.moment, newest.moment)}, with the same content, within the echo window of {window_ms} ms"


def _about_entity(ask: Ask, newest: Newest) -> str:
    if newest.state is None:
        return "no state of its entity is done yet"
    text = _compared(ask.moment, newest.line)
    return f"{text}; how a later claim of the entity took effect is not known" if newest.unsure else text


def _compared(moment: Moment, line: Moment) -> str:
    """Say by which times, or versions, a state is compared with the newest one of its entity."""
    if moment.version is not None and line.version is not None:
        return f"the entity's newest state is of version {line.version}, this one of version {moment.version}"
    pairs = [(a, b) for a, b in zip(moment.times, line.times, strict=False) if a is not None and b is not None]
    if not pairs:
        return "its time cannot be compared with that of its entity's newest state"
    this, that = (" and ".join(map(_ns_text, times)) for times in zip(*pairs, strict=True))
    return f"the entity's newest state is of {that}, this one of {this}"


# --- times -------------------------------------------------------------------------------------------


def _us_text(us: int) -> str:
    return _ns_text(us // 1000 * NS_PER_MS)


def _ns_text(ns: int) -> str:
    """Write a time to the millisecond, or as precisely as it is: a nanosecond may decide."""
    is_whole = ns % NS_PER_MS == 0
    text = (EPOCH + timedelta(microseconds=ns // 1000)).strftime("%Y-%m-%dT%H:%M:%S.%f")
    return f"{text[:-3] if is_whole else f'{text}{ns % 1000:03d}'.rstrip('0')}Z"
