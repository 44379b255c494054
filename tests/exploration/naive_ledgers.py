"""The ledgers that people write first, each with its mistake."""

from msgspec.structs import replace

from exploration.world import LEASE_US
from oncebridge import claim
from oncebridge.claim import Answer, Outcome, Status, Verdict
from oncebridge.ledgers.grants import Record
from oncebridge.ledgers.memory import MemoryLedger


class Naive(MemoryLedger):
    """Answers one ask at a time, without anything that deserves the name of a claim."""

    def claim(self, asks, *, nonce, lease_us):
        """Answer each."""
        return [self.answer(ask, self._clock.now_us() + place) for place, ask in enumerate(asks)]

    def known(self, ask):
        """Answer for an event that is remembered."""
        return Answer(claim.duplicate_verdict(ask, self.records[ask.key, ""].envelope))

    def remember(self, ask):
        """Write down that an event is done."""
        self.records[ask.key, ""] = Record(status=Status.DONE, envelope=ask.envelope, changed_us=self._clock.now_us())

    def settle(self, settlements):
        """Write down each event that is done."""
        for settlement in settlements:
            if settlement.outcome is Outcome.DONE:
                self.remember(settlement.claim.ask)
        return [True for _ in settlements]


class SetIfAbsent(Naive):
    """`SET NX`, then process: a worker that dies in between leaves a duplicate of nothing."""

    def answer(self, ask, token):
        """Remember at once."""
        if (ask.key, "") in self.records:
            return self.known(ask)
        self.remember(ask)
        return Answer(Verdict.FRESH, token)


class GetThenSet(Naive):
    """Look, process, write: a worker that looks in between processes too."""

    def answer(self, ask, token):
        """Remember nothing yet."""
        return self.known(ask) if (ask.key, "") in self.records else Answer(Verdict.FRESH, token)


class SettlesWithoutToken(MemoryLedger):
    """Claims well, but believes every worker that settles."""

    def settle(self, settlements):
        """Give every settlement the token that is in force."""
        return super().settle([replace(one, claim=replace(one.claim, token=self.token_of(one))) for one in settlements])

    def token_of(self, settlement):
        """Return the token of the worker that holds the event now."""
        return self.records[settlement.claim.ask.key, ""].token


class FailsWithoutToken(MemoryLedger):
    """Claims well, but a failure overwrites every record, even one that another worker has done."""

    def settle(self, settlements):
        """Write a failure without any condition."""
        (settlement,) = settlements
        at = (settlement.claim.ask.key, "")
        if settlement.outcome is not Outcome.RETRY or at not in self.records:
            return super().settle(settlements)
        attempts = self.records[at].attempts + 1
        self.records[at] = replace(self.records[at], status=Status.RETRY, nonce=b"", attempts=attempts)
        return [True]


class KeyedOtherwise(MemoryLedger):
    """Claims well, but takes something else for the event."""

    def claim(self, asks, *, nonce, lease_us):
        """Claim that instead, once in a call."""
        instead = {one.key: one for one in reversed([self.instead(ask) for ask in asks])}
        answers = dict(zip(instead, super().claim(list(instead.values()), nonce=nonce, lease_us=lease_us), strict=True))
        return [answers.pop(self.instead(ask).key, Answer(Verdict.REPUBLISH)) for ask in asks]

    def settle(self, settlements):
        """Settle that instead."""
        claims = [replace(one.claim, ask=self.instead(one.claim.ask)) for one in settlements]
        return super().settle([replace(one, claim=own) for one, own in zip(settlements, claims, strict=True)])


class KeyedByEnvelope(KeyedOtherwise):
    """The same event, published again, comes in another envelope."""

    def instead(self, ask):
        """Ask for the envelope."""
        return replace(ask, key=(ask.envelope or "").encode())


class KeyedByEntity(KeyedOtherwise):
    """The next change of a conversation is no duplicate of the last."""

    def instead(self, ask):
        """Ask for the entity."""
        return replace(ask, key=ask.entity)


class ForgetsSoon(MemoryLedger):
    """Forgets done events after a time that is shorter than the transport's last retry."""

    def claim(self, asks, *, nonce, lease_us):
        """Forget first."""
        self.purge(older_than_us=LEASE_US // 2)
        return super().claim(asks, nonce=nonce, lease_us=lease_us)
