"""Postgres is restarted every few seconds, while workers are killed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from prove.attack import Attack
from prove.faults import make_faults
from prove.nemesis import Siege, Trouble, troubled
from prove.outcome import Options, Outcome
from prove.parts.networks import Spoil
from prove.parts.sieges import run_siege
from prove.places import prepare
from prove.round import in_child

if TYPE_CHECKING:
    from servers.postgres import PostgresServer

#: Its process killed with SIGKILL, all of its processes at once as in a crash, or a fast shutdown.
KINDS: Final = ("killed", "crashed", "stopped")
EVERY_SECONDS: Final = (5.0, 20.0)
ROUND_SECONDS: Final = 24.0
#: Of a round: 200 events, which wait for disks, for a server that recovers, and for breakers. Slow is not stuck.
SIZES: Final = {"facts": 80, "entities": 24, "states": 5}
PATIENCE_SECONDS: Final = 600.0
KILLS: Final = 20
WORKERS: Final = 3


def restart(options: Options) -> Outcome:
    """Restart it until so many events were processed."""
    with besieged(options) as siege:
        outcome, _ = run_siege(siege, options, lambda tally: tally.events)
    return outcome


@contextmanager
def besieged(options: Options, spoil: Spoil | None = None) -> Iterator[Siege]:
    """Start a server to which that happens."""
    with troubled(partial(_running, options.folder)) as nemesis:
        url = nemesis.ask("calm")
        in_child(lambda: prepare(url))
        plan = Attack((), options.ledger, url, options.folder, options.seed, spoil=spoil, sizes=SIZES)
        yield Siege(
            plan, nemesis, draw, workers=WORKERS, spread_seconds=ROUND_SECONDS, patience_seconds=PATIENCE_SECONDS
        )


def draw(dice: random.Random) -> list[Any]:
    """Draw the restarts of a round, and how its workers die."""
    restarts: list[Any] = []
    at = 0.0
    while True:
        after = round(dice.uniform(*EVERY_SECONDS), 2)
        at += after
        if at > ROUND_SECONDS and restarts:
            return [*restarts, *make_faults(dice, ("kill",), KILLS)]
        restarts.append(Trouble(dice.choice(KINDS), after, 0.0))


class _Restarted:
    """A Postgres that ends in every way."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self.url = server.url

    def strike(self, trouble: Trouble) -> None:
        end = {"killed": self._server.kill_first, "crashed": self._server.kill, "stopped": self._server.stop}
        end[trouble.kind]()
        self._server.start()

    def calm(self) -> None:
        """Do nothing: it runs again after every strike."""


@contextmanager
def _running(folder: Path) -> Iterator[_Restarted]:
    from servers.postgres import own_postgres

    (folder / "postgres").mkdir()
    with own_postgres(folder / "postgres") as server:
        yield _Restarted(server)
