"""Answers of the console, with the headers that all of them have."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from oncebridge.console.layout import PREFIX, Page, Viewer, document, text
from oncebridge.console.pages.entrance import trouble_page

if TYPE_CHECKING:
    from starlette.responses import Response

#: No script or style but ours, no frame, no request to anywhere else, and nothing is kept by the browser.
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "Cache-Control": "no-store",
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    # Not no-referrer: with it browsers hide where a form comes from, and forms that do not say so are refused.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}

#: Where a login may lead; as in an address, where everything else is written with %.
_OURS: Final = re.compile(rf"{PREFIX}(/(?!\.{{1,2}}(?:/|\Z))[A-Za-z0-9%_.,~-]+)*/?", re.ASCII)


class Refused(Exception):
    """A request is not answered as it was meant."""

    def __init__(self, status: HTTPStatus, said: str) -> None:
        """Take what to say."""
        super().__init__(said)
        self.status, self.said = status, said


class OutOfReach(Refused):
    """A page cannot be answered, since its ledger does not answer."""

    def __init__(self) -> None:
        """Name no server: only the log may."""
        said = "The ledger is out of reach; nothing is known meanwhile. The log of this process says more."
        super().__init__(HTTPStatus.SERVICE_UNAVAILABLE, said)


def shown(page: Page, viewer: Viewer) -> Response:
    """Answer with a page."""
    return html(document(page, viewer))


def html(written: str, status: HTTPStatus = HTTPStatus.OK, headers: dict[str, str] | None = None) -> Response:
    """Answer with HTML."""
    from starlette.responses import Response

    # Texts from outside may hold halves of surrogate pairs, which are no UTF-8.
    body = written.encode("utf-8", errors="replace")
    return Response(body, status.value, {**HEADERS, **(headers or {})}, media_type="text/html; charset=utf-8")


def redirect(to: str) -> Response:
    """Lead to another page."""
    from starlette.responses import Response

    return Response(b"", HTTPStatus.SEE_OTHER.value, {**HEADERS, "Location": to})


def page_after_login(path: str | None) -> str:
    """Return where to go after the login: a page of ours, and nowhere else."""
    # Browsers take %2e for a dot, and two dots would lead out of the console.
    is_ours = path is not None and _OURS.fullmatch(re.sub("(?i)%2e", ".", path))
    return path if path is not None and is_ours else f"{PREFIX}/"


def trouble(status: HTTPStatus, said: str) -> Response:
    """Say what went wrong."""
    return html(trouble_page(status.phrase, text(said)), status)


def place_of(error: BaseException) -> str:
    """Return the file and line of an error."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return "?" if last is None else f"{last.tb_frame.f_code.co_filename.rsplit('/', 1)[-1]}:{last.tb_lineno}"
