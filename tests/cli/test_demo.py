"""`oncebridge demo`: the first thing that a person sees."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import urllib.request
from contextlib import suppress

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


#: The demo as in a terminal, but at a pace for tests.
QUICK = """
import sys
from oncebridge.cli import demo
from oncebridge.cli.app import run

if __name__ == "__main__":
    demo.SECONDS_TO_WATCH = 2
    sys.argv = ["oncebridge", "demo", "--conversations", "20"]
    sys.exit(run())
"""
ROWS, WIDTH = 24, 80


def in_small_terminal(folder):
    """Run the demo in a terminal of 24 lines; return its pictures, the last one with the lines after it."""
    (folder / "quick.py").write_text(QUICK)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, WIDTH, 0, 0))
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    command = subprocess.Popen(
        [sys.executable, "quick.py"], stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder,
        env={**kept, "TERM": "xterm-256color"},
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    with suppress(OSError):  # the other side is closed
        while data := os.read(ours, 65_536):
            shown += data
    assert command.wait(SECONDS_MAX) == 0
    os.close(ours)
    # Before each picture the cursor goes up over the one before.
    pictures = re.split(r"(?:\r|\x1b\[2K|\x1b\[1A)*\x1b\[1A(?:\x1b\[2K)?", shown.decode())
    return [re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\r", "", picture).splitlines() for picture in pictures]


def test_the_demo_fits_a_small_terminal(tmp_path):
    """At 80x24 every picture fits, the kill and the killed worker are seen, and all effects are explained."""
    *pictures, last = in_small_terminal(tmp_path)
    end = next(number for number, line in enumerate(last) if line.startswith("the books balance"))
    for picture in (*pictures, last[:end]):
        assert len(picture) < ROWS
        assert max(map(len, picture), default=0) <= WIDTH
    seen = [picture for picture in pictures if any(line.startswith("kill -9 worker 1") for line in picture)]
    assert [line for line in seen[-1] if re.search(r"worker 1 .* killed", line)]
    assert [line for line in seen[-1] if line.startswith(" worker 3")]
    story = " ".join(last[end:])
    found = re.search(r"([\d,]+) effects = ([\d,]+) processed \+ ([\d,]+) that the killed worker had finished", story)
    assert found is not None, story
    effects, processed, finished = (int(number.replace(",", "")) for number in found.groups())
    assert (effects, finished > 0) == (processed + finished, True)


def test_the_demo_needs_some_traffic(cli):
    """Too few conversations to show anything are refused, with exit 2."""
    ran = cli("demo", "--conversations", "1")
    assert (ran.code, ran.out) == (2, "")
    assert "Traceback" not in ran.err


def test_the_demo_with_the_console_shows_live_traffic(cli, wait_until):
    """While it runs, pages tell of its workers and deliveries; it ends by itself and leaves nobody behind."""
    started = cli.start("demo", "--console", "--port", "0", "--seconds", "12")
    wait_until(lambda: re.search(r"http://127\.0\.0\.1:\d+/console", started.said), "its address is said")
    address = re.search(r"http://127\.0\.0\.1:\d+/console", started.said)[0]

    def page(path):
        with suppress(OSError), urllib.request.urlopen(f"{address}{path}") as answered:
            return answered.read().decode()
        return ""

    wait_until(lambda: "v2." in page("/deliveries"), "a delivery is shown", 10)
    wait_until(lambda: "warehouse" in page("/handlers"), "the receiver that fails is shown", 10)
    ran = started.finish(SECONDS_MAX)
    assert ran.code == 0, ran
    assert re.match(r"[\d,]+ deliveries, the books: ", ran.out)
    wait_until(started.leaves_nobody, "all its processes are gone", 10)
