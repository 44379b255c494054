"""Who is let into the console, for how long, and where a login leads."""

from contextlib import closing

import pytest

from console.visiting import KEYS, OPERATOR, READER, Place, moved
from oncebridge.console.wiring import check_console
from oncebridge.errors import ConfigurationError, LedgerUnavailable
from oncebridge.settings import Settings
from oncebridge.settings.console import ConsoleSettings
from oncebridge.settings.secrets import Secret

WRONG = "wrong key"


def is_in(person):
    """Return whether somebody sees the first page."""
    return person.get("/").status == 200


# --- keys ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("key", "role"), [(OPERATOR, "operator"), (READER, "reader")])
def test_a_key_lets_in_with_its_role(place, key, role):
    """The page and the log name the role and where the key is kept, never the key."""
    person = place.person()
    answered = person.login(key.value)
    assert (answered.status, answered.headers["location"]) == (303, "/console/log")
    page = person.page("/log")
    assert f"{key.reference}, {role}" in page
    assert "login" in page
    assert key.value not in page
    assert key.value not in person.page("/doctor")


@pytest.mark.parametrize("given", [WRONG, "", " ", OPERATOR.value[:-1], OPERATOR.value.upper(), "\x00", "é" * 9000])
def test_a_wrong_key_lets_nobody_in(timed, given):
    """Nothing but a whole key opens, there is no cookie, and what was typed is not sent back."""
    person = timed.person()
    answered = person.login(given)
    assert answered.status == 403
    assert "set-cookie" not in answered.headers
    assert "value=" not in answered.body.decode().replace('name="next" value=', "")
    assert not is_in(person)


def test_blanks_around_a_pasted_key_do_not_matter(timed):
    """A key is often pasted with the end of its line."""
    person = timed.person()
    assert person.login(f" {OPERATOR.value}\n").status == 303
    assert is_in(person)


def test_an_address_that_guesses_has_to_wait(timed):
    """After five wrong keys within a minute the right one is not even looked at; others are let in meanwhile."""
    person = timed.person()
    assert [person.login(WRONG, X_Peer="10.0.0.1").status for _ in range(6)] == [403] * 5 + [429]
    refused = person.login(OPERATOR.value, X_Peer="10.0.0.1")
    assert (refused.status, 1 <= int(refused.headers["retry-after"]) <= 60) == (429, True)
    assert timed.person().login(OPERATOR.value, X_Peer="10.0.0.2").status == 303
    moved(timed, int(refused.headers["retry-after"]) / 60)
    assert person.login(OPERATOR.value, X_Peer="10.0.0.1").status == 303


def test_many_addresses_together_have_to_wait(timed):
    """Guesses from sixty addresses within a minute end guessing for all, until the minute is over."""
    statuses = [timed.person().login(WRONG, X_Peer=f"10.0.1.{number}").status for number in range(61)]
    assert statuses == [403] * 60 + [429]
    assert timed.person().login(OPERATOR.value, X_Peer="10.0.2.1").status == 429
    moved(timed, 1.01)
    assert timed.person().login(OPERATOR.value, X_Peer="10.0.2.1").status == 303


def test_right_keys_are_not_counted(timed):
    """Whoever logs in often is not taken for somebody who guesses."""
    assert {timed.person().login(READER.value).status for _ in range(70)} == {303}


@pytest.mark.parametrize(
    "headers", [{"Sec_Fetch_Site": "cross-site"}, {"Sec_Fetch_Site": "same-site"}, {"Origin": "https://evil.example"}]
)
def test_no_other_site_logs_somebody_in(timed, headers):
    """A form elsewhere cannot make a person act under a key that is not theirs."""
    person = timed.person()
    assert person.login(OPERATOR.value, **headers).status == 403
    assert person.cookie is None


# --- sessions --------------------------------------------------------------------------------------------


def test_a_session_ends_after_its_minutes(timed):
    """Whatever a person does meanwhile, after that long the key has to be given again."""
    person = timed.person(OPERATOR)
    moved(timed, 479)
    assert is_in(person)
    moved(timed, 1.1)
    answered = person.get("/dead")
    assert (answered.status, answered.headers["location"]) == (303, "/console/login?next=/console/dead")


def test_the_cookie_is_for_this_site_and_no_script(timed):
    """HttpOnly, SameSite=Strict, under the console's path, without a date; Secure as soon as there is https."""
    set_ = timed.person().login(OPERATOR.value).headers["set-cookie"].lower()
    assert all(part in set_ for part in ("httponly", "samesite=strict", "path=/console"))
    assert "secure" not in set_.split("; ")
    assert "expires" not in set_
    assert "max-age" not in set_
    for headers in ({"X_Scheme": "https"}, {"X_Forwarded_Proto": "https"}):
        assert "secure" in timed.person().login(OPERATOR.value, **headers).headers["set-cookie"].lower().split("; ")


def forgeries(cookie):
    """Return cookies that are nearly right."""
    text, _, signed = cookie.partition(".")
    turned = "B" if text[0] == "A" else "A"
    yield from ("", ".", "..", "x", text, f"{text}.", f".{signed}", f"{text}.{signed}x"[:-2], f"{text}.{text}")
    yield f"{turned}{text[1:]}.{signed}"
    yield f"{text}.{signed[::-1]}"
    yield f"{text}A.{signed}"
    yield "a" * 1_000_000
    yield f"{cookie}{'a' * 5000}"
    yield "\xff\xfe.\xe9"


def test_a_forged_cookie_is_none(timed):
    """A cookie that was altered anywhere, or cut, or is far too long, lets nobody in, and is no error."""
    cookie = timed.person(OPERATOR).cookie
    for forged in forgeries(cookie):
        person = timed.person()
        person.cookie = forged
        answered = person.get("/")
        assert answered.status == 303, forged[:100]
        assert answered.headers["location"].startswith("/console/login")
    person = timed.person()
    person.cookie = cookie
    assert is_in(person)


def test_a_token_is_no_cookie_and_a_reader_no_operator(timed):
    """What one session has does not make another: neither its token, nor its role."""
    reader = timed.person(READER)
    text, _, signed = reader.cookie.partition(".")
    person = timed.person()
    for forged in (f"{text}.{reader.token()}", f"{timed.person(OPERATOR).cookie.partition('.')[0]}.{signed}"):
        person.cookie = forged
        assert not is_in(person)


def test_a_logout_ends_the_session(timed):
    """The cookie is taken away, and one that was kept elsewhere is worth nothing."""
    person = timed.person(OPERATOR)
    kept = person.cookie
    answered = person.submit("/logout")
    assert (answered.status, answered.headers["location"], person.cookie) == (303, "/console/login", None)
    person.cookie = kept
    assert not is_in(person)


def test_a_logout_ends_the_session_in_every_process(tmp_path):
    """A cookie that was kept is worth nothing at another process of the console either; other sessions go on there."""
    url = f"sqlite:///{tmp_path}/once.db"
    with closing(Place(url, **KEYS)) as one, closing(Place(url, **KEYS)) as other:
        person, colleague = one.person(OPERATOR), one.person(OPERATOR)
        kept = other.person()
        kept.cookie = person.cookie
        assert is_in(kept)
        assert person.submit("/logout").status == 303
        assert not is_in(kept)
        assert kept.post("/dead/do", {"token": colleague.token()}).status != 200
        there = other.person()
        there.cookie = colleague.cookie
        assert is_in(there)


def test_who_logs_out_while_the_ledger_is_away_is_out_of_the_browser(timed, monkeypatch, caplog):
    """The cookie is taken away all the same, and the log says that a copy of it still opens."""
    person = timed.person(OPERATOR)
    token = person.token()

    def away(*_, **__):
        raise LedgerUnavailable("it is away")

    monkeypatch.setattr(type(timed.console.ended_sessions._notes), "write_notes", away)
    answered = person.post("/logout", {"token": token})
    assert (answered.status, answered.headers["location"], person.cookie) == (303, "/console/login", None)
    assert "a logout is not written" in caplog.text


@pytest.mark.parametrize(
    "keys",
    [
        {"operator_keys": (Secret("env:OPERATOR_KEY", "another key"),), "reader_keys": (READER,)},
        {"operator_keys": (), "reader_keys": (READER, OPERATOR)},
        {"operator_keys": (OPERATOR,)},
    ],
)
def test_with_other_keys_no_session_is_valid(tmp_path, keys):
    """After a change of keys, or of what one may do, everybody logs in again; with the same ones nobody has to."""
    url = f"sqlite:///{tmp_path}/once.db"
    cookies = []
    for given, expected in ((KEYS, 200), (KEYS, 200), (keys, 303)):
        place = Place(url, **given)
        try:
            person = place.person() if cookies else place.person(OPERATOR)
            person.cookie = cookies[0] if cookies else person.cookie
            assert person.get("/").status == expected
            cookies.append(person.cookie)
        finally:
            place.close()


# --- where a login leads ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "next_",
    [
        "https://evil.example/",
        "//evil.example",
        "/console//evil.example",
        "/\\evil.example",
        "/console/\\evil.example",
        "/consoleevil",
        "/elsewhere",
        "javascript:alert(1)",
        "/console/\r\nSet-Cookie: a=b",
        "/console/\x00",
        "/console/€",
        "/console/?q=%22",
        "/console/@evil.example",
        "/console/../elsewhere",
        "/console/./..",
        "/console/%2e%2E/%2e%2e/elsewhere",
        "/console/.%2e",
        "",
    ],
)
def test_a_login_leads_to_a_page_of_ours(timed, next_):
    """Whatever `next` says, the answer leads into the console."""
    person = timed.person()
    answered = person.post("/login", {"key": OPERATOR.value, "next": next_})
    assert (answered.status, answered.headers["location"]) == (303, "/console/")
    assert "evil" not in timed.person().get(f"/login?next={next_.encode().hex()}").body.decode()


def test_the_page_that_was_asked_for_is_shown_after_the_login(timed):
    """Also one whose address holds what has to be written with %."""
    person = timed.person()
    to = person.get("/requests/a%20%3Cb%3E%E2%82%AC").headers["location"]
    page = person.get(to).body.decode()
    assert (
        person.press(page, "/login", ("key", READER.value)).headers["location"]
        == "/console/requests/a%20%3Cb%3E%E2%82%AC"
    )


# --- without keys ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1:8090", "localhost:8090", "[::1]:8090", "127.0.0.1", "a.localhost"])
def test_without_keys_this_machine_is_let_in(keyless, host):
    """Whoever sits at the machine looks and acts without a login."""
    person = keyless.person()
    assert person.get("/", Host=host).status == 200
    assert person.cookie is not None


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "192.168.1.5:8090",
        "0.0.0.0",
        "evillocalhost",
        "evil_rebinds.example",
        "127.0.0.1@evil.example",
        "evil.example@127.0.0.1",
        "[",
        "[::",
        "[::2]",
    ],
)
@pytest.mark.parametrize("path", ["/", "/log", "/login"])
def test_without_keys_no_other_name_leads_here(keyless, host, path):
    """A site whose name suddenly leads to this machine (DNS rebinding) sees nothing, and cannot act."""
    person = keyless.person()
    answered = person.get(path, Host=host)
    assert answered.status in (400, 403)
    assert "set-cookie" not in answered.headers
    token = keyless.person().token()
    assert person.post("/handlers/pause", {"handler": "crm", "token": token}, Host=host).status in (400, 403)
    assert keyless.console.pauses.read() == {}


def test_without_keys_forms_work_after_the_session(keyless):
    """A cookie that is over, or of another console on this machine, is replaced, so that forms go on working."""
    person = keyless.person()
    person.page("/")
    for spoil in (lambda: moved(keyless, 481), lambda: setattr(person, "cookie", "of.another")):
        spoil()
        assert person.submit("/handlers/pause", {"handler": "crm"}).status == 303
        assert person.submit("/handlers/resume", {"handler": "crm"}).status == 303


@pytest.mark.parametrize("keys", [{}, {"operator_keys": (OPERATOR,)}, {"reader_keys": (READER,)}])
@pytest.mark.parametrize("is_loopback", [True, False])
def test_without_keys_only_loopback_is_listened_on(keys, is_loopback):
    """An address that others reach needs a key, and the error says how to name one."""
    settings = Settings(console=ConsoleSettings(**keys))
    if keys or is_loopback:
        check_console(settings, "10.0.0.1", is_loopback=is_loopback)
        return
    with pytest.raises(ConfigurationError, match="operator_keys"):
        check_console(settings, "10.0.0.1", is_loopback=is_loopback)
