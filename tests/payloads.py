"""Payloads as Genesys and the people between send them, made up here: one body per topic family, and hand-made shapes.

Everything is a plain dictionary, built anew at every call, so that a test may do with it what it likes.
"""

import copy
import json
from datetime import UTC, datetime

ORG = "5b1e6f0a-6f0c-4d57-9c4c-0d6a3a1f7e11"
OTHER_ORG = "c0ffee00-1111-4222-8333-944455556666"
ENVELOPE_ID = "7d3c1a52-90ab-0cde-5f01-23456789abcd"  # EventBridge's ids look like UUIDs, but need not be any version

CONVERSATION = "0a6d2f4e-3b1c-4c8e-9d57-6f1e2a3b4c5d"
PARTICIPANT = "1b7e305f-4c2d-4d9f-8e68-70213b4c5d6e"
SESSION = "2c8f4160-5d3e-4ea0-9f79-81324c5d6e7f"
USER = "3d905271-6e4f-4fb1-a08a-92435d6e7f80"
QUEUE = "4ea16382-7f50-40c2-b19b-a3546e7f8091"
FLOW = "5fb27493-8061-41d3-82ac-b4657f8091a2"
STATION = "60c385a4-9172-42e4-93bd-c5768091a2b3"
AUDIT = "71d496b5-a283-43f5-a4ce-d68791a2b3c4"
RECORD = "82e5a7c6-b394-4406-b5df-e798a2b3c4d5"

TIME_MS = 1_748_860_200_123  # 2025-06-02T10:30:00.123Z: when the event happened
PUBLISHED_MS = TIME_MS + 187

ABSENT = object()  # as a value: leave the field out


def iso(moment_ms, *, digits=3):
    """Write milliseconds as Genesys does; with no digits as EventBridge does."""
    text = datetime.fromtimestamp(moment_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    fraction = f"{moment_ms % 1000:03d}"[:digits]
    return f"{text}.{fraction}Z" if fraction else f"{text}Z"


def changed(fields, changes):
    """Copy a dictionary with some fields changed, added or left out."""
    merged = {**fields, **(changes or {})}
    return copy.deepcopy({name: value for name, value in merged.items() if value is not ABSENT})


def source(org=ORG, suffix="service-desk", domain="genesys.com"):
    """Write the partner event source of an organization."""
    return f"aws.partner/{domain}/cloud/{org}/{suffix}"


def detail(topic, body=None, **changes):
    """Build the notification of a topic: its usual body with some fields changed, and changes of the frame."""
    ids, usual = BODIES[topic]
    name = topic
    for one in ids:
        name = name.replace(name[name.index("{") : name.index("}") + 1], one, 1)
    usual_detail = {
        "topicName": name,
        "version": "2",
        "eventBody": changed(usual, body),
        "metadata": {"CorrelationId": "93f6b8d7-c4a5-4517-86e0-f8a9b3c4d5e6"},
        "timestamp": iso(PUBLISHED_MS),
    }
    return changed(usual_detail, changes)


def envelope(topic, body=None, *, frame=None, **changes):
    """Build the whole delivery of a topic.

    Args:
        topic: One of `BODIES`.

        body: Changes of its usual body.

        frame: Changes of the notification around the body.

        changes: Changes of the envelope; `detail_type` and `replay_name` for the names with a hyphen.

    """
    return in_envelope(detail(topic, body, **(frame or {})), detail_type=changes.pop("detail_type", topic), **changes)


def in_envelope(inner, **changes):
    """Put any detail into an envelope."""
    usual = {
        "version": "0",
        "id": ENVELOPE_ID,
        "detail-type": "Conversation Changed",
        "source": source(),
        "account": "210987654321",
        "time": iso(PUBLISHED_MS, digits=0),
        "region": "eu-west-2",
        "resources": [],
        "detail": inner,
    }
    return changed(usual, {name.replace("_", "-"): value for name, value in changes.items()})


def raw(tree):
    """Write a delivery as EventBridge does: compact."""
    return json.dumps(tree, ensure_ascii=False, separators=(",", ":")).encode()


# --- one usual body per topic family --------------------------------------------------------------------------

_CALL = {
    "mediaType": "VOICE",
    "provider": "Edge",
    "direction": "INBOUND",
    "ani": "tel:+447700900123",
    "dnis": "tel:+448081570456",
}
_CONVERSATION_DETAIL = {
    "eventTime": TIME_MS,
    "conversationId": CONVERSATION,
    "participantId": PARTICIPANT,
    "sessionId": SESSION,
    **_CALL,
    "divisionId": "a4071ce8-d5b6-4628-97f1-09bac4d5e6f7",
}
_DETAILS = {
    "customer.start": {"externalContactId": "b5182df9-e6c7-4739-a802-1acbd5e6f708"},
    "customer.end": {"disconnectType": "ENDPOINT", "interactingDurationMs": 61_234},
    "user.start": {"userId": USER, "queueId": QUEUE},
    "user.end": {"userId": USER, "queueId": QUEUE, "disconnectType": "TRANSFER", "alertingDurationMs": 2_210},
    "acd.start": {"queueId": QUEUE, "requestedRoutings": ["STANDARD"]},
    "acd.end": {"queueId": QUEUE, "acdOutcome": "ANSWERED", "answeredUserId": USER, "connectedDurationMs": 9_870},
    "flow.start": {"flowId": FLOW, "flowType": "INBOUNDCALL", "flowVersion": "12.0"},
    "flow.end": {"flowId": FLOW, "flowType": "INBOUNDCALL", "flowVersion": "12.0", "exitReason": "TRANSFER"},
    "flow.outcome": {
        "flowId": FLOW,
        "flowType": "INBOUNDCALL",
        "flowVersion": "12.0",
        "flowOutcomeId": "c6293e0a-f7d8-484a-b913-2bdce6f70819",
        "flowOutcomeStartTime": TIME_MS - 91_000,
        "flowOutcomeEndTime": TIME_MS - 89_500,
        "flowOutcomeValue": "FAILURE",
        "flowMilestones": [{"milestoneId": "d73a4f1b-08e9-495b-8a24-3cedf7081920", "milestoneTime": TIME_MS - 90_000}],
    },
    "voicemail.start": {"queueId": QUEUE},
    "voicemail.end": {"queueId": QUEUE, "disconnectType": "PEER"},
    "acw": {"userId": USER, "queueId": QUEUE, "wrapupCode": "e84b502c-19fa-4a6c-9b35-4dfe08192a31"},
    "wrapup": {"queueId": QUEUE, "wrapupCode": "e84b502c-19fa-4a6c-9b35-4dfe08192a31", "wrapupDurationMs": 14_002},
    "contact": {"externalContactId": "b5182df9-e6c7-4739-a802-1acbd5e6f708"},
    "outbound": {"outboundCampaignId": "f95c613d-2a0b-4b7d-ac46-5e0f192a3b42", "direction": "OUTBOUND"},
}
_ATTRIBUTES = {
    "eventTime": TIME_MS,
    "conversationId": CONVERSATION,
    "participantId": PARTICIPANT,
    "attributes": {"menu choice": "3", "verified": "yes"},
    "communications": [{"id": SESSION, "mediaType": "VOICE"}],
}
_METRIC = {
    "metric": "tTalk",
    "metricDate": iso(TIME_MS),
    "value": 48_213,
    "recordId": RECORD,
    "conversationId": CONVERSATION,
    "sessionId": SESSION,
    "mediaType": "voice",
    "direction": "inbound",
}
_READING = {
    "group": {"queueId": QUEUE, "mediaType": "voice"},
    "data": [
        {
            "interval": "2025-06-02T10:30:00.000Z/2025-06-02T11:00:00.000Z",
            "metrics": [{"metric": "oWaiting", "stats": {"count": 2}}],
        }
    ],
}
_AUDITED = {
    "id": AUDIT,
    "userId": USER,
    "userHomeOrgId": ORG,
    "username": {"id": ""},
    "clientId": {},
    "serviceName": "ContactCenter",
    "eventTime": iso(TIME_MS // 1000 * 1000),
    "action": "Update",
    "entityType": "Queue",
    "entity": {"id": QUEUE, "name": "Parcels"},
    "propertyChanges": [{"property": "acwTimeoutMs", "oldValues": ["30000"], "newValues": ["45000"]}],
}
_PRESENCE = {
    "source": "PURECLOUD",
    "presenceDefinition": {"id": "0a6d724e-3b1c-4c8e-bd57-6f102a3b4c53", "systemPresence": "MEAL"},
    "primary": True,
    "message": "",
    "modifiedDate": iso(TIME_MS),
}
_ACTIVITY = {
    "id": USER,
    "routingStatus": {"status": "IDLE", "startTime": iso(TIME_MS - 40_000)},
    "presence": {
        "presenceDefinition": {"id": "1b7e835f-4c2d-4d9f-8e68-70213b4c5d64", "systemPresence": "ON_QUEUE"},
        "presenceMessage": "",
        "modifiedDate": iso(TIME_MS),
    },
    "outOfOffice": {"active": False},
    "activeQueueIds": [QUEUE],
    "dateActiveQueuesChanged": iso(TIME_MS - 3_600_000),
}
_SNAPSHOT = {
    "id": CONVERSATION,
    "participants": [
        {
            "id": PARTICIPANT,
            "purpose": "customer",
            "connectedTime": iso(TIME_MS - 20_000),
            "calls": [{"id": SESSION, "state": "connected", "held": False}],
        }
    ],
    "recordingState": "none",
}
_WORKITEM = {
    "id": "2c8f9460-5d3e-4ea0-9f79-81324c5d6e75",
    "name": "Call back about a parcel",
    "dateModified": iso(TIME_MS),
    "statusCategory": "InProgress",
    "operation": "edit",
    "changes": [{"op": "replace", "field": "priority", "oldValue": "1", "newValue": "5"}],
}
_CAMPAIGN = {
    "id": "3d90a571-6e4f-4fb1-a08a-92435d6e7f86",
    "name": "Parcels, evening",
    "dateModified": iso(TIME_MS),
    "version": 7,
    "campaignStatus": "on",
    "abandonRate": 3.5,
}
_CONTACTED = {"eventTime": TIME_MS, "campaignId": _CAMPAIGN["id"], "contactId": "c-1007", "eventType": "PRE_CONTACT"}

#: Topic -> the ids in its name, and its usual body.
BODIES = {
    **{
        f"v2.detail.events.conversation.{{id}}.{suffix}": ((CONVERSATION,), {**_CONVERSATION_DETAIL, **fields})
        for suffix, fields in _DETAILS.items()
    },
    "v2.detail.events.conversation.{id}.attributes": ((CONVERSATION,), _ATTRIBUTES),
    "v2.detail.events.agent.{id}.state": (
        (USER,),
        {
            "userId": USER,
            "conversationId": CONVERSATION,
            "sessionId": SESSION,
            "sessionStart": TIME_MS - 5_000,
            "currentState": "ALERT",
            "currentStateStart": TIME_MS,
        },
    ),
    "v2.analytics.conversation.{id}.metrics": ((CONVERSATION,), _METRIC),
    "v2.analytics.flow.{id}.metrics": ((FLOW,), {**_METRIC, "metric": "nFlow", "flowId": FLOW}),
    "v2.analytics.queues.{id}.observations": ((QUEUE,), _READING),
    "v2.analytics.queues.{id}.activity": ((QUEUE,), {"group": {"queueId": QUEUE}, "data": []}),
    "v2.analytics.users.{id}.aggregates": ((USER,), _READING),
    "v2.analytics.flow.{id}.aggregates": ((FLOW,), _READING),
    "v2.analytics.flowoutcome.{id}.aggregates": ((FLOW,), _READING),
    "v2.analytics.wrapup.{id}.aggregates": ((QUEUE,), _READING),
    "v2.audits.entitytype.{id}.entityid.{id}": (("Queue", QUEUE), _AUDITED),
    "v2.users.{id}.presence": ((USER,), _PRESENCE),
    "v2.users.{id}.routingStatus": (
        (USER,),
        {"id": USER, "routingStatus": {"status": "INTERACTING", "startTime": iso(TIME_MS)}},
    ),
    "v2.users.{id}.activity": ((USER,), _ACTIVITY),
    "v2.users.{id}.persistentconnection": (
        (USER,),
        {"userId": USER, "stationId": STATION, "persistentState": "PERSISTED", "eventTime": iso(TIME_MS)},
    ),
    "v2.users.{id}.geolocation": ((USER,), {"country": "Erewhon", "region": "Middle", "city": "Nowhere"}),
    "v2.users.{id}.conversations": ((USER,), _SNAPSHOT),
    "v2.users.{id}.conversations.calls": ((USER,), _SNAPSHOT),
    "v2.users.{id}.conversations.messages": ((USER,), _SNAPSHOT),
    "v2.routing.queues.{id}.conversations": ((QUEUE,), _SNAPSHOT),
    "v2.routing.queues.{id}.conversations.emails": ((QUEUE,), _SNAPSHOT),
    "v2.routing.queues.{id}.users": (
        (QUEUE,),
        {"id": "4ea1b682-7f50-40c2-b19b-a3546e7f8097", "queueId": QUEUE, "user": {"id": USER}, "joined": True},
    ),
    "v2.conversations.{id}.transcription": (
        (CONVERSATION,),
        {
            "eventTime": iso(TIME_MS),
            "organizationId": ORG,
            "conversationId": CONVERSATION,
            "communicationId": SESSION,
            "transcripts": [
                {
                    "utteranceId": "5fb2c793-8061-41d3-82ac-b4657f8091a8",
                    "isFinal": True,
                    "alternatives": [{"confidence": 0.91, "transcript": "where is my parcel"}],
                }
            ],
            "status": {"offsetMs": 12_400, "status": "SESSION_ONGOING"},
        },
    ),
    "v2.operations.events.{id}": (
        ("60c3d8a4-9172-42e4-93bd-c5768091a2b9",),
        {
            "eventEntity": {"id": "60c3d8a4-9172-42e4-93bd-c5768091a2b9", "name": "Data action failing"},
            "entityId": "71d4e9b5-a283-43f5-a4ce-d68791a2b3ca",
            "previousValue": "OK",
            "currentValue": "FAILING",
            "version": "3",
            "timestamp": TIME_MS,
            "entityModifiedDate": iso(TIME_MS - 500_000),
        },
    ),
    "v2.taskmanagement.workitems.{id}": ((_WORKITEM["id"],), _WORKITEM),
    "v2.taskmanagement.workitems.queues.{id}": ((QUEUE,), _WORKITEM),
    "v2.taskmanagement.workitems.users.{id}": ((USER,), _WORKITEM),
    "v2.outbound.campaigns.{id}": ((_CAMPAIGN["id"],), _CAMPAIGN),
    "v2.outbound.schedules.campaigns.{id}": ((_CAMPAIGN["id"],), _CAMPAIGN),
    "v2.outbound.settings": ((), {**_CAMPAIGN, "maxCallsPerAgent": 2}),
    "v2.outbound.voice.campaigns.contact.preContact": ((), _CONTACTED),
    "v2.quality.evaluations": (
        (),
        {
            "id": "82e5fac6-b394-4406-b5df-e798a2b3c4db",
            "conversationId": CONVERSATION,
            "status": "Finished",
            "previousStatus": "InProgress",
            "eventTime": iso(TIME_MS),
            "version": 4,
        },
    ),
    "v2.externalcontacts.contacts.{id}": (
        ("93f60bd7-c4a5-4517-86e0-f8a9b3c4d5ec",),
        {
            "id": "93f60bd7-c4a5-4517-86e0-f8a9b3c4d5ec",
            "type": "Curated",
            "lastName": "Doe",
            "modifyDate": iso(TIME_MS),
        },
    ),
    "v2.webmessaging.deployments.{id}.undelivered.messages": (
        ("a4071ce8-d5b6-4628-97f1-09bac4d5e6fd",),
        {"eventTimeMs": TIME_MS, "conversationId": CONVERSATION, "reason": "EXPIRED"},
    ),
}

ACW = "v2.detail.events.conversation.{id}.acw"
ATTRIBUTES = "v2.detail.events.conversation.{id}.attributes"
AUDITS = "v2.audits.entitytype.{id}.entityid.{id}"
METRICS = "v2.analytics.conversation.{id}.metrics"
OBSERVATIONS = "v2.analytics.queues.{id}.observations"
OUTCOME = "v2.detail.events.conversation.{id}.flow.outcome"
PRESENCE = "v2.users.{id}.presence"
ROUTING_STATUS = "v2.users.{id}.routingStatus"
ACTIVITY = "v2.users.{id}.activity"
SNAPSHOT = "v2.users.{id}.conversations"
TRANSCRIPTION = "v2.conversations.{id}.transcription"


def presence(system, *, modified_ms=None, published_ms=PUBLISHED_MS, user=USER, **changes):
    """Build the presence of a user, with or without a date of change."""
    body = {
        "presenceDefinition": {"id": f"definition of {system}", "systemPresence": system},
        "modifiedDate": ABSENT if modified_ms is None else iso(modified_ms),
    }
    frame = {"topicName": f"v2.users.{user}.presence", "timestamp": iso(published_ms)}
    return envelope(PRESENCE, body, frame=frame, **changes)


def routing_status(status, since_ms, **changes):
    """Build a routing status."""
    return envelope(ROUTING_STATUS, {"routingStatus": {"status": status, "startTime": iso(since_ms)}}, **changes)


# --- shapes that people make by hand ---------------------------------------------------------------------------


def call_status(state="connected", *, moment=TIME_MS, conversation="call-31", **changes):
    """Build the call status that an agent desktop listens to."""
    inner = {"conversationId": conversation, "state": state, "timestamp": moment, "participantCount": 2}
    return in_envelope(inner, **{"detail_type": "conversation:call:status", "source": "custom.desktop", **changes})


def status_change(status="held", *, event_id="change-0001", conversation="call-31", **changes):
    """Build the smallest shape: no envelope id, no time, snake case."""
    inner = {"event_id": event_id, "conversation_id": conversation, "status": status}
    usual = {"source": "contact.centre", "detail-type": "Status Of Conversation", "detail": inner}
    return changed(usual, {name.replace("_", "-"): value for name, value in changes.items()})


def queue_conversation(status="waiting", *, event_id="route-0001", moment=TIME_MS, conversation="call-31", **changes):
    """Build the routing event whose twins have different event ids."""
    inner = {"eventId": event_id, "conversationId": conversation, "status": status, "timestamp": iso(moment)}
    return in_envelope(inner, **{"detail_type": "routing:queueConversation", "source": "contact.centre", **changes})


def tutorial(status="alerting", *, event_id="tutorial-0001", conversation="call-31", **changes):
    """Build the shape with everything inside a body, and a time of whole seconds."""
    inner = {
        "eventId": event_id,
        "eventType": "conversation.changed",
        "timestamp": iso(TIME_MS, digits=0),
        "body": {"conversationId": conversation, "status": status},
    }
    return in_envelope(inner, **{"detail_type": ABSENT, "source": "contact.centre", **changes})


def interaction_update(*, interaction="call-31", **changes):
    """Build the shape with an interaction id, a type and data."""
    inner = {
        "type": "conversation:call:changed",
        "interactionId": interaction,
        "data": {"id": interaction, "held": True},
    }
    return in_envelope(inner, **{"detail_type": ABSENT, "source": "contact.centre", **changes})


HAND_MADE = {
    "call status": call_status,
    "status change": status_change,
    "queue conversation": queue_conversation,
    "tutorial": tutorial,
    "interaction update": interaction_update,
}

# --- what must never be seen outside a payload -----------------------------------------------------------------

CANARIES = {
    "phone": "+442079460958",
    "name": "Wilhelmina Canary-Featherstone",
    "transcript": "my mother's maiden name is canarsie",
    "attribute": "canary-loyalty-4471",
    "address": "canary@birdcage.example",
    "conversation": "canary-conversation-9f1",
    "user": "canary-user-77c",
}


def personal():
    """Build deliveries of several families that are full of personal data."""
    who = {"conversationId": CANARIES["conversation"]}
    return [
        envelope(ACW, {**who, "ani": f"tel:{CANARIES['phone']}", "userId": CANARIES["user"]}),
        envelope(ATTRIBUTES, {**who, "attributes": {"customer": CANARIES["name"], "card": CANARIES["attribute"]}}),
        envelope(TRANSCRIPTION, {**who, "transcripts": [{"transcript": CANARIES["transcript"]}]}),
        envelope(SNAPSHOT, {"id": CANARIES["conversation"], "participants": [{"address": CANARIES["address"]}]}),
        envelope(PRESENCE, {"message": CANARIES["name"]}, frame={"topicName": f"v2.users.{CANARIES['user']}.presence"}),
        queue_conversation(event_id=CANARIES["attribute"], conversation=CANARIES["conversation"]),
    ]
