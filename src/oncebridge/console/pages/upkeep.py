"""The findings of `doctor`, the log of who did what, and what never came."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from msgspec.structs import replace

from oncebridge.console.layout import PREFIX, Page, Viewer, badge, empty, next_link, section, text, time_of
from oncebridge.ledgers.findings import Level
from oncebridge.markup import Cell, Column, joined, moment, table, tag
from oncebridge.quantities import count, counted
from oncebridge.reconciling.page import TITLE, figures, plain, sections
from oncebridge.reconciling.words import balance

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oncebridge.diagnosis.examination import Examined
    from oncebridge.journal.actions import Action
    from oncebridge.reconciling.result import Run

_LEVELS = {Level.GOOD: "good", Level.WARNING: "warning", Level.WRONG: "bad"}
#: Runs of reconcile on their page: each may hold a thousand gaps.
RUNS_SHOWN = 20
_ORDER = (Level.WRONG, Level.WARNING, Level.GOOD)


def doctor_page(examined: Examined) -> Page:
    """Write the findings, the worst first, and the promise."""
    findings = sorted(examined.findings, key=lambda one: _ORDER.index(one.level))
    columns = (Column("subject"), Column("level"), Column("found"), Column("what to do"))
    rows = [
        (
            None,
            [
                Cell(tag("span", text(one.subject), class_="title")),
                Cell(badge(one.level.value, _LEVELS[one.level])),
                Cell(text(one.found, most=2000), class_="wide"),
                Cell(text(one.fix, most=2000), class_="wide"),
            ],
        )
        for one in findings
    ]
    promises = [tag("li", text(promise.sentence, most=2000)) for promise in examined.promises]
    warnings = sum(one.level is Level.WARNING for one in findings)
    lead = "Nothing has to be changed" if examined.is_right else "Something has to be changed"
    lead += f"; {counted(warnings, 'warning')} to look at." if warnings else "."
    told = "As far as this process can see: it knows the settings and the ledger; handlers in code only with --handler."
    main = joined(
        (
            tag("p", lead, class_="lead"),
            section("findings", "Findings", table("The worst first", columns, rows)),
            section(
                "promise",
                "The promise",
                tag("ul", *promises) if promises else empty("No handler is known here."),
                lead=told,
            ),
        )
    )
    return Page(title="Doctor", name="doctor", main=main, commands=("oncebridge doctor",))


def log_page(actions: Sequence[Action], below: str | None, viewer: Viewer) -> Page:
    """Write who did what, the newest first."""
    if not actions:
        main = empty("Nobody has done anything here yet that is written into the log.")
    else:
        columns = [Column(name) for name in ("when", "who", "by", "what", "about", "came of it")]
        rows = [
            (
                None,
                [
                    Cell(time_of(one.at_ms, viewer.now_ms)),
                    Cell(text(one.who)),
                    Cell(text(one.via)),
                    Cell(badge(text(one.what, most=20), "other")),
                    Cell(text(one.about), class_="wide"),
                    Cell(text(one.said), class_="wide"),
                ],
            )
            for one in actions
        ]
        older = None if below is None else f"{PREFIX}/log?below={below}"
        main = joined((table("The newest first, from pages and commands", columns, rows), next_link(older)))
    return Page(title="Log", name="log", main=main, commands=("oncebridge log",), is_live=True)


def missing_page(runs: Sequence[Run], chosen: str | None) -> Page:
    """Write one run, the latest unless another is chosen, and the list of all."""
    commands = ("oncebridge reconcile --since 24h",)
    if not runs:
        main = empty(
            "Nobody has asked yet what never came. Set attendance = true for the workers, and run the command below."
        )
        return Page(title=TITLE, name="missing", main=main, commands=commands)
    run = next((one for one in runs if one.made == chosen), runs[0])
    listed = [plain(replace(one, gaps=[], silences=[])) for one in runs]
    columns = [Column("made"), Column("about")]
    columns += [Column(name, is_number=True) for name in ("ended", "whole", "in part", "never")]
    rows = [(None, _row(one, is_shown=one.made == run.made)) for one in listed]
    run = plain(run)
    main = joined(
        (
            tag("p", text(balance(run), most=2000), class_="lead"),
            figures(run),
            sections(run),
            section("runs", "All runs", table("The latest first", columns, rows)),
        )
    )
    return Page(title=TITLE, name="missing", main=main, commands=commands)


def _row(run: Run, *, is_shown: bool) -> list[Cell]:
    made = moment(run.made, to_the_second=True)
    link = tag("a", made, href=f"{PREFIX}/missing?run={quote(run.made)}", aria_current="page" if is_shown else None)
    numbers = (run.counts.ended, run.counts.whole, run.counts.partial, run.counts.missing)
    about = f"{moment(run.since, to_the_second=True)} to {moment(run.until, to_the_second=True)}"
    return [Cell(link), Cell(text(about)), *(Cell(count(number), number) for number in numbers)]
