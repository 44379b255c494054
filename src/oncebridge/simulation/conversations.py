"""The course of a conversation: what happens to it, step by step, from the first ring to the wrap-up."""

from typing import Any, Final

import msgspec

from oncebridge.simulation.agents import Agent
from oncebridge.simulation.analytics import publish_metric, publish_transcription
from oncebridge.simulation.dice import Dice
from oncebridge.simulation.publishing import QUIET_MS, Body, Publisher, StateTopic, iso_ms

_DETAIL: Final = "v2.detail.events.conversation.{id}."
_METRIC_WANTED: Final = 0.5
_ATTRIBUTES: Final = _DETAIL + "attributes"
_MOODS: Final = ("curious", "patient", "in a hurry", "delighted")
_OUTCOMES: Final = ("SUCCESS", "FAILURE")


class Organization:
    """What an organization has set up: queues, flows, wrap-up codes."""

    def __init__(self, dice: Dice) -> None:
        self.division_id: Final = dice.uuid()
        self.queue_ids: Final = tuple(dice.uuid() for _ in range(4))
        self.flow_ids: Final = tuple(dice.uuid() for _ in range(3))
        self.outcome_ids: Final = tuple(dice.uuid() for _ in range(3))
        self.milestone_ids: Final = tuple(dice.uuid() for _ in range(4))
        self.wrapup_codes: Final = tuple(dice.uuid() for _ in range(5))


class Participant(msgspec.Struct, frozen=True):
    """One participant of a conversation, with their session."""

    id: str
    session_id: str


class Leg(msgspec.Struct, frozen=True):
    """An agent's part of a conversation."""

    agent: Agent
    participant: Participant
    began_ms: int
    answered_ms: int


class Conversation:
    """One conversation: it knows its ids, and publishes what happens to it."""

    def __init__(
        self, publisher: Publisher, dice: Dice, organization: Organization, queue_id: str, *, voice: bool
    ) -> None:
        self._publisher = publisher
        self._dice = dice
        self._organization = organization
        self._queue_id = queue_id
        self._voice = voice
        self._id = dice.uuid()
        self._customer = self._new_participant()
        self._customer_name = f"Casey Pretend-{dice.between(1, 999)}"
        self._shared = self._make_shared()
        self._began_ms = 0

    def arrive(self, moment_ms: int) -> None:
        """Begin the conversation: the customer calls or writes."""
        self._began_ms = moment_ms
        self._detail("customer.start", moment_ms, self._customer, divisionId=self._organization.division_id)

    def run_flow(self, moment_ms: int) -> int:
        """Lead the customer through a flow; return when they leave it for the queue."""
        dice, flow = self._dice, self._new_participant()
        ended_ms = moment_ms + dice.between(3000, 20_000)
        about = {
            "flowType": "INBOUNDCALL" if self._voice else "INBOUNDSHORTMESSAGE",
            "flowId": dice.pick(self._organization.flow_ids),
            "divisionId": self._organization.division_id,
            "flowVersion": f"{dice.between(1, 9)}.0",
        }
        self._detail("flow.start", moment_ms + 3, flow, **about)
        self._write_attributes(moment_ms + dice.between(500, 2500))
        self._detail(
            "flow.end",
            ended_ms,
            flow,
            disconnectType="TRANSFER",
            **about,
            connectedDurationMs=ended_ms - moment_ms,
            exitReason="TRANSFER",
            transferType="ACD",
        )
        self._tell_outcomes(flow, about, moment_ms, ended_ms)
        return ended_ms

    def wait(self, moment_ms: int, answered_by: Agent | None, answered_ms: int) -> None:
        """Keep the customer in the queue until an agent answers, or until they give up."""
        acd = self._new_participant()
        waited_ms = answered_ms - moment_ms
        self._detail("acd.start", moment_ms, acd, queueId=self._queue_id, divisionId=self._organization.division_id)
        outcome = {"acdOutcome": "ABANDON"}
        if answered_by is not None:
            outcome = {"acdOutcome": "ANSWERED", "answeredUserId": answered_by.user_id}
        self._detail(
            "acd.end",
            answered_ms,
            acd,
            disconnectType="PEER" if answered_by is None else "TRANSFER",
            queueId=self._queue_id,
            divisionId=self._organization.division_id,
            **outcome,
            requestedRoutings=["STANDARD"],
            usedRouting="STANDARD",
            connectedDurationMs=waited_ms,
        )
        self._metric("nOffered", 1, answered_ms, acd, purpose="acd")
        self._metric("tAbandon" if answered_by is None else "tAnswered", waited_ms, answered_ms, acd, purpose="acd")

    def answer(self, agent: Agent, began_ms: int, answered_ms: int) -> Leg:
        """Ring at an agent, who answers."""
        leg = Leg(agent, self._new_participant(), began_ms, answered_ms)
        about = {
            "userId": agent.user_id,
            "divisionId": self._organization.division_id,
            "queueId": self._queue_id,
        }
        self._detail("user.start", began_ms, leg.participant, **about)
        self._snapshot(leg, began_ms, "alerting")
        self._snapshot(leg, answered_ms, "connected")
        agent.change_status(answered_ms, "INTERACTING")
        return leg

    def talk(self, leg: Leg) -> int:
        """Connect customer and agent, perhaps with a pause on hold; return when they end."""
        dice = self._dice
        held_ms = leg.answered_ms + dice.between(8000, 60_000)
        ended_ms = held_ms + dice.between(8000, 120_000)
        if dice.chance(0.2):
            self._snapshot(leg, held_ms, "connected", held=True)
            self._snapshot(leg, held_ms + dice.between(QUIET_MS, 2 * QUIET_MS), "connected")
        if self._voice and dice.chance(0.3):
            publish_transcription(
                self._publisher,
                dice,
                conversation_id=self._id,
                session_id=leg.participant.session_id,
                began_ms=leg.answered_ms,
                ended_ms=ended_ms,
            )
        return ended_ms

    def hang_up(self, leg: Leg, moment_ms: int, disconnect_type: str) -> None:
        """End an agent's part."""
        self._detail(
            "user.end",
            moment_ms,
            leg.participant,
            disconnectType=disconnect_type,
            userId=leg.agent.user_id,
            divisionId=self._organization.division_id,
            queueId=self._queue_id,
            interactingDurationMs=moment_ms - leg.answered_ms,
            alertingDurationMs=leg.answered_ms - leg.began_ms,
        )
        self._snapshot(leg, moment_ms, "disconnected")
        if disconnect_type == "TRANSFER":
            self._metric("nTransferred", 1, moment_ms, leg.participant, purpose="agent", userId=leg.agent.user_id)
        talked_ms = moment_ms - leg.answered_ms
        self._metric("tTalkComplete", talked_ms, moment_ms, leg.participant, purpose="agent", userId=leg.agent.user_id)

    def wrap_up(self, leg: Leg, moment_ms: int, times: int) -> int:
        """Publish the agent's after-call work, once for each time that the conversation was reopened."""
        ended_ms = moment_ms + self._dice.between(2000, 20_000)
        code = self._dice.pick(self._organization.wrapup_codes)
        about = {"queueId": self._queue_id, "wrapupCode": code, "wrapupDurationMs": ended_ms - moment_ms}
        if self._dice.chance(0.3):
            about["wrapupNotes"] = f"{self._customer_name} was {self._dice.pick(_MOODS)}"
        self._detail("wrapup", ended_ms - self._dice.between(1, 900), leg.participant, **about)
        for _ in range(times):
            self._detail("acw", ended_ms, leg.participant, userId=leg.agent.user_id, **about)
            ended_ms += self._dice.between(1, 40)
        self._metric("tAcw", ended_ms - moment_ms, ended_ms, leg.participant, purpose="agent", userId=leg.agent.user_id)
        leg.agent.change_status(ended_ms, "IDLE")
        return ended_ms

    def end(self, moment_ms: int) -> None:
        """End the customer's part."""
        self._detail(
            "customer.end",
            moment_ms,
            self._customer,
            disconnectType="PEER" if self._dice.chance(0.5) else "ENDPOINT",
            interactingDurationMs=moment_ms - self._began_ms,
            divisionId=self._organization.division_id,
        )

    def _new_participant(self) -> Participant:
        return Participant(self._dice.uuid(), self._dice.uuid())

    def _make_shared(self) -> Body:
        """Return what every detail event of this conversation has in common."""
        number = f"+1555{self._dice.between(0, 9_999_999):07d}"
        if self._voice:
            return {
                "mediaType": "VOICE",
                "provider": "Edge",
                "direction": "INBOUND",
                "ani": f"tel:{number}",
                "dnis": "tel:+15550100000",
            }
        return {
            "mediaType": "MESSAGE",
            "provider": "PureCloud Messaging",
            "direction": "INBOUND",
            "addressTo": self._organization.division_id,
            "addressFrom": number,
            "messageType": self._dice.pick(("WEBMESSAGING", "WHATSAPP", "SMS")),
        }

    def _detail(self, suffix: str, moment_ms: int, who: Participant, **fields: Any) -> None:
        body = {
            "eventTime": moment_ms,
            "conversationId": self._id,
            "participantId": who.id,
            "sessionId": who.session_id,
            **self._shared,
            **fields,
        }
        self._publisher.fact(_DETAIL + suffix, self._id, body, moment_ms)

    def _write_attributes(self, moment_ms: int) -> None:
        """Write participant data, sometimes twice within one millisecond."""
        attributes = {"customerName": self._customer_name, "mood": self._dice.pick(_MOODS)}
        self._publish_attributes(moment_ms, attributes)
        if self._dice.chance(0.2):
            self._publish_attributes(moment_ms, {**attributes, "verified": "true"})

    def _publish_attributes(self, moment_ms: int, attributes: Body) -> None:
        body = {
            "eventTime": moment_ms,
            "conversationId": self._id,
            "participantId": self._customer.id,
            "attributes": attributes,
            "communications": [{"id": self._customer.session_id, "mediaType": self._shared["mediaType"]}],
            "participantStartTime": self._began_ms,
        }
        self._publisher.fact(_ATTRIBUTES, self._id, body, moment_ms)

    def _tell_outcomes(self, flow: Participant, about: Body, began_ms: int, ended_ms: int) -> None:
        """Publish the outcomes of a flow: all at its end, and so with one event time."""
        for outcome_id in self._organization.outcome_ids[: self._dice.between(0, 2)]:
            reached_ms = began_ms + self._dice.between(100, 2500)
            self._detail(
                "flow.outcome",
                ended_ms,
                flow,
                **about,
                flowOutcomeId=outcome_id,
                flowOutcomeStartTime=began_ms + 40,
                flowOutcomeEndTime=reached_ms,
                flowOutcomeValue=self._dice.pick(_OUTCOMES),
                flowMilestones=[
                    {
                        "milestoneId": self._dice.pick(self._organization.milestone_ids),
                        "milestoneTime": reached_ms,
                    }
                ],
            )

    def _metric(self, name: str, value: int, moment_ms: int, who: Participant, **fields: str) -> None:
        """Publish a metric, if it is subscribed to."""
        if not self._dice.chance(_METRIC_WANTED):
            return
        shared = {
            "conversationId": self._id,
            "direction": "inbound",
            "mediaType": "voice" if self._voice else "message",
            "queueId": self._queue_id,
            "sessionId": who.session_id,
            **fields,
        }
        publish_metric(self._publisher, self._dice, name=name, value=value, shared=shared, happened_ms=moment_ms)

    def _snapshot(self, leg: Leg, moment_ms: int, state: str, *, held: bool = False) -> None:
        """Publish how the conversation is now to the topic of the agent."""
        media = "calls" if self._voice else "messages"
        customer = {
            "id": self._customer.id,
            "connectedTime": iso_ms(self._began_ms),
            "name": self._customer_name,
            "purpose": "customer",
            "address": self._shared["ani" if self._voice else "addressFrom"],
            media: [_session(self._customer, self._shared["provider"], "connected", held=held)],
        }
        agent = {
            "id": leg.participant.id,
            "userId": leg.agent.user_id,
            "name": leg.agent.name,
            "queueId": self._queue_id,
            "purpose": "agent",
            "wrapupRequired": True,
            "wrapupPrompt": "optional",
            media: [_session(leg.participant, self._shared["provider"], state, held=False)],
        }
        if state != "alerting":
            agent["connectedTime"] = iso_ms(leg.answered_ms)
        if state == "disconnected":
            agent["endTime"] = iso_ms(moment_ms)
        body = {"id": self._id, "participants": [customer, agent], "recordingState": "none"}
        self._publisher.state(_SNAPSHOTS, leg.agent.user_id, body, (moment_ms,), entity_id=self._id)


def _session(who: Participant, provider: str, state: str, *, held: bool) -> Body:
    return {
        "id": who.session_id,
        "state": state,
        "direction": "inbound",
        "held": held,
        "muted": False,
        "provider": provider,
    }


def _other_recording(snapshot: Body) -> Body:
    return {**snapshot, "recordingState": "paused"}


_SNAPSHOTS: Final = StateTopic("v2.users.{id}.conversations", _other_recording)
