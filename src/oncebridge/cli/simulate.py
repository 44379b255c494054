"""`oncebridge simulate`: traffic with the truth beside it."""

from __future__ import annotations

import gzip
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Annotated

import typer

from oncebridge.cli.output import progress_bar, say
from oncebridge.simulation import simulate as simulated


def simulate(
    *,
    conversations: Annotated[int, typer.Option(help="How many conversations; about 45 deliveries each.", min=0)] = 100,
    seed: Annotated[int, typer.Option(help="The same seed gives the same bytes.")] = 1,
    out: Annotated[str, typer.Option(help="JSON lines, .gz too; - is standard output.", metavar="FILE")] = "-",
    truth: Annotated[
        str | None, typer.Option(help="The verdict that each delivery must get, a JSON line each.", metavar="FILE")
    ] = None,
) -> None:
    """Make up Genesys traffic, with the road's faults, and write down the truth beside it."""
    with ExitStack() as stack:
        lines = stack.enter_context(_writer(out))
        truths = None if truth is None else stack.enter_context(_writer(truth))
        bar = stack.enter_context(progress_bar())
        task = bar.add_task("simulating", total=None)
        number = 0
        for delivery in simulated(conversations, seed):
            lines.write(delivery.raw + b"\n")
            bar.advance(task, len(delivery.raw))
            if truths is not None:
                truths.write(delivery.truth_line() + b"\n")
            number += 1
    say(f"{number:,} deliveries of {conversations:,} conversations written to {out}")


def _writer(path: str) -> IO[bytes]:
    if path == "-":
        return sys.stdout.buffer
    return gzip.open(path, "wb") if path.endswith(".gz") else Path(path).open("wb")  # type: ignore[return-value]
