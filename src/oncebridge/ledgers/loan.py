"""A transaction that is lent to a handler, and given back wherever a signal strikes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from types import TracebackType

T = TypeVar("T")


class Loan(Generic[T]):
    """A context manager made of a generator, as `contextlib` makes them, which can also be ended from outside.

    The exception of a signal's handler may strike in `__enter__` after the generator has run, or in `__exit__` before
    it resumes. Then `with` ends nothing, and the generator's resources are held for as long as the traceback is kept:
    in a notebook, until the next error. So the caller calls `close` in a `finally`.
    """

    def __init__(self, steps: Generator[T, None, None]) -> None:
        """Take a generator that yields once; it has not begun."""
        self._steps = steps
        #: Releases everything, unless that was done. The generator's own method: none of ours is free of interrupts.
        self.close: Callable[[], None] = steps.close

    def __enter__(self) -> T:
        """Run the generator until it yields."""
        return next(self._steps)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Resume the generator, with the error if there is one."""
        if error is None:
            if next(self._steps, None) is not None:
                raise RuntimeError("a loan yields once")
            return
        try:
            self._steps.throw(error)
        except StopIteration:
            raise RuntimeError("a loan never swallows an error") from error
        except BaseException as raised:
            if raised is error:
                return  # `with` raises it again, with its own traceback
            raise
        raise RuntimeError("a loan yields once")
