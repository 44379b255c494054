"""Processes an invocation of AWS Lambda, and replies in the format that its shape expects."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from oncebridge.claim import Outcome
from oncebridge.engine.limits import GOES_ON, BatchLimits, RunBatch
from oncebridge.engine.result import books_of, why_again
from oncebridge.errors import NotAcknowledged
from oncebridge.sources.http_request import answer_request
from oncebridge.sources.invocation import ATTEMPTS, FailureReport, Record, recognise, waves
from oncebridge.sources.shadow_queue import check_queues
from oncebridge.sources.sqs.postponing import seconds_until_retry
from oncebridge.sources.unwrap import is_request
from oncebridge.telemetry import Move

if TYPE_CHECKING:
    from oncebridge.clock import Clock
    from oncebridge.engine.result import Result
    from oncebridge.settings import Settings
    from oncebridge.sources.sqs.postponing import Postponing
    from oncebridge.telemetry import Telemetry

#: Kept free at the end of an invocation, to finish running handlers, settle and reply.
MARGIN_US_MAX: Final = 5_000_000
MARGIN_SHARE: Final = 5  # of a short time a fifth is enough

#: Limits that have passed already: records processed under them are handed back untried, and are in the books.
OVER: Final = BatchLimits(until_us=0)


class Ended(msgspec.Struct, frozen=True):
    """One record, the results of its deliveries, and whether it may be acknowledged."""

    record: Record
    results: list[Result]
    acknowledged: bool


def answer(
    run: RunBatch,
    event: Any,
    context: Any,
    *,
    settings: Settings,
    clock: Clock,
    telemetry: Telemetry,
    postponing: Postponing | None = None,
) -> Any:
    """Process one invocation, and reply to it; with `postponing`, failed messages are hidden until they are due."""
    if settings.shadow:
        check_queues(event)
    limits = replace(GOES_ON, until_us=_until_us(context, clock))
    if is_request(event):
        return answer_request(run, event, limits, settings=settings, telemetry=telemetry)
    invocation = recognise(event)
    unfinished = invocation.records  # all of them, if the ledger is out of reach
    try:
        ended = _processed(run, invocation.records, replace(limits, attempts=ATTEMPTS[invocation.failure_report]))
        unfinished = [one.record for one in ended if not one.acknowledged]
    finally:
        _report_oldest(unfinished, clock, telemetry)
    match invocation.failure_report:
        case FailureReport.BY_NAME:
            if postponing is not None and (limits.until_us is None or clock.monotonic_us() < limits.until_us):
                _postpone(postponing, ended)
            failed = dict.fromkeys(one.record.id for one in ended if not one.acknowledged)
            return {"batchItemFailures": [{"itemIdentifier": name} for name in failed]}
        case FailureReport.BY_RECORD:
            return {"records": [_transformed(one) for one in ended]}
        case FailureReport.BY_ERROR:
            results = [result for one in ended for result in one.results]
            if not all(one.acknowledged for one in ended):
                raise NotAcknowledged(why_again(results))
            return books_of([result.column for result in results])


def _postpone(postponing: Postponing, ended: list[Ended]) -> None:
    """Hide failed messages in their queues until their next attempts are due."""
    queues: dict[str, list[tuple[str, int]]] = {}
    for one in ended:
        seconds = seconds_until_retry(one.results)
        if not one.acknowledged and seconds is not None and one.record.receipt:
            queues.setdefault(one.record.queue, []).append((one.record.receipt, seconds))
    for queue, messages in queues.items():
        postponing.hide(queue, messages)


def _report_oldest(records: list[Record], clock: Clock, telemetry: Telemetry) -> None:
    """Report how long the oldest of these has waited: SQS' own metric omits messages received three times."""
    sent_ms = [record.sent_ms for record in records if record.sent_ms is not None]
    if sent_ms:
        age_ms = max(0, clock.now_us() // 1000 - min(sent_ms))
        telemetry.observe(Move(move="handed_back", key="", topic="", age_ms=age_ms))


def _until_us(context: Any, clock: Clock) -> int | None:
    """Return when nothing more may begin; None if the time left is unknown."""
    ask = getattr(context, "get_remaining_time_in_millis", None)
    remaining_ms = ask() if callable(ask) else None
    if not isinstance(remaining_ms, int | float) or not isfinite(remaining_ms):
        return None
    remaining_us = max(0, int(remaining_ms * 1000))  # no time left differs from unknown
    return clock.monotonic_us() + remaining_us - min(MARGIN_US_MAX, remaining_us // MARGIN_SHARE)


def _processed(run: RunBatch, records: list[Record], limits: BatchLimits) -> list[Ended]:
    """Process records; after one that must be redelivered, later ones of its group are handed back untried."""
    ended: dict[int, Ended] = {}
    broken: set[str] = set()
    for wave in waves(records):
        behind = [record for record in wave if record.group in broken]
        for one in _run_each(run, [record for record in wave if record.group not in broken], limits):
            ended[id(one.record)] = one
            if not one.acknowledged and one.record.group is not None:
                broken.add(one.record.group)
        for one in _run_each(run, behind, OVER):
            ended[id(one.record)] = Ended(one.record, one.results, acknowledged=False)
    return [ended[id(record)] for record in records]


def _run_each(run: RunBatch, records: list[Record], limits: BatchLimits) -> list[Ended]:
    """Process the deliveries of records as one batch."""
    if not records:
        return []
    results = iter(run([raw for record in records for raw in record.raws], limits))
    each = [(record, [next(results) for _ in record.raws]) for record in records]
    return [Ended(record, own, all(result.acknowledged for result in own)) for record, own in each]


def _transformed(one: Ended) -> dict[str, Any]:
    """Have Firehose pass on a finished record, unchanged; a duplicate too, since the first reply may be lost."""
    kept = any(result.outcome is Outcome.DEAD for result in one.results)
    result = "Ok" if one.acknowledged and not kept else "ProcessingFailed"
    return {"recordId": one.record.id, "result": result, "data": one.record.data}
