"""What Genesys says on a working day: conversations, agents, audits and readings, as they are published."""

from collections.abc import Iterator
from typing import Final

from oncebridge.simulation.agents import Agents
from oncebridge.simulation.conversations import Conversation, Organization
from oncebridge.simulation.dice import Dice
from oncebridge.simulation.faults import Road
from oncebridge.simulation.publishing import QUIET_MS, Body, Publication, Publisher, iso_ms

_OBSERVATIONS: Final = "v2.analytics.queues.{id}.observations"
_HALF_HOUR_MS: Final = 30 * 60 * 1000

#: At least a second lies between two conversations, and so between two readings of one queue.
_GAP_MS_MIN: Final = 1000
_GAP_MS_MAX: Final = 5000

_VOICE: Final = 0.7
_ABANDONED: Final = 0.08
_TRANSFERRED: Final = 0.15
_REOPENED: Final = 0.3
_BREAK_AFTERWARDS: Final = 0.15
_QUEUE_AUDITED: Final = 0.08


def traffic(conversations: int, org: str, dice: Dice, road: Road, start_ms: int) -> Iterator[Publication]:
    """Yield what Genesys publishes, holding no more than the conversations that overlap."""
    publisher = Publisher(org, dice, road)
    genesys = _Genesys(publisher, dice)
    moment_ms = start_ms
    for _ in range(conversations):
        yield from publisher.until(moment_ms)
        genesys.converse(moment_ms)
        moment_ms += dice.between(_GAP_MS_MIN, _GAP_MS_MAX)
    yield from publisher.until(None)


class _Genesys:
    """An organization at work. Nothing is published before the conversation that it belongs to begins."""

    def __init__(self, publisher: Publisher, dice: Dice) -> None:
        self._publisher = publisher
        self._dice = dice
        self._organization = Organization(dice)
        self._agents = Agents(publisher, dice, self._organization.queue_ids)

    def converse(self, moment_ms: int) -> None:
        """Play one conversation from beginning to end."""
        dice = self._dice
        queue_id, voice = dice.pick(self._organization.queue_ids), dice.chance(_VOICE)
        conversation = Conversation(self._publisher, dice, self._organization, queue_id, voice=voice)
        self._read_queue(queue_id, moment_ms, voice=voice)
        if dice.chance(_QUEUE_AUDITED):
            self._audit_queue(queue_id, moment_ms)
        conversation.arrive(moment_ms)
        queued_ms = conversation.run_flow(moment_ms)
        if dice.chance(_ABANDONED):
            gone_ms = queued_ms + dice.between(2000, 20_000)
            conversation.wait(queued_ms, None, gone_ms)
            conversation.end(gone_ms)
            return
        ended_ms = self._serve(conversation, queued_ms, transferred=dice.chance(_TRANSFERRED), closings=1)
        if not voice and dice.chance(_REOPENED):
            for closings in range(2, dice.between(2, 4) + 1):
                reopened_ms = ended_ms + dice.between(20_000, 90_000)
                ended_ms = self._serve(conversation, reopened_ms, transferred=False, closings=closings)
        conversation.end(ended_ms)

    def _serve(self, conversation: Conversation, queued_ms: int, *, transferred: bool, closings: int) -> int:
        """Play an agent's part: answer, speak, wrap up, perhaps pass on to another; return the end."""
        dice = self._dice
        began_ms = queued_ms + dice.between(500, 6000)
        answered_ms = began_ms + self._ringing_ms()
        agent = self._agents.take(began_ms)
        conversation.wait(queued_ms, agent, answered_ms)
        leg = conversation.answer(agent, began_ms, answered_ms)
        ended_ms = conversation.talk(leg)
        if transferred:
            # The new agent's session begins before the old one's ends: they overlap for some milliseconds.
            began_ms = ended_ms - dice.between(50, 400)
            other = self._agents.take(began_ms)
            next_leg = conversation.answer(other, began_ms, began_ms + self._ringing_ms())
            conversation.hang_up(leg, ended_ms, "TRANSFER")
            conversation.wrap_up(leg, ended_ms, 1)
            self._agents.give_back(agent)
            leg, agent = next_leg, other
            ended_ms = conversation.talk(leg)
        conversation.hang_up(leg, ended_ms, "PEER" if dice.chance(0.6) else "CLIENT")
        wrapped_up_ms = conversation.wrap_up(leg, ended_ms, closings)
        if dice.chance(_BREAK_AFTERWARDS):
            agent.take_break(wrapped_up_ms)
        self._agents.give_back(agent)
        return ended_ms

    def _ringing_ms(self) -> int:
        """Return how long it rings; long enough for what is said of it to be published before the answer."""
        return self._dice.between(QUIET_MS, 3 * QUIET_MS)

    def _read_queue(self, queue_id: str, moment_ms: int, *, voice: bool) -> None:
        """Publish a reading of a queue. The numbers are small, so that equal readings recur."""
        since_ms = moment_ms // _HALF_HOUR_MS * _HALF_HOUR_MS
        counts = {"oWaiting": self._dice.between(0, 1), "oInteracting": self._dice.between(1, 3)}
        body = {
            "group": {"queueId": queue_id, "mediaType": "voice" if voice else "message"},
            "data": [
                {
                    "interval": f"{iso_ms(since_ms)}/{iso_ms(since_ms + _HALF_HOUR_MS)}",
                    "metrics": [{"metric": name, "stats": {"count": count}} for name, count in counts.items()],
                }
            ],
        }
        self._publisher.fact(_OBSERVATIONS, queue_id, body, moment_ms)

    def _audit_queue(self, queue_id: str, moment_ms: int) -> None:
        """Publish that an administrator changed a queue."""
        seconds = self._dice.between(10, 60)
        changes = {"property": "alertingTimeoutSeconds", "oldValues": ["8"]}
        body: Body = {
            "userId": self._dice.uuid(),
            "userHomeOrgId": self._publisher.org,
            "username": {"id": ""},
            "clientId": {"id": self._dice.uuid()},
            "serviceName": "Routing",
            "action": "Update",
            "entityType": "Queue",
            "entity": {"id": queue_id, "name": "Invented Questions"},
            "propertyChanges": [{**changes, "newValues": [f"{seconds}"]}],
        }
        self._publisher.audit(body, {"propertyChanges": [{**changes, "newValues": [f"{seconds + 1}"]}]}, moment_ms)
