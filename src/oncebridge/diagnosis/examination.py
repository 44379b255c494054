"""Examines an installation: its settings, its ledger as far as that answers, its sinks, and the promise it gives."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Final

import msgspec

from oncebridge.claim import Ask, Claim, Outcome, Settlement
from oncebridge.diagnosis import comparable, installation, retries
from oncebridge.errors import LedgerRefused, LedgerUnavailable, LedgerWarning
from oncebridge.ledgers import kind_of
from oncebridge.ledgers.findings import Finding, wrong
from oncebridge.ledgers.protocol import Examines, MayForget, SettlesInTransaction
from oncebridge.sinks.letters import make_copiers
from oncebridge.sources.sqs.queue import Queue, QueueError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from oncebridge.bridge import Bridge
    from oncebridge.clock import Clock
    from oncebridge.diagnosis.installation import Promise
    from oncebridge.ledgers.protocol import Ledger

ROUND_TRIPS: Final = 5
NOBODYS_KEY: Final = bytes(16)  # the key of no event: keys are hashes


class Examined(msgspec.Struct, frozen=True, kw_only=True):
    """What an examination found."""

    findings: list[Finding]
    promises: list[Promise]
    #: Whether nothing has to be changed.
    is_right: bool
    #: Whether the ledger did not answer, so that it has to be looked at again.
    out_of_reach: bool


def examine(bridge: Bridge, clock: Clock, *, queue: str | None = None) -> Examined:
    """Examine everything, the queue in front too if its URL is given. Changes nothing, and closes the ledger."""
    examination = Examination(bridge, clock)
    findings = examination.findings()
    at_sinks = {name: list(sink.examine()) for name, sink in bridge.sinks.items() if isinstance(sink, Examines)}
    of_topics = installation.topics(bridge.handlers, [profile.topic for profile in bridge.settings.profiles])
    made = make_copiers(bridge.settings, bridge.sink_context)
    copiers: dict[str, object] = {copier.name: copier.function for copier in made}
    at_letters = {name: list(copier.examine()) for name, copier in copiers.items() if isinstance(copier, Examines)}
    promises = installation.no_promises(bridge.handlers)
    if examination.usable:
        promises = _promises(bridge, findings, at_sinks, of_topics)
    findings += of_topics.values()
    findings += _retries(bridge, queue)
    findings += comparable.sign_in(bridge.settings.genesys, clock, attendance=bridge.settings.attendance)
    for name, found in at_sinks.items():
        findings += installation.of_sink(name, found)
    for name, found in at_letters.items():
        findings += installation.of_letters(name, found)
    return Examined(
        findings=findings,
        promises=promises,
        is_right=installation.is_right(findings),
        out_of_reach=examination.out_of_reach,
    )


def _retries(bridge: Bridge, url: str | None) -> list[Finding]:
    """Judge how long events are tried, and the queue that keeps them meanwhile, if it is named."""
    settings = bridge.settings
    found = retries.spans(bridge.handlers, settings.retry, settings.queue_retention_days)
    if url is None:
        return found
    queue = Queue.connected(url, poll_seconds=0, workers=1)
    attempts = max([(handler.retry or settings.retry).attempts for handler in bridge.handlers], default=0)
    try:
        found += retries.queue(queue.attributes(), attempts or settings.retry.attempts, settings.queue_retention_days)
    except QueueError as trouble:
        found.append(wrong("queue", str(trouble), "allow sqs:GetQueueAttributes there, then look again"))
    finally:
        queue.close()
    return found


class Examination:
    """Looks at the settings, and at the ledger as far as it answers."""

    def __init__(self, bridge: Bridge, clock: Clock) -> None:
        """Take the installation to examine; nothing is opened yet."""
        self._bridge = bridge
        self._clock = clock
        self.usable = True
        self.out_of_reach = False

    def findings(self) -> list[Finding]:
        """Examine everything; trouble with the ledger is a finding too, and earlier findings stay."""
        general: list[Finding] = []
        own: list[Finding] = []
        try:
            self._look(general, own)
        except LedgerUnavailable as error:
            self.usable, self.out_of_reach = False, True
            own.append(installation.unreachable(_kind(self._bridge), str(error)))
        except LedgerRefused as error:
            self.usable = False
            own.append(installation.refused(str(error)))
        finally:
            self._bridge.ledger.close()
        settings = self._bridge.settings
        if settings.shadow:
            general.append(installation.shadow())
        general.append(installation.retention(settings.retention_days, settings.queue_retention_days))
        return installation.together(general, own)

    def _look(self, general: list[Finding], own: list[Finding]) -> None:
        """Look at the ledger: as at any other, and as it looks at itself."""
        ledger, settings = self._bridge.ledger, self._bridge.settings
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LedgerWarning)  # what it warns of is found below
            ledger.open(settings.secret)
        times_us = [self._round_trip_us(ledger) for _ in range(ROUND_TRIPS)]
        general.append(installation.latency(times_us, settings.lease_seconds))
        forgettable = isinstance(ledger, MayForget) and ledger.may_forget
        general.append(installation.secret(given=settings.secret is not None, forgettable=forgettable))
        if forgettable:
            elsewhere = settings.dead_letter_queue or settings.dead_letter_bus
            general.append(installation.dead_letters(elsewhere=elsewhere is not None))
        trouble = _try_to_write(ledger)
        self.usable = trouble is None
        general.append(installation.permissions(trouble))
        wanted, is_asked_for = settings.attendance, comparable.is_set(settings.genesys)
        now_us = self._clock.now_us()
        general += comparable.attendance(ledger, wanted=wanted, is_asked_for=is_asked_for, now_us=now_us)
        if not isinstance(ledger, Examines):
            own.append(installation.unexamined())
            return
        for finding in ledger.examine():
            own.append(finding)  # noqa: PERF402 - one by one: the next may be trouble

    def _round_trip_us(self, ledger: Ledger) -> int:
        before_us = self._clock.monotonic_us()
        ledger.get(NOBODYS_KEY)
        return self._clock.monotonic_us() - before_us


def _try_to_write(ledger: Ledger) -> str | None:
    """Return why the ledger cannot be written to, if so.

    A real claim could not be taken back without a trace. To extend and settle one that nobody holds goes the whole way
    to the write, which then finds nothing to change.
    """
    nobodys = Claim(Ask(key=NOBODYS_KEY), token=1)
    try:
        ledger.extend([nobodys], lease_us=1)
        ledger.settle([Settlement(nobodys, Outcome.RELEASE)])
    except (LedgerUnavailable, LedgerRefused) as error:
        return str(error)
    return None


def _promises(
    bridge: Bridge,
    findings: Sequence[Finding],
    at_sinks: Mapping[str, Sequence[Finding]],
    of_topics: Mapping[str, Finding],
) -> list[Promise]:
    return installation.promises(
        bridge.handlers,
        _kind(bridge),
        findings,
        transactions=isinstance(bridge.ledger, SettlesInTransaction),
        at_sinks=at_sinks,
        of_topics=of_topics,
    )


def _kind(bridge: Bridge) -> str:
    return kind_of(bridge.ledger, bridge.settings.ledger)
