"""Dead letters: how many of what, each by itself, and what can be done with them."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

import msgspec

from oncebridge.console.layout import (
    COMMAND_MAX,
    PREFIX,
    TEXT_MAX,
    Page,
    Viewer,
    badge,
    checkbox,
    empty,
    facts,
    field,
    hidden,
    hidden_token,
    key_link,
    name_of,
    next_link,
    section,
    text,
    time_of,
)
from oncebridge.identity import key_text
from oncebridge.journal.requests import LEASE_MS, group_name
from oncebridge.markup import Cell, Column, Markup, joined, table, tag, topic
from oncebridge.quantities import count, counted, size, span
from oncebridge.visible import visible_lines

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from oncebridge.deadletters import DeadLetter
    from oncebridge.journal.requests import Request
    from oncebridge.ledgers.protocol import Entry, LetterGroup, LetterGroups, LetterPage

SHOWN: Final = 50
GROUPS_SHOWN: Final = 50
KEYS_IN_COMMAND: Final = 20
PAYLOAD_MAX: Final = 262_144
#: A worker writes every few seconds how far it is with a request; one that has not for so long may be dead.
SILENT_MS: Final = 12_000
#: The value of the field for the handler without a name: an empty field matches any.
NAMELESS: Final = "(no name)"


class LettersChosen(msgspec.Struct, frozen=True, kw_only=True):
    """Which letters are meant: those of these keys, or all that match; what is empty matches everything."""

    keys: tuple[str, ...] = ()
    handler: str = ""
    topic: str = ""
    reason: str = ""
    since: str = ""
    until: str = ""
    #: The name of one group: only letters whose handler, reason and topic are just these.
    group: str = ""

    @classmethod
    def of(cls, given: Mapping[str, str], keys: Sequence[str] = ()) -> LettersChosen:
        """Read what a form or an address has chosen."""
        names = [name for name in cls.__struct_fields__ if name != "keys"]
        return cls(keys=tuple(keys), **{name: given.get(name, "").strip()[:TEXT_MAX] for name in names})

    @property
    def fields(self) -> dict[str, str]:
        """The filters that are set."""
        given = {name: getattr(self, name) for name in ("handler", "topic", "reason", "since", "until")}
        return {name: value for name, value in given.items() if value}

    @property
    def handler_name(self) -> str | None:
        """The handler's name; None for any."""
        return None if not self.handler else "" if self.handler == NAMELESS else self.handler

    @property
    def words(self) -> str:
        """Say in words which are meant."""
        if self.keys:
            return counted(len(self.keys), "chosen letter")
        said = ", ".join(f"{name} {value}" for name, value in self.fields.items())
        every = "every letter of the group with" if self.group else "every letter with"
        return f"{every} {said}" if said else "every dead letter"

    def query(self, **more: str) -> str:
        """Write the filters into an address."""
        return urlencode({**self.fields, **more})


# --- the list ----------------------------------------------------------------------------------------


def letters_page(
    found: LetterPage, groups: LetterGroups | None, chosen: LettersChosen, viewer: Viewer, *, is_first: bool
) -> Page:
    """Write the page; groups stand on the first one alone."""
    main = joined((_groups(groups, viewer) if groups is not None else Markup(), _list(found, chosen, viewer)))
    options = "".join(f" --{name} {quote(value)}" for name, value in chosen.fields.items() if name != "handler")
    commands = ("oncebridge dead list --counts", text(f"oncebridge dead list{options}", most=COMMAND_MAX))
    return Page(title="Dead letters", name="dead", main=main, commands=commands, is_live=is_first)


def _groups(groups: LetterGroups, viewer: Viewer) -> Markup:
    if not groups.groups:
        return Markup()
    columns = (
        Column("reason"),
        Column("topic"),
        Column("handler"),
        Column("letters", is_number=True),
        Column("act", is_unseen=True),
    )
    rows = [(None, _group_cells(group, viewer)) for group in groups.groups[:GROUPS_SHOWN]]
    lead = counted(groups.total, "dead letter")
    if not groups.complete or len(groups.groups) > GROUPS_SHOWN:
        lead += (
            "; the most frequent kinds are shown" if groups.complete else "; not all of them could be counted at once"
        )
    return section("groups", "By reason and topic", table("The most frequent first", columns, rows), lead=f"{lead}.")


def _group_cells(group: LetterGroup, viewer: Viewer) -> list[Cell]:
    name = group_name(group.handler, group.reason, group.topic)
    chosen = LettersChosen(handler=group.handler or NAMELESS, topic=group.topic, reason=group.reason, group=name)
    link = tag("a", text(group.reason) or "(no reason)", href=f"{PREFIX}/dead?{chosen.query()}#letters")
    return [
        Cell(link, class_="wide"),
        Cell(topic(text(group.topic)) if group.topic else "unreadable"),
        Cell(name_of(group.handler)),
        Cell(count(group.number), group.number),
        Cell(_act_on(chosen, viewer)),
    ]


def _hidden_fields(chosen: LettersChosen) -> list[Markup]:
    """Write what a form has to send to choose the same letters."""
    group = [hidden("group", chosen.group)] if chosen.group else []
    return [*(hidden(name, value) for name, value in chosen.fields.items()), *group]


def _act_on(chosen: LettersChosen, viewer: Viewer) -> Markup:
    if not viewer.may_act:
        return Markup()
    buttons = [
        tag("button", shown, type="submit", name="what", value=what, class_=class_)
        for what, shown, class_ in (("redrive", "Redrive", None), ("discard", "Discard", "danger"))
    ]
    return tag(
        "form",
        hidden_token(viewer),
        *_hidden_fields(chosen),
        *buttons,
        method="post",
        action=f"{PREFIX}/dead/confirm",
        class_="inline",
    )


def _list(found: LetterPage, chosen: LettersChosen, viewer: Viewer) -> Markup:
    older = None if found.next is None else f"{PREFIX}/dead?{chosen.query(after=found.next)}#letters"
    filters = tag(
        "form",
        field("Topic", "topic", chosen.topic, hint="v2.users.{id}.presence"),
        field("Reason has", "reason", chosen.reason),
        field("Handler", "handler", chosen.handler),
        field("Since", "since", chosen.since, hint="2h, 3d"),
        field("Until", "until", chosen.until, hint="30m"),
        tag("button", "Show", type="submit"),
        method="get",
        action=f"{PREFIX}/dead",
        class_="filters",
    )
    if not found.entries:
        nothing = "No dead letter matches." if chosen.fields else "There are no dead letters."
        more = (
            f" Some were looked through; there are {'older ones' if found.newest_first else 'more'}." if older else ""
        )
        return section("letters", "Letters", filters, empty(nothing + more), next_link(older, "Look further"))
    columns = (
        *((Column("choose", is_unseen=True),) if viewer.may_act else ()),
        *(Column(name) for name in ("key", "reason", "topic", "handler", "since")),
        Column("attempts", is_number=True),
        Column("status"),
    )
    rows = [(None, _letter_cells(entry, viewer)) for entry in found.entries]
    order = "The newest first" if found.newest_first else "Some of them: this ledger keeps letters in no order"
    shown = table(order, columns, rows)
    if viewer.may_act:
        shown = _with_actions(shown, chosen, viewer)
    words = "Older ones" if found.newest_first else "More of them"
    return section("letters", "Letters", filters, shown, next_link(older, words))


def _letter_cells(entry: Entry, viewer: Viewer) -> list[Cell]:
    key = key_text(entry.key)
    link = tag("a", tag("code", key), href=f"{PREFIX}/dead/{key}", class_="key")
    cells = [
        Cell(link),
        Cell(text(entry.reason), class_="wide"),
        Cell(topic(text(entry.topic)) if entry.topic else "unreadable"),
        Cell(name_of(entry.handler)),
        Cell(time_of(entry.changed_us // 1000, viewer.now_ms)),
        Cell(count(entry.attempts), entry.attempts),
        Cell(badge(entry.status.value)),
    ]
    return [Cell(checkbox("key", key, f"Choose {key}")), *cells] if viewer.may_act else cells


def _with_actions(shown: Markup, chosen: LettersChosen, viewer: Viewer) -> Markup:
    actions = (
        ("redrive-chosen", "Redrive the chosen", None),
        ("discard-chosen", "Discard the chosen", "danger"),
        ("redrive", "Redrive all that match", None),
        ("discard", "Discard all that match", "danger"),
    )
    buttons = [
        tag("button", words, type="submit", name="what", value=what, class_=class_) for what, words, class_ in actions
    ]
    bar = tag("p", *buttons, class_="actions")
    fields = _hidden_fields(chosen)
    return tag("form", hidden_token(viewer), *fields, shown, bar, method="post", action=f"{PREFIX}/dead/confirm")


# --- a question before anything happens ----------------------------------------------------------------


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a person is about to do, and whether anybody will do it."""

    what: str
    chosen: LettersChosen
    #: How many letters it is about; at least so many if it could not be counted at once.
    number: int
    is_exact: bool
    #: By handler: the workers that take requests for it.
    workers: Mapping[str, int]
    request_id: str


def confirm_page(plan: Plan, viewer: Viewer) -> Page:
    """Ask before anything happens, with the number."""
    number = f"{'' if plan.is_exact else 'at least '}{counted(plan.number, 'dead letter')}"
    is_discard = plan.what == "discard"
    does = (
        "Their content is erased, and the events are not processed again. This cannot be undone."
        if is_discard
        else "Each is given to its handler once more, under its own key, the oldest first, with attempts from zero. "
        "What was done meanwhile is not done again."
    )
    form = tag(
        "form",
        hidden_token(viewer),
        hidden("what", plan.what),
        hidden("id", plan.request_id),
        hidden("expected", str(plan.number)),
        *_hidden_fields(plan.chosen),
        *(hidden("key", key) for key in plan.chosen.keys),
        *(
            []
            if is_discard
            else [tag("label", checkbox("force", "1", "Force"), " even if it is an echo or stale by now")]
        ),
        tag(
            "p",
            tag(
                "button", f"{plan.what.capitalize()} {number}", type="submit", class_="danger" if is_discard else "main"
            ),
            " ",
            tag("a", "No, go back", href=f"{PREFIX}/dead"),
            class_="actions",
        ),
        method="post",
        action=f"{PREFIX}/dead/do",
    )
    lead = tag("p", f"{plan.what.capitalize()} {number}: {text(plan.chosen.words)}?", class_="lead")
    taken = Markup() if is_discard else _takers(plan.workers)
    main = joined((lead, tag("p", does), taken, form))
    return Page(title=f"{plan.what.capitalize()}?", name="dead", main=main, commands=_commands(plan))


def _commands(plan: Plan) -> tuple[str, ...]:
    """Write the command that does the same, if there is one: none acts on the letters of one handler alone."""
    keys, fields = plan.chosen.keys, plan.chosen.fields
    if "handler" in fields or len(keys) > KEYS_IN_COMMAND:
        return ()
    options = "".join(f" --{name} {quote(value)}" for name, value in fields.items())
    which = "".join(f" {quote(key)}" for key in keys) or options or " --all"
    to = " --handler MODULE:BRIDGE" if plan.what == "redrive" else ""
    return (text(f"oncebridge dead {plan.what}{which}{to}", most=COMMAND_MAX),)


def _takers(workers: Mapping[str, int]) -> Markup:
    """Say who will redrive, for each handler."""
    items = [
        tag("li", tag("b", name_of(name)), f": {counted(number, 'running worker has', 'running workers have')} it.")
        if number
        else tag(
            "li", tag("b", name_of(name)), ": no running worker that takes requests has it; the request waits for one."
        )
        for name, number in workers.items()
    ]
    return tag("ul", *items, class_="alerts" if not all(workers.values()) else None)


# --- one letter ------------------------------------------------------------------------------------------


def letter_page(letters: Sequence[DeadLetter], viewer: Viewer, *, with_payload: bool) -> Page:
    """Write one letter in full; its payload only on request."""
    key = letters[0].key
    parts = [_letter(letter, viewer, with_payload=with_payload) for letter in letters]
    if viewer.may_act:
        parts.append(_actions_on_one(key, viewer, with_payload=with_payload))
    elif not with_payload:
        parts.append(tag("p", "Payloads are shown to operators alone.", class_="quiet"))
    commands = (f"oncebridge dead show {key}", f"oncebridge dead redrive {key}", f"oncebridge dead discard {key}")
    return Page(title="One dead letter", name="dead", main=joined(parts), commands=commands)


def _letter(letter: DeadLetter, viewer: Viewer, *, with_payload: bool) -> Markup:
    told = [
        ("key", key_link(letter.key)),
        ("status", badge(letter.status.value)),
        ("reason", text(letter.reason)),
        ("topic", topic(text(letter.topic)) if letter.topic else "unreadable"),
        ("handler", name_of(letter.handler)),
        ("attempts", count(letter.attempts)),
        ("event time", time_of(letter.time_ms, viewer.now_ms)),
        ("since", time_of(letter.changed_ms, viewer.now_ms)),
        ("envelope", text(letter.envelope_id) or "—"),
        ("payload", f"{size(len(letter.raw or b''))}, not shown" if not with_payload else size(len(letter.raw or b""))),
    ]
    parts: list[str] = [facts(told)]
    if with_payload:
        if letter.detail:
            parts.append(section("error", "The error", tag("pre", visible_lines(letter.detail[:PAYLOAD_MAX]))))
        parts.append(section("payload", "The payload", tag("pre", _payload(letter.raw or b""))))
    return joined(parts)


def _payload(raw: bytes) -> str:
    shown = visible_lines(raw[:PAYLOAD_MAX].decode(errors="backslashreplace"))
    return (
        shown
        if len(raw) <= PAYLOAD_MAX
        else f"{shown}\n… {size(len(raw) - PAYLOAD_MAX)} more; oncebridge dead show has all"
    )


def _actions_on_one(key: str, viewer: Viewer, *, with_payload: bool) -> Markup:
    act = tag(
        "form",
        hidden_token(viewer),
        hidden("key", key),
        tag("button", "Redrive", type="submit", name="what", value="redrive-chosen"),
        tag("button", "Discard", type="submit", name="what", value="discard-chosen", class_="danger"),
        method="post",
        action=f"{PREFIX}/dead/confirm",
        class_="inline",
    )
    show = tag(
        "form",
        hidden_token(viewer),
        tag("button", "Show payload and error", type="submit"),
        tag("span", " Personal data may be in them; that you looked is written into the log.", class_="quiet"),
        method="post",
        action=f"{PREFIX}/dead/{key}/payload",
    )
    return joined((act, Markup() if with_payload else show))


# --- requests --------------------------------------------------------------------------------------------


def requests_page(requests: Sequence[Request], viewer: Viewer) -> Page:
    """List what was asked for, the newest first."""
    if not requests:
        main = empty("Nobody has asked for a redrive or a discard here lately.")
    else:
        columns = (
            *(Column(name) for name in ("asked", "by", "what", "about", "state")),
            Column("tried", is_number=True),
            Column("came of it"),
        )
        rows = [(None, _request_cells(one, viewer)) for one in requests]
        main = table("The newest first", columns, rows)
    return Page(title="Requests", name="requests", main=main, commands=("oncebridge log",), is_live=True)


def _request_cells(one: Request, viewer: Viewer) -> list[Cell]:
    return [
        Cell(tag("a", time_of(one.at_ms, viewer.now_ms), href=f"{PREFIX}/requests/{one.id}")),
        Cell(text(one.who)),
        Cell(one.what),
        Cell(text(one.about), class_="wide"),
        Cell(badge(one.state)),
        Cell(count(one.tried), one.tried),
        Cell(text(one.said) if one.tried or one.has_ended else ""),
    ]


def request_page(one: Request, takers: int, viewer: Viewer) -> Page:
    """Show how far a request is, and what came of each letter."""
    return Page(
        title=f"{one.what.capitalize()} of {text(one.about, most=80)}",
        name="requests",
        main=joined((_state(one, takers, viewer), _progress(one), _items(one))),
        commands=("oncebridge log",),
        is_live=not one.has_ended,
    )


def _state(one: Request, takers: int, viewer: Viewer) -> Markup:
    told = [
        ("state", badge(one.state)),
        ("letters", text(one.about)),
        ("asked", joined((time_of(one.at_ms, viewer.now_ms), f" by {text(one.who)}"))),
        ("worker", _worker(one, viewer)),
        ("came of it", text(one.said) if one.tried or one.has_ended else "nothing yet"),
        *([("ended", time_of(one.ended_ms, viewer.now_ms))] if one.ended_ms else []),
    ]
    parts: list[str] = [facts(told)]
    if one.left:
        names = ", ".join(name_of(name) for name in one.left)
        parts.append(
            tag("p", f"Letters of {names} are left: no worker that took the request has these handlers.", class_="bad")
        )
    if one.deaths:
        who = counted(one.deaths, "worker that had it fell silent", "workers that had it fell silent")
        said = f"{who}: what was done in the seconds before is done, and not in these numbers."
        parts.append(tag("p", said, class_="quiet"))
    if one.state == "waiting" and not takers:
        parts.append(
            tag(
                "p",
                "No running worker takes it: start a worker that has the handler (consume or serve; Lambda functions "
                "take no requests), or redrive with: oncebridge dead redrive --handler MODULE:NAME",
                class_="bad",
                role="alert",
            )
        )
    if viewer.may_act and not one.has_ended:
        parts.append(
            tag(
                "form",
                hidden_token(viewer),
                tag("button", "Cancel the rest", type="submit"),
                method="post",
                action=f"{PREFIX}/requests/{one.id}/cancel",
            )
        )
    return joined(parts)


def _worker(one: Request, viewer: Viewer) -> str:
    if not one.worker:
        return "none yet"
    silent_ms = 0 if one.heard_ms is None else viewer.now_ms - one.heard_ms
    silent = f"; silent for {span(silent_ms)}, another one takes over after {span(LEASE_MS)}"
    return f"{text(one.worker)}{silent if silent_ms >= SILENT_MS else ''}"


def _progress(one: Request) -> Markup:
    if not one.expected:
        return Markup()
    done = min(one.tried, one.expected)
    bar = tag("progress", value=str(done), max=str(one.expected), aria_label="Letters tried")
    return tag("p", bar, f" {count(done)} of {count(one.expected)}", class_="progress")


def _items(one: Request) -> Markup:
    if not one.items:
        return Markup()
    columns = (Column("letter"), Column("handler"), Column("verdict"), Column("outcome"), Column("why"))
    rows = [
        (
            None,
            [
                Cell(key_link(item.key)),
                Cell(name_of(item.handler)),
                Cell(text(item.verdict)),
                Cell(badge(text(item.outcome, most=20)) if item.outcome else ""),
                Cell(text(item.reason), class_="wide"),
            ],
        )
        for item in reversed(one.items)
    ]
    return section("items", "Letter by letter", table("The latest of them first", columns, rows))
