"""`make prove`: attacks the program from outside, and counts what took effect where it cannot reach.

make prove                                          every part, on every ledger, with a little of each
make prove ARGS=--list                              the parts, and how much of each a whole proof has
make prove ARGS="kill --ledger redis --seed 7 --amount 10000"
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prove.evidence import write_page
from prove.outcome import Options
from prove.parts import NONE, PARTS, Part
from prove.places import LEDGERS, kind_of
from prove.results import save

SHORT = 0.005
MINUTES = 75.0


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="make prove", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help="which ones; all of them otherwise")
    parser.add_argument("--list", action="store_true", help="name the parts")
    parser.add_argument(
        "--ledger", action="append", metavar="KIND|URL", help="sqlite, redis, postgres, dynamodb or a URL"
    )
    parser.add_argument("--seed", type=int, help="repeats a run; drawn and said otherwise")
    parser.add_argument(
        "--amount", type=int, help="how much of it; a part's own otherwise, a little of it without PART"
    )
    parser.add_argument("--minutes", type=float, default=MINUTES, help="each part on each ledger ends after these")
    parser.add_argument("--save", action="store_true", help="keep the results, and write docs/evidence.html anew")
    parser.add_argument("--page", action="store_true", help="run nothing; write docs/evidence.html of what is kept")
    parser.add_argument("--json", action="store_true", help="print a line of JSON per part and ledger")
    found = parser.parse_args(given)
    if unknown := [name for name in found.parts if name not in PARTS]:
        parser.error(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    if wrong := [ledger for ledger in found.ledger or () if kind_of(ledger) not in LEDGERS]:
        parser.error(f"no such ledger: {', '.join(wrong)}; there are {', '.join(LEDGERS)}, or give a URL")
    for part in (PARTS[name] for name in found.parts):
        if found.ledger and part.ledgers != NONE and not all(map(part.is_for, found.ledger)):
            known = ", ".join(part.ledgers)
            urls = "" if part.takes_url else ", whose servers it has to start itself: give no URL"
            parser.error(f"{part.name} is for {known}{urls}")
    for name in ("amount", "minutes"):
        if (number := getattr(found, name)) is not None and number <= 0:
            parser.error(f"--{name} {number}: give a number above 0")
    return found


def runs(options: argparse.Namespace) -> Iterator[tuple[Part, str, int]]:
    """Return which parts to run on which ledgers, and how much of each."""
    for part in [PARTS[name] for name in options.parts] or PARTS.values():
        asked = [ledger for ledger in options.ledger or () if part.is_for(ledger)]
        ledgers = asked if options.ledger and part.ledgers != NONE else part.ledgers
        for ledger in ledgers:
            usual = part.amount_on(ledger)
            yield part, ledger, options.amount or (usual if options.parts else max(1, int(usual * SHORT)))


def run_part(part: Part, ledger: str, seed: int, amount: int, minutes: float) -> dict[str, Any]:
    """Run one part on one ledger, in a folder of its own."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="oncebridge-prove-") as folder:
        options = Options(ledger, seed, amount, minutes * 60, Path(folder), _progress(part, amount))
        outcome = part.run(options)
    outcome.seconds = round(time.monotonic() - begun, 1)
    command = f"{part.name} {f'--ledger {ledger} ' if ledger else ''}--seed {seed} --amount {amount}"
    return {
        "part": part.name, "ledger": ledger, "seed": seed, "amount": amount, "unit": part.unit, **outcome.as_dict(),
        "command": f'make prove ARGS="{command}"',
    }  # fmt: skip


def _progress(part: Part, amount: int) -> Any:
    if not sys.stderr.isatty():
        return None

    def show(done: int) -> None:
        print(f"\r{part.name}: {done:,} of {amount:,} {part.unit} ", end="", file=sys.stderr, flush=True)

    return show


def show(row: dict[str, Any]) -> None:
    """Print what a part came to, and how to see it fail again."""
    state = "held" if row["held"] else "BROKEN"
    tried = f"{row['tried']:>9,} {row['unit']:<12}"
    doubled = f"{row['lost']} lost, {row['doubled']} doubled, {row['doubled_plain']} doubled where nothing prevents it"
    print(f"{row['part']:<19} {row['ledger']:<9} {state:<7} {tried} {doubled}, {row['seconds']} s")
    for note in row["notes"]:
        print(f"    {note}")
    if not row["held"]:
        print(f"    broken: {row['broken'] or 'nothing was tried'}; again with: {row['command']}")
        for line in row["history"]:
            print(f"    {line}")
    sys.stdout.flush()


def main() -> int:
    """Run what was asked for; 1 where a promise was broken."""
    options = arguments()
    if options.page:
        write_page()
        return 0
    if options.list:
        for part in PARTS.values():
            less = {ledger: f"{ledger} {number:,}" for ledger, number in part.less.items()}
            where = ", ".join(less.get(ledger, ledger) for ledger in part.ledgers if ledger)
            print(f"{part.name:<19} {part.amount:>9,} {part.unit:<12} {part.title}{f' ({where})' if where else ''}")
        return 0
    # As at Ctrl-C: whatever was started and mounted is ended and unmounted, and nothing is kept.
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where a shell runs it in the background
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1_000_000)
    held = True
    for part, ledger, amount in runs(options):
        row = run_part(part, ledger, seed, amount, options.minutes)
        held = held and row["held"]
        if options.save:
            save(row)
        if options.json:
            print(json.dumps(row), flush=True)
        else:
            show(row)
    if options.save:
        write_page()
    return 0 if held else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
