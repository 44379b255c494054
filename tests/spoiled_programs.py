"""Programs that are broken on purpose, by name: processes that are started anew can find them."""

from oncebridge.claim import Answer, Claim, Outcome, Settlement, Verdict
from oncebridge.errors import LedgerUnavailable


def done_before_its_effect(bridge):
    """Call a fact done as soon as it is claimed, as a lock does that outlives its worker."""
    kind = type(bridge.ledger)

    def claim(self, asks, *given, **named):
        answers = kind.claim(self, asks, *given, **named)
        ours = [
            Claim(ask, answer.token, answer.attempt, answer.chain)
            for ask, answer in zip(asks, answers, strict=True)
            if answer.verdict is Verdict.FRESH and ask.entity is None
        ]
        if ours:
            kind.settle(self, [Settlement(one, Outcome.DONE) for one in ours])
        return answers

    bridge.ledger.__class__ = type("Hasty", (kind,), {"__slots__": (), "claim": claim})


def acknowledged_without_a_ledger(bridge):
    """Take whatever cannot be asked for a duplicate, as a lock does that "fails open"."""
    kind = type(bridge.ledger)

    def claim(self, asks, *given, **named):
        try:
            return kind.claim(self, asks, *given, **named)
        except LedgerUnavailable:
            return [Answer(Verdict.REDELIVERY) for _ in asks]

    bridge.ledger.__class__ = type("Careless", (kind,), {"__slots__": (), "claim": claim})


def keeps_what_it_was_asked(bridge):
    """Keep sixteen kilobytes of each event for ever, in a list that nobody looks at."""
    kind, kept = type(bridge.ledger), []

    def claim(self, asks, *given, **named):
        kept.extend(bytes([len(kept) % 256]) * 16_384 for _ in asks)
        return kind.claim(self, asks, *given, **named)

    bridge.ledger.__class__ = type("Hoarder", (kind,), {"__slots__": (), "claim": claim})
