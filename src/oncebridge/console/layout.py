"""The frame around every page of the console, and the pieces that several pages share."""

from __future__ import annotations

from datetime import UTC, datetime
from hashlib import sha256
from importlib.metadata import version
from importlib.resources import files
from typing import TYPE_CHECKING, Final

import msgspec

from oncebridge import charts, markup
from oncebridge.markup import Markup, tag, to_copy
from oncebridge.quantities import span
from oncebridge.visible import visible

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from oncebridge.console.access import Session

PREFIX: Final = "/console"
#: A longer text from outside is cut where it is shown; whole it is where the command shows it.
TEXT_MAX: Final = 400
#: A command with every filter, each quoted for a shell: one that is cut would be another command.
COMMAND_MAX: Final = 20_000
#: How often a page that is looked at is brought up to date.
LIVE_SECONDS: Final = 5
#: DynamoDB bills what is read, and a look for a conversation reads megabytes there.
BILLED_LIVE_SECONDS: Final = 30

_OWN: Final = files("oncebridge.console")
STYLE: Final = charts.STYLE + markup.STYLE + _OWN.joinpath("console.css").read_text(encoding="utf-8")
SCRIPT: Final = "\n".join(
    (
        _OWN.joinpath("vendor", "idiomorph.min.js").read_text(encoding="utf-8"),
        markup.SCRIPT,
        _OWN.joinpath("console.js").read_text(encoding="utf-8"),
    )
)
#: In the addresses of style and script, which browsers keep: another version has others.
BUILD: Final = sha256((STYLE + SCRIPT).encode()).hexdigest()[:12]

#: The pages, in the order of the list at the top.
PAGES: Final = {
    "": "Now",
    "deliveries": "Deliveries",
    "dead": "Dead letters",
    "handlers": "Handlers",
    "requests": "Requests",
    "missing": "Missing",
    "doctor": "Doctor",
    "log": "Log",
}


class Viewer(msgspec.Struct, frozen=True, kw_only=True):
    """Who looks, and at what: what every page needs beside its own content."""

    session: Session
    #: What a form has to send back.
    token: str
    #: The ledger in a word or two, without its address.
    ledger: str
    needs_key: bool
    #: The moment that the page shows.
    now_ms: int
    #: Options that a command needs for the same ledger.
    options: str = ""

    @property
    def may_act(self) -> bool:
        """Whether this person may change anything."""
        return self.session.may_act

    @property
    def live_seconds(self) -> int:
        """How often a page that is seen is brought up to date."""
        return BILLED_LIVE_SECONDS if self.ledger == "dynamodb" else LIVE_SECONDS


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """One page: its content, and what the frame says of it."""

    title: str
    #: Of `PAGES`; None for a page that is not in the list.
    name: str | None
    main: str
    #: The commands that show the same.
    commands: tuple[str, ...] = ()
    #: Whether it changes by itself.
    is_live: bool = False


def document(page: Page, viewer: Viewer) -> str:
    """Write a whole page."""
    return "".join(
        (
            _head(page.title, _links_to_files()),
            f'<body data-live="{viewer.live_seconds}">' if page.is_live else "<body>",
            tag("a", "Skip to the content", href="#main", class_="skip"),
            charts.textures(),
            _top(page, viewer),
            tag("main", tag("h1", page.title), Markup(page.main), id="main"),
            _bottom(page, viewer),
            "</body></html>\n",
        )
    )


def plain_document(title: str, main: str) -> str:
    """Write a page for somebody who is not let in: nothing of the ledger is on it."""
    body = tag("main", tag("h1", title), Markup(main), id="main", class_="alone")
    return f'{_head(title, _links_to_files())}<body class="alone">{body}</body></html>\n'


def saved_document(title: str, main: str, about: str) -> str:
    """Write a page as one file, complete in itself."""
    policy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    body = (
        charts.textures(),
        tag("main", tag("h1", title), Markup(main), id="main"),
        tag("footer", tag("p", about)),
    )
    return f"{_head(title, Markup(f'{meta}<style>{STYLE}</style>'))}<body>{''.join(body)}</body></html>\n"


def _head(title: str, links: str) -> str:
    return "".join(
        (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="referrer" content="same-origin"><meta name="robots" content="noindex">',
            '<meta name="color-scheme" content="light dark">',
            tag("title", f"{title} · Oncebridge"),
            links,
            "</head>",
        )
    )


def _links_to_files() -> str:
    return (
        f'<link rel="icon" href="{PREFIX}/icon.svg?{BUILD}"><link rel="stylesheet" href="{PREFIX}/style.css?{BUILD}">'
        f'<script src="{PREFIX}/script.js?{BUILD}" defer></script>'
    )


def _top(page: Page, viewer: Viewer) -> Markup:
    links = [
        tag("a", title, href=f"{PREFIX}/{name}", aria_current="page" if name == page.name else None)
        for name, title in PAGES.items()
    ]
    search = tag(
        "form",
        hidden_token(viewer),
        tag("label", "Find", for_="find", class_="unseen"),
        Markup(
            '<textarea id="find" name="what" rows="1" autocomplete="off" spellcheck="false" required '
            'placeholder="Conversation, user, key, or a pasted event"></textarea>'
        ),
        tag("button", "Find", type="submit"),
        method="post",
        action=f"{PREFIX}/find",
        role="search",
        class_="search",
    )
    leave = (
        tag(
            "form",
            hidden_token(viewer),
            tag("button", "Log out", type="submit"),
            method="post",
            action=f"{PREFIX}/logout",
        )
        if viewer.needs_key
        else Markup()
    )
    who = tag("p", tag("span", f"{viewer.session.who}, {viewer.session.role}", class_="who"), leave, class_="whoami")
    brand = tag("p", tag("b", "Oncebridge"), " ", tag("span", viewer.ledger, class_="quiet"), class_="brandline")
    return tag("header", brand, search, who, tag("nav", *links, aria_label="Pages"), class_="top")


def _bottom(page: Page, viewer: Viewer) -> Markup:
    parts: list[str] = []
    if page.commands:
        written = "\n".join(f"{command}{viewer.options}" for command in page.commands)
        parts.append(tag("p", "The same in a terminal:", class_="quiet"))
        parts.append(to_copy(written, "command"))
    live = (
        f"brought up to date every {viewer.live_seconds} s while you look"
        if page.is_live
        else "as it was then; load it again for news"
    )
    about = f"As of {clock_time(viewer.now_ms)} UTC, {live}. Oncebridge {version('oncebridge')}. "
    # Apart from the time, which a screen reader would read out every few seconds.
    state = tag("span", id="state", role="status", class_="bad")
    parts.append(tag("p", about, state, class_="quiet"))
    return tag("footer", *parts)


# --- pieces ------------------------------------------------------------------------------------------


def hidden_token(viewer: Viewer) -> Markup:
    """Write the field by which a form shows that it is ours."""
    return hidden("token", viewer.token)


def hidden(name: str, value: str) -> Markup:
    """Write a field that is sent along."""
    return tag("input", type="hidden", name=name, value=value)


def field(label: str, name: str, value: str | None, *, type_: str = "text", hint: str | None = None) -> Markup:
    """Write a field with its label."""
    box = tag("input", type=type_, name=name, value=value or "", placeholder=hint, autocomplete="off")
    return tag("label", tag("span", label), box)


def choice(label: str, name: str, value: str | None, options: Mapping[str, str]) -> Markup:
    """Write a list to choose from."""
    written = [
        tag("option", shown, value=option, selected=option == (value or "") or None)
        for option, shown in options.items()
    ]
    return tag("label", tag("span", label), tag("select", *written, name=name))


def checkbox(name: str, value: str, label: str) -> Markup:
    """Write a box to tick, which the label names for those who do not see it."""
    return tag("input", type="checkbox", name=name, value=value, aria_label=label)


def badge(word: str, kind: str | None = None) -> Markup:
    """Write a verdict, a status or a state."""
    return tag("span", word, class_=f"badge b-{kind or word}")


def section(name: str, title: str, *inside: str, lead: str | None = None) -> Markup:
    """Write a part of a page."""
    told = [tag("p", lead, class_="quiet")] if lead else []
    return tag(
        "section", tag("h2", title, id=f"{name}-title"), *told, *inside, id=name, aria_labelledby=f"{name}-title"
    )


def text(value: str | None, *, most: int = TEXT_MAX) -> str:
    """Make a text from outside fit to be shown: on one line, visible, and not endless."""
    shown = visible((value or "")[: most + 1])
    return shown if len(shown) <= most else f"{shown[:most]}…"


def clock_time(ms: int) -> str:
    """Write a time of day in UTC."""
    return _moment(ms, "%H:%M:%S")


def day_time(ms: int) -> str:
    """Write a day and a time in UTC."""
    return _moment(ms, "%Y-%m-%d %H:%M:%S")


def exact_time(ms: int) -> str:
    """Write a day and a time in UTC, with its milliseconds: much happens to an event within a second."""
    return f"{_moment(ms, '%Y-%m-%d %H:%M:%S.%f')}"[: len("2026-01-01 00:00:00.000")]


def _moment(ms: int, form: str) -> str:
    try:
        return f"{datetime.fromtimestamp(ms / 1000, UTC):{form}}"
    except (ValueError, OverflowError, OSError):
        return "beyond the calendar"


def time_of(ms: int | None, now_ms: int) -> Markup:
    """Write a time, with its day if that is another, and how long ago it was."""
    if ms is None:
        return Markup("—")
    same_day = ms // 86_400_000 == now_ms // 86_400_000
    shown = clock_time(ms) if same_day else day_time(ms)
    return tag(
        "time", shown, datetime=f"{day_time(ms).replace(' ', 'T')}Z", title=f"{day_time(ms)} UTC, {ago(ms, now_ms)}"
    )


def ago(ms: int, now_ms: int) -> str:
    """Write how long ago something was."""
    return f"{span(now_ms - ms)} ago" if now_ms >= ms else f"in {span(ms - now_ms)}"


def lag(ms: int | None) -> str:
    """Write how late something came; clocks differ, so it may seem to come early."""
    if ms is None:
        return ""
    return span(ms) if ms >= 0 else f"{span(-ms)} early"


def key_link(key: str | None) -> Markup:
    """Write a key that leads to what is known of it."""
    return tag("a", tag("code", key), href=f"{PREFIX}/event/{key}", class_="key") if key else Markup("—")


def name_of(handler: str) -> str:
    """Write the name of a handler, which may have none."""
    return text(handler) or "(no name)"


def empty(said: str) -> Markup:
    """Say that there is nothing, and why."""
    return tag("p", said, class_="empty")


def next_link(href: str | None, words: str = "Older ones") -> Markup:
    """Lead to the next page, if there is one."""
    return tag("p", tag("a", words, href=href, rel="next")) if href else Markup()


def facts(pairs: Sequence[tuple[str, str]]) -> Markup:
    """Write names with what belongs to each, in a block."""
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", said)) for name, said in pairs), class_="facts")
