"""A network between workers and their ledger that strikes at the n-th reply of a connection."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import parse_qs, urlsplit

from prove import network
from prove.attack import Attack, Tally
from prove.nemesis import Siege, beside, besiege, smallest
from prove.network import KINDS, draw_strikes
from prove.outcome import Options, Outcome
from prove.parts.workers import outcome_of
from prove.places import kind_of, place_of, prepare
from prove.round import in_child

if TYPE_CHECKING:
    from oncebridge import Bridge

Spoil: TypeAlias = "Callable[[Bridge], None]"
#: Connections of a round to which something happens; most of them wait, so there are several workers.
STRIKES: Final = 24
WORKERS: Final = 8
#: How long workers wait for a reply here; the program's own patience is five to fifteen times as long.
ANSWER_SECONDS: Final = {"redis": 0.5, "postgres": 1.0, "dynamodb": 1.0}


def strike_replies(options: Options) -> Outcome:
    """Strike at replies and requests, an equal number of times in each way."""
    with place_of(options.ledger, options.folder) as url:
        in_child(lambda: prepare(url))
        with besieged(url, options) as siege:
            return _outcome(siege, options)


@contextmanager
def besieged(url: str, options: Options, spoil: Spoil | None = None) -> Iterator[Siege]:
    """Put a network before a ledger that is there."""
    kind = kind_of(options.ledger)
    with beside(partial(network.live, kind, port_of(url), ANSWER_SECONDS[kind])) as nemesis:
        there = with_port(url, nemesis.ask("calm"))
        shortened = partial(_shortened, kind, spoil)
        plan = Attack((), options.ledger, there, options.folder, options.seed, spoil=shortened)
        yield Siege(plan, nemesis, partial(draw_strikes, number=STRIKES), workers=WORKERS)


def _shortened(kind: str, spoil: Spoil | None, bridge: Bridge) -> None:
    """Let a worker's process wait for replies as long as ANSWER_SECONDS says, and no longer."""
    seconds = ANSWER_SECONDS[kind]
    if kind == "redis":
        from oncebridge.ledgers.redis import connection

        for name in ("ANSWER_SECONDS", "CONNECT_SECONDS"):
            setattr(connection, name, seconds)
        connection.Connection.connect_seconds = seconds
    elif kind == "postgres":
        from oncebridge.ledgers.postgres import connections, ledger

        for module, name in ((ledger, "ANSWER_US"), (connections, "_FIRST_ANSWER_US")):
            setattr(module, name, int(seconds * 1_000_000))
    else:
        from oncebridge.ledgers.dynamodb import table

        setattr(table, "READ_SECONDS", seconds)  # noqa: B010 - a constant elsewhere
    if spoil:
        spoil(bridge)


def struck_enough(tally: Tally, amount: int) -> bool:
    """Whether each kind has had its share."""
    return all(tally.struck[kind] * len(KINDS) >= amount for kind in KINDS)


def _outcome(siege: Siege, options: Options) -> Outcome:
    tally = Tally()
    for tally in besiege(siege, lambda now: struck_enough(now, options.amount), seconds=options.seconds):
        if options.progress:
            options.progress(tally.faults)
    outcome = outcome_of(tally, options)
    befell = network.by_request(tally.strikes)
    outcome.figures |= {"replies": dict(tally.struck), "befell": befell, "workers ended by an error": tally.failed}
    outcome.notes.append(
        f"{options.ledger}: replies struck, by request: "
        + ", ".join(f"{asked} {sum(kinds.values()):,}" for asked, kinds in befell.items())
    )
    if tally.failures:
        outcome.history = smallest(siege, tally.failures[0])
    return outcome


def port_of(url: str) -> int:
    """Return the port of a ledger of this machine."""
    endpoint = parse_qs(urlsplit(url).query).get("endpoint_url", [url])[0]
    port = urlsplit(endpoint).port
    assert port is not None
    return port


def with_port(url: str, port: int) -> str:
    """Return the same ledger behind another port."""
    return url.replace(f":{port_of(url)}", f":{port}")
