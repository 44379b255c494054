"""Judges how long and how often events are tried by what the queue in front allows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from oncebridge.ledgers.findings import Finding, good, warning

if TYPE_CHECKING:
    from oncebridge.handlers import Handler
    from oncebridge.retry import RetryPolicy

HIDDEN_HOURS_MAX: Final = 12
_SUBJECT: Final = "retries"
_QUEUE: Final = "queue"
_DAY_S: Final = 86_400
_HOUR_S: Final = 3600


def spans(handlers: Iterable[Handler], usual: RetryPolicy, queue_retention_days: float) -> list[Finding]:
    """Judge each policy by how long a queue keeps a message, and how long it hides one."""
    policies: dict[RetryPolicy, list[str]] = {}
    for handler in handlers:
        names = policies.setdefault(handler.retry or usual, [])
        if handler.name not in names:
            names.append(handler.name)
    return [_span(policy, _named(names), queue_retention_days) for policy, names in (policies or {usual: []}).items()]


def _span(policy: RetryPolicy, of: str, queue_retention_days: float) -> Finding:
    if policy.attempts == 1:
        return good(_SUBJECT, f"{of}1 attempt")
    least, most = (_time(seconds) for seconds in policy.span_seconds)
    found = f"{of}{policy.attempts} attempts within {least} to {most}"
    if policy.span_seconds[1] > queue_retention_days * _DAY_S:
        return warning(
            _SUBJECT,
            f"{found}, but the queue in front keeps a message for {queue_retention_days:g} days (queue_retention_days)",
            "lower attempts or cap_seconds, or keep messages for longer: what the queue drops is no dead letter",
        )
    longest = policy.ceiling_seconds(policy.attempts)
    if longest > HIDDEN_HOURS_MAX * _HOUR_S:
        return warning(
            _SUBJECT,
            f"{found}, with waits of up to {_time(longest)}, but SQS hides no message for more than 12 hours",
            "set cap_seconds to 36000 or less; a message that is shown earlier is tried earlier",
        )
    return good(_SUBJECT, found)


def _named(names: list[str]) -> str:
    named = [name for name in names if name]
    return f"{', '.join(named)}: " if named else ""


def _time(seconds: float) -> str:
    for size, unit in ((_DAY_S, "days"), (_HOUR_S, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


def queue(attributes: Mapping[str, str], attempts: int, queue_retention_days: float) -> Iterator[Finding]:
    """Judge a queue by its attributes: how long it keeps messages, and how often it hands one out."""
    days = int(attributes.get("MessageRetentionPeriod", 0)) / _DAY_S
    if days and days != queue_retention_days:
        yield warning(
            _QUEUE,
            f"keeps messages for {days:g} days, but queue_retention_days is {queue_retention_days:g}",
            f"set queue_retention_days to {days:g}: how long events must be remembered is judged by it",
        )
    receives = _receives(attributes.get("RedrivePolicy"))
    if receives is None:
        yield good(_QUEUE, "hands messages out until they are deleted")
    elif receives <= attempts:
        yield warning(
            _QUEUE,
            f"gives a message up after {receives} receives (maxReceiveCount), and events have {attempts} attempts",
            f"raise maxReceiveCount well above {attempts}: behind Lambda each attempt is a receive, and so is each "
            "time that a message comes while its receiver is out of reach; 100 or more waits an outage out",
        )
    else:
        yield good(_QUEUE, f"gives a message up after {receives} receives, and events have {attempts} attempts")


def _receives(redrive: str | None) -> int | None:
    """Read `maxReceiveCount`, which SQS writes as a number or as a text."""
    try:
        found: dict[str, Any] = msgspec.json.decode(redrive or "{}", type=dict)
        return int(found["maxReceiveCount"])
    except (msgspec.DecodeError, KeyError, TypeError, ValueError):
        return None
