"""Shows on standard error how far a run has come: a bar in a terminal, a line for each stage elsewhere."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Progress:
    """Says what is measured now."""

    def __init__(self, console: Console | None = None) -> None:
        """Speak on standard error, where results do not go."""
        self._console = console or Console(stderr=True, highlight=False)

    @contextmanager
    def stage(self, what: str, steps: int) -> Iterator[Callable[..., None]]:
        """Begin a stage of so many steps; call what is returned after each, or with how many were taken."""
        if not self._console.is_terminal:
            self._console.print(f"{what} ...", soft_wrap=True, markup=False)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Bars(*columns, console=self._console, transient=True, disable=not self._console.is_terminal) as bars:
            task = bars.add_task(what, total=steps)
            yield lambda taken=1: bars.advance(task, taken)
