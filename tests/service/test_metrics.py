"""Metrics of several workers: each writes snapshots into a folder, and any of them shows the metrics of all."""

import json
import os
import stat
import threading

import pytest
from prometheus_client.parser import text_string_to_metric_families

import oncebridge.service.metrics
from oncebridge import Bridge, PermanentError
from oncebridge.service.metrics import BEFORE, NEWEST, Snapshot, WorkerMetrics, books_of, read_snapshots
from payloads import ACW, TIME_MS, envelope

NOBODYS_PID = 2**22 + 1  # no system gives one that high


def fact(number):
    """Make a fact that no other number makes."""
    return envelope(ACW, {"eventTime": TIME_MS + number}, id=f"envelope-{number}")


@pytest.fixture
def worker(tmp_path, monkeypatch):
    """Start workers that share a folder: a bridge each, and its metrics, which are written often."""
    monkeypatch.setattr(oncebridge.service.metrics, "EVERY_SECONDS", 0.001)
    running = []

    def start(handler=lambda event: None):
        bridge = Bridge("memory://")
        bridge.on("*", name="crm")(handler)
        metrics = WorkerMetrics(bridge, tmp_path)
        metrics.start()
        running.append((bridge, metrics))
        return bridge, metrics

    yield start
    for bridge, metrics in running:
        if not metrics._closing.is_set():
            metrics.close()
        bridge.close()


@pytest.fixture
def quiet_worker(worker, monkeypatch):
    """Start a worker that writes when the test does."""
    monkeypatch.setattr(oncebridge.service.metrics, "EVERY_SECONDS", threading.TIMEOUT_MAX)
    return worker()


def samples(metrics, name):
    """Return the samples of a name by their labels."""
    found = {}
    for family in text_string_to_metric_families(metrics.exposition().decode()):
        for sample in family.samples:
            if sample.name == name:
                labels = frozenset(sample.labels.items())
                assert labels not in found, "two samples with the same labels"
                found[labels] = sample.value
    return found


def by_worker(metrics, name="oncebridge_deliveries_total"):
    """Add samples up for each worker."""
    totals = {}
    for labels, value in samples(metrics, name).items():
        worker = dict(labels)["worker"]
        totals[worker] = totals.get(worker, 0) + value
    return totals


def wait_for(holds):
    """Wait until something holds."""
    never = threading.Event()
    for _ in range(60_000):
        if holds():
            return
        never.wait(0.001)
    pytest.fail("waited in vain")


def test_whichever_worker_is_asked_shows_what_all_have_counted(worker):
    """Each worker shows its own counts at once, and those of the others soon, labelled by small numbers."""
    (one, one_metrics), (other, other_metrics) = worker(), worker()
    for number in range(3):
        one.process(fact(number))
    assert by_worker(one_metrics)["1"] == 3
    other.process(fact(0))
    wait_for(lambda: by_worker(one_metrics) == {"1": 3, "2": 1})
    wait_for(lambda: by_worker(other_metrics) == {"1": 3, "2": 1})


def test_spreads_are_shown_as_the_worker_that_measured_them_would(worker):
    """A histogram that another worker shows has the same buckets and the same sum."""
    (one, one_metrics), (_, other_metrics) = worker(), worker()
    for number in range(4):
        one.process(fact(number))
    for name in ("oncebridge_handler_seconds_bucket", "oncebridge_handler_seconds_sum", "oncebridge_attempts_bucket"):
        own = samples(one_metrics, name)
        assert own
        wait_for(lambda name=name, own=own: samples(other_metrics, name) == own)


def test_each_worker_shows_the_memory_and_time_that_it_uses(worker):
    """The usual metrics of a process are there for each worker."""
    worker()
    _, metrics = worker()
    if os.path.isdir("/proc/self"):  # elsewhere the library shows none  # noqa: PTH112
        assert set(by_worker(metrics, "process_resident_memory_bytes")) == {"1", "2"}


def test_a_worker_that_has_ended_is_not_shown_any_more(worker):
    """After an orderly end only the books remain."""
    (one, one_metrics), (_, other_metrics) = worker(), worker()
    one.process(fact(0))
    one_metrics.close()
    assert set(by_worker(other_metrics, "process_start_time_seconds")) <= {"2"}
    assert "1" not in by_worker(other_metrics)


def test_a_worker_that_was_killed_is_not_shown_but_its_books_are_kept(worker, tmp_path):
    """What a killed worker left counts in the books, also after another has taken its number."""
    one, one_metrics = worker()
    one.process(fact(0))
    one_metrics._closing.set()  # as far as others can see, it is killed here
    one_metrics._writer.join()
    one_metrics._write(one_metrics._snapshot())
    left = json.loads((tmp_path / "worker-1").read_bytes())
    (tmp_path / "worker-1").write_text(json.dumps({**left, "pid": NOBODYS_PID}))
    os.close(one_metrics._place)
    _, other_metrics = worker()
    assert (tmp_path / "worker-1").exists()
    assert by_worker(other_metrics) == {}
    snapshots = list(read_snapshots(tmp_path, NEWEST, BEFORE))
    assert [snapshot.ended for snapshot in snapshots] == [False, False]
    assert books_of(snapshots)["processed"] == 1


def test_the_number_of_a_worker_that_is_gone_is_given_to_the_next(worker):
    """Numbers stay small, however often workers are started again; two workers never have the same."""
    _, one = worker()
    worker()
    one.close()
    _, third = worker()
    _, fourth = worker()
    assert (third._number, fourth._number) == (1, 3)


def test_books_of_all_workers_are_added_up(worker, tmp_path):
    """After an orderly end the books have every delivery, in its column."""

    def refuse(event):
        raise PermanentError

    (one, one_metrics), (other, other_metrics) = worker(), worker(refuse)
    one.process_many([fact(0), fact(1), fact(1)])
    other.process(fact(2))
    one_metrics.close()
    other_metrics.close()
    snapshots = list(read_snapshots(tmp_path, NEWEST, BEFORE))
    assert all(snapshot.ended for snapshot in snapshots)
    books = books_of(snapshots)
    assert (books["received"], books["processed"], books["redelivery"], books["dead"]) == (4, 2, 1, 1)
    assert books["balanced"] is True


def test_books_that_do_not_balance_say_so():
    """More in the columns than was received is a mistake, and shown as one."""
    columns = dict.fromkeys(books_of([]), 0)
    del columns["balanced"]
    wrong = Snapshot(number=1, pid=1, books={**columns, "retrying": -1}, totals=None)
    assert books_of([wrong])["balanced"] is False


def test_what_does_not_change_is_not_written_again(quiet_worker, tmp_path):
    """An idle worker leaves the disk alone."""
    bridge, metrics = quiet_worker
    bridge.process(fact(0))
    metrics._write(metrics._snapshot())
    before = (tmp_path / "worker-1").stat()
    metrics._write(metrics._snapshot())
    assert (tmp_path / "worker-1").stat().st_ino == before.st_ino
    bridge.process(fact(1))
    metrics._write(metrics._snapshot())
    assert (tmp_path / "worker-1").stat().st_ino != before.st_ino


def test_a_reader_never_sees_half_a_snapshot(worker, tmp_path):
    """A snapshot is put in its place whole: each that is read is one, and newer than those before."""
    bridge, _ = worker()
    seen = [0]
    number = 0
    while len(seen) < 100:
        bridge.process(fact(number))
        number += 1
        (snapshot,) = read_snapshots(tmp_path, NEWEST)
        assert snapshot.books["received"] >= seen[-1]
        if snapshot.books["received"] > seen[-1]:
            seen.append(snapshot.books["received"])


def test_what_nobody_touches_is_written_again_now_and_then(quiet_worker, tmp_path, monkeypatch):
    """Files that are not touched for days get cleared away, so an idle worker touches them after all."""
    monkeypatch.setattr(oncebridge.service.metrics, "IDLE_TIMES", 3)
    _, metrics = quiet_worker
    names = ("worker-1", ".place-1")
    for name in names:
        os.utime(tmp_path / name, (0, 0))
    for _ in range(3):
        metrics._write(metrics._snapshot())
    assert all((tmp_path / name).stat().st_mtime > 0 for name in names)


def test_a_folder_that_is_gone_costs_nothing_but_what_others_see(quiet_worker, tmp_path, caplog):
    """Events are processed, own metrics are shown, and the log has one warning."""
    bridge, metrics = quiet_worker
    for path in tmp_path.iterdir():
        path.unlink()
    tmp_path.rmdir()
    try:
        for number in range(3):
            bridge.process(fact(number))
            metrics._write(metrics._snapshot())
        assert by_worker(metrics) == {"1": 3}
        assert [record.message for record in caplog.records].count(
            "what this worker has counted cannot be kept: No such file or directory"
        ) == 1
    finally:
        tmp_path.mkdir()


def test_what_is_left_for_others_is_for_nobody_elses_eyes(worker, tmp_path):
    """Files are private; so is the folder, which the parent makes."""
    worker()
    assert stat.S_IMODE((tmp_path / ".place-1").stat().st_mode) == 0o600
