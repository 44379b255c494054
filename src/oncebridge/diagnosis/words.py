"""What a diagnosis says of each cause: its name, the evidence, what to do, and the reason for one duplicate."""

from __future__ import annotations

from typing import Final

from oncebridge.diagnosis.diagnosis import Cause
from oncebridge.diagnosis.evidence import Relation

TITLES: Final = {
    Cause.SQS_REDELIVERY: "SQS delivered the same message again",
    Cause.LAMBDA_RETRY: "Lambda tried a failed invocation again",
    Cause.EVENTBRIDGE_RETRY: "EventBridge sent the same envelope again",
    Cause.OVERLAPPING_RULES: "two rules or targets match",
    Cause.SECOND_INTEGRATION: "a second integration or bus brings the same events",
    Cause.GENESYS_REPUBLISH: "Genesys sent the event again",
    Cause.ARCHIVE_REPLAY: "an archive was replayed",
    Cause.TWO_TOPICS: "two topics bring the same fact",
    Cause.ECHO: "a state was said again within its echo window",
    Cause.UNKNOWN: "the capture does not tell who repeated it",
}
#: After "because", in the first sentence.
BECAUSE: Final = {
    Cause.SQS_REDELIVERY: "SQS delivered messages again",
    Cause.LAMBDA_RETRY: "Lambda tried again",
    Cause.EVENTBRIDGE_RETRY: "EventBridge tried again",
    Cause.OVERLAPPING_RULES: "two rules or targets match",
    Cause.SECOND_INTEGRATION: "a second integration or bus brings the same events",
    Cause.GENESYS_REPUBLISH: "Genesys sent events again",
    Cause.ARCHIVE_REPLAY: "an archive was replayed",
    Cause.TWO_TOPICS: "two topics bring the same facts",
    Cause.ECHO: "states were said again within half a second or so",
    Cause.UNKNOWN: "of something that this capture does not tell",
}
EVIDENCE: Final = {
    Cause.SQS_REDELIVERY: (
        "The same message id came more than once: the message was not deleted before it was visible again."
    ),
    Cause.LAMBDA_RETRY: (
        "The same envelope came again under the same request id, or in a function's log after a minute and two more: "
        "the function failed, and Lambda repeats an asynchronous invocation twice."
    ),
    Cause.EVENTBRIDGE_RETRY: (
        "The same envelope id came later in another message or invocation, now and then and not as a rule: EventBridge "
        "had no answer from the target in time."
    ),
    Cause.OVERLAPPING_RULES: (
        "The same envelope id came more than once at the same time, in different messages or at different targets."
    ),
    Cause.SECOND_INTEGRATION: (
        "The same event came under different envelope ids from different partner sources, accounts or regions."
    ),
    Cause.GENESYS_REPUBLISH: (
        "The same event came from the same source under a new envelope id: Genesys published it again, as it does "
        "for up to four days when it gets no answer."
    ),
    Cause.ARCHIVE_REPLAY: "The envelopes carry the name of a replay.",
    Cause.TWO_TOPICS: "Events of two topics say the same of the same conversation or agent at the same time.",
    Cause.ECHO: "The same state of the same entity was published again within the echo window, with another time.",
    Cause.UNKNOWN: "The same event came again, but nothing around it says which hop repeated it.",
}
ADVICE: Final = {
    Cause.SQS_REDELIVERY: (
        "Make the visibility timeout at least six times the function's timeout, switch on ReportBatchItemFailures, and "
        "look for errors and timeouts of the function."
    ),
    Cause.LAMBDA_RETRY: (
        "Look for errors and timeouts in the function's log at the first attempt. Put a queue between rule and "
        "function: after two retries Lambda gives the event up."
    ),
    Cause.EVENTBRIDGE_RETRY: (
        "Look at the rule's FailedInvocations and at the target's throttling, and give the target a dead-letter queue. "
        "The repeats themselves are normal, and need a key that outlives 24 hours."
    ),
    Cause.OVERLAPPING_RULES: (
        "List the rules of the bus and their targets (aws events list-rules, list-targets-by-rule), and remove or "
        "narrow one of each pair that matches the same topics."
    ),
    Cause.SECOND_INTEGRATION: (
        "Remove the topics from one of the Amazon EventBridge integrations in Genesys Cloud, or give each integration "
        "a bus and a queue of its own."
    ),
    Cause.GENESYS_REPUBLISH: (
        "Nothing to repair: it cannot be switched off. A key on the envelope id does not see it; compare the event "
        "itself, for five days at least."
    ),
    Cause.ARCHIVE_REPLAY: (
        "Name the rules that a replay is for. If handlers are to see replayed events again, set replays_anew = true."
    ),
    Cause.TWO_TOPICS: (
        "Unsubscribe from one of the two topics in the integration, or let a handler take only one. Oncebridge keeps "
        "both, since they are two events."
    ),
    Cause.ECHO: (
        "Nothing to repair: Oncebridge recognises them. A handler of your own should compare with the newest state, "
        "not with a key alone."
    ),
    Cause.UNKNOWN: (
        "Capture with what AWS writes around the events: SQS messages with their attributes, or a function's log with "
        "its START lines; docs/captures.md shows how."
    ),
}

#: For one duplicate: `first` is the delivery that it repeats, `since` how long ago that was, `lag` how long ago the
#: first one of the event was, `named` what the evidence names, `share` how regular it is.
REASONS: Final = {
    Relation.SAME_MESSAGE: "the same SQS message as {first}, received {named}",
    Relation.CAPTURED_TWICE: "everything around it is as in {first}: the capture itself seems to hold it twice",
    Relation.SAME_REQUEST: "the same envelope and the same request id as {first}, {since} later: Lambda tried again",
    Relation.SAME_INVOCATION: "logged in the same invocation as {first}: the function wrote its event more than once",
    Relation.IN_RHYTHM: "the same envelope as {first} in a function's log, {since} later: as long as Lambda waits",
    Relation.OTHER_TARGET: "the same envelope as {first} at two {named}: two rules or targets get it",
    Relation.AT_ONCE: "the same envelope as {first}, {since} apart; {share} come twice: {rule}",
    Relation.SOON: (
        "the same envelope as {first}, at most {named} apart, which is sooner than a queue or Lambda repeats; {share} "
        "come twice: {rule}"
    ),
    Relation.OTHER_FILE: "the same envelope as {first} in another file: the files may hold the same deliveries",
    **dict.fromkeys(
        (Relation.PERHAPS_AT_ONCE, Relation.PERHAPS_THRICE, Relation.PERHAPS_OFTEN),
        "the same envelope as {first}; nothing says how long after it came, or who repeated it",
    ),
    Relation.LATER: "the same envelope as {first}, sent again {since} later: EventBridge tried again",
    Relation.SENT_AGAIN: "the same envelope as {first}, sent again {since} later: EventBridge tried again",
    Relation.LATER_UNTOLD: (
        "the same envelope as {first}, at least {since} later; the capture does not say whether a queue, Lambda or "
        "EventBridge repeated it"
    ),
    Relation.REPLAY: "delivered again {lag} after the first time by the archive replay {named}",
    Relation.OTHER_ORIGIN: "the same event as {first} from a second integration or bus: {named}",
    Relation.NEW_ENVELOPE: "the same event as {first} in a new envelope, {since} later: Genesys sent it again",
    Relation.NO_ENVELOPE: "the same event as {first}; without envelope ids nothing tells who repeated it",
    Relation.ECHO: "the same state as in {first}, {since} before, as an event of its own",
    Relation.OTHER_TOPIC: "the same fact as {first} of the topic {named}",
}
#: The same where a rule is behind it.
REGULAR_REASONS: Final = {
    Relation.PERHAPS_AT_ONCE: REASONS[Relation.AT_ONCE],
    Relation.PERHAPS_THRICE: "the same envelope as {first}, {since} apart; {share} come three times: {rule}",
    Relation.LATER: "the same envelope as {first}, {since} later, like {share}: two rules match, one path is slower",
}

#: Things that only look like duplicates: title, and what they are.
LOOK_ALIKES: Final = {
    "late": (
        "Late states",
        (
            "A newer state of the same entity came before. Not a duplicate: disorder. Handled after the newer one it "
            "would set the entity back; Oncebridge calls it stale."
        ),
    ),
    "again": (
        "The same state again",
        (
            "An entity was in this state before, outside the echo window: it stayed or came back, which is news. A key "
            "on the state alone loses it."
        ),
    ),
    "tie": (
        "Two states at one time",
        (
            "Two different states of an entity with the same time: both are real. A key on conversation and timestamp "
            "loses one."
        ),
    ),
    "clock": (
        "Clocks that differ",
        (
            "The event says that it happened after it was published, by more than a second: two clocks differ. "
            "Comparing its time with that of other systems makes copies out of nothing."
        ),
    ),
    "conflict": (
        "The same id, another content",
        (
            "An id that came before with other content. Never a duplicate: Oncebridge keeps it as a dead letter to be "
            "looked at."
        ),
    ),
}
