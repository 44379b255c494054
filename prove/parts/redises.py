"""A Redis that is killed, comes back empty, is flushed, and forgets its scripts."""

from __future__ import annotations

import random
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from oncebridge.errors import LedgerWarning
from prove.attack import Attack
from prove.nemesis import Siege, Trouble, troubled
from prove.outcome import Options, Outcome
from prove.parts.networks import Spoil
from prove.parts.sieges import run_siege, unforgettable
from prove.parts.ways_in import add

if TYPE_CHECKING:
    from servers.valkey import Valkey

#: Where a server forgets, keys stay the same only with a secret that it does not keep.
SECRET: Final = b"a secret of the proof, not of the server"
ROUND_SECONDS: Final = 1.0


@dataclass(frozen=True)
class Way:
    """How a server is kept, what befalls it, and of how many in 800 troubles this has its share."""

    kinds: tuple[str, ...]
    share: int
    per_round: int
    policy: tuple[str, ...] = ("--appendonly", "yes", "--appendfsync", "always")
    forgets: bool = False


WAYS: Final = {
    "killed, AOF always": Way(("killed",), 168, 3),
    "killed, AOF everysec": Way(("killed",), 166, 3, ("--appendonly", "yes", "--appendfsync", "everysec")),
    "killed, AOF off": Way(("killed",), 166, 3, ("--appendonly", "no"), forgets=True),
    "emptied": Way(("emptied", "flushed"), 100, 2, forgets=True),
    "scripts flushed": Way(("unscripted",), 200, 6),
}
SHARES: Final = 800


def trouble_redis(options: Options) -> Outcome:
    """Share the troubles out among the ways, and judge each by what it promises."""
    whole = Outcome()
    for number, (name, way) in enumerate(WAYS.items()):
        amount = max(1, options.amount * way.share // SHARES)
        asked = Options(options.ledger, options.seed, amount, options.seconds / len(WAYS), options.folder)
        with besieged(way, asked, options.folder / f"redis-{number}") as siege:
            outcome, _ = run_siege(siege, asked, lambda now: now.faults)
        add(whole, name, outcome)
        if options.progress:
            options.progress(whole.tried)
        if whole.broken:
            break
    return whole


@contextmanager
def besieged(way: Way, options: Options, folder: Path, spoil: Spoil | None = None) -> Iterator[Siege]:
    """Start a server to which that happens."""
    with troubled(partial(_running, folder, way.policy)) as nemesis, warnings.catch_warnings():
        warnings.simplefilter("ignore", LedgerWarning)  # that a server without append-only file forgets is the point
        secret = SECRET if way.forgets else None
        url = nemesis.ask("calm")
        plan = Attack((), options.ledger, url, options.folder, options.seed, spoil=spoil, secret=secret)
        siege = Siege(plan, nemesis, partial(draw, way), spread_seconds=ROUND_SECONDS)
        yield replace(siege, verdict=unforgettable) if way.forgets else siege


def draw(way: Way, dice: random.Random) -> list[Trouble]:
    """Draw what befalls the server in a round."""
    seconds = 1.5 * ROUND_SECONDS / way.per_round
    return [Trouble(dice.choice(way.kinds), round(dice.uniform(0.0, seconds), 3), 0.0) for _ in range(way.per_round)]


class _Redis:
    """One server, and its files."""

    def __init__(self, server: Valkey, folder: Path) -> None:
        self._server, self._folder = server, folder
        self.url = server.url

    def strike(self, trouble: Trouble) -> None:
        if trouble.kind in ("killed", "emptied"):
            self._server.process.kill()
            if trouble.kind == "emptied":
                shutil.rmtree(self._folder / "appendonlydir")
            self._server.process.start()
        else:
            with self._server.client() as client:
                client.execute_command("FLUSHALL" if trouble.kind == "flushed" else "SCRIPT FLUSH")

    def calm(self) -> None:
        """Do nothing: it runs again after every strike."""


@contextmanager
def _running(folder: Path, policy: tuple[str, ...]) -> Iterator[_Redis]:
    from servers.valkey import running_valkey

    with running_valkey(folder, *policy) as server:
        yield _Redis(server, folder)
