"""The console over HTTP: its routes, who may use them, and what goes around every answer."""

from __future__ import annotations

import asyncio
import ipaddress
import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import quote

from msgspec.structs import replace

from oncebridge.console.access import COOKIE, KEY_MAX, Access, LoginLimit
from oncebridge.console.answers import (
    HEADERS,
    OutOfReach,
    Refused,
    html,
    page_after_login,
    place_of,
    redirect,
    shown,
    trouble,
)
from oncebridge.console.forms import chosen_of, cursor_of, is_own, one_of, read_form
from oncebridge.console.layout import PREFIX, SCRIPT, STYLE, Viewer
from oncebridge.console.pages.deliveries import deliveries_page, filter_of
from oncebridge.console.pages.entrance import login_page
from oncebridge.console.pages.handlers import handlers_page, pause_page
from oncebridge.console.pages.known import known_page, saved
from oncebridge.console.pages.letters import (
    LettersChosen,
    confirm_page,
    letter_page,
    letters_page,
    request_page,
    requests_page,
)
from oncebridge.console.pages.now import now_page
from oncebridge.console.pages.upkeep import RUNS_SHOWN, doctor_page, log_page, missing_page
from oncebridge.errors import ConfigurationError, LedgerUnavailable, MissingExtra, NothingFound, OncebridgeError
from oncebridge.journal.pauses import called

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute

    from oncebridge.console.access import Session
    from oncebridge.console.forms import Form
    from oncebridge.console.reading import Console
    from oncebridge.telemetry import Telemetry

#: How many pages are read at a time; the rest wait.
AT_ONCE: Final = 4
ICON: Final = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><path fill="#0a56a0" d="M1 12V9a7 7 0 0 1 14 0v3h-3V9'
    'a4 4 0 0 0-8 0v3z"/></svg>'
)
_KEPT: Final = {**HEADERS, "Cache-Control": "public, max-age=31536000, immutable"}
_FILES: Final = {
    "style.css": ("text/css; charset=utf-8", STYLE),
    "script.js": ("text/javascript; charset=utf-8", SCRIPT),
    "icon.svg": ("image/svg+xml", ICON),
}

_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:@/]+)(?::[0-9]*)?", re.ASCII)

#: Answers somebody who was let in; runs in a thread.
Answer: TypeAlias = "Callable[[Request, Viewer, Form], Response]"


class ConsoleRoutes:
    """Answers the requests of the console."""

    def __init__(self, console: Console, telemetry: Telemetry, *, options: str = "", hosts: Sequence[str] = ()) -> None:
        """Take what reads the ledger.

        Args:
            console: Reads, and writes what people decide.

            telemetry: Where unexpected errors are reported.

            options: Options that commands need for the same ledger, for the pages to repeat.

            hosts: Where there are no keys: the names that a browser may know this machine by, beside loopback.

        """
        self._console = console
        self._telemetry = telemetry
        self._options = options
        self._hosts = frozenset(hosts)
        self._access = Access(console.settings.console, console.secret, console.clock)
        self._limit = LoginLimit(console.clock)
        self._places = asyncio.Semaphore(AT_ONCE)
        #: How many pages have found the ledger out of reach.
        self._in_vain = 0

    def routes(self) -> list[BaseRoute]:
        """Return the routes, all under one prefix."""
        try:
            from starlette.routing import Mount, Route, Router
        except ImportError:
            raise MissingExtra("the console needs starlette; install it with: pip install 'oncebridge[http]'") from None
        looks: dict[str, Answer] = {
            "/": self._now,
            "/deliveries": self._deliveries,
            "/about/{at}": self._known,
            "/about/{at}/save": self._save,
            "/event/{at}": self._known,
            "/event/{at}/save": self._save,
            "/dead": self._letters,
            "/dead/{key}": self._letter,
            "/requests": self._requests,
            "/requests/{id}": self._request,
            "/handlers": self._handlers,
            "/missing": self._missing,
            "/doctor": self._doctor,
            "/log": self._log,
        }
        finds: dict[str, Answer] = {"/find": self._find, "/logout": self._logout}
        acts: dict[str, Answer] = {
            "/dead/confirm": self._confirm,
            "/dead/do": self._do,
            "/dead/{key}/payload": self._payload,
            "/requests/{id}/cancel": self._cancel,
            "/handlers/confirm": self._confirm_pause,
            "/handlers/pause": self._pause,
            "/handlers/resume": self._resume,
        }
        inside = [
            *(Route(path, self._for(answer, acts=True), methods=["POST"]) for path, answer in acts.items()),
            *(Route(path, self._for(answer, posts=True), methods=["POST"]) for path, answer in finds.items()),
            *(Route(path, self._for(answer), methods=["GET"]) for path, answer in looks.items()),
            Route("/login", self._login, methods=["GET", "POST"]),
            Route("/{name}", self._file, methods=["GET"]),
        ]
        # A slash too many leads nowhere: starlette would lead to the host that a request has named.
        return [Route(PREFIX, self._to_first), Mount(PREFIX, app=Router(inside, redirect_slashes=False))]

    async def on_other(self, _: Request, error: Exception) -> Response:
        """Answer what has no route, or none for its method."""
        status = HTTPStatus(getattr(error, "status_code", HTTPStatus.NOT_FOUND))
        response = trouble(status, "There is no such page.")
        response.headers.update(getattr(error, "headers", None) or {})
        return response

    async def on_error(self, _: Request, error: Exception) -> Response:
        """Answer where even the frame around the answers has failed."""
        self._telemetry.warn(f"console: unexpected {type(error).__name__} at {place_of(error)}")
        return trouble(HTTPStatus.INTERNAL_SERVER_ERROR, "Something unexpected; the log says where.")

    # --- around every answer ---------------------------------------------------------------------------------

    def _for(
        self, answer: Answer, *, posts: bool = False, acts: bool = False
    ) -> Callable[[Request], Awaitable[Response]]:
        """Make the endpoint of an answer: let people in, look at forms, and say what went wrong."""

        async def endpoint(request: Request) -> Response:
            try:
                self._check_host(request)
                session = self._session(request)
                if session is None:
                    return self._to_login(request)
                form = await read_form(request) if posts or acts else {}
                if posts or acts:
                    self._check_form(request, session, form)
                if acts:
                    _check_role(session)
                response = await self._in_its_turn(answer, request, session, form)
            except Refused as refused:
                return trouble(refused.status, refused.said)
            # Also where there is an old one: of another console on this machine, or of a session that has ended.
            if not self._access.needs_key and self._access.read(request.cookies.get(COOKIE)) is None:
                self._set_cookie(request, response, self._access.cookie(session))
            return response

        return endpoint

    async def _in_its_turn(self, answer: Answer, request: Request, session: Session, form: Form) -> Response:
        """Answer when it has a place; where a page before it has just waited for the ledger in vain, at once."""
        in_vain = self._in_vain
        async with self._places:
            if self._in_vain != in_vain:
                raise OutOfReach
            try:
                return await asyncio.to_thread(self._answered, answer, request, session, form)
            except OutOfReach:
                self._in_vain += 1
                raise

    def _answered(self, answer: Answer, request: Request, session: Session, form: Form) -> Response:
        try:
            if self._access.needs_key and self._console.ended_sessions.has(session):
                return self._to_login(request)
            return answer(request, self._viewer(session), form)
        except NothingFound as error:
            raise Refused(HTTPStatus.NOT_FOUND, f"{error}.") from None
        except LedgerUnavailable as error:
            self._telemetry.warn(f"console: pages are not answered: {error}")
            raise OutOfReach from None
        except ConfigurationError as error:
            raise Refused(HTTPStatus.BAD_REQUEST, f"{error}") from None
        except OncebridgeError as error:
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, f"{error}") from None
        except Refused:
            raise
        except Exception as error:  # noqa: BLE001 - its message may quote what was sent
            self._telemetry.warn(f"console: unexpected {type(error).__name__} at {place_of(error)}")
            raise Refused(HTTPStatus.INTERNAL_SERVER_ERROR, "Something unexpected; the log says where.") from None

    def _viewer(self, session: Session) -> Viewer:
        return Viewer(
            session=session,
            token=self._access.token(session),
            ledger=self._console.ledger_kind,
            needs_key=self._access.needs_key,
            now_ms=self._console.now_ms,
            options=self._options,
        )

    def _session(self, request: Request) -> Session | None:
        found = self._access.read(request.cookies.get(COOKIE))
        return found or (None if self._access.needs_key else self._access.without_key())

    def _check_host(self, request: Request) -> None:
        """Without keys only this machine may look: not a site elsewhere whose name suddenly leads here."""
        # As it was sent: starlette puts the address of this machine in place of a name that it finds odd, such as a_b.
        named = _HOST.fullmatch(request.headers.get("host", "127.0.0.1"))
        host = named[1].strip("[]") if named else ""
        if self._access.needs_key or _is_loopback(host) or host in self._hosts:
            return
        raise Refused(HTTPStatus.FORBIDDEN, "Without keys the console answers at 127.0.0.1 and localhost alone.")

    def _check_form(self, request: Request, session: Session, form: Form) -> None:
        """Refuse what another site has sent in the name of somebody who is logged in here."""
        if not is_own(request) or not self._access.is_token(session, one_of(form, "token")):
            raise Refused(HTTPStatus.FORBIDDEN, "This form is not one of ours, or is too old: load the page again.")

    # --- the entrance ----------------------------------------------------------------------------------------

    async def _to_first(self, _: Request) -> Response:
        return redirect(f"{PREFIX}/")

    def _to_login(self, request: Request) -> Response:
        next_ = quote(request.scope["path"]) if request.method == "GET" else f"{PREFIX}/"
        return redirect(f"{PREFIX}/login?next={quote(next_)}")

    async def _login(self, request: Request) -> Response:
        try:
            self._check_host(request)
            if request.method != "POST":
                return html(login_page(None, page_after_login(request.query_params.get("next"))))
            form = await read_form(request)
        except Refused as refused:
            return trouble(refused.status, refused.said)
        if not is_own(request):
            return trouble(HTTPStatus.FORBIDDEN, "Log in on the page itself.")
        peer = request.client.host if request.client else ""
        next_ = page_after_login(one_of(form, "next"))
        wait = self._limit.wait_seconds(peer)
        if wait:
            said = f"Too many wrong keys; try again in {wait} seconds."
            return html(login_page(said, next_), HTTPStatus.TOO_MANY_REQUESTS, {"Retry-After": str(wait)})
        session = self._access.login(one_of(form, "key")[:KEY_MAX].strip())
        if session is None:
            self._limit.note_wrong(peer)
            self._telemetry.warn("console: somebody gave a wrong key")
            return html(login_page("That is none of the keys.", next_), HTTPStatus.FORBIDDEN)
        response = redirect(next_)
        self._set_cookie(request, response, self._access.cookie(session))
        await asyncio.to_thread(self._log_login, session)
        return response

    def _log_login(self, session: Session) -> None:
        try:
            self._console.log(session.who, "login", session.role, "let in")
        except OncebridgeError as error:
            self._telemetry.warn(f"console: the log is not written: {error}")

    def _set_cookie(self, request: Request, response: Response, value: str) -> None:
        is_safe = request.url.scheme == "https" or request.headers.get("x-forwarded-proto") == "https"
        response.set_cookie(COOKIE, value, path=PREFIX, secure=is_safe, httponly=True, samesite="strict")

    def _logout(self, _: Request, viewer: Viewer, __: Form) -> Response:
        try:
            self._console.ended_sessions.end(viewer.session)
        except LedgerUnavailable as error:  # the browser forgets it all the same
            self._telemetry.warn(f"console: a logout is not written, so a copy of its cookie goes on: {error}")
        response = redirect(f"{PREFIX}/login")
        response.delete_cookie(COOKIE, path=PREFIX)
        return response

    async def _file(self, request: Request) -> Response:
        from starlette.responses import Response

        found = _FILES.get(request.path_params["name"])
        if found is None:
            return trouble(HTTPStatus.NOT_FOUND, "There is no such page.")
        return Response(found[1], media_type=found[0], headers=_KEPT)

    # --- looking ---------------------------------------------------------------------------------------------

    def _now(self, _: Request, viewer: Viewer, __: Form) -> Response:
        console = self._console
        return shown(now_page(console.overview(), console.latest(), console.letter_groups(), viewer), viewer)

    def _deliveries(self, request: Request, viewer: Viewer, _: Form) -> Response:
        chosen, below = filter_of(request.query_params), cursor_of(request, "below")
        found, next_ = self._console.deliveries(chosen, below)
        return shown(deliveries_page(found, next_, chosen, viewer, is_first=below is None), viewer)

    def _find(self, _: Request, __: Viewer, form: Form) -> Response:
        what = one_of(form, "what").strip()
        return redirect(f"{PREFIX}/{self._console.place_of(what)}" if what else f"{PREFIX}/")

    def _known(self, request: Request, viewer: Viewer, _: Form) -> Response:
        return shown(known_page(self._read_known(request)), viewer)

    def _save(self, request: Request, viewer: Viewer, _: Form) -> Response:
        response = html(saved(self._read_known(request), viewer))
        name = f"oncebridge-{request.path_params['at'][:12]}-{viewer.now_ms // 1000}.html"
        safe = "".join(letter for letter in name if letter.isalnum() or letter in "-_.")
        response.headers["Content-Disposition"] = f'attachment; filename="{safe}"'
        return response

    def _read_known(self, request: Request) -> Any:
        at = request.path_params["at"]
        is_subject = request.url.path.startswith(f"{PREFIX}/about/")
        return self._console.about_subject(at) if is_subject else self._console.about_keys(at)

    def _letters(self, request: Request, viewer: Viewer, _: Form) -> Response:
        chosen, after = LettersChosen.of(request.query_params), cursor_of(request, "after")
        found = self._console.letter_page(chosen, after)
        groups = self._console.letter_groups() if after is None else None
        page = letters_page(found, groups, chosen, viewer, is_first=after is None)
        return shown(page, viewer)

    def _letter(self, request: Request, viewer: Viewer, _: Form) -> Response:
        return self._one_letter(request, viewer, with_payload=False)

    def _one_letter(self, request: Request, viewer: Viewer, *, with_payload: bool) -> Response:
        letters = self._console.letter(request.path_params["key"])
        if not letters:
            return redirect(f"{PREFIX}/event/{quote(request.path_params['key'])}")
        if with_payload:
            # Written first: what is shown and not logged cannot be taken back.
            self._console.log(viewer.session.who, "show", letters[0].key, "payload and error shown")
        return shown(letter_page(letters, viewer, with_payload=with_payload), viewer)

    def _requests(self, _: Request, viewer: Viewer, __: Form) -> Response:
        return shown(requests_page(self._console.requests.latest(), viewer), viewer)

    def _request(self, request: Request, viewer: Viewer, _: Form) -> Response:
        found = self._console.requests.get(request.path_params["id"])
        if found is None:
            raise Refused(HTTPStatus.NOT_FOUND, "There is no such request, or it is too old.")
        return shown(request_page(found, self._console.takers(found), viewer), viewer)

    def _handlers(self, _: Request, viewer: Viewer, __: Form) -> Response:
        return shown(handlers_page(self._console.overview(), viewer), viewer)

    def _missing(self, request: Request, viewer: Viewer, _: Form) -> Response:
        return shown(missing_page(self._console.runs.latest(RUNS_SHOWN), request.query_params.get("run")), viewer)

    def _doctor(self, _: Request, viewer: Viewer, __: Form) -> Response:
        return shown(doctor_page(self._console.examined()), viewer)

    def _log(self, request: Request, viewer: Viewer, _: Form) -> Response:
        return shown(log_page(*self._console.actions.read(below=cursor_of(request, "below")), viewer), viewer)

    # --- acting ----------------------------------------------------------------------------------------------

    def _confirm(self, _: Request, viewer: Viewer, form: Form) -> Response:
        what, _dash, which = one_of(form, "what").partition("-")
        chosen = chosen_of(form)
        if which == "chosen" and not chosen.keys:
            raise Refused(HTTPStatus.BAD_REQUEST, "No letter was chosen: tick some first.")
        # Either those that are ticked, or all that match: never a mixture.
        chosen = LettersChosen(keys=chosen.keys) if which == "chosen" else replace(chosen, keys=())
        plan = self._console.plan(_what(what), chosen)
        if not plan.number:
            raise Refused(HTTPStatus.NOT_FOUND, "No dead letter matches any more.")
        return shown(confirm_page(plan, viewer), viewer)

    def _do(self, _: Request, viewer: Viewer, form: Form) -> Response:
        expected = one_of(form, "expected")
        request = self._console.ask(
            _what(one_of(form, "what")),
            chosen_of(form),
            viewer.session.who,
            id_=one_of(form, "id"),
            force=one_of(form, "force") == "1",
            expected=int(expected) if expected.isdecimal() and len(expected) < 12 else None,  # noqa: PLR2004 - no ledger has more
        )
        return redirect(f"{PREFIX}/requests/{request.id}")

    def _payload(self, request: Request, viewer: Viewer, _: Form) -> Response:
        return self._one_letter(request, viewer, with_payload=True)

    def _cancel(self, request: Request, viewer: Viewer, _: Form) -> Response:
        found = self._console.requests.cancel(request.path_params["id"])
        if found is not None:
            self._console.log(viewer.session.who, "cancel", found.about, found.said)
        return redirect(f"{PREFIX}/requests/{quote(request.path_params['id'])}")

    def _confirm_pause(self, _: Request, viewer: Viewer, form: Form) -> Response:
        name = one_of(form, "handler")
        row = next((row for row in self._console.overview().handlers if row.name == name), None)
        return shown(pause_page(row, name, viewer), viewer)

    def _pause(self, _: Request, viewer: Viewer, form: Form) -> Response:
        name = one_of(form, "handler")
        was = name in self._console.pauses.read()
        self._console.pauses.pause(name, viewer.session.who)
        self._console.log(viewer.session.who, "pause", called(name), "was paused before" if was else "paused")
        return redirect(f"{PREFIX}/handlers")

    def _resume(self, _: Request, viewer: Viewer, form: Form) -> Response:
        name = one_of(form, "handler")
        was = self._console.pauses.resume(name, viewer.session.who)
        said = "resumed" if was else "was not paused"
        self._console.log(viewer.session.who, "resume", called(name), said)
        return redirect(f"{PREFIX}/handlers")


# --- requests and answers --------------------------------------------------------------------------------


def _check_role(session: Session) -> None:
    if not session.may_act:
        raise Refused(HTTPStatus.FORBIDDEN, "Your key lets you look, and not act; ask an operator.")


def _what(word: str) -> str:
    if word not in ("redrive", "discard"):
        raise Refused(HTTPStatus.BAD_REQUEST, "Redrive or discard, nothing else.")
    return word


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
