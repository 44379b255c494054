"""A diagnosis as one page that is complete in itself, and such a page as a diagnosis again."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from typing import Final

from oncebridge import charts
from oncebridge.diagnosis.comparison import changes, readable
from oncebridge.diagnosis.diagnosis import Diagnosis
from oncebridge.diagnosis.page import sections
from oncebridge.diagnosis.page.advice import advice
from oncebridge.diagnosis.page.backtest import backtest
from oncebridge.diagnosis.page.cutting import ROOMS, Cut, cut
from oncebridge.diagnosis.page.reading import data_block, read_page
from oncebridge.markup import SCRIPT, STYLE, Markup, tag

__all__ = ["BYTES_MAX", "page", "read_page"]

BYTES_MAX: Final = 300_000

_OWN_STYLE: Final = files("oncebridge.diagnosis.page").joinpath("page.css").read_text(encoding="utf-8")
_STYLE: Final = charts.STYLE + STYLE + _OWN_STYLE
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
    body = "".join(parts)
    links = [tag("a", title, href=f"#{name}") for name, title in _LINKS.items() if f'<section id="{name}"' in body]
    return "".join(
        (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_policy()}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="referrer" content="no-referrer"><meta name="robots" content="noindex">',
            tag("title", "Why do I get duplicates? · Oncebridge"),
            f"<style>{_STYLE}</style></head><body>",
            tag("a", "Skip to the causes", href="#main", class_="skip"),
            charts.textures(),
            sections.answer(diagnosis),
            tag("nav", *links, aria_label="On this page") if len(links) > 1 else "",
            tag("main", Markup(body), id="main"),
            sections.provenance(diagnosis, fitting.left_out),
            data_block(diagnosis),
            f"<script>{SCRIPT}</script></body></html>\n",
        )
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


def _policy() -> str:
    """Allow this style and this script, and nothing else: no request, no frame, no form."""
    return (
        f"default-src 'none'; style-src '{_digest(_STYLE)}'; script-src '{_digest(SCRIPT)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
