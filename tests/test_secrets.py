"""Secrets by reference: fetched from where they are, refused with what is missing, and never shown."""

import socket
import sys
import time

import pytest

from oncebridge import Bridge, ConfigurationError, MissingExtra
from oncebridge.settings import load_settings
from oncebridge.settings.secrets import Secret, read_reference

CANARY = "s3cret-canary-value"


def test_from_the_environment(monkeypatch):
    """`env:` names a variable."""
    monkeypatch.setenv("CRM_TOKEN", CANARY)
    assert read_reference("env:CRM_TOKEN").value == CANARY


def test_from_a_file(tmp_path):
    """`file:` names a file; a line end does not belong to the secret."""
    (tmp_path / "token").write_text(f"{CANARY}\n")
    assert read_reference(f"file:{tmp_path / 'token'}").value == CANARY


def test_from_secrets_manager(ministack, monkeypatch):
    """`secretsmanager:` names a secret by its id."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", ministack.url)
    ministack.client("secretsmanager").create_secret(Name="crm/token", SecretString=CANARY)
    assert read_reference("secretsmanager:crm/token").value == CANARY
    with pytest.raises(ConfigurationError, match=r"secretsmanager:crm/none: .*ResourceNotFoundException"):
        read_reference("secretsmanager:crm/none")


def test_a_secrets_manager_that_does_not_answer_is_given_up_before_a_function_is_ended(ministack, monkeypatch):
    """A function has ten seconds to start: where nothing answers, the error says sooner what may be missing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        start = time.monotonic()
        with pytest.raises(ConfigurationError, match=r"secretsmanager:crm/token: .*interface endpoint"):
            read_reference("secretsmanager:crm/token")
    assert time.monotonic() - start < 10


def test_without_boto3_the_extra_is_named(monkeypatch):
    """Where boto3 is missing the error names the line that installs it."""
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(MissingExtra, match=r"pip install 'oncebridge\[aws\]'"):
        read_reference("secretsmanager:crm/token")


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("env:NOBODY_HAS_SET_THIS", "env:NOBODY_HAS_SET_THIS: this environment variable is not set"),
        ("file:/nowhere/at/all", "file:/nowhere/at/all: No such file or directory"),
        ("file:/", "file:/: Is a directory"),
    ],
)
def test_what_is_missing_is_said(reference, words):
    """A secret that is not where it should be is named by its place."""
    with pytest.raises(ConfigurationError, match=words):
        read_reference(reference)


@pytest.mark.parametrize("value", ["", " \n", "two\nlines", "ünicode", "tab\there", "nul\0"])
def test_what_fits_into_no_header_is_refused(tmp_path, value):
    """A secret is one line of printable ASCII: anything else could forge a header."""
    (tmp_path / "token").write_text(value)
    with pytest.raises(ConfigurationError, match="is empty, or not one line of printable ASCII") as refused:
        read_reference(f"file:{tmp_path / 'token'}")
    assert not value.strip() or value not in str(refused.value)


@pytest.mark.parametrize("wrong", [CANARY, f"vault:{CANARY}", f":{CANARY}", "env:", CANARY + ":env"])
def test_a_secret_in_the_place_of_a_reference_is_not_shown(tmp_path, wrong):
    """A secret in the settings themselves is refused without being repeated."""
    file = tmp_path / "oncebridge.toml"
    file.write_text(f'[sinks.crm]\nurl = "https://crm.example/"\nbearer = "{wrong}"\n')
    with pytest.raises(ConfigurationError, match="a secret is named by where it is") as refused:
        load_settings(file)
    assert CANARY not in str(refused.value)
    for keys in (f'["{wrong}"]', f'["{wrong}", 5]', f'[["{wrong}"]]', f'{{ a = "{wrong}" }}'):
        file.write_text(f"api_keys = {keys}\n")
        with pytest.raises(ConfigurationError, match="api_keys") as refused:
            load_settings(file)
        assert CANARY not in str(refused.value)


@pytest.mark.parametrize("wrong", [7, ["env:A"], {}, True])
def test_what_is_no_text_is_refused(tmp_path, wrong):
    """A reference is a text."""
    with pytest.raises(ConfigurationError, match="expected env:NAME, file:PATH or secretsmanager:ID"):
        load_settings(_file(tmp_path, f"bearer = {str(wrong).lower()}".replace("'", '"')))


def _file(folder, line):
    file = folder / "oncebridge.toml"
    file.write_text(f'[sinks.crm]\nurl = "https://crm.example/"\n{line}\n')
    return file


def test_nothing_shows_it(monkeypatch):
    """Neither the secret nor what holds it gives it away when printed."""
    monkeypatch.setenv("CRM_TOKEN", CANARY)
    monkeypatch.setenv("ONCEBRIDGE_API_KEYS", "env:CRM_TOKEN,env:CRM_TOKEN")
    settings = load_settings()
    assert [key.value for key in settings.api_keys] == [CANARY, CANARY]
    secret = Secret("env:CRM_TOKEN", CANARY)
    shown = [f(held) for held in (secret, [secret], settings, settings.api_keys) for f in (repr, str, "{}".format)]
    assert shown[0] == "<Secret env:CRM_TOKEN>"
    assert CANARY not in "".join(shown)


# --- the ledger's URL -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["file", "environment", "program", "bridge"])
@pytest.mark.parametrize("place", ["env", "file", "secretsmanager"])
def test_the_ledger_is_named_by_where_its_url_is(tmp_path, monkeypatch, request, how, place):
    """A URL holds a password, so it is fetched from where the other secrets are."""
    monkeypatch.chdir(tmp_path)
    url = f"sqlite:///{tmp_path}/once.db"
    monkeypatch.setenv("LEDGER_URL", url)
    (tmp_path / "url").write_text(f"{url}\n")
    if place == "secretsmanager":
        ministack = request.getfixturevalue("ministack")
        monkeypatch.setenv("AWS_ENDPOINT_URL", ministack.url)
        name = f"ledger-{how}"
        ministack.client("secretsmanager").create_secret(Name=name, SecretString=url)
    reference = {"env": "env:LEDGER_URL", "file": "file:url"}.get(place, f"secretsmanager:ledger-{how}")
    if how == "bridge":
        assert str(Bridge(reference).ledger.path) == f"{tmp_path}/once.db"
        return
    if how == "file":
        (tmp_path / "oncebridge.toml").write_text(f'ledger = "{reference}"\n')
    elif how == "environment":
        monkeypatch.setenv("ONCEBRIDGE_LEDGER", reference)
    bridge = Bridge.from_settings(**({"ledger": reference} if how == "program" else {}))
    assert bridge.settings.ledger == url


def test_a_ledger_that_is_not_where_it_is_named_is_said(monkeypatch):
    """The error names the setting and the place."""
    monkeypatch.setenv("ONCEBRIDGE_LEDGER", "env:NOBODY_HAS_SET_THIS")
    with pytest.raises(ConfigurationError, match=r"ONCEBRIDGE_LEDGER: env:NOBODY_HAS_SET_THIS: .* is not set"):
        load_settings()


@pytest.mark.parametrize(
    "url",
    [
        [f"redis://:{CANARY}@h"], {"url": f"redis://:{CANARY}@h"}, f"{CANARY}:x@h", f"mysql://u:{CANARY}@h",
        f"redis://:{CANARY}@[h", f"redis://u:{CANARY}@h:port", f"postgresql://u:{CANARY}@[::1", 7,
    ],
)  # fmt: skip
def test_no_error_shows_the_password_of_a_ledger(url):
    """Whatever is wrong with a URL, its words say what, without what it holds."""
    with pytest.raises(ConfigurationError) as refused:
        Bridge.from_settings(ledger=url)
    assert CANARY not in str(refused.value)
    assert "ledger" in str(refused.value)
