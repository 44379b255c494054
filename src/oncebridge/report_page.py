"""A report as one file that is complete in itself, asks for nothing, and holds its data for programs."""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING, Any, Final

from oncebridge import charts
from oncebridge.markup import SCRIPT, STYLE, Markup, tag
from oncebridge.visible import visible_json

if TYPE_CHECKING:
    from collections.abc import Mapping

#: However large a report is: it is sent by mail, and opened on a phone.
BYTES_MAX: Final = 300_000
#: What an HTML parser may take for the end of the block, or for markup, as escapes of JSON.
_ESCAPES: Final = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


def report_page(
    *, title: str, links: Mapping[str, str], head: str, body: str, foot: str, data: str, own_style: str = ""
) -> str:
    """Write a page; of the links, those to sections that are in its body."""
    style = charts.STYLE + STYLE + own_style
    shown = [tag("a", text, href=f"#{name}") for name, text in links.items() if f'<section id="{name}"' in body]
    return "".join(
        (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_policy(style)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="referrer" content="no-referrer"><meta name="robots" content="noindex">',
            tag("title", f"{title} · Oncebridge"),
            f"<style>{style}</style></head><body>",
            tag("a", "Skip to the causes", href="#main", class_="skip"),
            charts.textures(),
            head,
            tag("nav", *shown, aria_label="On this page") if len(shown) > 1 else "",
            tag("main", Markup(body), id="main"),
            foot,
            data,
            f"<script>{SCRIPT}</script></body></html>\n",
        )
    )


def data_block(name: str, data: Any) -> str:
    """Write what a report tells as a block of JSON in which nothing ends it."""
    return f'<script type="application/json" id="{name}">{visible_json(data).translate(_ESCAPES)}</script>'


def _policy(style: str) -> str:
    """Allow this style and this script, and nothing else: no request, no frame, no form."""
    return (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(SCRIPT)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
