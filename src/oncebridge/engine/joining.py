"""Joins the unreadable deliveries of one request into one dead letter: one request could leave thousands otherwise."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import msgspec

from oncebridge.claim import Ask, Verdict
from oncebridge.engine.task import Task
from oncebridge.identity import unreadable_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from oncebridge.engine.task import Delivery

LETTER_BYTES_MAX: Final = 262_144  # every ledger takes this much; more is split into several letters


def join_unreadable(deliveries: Sequence[Delivery], requests: Sequence[int], secret: bytes) -> None:
    """Give the unreadable deliveries of each request one task; `requests` has how many deliveries each brought."""
    start = 0
    for number in requests:
        own = [one for one in deliveries[start : start + number] if len(one.tasks) == 1 and one.tasks[0].unreadable]
        start += number
        for together in _parts(own):
            shared = _joined([delivery.tasks[0] for delivery in together], secret)
            for delivery in together:
                delivery.tasks = [shared]


def _parts(deliveries: Sequence[Delivery]) -> Iterator[list[Delivery]]:
    """Yield groups that fit into one letter each."""
    part: list[Delivery] = []
    size = 0
    for delivery in deliveries:
        own = len(delivery.tasks[0].raw)
        if part and size + own > LETTER_BYTES_MAX:
            yield part
            part, size = [], 0
        part.append(delivery)
        size += own
    if len(part) > 1:
        yield part


def _joined(tasks: Sequence[Task], secret: bytes) -> Task:
    """Make one task of several: it holds a list, and unwrapping that gives each of them back."""
    if len(tasks) == 1:
        return tasks[0]
    raws = list(dict.fromkeys(task.raw for task in tasks))
    data = raws[0] if len(raws) == 1 else b"[" + b",".join(map(_element, raws)) + b"]"
    reason = (
        tasks[0].dead_reason
        if len(raws) == 1
        else f"{tasks[0].dead_reason}; {len(raws):,} unreadable ones of one request"
    )
    ask = Ask(key=unreadable_key(secret, data))
    return Task(ask=ask, raw=data, dead_reason=reason, reported_verdict=Verdict.DEAD, unreadable=True)


def _element(raw: bytes) -> bytes:
    """Write a delivery as an element of a list: an object as it is, everything else as a text."""
    if raw.startswith(b"{"):
        try:
            msgspec.json.decode(raw, type=msgspec.Raw)
        except (msgspec.MsgspecError, RecursionError, ValueError):
            pass
        else:
            return raw
    # Bytes that are no text are written as surrogate halves, from which they can be recovered.
    return json.dumps(raw.decode(errors="surrogateescape")).encode()
