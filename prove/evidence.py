"""Writes docs/evidence.html: what was tried, what came of it, how to repeat it, and what none of it shows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from oncebridge.markup import SCRIPT, STYLE, Cell, Column, Markup, definitions, details, joined, table, tag, to_copy
from prove.guarantees import GUARANTEES, NOT_SHOWN
from prove.parts import PARTS
from prove.results import ROOT, saved

PAGE: Final = ROOT / "docs" / "evidence.html"
OWN_STYLE: Final = """
.held { color: var(--good); } .broken { color: var(--bad); font-weight: 600; }
.claim { font-size: 1.0625rem; font-weight: 600; }
td code { white-space: pre-wrap; }
"""
COLUMNS: Final = (
    Column("ledger"),
    Column("tried", is_number=True),
    Column("lost", is_number=True),
    Column("doubled", is_number=True),
    Column("so the rate is below", is_number=True),
    Column("doubled where nothing prevents it", is_number=True),
    Column("seed", is_number=True),
    Column("commit, date"),
)


def write_page(path: Path = PAGE) -> None:
    """Write the page of the newest results."""
    path.write_text(page(saved()), encoding="utf-8")


def page(rows: Sequence[dict[str, Any]]) -> str:
    """Write everything into one file that asks for nothing else."""
    by_part = {part: list(found) for part, found in groupby(rows, key=lambda row: row["part"])}
    main = tag(
        "main",
        tag("p", tag("span", "Oncebridge", class_="brand"), "evidence", class_="eyebrow"),
        tag("h1", _headline(rows)),
        tag(
            "p",
            "Workers are killed, stopped, cut off and lied to; what takes effect is written down where they cannot "
            "reach, and judged by what was known beforehand. Every figure has the command that repeats it.",
        ),
        _figures(rows),
        _ways(),
        *(_guarantee(*guarantee, by_part) for guarantee in GUARANTEES),
        _controls(by_part.get("controls", [])),
        _not_shown(),
        id="main",
    )
    head = tag(
        "head",
        Markup('<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'),
        tag("title", "Oncebridge: the evidence"),
        Markup(f"<style>{STYLE}{OWN_STYLE}</style>"),
    )
    body = tag(
        "body",
        tag("a", "Skip to the evidence", href="#main", class_="skip"),
        main,
        Markup(f"<script>{SCRIPT}</script>"),
    )
    return f'<!doctype html>\n<html lang="en">{head}{body}</html>\n'


def _headline(rows: Sequence[dict[str, Any]]) -> str:
    broken = [row for row in rows if not row["held"]]
    if broken:
        names = ", ".join(sorted({row["part"] for row in broken}))
        return f"{len(broken)} of {len(rows)} results show a broken promise: {names}"
    return f"{len(rows)} results, and every promise was kept in each"


def _figures(rows: Sequence[dict[str, Any]]) -> Markup:
    lost, doubled = (sum(row[what] for row in rows) for what in ("lost", "doubled"))
    kinds = {"lost": lost, "doubled at sinks that prevent it": doubled}
    kinds["doubled elsewhere, which is allowed"] = sum(row["doubled_plain"] for row in rows)
    return definitions(((name, f"{number:,}") for name, number in kinds.items()), class_="figures")


def _ways() -> Markup:
    places = [(f"g{at}", title) for at, (title, _, _) in enumerate(GUARANTEES)]
    places += [("controls", "Negative controls"), ("not-shown", "What is not shown")]
    return tag("nav", *(tag("a", title, href=f"#{place}") for place, title in places), aria_label="On this page")


def _guarantee(title: str, promise: str, parts: Sequence[str], by_part: dict[str, list[dict[str, Any]]]) -> Markup:
    at = [guarantee[0] for guarantee in GUARANTEES].index(title)
    shown = [_part(name, by_part[name]) for name in parts if by_part.get(name)]
    missing = [name for name in parts if not by_part.get(name)]
    inside = [tag("h2", title), tag("p", promise, class_="claim"), *shown]
    if missing:
        inside.append(tag("p", f"No result is kept yet of: {', '.join(missing)}.", class_="bad"))
    return tag("section", *inside, id=f"g{at}")


def _part(name: str, rows: Sequence[dict[str, Any]]) -> Markup:
    part = PARTS[name]
    cells = [(None if row["held"] else "bad", _cells(row)) for row in rows]
    notes = sorted({note for row in rows for note in row["notes"]})
    said = [
        tag("h3", f"{name}: {part.title}"),
        table(f"{name}, counted in {part.unit}", COLUMNS, cells),
        *(to_copy(_short_command(row), f"repeats a little of {name} {row['ledger']}".strip()) for row in rows[:1]),
    ]
    if notes:
        said.append(details("What a reader should know", tag("ul", *(tag("li", note) for note in notes))))
    failed = [row for row in rows if row["history"]]
    said += [details(f"How it failed on {row['ledger']}", tag("pre", "\n".join(row["history"]))) for row in failed]
    return tag("article", *said)


def _cells(row: dict[str, Any]) -> list[Cell]:
    bound = f"{3 / row['tried']:.2g}" if row["held"] and row["tried"] else "no bound: it failed"
    kept = "held" if row["held"] else "broken"
    return [
        Cell(row["ledger"] or "none needed"),
        Cell(f"{row['tried']:,}", row["tried"]),
        Cell(f"{row['lost']:,}", row["lost"], kept),
        Cell(f"{row['doubled']:,}", row["doubled"], kept),
        Cell(bound),
        Cell(f"{row['doubled_plain']:,}", row["doubled_plain"]),
        Cell(str(row["seed"])),
        Cell(f"{row['commit']}, {row['date']}"),
    ]


def _short_command(row: dict[str, Any]) -> str:
    """Write the command that repeats as much of a result as two minutes allow."""
    amount = max(1, min(row["tried"], int(row["tried"] * 110 / max(row["seconds"], 1))))
    ledger = f" --ledger {row['ledger']}" if row["ledger"] else ""
    return f'make prove ARGS="{row["part"]}{ledger} --seed {row["seed"]} --amount {amount}"'


def _controls(rows: Sequence[dict[str, Any]]) -> Markup:
    """Show what the same rounds found in programs that are known to be wrong."""
    said = tag(
        "p",
        "A harness is believed when it catches what is wrong. The same stream, faults and judge, on what people write "
        "by hand and on this program with a single check taken out:",
    )
    columns = (Column("program"), Column("what the judge found"))
    found = {name: what for row in rows for name, what in row["figures"].items()}
    cells = [(None, [Cell(name), Cell(_in_words(what))]) for name, what in found.items()]
    inside = (
        [table("Negative controls", columns, cells)] if found else [tag("p", "No result is kept yet.", class_="bad")]
    )
    return tag("section", tag("h2", "Negative controls"), said, *inside, id="controls")


def _in_words(what: Any) -> str:
    if isinstance(what, dict):
        return ", ".join(
            f"{name} {number:,}" if isinstance(number, int) else f"{name} {number}" for name, number in what.items()
        )
    return str(what)


def _not_shown() -> Markup:
    listed = tag("ul", *(tag("li", text) for text in NOT_SHOWN))
    return tag("section", tag("h2", "What is not shown"), joined([listed]), id="not-shown")
