"""Many contenders for one event, and for one entity: one holder at a time, and tokens that only rise.

Contenders are processes of their own, each with its own connection. Whoever is granted a claim writes down when it
begins and when it ends, into a file that all of them only append to; half of them give the claim back, for another.
"""

from __future__ import annotations

import hashlib
import os
import random
import secrets
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from threading import BrokenBarrierError
from typing import TYPE_CHECKING, Any, Final, TypeVar

from oncebridge.claim import Answer, Ask, Claim, Outcome, Settlement, Verdict
from oncebridge.errors import LedgerUnavailable
from oncebridge.ledgers import ledger_from_url
from prove.forked import end_with
from prove.outcome import Options
from prove.outcome import Outcome as Result
from prove.places import kind_of, place_of, prepare
from prove.round import in_child
from prove.worker import Notes

if TYPE_CHECKING:
    from oncebridge.ledgers.protocol import Ledger

CONTENDERS: Final = 64
#: Contests of one round: all contenders ask for all of these in one call.
AT_ONCE: Final = 20
#: DynamoDB's emulator is one slow process, and takes a request for each ask of each contender.
AT_ONCE_DYNAMODB: Final = 4
#: No lease runs out on a machine that is merely slow.
LEASE_US: Final = 600_000_000
STATES: Final = 2
#: Longer than a round takes on a machine that is busy with other things.
ROUND_SECONDS: Final = 400.0
ENDLESS: Final = "contests without an end"
#: Lines that are told of those.
LAST: Final = 40
GIVEN_BACK_SHARE: Final = 0.3
SETTLED: Final = (Verdict.REDELIVERY, Verdict.REPUBLISH)
T = TypeVar("T")


def contenders(options: Options) -> Result:
    """Let them contend, for events and for entities in turn, until there were so many contests of each."""
    result, begun, number = Result(), time.monotonic(), 0
    notes = options.folder / "contenders.notes"
    notes.touch()
    at_once = AT_ONCE
    if kind_of(options.ledger) == "dynamodb":
        import boto3  # noqa: F401 - takes long, so once and not in each of them

        at_once = AT_ONCE_DYNAMODB
    with place_of(options.ledger, options.folder) as url:
        in_child(lambda: prepare(url))
        context = get_context("fork")
        start, end = context.Barrier(CONTENDERS + 1), context.Barrier(CONTENDERS + 1)
        goals: Any = context.Array("q", 2)
        processes = [
            context.Process(
                target=_contend,
                args=(url, notes, f"{options.seed} {at}", at, (start, end, goals, os.getpid())),
                daemon=True,
            )
            for at in range(CONTENDERS)
        ]
        for process in processes:
            process.start()
        try:
            while result.tried < 2 * options.amount and time.monotonic() - begun < options.seconds:
                contests = min(at_once, 2 * options.amount - result.tried)
                goals[0], goals[1] = number, contests
                try:
                    start.wait(ROUND_SECONDS)
                    end.wait(ROUND_SECONDS)
                except BrokenBarrierError:  # also a machine that is too slow for so many: it is looked at by a person
                    result.broken, result.history = {ENDLESS: contests}, notes.read_text().splitlines()[-LAST:]
                    break
                result.broken, result.history = judged(
                    notes.read_text().splitlines(), contests * (STATES if number % 2 else 1)
                )
                os.truncate(notes, 0)
                result.tried += contests
                number += 1
                if options.progress:
                    options.progress(result.tried // 2)
                if result.broken:
                    break
        finally:
            for process in processes:
                os.kill(process.pid or 0, signal.SIGKILL)
                process.join()
    result.lost, result.doubled = result.broken.get("lost", 0), result.broken.get("doubled", 0)
    if result.tried < 2 * options.amount and not result.broken:
        result.notes.append(f"ended early: {result.tried // 2:,} of {options.amount:,} contests of each kind")
    result.notes.append(
        f"{CONTENDERS} processes in each contest; half of the contests are for events, half for entities"
    )
    return result


def _name(*words: object) -> bytes:
    return hashlib.blake2b(" ".join(map(str, words)).encode(), digest_size=16).digest()


def _asks(seed: str, number: int, contests: int, contender: int) -> list[Ask]:
    """Return what a contender wants: the same events as all others, or one of two states of the same entities."""
    if number % 2 == 0:
        return [Ask(key=_name(seed, number, at), alone=True) for at in range(contests)]
    state = contender % STATES
    return [
        Ask(key=_name(seed, number, at, state), entity=_name(seed, number, at, "entity"), state=b"state", alone=True)
        for at in range(contests)
    ]


def _contend(url: str, path: Path, seed: str, contender: int, shared: tuple[Any, Any, Any, int]) -> None:
    start, end, goals, parent = shared
    end_with(parent)
    notes, dice, ledger = Notes(path), random.Random(seed), ledger_from_url(url)
    _until_reached(lambda: ledger.open(None))
    with suppress(BrokenBarrierError):  # it took too long, which is told by who waits for all of them
        while True:
            start.wait()
            try:
                _take_part(ledger, notes, dice, _asks(str(path), goals[0], goals[1], contender))
            except Exception as error:  # noqa: BLE001 - the judge is told
                notes.write("failed", type(error).__name__)
            end.wait()


def _take_part(ledger: Ledger, notes: Notes, dice: random.Random, asks: Sequence[Ask]) -> None:
    """Ask until everything is settled, by whomever."""
    left = list(asks)
    while left:
        nonce = secrets.token_bytes(8)
        answers = _until_reached(lambda asked=left, nonce=nonce: ledger.claim(asked, nonce=nonce, lease_us=LEASE_US))
        for ask, answer in zip(left, answers, strict=True):
            if answer.token:
                _hold(ledger, notes, dice, ask, answer)
        left = [ask for ask, answer in zip(left, answers, strict=True) if answer.verdict not in SETTLED]
        time.sleep(dice.random() * 0.01)


def _hold(ledger: Ledger, notes: Notes, dice: random.Random, ask: Ask, answer: Answer) -> None:
    """Hold a claim for a moment, write down both ends of it, and settle it or give it back."""
    is_done = dice.random() >= GIVEN_BACK_SHARE
    fence = (ask.entity or ask.key).hex()
    notes.write("begins", fence, answer.token)
    os.sched_yield()
    notes.write("ends", fence, answer.token, ask.key.hex() if is_done else "-")
    outcome = Outcome.DONE if is_done else Outcome.RELEASE
    settlement = Settlement(Claim(ask, answer.token, answer.attempt, answer.chain), outcome)
    if not _until_reached(lambda: ledger.settle([settlement]))[0]:
        notes.write("refused", fence, answer.token)


def _until_reached(call: Callable[[], T]) -> T:
    """Repeat a call while the server is busy with so many others; it is the same call to the ledger."""
    give_up = time.monotonic() + ROUND_SECONDS
    while True:
        try:
            return call()
        except LedgerUnavailable:
            if time.monotonic() > give_up:
                raise


def judged(lines: Sequence[str], wanted: int) -> tuple[dict[str, int], list[str]]:
    """Say what was broken in a round, and show what happened to the first event or entity that it befell."""
    happened = defaultdict(list)
    broken: Counter[str] = Counter()
    done: Counter[str] = Counter()
    for line in lines:
        _, _, what, *words = line.split(" ")
        if what == "failed":
            broken[f"a contender failed: {words[0]}"] += 1
            continue
        happened[words[0]].append((what, int(words[1]), line))
        if what == "ends" and words[2] != "-":
            done[words[2]] += 1
    history: list[str] = []
    for events in happened.values():
        found = _broken_rules([(what, token) for what, token, _ in events])
        broken.update(found)
        history = history or ([line for _, _, line in events] if found else [])
    broken["doubled"] = sum(times > 1 for times in done.values())
    broken["lost"] = max(0, wanted - len(done))
    return dict(+broken), history


def _broken_rules(happened: Sequence[tuple[str, int]]) -> set[str]:
    found = {"a holder was refused" for what, _ in happened if what == "refused"}
    moves = [(what, token) for what, token in happened if what != "refused"]
    if any(what != ("begins", "ends")[place % 2] for place, (what, _) in enumerate(moves)):
        found.add("two holders at a time")
    tokens = [token for what, token in moves if what == "begins"]
    if any(one >= other for one, other in pairwise(tokens)):
        found.add("tokens that do not rise")
    return found
