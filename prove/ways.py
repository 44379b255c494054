"""The ways in that are programs of their own: `oncebridge process`, `consume`, `serve`, a function in Lambda's runtime.

Each drives one round: it starts the real program, gives it the stream until everything is acknowledged, restarts what
dies where nobody else does, lets go on what was stopped, and ends it in an orderly way. Faults are in the program's own
processes (see `prove.handled`); what it says is not taken as proof.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from prove.faults import Fault
from prove.handled import environment_for
from prove.round import AGAIN_SECONDS, BATCH_MAX, PATIENCE_SECONDS, Told
from prove.stream import Stream
from prove.worker import Conditions

#: Until what was handed out and not acknowledged may be handed out to another, as a queue does it.
HIDDEN_SECONDS: Final = 0.8
#: Of a worker that is stopped: until after that, in leases.
STOPPED_LEASES: Final = 4.0
#: A start of a program on a busy machine, beside what a round takes.
START_SECONDS: Final = 30.0
PROCESSES: Final = 2
SENDERS: Final = 3
FUNCTION_SECONDS: Final = 8
PROGRAM: Final = "prove.handled:bridge"
LOOK_SECONDS: Final = 0.05


class Deliveries:
    """The deliveries of a round that are not acknowledged yet, for several senders."""

    def __init__(self, stream: Stream, seed: int) -> None:
        """Begin with all of them."""
        self._stream, self._dice = stream, random.Random(f"{seed} batches")
        self._due = dict.fromkeys(range(len(stream.arrivals)), 0.0)
        self._lock = threading.Lock()
        #: When something was acknowledged last: slow is not stuck.
        self._progressed = 0.0

    @property
    def stuck(self) -> list[int]:
        """Return the events of which a delivery is not acknowledged."""
        with self._lock:
            return sorted({self._stream.arrivals[at][0] for at in self._due})

    def take(self) -> dict[int, bytes]:
        """Take a batch that nobody else gets for a while; empty if nothing is due."""
        with self._lock:
            now = time.monotonic()
            batch = [at for at, due in self._due.items() if due <= now][: self._dice.randint(1, BATCH_MAX)]
            self._due |= dict.fromkeys(batch, now + HIDDEN_SECONDS)
            return {at: self._stream.arrivals[at][1] for at in batch}

    def answered(self, batch: Mapping[int, bytes], acknowledged: set[int]) -> None:
        """Forget what was acknowledged; the rest comes again."""
        with self._lock:
            for at in batch:
                if at in acknowledged:
                    self._due.pop(at, None)
                    self._progressed = time.monotonic()
                elif at in self._due:
                    self._due[at] = time.monotonic() + AGAIN_SECONDS

    def send_all(self, senders: Sequence[Callable[[dict[int, bytes]], set[int]]], seconds: float) -> None:
        """Let senders send until nothing is left, or nothing is acknowledged for so long; each in a thread.

        Each returns what may be acknowledged.
        """
        errors = list[BaseException]()
        self._progressed = time.monotonic()

        def keep_sending(send: Callable[[dict[int, bytes]], set[int]]) -> None:
            try:
                while self.stuck and not errors and time.monotonic() < self._progressed + seconds:
                    if batch := self.take():
                        self.answered(batch, send(batch))
                    else:
                        time.sleep(AGAIN_SECONDS)
            except BaseException as error:  # noqa: BLE001 - told by the thread that waits for this one
                errors.append(error)

        threads = [threading.Thread(target=keep_sending, args=(send,)) for send in senders]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for error in errors:
            raise error


@contextmanager
def continued(conditions: Conditions, told: Told) -> Iterator[None]:
    """Let every process that was stopped go on after its lease, however many there are."""
    over, seen = threading.Event(), 0

    def look() -> None:
        nonlocal seen
        while not over.wait(LOOK_SECONDS):
            lines = conditions.notes.read_text().splitlines() if conditions.notes.exists() else []
            stopped = [line.split(" ") for line in lines if " fault stop" in line]
            while seen < len(stopped):
                at_ns, pid, *_ = stopped[seen]
                if time.monotonic_ns() - int(at_ns) < STOPPED_LEASES * conditions.lease_seconds * 1e9:
                    break
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGCONT)
                told.stopped += 1
                seen += 1

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        # What was stopped last must go on before its program is asked to end.
        time.sleep((STOPPED_LEASES + 1) * conditions.lease_seconds if _is_any_stopped(conditions, told) else 0.0)
        over.set()
        thread.join()


def _is_any_stopped(conditions: Conditions, told: Told) -> bool:
    notes = conditions.notes.read_text() if conditions.notes.exists() else ""
    return notes.count(" fault stop") > told.stopped


def program(*words: str) -> list[str]:
    """Return the command line of a program that ends with this process."""
    from servers.process import dying_with_parent

    return dying_with_parent([sys.executable, "-m", "oncebridge", *words])


def _patience(faults: Sequence[Fault]) -> float:
    return START_SECONDS + PATIENCE_SECONDS + 3 * len(faults)


# --- a file ------------------------------------------------------------------------------------------


def file(conditions: Conditions, stream: Stream, faults: Sequence[Fault], _seed: int) -> Told:
    """Run two `oncebridge process` over a file with all of it, each again until it has come to its end."""
    told, left = Told(), PROCESSES
    give_up = time.monotonic() + _patience(faults)
    with _folder(conditions, faults) as (variables, log):
        capture = log.with_name("capture.jsonl")
        capture.write_bytes(b"\n".join(raw for _, raw in stream.arrivals))
        command = program("process", str(capture), "--handler", PROGRAM, "--batch", str(BATCH_MAX), "--json")
        running: list[subprocess.Popen[str]] = []
        try:
            with continued(conditions, told):
                while left and time.monotonic() < give_up:
                    for one in [one for one in running if one.poll() is not None]:
                        running.remove(one)
                        if one.returncode == 0:
                            left -= 1
                            _take_report(one, told)
                        else:
                            _is_over(one, told)
                    while len(running) < left:
                        _check_lives(told, faults, log)
                        running.append(_started(command, variables, log))
                        told.lives += 1
                    time.sleep(LOOK_SECONDS)
        finally:
            for one in running:
                one.kill()
                one.communicate()
    # Which events they are, only the judge can tell: a file has no acknowledgements.
    told.stuck = [-1] if left else []
    return told


# --- a queue -----------------------------------------------------------------------------------------


def consume(conditions: Conditions, stream: Stream, faults: Sequence[Fault], _seed: int) -> Told:
    """Run two `oncebridge consume` on a queue of their own, and start them again when they die."""
    import boto3

    sqs = boto3.client("sqs", endpoint_url=os.environ["AWS_ENDPOINT_URL"])
    queue = sqs.create_queue(QueueName=f"proof-{conditions.name}"[:80])["QueueUrl"]
    told = Told()
    with _folder(conditions, faults) as (variables, log):
        for at in range(0, len(stream.arrivals), 10):
            entries = [
                {"Id": str(number), "MessageBody": raw.decode()}
                for number, (_, raw) in enumerate(stream.arrivals[at : at + 10])
            ]
            sqs.send_message_batch(QueueUrl=queue, Entries=entries)
        command = program("consume", queue, "--handler", PROGRAM, "--poll-seconds", "1", "--concurrency", "2", "--json")
        running: list[subprocess.Popen[str]] = []
        give_up, least = time.monotonic() + _patience(faults), len(stream.arrivals)
        try:
            with continued(conditions, told):
                while (left := left_in(sqs, queue)) and time.monotonic() < give_up:
                    if left < least:  # slow is not stuck
                        give_up, least = time.monotonic() + _patience(faults), left
                    running = [one for one in running if not _is_over(one, told)]
                    while len(running) < PROCESSES:
                        _check_lives(told, faults, log)
                        running.append(_started(command, variables, log))
                        told.lives += 1
                    time.sleep(LOOK_SECONDS)
                if left:
                    told.stuck = _never_acknowledged(sqs, queue, stream)
        finally:
            for one in running:
                one.terminate()
            for one in running:
                _take_report(one, told)
    sqs.delete_queue(QueueUrl=queue)
    return told


def _started(command: list[str], variables: dict[str, str], log: Path) -> subprocess.Popen[str]:
    with log.open("ab") as errors:
        return subprocess.Popen(
            command, env=os.environ | variables, stdout=subprocess.PIPE, stderr=errors, stdin=subprocess.DEVNULL,
            text=True,
        )  # fmt: skip


def _check_lives(told: Told, faults: Sequence[Fault], log: Path) -> None:
    if told.lives > 3 * len(faults) + 20:
        raise RuntimeError(f"workers die without a fault: {log.read_text(errors='replace')[-2000:]}")


def left_in(sqs: Any, queue: str) -> int:
    """Return about how many messages are not deleted yet."""
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    counts = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=names)["Attributes"]
    return sum(int(counts[name]) for name in names)


def _is_over(process: subprocess.Popen[str], told: Told) -> bool:
    code = process.poll()
    if code is None:
        return False
    told.killed += code == -signal.SIGKILL
    told.failed += code != -signal.SIGKILL
    _close(process)
    return True


def _close(process: subprocess.Popen[str]) -> None:
    if process.stdout is not None:
        process.stdout.close()


def _never_acknowledged(sqs: Any, queue: str, stream: Stream) -> list[int]:
    """Return the events of the messages that are still in the queue, once they can be seen."""
    numbers = {raw.decode(): number for number, raw in stream.arrivals}
    found: set[int] = set()
    give_up = time.monotonic() + PATIENCE_SECONDS
    while (left := left_in(sqs, queue)) and time.monotonic() < give_up:
        for message in sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10, WaitTimeSeconds=1).get(
            "Messages", ()
        ):
            found.add(numbers[message["Body"]])
            sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
    return sorted(found) or ([-1] if left else [])


def _take_report(process: subprocess.Popen[str], told: Told) -> None:
    """Wait for an orderly end, and look at the books; a process that was killed says nothing."""
    try:
        printed, _ = process.communicate(timeout=PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        told.troubles["did not end in an orderly way"] += 1
        return
    if process.returncode == 0 and printed.strip():
        told.unbalanced += not json.loads(printed)["balanced"]


# --- HTTP ----------------------------------------------------------------------------------------------


def serve(conditions: Conditions, stream: Stream, faults: Sequence[Fault], seed: int) -> Told:
    """Run `oncebridge serve` with two workers, which it starts again by itself, and post batches to it."""
    from servers.serving import ask

    told, deliveries = Told(), Deliveries(stream, seed)
    with _folder(conditions, faults) as (variables, log), serving(variables, log, "--handler", PROGRAM) as url:

        def post(batch: dict[int, bytes]) -> set[int]:
            answer = ask(f"{url}/events", b"[" + b",".join(batch.values()) + b"]")
            if answer.status == HTTPStatus.OK:
                told.unbalanced += not answer.json.get("balanced", True)
                return set(batch)
            if answer.status not in {0, HTTPStatus.SERVICE_UNAVAILABLE}:
                raise RuntimeError(f"events were answered with {answer.status}: {answer.body[:300]!r}")
            return set()

        with continued(conditions, told):
            deliveries.send_all([post] * SENDERS, _patience(faults))
    told.stuck = deliveries.stuck
    return told


@contextmanager
def serving(variables: Mapping[str, str], log: Path, *options: str) -> Iterator[str]:
    """Run the service, and yield its URL."""
    from servers.process import ServerProcess, free_port
    from servers.serving import ask

    port = free_port()
    url = f"http://127.0.0.1:{port}"
    words = ["serve", "--port", str(port), "--workers", str(PROCESSES), "--json", *options]
    service = ServerProcess(
        [sys.executable, "-m", "oncebridge", *words],
        log=log,
        ready=lambda: ask(f"{url}/health").status == HTTPStatus.OK,
        environment=os.environ | variables,
    )
    service.start()
    try:
        yield url
    finally:
        service.stop()


# --- Lambda ---------------------------------------------------------------------------------------------


def function(conditions: Conditions, stream: Stream, faults: Sequence[Fault], seed: int) -> Told:
    """Run two functions in AWS' emulator of Lambda's runtime; invoke them with batches as a queue's trigger does."""
    from servers.lambda_runtime import running_function
    from shapes import message, records

    told, deliveries = Told(), Deliveries(stream, seed)

    def invoking(invoke: Callable[[Any], Any]) -> Callable[[dict[int, bytes]], set[int]]:
        def send(batch: dict[int, bytes]) -> set[int]:
            answer = invoke(records(*(message(raw.decode(), str(at)) for at, raw in batch.items())))
            if not isinstance(answer, dict) or "batchItemFailures" not in answer:
                return set()  # it died, or was cut off: everything comes again
            return set(batch).difference(int(one["itemIdentifier"]) for one in answer["batchItemFailures"])

        return send

    with _folder(conditions, faults) as (variables, log), ExitStack() as stack:
        senders = []
        for number in range(PROCESSES):
            place = log.with_name(f"function-{number}")
            place.mkdir()
            started = running_function(place, "prove.handled.lambda_handler", FUNCTION_SECONDS, variables)
            senders.append(invoking(stack.enter_context(started).invoke))
        with continued(conditions, told):
            deliveries.send_all(senders, _patience(faults))
    told.stuck = deliveries.stuck
    return told


@contextmanager
def _folder(conditions: Conditions, faults: Sequence[Fault]) -> Iterator[tuple[dict[str, str], Path]]:
    """Make a folder for a round, and yield the variables of its programs and where they may write errors."""
    folder = conditions.notes.with_suffix(".files")
    folder.mkdir()
    yield environment_for(conditions, faults, folder / "faults"), folder / "log"
