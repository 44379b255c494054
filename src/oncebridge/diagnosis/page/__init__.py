"""A diagnosis as one page that is complete in itself, and such a page as a diagnosis again."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

from oncebridge.diagnosis.comparison import changes, readable
from oncebridge.diagnosis.diagnosis import Diagnosis
from oncebridge.diagnosis.page import sections
from oncebridge.diagnosis.page.advice import advice
from oncebridge.diagnosis.page.backtest import backtest
from oncebridge.diagnosis.page.cutting import ROOMS, Cut, cut
from oncebridge.diagnosis.page.reading import DATA, read_page
from oncebridge.markup import Markup
from oncebridge.report_page import BYTES_MAX, data_block, report_page

__all__ = ["BYTES_MAX", "page", "read_page"]

_OWN_STYLE: Final = files("oncebridge.diagnosis.page").joinpath("page.css").read_text(encoding="utf-8")
#: What the list at the top leads to, in the order of the page.
_LINKS: Final = {
    "changed": "What changed",
    "causes": "Causes",
    "time": "Over time",
    "lags": "Lags",
    "backtest": "Back-test",
    "topics": "Topics",
    "look-alikes": "Look-alikes",
    "advice": "Advice",
    "unreadable": "Unreadable",
}


def page(diagnosis: Diagnosis, earlier: Diagnosis | None = None) -> str:
    """Write the page of a diagnosis, at most `BYTES_MAX` long whatever it holds; with `earlier`, what changed since."""
    for room in ROOMS:
        before = None if earlier is None else cut(earlier, room).diagnosis
        written = _document(cut(diagnosis, room), before)
        if len(written.encode()) <= BYTES_MAX:
            return written
    raise AssertionError(
        f"the smallest page is {len(written.encode()):,} bytes long"
    )  # ROOMS must end in one that fits


def _document(fitting: Cut, earlier: Diagnosis | None) -> str:
    diagnosis = fitting.diagnosis
    parts = [
        Markup() if earlier is None else sections.changed(changes(diagnosis, earlier), earlier),
        *_parts(diagnosis),
    ]
    return report_page(
        title="Why do I get duplicates?",
        links=_LINKS,
        head=sections.answer(diagnosis),
        body="".join(parts),
        foot=sections.provenance(diagnosis, fitting.left_out),
        data=data_block(DATA, diagnosis),
        own_style=_OWN_STYLE,
    )


def _parts(diagnosis: Diagnosis) -> list[Markup]:
    if not readable(diagnosis):
        return [sections.nothing(diagnosis), sections.unreadable(diagnosis)]
    return [
        sections.causes(diagnosis),
        sections.over_time(diagnosis),
        sections.lags(diagnosis),
        backtest(diagnosis),
        sections.topics(diagnosis),
        sections.look_alikes(diagnosis),
        advice(diagnosis),
        sections.unreadable(diagnosis),
    ]
