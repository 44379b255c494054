"""Pages for those who are not let in, and for what went wrong."""

from __future__ import annotations

from oncebridge.console.layout import PREFIX, plain_document
from oncebridge.markup import Markup, joined, tag


def login_page(trouble: str | None, next_: str) -> str:
    """Ask for a key."""
    told = tag("p", trouble, class_="bad", role="alert") if trouble else Markup()
    form = tag(
        "form",
        tag(
            "label",
            tag("span", "Key"),
            tag("input", type="password", name="key", autocomplete="current-password", required=True, autofocus=True),
        ),
        tag("input", type="hidden", name="next", value=next_),
        tag("button", "Log in", type="submit", class_="main"),
        method="post",
        action=f"{PREFIX}/login",
        class_="login",
    )
    hint = tag(
        "p",
        "One of the keys that the settings name as operator_keys or reader_keys in [console].",
        class_="quiet",
    )
    return plain_document("Oncebridge", joined((told, form, hint)))


def trouble_page(title: str, said: str) -> str:
    """Say what went wrong, and what to do."""
    back = tag("p", tag("a", "To the first page", href=f"{PREFIX}/"))
    return plain_document(title, joined((tag("p", said, class_="lead"), back)))
