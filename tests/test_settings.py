"""Settings from the program, the environment and a file: precedence, bounds, and errors that name the fix."""

import json
import subprocess
import sys
from contextlib import suppress
from urllib.parse import unquote, urlsplit

import pytest

from oncebridge import Bridge, ConfigurationError, LedgerRefused, MissingExtra, Settings
from oncebridge.event import parse
from oncebridge.identity import identify
from oncebridge.retry import RetryPolicy
from oncebridge.settings import VARIABLES, known_settings, load_settings
from oncebridge.settings.serve import ServeSettings
from oncebridge.settings.sinks.sink import SinkSettings
from oncebridge.topics import Kind, Profile, Profiles, plain
from oncebridge.validation import metadata, required_type, without_metadata
from payloads import ACW, TIME_MS, call_status, envelope, in_envelope, iso

SECRET = "correct-horse-battery-staple"
DESK = "Desk Changed"

pytestmark = pytest.mark.usefixtures("empty_workplace")


@pytest.fixture
def settings_file(tmp_path):
    """Write `oncebridge.toml` into the working folder."""

    def write(text, name="oncebridge.toml"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.fixture
def own_profile(settings_file):
    """Read the one profile of a table."""

    def read(text, topic=DESK):
        settings_file(f"[topics.{topic!r}]\n{text}\n")
        return load_settings().profiles[0]

    return read


def refusal(**given):
    """Return the words with which settings are refused."""
    with pytest.raises(ConfigurationError) as refused:
        load_settings(**given)
    return str(refused.value)


# --- where they come from ---------------------------------------------------------------------------------------


def test_defaults():
    """With nothing set, everything has its default."""
    assert load_settings() == Settings()


def test_bridge_reads_no_file(settings_file):
    """A bridge made from a URL reads neither file nor environment."""
    settings_file("this is not TOML")
    assert Bridge("memory://").settings == Settings(ledger="memory://")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("ONCEBRIDGE_LEDGR", "did you mean ONCEBRIDGE_LEDGER?"),
        ("ONCEBRIDGE_RETENTION_DAY", "did you mean ONCEBRIDGE_RETENTION_DAYS?"),
        ("ONCEBRIDGE_RETRY_ATTEMPT", "did you mean ONCEBRIDGE_RETRY_ATTEMPTS?"),
        ("ONCEBRIDGE_SETTING", "did you mean ONCEBRIDGE_SETTINGS?"),
        ("ONCEBRIDGE_QQ", "docs/settings.md"),
        ("ONCEBRIDGE_", "docs/settings.md"),
        ("ONCEBRIDGE_CRM_TOKEN", "env:ONCEBRIDGE_CRM_TOKEN"),
    ],
)
def test_variables_that_nothing_reads_are_refused(monkeypatch, name, meant):
    """A mistyped variable is refused with the name that was meant, and its value, which may be secret, is not shown."""
    monkeypatch.setenv(name, "a-canary")
    said = refusal()
    assert said.startswith(f"{name}: no such setting")
    assert meant in said
    assert "canary" not in said


def test_variables_that_references_name_are_allowed(monkeypatch, settings_file):
    """A variable of the user's may begin as ours do if a reference names it: of a file, a variable or a program."""
    for name in ("FILE", "LIST", "SINK", "PROGRAM", "BRIDGE"):
        monkeypatch.setenv(f"ONCEBRIDGE_OWN_{name}", "memory://" if name == "BRIDGE" else SECRET)
    monkeypatch.setenv("ONCEBRIDGE_API_KEYS", "env:ONCEBRIDGE_OWN_FILE, env:ONCEBRIDGE_OWN_LIST")
    settings_file("[sinks.crm]\nurl = 'https://crm.example'\nbearer = 'env:ONCEBRIDGE_OWN_SINK'\n")
    Bridge("env:ONCEBRIDGE_OWN_BRIDGE")
    assert len(load_settings(secret="env:ONCEBRIDGE_OWN_PROGRAM").api_keys) == 2


@pytest.mark.parametrize("service", ["ONCEBRIDGE", "ONCEBRIDGE_SERVE", "ONCEBRIDGE_EVENTS_EU"])
def test_variables_of_container_platforms_are_ignored(monkeypatch, service):
    """Kubernetes sets variables for a service of this name in each container; none of them is a setting."""
    variables = {
        "SERVICE_HOST": "10.0.0.1", "SERVICE_PORT": "8080", "SERVICE_PORT_HTTP": "8080", "PORT": "tcp://10.0.0.1:8080",
        "PORT_8080_TCP": "tcp://10.0.0.1:8080", "PORT_8080_TCP_PROTO": "tcp", "PORT_8080_TCP_PORT": "8080",
        "PORT_8080_TCP_ADDR": "10.0.0.1",
    }  # fmt: skip
    for name, value in variables.items():
        monkeypatch.setenv(f"{service}_{name}", value)
    assert load_settings() == Settings()


#: Setting -> what the file, the environment and the program say, and what that is read as.
PRECEDENCE = {
    "ledger": (("'sqlite:///file.db'", "sqlite:///env.db", "memory://"), ["sqlite:///file.db", "sqlite:///env.db"]),
    "lease_seconds": (("20", "30.5", 40), [20, 30.5]),
    "handler_timeout_seconds": (("20", "30", 40.0), [20, 30]),
    "busy_wait_seconds": (("0", "0.5", 1), [0, 0.5]),
    "settle_within_seconds": (("0", "0.5", 1), [0, 0.5]),
    "retention_days": (("5", "19", 60), [5, 19]),
    "queue_retention_days": (("0", "14", 1.5), [0, 14]),
    "concurrency": (("2", "3", 4), [2, 3]),
    "replays_anew": (("true", "false", True), [True, False]),
    "attempts": (("2", "3", 4), [2, 3]),
    "base_seconds": (("0.2", "0.3", 0.4), [0.2, 0.3]),
    "growth": (("2", "3", 4), [2, 3]),
    "cap_seconds": (("20", "30", 40), [20, 30]),
}


@pytest.mark.parametrize("name", PRECEDENCE)
def test_precedence(name, monkeypatch, settings_file):
    """What the program gives wins over the environment, that over the file, that over the default."""
    (in_file, in_environment, given), wanted = PRECEDENCE[name]
    retry = hasattr(RetryPolicy(), name)

    def value(**more):
        settings = load_settings(**more)
        return getattr(settings.retry if retry else settings, name)

    assert value() == getattr(RetryPolicy() if retry else Settings(), name)
    settings_file(f"[retry]\n{name} = {in_file}" if retry else f"{name} = {in_file}")
    from_file = value()
    monkeypatch.setenv(f"ONCEBRIDGE_{'RETRY_' if retry else ''}{name.upper()}", in_environment)
    assert [from_file, value()] == wanted
    assert value(**{name: None}) == value()  # None gives nothing
    assert value(**{name: given}) == given


def test_values_have_their_types(monkeypatch, settings_file):
    """Numbers from the environment are numbers, and whole numbers of the file serve as seconds."""
    settings_file("lease_seconds = 20\nconcurrency = 2.0")
    monkeypatch.setenv("ONCEBRIDGE_RETENTION_DAYS", "7")
    settings = load_settings()
    assert [type(value) for value in (settings.lease_seconds, settings.concurrency, settings.retention_days)] == [
        float,
        int,
        float,
    ]


BOUNDED = [
    (name, bound)
    for table in VARIABLES
    for name, type_ in known_settings(table).items()
    for bound in ("ge", "le")
    if bound in metadata(type_)
]


@pytest.mark.parametrize(("name", "bound"), BOUNDED)
def test_bounds_hold(name, bound):
    """A setting may be as small and as large as its declaration says, and an error for anything beyond names both."""
    said = next(metadata(known_settings(table)[name]) for table in VARIABLES if name in known_settings(table))
    load_settings(**{name: said[bound]})
    beyond = said[bound] + (1 if bound == "le" else -1)
    assert f"from {said['ge']:.12g} to {said['le']:.12g}, got {beyond!r}" in refusal(**{name: beyond})


def test_every_number_has_bounds():
    """No number can be so large that it breaks a sum, or so small that it makes no sense."""
    numbers = {name for table in VARIABLES for name, type_ in known_settings(table).items() if is_number(type_)}
    assert {name for name, bound in BOUNDED if bound == "ge"} == numbers == {name for name, _ in BOUNDED}
    assert "lease_seconds" in numbers


def is_number(type_):
    """Tell whether a setting is a number."""
    return without_metadata(required_type(type_)) in (int, float)


@pytest.mark.parametrize("kind", [Settings, RetryPolicy, ServeSettings, *SinkSettings.__subclasses__()])
def test_types_of_settings_are_not_read_from_text(kind):
    """A program that starts reads the types of settings as objects: to evaluate texts would take it 2 ms."""
    assert not [name for name, type_ in kind.__annotations__.items() if isinstance(type_, str)]


def test_a_program_without_a_file_starts_light(monkeypatch):
    """Settings of the environment need no TOML, no JMESPath and no search for similar names: cold starts count."""
    monkeypatch.setenv("ONCEBRIDGE_LEDGER", "memory://")
    monkeypatch.setenv("ONCEBRIDGE_LEASE_SECONDS", "20")
    heavy = {"tomllib", "difflib", "jmespath", "boto3"}
    code = f"import sys, oncebridge; oncebridge.Bridge.from_settings(); print(sorted({heavy!r} & set(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


@pytest.mark.parametrize("text", ["4", " 4 ", "4\r", "4.0"])
def test_numbers_in_the_environment(text, monkeypatch):
    """White space around a number does not matter: files of variables may end their lines as Windows does."""
    monkeypatch.setenv("ONCEBRIDGE_CONCURRENCY", text)
    assert load_settings().concurrency == 4


def test_empty_variable_is_not_set(monkeypatch):
    """An empty environment variable sets nothing."""
    monkeypatch.setenv("ONCEBRIDGE_LEASE_SECONDS", "")
    assert load_settings() == Settings()


def test_named_file(settings_file, monkeypatch):
    """Another file is named by argument, or by ONCEBRIDGE_SETTINGS."""
    path = settings_file("concurrency = 5", "other.toml")
    assert load_settings(path).concurrency == 5
    assert load_settings().concurrency == 1
    monkeypatch.setenv("ONCEBRIDGE_SETTINGS", str(path))
    assert load_settings().concurrency == 5


def test_named_file_must_exist(monkeypatch):
    """A file that is named must be there; the usual one may be missing."""
    with pytest.raises(ConfigurationError, match=r"missing\.toml: no such file"):
        load_settings("missing.toml")
    monkeypatch.setenv("ONCEBRIDGE_SETTINGS", "missing.toml")
    assert "ONCEBRIDGE_SETTINGS" in refusal()


def test_bridge_from_settings(settings_file):
    """A bridge made from settings has the file's ledger, settings and profiles."""
    settings_file(f'ledger = "memory://"\nconcurrency = 3\n[topics."{DESK}"]\nkind = "sample"\n')
    bridge = Bridge.from_settings()
    assert (type(bridge.ledger).__name__, bridge.settings.concurrency) == ("MemoryLedger", 3)
    assert bridge.settings.profiles[0].kind is Kind.SAMPLE
    assert Bridge.from_settings(concurrency=7).settings.concurrency == 7


# --- the ledger by REDIS_HOST -----------------------------------------------------------------------------------

HOSTS = {
    "cache.internal": "cache.internal",
    "my_cache-1": "my_cache-1",
    "10.0.0.7": "10.0.0.7",
    "::1": "[::1]",
    "[2001:db8::7]": "[2001:db8::7]",
}


@pytest.fixture
def redis(monkeypatch):
    """Set `REDIS_HOST`, `REDIS_PORT` and `REDIS_PASSWORD`."""

    def put(**values):
        for name, value in values.items():
            monkeypatch.setenv(f"REDIS_{name.upper()}", value)

    return put


@pytest.mark.parametrize("host", HOSTS)
def test_redis_host_names_the_ledger(host, redis):
    """REDIS_HOST alone is enough, and an IPv6 address gets its brackets."""
    redis(host=host)
    assert load_settings().ledger == f"redis://{HOSTS[host]}:6379/0"
    redis(port="6380", password="")
    assert load_settings().ledger == f"redis://{HOSTS[host]}:6380/0"


@pytest.mark.parametrize("password", ["hunter2", "p@ss/w:rd#?&%41 ä", "@", ":", "/", "%"])
def test_redis_password_may_hold_anything(password, redis):
    """A password of any characters comes out of the URL as it went in."""
    redis(host="::1", port="6380", password=password)
    parts = urlsplit(load_settings().ledger)
    assert (unquote(parts.password or ""), parts.username, parts.hostname, parts.port, parts.path) == (
        password, "", "::1", 6380, "/0",
    )  # fmt: skip


def test_redis_host_is_the_last_to_be_asked(redis, monkeypatch, settings_file):
    """Whatever else names a ledger wins over REDIS_HOST, which wins over the default alone."""
    redis(port="6380", password="hunter2")
    assert load_settings().ledger == Settings().ledger  # without a host they say nothing
    redis(host="cache")
    assert load_settings().ledger == "redis://:hunter2@cache:6380/0"
    settings_file("ledger = 'sqlite:///file.db'")
    assert load_settings().ledger == "sqlite:///file.db"
    monkeypatch.setenv("ONCEBRIDGE_LEDGER", "sqlite:///env.db")
    assert load_settings().ledger == "sqlite:///env.db"
    assert load_settings(ledger="memory://").ledger == "memory://"
    redis(port="nonsense", host="a b")
    assert load_settings().ledger == "sqlite:///env.db"  # who is not asked cannot be wrong


@pytest.mark.parametrize("port", ["0", "65536", "http", "tcp://10.0.0.7:6379", "63.5", "-1"])
def test_wrong_redis_port(port, redis):
    """A port that is none is refused by name, value and range."""
    redis(host="cache", port=port, password="hunter2")
    message = refusal()
    assert all(word in message for word in ("REDIS_PORT", "1 to 65535", repr(port)))
    assert "hunter2" not in message


@pytest.mark.parametrize(
    "host", ["redis://:hunter2@cache", "cache:6379", "hunter2@cache", "a b", "cache/0", "[cache]", "::1::2", "\u2100"]
)
def test_wrong_redis_host(host, redis):
    """A host that is more than a host is refused with where the rest belongs, and is not shown."""
    redis(host=host)
    message = refusal()
    assert all(word in message for word in ("REDIS_HOST", "REDIS_PORT", "REDIS_PASSWORD", "ONCEBRIDGE_LEDGER"))
    assert "hunter2" not in message


# --- errors -----------------------------------------------------------------------------------------------------

#: A file, and the words that its error must have: file, table, key, value, fix.
WRONG = {
    "lease_seconds = 0": ["oncebridge.toml", "lease_seconds", "0.1 to 43200", "0"],
    "lease_seconds = -5": ["lease_seconds", "-5"],
    "lease_seconds = true": ["lease_seconds", "a number", "True"],
    "lease_seconds = nan": ["lease_seconds", "a number", "nan"],
    "lease_seconds = inf": ["lease_seconds", "a number", "inf"],
    'lease_seconds = "soon"': ["lease_seconds", "a number", "'soon'"],
    "lease_seconds = [1]": ["lease_seconds", "[1]"],
    "concurrency = 0": ["concurrency", "a whole number from 1", "0"],
    "concurrency = 2.5": ["concurrency", "whole", "2.5"],
    "concurrency = 1000": ["concurrency", "256", "1000"],
    "queue_retention_days = 15": ["queue_retention_days", "0 to 14", "15"],
    "concurrency = true": ["concurrency", "True"],
    'replays_anew = "maybe"': ["replays_anew", "true or false", "'maybe'"],
    "replays_anew = 1": ["replays_anew", "true or false", "1"],
    'ledger = ""': ["ledger", "URL", "env:NAME"],
    "ledger = 5": ["ledger", "URL", "env:NAME"],
    "[retry]\nattempts = 0": ["[retry] attempts", "whole", "0"],
    "[retry]\nattempt = 3": ["[retry] attempt", "did you mean attempts?"],
    "[retry]\ncap_seconds = -1": ["[retry] cap_seconds", "-1"],
    "retry = 5": ["retry", "table", "5", "[retry]"],
    "topics = 5": ["topics", "table", "5"],
    "lease_second = 5": ["lease_second", "did you mean lease_seconds?"],
    "Ledger = 5": ["Ledger", "did you mean ledger?"],
    "topic = 5": ["topic", "did you mean topics?"],
    "xyzzy = 5": ["xyzzy", "known are", "ledger", "retry", "topics"],
    "[xyzzy]\na = 1": ["xyzzy", "no such setting"],
    '[topics."Desk"]\nkind = "fakt"': ['[topics."Desk"] kind', "fact, state or sample", "'fakt'"],
    '[topics."Desk"]\nknd = "fact"': ['[topics."Desk"] knd', "did you mean kind?"],
    '[topics."Desk"]\ntime = 5': ['[topics."Desk"] time', "JMESPath", "5"],
    '[topics."Desk"]\ntime = ""': ['[topics."Desk"] time', "JMESPath", "''"],
    '[topics."Desk"]\ntime = "a["': ['[topics."Desk"] time', "JMESPath", "'a['"],
    '[topics."Desk"]\ntime = ["a", 5]': ['[topics."Desk"] time', "5"],
    '[topics."Desk"]\nexplicit_id = ["a"]': ['[topics."Desk"] explicit_id', "['a']"],
    '[topics."Desk"]\nexclude = "a[0]"': ['[topics."Desk"] exclude', "a path", "'a[0]'"],
    '[topics."Desk"]\nexclude = "length(a)"': ['[topics."Desk"] exclude', "a path"],
    '[topics."Desk"]\nkind = "state"\necho_window_ms = -1': ['[topics."Desk"] echo_window_ms', "-1"],
    '[topics."Desk"]\nkind = "state"\nstale = "no"': ['[topics."Desk"] stale', "true or false", "'no'"],
    '[topics."Desk"]\nentity = "a"': ['[topics."Desk"] entity', "only a state", 'kind = "state"'],
    '[topics."Desk"]\nkind = "sample"\nversion = "a"': ['[topics."Desk"] version', "only a state"],
    '[topics."Desk"]\nkind = "fact"\nstale = true': ['[topics."Desk"] stale', "only a state"],
    '[topics."Desk"]\nkind = "fact"\necho_window_ms = 5': ['[topics."Desk"] echo_window_ms', "only a state"],
    '[topics]\n"Desk" = 5': ['[topics."Desk"]', "table", "5"],
    "secret = 'abc'": ["secret", "secretsmanager:ID"],
    "lease_seconds 5": ["oncebridge.toml", "not TOML", "line 1"],
}  # fmt: skip


@pytest.mark.parametrize("text", WRONG)
def test_wrong_file(text, settings_file):
    """An error in the file names the file, the table, the key, the value and what to do."""
    settings_file(text)
    message = refusal()
    assert message.startswith("oncebridge.toml: ")
    assert all(word in message for word in WRONG[text]), message


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("ONCEBRIDGE_LEASE_SECONDS", "soon", ["a number", "'soon'"]),
        ("ONCEBRIDGE_CONCURRENCY", "2.5", ["whole", "'2.5'"]),
        ("ONCEBRIDGE_REPLAYS_ANEW", "maybe", ["true or false", "'maybe'"]),
        ("ONCEBRIDGE_RETRY_ATTEMPTS", "0", ["whole", "'0'"]),
        ("ONCEBRIDGE_SECRET_FILE", "missing.key", ["missing.key"]),
    ],
)
def test_wrong_environment(variable, value, words, monkeypatch):
    """An error in the environment names the variable, its value and what was expected."""
    monkeypatch.setenv(variable, value)
    message = refusal()
    assert variable.removeprefix("ONCEBRIDGE_").lower() in message.lower()
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"lease_seconds": -1}, ["lease_seconds", "-1"]),
        ({"concurrency": "many"}, ["concurrency", "'many'"]),
        ({"attempts": 0}, ["attempts", "0"]),
        ({"leese_seconds": 5}, ["leese_seconds", "did you mean lease_seconds?"]),
        ({"secret": b"short"}, ["secret", "16", "5"]),
    ],
)
def test_wrong_arguments(given, words):
    """Arguments of a program are checked like settings of the file."""
    message = refusal(**given)
    assert all(word in message for word in words), message


@pytest.mark.parametrize("text", ["TRUE", "true", "1"])
def test_flags_in_the_environment(text, monkeypatch):
    """A flag may be written in several ways."""
    monkeypatch.setenv("ONCEBRIDGE_REPLAYS_ANEW", text)
    assert load_settings().replays_anew is True


def test_file_that_is_no_text(tmp_path):
    """A file that is no UTF-8 is refused in words, and so is a folder."""
    (tmp_path / "oncebridge.toml").write_bytes(b"\xff\xfe")
    assert "not TOML" in refusal()
    with pytest.raises(ConfigurationError, match="directory"):
        load_settings(tmp_path)


# --- secrets ----------------------------------------------------------------------------------------------------


def test_secret_from_the_environment(monkeypatch):
    """The secret comes from ONCEBRIDGE_SECRET."""
    monkeypatch.setenv("ONCEBRIDGE_SECRET", SECRET)
    assert load_settings().secret == SECRET.encode()


def test_a_name_that_no_file_has_is_an_error_of_the_settings(settings_file):
    """A null character in it is no crash."""
    for line in ('secret_file = "\\u0000"', 'api_keys = ["file:\\u0000"]'):
        settings_file(line)
        with pytest.raises(ConfigurationError, match="no file has such a name"):
            load_settings()


def test_secret_from_a_file(tmp_path, settings_file, monkeypatch):
    """The secret comes from the file that secret_file names, without white space around; the environment wins."""
    (tmp_path / "key").write_text(f"\n{SECRET}\n")
    (tmp_path / "other").write_text("another secret that is long enough")
    settings_file('secret_file = "key"')
    assert load_settings().secret == SECRET.encode()
    monkeypatch.setenv("ONCEBRIDGE_SECRET_FILE", "other")
    assert load_settings().secret == b"another secret that is long enough"
    monkeypatch.setenv("ONCEBRIDGE_SECRET", "a third secret, long enough")
    assert load_settings().secret == b"a third secret, long enough"


@pytest.mark.parametrize("reference", ["env:OF_KEYS", "file:key"])
def test_secret_by_reference(reference, tmp_path, settings_file, monkeypatch):
    """The secret may be named by where it is, in the file and in the environment."""
    (tmp_path / "key").write_text(f"{SECRET}\n")
    monkeypatch.setenv("OF_KEYS", SECRET)
    settings_file(f'secret = "{reference}"')
    assert load_settings().secret == SECRET.encode()
    settings_file("")
    monkeypatch.setenv("ONCEBRIDGE_SECRET", reference)
    assert load_settings().secret == SECRET.encode()


@pytest.mark.parametrize("secret", ["hunter2", "hunter2" * 20])
def test_secret_of_a_wrong_length(secret, monkeypatch, tmp_path, settings_file):
    """A secret that is too short or too long is refused with its length and a way to make one, never shown."""
    monkeypatch.setenv("ONCEBRIDGE_SECRET", secret)
    messages = [refusal()]
    monkeypatch.delenv("ONCEBRIDGE_SECRET")
    (tmp_path / "key").write_text(secret)
    settings_file('secret_file = "key"')
    messages.append(refusal())
    for message in messages:
        assert str(len(secret)) in message
        assert "token_urlsafe" in message
        assert "hunter2" not in message


@pytest.mark.parametrize(
    "text", ["secret = 'hunter2-hunter2'", "secret = hunter2", "secret = 'hunter2\n'", "[secret]\nhunter2 = 'hunter2'"]
)
def test_secret_in_the_file_is_not_shown(text, settings_file):
    """A secret in the file, in whatever form, is refused and not repeated."""
    settings_file(text)
    assert "hunter2" not in refusal()


@pytest.mark.parametrize(
    "url",
    [
        "unknown://me:hunter2@host",
        "sqlite://me:hunter2@host/once.db",
        "me:hunter2@host",
        "redis://me:hunter2@[::1",
        "sqlite://me:hunter2@]/once.db",
        "redis://me:hunter2\u2100@cache/0",  # normalizes to a slash: Python quotes the whole host
        "",
    ],
)
def test_wrong_ledger_shows_no_password(url):
    """A ledger URL that cannot be used is refused without its password."""
    with pytest.raises(ConfigurationError) as refused:
        Bridge(url)
    assert "ledger" in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_nothing_shows_a_secret():
    """Neither settings nor a bridge show the secret or the password of a URL."""
    settings = Settings(secret=SECRET.encode(), ledger="redis://me:hunter2@cache/0")
    bridge = Bridge("memory://", settings=settings)
    shown = f"{settings!r} {settings} {bridge!r} {bridge.open()!r}"
    assert SECRET not in shown
    assert "hunter2" not in shown
    bridge.close()


@pytest.mark.parametrize("first", [SECRET, None])
@pytest.mark.parametrize("second", ["another secret, also long enough", None])
def test_another_secret_is_refused(first, second, tmp_path):
    """A worker with another secret than the ledger's first one does not start, and the error shows neither."""
    url = f"sqlite:///{tmp_path}/once.db"
    with Bridge(url, settings=Settings(secret=first and first.encode())):
        pass
    other = Bridge(url, settings=Settings(secret=second and second.encode()))
    if first is None and second is None:
        other.open()
        other.close()
        return
    with pytest.raises(LedgerRefused) as refused:
        other.open()
    assert not any(secret and secret in str(refused.value) for secret in (first, second))
    other.close()


# --- users' own profiles ----------------------------------------------------------------------------------------


def test_profile_with_everything(own_profile):
    """Every key of a profile is read."""
    profile = own_profile(
        'kind = "state"\nentity = ["desk.id", "floor"]\ntime = "changed.at"\nexplicit_id = "id"\nversion = "revision"\n'
        'exclude = ["seen", "items[].score"]\necho_window_ms = 2000\nstale = false'
    )
    assert profile == Profile(
        topic=DESK,
        kind=Kind.STATE,
        entity=(plain("desk.id"), plain("floor")),
        time=(plain("changed.at"),),
        explicit_id=plain("id"),
        version=plain("revision"),
        exclude=(plain("seen"), plain("items[].score")),
        echo_window_ms=2000,
        stale=False,
    )


def test_profile_with_nothing(own_profile):
    """An empty profile makes a fact that its body and publish time identify."""
    assert own_profile("") == Profile(topic=DESK)


def test_profiles_keep_their_order(settings_file):
    """Profiles are asked in the order of the file."""
    settings_file('[topics."b*"]\nkind = "sample"\n[topics."a*"]\nkind = "fact"\n')
    assert [profile.topic for profile in load_settings().profiles] == ["b*", "a*"]


def desk(after_ms=0, **inner):
    """Build a delivery that only a profile of the user's own can make sense of."""
    usual = {"desk": {"id": "d-1"}, "at": iso(TIME_MS + after_ms), "state": "open", "seen": 1}
    return in_envelope({**usual, **inner}, detail_type=DESK, id=f"{after_ms} {inner}")


STATE = 'kind = "state"\nentity = "desk.id"\ntime = "at"\n'


@pytest.mark.parametrize(
    ("text", "deliveries", "verdicts"),
    [
        (STATE, [desk(0), desk(400), desk(1000), desk(500, state="shut")], ["fresh", "echo", "fresh", "stale"]),
        (STATE + "echo_window_ms = 2000", [desk(0), desk(1900), desk(2100)], ["fresh", "echo", "fresh"]),
        (STATE + "echo_window_ms = 0", [desk(0), desk(1)], ["fresh", "fresh"]),
        (STATE + "stale = false", [desk(1000), desk(0, state="shut")], ["fresh", "fresh"]),
        (STATE + 'version = "n"', [desk(0, n=5), desk(900, n=4), desk(-900, n=6)], ["fresh", "stale", "fresh"]),
        (STATE + 'exclude = "seen"', [desk(0, seen=1), desk(0, seen=2)], ["fresh", "republish"]),
        ('kind = "fact"\ntime = "at"', [desk(1000), desk(0), desk(0)], ["fresh", "fresh", "redelivery"]),
        ('kind = "sample"\ntime = "at"', [desk(1000), desk(0)], ["fresh", "fresh"]),
        ('explicit_id = "desk.id"', [desk(0), desk(0), desk(9)], ["fresh", "redelivery", "conflict"]),
        ("explicit_id = \"join('/', [desk.id, state])\"", [desk(0), desk(0), desk(9)],
         ["fresh", "redelivery", "conflict"]),
        ("kind = 'state'\nentity = 'desk.id || floor'\ntime = 'at'", [desk(9), desk(0, state="x")], ["fresh", "stale"]),
        ("kind = 'state'\nentity = 'desk.id'\ntime = 'times[-1]'",
         [desk(times=[1, TIME_MS + 9]), desk(times=[2, TIME_MS])], ["fresh", "stale"]),
    ],
)  # fmt: skip
def test_profile_at_work(text, deliveries, verdicts, settings_file):
    """A user's profile decides what is one event, an echo or stale, with JMESPath where a path is not enough."""
    settings_file(f"ledger = 'memory://'\n[topics.'{DESK}']\n{text}")
    bridge = Bridge.from_settings()
    bridge.on("*")(lambda event: None)
    assert [result.verdict for result in bridge.process_many(deliveries)] == verdicts
    bridge.close()


@pytest.mark.parametrize("expression", ["join('-', [desk.id, missing])", "sum(desk)", "unknown_function(@)"])
@pytest.mark.parametrize("name", ["explicit_id", "entity", "time", "version"])
def test_expression_that_fails(name, expression, settings_file):
    """An expression that cannot be worked out for an event stops nobody, and the books balance."""
    kind = "state" if name in ("entity", "version") else "fact"
    settings_file(f"ledger = 'memory://'\n[topics.'{DESK}']\nkind = '{kind}'\n{name} = \"{expression}\"")
    bridge = Bridge("memory://")
    with suppress(ConfigurationError):  # one that can never be worked out may be refused at once
        bridge = Bridge.from_settings()
    bridge.on("*")(lambda event: None)
    results = bridge.process_many([envelope(ACW), desk(), call_status()])
    assert [result.column for result in (results[0], results[2])] == ["processed"] * 2
    assert results[1].column in ("processed", "dead")
    assert bridge.books.as_dict()["balanced"]
    bridge.close()


def test_expression_without_jmespath(settings_file, monkeypatch):
    """Where an expression needs jmespath and it is missing, the error names the line that installs it."""
    monkeypatch.setitem(sys.modules, "jmespath", None)
    settings_file(f"[topics.'{DESK}']\ntime = 'times[0]'")
    with pytest.raises(MissingExtra, match="pip install"):
        load_settings()
    settings_file(f"[topics.'{DESK}']\ntime = 'plain.path'")
    assert load_settings().profiles[0].time == (plain("plain.path"),)


def key_under(profile, text):
    """Return the key of a delivery under one profile."""
    event = parse(text)
    return identify(event, Profiles([profile]).of(event), b"secret for this test").key


@pytest.mark.parametrize(
    ("expression", "numbers"),
    [
        ("n", ["1", "1.0", "1.00", "9007199254740993", "9007199254740992"]),
        ("[n][0]", ["1", "1.5", "9007199254740993", "9007199254740992"]),
    ],
)
def test_expressions_keep_numbers_apart(expression, numbers, own_profile):
    """An explicit id that is a number counts exactly, by path and by expression."""
    profile = own_profile(f'explicit_id = "{expression}"')
    texts = [f'{{"detail-type":"{DESK}","detail":{{"eventId":"x","n":{number}}}}}' for number in numbers]
    assert len({key_under(profile, text) for text in texts}) == len(numbers)


@pytest.mark.parametrize("expression", ["n", "[n][0]", "to_string(n)", "join('/', [to_string(n), name])", "abs(n)"])
def test_expressions_see_one_event_in_every_form(expression, own_profile):
    """However an event is written, an expression finds the same in it."""
    profile = own_profile(f'explicit_id = "{expression}"')
    tree = {"detail-type": DESK, "detail": {"eventId": "x", "n": 1.5, "name": "a"}}
    forms = [json.dumps(tree, indent=indent, separators=(",", ":")) for indent in (None, 1)]
    assert len({key_under(profile, form) for form in [*forms, tree]}) == 1
