"""Deadlines: what is not over in time is acted on, once, and nothing else is."""

import asyncio
import weakref

import pytest

from oncebridge.service.deadlines import Deadlines

LONG = 3600.0


@pytest.fixture
def acted():
    """Note what was done."""
    return []


def test_what_is_late_is_acted_on_in_order(acted):
    """Each thing once, in the order in which their times were over."""

    async def main():
        deadlines, over = Deadlines(0.01), asyncio.Event()
        began = [deadlines.begin(lambda number=number: acted.append(number)) for number in range(3)]
        deadlines.begin(over.set)
        await over.wait()
        return began

    began = asyncio.run(main())
    assert acted == [0, 1, 2]
    assert all(deadline.passed for deadline in began)


def test_what_is_in_time_is_let_alone(acted):
    """Also where others beside it are late."""

    async def main():
        deadlines, over = Deadlines(0.01), asyncio.Event()
        met = deadlines.begin(lambda: acted.append("met"))
        late = deadlines.begin(lambda: acted.append("late"))
        met.meet()
        deadlines.begin(over.set)
        await over.wait()
        return met, late

    met, late = asyncio.run(main())
    assert acted == ["late"]
    assert (met.passed, late.passed) == (False, True)


def test_the_time_begins_anew_for_each(acted):
    """After all of a time are over, the next ones have theirs."""

    async def main():
        deadlines = Deadlines(0.01)
        for number in range(3):
            over = asyncio.Event()
            deadlines.begin(lambda number=number, over=over: (acted.append(number), over.set()))
            await over.wait()

    asyncio.run(main())
    assert acted == [0, 1, 2]


def test_one_timer_serves_all():
    """However many there are, the loop is asked to wake us up once."""

    async def main():
        loop, asked = asyncio.get_running_loop(), []
        call_at = loop.call_at
        loop.call_at = lambda when, act: asked.append(when) or call_at(when, act)
        deadlines = Deadlines(LONG)
        began = [deadlines.begin(lambda: None) for _ in range(1000)]
        for deadline in began:
            deadline.meet()
        return asked, began

    asked, began = asyncio.run(main())
    assert asked == [began[0].at]


def test_what_is_met_holds_on_to_nothing():
    """A request that was answered is not kept until its time would have been over."""

    class Request:
        def cut_off(self):
            pass

    async def main():
        deadlines, request = Deadlines(LONG), Request()
        seen = weakref.ref(request)
        deadline = deadlines.begin(request.cut_off)
        del request
        assert seen() is not None
        deadline.meet()
        return seen()

    assert asyncio.run(main()) is None
