"""A day of traffic, compressed: what a command holds while it works must not grow with the work that it has done."""

from __future__ import annotations

import os
import pty
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final
from unittest import mock

from prove import measure, moved_clock, ways
from prove.arriving import Arriving, Pace
from prove.checks import Judgement, judge, read_notes
from prove.handled import environment_for
from prove.outcome import Options, Outcome
from prove.places import kind_of, place_of, prepare
from prove.round import PATIENCE_SECONDS, in_child
from prove.stream import Stream, make_stream
from prove.trend import Judged, Point, judge_points
from prove.worker import Conditions

if TYPE_CHECKING:
    from oncebridge import Bridge

DAY_SECONDS: Final = 86_400
#: Deliveries done in a second on a slow machine: for how fast the clock has to run to pass a day.
USUAL_PER_SECOND: Final = 250
POINTS: Final = 60
LOOK_SECONDS: Final = 0.1
#: A day's traffic in minutes: leases of a moved clock are over sooner.
LEASE_SECONDS: Final = 3000.0
DELIVERIES_PER_EVENT: Final = 1.8
UNDER_WAY: Final = 4
QUEUE_BATCH: Final = 10
#: Messages that wait in the queue, at most.
WAITING_MAX: Final = 500
#: The queue is asked how many are left each time that so many were sent.
ASK_AFTER: Final = 50
REQUEST_MAX: Final = 100
INVOCATION_MAX: Final = 50
#: SQLite keeps pages of its file, up to so many bytes for each connection: that is no leak, and takes long to fill.
PAGES_BYTES: Final = 16 * 1024 * 1024
CONNECTED: Final = {"serve": 2}
FUNCTION_SECONDS: Final = 60
PAGES: Final = ("/", "/deliveries", "/dead", "/requests", "/handlers", "/doctor", "/log")
PAGE_SECONDS: Final = 0.2


@dataclass
class Phase:
    """One command, or several side by side: what it has to do, and what was seen of it."""

    conditions: Conditions
    stream: Stream
    variables: Mapping[str, str]
    folder: Path
    give_up: float
    #: By name, the first process of each.
    programs: dict[str, int] = field(default_factory=dict)
    points: dict[str, list[Point]] = field(default_factory=dict)
    #: How many deliveries were done in the end.
    done: int = 0
    _last: int = 0

    @property
    def step(self) -> int:
        """Return how many deliveries there are from one point to the next."""
        return max(1, len(self.stream.arrivals) // POINTS)

    @property
    def is_over(self) -> bool:
        """Whether the time for it is over."""
        return time.monotonic() > self.give_up

    def at(self, done: int) -> None:
        """Take points of all programs, if a share of the work was done since the last ones."""
        if done < self._last + self.step:
            return
        self._last = done
        for name, root in self.programs.items():
            held = measure.read(measure.tree(root))
            self.points.setdefault(name, []).append(Point(done, held))


# --- the commands --------------------------------------------------------------------------------------


def service(phase: Phase) -> None:
    """`serve` gets all of it; beside it `console` is looked at, and `top` runs in a terminal."""
    url = phase.conditions.url
    with ExitStack() as stack:
        service = stack.enter_context(
            ways.serving(phase.variables, phase.folder / "serve.log", "--handler", ways.PROGRAM)
        )
        pages = stack.enter_context(_console(url, phase))
        stack.enter_context(_visited(pages))
        phase.programs = {
            "serve": measure.running("-m oncebridge serve")[0],
            "console": measure.running("-m oncebridge console")[0],
            "top": stack.enter_context(_top(url, phase)),
        }
        pace = Pace(1e9, again_seconds_max=1.0, under_way_max=UNDER_WAY, batch_max=min(REQUEST_MAX, phase.step))
        arriving = Arriving(service, phase.stream, pace)
        with arriving:
            while not arriving.wait(LOOK_SECONDS) and not phase.is_over:
                phase.at(arriving.acknowledged)
        phase.done = arriving.acknowledged


@contextmanager
def _console(url: str, phase: Phase) -> Iterator[str]:
    from servers.process import ServerProcess, free_port
    from servers.serving import ask

    port = free_port()
    pages = f"http://127.0.0.1:{port}/console"
    console = ServerProcess(
        ways.program("console", "--port", str(port), "--ledger", url),
        log=phase.folder / "console.log",
        ready=lambda: ask(f"{pages}/").status == 200,
        environment=os.environ | phase.variables,
    )
    console.start()
    try:
        yield pages
    finally:
        console.stop()


@contextmanager
def _visited(pages: str) -> Iterator[None]:
    """Look at every page again and again."""
    from servers.serving import ask

    over = threading.Event()

    def look() -> None:
        at = 0
        while not over.wait(PAGE_SECONDS):
            ask(pages + PAGES[at % len(PAGES)])
            at += 1

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def _top(url: str, phase: Phase) -> Iterator[int]:
    """Run it in a terminal that somebody looks at; yield its process."""
    ours, theirs = pty.openpty()
    screen = {"TERM": "xterm", "COLUMNS": "120", "LINES": "50"}
    top = subprocess.Popen(
        ways.program("top", "--ledger", url, "--every", "1"), stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs,
        env=os.environ | phase.variables | screen,
    )  # fmt: skip
    os.close(theirs)

    def look() -> None:
        with suppress(OSError):  # its end
            while os.read(ours, 65_536):
                pass

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield top.pid
        if top.poll() is not None:
            raise RuntimeError(f"top ended by itself, with {top.returncode}")
    finally:
        top.terminate()
        top.wait()
        thread.join()
        os.close(ours)


def file(phase: Phase) -> None:
    """`process` reads all of it from a pipe."""
    command = ways.program("process", "-", "--handler", ways.PROGRAM, "--json")
    with _started(command, phase, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        phase.programs, sent = {"process": process.pid}, 0
        for _, raw in phase.stream.arrivals:
            if phase.is_over:
                break
            process.stdin.write(raw + b"\n")
            sent += 1
            phase.at(sent)
        process.stdin.close()
        process.wait(2 * PATIENCE_SECONDS)
    phase.done = sent


def queue(phase: Phase) -> None:
    """`consume` takes all of it from a queue that is never full."""
    import boto3

    from servers.aws import running_ministack

    with running_ministack(phase.folder) as aws, mock.patch.dict(os.environ, AWS_ENDPOINT_URL=aws.url):
        sqs = boto3.client("sqs", endpoint_url=aws.url)
        url = sqs.create_queue(QueueName="soak")["QueueUrl"]
        command = ways.program("consume", url, "--handler", ways.PROGRAM, "--poll-seconds", "1", "--json")
        sent = done = 0
        with _started(command, phase) as process:
            phase.programs = {"consume": process.pid}
            while done < len(phase.stream.arrivals) and not phase.is_over:
                batch = phase.stream.arrivals[sent : sent + QUEUE_BATCH]
                if batch and sent - done < WAITING_MAX:
                    entries = [{"Id": str(at), "MessageBody": raw.decode()} for at, (_, raw) in enumerate(batch)]
                    sqs.send_message_batch(QueueUrl=url, Entries=entries)
                    sent += len(batch)
                if not batch or sent % ASK_AFTER < QUEUE_BATCH or sent - done >= WAITING_MAX:
                    done = sent - ways.left_in(sqs, url)
                    phase.at(done)
            process.terminate()
            process.wait(PATIENCE_SECONDS)
    phase.done = done


def function(phase: Phase) -> None:
    """A function in Lambda's runtime is invoked with all of it."""
    from servers.lambda_runtime import running_function
    from shapes import message, records

    place, sent, size = phase.folder / "function", 0, min(INVOCATION_MAX, phase.step)
    place.mkdir()
    started = running_function(place, "prove.handled.lambda_handler", FUNCTION_SECONDS, dict(phase.variables))
    with started as runtime:
        phase.programs = {"lambda": runtime.process.pid}
        while sent < len(phase.stream.arrivals) and not phase.is_over:
            batch = phase.stream.arrivals[sent : sent + size]
            answer = runtime.invoke(records(*(message(raw.decode(), str(at)) for at, (_, raw) in enumerate(batch))))
            if not isinstance(answer, dict) or answer.get("batchItemFailures"):
                raise RuntimeError(f"an invocation was answered with {str(answer)[:300]}")
            sent += len(batch)
            phase.at(sent)
    phase.done = sent


@contextmanager
def _started(command: list[str], phase: Phase, stdin: int = subprocess.DEVNULL) -> Iterator[subprocess.Popen[bytes]]:
    with (phase.folder / "log").open("ab") as log:
        process = subprocess.Popen(command, env=os.environ | phase.variables, stdin=stdin, stdout=log, stderr=log)
    try:
        yield process
        if process.returncode != 0:
            said = (phase.folder / "log").read_text(errors="replace")[-2000:]
            raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}: {said}")
    finally:
        process.kill()
        process.wait()
        if process.stdin is not None:
            with suppress(BrokenPipeError):
                process.stdin.close()


#: Each with its share of all deliveries: a queue's emulator is slow.
PHASES: Final[dict[str, tuple[Callable[[Phase], None], float]]] = {
    "service": (service, 0.3),
    "process": (file, 0.3),
    "consume": (queue, 0.2),
    "lambda": (function, 0.2),
}


#: The runtime of Lambda, whose clock is not moved, tells its function by the wall clock when it must have answered.
NOT_MOVED: Final = frozenset({"lambda"})


# --- all of it -----------------------------------------------------------------------------------------


def soak(options: Options) -> Outcome:
    """Let every command do its share, one after another, on one ledger."""
    whole, begun = Outcome(), time.monotonic()
    speed = max(1.0, DAY_SECONDS / (options.amount / USUAL_PER_SECOND)) if moved_clock.library() else 1.0
    with place_of(options.ledger, options.folder) as url:
        in_child(lambda: prepare(url))
        for name in PHASES:
            add(whole, name, one_phase(name, url, options, speed))
            if options.progress:
                options.progress(whole.tried)
    moved = f"clocks ran {speed:.0f} times as fast, but for Lambda" if speed > 1 else "no clock was moved"
    whole.notes.append(moved + ("" if speed > 1 else ": this machine has no library for that"))
    whole.seconds = round(time.monotonic() - begun, 1)
    return whole


def one_phase(
    name: str, url: str, options: Options, speed: float = 1.0, spoil: Callable[[Bridge], None] | None = None
) -> Outcome:
    """Let one command, or the service and what stands beside it, do its share on a ledger that is there."""
    run, share = PHASES[name]
    folder = options.folder / f"soak-{name}"
    folder.mkdir()
    unique = f"{options.seed}-{name}-{time.monotonic_ns():x}"
    events = max(50, options.amount * share / DELIVERIES_PER_EVENT)
    stream = make_stream(options.seed, unique, facts=int(events * 0.4), entities=int(events * 0.12))
    conditions = Conditions(url, unique, folder / "notes", lease_seconds=LEASE_SECONDS, spoil=spoil)
    variables = environment_for(conditions, (), folder / "faults")
    if speed > 1 and name not in NOT_MOVED:
        variables |= moved_clock.faster(speed)
    phase = Phase(conditions, stream, variables, folder, time.monotonic() + options.seconds * share)
    run(phase)
    is_whole = phase.done >= len(stream.arrivals)
    # Of a part of the stream nobody can say which events are lost.
    judgement = judge(stream.events, read_notes(conditions.notes), stuck=(), unbalanced=0) if is_whole else Judgement()
    outcome = Outcome(
        tried=phase.done,
        lost=len(judgement.lost),
        doubled=len(judgement.doubled_keyed),
        doubled_plain=judgement.doubled_plain,
        broken=judgement.broken,
    )
    if not is_whole:
        outcome.notes.append(f"ended early: {phase.done:,} of {len(stream.arrivals):,} in the time that it had")
    for program, points in phase.points.items():
        cache_bytes = PAGES_BYTES * CONNECTED.get(program, 1) if kind_of(options.ledger) == "sqlite" else 0
        _add_program(outcome, program, judge_points(points, cache_bytes), points)
    return outcome


def _add_program(outcome: Outcome, program: str, judged: Judged, points: Sequence[Point]) -> None:
    outcome.figures[program] = {
        "MB": round(judged.memory_bytes / 1024 / 1024, 1),
        "bytes a delivery": round(judged.bytes_per_delivery, 1),
        "bound": round(judged.bound, 1),
        **{what: asdict(points[-1].held)[what] for what in ("handles", "threads", "connections") if points},
    }
    outcome.notes.append(
        f"{program}: {judged.bytes_per_delivery:+.0f} bytes a delivery by the trend; more than {judged.bound:.0f} "
        "would have counted as a leak"
    )
    for what in judged.growing:
        outcome.broken[f"{program}: {what}"] = 1
    if judged.growing:
        outcome.history += [f"{program} after {point.done:,} deliveries: {point.held}" for point in points]


def add(whole: Outcome, name: str, part: Outcome) -> None:
    """Add what one phase came to."""
    whole.tried += part.tried
    whole.lost += part.lost
    whole.doubled += part.doubled
    whole.doubled_plain += part.doubled_plain
    whole.broken |= {f"{name}: {what}": number for what, number in part.broken.items()}
    whole.figures |= part.figures
    whole.notes += [f"{name}: {note}" for note in part.notes]
    whole.history += part.history
