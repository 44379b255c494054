"""Speed of the bridge beside what users would write by hand, as ratios in one run on the same events.

make bench                     the table
make bench ARGS="--json FILE"  and the figures as JSON
"""

from __future__ import annotations

import argparse
import json
import platform
import sqlite3
import sys
import tempfile
import time
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from oncebridge import Bridge
from oncebridge.simulation import simulate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from oncebridge import Event

BATCH = 100


def batches(raws: list[bytes], size: int) -> Iterator[list[bytes]]:
    """Cut the traffic into batches."""
    rest = iter(raws)
    while batch := list(islice(rest, size)):
        yield batch


def through_bridge(raws: list[bytes], url: str, size: int) -> None:
    """Put everything through a bridge with a handler that does nothing, all verdicts on."""
    with Bridge(url) as bridge:
        bridge.on("*")(do_nothing)
        for batch in batches(raws, size):
            bridge.process_many(batch)


def do_nothing(event: Event) -> None:
    """Be the handler: what is measured is the bridge."""


def by_hand(raws: list[bytes], path: Path, size: int) -> None:
    """Do the least that remembers anything: parse, one insert and one update per event, full sync."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute("CREATE TABLE seen (id TEXT PRIMARY KEY, status TEXT) WITHOUT ROWID")
    for batch in batches(raws, size):
        ids = [json.loads(raw)["id"] for raw in batch]
        db.execute("BEGIN IMMEDIATE")
        for envelope_id in ids:
            db.execute("INSERT OR IGNORE INTO seen VALUES (?, 'claimed')", (envelope_id,))
        db.execute("COMMIT")
        db.execute("BEGIN IMMEDIATE")
        for envelope_id in ids:
            db.execute("UPDATE seen SET status = 'done' WHERE id = ?", (envelope_id,))
        db.execute("COMMIT")
    db.close()


def rate(work: Callable[[], None], number: int) -> float:
    """Return deliveries per second."""
    started = time.perf_counter()
    work()
    return number / (time.perf_counter() - started)


def measure(conversations: int) -> dict[str, float]:
    """Run every row once, on the same deliveries."""
    raws = [delivery.raw for delivery in simulate(conversations, seed=1)]
    few = raws[: len(raws) // 10]
    with tempfile.TemporaryDirectory(prefix="oncebridge-bench-") as directory:
        at = Path(directory)
        return {
            "memory, batches of 100": rate(lambda: through_bridge(raws, "memory://", BATCH), len(raws)),
            "SQLite by hand, batches of 100": rate(lambda: by_hand(raws, at / "hand.db", BATCH), len(raws)),
            "SQLite, batches of 100": rate(lambda: through_bridge(raws, f"sqlite:///{at}/many.db", BATCH), len(raws)),
            "SQLite by hand, one at a time": rate(lambda: by_hand(few, at / "hand1.db", 1), len(few)),
            "SQLite, one at a time": rate(lambda: through_bridge(few, f"sqlite:///{at}/one.db", 1), len(few)),
        }


def show(rates: dict[str, float]) -> None:
    """Print the table."""
    table = Table("what", "deliveries/s", "of what is reached by hand", header_style="bold")
    for name, per_second in rates.items():
        hand = rates.get(name.replace("SQLite,", "SQLite by hand,")) if name.startswith("SQLite,") else None
        table.add_row(name, f"{per_second:,.0f}", f"{per_second / hand:.2f} x" if hand else "")
    console = Console()
    console.print(
        f"oncebridge {version('oncebridge')} on Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, "
        f"{platform.machine()} {platform.system()}",
        highlight=False,
    )
    console.print(table)


def main() -> None:
    """Measure and show."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conversations", type=int, default=500, help="how much traffic; about 45 deliveries each")
    parser.add_argument("--json", metavar="FILE", help="write the figures here too")
    arguments = parser.parse_args()
    rates = measure(arguments.conversations)
    show(rates)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(rates, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
