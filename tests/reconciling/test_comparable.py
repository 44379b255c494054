"""What doctor finds about `reconcile`: whether attendance is kept, and whether Genesys Cloud takes the sign-in."""

import pytest

import genesys_day
from oncebridge import Bridge, Settings
from oncebridge.diagnosis.comparable import LATELY_US
from oncebridge.diagnosis.examination import examine
from oncebridge.errors import ConfigurationError
from oncebridge.settings import load_settings
from oncebridge.settings.genesys import GenesysSettings
from oncebridge.testing.clock import ManualClock
from servers.genesys import CLIENT, SECRET

SIGN_IN = "sign-in at Genesys"


class Examined:
    """An installation with a ledger, settings for Genesys Cloud, and what doctor finds there."""

    def __init__(self, folder, genesys):
        """Write the client's secret where the settings say."""
        self.url = f"sqlite:///{folder / 'once.db'}"
        self.secret = folder / "secret"
        self.secret.write_text(SECRET)
        self.clock = ManualClock((genesys_day.BEGAN_MS + genesys_day.HOUR_MS) * 1000)
        self.sign_in = {
            "client_id": CLIENT,
            "client_secret": f"file:{self.secret}",
            "api_url": genesys.url,
            "login_url": genesys.url,
        }

    def bridge(self, *, attendance, **sign_in):
        """Make a bridge with these settings."""
        settings = Settings(attendance=attendance, genesys=GenesysSettings(**sign_in))
        return Bridge(self.url, settings=settings, clock=self.clock)

    def look(self, *, attendance=True, **sign_in):
        """Examine it; return whether it is right, and its findings by subject."""
        found = examine(self.bridge(attendance=attendance, **sign_in), self.clock)
        assert SECRET not in repr(found)
        return found.is_right, {one.subject: one for one in found.findings}

    def get_a_conversation(self):
        """Process the events of a conversation, with attendance."""
        with self.bridge(attendance=True) as bridge:
            bridge.register("*", lambda event: None)
            bridge.process_many(genesys_day.stream(genesys_day.conversations(1)))


@pytest.fixture
def place(tmp_path, genesys):
    """Return an installation, and a Genesys Cloud beside it."""
    return Examined(tmp_path, genesys)


def test_a_sign_in_that_works_is_good(place, genesys):
    """It signs in once, asks for the watermark and for one page of conversations, and says up to when data is there."""
    is_right, found = place.look(**place.sign_in)
    assert (is_right, found[SIGN_IN].level, found["attendance"].level) == (True, "good", "good")
    assert genesys_day.iso(genesys.watermark_ms)[:19] in found[SIGN_IN].found
    assert (genesys.signed_in, dict(genesys.asked)) == (1, {"/jobs/availability": 1, "/query": 1})


def test_nothing_is_said_where_nobody_asks(place):
    """Without attendance and `[genesys]` there is no finding; with attendance alone, that saved answers are needed."""
    assert not {"attendance", SIGN_IN} & place.look(attendance=False)[1].keys()
    _, found = place.look()
    assert {found[one].level for one in ("attendance", SIGN_IN)} == {"good"}
    assert "--details" in found[SIGN_IN].found


def test_a_sign_in_without_attendance_is_a_warning(place):
    """Where nobody keeps attendance there is nothing to compare with; where other workers keep it, all is well."""
    is_right, found = place.look(attendance=False, **place.sign_in)
    assert (is_right, found["attendance"].level) == (True, "warning")
    assert "attendance = true" in found["attendance"].fix
    place.get_a_conversation()
    found = place.look(attendance=False, **place.sign_in)[1]["attendance"]
    assert (found.level, "other settings" in found.found) == ("good", True)
    assert "since 2026-03-02" in place.look(**place.sign_in)[1]["attendance"].found
    place.clock.advance(2 * LATELY_US / 1_000_000)
    found = place.look(attendance=False, **place.sign_in)[1]["attendance"]
    assert (found.level, "2026-03-02" in found.found) == ("warning", True)


def test_a_ledger_that_cannot_keep_attendance_is_wrong(place):
    """Attendance that is wanted of a ledger which keeps none is wrong before a worker finds out."""

    class Plain:
        """A ledger that can do nothing but its verbs."""

        def __init__(self, ledger):
            verbs = ("open", "close", "get", "extend", "settle", "claim", "purge", "counts")
            self.__dict__ |= {verb: getattr(ledger, verb) for verb in verbs}

    bridge = Bridge(Plain(Bridge("memory://").ledger), settings=Settings(attendance=True))
    found = {one.subject: one for one in examine(bridge, place.clock).findings}
    assert (found["attendance"].level, "cannot keep it" in found["attendance"].found) == ("wrong", True)


def test_a_secret_that_cannot_be_read_here_is_a_warning(place, genesys):
    """Workers need no secret, so that one which is not there is no error; nobody is asked then."""
    place.secret.unlink()
    is_right, found = place.look(**place.sign_in)
    assert (is_right, found[SIGN_IN].level) == (True, "warning")
    assert str(place.secret) in found[SIGN_IN].found
    assert "workers need neither" in found[SIGN_IN].fix
    assert genesys.signed_in == genesys.calls == 0


def test_settings_that_are_not_enough_are_wrong(place):
    """What is missing in `[genesys]` is named."""
    is_right, found = place.look(client_id=CLIENT)
    assert (is_right, found[SIGN_IN].level) == (False, "wrong")
    assert "region, client_secret" in found[SIGN_IN].found


def test_an_address_that_is_none_is_wrong(place):
    """An address that cannot be used is named."""
    is_right, found = place.look(**{**place.sign_in, "api_url": "ftp://example.com"})
    assert (is_right, found[SIGN_IN].level) == (False, "wrong")
    assert "api_url" in found[SIGN_IN].found


def test_a_refused_sign_in_is_wrong(place, genesys):
    """Wrong credentials are said to be, and shown nowhere."""
    place.secret.write_text("another-one-that-is-wrong")
    is_right, found = place.look(**place.sign_in)
    assert (is_right, found[SIGN_IN].level) == (False, "wrong")
    assert "client_secret" in found[SIGN_IN].found
    assert "another-one" not in repr(found)
    assert genesys.calls == 0


@pytest.mark.parametrize("call", [1, 2])
def test_a_missing_right_is_wrong(place, genesys, call):
    """The permission that is missing is named, at whichever call it shows."""
    genesys.faults = {call: 403}
    is_right, found = place.look(**place.sign_in)
    assert (is_right, found[SIGN_IN].level) == (False, "wrong")
    assert "analytics:conversationDetail:view" in found[SIGN_IN].found


def test_a_proxy_without_the_api_is_wrong(place, genesys):
    """A host that knows nothing of analytics is another one than was meant."""
    genesys.faults = {1: 404}
    is_right, found = place.look(**place.sign_in)
    assert (is_right, found[SIGN_IN].level, "api_url" in found[SIGN_IN].fix) == (False, "wrong", True)


@pytest.mark.parametrize("fault", [503, "pause", "truncated"])
def test_genesys_out_of_reach_is_a_warning_at_once(place, genesys, fault):
    """A Genesys Cloud that fails or asks for a pause is not waited for, and does not change how doctor ends."""
    genesys.faults = {1: fault}
    is_right, found = place.look(**place.sign_in)
    assert (is_right, found[SIGN_IN].level) == (True, "warning")
    assert genesys.calls == 1


def test_an_unknown_region_is_refused(tmp_path):
    """A region that is neither known nor a domain is an error of the settings, before anything is examined."""
    file = tmp_path / "oncebridge.toml"
    file.write_text('[genesys]\nregion = "the moon"')
    with pytest.raises(ConfigurationError, match=r"region.*mypurecloud\.de"):
        load_settings(file)
    file.write_text('[genesys]\nregion = "eu-central-1"')
    assert load_settings(file).genesys.region == "mypurecloud.de"
