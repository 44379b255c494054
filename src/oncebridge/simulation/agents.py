"""The agents: their presence, routing status and activity, which change around every call."""

from typing import Final

from oncebridge.simulation.dice import Dice
from oncebridge.simulation.publishing import QUIET_MS, Body, Publisher, StateTopic, Times, iso_ms

#: Where each time stands among those of an activity.
ROUTING, PRESENCE, QUEUES = 0, 1, 2

ON_QUEUE: Final = "ON_QUEUE"
BREAKS: Final = ("BREAK", "MEAL", "MEETING", "TRAINING")

_UNDATED_PRESENCE: Final = 0.25
_AUDITED_PRESENCE: Final = 0.3
_FIRST_NAMES: Final = ("Ada", "Bela", "Chidi", "Dana", "Emre", "Farah", "Goran", "Hana", "Imani", "Jonas")


class PresenceDefinitions:
    """The presences an organization has defined; several may share one system presence."""

    def __init__(self, dice: Dice) -> None:
        self._by_system = {name: (dice.uuid(), dice.uuid()) for name in (ON_QUEUE, *BREAKS)}

    def pick(self, system: str, dice: Dice) -> Body:
        """Return one of the definitions of a system presence."""
        return {"id": dice.pick(self._by_system[system]), "systemPresence": system}

    def sibling(self, definition: Body) -> Body:
        """Return the other definition with the same system presence: another state, by its id alone."""
        first, second = self._by_system[definition["systemPresence"]]
        return {**definition, "id": second if definition["id"] == first else first}


class Agent:
    """One agent, and how they are now."""

    def __init__(
        self,
        publisher: Publisher,
        dice: Dice,
        definitions: PresenceDefinitions,
        queue_ids: tuple[str, ...],
        number: int,
    ) -> None:
        self._publisher = publisher
        self._dice = dice
        self._definitions = definitions
        self._all_queue_ids = queue_ids
        self.user_id: Final = dice.uuid()
        self.name: Final = f"{dice.pick(_FIRST_NAMES)} Example-{number}"
        #: Until then, what was said of this agent may still be on its way: nothing new happens before.
        self.quiet_ms = 0
        self._presence_topic = self._make_presence_topic(dated=not dice.chance(_UNDATED_PRESENCE))
        self._activity_topic = StateTopic("v2.users.{id}.activity", _other_message, _stamp_activity)
        self._definition = definitions.pick(BREAKS[0], dice)
        self._status = "OFF_QUEUE"
        self._queue_ids = queue_ids[:2]
        self._activity_times: Times = ()

    def log_on(self, moment_ms: int) -> None:
        """Start the working day, ready for calls."""
        self._activity_times = (moment_ms - 90_000, moment_ms - 30_000, moment_ms - 60_000)
        self.change_presence(moment_ms, ON_QUEUE)
        self.change_status(moment_ms, "IDLE")

    def take_break(self, moment_ms: int) -> None:
        """Go off the queue for some minutes and come back, sometimes to other queues."""
        self.change_presence(moment_ms, self._dice.pick(BREAKS))
        self.change_status(moment_ms, "OFF_QUEUE")
        back_ms = self.quiet_ms + self._dice.between(10_000, 300_000)
        self.change_presence(back_ms, ON_QUEUE)
        if self._dice.chance(0.3):
            self._change_queues(back_ms)
        self.change_status(back_ms, "IDLE")

    def change_presence(self, moment_ms: int, system: str) -> None:
        """Take on another presence."""
        moment_ms = self._next_moment(moment_ms)
        before, self._definition = self._definition, self._definitions.pick(system, self._dice)
        self._publisher.state(self._presence_topic, self.user_id, self._presence(), (moment_ms,))
        self._publish_activity(moment_ms, PRESENCE)
        if self._dice.chance(_AUDITED_PRESENCE):
            self._publish_audit(moment_ms, before)

    def change_status(self, moment_ms: int, status: str) -> None:
        """Take on another routing status."""
        moment_ms = self._next_moment(moment_ms)
        self._status = status
        state = {"id": self.user_id, "routingStatus": {"status": status}}
        self._publisher.state(ROUTING_STATUS, self.user_id, state, (moment_ms,))
        self._publish_activity(moment_ms, ROUTING)

    def _change_queues(self, moment_ms: int) -> None:
        """Serve other queues from now on, which only the activity tells."""
        first = self._dice.between(0, len(self._all_queue_ids) - 1)
        self._queue_ids = self._all_queue_ids[first:] + self._all_queue_ids[: first // 2]
        self._publish_activity(self._next_moment(moment_ms), QUEUES)

    def _next_moment(self, moment_ms: int) -> int:
        """Return the first quiet moment from this one on, and keep quiet after it."""
        moment_ms = max(moment_ms, self.quiet_ms)
        self.quiet_ms = moment_ms + QUIET_MS
        return moment_ms

    def _publish_activity(self, moment_ms: int, changed: int) -> None:
        """Publish the whole activity; its times only ever grow, so that any two of them can be compared."""
        times = self._activity_times
        state: Body = {
            "id": self.user_id,
            "routingStatus": {"status": self._status},
            "presence": {"presenceDefinition": self._definition, "presenceMessage": ""},
            "outOfOffice": {"active": False},
            "activeQueueIds": list(self._queue_ids),
        }
        self._activity_times = self._publisher.state(
            self._activity_topic,
            self.user_id,
            state,
            (*times[:changed], moment_ms, *times[changed + 1 :]),
            changed=changed,
        )

    def _publish_audit(self, moment_ms: int, before: Body) -> None:
        """Publish an audit of the change of presence."""
        changes = {"property": "presenceDefinitionId", "oldValues": [before["id"]]}
        body: Body = {
            "userId": self.user_id,
            "userHomeOrgId": self._publisher.org,
            "username": {"id": self.user_id, "name": self.name},
            "userDisplay": self.name,
            "clientId": {},
            "remoteIp": ["192.0.2.7"],
            "serviceName": "Presence",
            "action": "Update",
            "entityType": "UserPresence",
            "entity": {"id": self.user_id},
            "propertyChanges": [{**changes, "newValues": [self._definition["id"]]}],
        }
        other = {"propertyChanges": [{**changes, "newValues": [self._definition["id"], "unknown"]}]}
        self._publisher.audit(body, other, moment_ms)

    def _presence(self) -> Body:
        return {"source": "PURECLOUD", "presenceDefinition": self._definition, "primary": True, "message": ""}

    def _make_presence_topic(self, *, dated: bool) -> StateTopic:
        """Make the presence topic of this agent; some agents' clients leave the date of change out."""

        def alter(state: Body) -> Body:
            return {**state, "presenceDefinition": self._definitions.sibling(state["presenceDefinition"])}

        return StateTopic("v2.users.{id}.presence", alter, _stamp_presence if dated else None)


class Agents:
    """The agents of an organization. They are hired when nobody is free, so that no call waits for long."""

    def __init__(self, publisher: Publisher, dice: Dice, queue_ids: tuple[str, ...]) -> None:
        self._publisher = publisher
        self._dice = dice
        self._queue_ids = queue_ids
        self._definitions = PresenceDefinitions(dice)
        self._free: list[Agent] = []
        self._hired = 0

    def take(self, moment_ms: int) -> Agent:
        """Return an agent who is free at this moment."""
        for at, agent in enumerate(self._free):
            if agent.quiet_ms <= moment_ms:
                return self._free.pop(at)
        self._hired += 1
        agent = Agent(self._publisher, self._dice, self._definitions, self._queue_ids, self._hired)
        agent.log_on(moment_ms)
        return agent

    def give_back(self, agent: Agent) -> None:
        """Make an agent available again, once everything said of them so far has been published."""
        self._free.append(agent)


def _stamp_presence(state: Body, times_ms: Times) -> Body:
    return {**state, "modifiedDate": iso_ms(times_ms[0])}


def _stamp_status(state: Body, times_ms: Times) -> Body:
    return {**state, "routingStatus": {**state["routingStatus"], "startTime": iso_ms(times_ms[0])}}


def _stamp_activity(state: Body, times_ms: Times) -> Body:
    stamped = _stamp_status(state, times_ms)
    stamped["presence"] = {**state["presence"], "modifiedDate": iso_ms(times_ms[PRESENCE])}
    stamped["dateActiveQueuesChanged"] = iso_ms(times_ms[QUEUES])
    return stamped


def _other_status(state: Body) -> Body:
    other = "COMMUNICATING" if state["routingStatus"]["status"] != "COMMUNICATING" else "NOT_RESPONDING"
    return {**state, "routingStatus": {"status": other}}


def _other_message(state: Body) -> Body:
    return {**state, "presence": {**state["presence"], "presenceMessage": "Back in a minute"}}


ROUTING_STATUS: Final = StateTopic("v2.users.{id}.routingStatus", _other_status, _stamp_status)
