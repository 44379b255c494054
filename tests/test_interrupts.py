"""The tool that interrupts: it finds the windows that careless code leaves open, and only those."""

import threading
from contextlib import suppress

from interrupts import Interrupted, points, strike


def left_locked(run, lock: threading.Lock) -> list[str]:
    """Interrupt a run at each point, and return where the lock stayed locked."""
    found = []
    for point in points(run):
        with suppress(Interrupted), strike(point, Interrupted()):
            run()
        if lock.locked():
            found.append(str(point))
            lock.release()
    return found


def test_finds_the_window_of_careless_code():
    """A lock that is taken before its `try` stays locked where a signal strikes in between."""
    lock = threading.Lock()

    def careless() -> None:
        lock.acquire()
        try:
            len("abc")
        finally:
            lock.release()

    assert left_locked(careless, lock)


def test_finds_nothing_in_careful_code():
    """A lock in a `with` is given back wherever a signal strikes."""
    lock = threading.Lock()

    def careful() -> None:
        with lock:
            len("abc")

    assert len(points(careful)) >= 3
    assert left_locked(careful, lock) == []


def test_strikes_once_and_where_it_was_told_to():
    """A strike comes at its visit of the place, lets no second one follow, and tells that it came."""
    seen: list[int] = []

    def loop() -> None:
        for number in range(5):
            seen.insert(0, number)

    second = [point for point in points(loop) if point.visit == 2]
    assert second
    for point in second:
        seen.clear()
        with suppress(Interrupted), strike(point, Interrupted()) as outcome:
            loop()
        assert outcome.struck
        assert len(seen) in (1, 2)


def test_tells_that_a_run_did_not_come_to_the_point():
    """A run that ends before its point is not interrupted."""
    point = points(lambda: sorted([2, 1], key=lambda number: -number))[0]
    with strike(point, Interrupted()) as outcome:
        len("abc")
    assert not outcome.struck
