"""Compares the code with the specification: each step that the exploration of the real rules takes must be one of it.

A state of the exploration is written as a state of the specification, with tokens numbered in their order. Then the
model checker, which evaluates the specification itself, says whether one of its steps leads from the one to the other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Final

from exploration.explorer import likeness
from exploration.judge import AHEAD_MS_MAX, ATTEMPTS_MAX, ECHO_WINDOW_MS
from exploration.model import Model
from exploration.scenarios import Scenario, ScenarioEvent
from exploration.world import ENTITY, NAMES, MakeLedger, Member, Phase, Worker, World, ask_for
from oncebridge import claim as rules
from oncebridge.claim import Answer, Outcome, Status, Verdict
from oncebridge.ledgers.memory import MemoryLedger
from prove.specification import SOURCE, asked, tla, written

VARIABLES: Final = (
    "rec", "ent", "work", "hidden", "gone", "faults", "shown", "effects", "hold", "last", "closed", "spent", "flaws",
)  # fmt: skip
NOTHING: Final = {"done": 0, "line": 0, "unsure": False}
IDLE: Final = {
    "taken": frozenset[int](), "acks": frozenset[int](), "calls": (), "lost": (), "members": (), "turn": 0,
    "settled": 0, "base": NOTHING, "overdue": False,
}  # fmt: skip
#: What no state of the specification has: a token that is not above the earlier ones, for one.
NO_TOKEN: Final = -1
#: States that the checker gets at once.
AT_ONCE: Final = 400
STEPS: Final = """
CodeInit == \\E code \\in {%s} :
    %s
    /\\ aims = code.aims
    /\\ number = code.number
CodeNext == /\\ aims # {}
            /\\ Next
            /\\ number' = number
            /\\ <<%s>> \\in aims
            /\\ aims' = {}
"""


@dataclass
class Seen:
    """The steps of the code, as the specification writes states: where they begin, and where they lead."""

    scenario: Scenario
    #: For each state, the states that a step leads to, with the step in words.
    steps: dict[str, dict[str, str]] = field(default_factory=dict)
    #: How many steps of the code these are: some differ only in what the specification leaves out.
    taken: int = 0
    #: How many were compared.
    compared: int = 0

    @property
    def pairs(self) -> int:
        """How many steps are compared."""
        return sum(map(len, self.steps.values()))

    def parts(self, states: int) -> Iterator[Seen]:
        """Divide it, with so many states in each part."""
        known = list(self.steps.items())
        return (Seen(self.scenario, dict(known[at : at + states])) for at in range(0, len(known), states))


# --- what the code does -----------------------------------------------------------------------------------


def can_be_compared(scenario: Scenario) -> bool:
    """Return whether the specification covers it: it knows no explicit ids, so no conflicts."""
    return not any(event.id for event in scenario.events)


def explored(scenario: Scenario, make_ledger: MakeLedger = MemoryLedger, states_max: int | None = None) -> Seen:
    """Take every step of the real code, in every order, and write each down in the words of the specification."""
    model, view, seen = Model(scenario, make_ledger), View(scenario), Seen(scenario)
    start = model.start()
    known, ahead = {likeness(start)}, deque([start])
    while ahead and (states_max is None or len(seen.steps) < states_max):
        world = ahead.popleft()
        numbers = view.numbers(world)
        leads_to = seen.steps.setdefault(view.state(world, numbers), {})
        for step in model.steps(world):
            after = model.after(world, step)
            seen.taken += 1
            leads_to.setdefault(view.state(after, view.with_new(numbers, world, after)), model.said)
            if (like := likeness(after)) not in known:
                known.add(like)
                ahead.append(after)
    return seen


Numbers = dict[tuple[int, int], int]


class View:
    """Writes states of the exploration as states of the specification."""

    def __init__(self, scenario: Scenario) -> None:
        """Take the events; they are numbered from 1."""
        self._scenario = scenario
        self._events = range(len(scenario.events))
        self._asks = [ask_for(scenario, event, None, buried=False) for event in self._events]
        self._by_key = {ask.key: event + 1 for event, ask in enumerate(self._asks)}

    # Tokens are numbers of a clock in the code, and count from 1 in the specification; what counts is their order.

    def numbers(self, world: World) -> Numbers:
        """Number the tokens of each entity and fact by their order."""
        found: Numbers = {}
        for fence in range(self._scenario.fences):
            tokens = sorted({token for at, token in self._tokens(world) if at == fence} | {0})
            found |= {(fence, token): place for place, token in enumerate(tokens)}
        return found

    def with_new(self, numbers: Numbers, before: World, after: World) -> Numbers:
        """Number the tokens that a step has granted, which must be above all others, and in a row."""
        tops = {fence: max(token for at, token in numbers if at == fence) for fence in range(self._scenario.fences)}
        new = {pair for pair in self._tokens(after) if pair not in numbers}
        found = dict(numbers)
        for fence, token in new:
            first = min(other for at, other in new if at == fence)
            is_above = token > tops[fence] >= 0 and before is not after
            found[fence, token] = numbers[fence, tops[fence]] + token - first + 1 if is_above else NO_TOKEN
        return found

    def _tokens(self, world: World) -> Iterator[tuple[int, int]]:
        book, fence = world.book, self._scenario.fence
        for event in self._events:
            if (record := world.shelf.records.get((self._asks[event].key, ""))) is not None:
                yield fence(event), record.token
            yield fence(event), book.lasts[event].token
        for at in range(self._scenario.fences):
            yield at, book.shown[at].token
            yield at, book.holds[at].top
            yield from ((at, token) for token in book.holds[at].open)
        for worker in world.workers:
            yield from ((fence(self._event(one.first) - 1), one.token) for one in worker.members)
            asked_for = worker.calls[0].firsts if worker.lost else ()
            for first, answer in zip(asked_for, worker.lost, strict=True):
                yield fence(self._event(first) - 1), answer.token
            if worker.chain is not None:
                yield 0, worker.chain.top
        for entity in world.shelf.entities.values():
            yield 0, entity.token

    def state(self, world: World, numbers: Numbers) -> str:
        """Write a state: the values of the variables, in their order."""
        book, events = world.book, self._events
        values: dict[str, object] = {
            "rec": [self._record(world, event, numbers) for event in events],
            "ent": [self._entity(world, fence, numbers) for fence in range(self._scenario.fences)],
            "work": {name: self._worker(world, one, numbers) for name, one in zip(NAMES, world.workers, strict=False)},
            "hidden": self._deliveries(world.hidden),
            "gone": self._deliveries(world.gone),
            "faults": world.faults_left,
            "shown": [
                {"token": numbers[fence, one.token], "event": one.event + 1} for fence, one in enumerate(book.shown)
            ],
            "effects": {event + 1 for event in events if book.effects[event]},
            "hold": [
                {
                    "top": numbers[fence, hold.top],
                    "runs": hold.until_us > world.now_us,
                    "open": {numbers[fence, token] for token in hold.open},
                }
                for fence, hold in enumerate(book.holds[: self._scenario.fences])
            ],
            "last": [
                {
                    "token": numbers[self._scenario.fence(event), one.token],
                    "alone": one.alone,
                    "outcome": _word(one.outcome),
                }
                for event, one in enumerate(book.lasts)
            ],
            "closed": ["" if one is None else one.status.value for one in book.closed],
            "spent": list(book.spent),
            "flaws": set(),
        }
        return tla([values[name] for name in VARIABLES])

    # --- the ledger

    def _record(self, world: World, event: int, numbers: Numbers) -> dict[str, object]:
        record = world.shelf.records.get((self._asks[event].key, ""))
        if record is None:
            return {"status": "none", "token": 0, "nonce": "", "alone": False, "attempts": 0}
        return {
            "status": record.status.value,
            "token": numbers[self._scenario.fence(event), record.token],
            "nonce": _owner(world, record.nonce),
            "alone": record.alone,
            "attempts": record.attempts,
        }

    def _entity(self, world: World, fence: int, numbers: Numbers) -> dict[str, object]:
        """Write an entity, or what a fact's own record holds of one."""
        found: dict[str, object] = {"top": 0, "nonce": "", "lease": "free", "ranOut": False, "data": NOTHING}
        if not self._scenario.state:
            record = world.shelf.records.get((self._asks[fence].key, ""))
            if record is None:
                return found
            found["top"] = numbers[fence, record.token]
            if record.status is Status.CLAIMED:
                lease = "runs" if record.lease_until_us > world.now_us else "over"
                found |= {"nonce": _owner(world, record.nonce), "lease": lease}
            return found
        entity = world.shelf.entities.get(ENTITY)
        if entity is None:
            return found
        lease = "runs" if entity.lease_until_us > world.now_us else "over"
        return {
            "top": numbers[0, entity.token],
            "nonce": _owner(world, entity.nonce),
            "lease": lease if entity.lease_until_us else "free",
            "ranOut": entity.ran_out,
            "data": self._copy(rules.read_newest(entity.data)),
        }

    def _copy(self, newest: rules.Newest) -> dict[str, object]:
        """Write what is known of an entity: its newest done event, and the one that stale is judged by."""
        done = 0 if newest.key is None else self._by_key[newest.key]
        line = done
        if done and newest.line != newest.moment:
            (line,) = [event + 1 for event in self._events if self._asks[event].moment == newest.line]
        return {"done": done, "line": line, "unsure": newest.unsure}

    # --- the workers

    def _worker(self, world: World, worker: Worker, numbers: Numbers) -> dict[str, object]:
        if worker.phase is Phase.IDLE:
            return dict(IDLE)
        copies = self._copies(worker)
        acknowledged = zip(worker.taken, worker.columns, strict=True)
        return {
            "taken": {at + 1 for at in worker.taken},
            "acks": {self._event(at) for at, column in acknowledged if column},
            "calls": [
                {"events": [self._event(first) for first in call.firsts], "alone": call.alone} for call in worker.calls
            ],
            "lost": [
                self._lost(first, answer, numbers)
                for first, answer in zip(worker.calls[0].firsts if worker.lost else (), worker.lost, strict=True)
            ],
            "members": [
                self._member(worker, member, copies[place + 1] if place < worker.turn else NOTHING, numbers)
                for place, member in enumerate(worker.members)
            ],
            "turn": worker.turn,
            "settled": worker.settled,
            "base": copies[0],
            "overdue": worker.phase is Phase.WORKS and worker.since_us != world.now_us,
        }

    def _copies(self, worker: Worker) -> list[dict[str, object]]:
        """Write a worker's copy of its entity: as it was claimed, and as each member has left it."""
        if worker.chain is None:
            return [dict(NOTHING)] * (1 + worker.turn)
        newest = rules.newest_of(worker.chain)
        copies = [self._copy(newest)]
        for member in worker.members[: worker.turn]:
            assert member.outcome is not None
            ask = self._asks[self._event(member.first) - 1]
            newest = rules.newest_after(newest, ask, member.outcome, worker.chain.now_us)
            copies.append(self._copy(newest))
        return copies

    def _member(self, worker: Worker, member: Member, left: dict[str, Any], numbers: Numbers) -> dict[str, object]:
        event = self._event(member.first)
        fence = self._scenario.fence(event - 1)
        top = member.token if worker.chain is None else worker.chain.top
        return {
            "event": event,
            "token": numbers[fence, member.token],
            "top": numbers[fence, top],
            "attempt": member.attempt,
            "outcome": _word(member.outcome),
            "left": left,
        }

    def _lost(self, first: int, answer: Answer, numbers: Numbers) -> dict[str, object]:
        if answer.verdict is Verdict.FRESH:
            kind = "new" if answer.token else "alone"
        else:
            kind = "busy" if answer.verdict is Verdict.BUSY else "known"
        fence = self._scenario.fence(self._event(first) - 1)
        return {"kind": kind, "token": numbers[fence, answer.token], "attempt": answer.attempt}

    def _event(self, at: int) -> int:
        return self._scenario.deliveries[at].event + 1

    def _deliveries(self, bits: int) -> set[int]:
        return {at + 1 for at in range(len(self._scenario.deliveries)) if bits >> at & 1}


def _word(outcome: Outcome | None) -> str:
    return "" if outcome is None else outcome.value


def _owner(world: World, nonce: bytes) -> str:
    """Return which worker may still repeat the call of this nonce."""
    asking = zip(NAMES, world.workers, strict=False)
    return next((name for name, one in asking if one.phase is Phase.ASKS and one.nonce.to_bytes(8, "big") == nonce), "")


# --- what the specification allows ------------------------------------------------------------------------


def constants(scenario: Scenario) -> str:
    """Write a scenario as the specification takes it."""
    pairs = list(product(range(len(scenario.events)), repeat=2))
    numbered = [(one + 1, other + 1, scenario.events[one], scenario.events[other]) for one, other in pairs]
    return written(
        says=[event.state for event in scenario.events],
        delivered=[by.event + 1 for by in scenario.deliveries],
        older=[(one, other) for one, other, this, that in numbered if _is_older(this, that)],
        near=[(one, other) for one, other, this, that in numbered if _is_near(this, that)],
        ahead=[at + 1 for at, this in enumerate(scenario.events) if _is_ahead(this)],
        chained=scenario.state,
        faults=scenario.faults,
        attempts_max=ATTEMPTS_MAX,
    )


def _is_older(this: ScenarioEvent, that: ScenarioEvent) -> bool:
    if this.version is not None and that.version is not None:
        return this.version < that.version
    pairs = list(zip(this.times_ms, that.times_ms, strict=True))
    return any(one < other for one, other in pairs) and all(one <= other for one, other in pairs)


def _is_near(this: ScenarioEvent, that: ScenarioEvent) -> bool:
    pairs = zip(this.times_ms, that.times_ms, strict=True)
    return all(abs(one - other) <= ECHO_WINDOW_MS for one, other in pairs)


def _is_ahead(this: ScenarioEvent) -> bool:
    return this.version is None and max(this.times_ms) > AHEAD_MS_MAX


def forbidden(seen: Seen, time_is_up: Callable[[], bool] = lambda: False) -> list[str]:
    """Return the steps of the code that the specification does not have, in words: those from the first such state."""
    states = [{state: leads_to} for state, leads_to in seen.steps.items()]
    for batch in _parts(states, AT_ONCE):
        if time_is_up():
            break
        seen.compared += sum(len(leads_to) for one in batch for leads_to in one.values())
        if all(all_allowed(seen.scenario, [batch])):
            continue
        fewer = _first_wrong(seen.scenario, _parts(batch, AT_ONCE // 20))
        (state,) = _first_wrong(seen.scenario, _parts(fewer, 1))
        ((before, leads_to),) = state.items()
        single = [[{before: {after: said}}] for after, said in leads_to.items()]
        right = all_allowed(seen.scenario, single)
        wrong = [said for said, is_right in zip(leads_to.values(), right, strict=True) if not is_right]
        return [f"{said}: which the specification does not allow in {before}" for said in wrong]
    return []


Steps = dict[str, dict[str, str]]


def _parts(states: list[Steps], size: int) -> list[list[Steps]]:
    return [states[at : at + size] for at in range(0, len(states), size)]


def _first_wrong(scenario: Scenario, parts: list[list[Steps]]) -> list[Steps]:
    right = all_allowed(scenario, parts)
    return next(part for part, is_right in zip(parts, right, strict=True) if not is_right)


def all_allowed(scenario: Scenario, batches: list[list[Steps]]) -> list[bool]:
    """Let the checker begin in each state of a batch, and count how many of the states after it that it gets to."""
    cfg = f"INIT CodeInit\nNEXT CodeNext\nCONSTANTS\n{constants(scenario)}\nLeftOut = {{}}\n"
    answers = asked({"source": _with_steps(batch), "cfg": cfg} for batch in batches)
    for found in answers:
        if not found["success"]:
            raise RuntimeError(f"{found['error_type']}: {found['error_message']}")
    expected = [sum(1 + len(leads_to) for one in batch for leads_to in one.values()) for batch in batches]
    return [found["states_explored"] == number for found, number in zip(answers, expected, strict=True)]


def _with_steps(batch: list[Steps]) -> str:
    """Return the specification with steps that begin where the code was, and are taken only to where the code went."""
    pairs = [pair for one in batch for pair in one.items()]
    codes = [
        f"[vars |-> {state}, aims |-> {{{', '.join(leads_to)}}}, number |-> {number}]"
        for number, (state, leads_to) in enumerate(pairs)
    ]
    begun = "\n    ".join(f"/\\ {name} = code.vars[{place}]" for place, name in enumerate(VARIABLES, 1))
    steps = STEPS % (",\n".join(codes), begun, ", ".join(f"{name}'" for name in VARIABLES))
    source = SOURCE.read_text(encoding="utf-8").replace("\nVARIABLES\n", "\nVARIABLES\n    aims, number,\n")
    at = source.rindex("\n====")
    return source[:at] + steps + source[at:]
