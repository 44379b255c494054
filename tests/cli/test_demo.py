"""`oncebridge demo`: the first thing that a person sees."""

import re

import pytest

SECONDS_MAX = 55
FIELDS = [
    "received", "columns",
    "reasons", "balanced", "events", "effects", "lost", "doubled", "took_over", "naive_lost",
    "naive_doubled", "seconds",
]  # fmt: skip
COLUMNS = ["processed", "redelivery", "republish", "echo", "stale", "conflict", "dead", "unhandled", "retrying"]


@pytest.fixture
def demo(cli, wait_until):
    """Run the demo; it must end well, in time, and leave no process and no file behind."""

    def run(*arguments):
        started = cli.start("demo", *arguments)
        ran = started.finish(SECONDS_MAX)
        assert ran.code == 0, ran
        assert "Traceback" not in ran.err
        wait_until(started.leaves_nobody, "all its processes are gone", 10)
        assert list(cli.folder.iterdir()) == []
        return ran

    return run


def test_the_demo_loses_and_doubles_nothing(demo):
    """A killed worker's events are taken over, the books balance, and the usual pattern does worse on the same road."""
    took_over = 0
    for seed in (7, 8, 9):
        shown = demo("--json", "--conversations", "20", "--seed", str(seed)).one
        assert list(shown) == FIELDS
        assert list(shown["columns"]) == COLUMNS
        assert (shown["lost"], shown["doubled"], shown["balanced"]) == (0, 0, True)
        assert shown["received"] == sum(shown["columns"].values())
        assert shown["columns"]["retrying"] > 0  # what the killed worker had in hand came again
        assert 0 < shown["effects"] <= shown["events"]
        assert shown["naive_lost"] + shown["naive_doubled"] > 0
        assert shown["seconds"] < SECONDS_MAX
        took_over += shown["took_over"]
        if took_over:
            break
    assert took_over >= 1


def test_the_demo_as_it_comes_is_plain_in_a_pipe(demo):
    """Without options, in a pipe, the demo tells its story in plain lines, in under a minute."""
    ran = demo()
    assert "\x1b" not in ran.out
    assert "kill -9" in ran.out
    assert "the books balance" in ran.out
    assert "0 lost, 0 doubled" in ran.out
    assert all(column in ran.out for column in COLUMNS)
    naive = re.search(r"SET NX.*: (\d+) lost, (\d+) doubled", ran.out)
    assert naive is not None
    assert all(int(number) > 0 for number in naive.groups())


def test_the_demo_needs_some_traffic(cli):
    """Too few conversations to show anything are refused, with exit 2."""
    ran = cli("demo", "--conversations", "1")
    assert (ran.code, ran.out) == (2, "")
    assert "Traceback" not in ran.err
