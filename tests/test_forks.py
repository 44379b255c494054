"""Parts are told of forks: before, and after in parent and child."""

import gc
import os

import pytest

from oncebridge import forks


class Part:
    """Writes down what it is told."""

    def __init__(self, name: str, told: list[str]) -> None:
        self.name, self.told = name, told
        forks.register(self)

    def before_fork(self) -> None:
        """Write it down."""
        self.told.append(f"{self.name} before")

    def after_fork(self, *, in_child: bool) -> None:
        """Write down where."""
        self.told.append(f"{self.name} after in {'child' if in_child else 'parent'}")


@pytest.fixture
def from_child():
    """Return a function that runs another in a forked child, and returns the text that it returns."""

    def run(function) -> str:
        read, write = os.pipe()
        pid = os.fork()
        if not pid:
            try:
                os.write(write, function().encode())
            finally:
                os._exit(0)
        os.close(write)
        with os.fdopen(read) as text:
            answer = text.read()
        assert os.waitpid(pid, 0)[1] == 0
        return answer

    return run


def test_both_sides_of_a_fork_are_told(from_child):
    """A part is told before the fork, the outer one first, and after it on which side it is."""
    told: list[str] = []
    inner, outer = Part("inner", told), Part("outer", told)
    in_child = from_child(lambda: ",".join(told))
    before = ["outer before", "inner before"]
    assert in_child.split(",") == [*before, "inner after in child", "outer after in child"]
    assert told == [*before, "inner after in parent", "outer after in parent"]
    assert inner.told is outer.told


def test_what_began_before_the_fork_can_be_told(from_child):
    """The generation differs in a child, and in a child of that again; in the parent it stays."""
    before = forks.generation()
    assert from_child(lambda: str(forks.generation() - before)) == "1"
    assert from_child(lambda: from_child(lambda: str(forks.generation() - before))) == "2"
    assert forks.generation() == before


def test_what_is_gone_is_told_nothing(from_child):
    """A part that nobody uses any more is forgotten."""
    told: list[str] = []
    part = Part("gone", told)
    del part
    gc.collect()
    assert from_child(lambda: ",".join(told)) == ""
    assert told == []
