"""The processes that share the work of a diagnosis: a chunk of the input or a part of the rows at a time.

What they share lies in files: the index of the rows, arrivals and classes by a delivery's number. So a task is a few
names, and a process more takes the memory of an interpreter and of one part.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import BrokenExecutor, Future
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from oncebridge.diagnosis.arrivals import Arrivals
from oncebridge.diagnosis.backtest import try_keys
from oncebridge.diagnosis.chunks import ChunkReader, Question, Read
from oncebridge.diagnosis.grouping import (
    Dropped,
    PartFound,
    drop_copies,
    drop_states,
    encoded,
    group_by_event,
    match_facts,
    order_states,
)
from oncebridge.diagnosis.keys import Key
from oncebridge.diagnosis.spill import Run, Writer, read_part
from oncebridge.diagnosis.sums import Sums
from oncebridge.errors import OncebridgeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import ProcessPoolExecutor

    from oncebridge.settings import Settings

#: Deliveries that are read here, before other processes are worth their start.
HERE_MAX: Final = 16_384
#: A file of numbers that is larger is mapped into memory, not read.
SMALL_BYTES: Final = 8 * 1_048_576
#: Evidence is sorted by a delivery's number, so many at a time.
RANGE: Final = 1 << 16


class WorkerDied(OncebridgeError):
    """A process ended before its work was done."""


class Pass(msgspec.Struct, frozen=True):
    """One pass over rows: what is to be done with each part of them."""

    kind: str
    folder: str
    #: The file that names the runs.
    index: str
    deliveries: int
    is_disordered: bool = False
    classes: str = ""
    keys: tuple[Key, ...] = ()
    retention_ms: int = 0
    keeps_evidence: bool = False


class Done(msgspec.Struct, frozen=True):
    """What a part left behind: counts, and runs of rows for the next asked."""

    sums: Sums
    classes: bytes
    states: Run
    facts: Run
    evidence: Run | None


class OthersDone(msgspec.Struct, frozen=True):
    """What other settings did with a part."""

    pairs: list[tuple[int, int]]
    states: Run | None


# --- what a process does -----------------------------------------------------------------------------------------

_readers: dict[Question, ChunkReader] = {}


def _begin_process() -> None:
    """End with the command that began this process, however it ends."""
    import multiprocessing
    from multiprocessing.connection import wait

    parent = multiprocessing.parent_process()
    if parent is not None:

        def watch() -> None:
            wait([parent.sentinel])
            os._exit(1)

        threading.Thread(target=watch, name="oncebridge-parent", daemon=True).start()


def read_chunk(question: Question, chunk: bytes, first: int) -> Read:
    """Read a chunk of the input."""
    if question not in _readers:
        _readers[question] = ChunkReader(question)
    return _readers[question].read(chunk, first)


def work_on(asked: Pass, part: int) -> Any:
    """Work on one part of a pass."""
    blocks = read_part(_runs(asked.index), part)
    arrivals = Arrivals(_shared(str(Path(asked.folder) / "arrivals"), "q"), is_disordered=asked.is_disordered)
    if asked.kind == "events":
        return _done(group_by_event(blocks, arrivals, asked.retention_ms), asked)
    if asked.kind == "states":
        return _done(order_states(blocks, arrivals), asked)
    if asked.kind == "facts":
        return _done(match_facts(blocks, _shared(asked.classes, "B"), arrivals), asked)
    if asked.kind == "keys":
        return try_keys(blocks, asked.keys, arrivals, _shared(asked.classes, "B"))
    if asked.kind == "other copies":
        return _others_done(drop_copies(blocks, arrivals, asked.retention_ms), asked, has_states=True)
    return _others_done(drop_states(blocks, arrivals), asked, has_states=False)


def _done(part: PartFound, asked: Pass) -> Done:
    evidence = None
    if asked.keeps_evidence:
        ranges: list[list[Any]] = [[] for _ in range(asked.deliveries // RANGE + 1)]
        for one in part.evidence:
            ranges[one.n // RANGE].append(one)
        evidence = _writer(asked.folder, "evidence").write(encoded(ranges))
    return Done(
        part.sums,
        bytes(part.classes),
        _writer(asked.folder, "states").write(encoded(part.states)),
        _writer(asked.folder, "facts").write(encoded(part.facts)),
        evidence,
    )


def _others_done(dropped: Dropped, asked: Pass, *, has_states: bool) -> OthersDone:
    states = _writer(asked.folder, "other-states").write(encoded(dropped.states)) if has_states else None
    return OthersDone(dropped.pairs, states)


@lru_cache(maxsize=64)
def _writer(folder: str, name: str) -> Writer:
    return Writer(folder, name)


_index: Final = msgspec.msgpack.Decoder(list[Run])


@lru_cache(maxsize=8)
def _runs(path: str) -> list[Run]:
    return _index.decode(Path(path).read_bytes())


def write_index(folder: str, name: str, runs: Sequence[Run]) -> str:
    """Write where runs are; return the name of the file."""
    path = Path(folder) / f"{name}.index"
    path.write_bytes(msgspec.msgpack.encode(runs))
    return str(path)


@lru_cache(maxsize=8)
def _shared(path: str, kind: Literal["q", "B"]) -> Any:
    """Return a file of numbers; of a large one all processes see the same pages."""
    if Path(path).stat().st_size <= SMALL_BYTES:
        return memoryview(Path(path).read_bytes()).cast(kind)
    import mmap  # WebAssembly has none

    with Path(path).open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)).cast(kind)


# --- many of them ------------------------------------------------------------------------------------------------


class WorkerPool:
    """Runs tasks in other processes, or right here if there is to be one process only."""

    def __init__(self, question: Question, settings: Settings, processes: int) -> None:
        """Take how many processes there may be; none is started before the first task."""
        self._question = question
        self._processes = processes
        self._pool: ProcessPoolExecutor | None = None
        self._others: set[Any] = set()  # processes of somebody else
        _readers[question] = ChunkReader(question, settings)

    def read(self, chunk: bytes, first: int) -> Future[Read]:
        """Read a chunk: the first ones here, because the input may turn out to be small."""
        if first <= HERE_MAX or self._processes == 1:
            return _at_once(read_chunk, self._question, chunk, first)
        return self._submitted(read_chunk, self._question, chunk, first)

    def each_part(self, asked: Pass, parts: Sequence[int]) -> Iterator[Any]:
        """Work on some parts of a pass; results come in the order of parts."""
        if self._pool is None:
            yield from (work_on(asked, part) for part in parts)
            return
        tasks = [self._submitted(work_on, asked, part) for part in parts]
        for task in tasks:
            yield result_of(task)

    def _submitted(self, function: Callable[..., Any], *given: Any) -> Future[Any]:
        pool = self._started()
        try:
            with _signals_blocked():
                return pool.submit(function, *given)
        except BrokenExecutor:
            raise _died() from None

    def _started(self) -> ProcessPoolExecutor:
        if self._pool is None:
            # A new interpreter each: a copy of this one would have the locks of its threads, but not the threads.
            import multiprocessing  # WebAssembly has no processes
            from concurrent.futures import ProcessPoolExecutor
            from multiprocessing import resource_tracker

            resource_tracker.ensure_running()  # begun later, it would let signals in between

            self._others = set(multiprocessing.active_children())
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self._processes, mp_context=context, initializer=_begin_process)
        return self._pool

    def close(self, *, at_once: bool = False) -> None:
        """End the processes; at once if their work is of no use any more."""
        _readers.pop(self._question, None)
        _writer.cache_clear()
        _runs.cache_clear()
        _shared.cache_clear()
        if self._pool is not None:
            if at_once:
                self._kill()
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def _kill(self) -> None:
        """Kill the processes: they leave signals to the command, also those by which the pool would end them."""
        import multiprocessing

        for process in set(multiprocessing.active_children()) - self._others:
            process.kill()


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Begin processes that leave signals to the command: they inherit the block, from their first instruction on."""
    import signal

    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _at_once(function: Callable[..., Read], *given: Any) -> Future[Read]:
    future: Future[Read] = Future()
    future.set_result(function(*given))
    return future


def result_of(task: Future[Any]) -> Any:
    """Return a task's result; raises in plain words if its process has died."""
    try:
        return task.result()
    except BrokenExecutor:
        raise _died() from None


def _died() -> WorkerDied:
    return WorkerDied(
        "a process of the diagnosis was killed, perhaps for want of memory; nothing was changed: try again with "
        "--processes 1"
    )
