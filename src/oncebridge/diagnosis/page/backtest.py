"""The back-test on the page: what each key would have done with this traffic, and examples of its mistakes."""

from __future__ import annotations

from oncebridge import charts
from oncebridge.diagnosis.comparison import OWN_KEY
from oncebridge.diagnosis.diagnosis import Cause, Diagnosis, KeyTried
from oncebridge.diagnosis.page.examples import examples
from oncebridge.diagnosis.page.sections import section
from oncebridge.markup import Cell, Column, Markup, details, joined, table, tag
from oncebridge.quantities import MOST, count, counted, part_of, percent, span


def backtest(diagnosis: Diagnosis) -> Markup:
    """Write the rows as a table and as a picture; events lost are the worse mistake, and look so."""
    if not diagnosis.backtest:
        return Markup()
    return section(
        "backtest",
        "What each key would have done",
        tag("p", *_verdict(diagnosis)),
        table(
            "Mistakes of each key on exactly this traffic",
            [
                Column("Key"),
                Column("Real events lost", is_number=True),
                Column("Duplicates let through", is_number=True),
                Column("Remembers", is_number=True),
            ],
            [("own" if row.key == OWN_KEY else None, _row(diagnosis, row)) for row in diagnosis.backtest],
        ),
        _why_own_lets_through(diagnosis),
        _picture(diagnosis),
        _examples(diagnosis),
    )


def _why_own_lets_through(diagnosis: Diagnosis) -> Markup:
    own = next((row for row in diagnosis.backtest if row.key == OWN_KEY), None)
    pairs = diagnosis.causes.get(Cause.TWO_TOPICS.value, 0)
    if own is None or not own.let_through or not pairs:
        return Markup()
    return tag("p", f"Oncebridge keeps {counted(pairs, 'fact')} that came under two topics: they are two events.")


def _verdict(diagnosis: Diagnosis) -> list[str]:
    """Say in words which keys lose events: an event lost is gone, a duplicate let through can be repaired."""
    losing = [row for row in diagnosis.backtest if row.lost]
    usual = len(diagnosis.backtest)
    gone = "A duplicate that is let through can be repaired at its receiver; an event that is lost is gone."
    if not losing:
        return [f"None of these {count(usual)} keys would have lost a real event of this capture. ", gone]
    worst = max(losing, key=lambda row: row.lost)
    return [
        tag("b", f"{count(len(losing))} of {count(usual)} keys would have lost real events. ", class_="bad"),
        f"The worst, {worst.title}, {counted(worst.lost, 'event')} of {count(diagnosis.events)}. ",
        gone,
    ]


def _row(diagnosis: Diagnosis, row: KeyTried) -> list[Cell]:
    is_own = row.key == OWN_KEY
    badge = tag("span", "this program", class_="badge own") if is_own else Markup()
    named = joined((tag("span", row.title, class_="title"), badge, tag("span", row.compares, class_="sub")), " ")
    return [
        Cell(named, class_="key"),
        _mistakes(
            row.lost, diagnosis.events, "of events", f"lost-{_anchor(row)}" if row.lost_examples else None, "lost"
        ),
        _mistakes(
            row.let_through,
            diagnosis.duplicates,
            "of duplicates",
            f"through-{_anchor(row)}" if row.let_through_examples else None,
            "through",
        ),
        Cell("the whole capture" if row.seconds is None else span(row.seconds * 1000), _seconds(row)),
    ]


def _mistakes(number: int, whole: int, of: str, anchor: str | None, class_: str) -> Cell:
    if not number:
        return Cell("none", 0, "none")
    said = tag("b", count(number))
    shown = tag("a", said, href=f"#{anchor}") if anchor else said
    share = tag("span", f"{percent(part_of(number, whole))} {of}", class_="sub")
    return Cell(joined((shown, share), " "), number, class_)


def _seconds(row: KeyTried) -> float:
    return MOST if row.seconds is None else row.seconds


def _anchor(row: KeyTried) -> str:
    """Make an id of the page from a key, which may be an expression of the user's."""
    return "".join(
        character if character.isascii() and character.isalnum() else f"-{ord(character):x}" for character in row.key
    )


def _picture(diagnosis: Diagnosis) -> Markup:
    pairs = [charts.Pair(row.title, row.let_through, row.lost, row.key == OWN_KEY) for row in diagnosis.backtest]
    return tag(
        "div",
        tag(
            "p",
            "Duplicates let through to the left, real events lost to the right; each side has its own scale.",
            class_="quiet",
        ),
        Markup(
            charts.paired_bars(
                "backtest-chart",
                "Duplicates let through and real events lost, by key",
                pairs,
                left="let through",
                right="real events lost",
            )
        ),
    )


def _examples(diagnosis: Diagnosis) -> Markup:
    opened = []
    for row in diagnosis.backtest:
        if row.lost_examples:
            told = f"{row.title}: {counted(row.lost, 'real event')} lost"
            found = examples(row.lost_examples, "would have been taken for", anchor=f"lost-{_anchor(row)}")
            opened.append(details(told, found))
        if row.let_through_examples:
            told = f"{row.title}: {counted(row.let_through, 'duplicate')} let through"
            found = examples(row.let_through_examples, "repeats", anchor=f"through-{_anchor(row)}")
            opened.append(details(told, found))
    return tag("div", tag("h3", "Examples of these mistakes"), *opened, class_="opened") if opened else Markup()
