"""Workers that are killed and stopped, by every other way in than `process_many`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

from prove import ways
from prove.attack import Attack, Tally, attack
from prove.faults import Kind
from prove.outcome import Options, Outcome
from prove.parts.workers import outcome_of, smallest
from prove.places import place_of, prepare
from prove.round import Told, in_child
from prove.worker import CLAIMS

if TYPE_CHECKING:
    from oncebridge import Bridge

ROUNDS_AT_ONCE: Final = 2
KINDS: Final[tuple[Kind, ...]] = ("kill", "stop")


@dataclass(frozen=True)
class Way:
    """One way in."""

    #: Runs a round; None: workers call the library, or the service, by themselves.
    drive: Callable[..., Told] | None = None
    needs_queue: bool = False
    needs_service: bool = False


WAYS: Final = {
    "process": Way(),
    "file": Way(ways.file),
    CLAIMS: Way(needs_service=True),
    "serve": Way(ways.serve),
    "consume": Way(ways.consume, needs_queue=True),
    "lambda": Way(ways.function),
}


def ways_in(options: Options) -> Outcome:
    """Share the faults out among the ways in, and judge each as always."""
    whole = Outcome()
    share = -(-options.amount // len(WAYS))
    with place_of(options.ledger, options.folder) as url:
        in_child(lambda: prepare(url))
        for done, name in enumerate(WAYS):
            asked = Options(options.ledger, options.seed, share, options.seconds / len(WAYS), options.folder)
            add(whole, name, one_way(name, url, asked))
            if options.progress:
                options.progress(whole.tried)
            if whole.broken and done + 1 < len(WAYS):
                whole.notes.append(f"ended after {name}, since promises were broken")
                break
    return whole


def one_way(name: str, url: str, options: Options) -> Outcome:
    """Attack workers by one way in, on a ledger that is there."""
    with planned(name, url, options) as plan:
        tally = Tally()
        for newest in attack(plan, options.amount, seconds=options.seconds, until_broken=True):
            tally = newest
        outcome = outcome_of(tally, options)
        outcome.figures |= {"kills": tally.struck["kill"], "stops": tally.struck["stop"]}
        if tally.failures:
            outcome.history = smallest(plan, tally)
    return outcome


@contextmanager
def planned(name: str, url: str, options: Options, spoil: Callable[[Bridge], None] | None = None) -> Iterator[Attack]:
    """Start what a way in needs for all its rounds, and yield the plan."""
    way = WAYS[name]
    with _surroundings(way, url, options.folder / f"way-{name}") as service:
        yield Attack(
            KINDS, options.ledger, url, options.folder, options.seed, way_in=name, drive=way.drive, service=service,
            spoil=spoil, at_once=ROUNDS_AT_ONCE,
        )  # fmt: skip


@contextmanager
def _surroundings(way: Way, url: str, folder: Path) -> Iterator[str]:
    """Start servers beside the ledger; yield where claims are lent out."""
    folder.mkdir()
    if way.needs_service:
        with ways.serving(
            {"ONCEBRIDGE_LEDGER": url, "ONCEBRIDGE_BUSY_WAIT_SECONDS": "0"}, folder / "service.log"
        ) as service:
            yield service
    elif way.needs_queue:
        from servers.aws import running_ministack

        with running_ministack(folder) as aws, mock.patch.dict(os.environ, AWS_ENDPOINT_URL=aws.url):
            yield ""
    else:
        yield ""


def add(whole: Outcome, name: str, part: Outcome) -> None:
    """Add what one way in came to."""
    whole.tried += part.tried
    whole.lost += part.lost
    whole.doubled += part.doubled
    whole.doubled_plain += part.doubled_plain
    whole.seconds += part.seconds
    for what, number in part.broken.items():
        whole.broken[what] = whole.broken.get(what, 0) + number
    figures: dict[str, Any] = {**part.figures, "seconds": part.seconds, "doubled_plain": part.doubled_plain}
    whole.figures[name] = figures
    whole.notes += [f"{name}: {note}" for note in part.notes]
    whole.history = whole.history or part.history
