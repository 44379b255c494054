"""Conversations that never happened, twice: as the events that they bring, and as Genesys' analytics describe them."""

import json
import random
import uuid
from dataclasses import dataclass, field

import payloads
from oncebridge.genesys.conversations import read_conversation

DETAIL = "v2.detail.events.conversation.{id}."
BEGAN_MS = 1_772_438_400_000  # 2026-03-02T08:00:00Z
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


@dataclass
class Session:
    """One session of a participant."""

    purpose: str
    id: str
    began_ms: int
    ended_ms: int
    wrapped_ms: int | None = None

    def as_participant(self):
        """Describe it as analytics do."""
        segments = [
            {"segmentStart": iso(self.began_ms), "segmentEnd": iso(self.ended_ms), "segmentType": "interact"},
        ]
        if self.wrapped_ms:
            wrap = {"segmentStart": iso(self.ended_ms), "segmentEnd": iso(self.wrapped_ms), "segmentType": "wrapup"}
            segments.append({**wrap, "wrapUpCode": "00000000-0000-0000-0000-000000000001"})
        session = {"sessionId": self.id, "mediaType": "voice", "direction": "inbound", "segments": segments}
        return {"participantId": f"p-{self.id}", "purpose": self.purpose, "sessions": [session]}


@dataclass
class Conversation:
    """One conversation."""

    id: str
    sessions: list[Session] = field(default_factory=list)

    @property
    def began_ms(self):
        """When it began."""
        return min(one.began_ms for one in self.sessions)

    @property
    def ended_ms(self):
        """When it ended, after-call work included."""
        return max(one.wrapped_ms or one.ended_ms for one in self.sessions)

    @property
    def details(self):
        """The conversation in an answer of analytics."""
        return {
            "conversationId": self.id,
            "conversationStart": iso(self.began_ms),
            "conversationEnd": iso(self.ended_ms),
            "mediaStatsMinConversationMos": 4.88,
            "divisionIds": ["d"],
            "participants": [one.as_participant() for one in self.sessions],
        }

    def events(self):
        """Yield the family, the session and the delivery of each event."""
        for one in self.sessions:
            kind = {"agent": "user", "ivr": "flow"}.get(one.purpose, one.purpose)
            yield f"{kind}.start", one.id, one.began_ms
            yield f"{kind}.end", one.id, one.ended_ms
            if one.wrapped_ms:
                yield "wrapup", one.id, one.wrapped_ms

    def deliveries(self):
        """Yield the same with its delivery as EventBridge hands it out."""
        for family, session, at_ms in self.events():
            yield family, session, at_ms, delivery(self.id, family, session, at_ms)


def read(talk):
    """Read a conversation from what analytics say of it."""
    return read_conversation(json.dumps(talk.details).encode())


def iso(ms):
    """Write a time as Genesys does."""
    return payloads.iso(ms)


def delivery(conversation, family, session, at_ms):
    """Build the delivery of one detail event."""
    body = {
        "eventTime": at_ms,
        "conversationId": conversation,
        "participantId": f"p-{session}",
        "sessionId": session,
        "mediaType": "VOICE",
    }
    topic = DETAIL + family
    inner = {
        "topicName": topic.replace("{id}", conversation),
        "version": "2",
        "eventBody": body,
        "metadata": {},
        "timestamp": iso(at_ms + 64),
    }
    return payloads.in_envelope(inner, detail_type=topic, id=str(uuid.uuid5(uuid.NAMESPACE_OID, f"{family} {session}")))


def conversations(number, *, began_ms=BEGAN_MS, every_ms=MINUTE_MS, seed=1):
    """Make conversations that begin one after the other, each some minutes long."""
    dice = random.Random(seed)

    def new_id():
        return str(uuid.UUID(int=dice.getrandbits(128), version=4))

    found = []
    for place in range(number):
        at_ms = began_ms + place * every_ms + dice.randrange(every_ms // 2)
        flow_ms = at_ms + dice.randrange(5000, 20_000)
        answered_ms = flow_ms + dice.randrange(2000, 60_000)
        ended_ms = answered_ms + dice.randrange(30_000, 240_000)
        sessions = [Session("customer", new_id(), at_ms, ended_ms), Session("ivr", new_id(), at_ms + 5, flow_ms)]
        sessions.append(Session("acd", new_id(), flow_ms, answered_ms))
        middle_ms = answered_ms + (ended_ms - answered_ms) // 2
        if dice.random() < 0.3:  # a transfer
            sessions.append(Session("agent", new_id(), flow_ms + 100, middle_ms, middle_ms + 9000))
            sessions.append(Session("agent", new_id(), middle_ms + 50, ended_ms, ended_ms + 12_000))
        else:
            sessions.append(Session("agent", new_id(), flow_ms + 100, ended_ms, ended_ms + 15_000))
        found.append(Conversation(new_id(), sessions))
    return found


def stream(talks, left_out=lambda conversation, family, at_ms: False):
    """Return the deliveries of conversations in the order of their times, without those that are left out."""
    found = [
        (at_ms, raw)
        for talk in talks
        for family, _, at_ms, raw in talk.deliveries()
        if not left_out(talk, family, at_ms)
    ]
    return [raw for _, raw in sorted(found, key=lambda one: one[0])]


def truth(talks, left_out):
    """Return what is missing of each conversation, in families."""
    missing = {}
    for talk in talks:
        gone = sorted({family for family, _, at_ms in talk.events() if left_out(talk, family, at_ms)})
        if gone:
            missing[talk.id] = gone
    return missing
