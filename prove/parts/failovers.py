"""Sentinels name another master, since theirs is paused, killed or cut off; and a cluster moves its slots."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from prove.attack import Attack
from prove.nemesis import Siege, Trouble, troubled
from prove.outcome import Options, Outcome
from prove.parts.redises import SECRET
from prove.parts.sieges import run_siege, unforgettable
from prove.parts.ways_in import add

if TYPE_CHECKING:
    from servers.valkey import Slots, Valkey, Watched

KINDS: Final = ("paused", "killed", "cut")
#: Deliveries go on to arrive until there is another master, and for a while after.
FAILOVER_SECONDS: Final = 6.0
MOVES_SECONDS: Final = 1.5
MOVES: Final = 2
#: Of 250: failovers with and without waiting for a replica, and reshardings.
SHARES: Final = {"": 100, "?wait=1": 100}
RESHARDINGS: Final = 50


def fail_over(options: Options) -> Outcome:
    """Judge failovers by what is never forgotten, and reshardings by everything."""
    whole, shares = Outcome(), sum(SHARES.values()) + RESHARDINGS
    with failing(options) as sieges:
        for query, siege in sieges.items():
            asked = replace(
                options, amount=max(1, options.amount * SHARES[query] // shares), seconds=options.seconds * 0.4
            )  # fmt: skip
            outcome, _ = run_siege(siege, asked, lambda now: now.faults)
            add(whole, f"failover{query}", outcome)
    asked = replace(options, amount=max(1, options.amount * RESHARDINGS // shares), seconds=options.seconds * 0.2)
    with resharding(asked) as siege:
        outcome, _ = run_siege(siege, asked, lambda now: now.faults)
        add(whole, "resharding", outcome)
    return whole


# --- failovers -------------------------------------------------------------------------------------------


@contextmanager
def failing(options: Options) -> Iterator[dict[str, Siege]]:
    """Start a master, replicas and sentinels."""
    with troubled(partial(_watched, options.folder / "watched")) as nemesis:
        url = nemesis.ask("calm")
        sieges = {}
        for query in SHARES:
            plan = Attack((), options.ledger, url + query, options.folder, options.seed, secret=SECRET)
            sieges[query] = Siege(plan, nemesis, draw, spread_seconds=FAILOVER_SECONDS, verdict=unforgettable)
        yield sieges


def draw(dice: random.Random) -> list[Trouble]:
    """Draw what befalls the master of a round."""
    return [Trouble(dice.choice(KINDS), round(dice.uniform(0.1, 1.5), 2), round(dice.random(), 2))]


class _Watched:
    """A master that loses its place."""

    def __init__(self, watched: Watched) -> None:
        self._watched, self.url = watched, watched.url

    def strike(self, trouble: Trouble) -> None:
        from servers.process import wait_until

        old = self._watched.master()
        if trouble.kind == "paused":
            old.process.send(signal.SIGSTOP)
        elif trouble.kind == "killed":
            old.process.kill()
        else:
            from servers.valkey import INSIDE

            assert old.door is not None
            old.door.shut_out(INSIDE)
        wait_until(lambda: self._watched.master() is not old, "another master")
        self._mend(old, trouble.kind)

    def _mend(self, old: Valkey, kind: str) -> None:
        if kind == "paused":
            old.process.send(signal.SIGCONT)
        elif kind == "killed":
            old.process.start()
        elif old.door is not None:
            old.door.heal()

    def calm(self) -> None:
        """Let every server follow the master that the sentinels name, as they would do in a while."""
        from servers.process import wait_until

        wait_until(lambda: len(set(map(self._watched.master_of, self._watched.sentinels))) == 1, "one master for all")
        master = self._watched.master()
        others = [server for server in self._watched.servers if server is not master]
        for server in others:
            with server.client() as client:
                if client.info("replication").get("master_port") != master.public_port:
                    client.replicaof("127.0.0.1", master.public_port)
        wait_until(lambda: all(map(_follows, others)), "the replicas to follow")
        wait_until(self._watched.may_fail_over, "the sentinels to see that all is well")


def _follows(server: Valkey) -> bool:
    from servers.valkey import follows

    return follows(server)


@contextmanager
def _watched(folder: Path) -> Iterator[_Watched]:
    from servers.valkey import running_sentinels

    with running_sentinels(folder, doors=True) as watched:
        yield _Watched(watched)


# --- resharding ------------------------------------------------------------------------------------------


@contextmanager
def resharding(options: Options) -> Iterator[Siege]:
    """Start a cluster of three masters."""
    with troubled(partial(_cluster, options.folder / "cluster")) as nemesis:
        plan = Attack((), options.ledger, nemesis.ask("calm"), options.folder, options.seed)
        yield Siege(plan, nemesis, draw_moves, spread_seconds=MOVES_SECONDS)


def draw_moves(dice: random.Random) -> list[Trouble]:
    """Draw when slots move, and which way."""
    return [Trouble("resharded", round(dice.uniform(0.0, 0.5), 2), round(dice.random(), 2)) for _ in range(MOVES)]


class _Cluster:
    """Masters whose slots move."""

    def __init__(self, slots: Slots) -> None:
        self._slots, self.url = slots, slots.url

    def strike(self, trouble: Trouble) -> None:
        step = 1 if trouble.how < 0.5 else 2
        for slot, source in self._slots.in_use():
            target = (source + step) % 3
            self._slots.begin(slot, source, target)
            self._slots.end(slot, source, target)

    def calm(self) -> None:
        """Do nothing: every move is whole."""


@contextmanager
def _cluster(folder: Path) -> Iterator[_Cluster]:
    from servers.valkey import Slots, running_cluster

    with running_cluster(folder) as servers:
        yield _Cluster(Slots(servers))
