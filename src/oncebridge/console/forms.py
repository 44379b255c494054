"""What browsers send to the console: fields of forms and of addresses, bounded and never trusted."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import parse_qsl

from oncebridge.console.answers import Refused
from oncebridge.console.pages.letters import LettersChosen

if TYPE_CHECKING:
    from starlette.requests import Request

FORM_MAX: Final = 1_048_576
FIELDS_MAX: Final = 2000
CURSOR_MAX: Final = 2000

Form: TypeAlias = "dict[str, list[str]]"


def is_own(request: Request) -> bool:
    """Return whether a form was sent from a page of this site, as far as the browser says so."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:  # the browser knows; a proxy may have put another host in place of the one that it asked
        return site in ("same-origin", "none")
    origin = request.headers.get("origin")
    return origin is None or origin.partition("://")[2] == request.headers.get("host", "")


async def read_form(request: Request) -> Form:
    """Read the fields of a form."""
    if not request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Send a form.")
    try:
        # Errors replaced: what is no UTF-8 matches nothing.
        sent = (await _body(request)).decode("ascii", errors="replace")
        pairs = parse_qsl(sent, keep_blank_values=True, max_num_fields=FIELDS_MAX, errors="replace")
    except ValueError:
        raise Refused(HTTPStatus.BAD_REQUEST, "The form has too many fields.") from None
    form: Form = {}
    for name, value in pairs:
        form.setdefault(name, []).append(value)
    return form


async def _body(request: Request) -> bytes:
    from starlette.requests import ClientDisconnect

    parts, length = [], 0
    try:
        async for part in request.stream():
            length += len(part)
            if length > FORM_MAX:
                raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "That is more than a form may hold.")
            parts.append(part)
    except ClientDisconnect:
        # Nobody reads it; but an error would fill the log of everybody who lets a console be reached.
        raise Refused(HTTPStatus.BAD_REQUEST, "The form has not arrived.") from None
    return b"".join(parts)


def one_of(form: Form, name: str) -> str:
    """Return a field; empty where none was sent."""
    return form.get(name, [""])[0]


def cursor_of(request: Request, name: str) -> str | None:
    """Return where a page begins; one that no page of ours has written is refused before a ledger sees it."""
    given = request.query_params.get(name)
    if given is not None and not (len(given) <= CURSOR_MAX and given.isascii() and given.isprintable()):
        raise Refused(HTTPStatus.BAD_REQUEST, "There is no such page: begin at the first one.")
    return given


def chosen_of(form: Form) -> LettersChosen:
    """Return which letters a form is about."""
    return LettersChosen.of({name: values[0] for name, values in form.items()}, form.get("key", ()))
