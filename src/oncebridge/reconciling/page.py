"""A run as one page that is complete in itself, and its sections for the console."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from oncebridge.markup import (
    Cell,
    Column,
    Markup,
    definitions,
    joined,
    moment,
    table,
    tag,
    to_copy,
    topic,
)
from oncebridge.quantities import count, counted, part_of, percent
from oncebridge.reconciling.result import Run
from oncebridge.reconciling.silences import Cause
from oncebridge.reconciling.words import ADVICE, TITLES, balance, remarks, silence_in_words
from oncebridge.report_page import BYTES_MAX, data_block, report_page
from oncebridge.visible import visible

if TYPE_CHECKING:
    from oncebridge.reconciling.result import ShownGap

TEXT_MAX: Final = 300
TITLE: Final = "What never came"
_LINKS: Final = {"changed": "What changed", "causes": "Causes", "silences": "Silence", "gaps": "Gaps"}


def plain(run: Run) -> Run:
    """Return a run whose texts are visible and short: ids come from outside, and a ledger may hold any."""
    return msgspec.convert(_plain(msgspec.to_builtins(run)), Run)


def _plain(node: Any) -> Any:
    match node:
        case str():
            return visible(node[:TEXT_MAX])[:TEXT_MAX]
        case list():
            return [_plain(one) for one in node]
        case dict():
            return {_plain(name): _plain(one) for name, one in node.items()}
    return node


def page(run: Run, version: str) -> str:
    """Write the page of a run, at most `BYTES_MAX` long: of very many gaps it holds the first."""
    run = plain(run)
    while True:
        written = _document(run, version)
        if len(written.encode()) <= BYTES_MAX or not run.gaps:
            return written
        kept = run.gaps[: len(run.gaps) * 2 // 3]
        run = replace(run, gaps=kept, gaps_left_out=run.gaps_left_out + len(run.gaps) - len(kept))


def _document(run: Run, version: str) -> str:
    about = f"Oncebridge {visible(version)}, made {_time(run.made)}. Ids of conversations are Genesys' own; "
    return report_page(
        title=TITLE,
        links=_LINKS,
        head=tag("header", tag("p", f"{TITLE}?", class_="product"), tag("h1", balance(run)), figures(run)),
        body=sections(run),
        foot=tag("footer", tag("p", f"{about}nothing else of them is on this page.")),
        data=data_block("oncebridge-run", run),
    )


def figures(run: Run) -> Markup:
    """Write the numbers that the balance rests on."""
    counts = run.counts
    shown = [
        ("ended", count(counts.ended)),
        ("whole", count(counts.whole)),
        ("in part", count(counts.partial)),
        ("never", count(counts.missing)),
        ("came whole", percent(part_of(counts.whole, counts.ended)) if counts.ended else "0 %"),
        ("provisional", count(counts.provisional)),
    ]
    return definitions(shown, class_="figures")


def sections(run: Run) -> Markup:
    """Write everything below the balance."""
    parts = [tag("p", _about(run))]
    parts += [tag("p", line) for line in remarks(run)]
    if run.changes:
        parts.append(_section("changed", "What changed", tag("ul", *(tag("li", line) for line in run.changes))))
    if run.causes:
        parts.append(_section("causes", "Causes", *_causes(run)))
    if run.silences:
        items = [tag("li", silence_in_words(silence)) for silence in run.silences]
        parts.append(_section("silences", "When it was silent", tag("ul", *items)))
    if run.gaps:
        parts.append(_gaps(run))
    return joined(parts)


def _about(run: Run) -> str:
    up_to = f" Complete up to {_time(run.judged_until)}." if run.watermark else ""
    return f"Conversations that ended between {_time(run.since)} and {_time(run.until)}.{up_to}"


def _causes(run: Run) -> list[Markup]:
    found = [(cause, run.causes[cause.value]) for cause in TITLES if cause.value in run.causes]
    whole = sum(number for _, number in found)
    return [
        joined((
            tag("h3", f"{TITLES[cause][:1].upper()}{TITLES[cause][1:]}"),
            tag("p", f"{counted(number, 'conversation')}, {percent(part_of(number, whole))} of the gaps"),
            tag("p", f"{ADVICE[cause]}."),
        ))
        for cause, number in found
    ]  # fmt: skip


def _gaps(run: Run) -> Markup:
    columns = [
        Column("conversation"),
        Column("ended"),
        Column("missing"),
        Column("from"),
        Column("to"),
        Column("cause"),
    ]
    rows = table(
        "In the order in which they ended or began", columns, map(_row, run.gaps), filter_label="conversations"
    )
    left = tag("p", f"{counted(run.gaps_left_out, 'gap')} more: reconcile --json has all.") if run.gaps_left_out else ""
    command = f"oncebridge reconcile --from {run.since} --until {run.until} --fill"
    fill = joined((
        tag("p", "To give each of them to the handlers of oncebridge.missing, once:"),
        to_copy(command, "the command that fills the gaps"),
    ))  # fmt: skip
    return _section("gaps", "Gaps", rows, left, fill)


def _row(gap: ShownGap) -> tuple[None, list[Cell]]:
    missing = "everything" if gap.never else ", ".join(gap.missing)
    times = (_time(gap.ended), _time(gap.since), _time(gap.until))
    return None, [
        Cell(tag("code", gap.conversation)),
        Cell(times[0]),
        Cell(topic(missing) if not gap.never else missing),
        Cell(times[1]),
        Cell(times[2]),
        Cell(TITLES[Cause(gap.cause)]),
    ]


def _section(name: str, title: str, *inside: str) -> Markup:
    return tag("section", tag("h2", title, id=f"{name}-h"), *inside, id=name, aria_labelledby=f"{name}-h")


def _time(text: str) -> str:
    return moment(text, to_the_second=True)
