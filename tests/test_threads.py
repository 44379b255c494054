"""What is done apart from an interrupted caller comes to its end, and its caller never waits for nothing."""

import threading
from contextlib import suppress

import pytest

from interrupts import Interrupted, points, strike
from oncebridge import threads
from oncebridge.threads import Errand, Struck, background, call_apart, start

SECONDS = 10


def test_an_interrupted_caller_leaves_the_call_to_its_end():
    """Wherever an exception strikes, nothing hangs, and what was begun holds no lock afterwards."""
    lock, ended = threading.Lock(), []

    def work():
        with lock:
            ended.append(threading.get_ident())
        return "answer"

    assert call_apart(work) == "answer"
    found = points(lambda: call_apart(work))
    assert len(found) > 5
    for point in found:
        with suppress(Interrupted), strike(point, Interrupted()):
            call_apart(work)
        assert lock.acquire(timeout=SECONDS), point
        lock.release()
    assert threading.get_ident() not in ended


@pytest.mark.parametrize("error", [ValueError("an error"), KeyboardInterrupt(), SystemExit(3)])
def test_what_a_call_raises_is_raised_in_its_caller(error):
    """Whatever it is: a caller that heard of nothing would wait for ever."""

    def fail():
        raise error

    with pytest.raises(type(error)) as raised:
        call_apart(fail)
    assert raised.value is error


def test_a_thread_of_our_own_makes_its_calls_itself():
    """Nothing strikes there, and a thread more for each call of a batch would cost time for nothing."""
    found, done = [], threading.Event()

    def work():
        found.append(call_apart(threading.get_ident) == threading.get_ident())
        done.set()

    start([background(work, name="ours")])
    assert done.wait(SECONDS)
    assert found == [True]


def test_a_call_is_made_by_its_caller_where_no_thread_can_be_started(monkeypatch):
    """At the end of the interpreter, and where there are too many, a call is still made."""

    def refused(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("oncebridge.threads._thread.start_new_thread", refused)
    assert call_apart(threading.get_ident) == threading.get_ident()


def test_a_call_has_an_end_where_its_thread_is_struck_before_it_begins(monkeypatch):
    """CPython may aim an exception at a thread that is just being started: nobody waits for it for ever."""
    begin = threads._thread.start_new_thread

    def struck(function, arguments):
        def ends_at_once(*_):
            raise SystemExit

        return begin(ends_at_once, arguments)

    monkeypatch.setattr("oncebridge.threads._thread.start_new_thread", struck)
    with pytest.raises(Struck):
        call_apart(threading.get_ident)


def test_an_errand_that_is_dropped_is_told_and_one_that_was_done_is_told_once():
    """Whoever waits hears of it."""
    ends = []
    errand = Errand(lambda: "answer", lambda *end: ends.append(end))
    errand.run()
    del errand
    assert ends == [("answer", None)]
    errand = Errand(lambda: "answer", lambda *end: ends.append(end))
    del errand
    assert isinstance(ends[1][1], Struck)
