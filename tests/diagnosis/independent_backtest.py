"""What the usual keys would have done with a capture, counted by dictionaries and loops alone.

It shares no code with Oncebridge, and reads no capture: it gets the deliveries as the road made them.
"""

import json
from datetime import datetime

SECOND, MINUTE, HOUR = 1000, 60_000, 3_600_000

#: Key -> for how long it remembers, in milliseconds; None: for ever.
REMEMBERS_MS = {
    "envelope_id": None,
    "conversation_10s": 10 * SECOND,
    "conversation_state_500ms": 500,
    "conversation_time": None,
    "content_hash": None,
    "sqs_fifo": 5 * MINUTE,
    "powertools": HOUR,
}


def text(value):
    """Write a value so that equal values are equal texts."""
    return json.dumps(value, sort_keys=True)


def body_of(envelope):
    """Return what the event says: Genesys' body, or the detail of a hand-made event."""
    return envelope["detail"].get("eventBody", envelope["detail"])


def conversation_of(envelope):
    """Return the id of the conversation, or None."""
    body = body_of(envelope)
    parts = envelope["detail-type"].split(".")
    if "conversations" in parts[3:]:  # a snapshot of a conversation, which is its id
        return body.get("id")
    return body.get("conversationId")


def moment_of(envelope):
    """Return when the event happened, in milliseconds: by its own account, or when it was published; or None."""
    body, published = body_of(envelope), envelope["detail"].get("timestamp")
    value = body.get("eventTime", body.get("metricDate", published))
    return value if value is None or isinstance(value, int) else round(datetime.fromisoformat(value).timestamp() * 1000)


def values_of(envelope):
    """Return what each key compares, None where the event has no such thing."""
    conversation, moment = conversation_of(envelope), moment_of(envelope)
    status = envelope["detail"].get("status")
    return {
        "envelope_id": envelope.get("id"),
        "conversation_10s": conversation,
        "conversation_state_500ms": None if None in (conversation, status) else (conversation, status),
        "conversation_time": None if None in (conversation, moment) else (conversation, moment),
        "content_hash": text(envelope["detail"]),
        "sqs_fifo": text(envelope),
        "powertools": text(envelope),
    }


def dropped_by(key, arrivals):
    """Return which deliveries a key would have dropped, by their place from 0."""
    remembers_ms, let_through_at, messages, dropped = REMEMBERS_MS[key], {}, set(), set()
    for n, arrival in enumerate(arrivals):
        value = values_of(arrival.envelope)[key]
        received_again = arrival.message_id in messages
        messages.add(arrival.message_id)
        if value is None or (key == "sqs_fifo" and received_again):
            continue  # FIFO compares what is sent, and this was sent once
        at_ms = let_through_at.get(value)
        if at_ms is not None and remembers_ms is not None:
            age_ms = arrival.arrived_ms - at_ms
            if age_ms == remembers_ms:
                raise ValueError(f"{key}: a delivery at the very end of what is remembered; take another seed")
            if age_ms > remembers_ms:
                at_ms = None
        if at_ms is None:
            let_through_at[value] = arrival.arrived_ms
        else:
            dropped.add(n)
    return dropped


def backtest(arrivals):
    """Count for each key the duplicates that it lets through, and the events that it loses."""
    duplicates = {n for n, arrival in enumerate(arrivals) if arrival.cause is not None}
    rows = {}
    for key in REMEMBERS_MS:
        dropped = dropped_by(key, arrivals)
        rows[key] = (len(duplicates - dropped), len(dropped - duplicates))
    rows["oncebridge"] = (sum(arrival.cause == "two_topics" for arrival in arrivals), 0)
    return rows
