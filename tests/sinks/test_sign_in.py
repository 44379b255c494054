"""A webhook that signs in: one token for all events, renewed in time and when it is refused."""

import base64
import json

import pytest

from oncebridge import ConfigurationError
from oncebridge.breaker import Open
from oncebridge.settings import load_settings
from oncebridge.settings.secrets import Secret
from oncebridge.settings.sinks.webhook import OAuthSettings
from oncebridge.sinks.exchange import ReceiverUnavailable
from oncebridge.sinks.sign_in import SignInRefused
from payloads import ACW, envelope
from servers.receiver import Reply, running_receiver
from sinks.test_webhook import OPENS_AFTER, event_of

HIDDEN = "a-secret-that-nobody-may-see"
BASIC = "Basic " + base64.b64encode(f"me:{HIDDEN}".encode()).decode()


class Desk:
    """A receiver that takes events with a valid token, and gives tokens out."""

    def __init__(self):
        """Give out nothing yet."""
        self.valid, self.given = set(), 0
        self.sign_in = lambda: Reply(body=json.dumps({"access_token": self.new_token(), "expires_in": 1000}).encode())

    def new_token(self):
        """Make a token."""
        self.given += 1
        self.valid.add(f"token-{self.given}")
        return f"token-{self.given}"

    def __call__(self, request):
        """Answer a sign-in or an event."""
        if request.path == "/oauth/token":
            assert request.body == b"grant_type=client_credentials&scope=events"
            return self.sign_in() if request.headers["Authorization"] == BASIC else Reply(401)
        token = request.headers["Authorization"].removeprefix("Bearer ")
        return Reply() if token in self.valid else Reply(401)


@pytest.fixture
def desk():
    """Return what a receiver answers by."""
    return Desk()


@pytest.fixture
def signing(sink, desk):
    """Return a sink that signs in at the receiver that it posts to, and the receiver."""
    with running_receiver(desk) as receiver:
        url = receiver.url.replace("/events", "/oauth/token")
        oauth = OAuthSettings(token_url=url, client_id="me", client_secret=Secret("env:SECRET", HIDDEN), scope="events")
        yield sink(receiver.url, oauth=oauth), receiver


def events(receiver):
    """Return the requests that were events."""
    return [request for request in receiver.requests if request.path == "/events"]


def test_one_token_serves_all_events(signing, desk):
    """Events are posted with the token of one sign-in."""
    send, receiver = signing
    for number in range(5):
        send(event_of(envelope(ACW), key=f"ob1_{number:032}"))
    assert [request.headers["Authorization"] for request in events(receiver)] == ["Bearer token-1"] * 5
    assert len(receiver.requests) == 6


def test_a_token_is_renewed_before_it_ends(signing, desk, clock):
    """A token is not used for the last part of its time."""
    send, receiver = signing
    send(event_of(envelope(ACW)))
    clock.advance(960)
    send(event_of(envelope(ACW)))
    assert [request.headers["Authorization"] for request in events(receiver)] == ["Bearer token-1", "Bearer token-2"]


def test_a_refused_token_is_renewed_once(signing, desk):
    """A token that is refused is renewed within the same attempt; a second refusal is no dead letter."""
    send, _ = signing
    send(event_of(envelope(ACW)))
    desk.valid.clear()
    send(event_of(envelope(ACW)))
    assert desk.given == 2
    desk.new_token = lambda: "never-valid"
    desk.valid.clear()
    with pytest.raises(SignInRefused, match="accepts no token") as refused:
        send(event_of(envelope(ACW)))
    assert isinstance(refused.value, ReceiverUnavailable)


@pytest.mark.parametrize(
    "reply",
    [
        Reply(401),
        Reply(400),
        Reply(500),
        Reply(302),
        Reply(body=b"no json"),
        Reply(body=b"{}"),
        Reply(body=b'{"access_token": "two\\nlines"}'),
        Reply(body=b'{"access_token": 5}'),
        Reply(body=b"x" * 100_000),
        Reply(then="close before answer"),
    ],
)
def test_a_sign_in_that_fails_keeps_events_waiting(signing, desk, reply):
    """Without a token nothing is sent, the receiver counts as out of reach, and no secret is in the reason."""
    send, receiver = signing
    desk.sign_in = lambda: reply
    for _ in range(OPENS_AFTER):
        with pytest.raises(ReceiverUnavailable) as failed:
            send(event_of(envelope(ACW)))
        assert HIDDEN not in str(failed.value)
        assert "taken effect" not in str(failed.value)
    with pytest.raises(Open):
        send(event_of(envelope(ACW)))
    assert not events(receiver)


def test_settings_say_how_to_sign_in(tmp_path, monkeypatch):
    """The table is read like others; what is missing, unknown or there twice is named, and no secret is shown."""
    monkeypatch.setenv("SECRET", HIDDEN)
    file = tmp_path / "oncebridge.toml"

    def sink(oauth, more=""):
        file.write_text(f'[sinks.crm]\nurl = "https://crm.example/"\ntopics = ["*"]\noauth = {oauth}\n{more}')
        (made,) = load_settings(file).sinks
        return made

    whole = '{ token_url = "https://login.example/t", client_id = "me", client_secret = "env:SECRET" }'
    made = sink(whole)
    assert (made.oauth.client_id, made.oauth.client_secret.value, made.oauth.scope) == ("me", HIDDEN, "")
    assert HIDDEN not in repr(made)
    for wrong, words in {
        '{ client_id = "me", client_secret = "env:SECRET" }': "token_url",
        whole.replace("client_id", "client"): "client_id",
        whole.replace("}", ', more = "x" }'): "more",
        whole.replace("env:SECRET", HIDDEN): "env:NAME",
        '"https://login.example"': "table",
    }.items():
        with pytest.raises(ConfigurationError, match=words) as refused:
            sink(wrong)
        assert HIDDEN not in str(refused.value)
    with pytest.raises(ConfigurationError, match="twice"):
        sink(whole, 'bearer = "env:SECRET"')
