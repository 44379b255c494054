"""Judges an installation: findings, good and bad, and the promise that it gives to each handler."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from oncebridge import genesys_topics
from oncebridge.ledgers.findings import Finding, Level, good, warning, wrong
from oncebridge.sinks.promise import AT_LEAST_ONCE, EXACTLY_ONCE, SinkPromise

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from oncebridge.handlers import Handler

GENESYS_DAYS: Final = 4  # how long Genesys tries to hand an event over
EVENTBRIDGE_DAYS: Final = 1  # how long EventBridge does
DEAD_LETTER_QUEUE_DAYS: Final = 14  # the longest that a dead-letter queue keeps a message
SLOW_US: Final = 50_000
ROUND_TRIPS_PER_LEASE: Final = 10  # a claim is extended at each third of its lease, and an answer may be late

#: URL scheme, without what comes before or behind `redis` -> what to look at when the ledger is out of reach.
_TO_CHECK: Final = {
    "redis": (
        "check the address and port, that VPC and security group let this machine in, TLS (rediss:// with it, redis:// "
        "without), user and password"
    ),
    "postgres": (
        "check the address, port and database, that VPC and security group let this machine in, TLS (sslmode), "
        "user and password"
    ),
    "dynamodb": (
        "check the region, the table's name, the credentials, and that VPC endpoint and security group let this "
        "machine in over TLS"
    ),
}
#: The same -> where a handler's transaction writes.
_WRITES_IN: Final = {
    "sqlite": "the ledger's SQLite file",
    "postgres": "the ledger's Postgres database",
    "dynamodb": "DynamoDB",
}


_NAMELESS: Final = "the handler without a name"
_DOWNSTREAM: Final = "downstream_url"
_RETENTION: Final = "retention"
_SECRET: Final = "secret"  # noqa: S105 - a subject
_DEAD_LETTERS: Final = "dead letters"


class Promise(msgspec.Struct, frozen=True, kw_only=True):
    """What an installation promises to one handler."""

    handler: str
    promise: str
    #: What it loses by findings; the sentence says the rest of why.
    weakened_by: list[str]
    sentence: str


def is_right(findings: Iterable[Finding]) -> bool:
    """Return whether nothing must be changed; warnings are allowed."""
    return all(finding.level is not Level.WRONG for finding in findings)


def together(general: Sequence[Finding], own: Sequence[Finding]) -> list[Finding]:
    """Join what holds for every ledger with what one found by itself, which knows better where both are content."""
    known = {finding.subject for finding in own}
    return [*(one for one in general if one.level is not Level.GOOD or one.subject not in known), *own]


# --- findings ----------------------------------------------------------------------------------------


def unreachable(scheme: str, error: str) -> Finding:
    """Say what to look at when the ledger does not answer."""
    return wrong("connection", error, _of(scheme, _TO_CHECK))


def refused(error: str) -> Finding:
    """Repeat why the ledger must not be used like this; the error says what to do."""
    return wrong("ledger", error, "")


def unexamined() -> Finding:
    """Admit that a ledger cannot look at its own settings: silence would read as praise."""
    return warning(
        "ledger",
        "it cannot look at its own settings, so they are not judged here",
        "give it an `examine`, as oncebridge.ledgers.protocol.Examines says",
    )


def shadow() -> Finding:
    """Say that nothing is handled: a shadow that was meant to be over acknowledges events without a handler."""
    return warning(
        "shadow",
        "events are judged and acknowledged, and no handler is called",
        "drop `shadow` from the settings, or ONCEBRIDGE_SHADOW, where events are to be handled",
        weakens="a shadow calls no handler",
    )


def latency(round_trips_us: Sequence[int], lease_seconds: float) -> Finding:
    """Judge how far away the ledger is: each event waits for it at least twice."""
    middle_us = median(round_trips_us)
    found = f"{middle_us / 1000:.2f} ms, the median of {len(round_trips_us)} reads"
    if middle_us * ROUND_TRIPS_PER_LEASE > lease_seconds * 1_000_000:
        return wrong(
            "latency",
            f"{found}; a lease of {lease_seconds:g} s runs out before it can be extended",
            f"raise lease_seconds to {ROUND_TRIPS_PER_LEASE} times that or more",
            weakens="claims run out while their handlers work",
        )
    if middle_us > SLOW_US:
        fix = "run workers and ledger in one region; larger batches help too"
        return warning("latency", f"{found}; each event waits twice", fix)
    return good("latency", found)


def secret(*, given: bool, forgettable: bool = False) -> Finding:
    """Say which secret the keys are made with; that it is the right one has been checked by opening."""
    if given:
        return good(_SECRET, "from the settings, the one that the ledger was first opened with")
    if not forgettable:
        return good(_SECRET, "the ledger keeps its own")
    return warning(
        _SECRET,
        "the ledger keeps its own, and forgets it together with everything else",
        "set secret_file or ONCEBRIDGE_SECRET; a ledger that has made its own needs another ?name= for that",
        weakens="the ledger may forget the secret that keys are made with, and then an event has another key",
    )


def dead_letters(*, elsewhere: bool) -> Finding:
    """Judge where dead letters are, for a ledger that may forget everything: nobody delivers them again."""
    if elsewhere:
        return good(_DEAD_LETTERS, "sent on, so they are kept where the ledger cannot forget them")
    return warning(
        _DEAD_LETTERS,
        "kept by the ledger alone, which may forget them in a crash or a failover",
        "set dead_letter_queue for letters that must last",
    )


def permissions(error: str | None) -> Finding:
    """Judge a try to write that changes nothing."""
    if error is None:
        return good("permissions", "may read and write")
    return wrong("permissions", f"may not write: {error}", "let this user read and write what belongs to the ledger")


def retention(retention_days: float, queue_retention_days: float) -> Finding:
    """Judge how long events are remembered by how late a delivery may come."""
    chain_days = GENESYS_DAYS + EVENTBRIDGE_DAYS + queue_retention_days
    whole_days = chain_days + DEAD_LETTER_QUEUE_DAYS
    chain = (
        f"retries may come for {chain_days:g} days (Genesys {GENESYS_DAYS} + EventBridge {EVENTBRIDGE_DAYS} + "
        f"queue {queue_retention_days:g})"
    )
    if retention_days <= chain_days:
        return wrong(
            _RETENTION,
            f"{retention_days:g} days, but {chain}",
            f"set retention_days to more than {chain_days:g}; {whole_days:g} covers a dead-letter queue too",
            weakens=f"events are forgotten after {retention_days:g} days, before their last retry may come",
        )
    if retention_days < whole_days:
        return warning(
            _RETENTION,
            f"{retention_days:g} days; {chain}, and a message moved back from a dead-letter queue up to "
            f"{DEAD_LETTER_QUEUE_DAYS} days later still",
            f"set retention_days to {whole_days:g} or more, or move back nothing older than that",
            weakens=f"a message moved back from a dead-letter queue after {retention_days:g} days is fresh again",
        )
    found = f"{retention_days:g} days; {chain}, from a dead-letter queue for {whole_days:g}"
    return good(_RETENTION, found)


def topics(handlers: Iterable[Handler], own: Sequence[str]) -> dict[str, Finding]:
    """Judge the patterns of handlers and sinks that take no topic which is known; by pattern."""
    patterns = dict.fromkeys(handler.pattern for handler in handlers)
    return {pattern: _unknown(pattern) for pattern in patterns if not genesys_topics.is_known(pattern, own)}


def _unknown(pattern: str) -> Finding:
    found = f"{pattern} takes none of Genesys' topics that are known here, and none of [topics] in the settings"
    own = f'add a table [topics."{pattern}"] if it is new at Genesys, or of your own making'
    near = genesys_topics.nearest(pattern)
    fix = own if near is None else f"did you mean {near}? Otherwise {own}"
    return warning("topics", found, fix, weakens=f"no known topic matches {pattern!r}, so it may never get an event")


def of_sink(name: str, found: Iterable[Finding]) -> list[Finding]:
    """Say at which sink these were found."""
    return [replace(one, subject=f"sink {name or _DOWNSTREAM}: {one.subject}") for one in found]


def of_letters(name: str, found: Iterable[Finding]) -> list[Finding]:
    """Say where dead letters go that these were found of."""
    return [replace(one, subject=f"{name}: {one.subject}") for one in found]


# --- the promise -------------------------------------------------------------------------------------


def promises(
    handlers: Iterable[Handler],
    scheme: str,
    findings: Sequence[Finding],
    *,
    transactions: bool,
    at_sinks: Mapping[str, Sequence[Finding]] | None = None,
    of_topics: Mapping[str, Finding] | None = None,
) -> list[Promise]:
    """Say what each handler can rely on; without any, what any handler could.

    Args:
        handlers: As registered; sinks say themselves how often an event takes effect there.

        scheme: Of the ledger's URL.

        findings: What weakens the promise, and how badly.

        transactions: Whether the ledger can settle in a handler's own transaction.

        at_sinks: The findings at each sink, by its name.

        of_topics: The findings about topics, by the pattern.

    """
    judged = []
    for handler in handlers:
        sink = _promise_of(handler)
        if sink is not None:
            promise = _sink_promise(_label(handler), sink, findings, (at_sinks or {}).get(handler.name, ()))
        else:
            promise = _promise(_label(handler), scheme, findings, exact=handler.wants_transaction)
        judged.append(_doubted(promise, (of_topics or {}).get(handler.pattern)))
    if judged:
        return [*{promise.sentence: promise for promise in judged}.values()]  # one for all topics of a handler
    named = [("any handler", False)]
    if transactions:
        named = [("a handler with the parameter `transaction`", True), ("any other handler", False)]
    return [_promise(name, scheme, findings, exact=exact) for name, exact in named]


def _doubted(promise: Promise, topic: Finding | None) -> Promise:
    """Say of a promise that there may be nothing to keep it for."""
    if topic is None:
        return promise
    weakened_by = [*promise.weakened_by, topic.weakens]
    return replace(promise, weakened_by=weakened_by, sentence=f"{promise.sentence}; but {topic.weakens}")


def _promise_of(handler: Handler) -> SinkPromise | None:
    promise = getattr(handler.function, "promise", None)
    return promise if isinstance(promise, SinkPromise) else None


def _label(handler: Handler) -> str:
    return handler.name or (_NAMELESS if _promise_of(handler) is None else _DOWNSTREAM)


def no_promises(handlers: Iterable[Handler]) -> list[Promise]:
    """Say what holds while the ledger does not answer, or refuses to."""
    why = "no promise, because the ledger cannot be used; nothing is acknowledged until it can, so nothing is lost"
    names = [*dict.fromkeys(_label(handler) for handler in handlers)] or ["any handler"]
    return [Promise(handler=name, promise="none", weakened_by=[], sentence=f"{name}: {why}") for name in names]


def _promise(handler: str, scheme: str, findings: Sequence[Finding], *, exact: bool) -> Promise:
    weakened_by = [finding.weakens for finding in findings if finding.weakens]
    broken = any(finding.weakens and finding.level is Level.WRONG for finding in findings)
    promise = EXACTLY_ONCE if exact and not broken else AT_LEAST_ONCE
    if not exact:
        crash = "a crash between its effect and the end of its claim repeats the effect"
        why = f"because {_joined([crash, *weakened_by])}"
        if not _keys_may_change(findings):
            why += "; effectively once where the receiver honours event.key as an idempotency key"
    elif broken:
        why = f"not exactly once in spite of its transaction, because {_joined(weakened_by)}"
    else:
        why = f"because what it writes through `transaction`, in {_of(scheme, _WRITES_IN)}, is committed together "
        why += "with the end of its claim"
        why += f"; not beyond doubt, because {_joined(weakened_by)}" if weakened_by else ""
    sentence = f"{handler}: {promise}, {why}"
    return Promise(handler=handler, promise=promise, weakened_by=weakened_by, sentence=sentence)


def _sink_promise(name: str, sink: SinkPromise, findings: Sequence[Finding], own: Sequence[Finding]) -> Promise:
    """Join a sink's own promise with the findings about it, and about the ledger where that matters to it."""
    if sink.whatever_the_ledger:  # but it remembers no longer than the ledger does, and knows events by their keys
        findings = [one for one in findings if one.subject in (_RETENTION, _SECRET)]
    matter = [one for one in (*findings, *own) if one.weakens]
    weakened_by = [one.weakens for one in matter]
    broken = sink.level == EXACTLY_ONCE and any(one.level is Level.WRONG for one in matter)
    broken = broken or (sink.level != AT_LEAST_ONCE and _keys_may_change(findings))
    why = f"because {sink.why}"
    if broken:
        why = f"not {sink.level}, because {_joined(weakened_by)}"
    elif weakened_by:
        why += f"; not beyond doubt, because {_joined(weakened_by)}"
    level = AT_LEAST_ONCE if broken else sink.level
    return Promise(handler=name, promise=level, weakened_by=weakened_by, sentence=f"{name}: {level}, {why}")


def _keys_may_change(findings: Sequence[Finding]) -> bool:
    """Return whether an event may get another key: then its receiver cannot recognise it."""
    return any(one.subject == _SECRET and one.weakens for one in findings)


def _joined(reasons: Sequence[str]) -> str:
    return ", and because ".join(reasons)


def _of(scheme: str, table: dict[str, str]) -> str:
    """Look a scheme up: `rediss+cluster` is a redis, `postgresql` a postgres."""
    return next((text for name, text in table.items() if scheme.startswith(name)), "")
