"""Forms: only our own, only from those who may act, and nothing else changes anything."""

import pytest

from console.visiting import FORM, KEYS, OPERATOR, READER, Place
from oncebridge.console import forms
from oncebridge.identity import subject_digest
from oncebridge.ledgers.memory import MemoryLedger

#: Fields with which each acting route does something; one that is missing here fails a test.
ACTS = {
    "/dead/confirm": {"what": "discard"},
    "/dead/do": {"what": "discard", "id": "00000000000001-0123456789ab"},
    "/dead/{key}/payload": {},
    "/requests/{id}/cancel": {},
    "/handlers/confirm": {"handler": "crm"},
    "/handlers/pause": {"handler": "crm"},
    "/handlers/resume": {"handler": "paused"},
}
#: Posts that change nothing in the ledger.
HARMLESS = {"/find": {"what": "call-31"}, "/logout": {}}
OPEN_TO_ALL = {"/login", "/{name}"}


class Filled:
    """A console with something for every route."""

    def __init__(self):
        """Fill the ledger."""
        self.place = Place(MemoryLedger(), **KEYS)
        (self.key,) = self.place.letters(1)
        console = self.place.console
        console.pauses.pause("paused", "anna")
        self.request = console.requests.put("redrive", "anna", handler="gone").id
        digest = subject_digest(console.secret, "e-0").hex()
        self.values = {"key": self.key, "id": self.request, "at": digest}

    def path(self, route):
        """Fill in what a route's address needs."""
        values = {**self.values, "at": self.key} if route.startswith("/event") else self.values
        return route.format(**values)

    def state(self):
        """Return all that forms could change."""
        console = self.place.console
        requests = [(one.id, one.state) for one in console.requests.latest()]
        logged = [one for one in console.actions.read()[0] if one.what != "login"]
        return requests, console.pauses.read(), logged, console.letter_groups().total


def routes():
    """Return the routes of the console as it is served: path and methods."""
    place = Place(MemoryLedger(), **KEYS)
    try:
        _, mounted = place.application._opened().routes
        return [(route.path, route.methods - {"HEAD"}) for route in mounted.routes]
    finally:
        place.close()


ROUTES = routes()
POSTS = [path for path, methods in ROUTES if "POST" in methods and path not in OPEN_TO_ALL]
LOOKS = [path for path, methods in ROUTES if "GET" in methods and path not in OPEN_TO_ALL]


@pytest.fixture(scope="module")
def filled_once():
    """Return a console that tests leave as it is."""
    filled = Filled()
    yield filled
    filled.place.close()


@pytest.fixture
def filled(filled_once):
    """Return a console in which nothing may change."""
    before = filled_once.state()
    yield filled_once
    assert filled_once.state() == before


@pytest.fixture
def changing():
    """Return a console in which something may change."""
    filled = Filled()
    yield filled
    filled.place.close()


def fields(path):
    """Return what a form sends there."""
    return {**ACTS, **HARMLESS}[path]


def test_every_route_is_tested():
    """A route that posts is either tried here with fields that change something, or known to change nothing."""
    assert set(POSTS) == {*ACTS, *HARMLESS}
    assert not {path for path, methods in ROUTES if methods - {"GET", "POST"}}
    assert not {path for path, methods in ROUTES if methods == {"GET", "POST"}} - OPEN_TO_ALL


@pytest.mark.parametrize("path", ACTS)
def test_an_operator_may_act(changing, path):
    """What the tests below send without a right, or without a token, does something where both are given."""
    person = changing.place.person(OPERATOR)
    answered = person.submit(changing.path(path), fields(path))
    assert answered.status in (200, 303), answered
    before = Filled.state(changing)
    if not path.endswith("/confirm"):
        assert before[2], "nothing was logged"


@pytest.mark.parametrize("path", LOOKS)
def test_a_reader_may_look_at_every_page(filled, path):
    """No page is hidden from somebody with a reader's key, and none offers a form that acts."""
    answered = filled.place.person(READER).get(filled.path(path))
    assert answered.status == 200
    page = answered.body.decode()
    assert [to for to in ACTS if f'action="/console{to}"' in page] == []
    assert "/payload" not in page
    assert "/cancel" not in page


@pytest.mark.parametrize("path", ACTS)
def test_a_reader_may_not_act(filled, path):
    """With a token of their own and every field right, a reader changes nothing, and sees no payload."""
    answered = filled.place.person(READER).submit(filled.path(path), fields(path))
    assert answered.status == 403
    assert "ask an operator" in answered.body.decode()


@pytest.mark.parametrize("path", [*LOOKS, *POSTS])
def test_nobody_sees_or_does_anything_without_a_login(filled, path):
    """Whoever has no session is led to the login, and nothing of the ledger is in the answer."""
    person = filled.place.person()
    asks = person.get if path in LOOKS else person.post
    answered = asks(filled.path(path))
    assert answered.status == 303
    assert answered.headers["location"].startswith("/console/login?next=/console/")
    assert answered.body == b""


WITHOUT = {
    "no token": {},
    "an empty token": {"token": ""},
    "a wrong token": {"token": "A" * 43},
    "a token that is no ASCII": {"token": "é€\U0001f600"},
}


@pytest.mark.parametrize("token", WITHOUT)
@pytest.mark.parametrize("path", POSTS)
def test_a_form_without_its_token_is_refused(filled, path, token):
    """An operator's browser that sends a form of another site's making changes nothing."""
    person = filled.place.person(OPERATOR)
    answered = person.post(filled.path(path), {**fields(path), **WITHOUT[token]})
    assert answered.status == 403
    assert person.get("/").status == 200


@pytest.mark.parametrize("path", POSTS)
def test_the_token_of_another_session_is_refused(filled, path):
    """Whoever may look cannot lend an operator a token."""
    other, person = filled.place.person(OPERATOR).token(), filled.place.person(OPERATOR)
    assert person.post(filled.path(path), {**fields(path), "token": other}).status == 403


FROM_ELSEWHERE = {
    "cross-site": {"Sec_Fetch_Site": "cross-site"},
    "same-site": {"Sec_Fetch_Site": "same-site"},
    "another origin": {"Origin": "https://evil.example"},
    "an opaque origin": {"Origin": "null"},
    "another port": {"Origin": "http://127.0.0.1:9999"},
}


@pytest.mark.parametrize("headers", FROM_ELSEWHERE)
@pytest.mark.parametrize("path", POSTS)
def test_a_form_from_elsewhere_is_refused(filled, path, headers):
    """Even with the right token: the browser says where a form comes from."""
    person = filled.place.person(OPERATOR)
    assert person.submit(filled.path(path), fields(path), **FROM_ELSEWHERE[headers]).status == 403


def test_a_form_of_this_site_is_taken(changing):
    """A browser that says that the form is ours is believed."""
    person = changing.place.person(OPERATOR)
    headers = {"Sec_Fetch_Site": "same-origin", "Origin": "http://127.0.0.1:8090"}
    assert person.submit("/handlers/pause", {"handler": "crm"}, **headers).status == 303
    assert set(changing.place.console.pauses.read()) == {"crm", "paused"}


def test_a_form_is_taken_through_a_proxy_that_changes_the_host(changing):
    """Where the browser says that a form is this site's own, it does not matter what a proxy has made of the host."""
    person = changing.place.person(OPERATOR)
    headers = {"Sec_Fetch_Site": "same-origin", "Origin": "https://console.example", "Host": "backend:8090"}
    assert person.submit("/handlers/pause", {"handler": "crm"}, **headers).status == 303


@pytest.mark.parametrize("path", POSTS)
def test_nothing_acts_by_its_address_alone(filled, path):
    """A link, a picture or a prefetch is a GET, and does nothing."""
    person = filled.place.person(OPERATOR)
    query = "&".join(f"{name}={value}" for name, value in {**fields(path), "token": person.token()}.items())
    answered = person.get(f"{filled.path(path)}?{query}")
    assert answered.status in (303, 400, 404, 405)


@pytest.mark.parametrize("path", ["/login", *POSTS])
def test_a_form_is_bounded(filled, path):
    """More than a form may hold is refused, and more fields than it may have, whether or not it is one of ours."""
    person = filled.place.person(OPERATOR)
    assert person.post(filled.path(path), raw=b"a=" + b"x" * forms.FORM_MAX).status == 413
    assert person.post(filled.path(path), raw=b"a=1&" * (forms.FIELDS_MAX + 1)).status == 400


@pytest.mark.parametrize("path", ["/login", *POSTS])
@pytest.mark.parametrize("kind", ["application/json", "text/plain", "multipart/form-data; boundary=x", ""])
def test_only_forms_are_read(filled, path, kind):
    """A body of another type, which another site might send without being asked, is not read."""
    person = filled.place.person(OPERATOR)
    sent = f"token={person.token()}&key={OPERATOR.value}".encode()
    assert person.post(filled.path(path), raw=sent, Content_Type=kind).status == 415


@pytest.mark.parametrize("sent", [b"\xff\xfe=\x00", b"%ff%fe=%00&token=%ed%a0%80", b"&&&===", b"", b"=", b"%"])
def test_a_form_of_any_bytes_is_an_answer(filled, sent):
    """What is no UTF-8, or no form at all, is refused like any form that is not ours."""
    for path in POSTS:
        assert filled.place.person(OPERATOR).post(filled.path(path), raw=sent, Content_Type=FORM).status == 403
