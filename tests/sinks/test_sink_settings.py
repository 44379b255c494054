"""Sinks by settings: the tables `[sinks.NAME]`, and errors that name the fix."""

import pytest

from oncebridge import Bridge, ConfigurationError
from oncebridge.settings import load_settings
from oncebridge.settings.secrets import Secret
from oncebridge.settings.sinks.webhook import WebhookSettings

URL = 'url = "https://crm.example/events"\n'

pytestmark = pytest.mark.usefixtures("empty_workplace")


@pytest.fixture
def read(tmp_path):
    """Read the settings of one sink."""

    def read_one(text, name="crm"):
        (tmp_path / "oncebridge.toml").write_text(f"[sinks.{name}]\n{text}\n", encoding="utf-8")
        (sink,) = load_settings().sinks
        return sink

    return read_one


@pytest.fixture
def refusal(read):
    """Return the words with which the settings of a sink are refused."""

    def words(text, name="crm"):
        with pytest.raises(ConfigurationError) as refused:
            read(text, name)
        return str(refused.value)

    return words


def test_a_url_is_enough(read):
    """Everything else has a default: all topics, the event as it came, ten seconds, public addresses alone."""
    assert read(URL) == WebhookSettings(
        name="crm",
        url="https://crm.example/events",
        topics=("*",),
        body=None,
        headers=(),
        timeout_seconds=10.0,
        private_addresses=False,
    )


def test_everything_can_be_set(read, monkeypatch, tmp_path):
    """Secrets are fetched from where the settings say they are."""
    monkeypatch.setenv("CRM_TOKEN", "the-token")
    (tmp_path / "key").write_text("the-key\n", encoding="utf-8")
    sink = read(
        URL
        + """
        topics = ["v2.users.{id}.presence", "v2.detail.*"]
        body = "detail.eventBody"
        bearer = "env:CRM_TOKEN"
        api_key = "file:key"
        api_key_header = "X-Desk-Key"
        timeout_seconds = 2.5
        private_addresses = true
        headers = { X-Team = "desk one", X-Hidden = "env:CRM_TOKEN" }
        """
    )
    assert sink.topics == ("v2.users.{id}.presence", "v2.detail.*")
    assert sink.body({"detail": {"eventBody": 1}}) == 1
    assert (sink.bearer, sink.api_key) == (Secret("env:CRM_TOKEN", "the-token"), Secret("file:key", "the-key"))
    assert (sink.api_key_header, sink.timeout_seconds, sink.private_addresses) == ("X-Desk-Key", 2.5, True)
    assert sink.headers == (("X-Team", "desk one"), ("X-Hidden", Secret("env:CRM_TOKEN", "the-token")))


#: A table -> the field that its refusal names, and the fix.
WRONG = {
    "": ("does not say where the events go", "https://crm.example"),
    URL + 'bus = "clean"': ("has both url and bus", "make them two sinks"),
    "url = 5": ("url", "expected a text"),
    'url = ""': ("url", "expected a text"),
    URL + "urls = 1": ("urls", "did you mean url?"),
    URL + "header = {}": ("header", "did you mean headers?"),
    URL + "timeout = 5": ("timeout", "did you mean timeout_seconds?"),
    URL + "nonsense = 5": ("nonsense", "known are", "topics", "body", "url", "bearer", "api_key", "headers"),
    URL + "topics = []": ("topics", "expected a list of topics", "got []"),
    URL + "topics = [5]": ("topics", "expected a list of topics", "got [5]"),
    URL + 'topics = ["v2.*", "v2.users.{id}.presence"]': ("topics", "'v2.*' and 'v2.users.{id}.presence'", "keep"),
    URL + 'topics = ["a", "a"]': ("topics", "'a' and 'a'", "keep"),
    URL + 'body = "detail."': ("body", "expected a JMESPath expression", "got 'detail.'"),
    URL + "timeout_seconds = 0": ("timeout_seconds", "from 0.1 to 900", "got 0"),
    URL + "timeout_seconds = nan": ("timeout_seconds", "from 0.1 to 900", "got nan"),
    URL + 'private_addresses = "maybe"': ("private_addresses", "true or false", "got 'maybe'"),
    URL + 'api_key_header = "X-Key"': ("api_key_header", "api_key, which is missing"),
    URL + 'bearer = "env:NOT_SET"': ("bearer", "env:NOT_SET", "is not set"),
    URL + 'bearer = "file:missing"': ("bearer", "file:missing", "No such file"),
    URL + 'headers = { X-A = "env:NOT_SET" }': ("headers X-A", "env:NOT_SET", "is not set"),
    URL + 'headers = { "X A" = "1" }': ("headers", "the name of a header", "got 'X A'"),
    URL + 'headers = { "X:A" = "1" }': ("headers", "the name of a header", "got 'X:A'"),
    URL + 'headers = { "X\\r\\nEvil" = "1" }': ("headers", "the name of a header", r"got 'X\r\nEvil'"),
    URL + 'headers = { "" = "1" }': ("headers", "the name of a header", "got ''"),
    URL + 'headers = { "Ü" = "1" }': ("headers", "the name of a header", "got 'Ü'"),
    URL + 'headers = { content-type = "text/plain" }': ("headers", "set anyway", "got 'content-type'"),
    URL + 'headers = { Idempotency-Key = "1" }': ("headers", "set anyway", "got 'Idempotency-Key'"),
    URL + 'headers = { Oncebridge-Token = "1" }': ("headers", "set anyway", "got 'Oncebridge-Token'"),
    URL + 'headers = { Host = "other" }': ("headers", "set anyway", "got 'Host'"),
    URL + 'headers = { X-A = "1", x-a = "2" }': ("the header x-a is set twice", "keep one"),
    URL + "headers = 5": ("headers", "expected a table"),
    # From here on the value may be a secret that somebody put there by mistake.
    URL + 'bearer = "hidden"': ("bearer", "env:NAME, file:PATH or secretsmanager:ID"),
    URL + 'bearer = ["hidden"]': ("bearer", "env:NAME, file:PATH or secretsmanager:ID"),
    URL + 'api_key = "hidden"': ("api_key", "env:NAME, file:PATH or secretsmanager:ID"),
    URL + 'headers = { X-A = "hidden\\r\\nX-Evil: 1" }': ("headers X-A", "one line of printable ASCII", "env:NAME"),
    URL + 'headers = { X-A = "hidden\\u0000" }': ("headers X-A", "one line of printable ASCII"),
    URL + 'headers = { X-A = "hidden ü" }': ("headers X-A", "one line of printable ASCII"),
    URL + 'headers = { X-A = " hidden" }': ("headers X-A", "one line of printable ASCII"),
    URL + 'headers = { X-A = "" }': ("headers X-A", "one line of printable ASCII"),
    URL + 'headers = { X-A = ["hidden"] }': ("headers X-A", "one line of printable ASCII"),
    URL + 'headers = ["hidden"]': ("headers", "expected a table"),
    'url = ["https://user:hidden@crm.example"]': ("url", "expected a text"),
}


@pytest.mark.parametrize("text", WRONG)
def test_errors_name_field_value_and_fix(text, refusal):
    """An error names the setting and the fix; it does not show a value that may be a secret."""
    field, *words = WRONG[text]
    said = refusal(text)
    assert said.startswith("oncebridge.toml: [sinks.crm]")
    assert not [part for part in (field, *words) if part not in said]
    assert "hidden" not in said


@pytest.mark.parametrize(
    ("text", "header"),
    [
        ('bearer = "env:T"\nheaders = { authorization = "Basic x" }', "Authorization"),
        ('api_key = "env:T"\nheaders = { x-api-key = "1" }', "X-API-Key"),
        ('bearer = "env:T"\napi_key = "env:T"\napi_key_header = "authorization"', "authorization"),
    ],
)
def test_no_header_is_set_twice(text, header, refusal, monkeypatch):
    """What two settings want to put into one header is refused: a receiver would choose either."""
    monkeypatch.setenv("T", "token")
    assert f"the header {header} is set twice" in refusal(URL + text)


@pytest.mark.parametrize("name", ['"a b"', '""', '"a/b"', '"ü"', "a" * 41, '"a\\r\\nb"'])
def test_names_are_plain(name, refusal):
    """A name is part of keys and headers, so only plain characters may be in it."""
    assert "a name has up to 40 letters" in refusal(URL, name)


def test_a_sink_is_a_table(tmp_path):
    """Something else under `sinks` is refused with how it is written."""
    (tmp_path / "oncebridge.toml").write_text("[sinks]\ncrm = 5\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"write it as \[sinks\.crm\]"):
        load_settings()


def test_a_list_of_sinks_is_refused_without_what_is_in_it(tmp_path):
    """The error for [[sinks]] shows the right form, and no header's value, which may be a secret."""
    (tmp_path / "oncebridge.toml").write_text(f'[[sinks]]\n{URL}headers = {{ "X-Key" = "hush" }}\n', encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"sinks: expected a table, got a list; write it as \[sinks.NAME\]"):
        load_settings()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://crm.example/hidden", "sink crm: url: http:// to crm.example:80"),
        ("https://user:hidden@crm.example/", "sink crm: url: holds a user or a password"),
        ("https://169.254.169.254/hidden", "sink crm: url: 169.254.169.254 leads to 169.254.169.254"),
        ("ftp://crm.example/hidden", "sink crm: url: expected one that starts with https:// or http://"),
        ("crm.example/hidden", "sink crm: url: expected one that starts with https:// or http://"),
    ],
)
def test_a_bridge_refuses_a_wrong_url(url, words, read):
    """A URL that can never work is refused when the bridge is made, before any event is lost to it."""
    settings = load_settings(sinks=[read(f'url = "{url}"')])
    with pytest.raises(ConfigurationError) as refused:
        Bridge("memory://", settings=settings)
    assert words in str(refused.value)
    assert "hidden" not in str(refused.value)


def test_downstream_url_may_be_private(monkeypatch):
    """Whoever runs this has chosen `DOWNSTREAM_URL`, a private address too, but none that is nobody's."""
    monkeypatch.setenv("DOWNSTREAM_URL", "http://169.254.169.254/hidden")
    bridge = Bridge("memory://", settings=load_settings())
    with pytest.raises(ConfigurationError, match=r"downstream_url: 169[.]254[.]169[.]254 leads to") as refused:
        bridge.open()
    assert "hidden" not in str(refused.value)
    monkeypatch.setenv("DOWNSTREAM_URL", "http://localhost:8080/webhook")
    with Bridge("memory://", settings=load_settings()) as bridge:
        assert [handler.pattern for handler in bridge.handlers] == ["*"]
