"""`oncebridge diagnose`: captures in, the answer to "why do I get duplicates?" out.

The input is read once. Each delivery becomes a row on disk; the rows are grouped by event, the first delivery of each
state by entity, of each fact by content; then the keys of the back-test are tried. All of it works a part at a time: in
memory are ten bytes for each delivery, and one part of the rows for each process.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from typing import IO, TYPE_CHECKING, Any, Final, Self

import msgspec

from oncebridge.diagnosis.answer import Answered, answer
from oncebridge.diagnosis.arrivals import UNKNOWN, ArrivalClock
from oncebridge.diagnosis.backtest import Dropping
from oncebridge.diagnosis.causes import cause_of, reason_of
from oncebridge.diagnosis.chunks import ChunkWriter, Question
from oncebridge.diagnosis.evidence import Evidence
from oncebridge.diagnosis.grouping import CLASSED, IS_DUPLICATE, DeliveryClass, sightings_in
from oncebridge.diagnosis.keys import BUILT_IN, STREAMS, Key, OwnKey
from oncebridge.diagnosis.processes import RANGE, Done, OthersDone, Pass, WorkerPool, result_of, write_index
from oncebridge.diagnosis.sighting import Rules, Sighting
from oncebridge.diagnosis.spill import PARTS, Run, disk_error, parts_in, read_part, read_run
from oncebridge.diagnosis.sums import OTHER_TOPICS, TOPICS_COUNTED_MAX, Sums, Timeline
from oncebridge.errors import ConfigurationError
from oncebridge.settings import load_settings
from oncebridge.sources.captures.found import Captured, Tally
from oncebridge.sources.captures.reading import read_captures
from oncebridge.visible import visible, visible_json

if TYPE_CHECKING:
    from concurrent.futures import Future

    from oncebridge.diagnosis.chunks import Read
    from oncebridge.diagnosis.diagnosis import Diagnosis
    from oncebridge.settings import Settings

_evidence: Final = msgspec.msgpack.Decoder(list[Evidence]).decode


def diagnose(
    paths: Sequence[str],
    *,
    settings: Settings,
    settings_path: str | None = None,
    own_keys: Sequence[str] = (),
    other_settings: Sequence[str] = (),
    causes: IO[bytes] | None = None,
    processes: int = 1,
    work_dir: str | None = None,
    tally: Tally | None = None,
    stopping: threading.Event | None = None,
    progress: Callable[[int], None] = lambda _: None,
    on_part: Callable[[int, int], None] = lambda _done, _total: None,
    made: str = "",
    command: str = "",
    settings_name: str = "",
) -> Diagnosis:
    """Read captures and say why deliveries repeat.

    Args:
        paths: Files and directories; - is standard input.
        settings: What identity follows: profiles and reshaping.
        settings_path: The file that they were loaded from, for other processes.
        own_keys: Keys to try, as JMESPath over the whole event, each with an optional `for 10 s`.
        other_settings: Files of settings to compare with.
        causes: Gets a JSON line for each duplicate.
        processes: How many processes share the work.
        work_dir: Where rows are kept meanwhile.
        tally: Gets what was found beside deliveries.
        stopping: Ends reading once it is set.
        progress: Gets the number of bytes as they are read.
        on_part: Gets how many parts of the later passes are done, and of how many.
        made: When this is done, for the report.
        command: How it was called, for the report.
        settings_name: Which settings were in force, for the report.
    """
    folder = _made_folder(work_dir)
    try:
        question = Question(folder, settings_path, tuple(own_keys), tuple(other_settings))
        found = Tally() if tally is None else tally
        study = _Study(question, settings, processes, on_part, found)
        with study:
            stop = stopping or threading.Event()
            study.read(read_captures(paths, found, stopping=stop, progress=progress), stop)
            study.group(keeps_evidence=causes is not None)
            if causes is not None:
                study.write_causes(causes)
            answered = study.answered(made=made, command=command, settings_name=settings_name)
        return answer(answered)
    except BrokenPipeError:
        raise  # whoever reads the causes has seen enough
    except OSError as error:
        raise disk_error(error, str(error.filename or folder)) from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write_line(file: IO[bytes], line: bytes) -> None:
    try:
        file.write(line)
    except BrokenPipeError:
        raise
    except OSError as error:
        name = getattr(file, "name", "the file of causes")
        raise ConfigurationError(f"{name}: cannot be written: {error.strerror}; make room, or name another") from None


def _made_folder(work_dir: str | None) -> str:
    try:
        return tempfile.mkdtemp(prefix="oncebridge-diagnose-", dir=work_dir)
    except BrokenPipeError:
        raise  # whoever reads the causes has seen enough
    except OSError as error:
        raise disk_error(error, os.path.join(work_dir or tempfile.gettempdir(), "x")) from None  # noqa: PTH118


class _Study:
    """One diagnosis on its way."""

    def __init__(
        self,
        question: Question,
        settings: Settings,
        processes: int,
        on_part: Callable[[int, int], None],
        tally: Tally,
    ) -> None:
        self._question = question
        self._tally = tally
        self._settings = settings
        self._retention_ms = Rules(settings).retention_ms
        self._pool = WorkerPool(question, settings, processes)
        self._in_flight_max = 2 * processes
        self._on_part = on_part
        self._own = [OwnKey(text, STREAMS + at).key for at, text in enumerate(question.own_keys)]
        self._others = [Rules(load_settings(path)) for path in question.other_settings]
        self._parts = PARTS * (3 + STREAMS + len(self._own) + 2 * len(self._others))
        self._parts_done = 0
        self.files: list[str] = []
        self._starts: set[int] = set()  # the numbers of the first delivery of each file
        self._clock = ArrivalClock()
        self._times = array("q")
        self._latest_told = UNKNOWN
        self._is_disordered = False
        self._digest = sha256()
        self._topics: dict[str, int] = {}
        self._kinds: dict[str, str] = {}
        self._unreadable: list[int] = []
        self._unreadable_total = 0
        self._timeline = Timeline()
        self._sightings: list[Run] = []
        self._firsts: list[int] = []  # the number of the first delivery of each chunk
        self._keys: list[list[Run]] = [[] for _ in range(STREAMS + len(self._own))]
        self._other_runs: list[list[Run]] = [[] for _ in self._others]
        self.sums = Sums()
        self._classes = bytearray()
        self._evidence_runs: list[Run] = []
        self._rows: list[tuple[Key, Dropping]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self._pool.close(at_once=error is not None)

    # --- reading ---------------------------------------------------------------------------------------------

    def read(self, captured: Iterable[Captured | None], stop: threading.Event) -> None:
        """Read all deliveries, some chunks at a time, or as many as there are until this is set."""
        under_way: deque[Future[Read]] = deque()
        chunk = ChunkWriter()
        first = 1
        for one in captured:
            if stop.is_set():
                break
            if one is None:
                continue
            if not self.files or self.files[-1] is not one.file:
                self.files.append(one.file)
                self._starts.add(first + len(chunk))
            chunk.add(one, len(self.files) - 1)
            if chunk.is_full:
                under_way.append(self._pool.read(chunk.written(), first))
                first, chunk = first + len(chunk), ChunkWriter()
                while len(under_way) > self._in_flight_max or (under_way and under_way[0].done()):
                    self._take(result_of(under_way.popleft()))
        if len(chunk):
            under_way.append(self._pool.read(chunk.written(), first))
        while under_way:
            self._take(result_of(under_way.popleft()))
        self._classes = bytearray(len(self._times))
        with open(f"{self._question.folder}/arrivals", "wb") as file:  # noqa: PTH123
            self._times.tofile(file)

    def _take(self, read: Read) -> None:
        """Note what a chunk left behind, in the order of chunks."""
        times, start = self._times, len(self._times)
        self._firsts.append(start + 1)
        believed = array("q")  # one clock that is wrong must not stretch the time that the capture covers
        begins = sorted(n - 1 for n in self._starts if start < n <= start + len(read.told))
        for at, (told, published) in enumerate(zip(read.told, read.published, strict=True), start):
            if begins and at == begins[0]:
                self._clock = ArrivalClock()
                begins.pop(0)
            times.append(self._clock.next(told, published))
            self._is_disordered = self._is_disordered or 0 <= told < self._latest_told
            self._latest_told = max(self._latest_told, told)
            believed.append(told if told >= 0 else self._clock.floor)
        self._timeline.add_all([time for time in believed if time >= 0])
        self._unreadable += read.unreadable
        self._unreadable_total += len(read.unreadable)
        for file, line in read.no_events:
            self._tally.no_event(self.files[file], line)
        for topic, number in read.topics.items():
            name = topic if topic in self._topics or len(self._topics) < TOPICS_COUNTED_MAX else OTHER_TOPICS
            self._topics[name] = self._topics.get(name, 0) + number
        self._kinds |= {topic: kind.value for topic, kind in read.kinds.items() if topic in self._topics}
        self._digest.update(read.digest)
        self._sightings.append(read.sightings)
        for mine, run in zip(self._keys, read.keys, strict=True):
            mine.append(run)
        for mine, run in zip(self._other_runs, read.others, strict=True):
            mine.append(run)

    # --- grouping --------------------------------------------------------------------------------------------

    def group(self, *, keeps_evidence: bool) -> None:
        """Find duplicates and their causes, then try the keys."""
        for n in self._unreadable:
            self._classes[n - 1] = DeliveryClass.UNREADABLE
        events = self._grouped("events", self._sightings, keeps_evidence=keeps_evidence)
        states = self._grouped("states", [done.states for done in events], keeps_evidence=keeps_evidence)
        facts = self._grouped("facts", [done.facts for done in events], keeps_evidence=keeps_evidence)
        self._evidence_runs = [done.evidence for done in (*events, *states, *facts) if done.evidence is not None]
        classes = self._written_classes("classes")
        for stream, runs in enumerate(self._keys):
            keys = tuple(key for key in (*BUILT_IN, *self._own) if key.stream == stream)
            self._rows += self._tried(keys, runs, classes)
        self._rows += [self._compared(at, runs) for at, runs in enumerate(self._other_runs)]

    def _each_part(self, kind: str, runs: Sequence[Run], **given: Any) -> Iterator[Any]:
        """Pass over rows, a part at a time."""
        folder = self._question.folder
        kept = [run for run in runs if not run.is_empty]
        index = write_index(folder, f"{kind.replace(' ', '-')}-{self._parts_done}", kept)
        asked = Pass(kind, folder, index, len(self._times), self._is_disordered, **given)
        for number, done in enumerate(self._pool.each_part(asked, parts_in(kept)), self._parts_done):
            self._on_part(number, self._parts)
            yield done
        self._parts_done += PARTS

    def _grouped(self, kind: str, runs: Sequence[Run], *, keeps_evidence: bool) -> list[Done]:
        classes = self._written_classes(f"classes-{kind}") if kind == "facts" else ""
        found: list[Done] = []
        given = {"classes": classes, "keeps_evidence": keeps_evidence, "retention_ms": self._retention_ms}
        for done in self._each_part(kind, runs, **given):
            self.sums.merge(done.sums)
            for n, what in CLASSED.iter_unpack(done.classes):
                self._classes[n - 1] = what
            found.append(msgspec.structs.replace(done, sums=Sums(), classes=b""))
        return found

    def _written_classes(self, name: str) -> str:
        path = f"{self._question.folder}/{name}"
        with open(path, "wb") as file:  # noqa: PTH123
            file.write(self._classes)
        return path

    def _tried(self, keys: tuple[Key, ...], runs: list[Run], classes: str) -> list[tuple[Key, Dropping]]:
        rows = [(key, Dropping()) for key in keys]
        for tried in self._each_part("keys", runs, keys=keys, classes=classes):
            for (_, dropping), other in zip(rows, tried, strict=True):
                dropping.merge(other)
        return rows

    def _compared(self, at: int, runs: list[Run]) -> tuple[Key, Dropping]:
        """Find what other settings would have done."""
        name, rules = visible(self._question.other_settings[at]), self._others[at]
        dropping = Dropping()
        states: list[Run] = []
        done: OthersDone
        for done in self._each_part("other copies", runs, retention_ms=rules.retention_ms):
            self._drop(done.pairs, dropping)
            states += [] if done.states is None else [done.states]
        for done in self._each_part("other states", states):
            self._drop(done.pairs, dropping)
        key = Key(
            name=name, title=f"Oncebridge with {name}", compares="the event, as these settings say", stream=-1,
            seconds=rules.retention_ms / 1000,
        )  # fmt: skip
        return key, dropping

    def _drop(self, pairs: Sequence[tuple[int, int]], dropping: Dropping) -> None:
        for n, of in pairs:
            dropping.drop(n, of, self._classes[n - 1])

    # --- writing ---------------------------------------------------------------------------------------------

    def write_causes(self, file: IO[bytes]) -> None:
        """Write a line for each duplicate, in the order of the input."""
        for part in range(len(self._times) // RANGE + 1):
            found = [one for block in read_part(self._evidence_runs, part) for one in _evidence(block)]
            for evidence in sorted(found, key=lambda one: one.n):
                cause = cause_of(evidence.relation, self.sums.regular(evidence.topic))
                reason = reason_of(evidence, self.sums.regularity)
                line = {"n": evidence.n, "id": evidence.id, "cause": cause, "reason": reason}
                _write_line(file, visible_json(line).encode() + b"\n")

    def answered(self, *, made: str, command: str, settings_name: str) -> Answered:
        """Return all that was counted."""
        return Answered(
            sums=self.sums,
            rows=self._rows,
            duplicates=sum(IS_DUPLICATE[what] * self._classes.count(what) for what in range(len(IS_DUPLICATE))),
            deliveries=len(self._times),
            unreadable=self._unreadable_total,
            topics=self._topics,
            kinds=self._kinds,
            timeline=self._timeline,
            files=self.files,
            retention_ms=self._retention_ms,
            replays_anew=self._settings.replays_anew,
            sightings_of=self._sightings_of,
            digest=self._digest.hexdigest(),
            skipped=self._tally.skipped_text,
            made=made,
            command=command,
            settings=settings_name,
        )

    def _sightings_of(self, numbers: set[int]) -> dict[int, Sighting]:
        """Find deliveries again, to show them as examples."""
        chunks = {bisect_right(self._firsts, n) - 1 for n in numbers if n > 0}
        rows = (one for chunk in sorted(chunks) for one in sightings_in(read_run(self._sightings[chunk])))
        return {one.n: one for one in rows if one.n in numbers}
