"""`oncebridge simulate`: traffic with the truth beside it."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Annotated

import typer

from oncebridge.cli.output import opened_for_writing, progress_bar, say
from oncebridge.simulation import simulate as simulated


def simulate(
    *,
    conversations: Annotated[int, typer.Option(help="How many conversations; about 45 deliveries each.", min=0)] = 100,
    seed: Annotated[int, typer.Option(help="The same seed gives the same bytes.")] = 1,
    out: Annotated[str, typer.Option(help="JSON lines, .gz too; - is standard output.", metavar="FILE")] = "-",
    truth: Annotated[
        str | None,
        typer.Option(
            help="The verdict that each delivery must get, a JSON line each.", metavar="FILE", show_default="none"
        ),
    ] = None,
) -> None:
    """Make up Genesys traffic, with the road's faults, and write down the truth beside it."""
    with ExitStack() as stack:
        lines = stack.enter_context(opened_for_writing(out))
        truths = None if truth is None else stack.enter_context(opened_for_writing(truth))
        bar = stack.enter_context(progress_bar(over_bytes=True))
        task = bar.add_task("simulating", total=None)
        number = 0
        for delivery in simulated(conversations, seed):
            lines.write(delivery.raw + b"\n")
            bar.advance(task, len(delivery.raw))
            if truths is not None:
                truths.write(delivery.truth_line() + b"\n")
            number += 1
    say(f"{number:,} deliveries of {conversations:,} conversations written to {out}")
