"""Spoiled input to whatever reads something: no crash, nothing unaccounted for, and no cost out of proportion."""

from __future__ import annotations

import logging
import os
import random
import resource
import select
import signal
import statistics
import time
import traceback
import tracemalloc
import warnings
from bisect import bisect_left
from collections import Counter, deque
from pathlib import Path
from typing import Any, Final

import psutil

from prove.fuzzing import SHARES, TARGETS, Target, Wrong
from prove.mutate import smaller
from prove.outcome import Options, Outcome
from prove.round import Child, in_child

#: In one process; the next begins anew.
CHUNK: Final = 10_000
#: Inputs between two new ledgers.
RENEW_EACH: Final = 1_000
#: One input never takes so long; a process that does is ended, and its input is named.
HANGS_SECONDS: Final = 60
#: A failure is made smaller for so long.
SHRINKS_SECONDS: Final = 5
#: A normal one of its size, so many times.
TIMES_MAX: Final = 10
#: From here on one look is not enough.
TIMES_LOOKED_AT: Final = 4
SIZES: Final = (400, 1_600, 6_400, 25_600, 102_400)
#: Memory is measured of one in so many, and of one in so few where it is large.
MEMORY_EACH: Final = 500
MEMORY_EACH_LARGE: Final = 10
LARGE: Final = 8_000
#: Of the measure itself, and of what there is only once.
ROOM_BYTES: Final = 65_536
MEMORY_MAX: Final = 1 << 31


def fuzz(options: Options) -> Outcome:
    """Give each target its share, with as many processes as there are cores."""
    outcome, end = Outcome(), time.monotonic() + options.seconds
    waiting, running = deque(chunks(options.amount)), list[Chunk]()
    while running or (waiting and time.monotonic() < end):
        while waiting and len(running) < len(os.sched_getaffinity(0)):
            running.append(Chunk(*waiting.popleft(), options, end))
        ready, _, _ = select.select(running, [], [])
        for chunk in ready:
            running.remove(chunk)
            _add(outcome, chunk.name, chunk.found(), options)
        if outcome.broken or time.monotonic() > end:
            waiting.clear()
    if outcome.tried < options.amount and not outcome.broken:
        outcome.notes.append(f"ended early: {outcome.tried:,} of {options.amount:,} in the time that it had")
    return outcome


def chunks(amount: int) -> list[tuple[str, range]]:
    """Divide so many inputs among the targets, each of which has had about the same part at any time."""
    left, numbers = amount, {}
    for name, share in SHARES.items():
        numbers[name] = min(left, max(1, round(amount * share)))
        left -= numbers[name]
    numbers["parser"] += left
    found = [
        (name, range(start, min(start + CHUNK, number)))
        for name, number in numbers.items()
        for start in range(0, number, CHUNK)
    ]
    return sorted(found, key=lambda one: one[1].stop / numbers[one[0]])


class Chunk:
    """Some inputs for one target, in a process of its own."""

    def __init__(self, name: str, numbers: range, options: Options, end: float) -> None:
        """Begin."""
        self.name, self._numbers, self._seed = name, numbers, options.seed
        self._place = options.folder / f"{name}-{numbers.start}.at"
        self._child = Child(lambda: work(name, options.seed, numbers, self._place, end))

    def fileno(self) -> int:
        """Return where the answer comes."""
        return self._child.fileno()

    def found(self) -> dict[str, Any]:
        """Return what came of it; where the process died, which input it had."""
        try:
            found: dict[str, Any] = self._child.answer()
        except RuntimeError:
            return self._dead()
        return found

    def _dead(self) -> dict[str, Any]:
        number, name, seed = int(self._place.read_text()), self.name, self._seed
        what = f"{name}: died, or took more than {HANGS_SECONDS} s"
        data = in_child(lambda: repr(input_of(TARGETS[name](), name, seed, number))[:2000])
        return {
            "tried": number - self._numbers.start + 1, "seconds": 0.0, "slowest": 0.0, "broken": {what: 1},
            "history": [f"seed {seed}, {name} {number}: {data}"],
        }  # fmt: skip


def _add(outcome: Outcome, name: str, found: dict[str, Any], options: Options) -> None:
    outcome.tried += found["tried"]
    figures = outcome.figures.setdefault(name, {"tried": 0, "slowest, in normal ones": 0.0, "seconds": 0.0})
    figures["tried"] += found["tried"]
    figures["seconds"] = round(figures["seconds"] + found["seconds"], 1)
    figures["slowest, in normal ones"] = max(figures["slowest, in normal ones"], found["slowest"])
    for what, number in found["broken"].items():
        outcome.broken[what] = outcome.broken.get(what, 0) + number
    outcome.history += found["history"]
    if options.progress:
        options.progress(outcome.tried)


def input_of(target: Target, name: str, seed: int, number: int) -> bytes:
    """Make the input of this number again."""
    return target.make(random.Random(f"{seed} {name} {number}"))


def work(name: str, seed: int, numbers: range, place: Path, end: float) -> dict[str, Any]:
    """Try inputs; in a process of its own, which ends if one of them takes too long."""
    os.chdir(place.parent)
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    # Beyond what it was forked with: threads and libraries of its parent's count, too.
    memory_max = psutil.Process().memory_info().vms + MEMORY_MAX
    resource.setrlimit(resource.RLIMIT_AS, (memory_max, memory_max))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(HANGS_SECONDS)
    at = os.open(place, os.O_WRONLY | os.O_CREAT, 0o600)
    os.pwrite(at, b"%-12d" % numbers.start, 0)
    begun, target = time.monotonic(), TARGETS[name]()
    limits = Limits(target)
    broken, history, slowest, tried = Counter[str](), list[str](), 0.0, 0
    for number in numbers:
        if time.monotonic() > end:
            break
        if number % RENEW_EACH == 0:
            target.renew()
        data = input_of(target, name, seed, number)
        os.pwrite(at, b"%-12d" % number, 0)
        signal.alarm(HANGS_SECONDS)
        what, times = attempt(target, limits, data, number)
        tried += 1
        slowest = max(slowest, times)
        if what is not None:
            broken[f"{name}: {what}"] += 1
            history += _told(target, limits, data, what, f"seed {seed}, {name} {number}")
            break
    signal.alarm(0)
    os.close(at)
    seconds = round(time.monotonic() - begun, 1)
    target.close()
    return {
        "tried": tried, "seconds": seconds, "slowest": round(slowest, 1), "broken": dict(broken), "history": history,
    }  # fmt: skip


def attempt(target: Target, limits: Limits, data: bytes, number: int) -> tuple[str | None, float]:
    """Try one input; return what was wrong, and how many times as long as a normal one it took."""
    each = MEMORY_EACH_LARGE if len(data) > LARGE else MEMORY_EACH
    try:
        begun = time.process_time()
        target.run(data)
        took = time.process_time() - begun
        target.check()
        times = took / limits.seconds(len(data))
        if times > TIMES_LOOKED_AT:
            # A busy machine may disturb one look, not each of several.
            times = min(limits.times(target, data) for _ in range(5))
            if times > TIMES_MAX:
                return f"took more than {TIMES_MAX} times as long as a normal one of its size", times
        if number % each == 0 and limits.memory_of(target, data) > limits.memory(len(data)):
            return f"took more than {TIMES_MAX} times the memory of a normal one of its size", times
    except Wrong as wrong:
        return str(wrong), 0.0
    except Exception as error:  # noqa: BLE001 - any that comes out is what is looked for
        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"raised {type(error).__name__} in {Path(last.filename).name}, line {last.lineno}", 0.0
    return None, times


def _told(target: Target, limits: Limits, data: bytes, what: str, where: str) -> list[str]:
    """Make the input smaller as long as the same goes wrong, and write it down."""
    end = time.monotonic() + SHRINKS_SECONDS

    def fails(less: bytes) -> bool:
        if time.monotonic() > end:
            return False
        target.renew()
        signal.alarm(HANGS_SECONDS)
        return attempt(target, limits, less, 0)[0] == what

    small = smaller(data, fails)
    return [f"{where}: {what}", f"{len(data):,} bytes, and with {len(small):,} too: {small[:600]!r}"]


class Limits:
    """What normal input costs, by its size, measured on this machine and just now."""

    def __init__(self, target: Target) -> None:
        """Measure it."""
        target.renew()
        target.run(target.normal(SIZES[0]))  # whatever is done only once
        self._measured: list[tuple[int, float, int]] = []
        for size in SIZES:
            data = target.normal(size)
            seconds = statistics.median(self._seconds_of(target, data) for _ in range(5))
            self._measured.append((len(data), seconds, self.memory_of(target, data)))

    def _seconds_of(self, target: Target, data: bytes) -> float:
        target.renew()
        begun = time.process_time()
        target.run(data)
        return time.process_time() - begun

    def times(self, target: Target, data: bytes) -> float:
        """Return how many times as long as a normal one of its size it takes."""
        return self._seconds_of(target, data) / self.seconds(len(data))

    def memory_of(self, target: Target, data: bytes) -> int:
        """Return how much memory it takes, at most at a time."""
        target.renew()
        tracemalloc.start()
        try:
            target.run(data)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    def seconds(self, size: int) -> float:
        """Return how long a normal one of this size takes."""
        return self._at(size, 1)

    def memory(self, size: int) -> float:
        """Return how much memory is allowed for one of this size."""
        return TIMES_MAX * self._at(size, 2) + ROOM_BYTES

    def _at(self, size: int, column: int) -> float:
        sizes = [row[0] for row in self._measured]
        above = min(max(1, bisect_left(sizes, size)), len(sizes) - 1)
        low, high = self._measured[above - 1], self._measured[above]
        if size <= low[0]:
            return low[column]
        share = (size - low[0]) / (high[0] - low[0])
        return low[column] + share * (high[column] - low[column])
