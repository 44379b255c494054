"""A bridge that keeps attendance, Genesys Cloud beside it, and runs of `reconcile` between the two."""

from contextlib import ExitStack

import pytest

import genesys_day
from oncebridge import Bridge, Settings
from oncebridge.clock import NEVER
from oncebridge.genesys.api import GenesysAPI
from oncebridge.ledgers.memory import MemoryLedger
from oncebridge.reconciling.comparison import Window
from oncebridge.reconciling.gaps import Gaps
from oncebridge.reconciling.place import place_of
from oncebridge.reconciling.study import Question, study_files, study_genesys
from oncebridge.settings.genesys import GenesysSettings
from oncebridge.testing.clock import ManualClock
from servers.genesys import CLIENT, SECRET, running_genesys

DAY_MS = 24 * genesys_day.HOUR_MS


class Installation:
    """One installation: what it got, and what it finds missing."""

    def __init__(self, folder):
        """Begin a day after the conversations."""
        self.folder = folder
        self.clock = ManualClock((genesys_day.BEGAN_MS + DAY_MS) * 1000)
        self.bridge = self.made_bridge()
        self.said = []

    def made_bridge(self):
        """Make a worker that takes every event."""
        bridge = Bridge(MemoryLedger(self.clock), settings=Settings(attendance=True), clock=self.clock)
        bridge.register("*", lambda event: None)
        return bridge

    def get(self, deliveries):
        """Process deliveries."""
        assert all(result.acknowledged for result in self.bridge.process_many(deliveries))

    def api(self, genesys, secret=SECRET, stopping=NEVER):
        """Sign in."""
        self.folder.joinpath("secret").write_text(secret)
        place = f"file:{self.folder / 'secret'}"
        settings = GenesysSettings(client_id=CLIENT, client_secret=place, api_url=genesys.url, login_url=genesys.url)
        return GenesysAPI(settings, self.clock, tell=self.said.append, stopping=stopping)

    def window(self, from_ms=genesys_day.BEGAN_MS - genesys_day.HOUR_MS, until_ms=genesys_day.BEGAN_MS + DAY_MS):
        """Return the day as a question."""
        return Window(from_ms, until_ms)

    def ask(self, genesys, *, expect=None, anew=False, conversation=None, window=None, secret=SECRET, stopping=NEVER):
        """Ask Genesys; return the run and its gaps."""
        place, api = place_of(self.bridge, expect), self.api(genesys, secret, stopping)
        asked = (str(expect), str(window), str(conversation))
        with Gaps() as gaps, ExitStack() as stack:
            stack.callback(api.close)
            question = Question(window or self.window(), conversation, asked)
            now_ms = self.clock.now_us() // 1000
            study, progress = study_genesys(
                api, question, place, gaps, now_ms=now_ms, anew=anew, on_slice=lambda *_: None
            )
            return self._over(study, place, progress)

    def read(self, talks, *, expect=None, watermark_ms=None, window=None, fill=None):
        """Compare with saved answers."""
        place = place_of(self.bridge, expect)
        with Gaps() as gaps:
            found = map(genesys_day.read, talks)
            question = Question((window or self.window())._replace(watermark_ms=watermark_ms))
            study = study_files(found, question, self.made(), place, gaps)
            return self._over(study, place, fill=fill)

    def made(self):
        """Return the time as the name of a run."""
        return genesys_day.iso(self.clock.now_us() // 1000)

    def _over(self, study, place, progress=None, fill=None):
        gaps = list(study.gaps(fill) if fill else study.gaps())
        if fill:
            fill.flush()
        place.runs.keep(study.run)
        if progress is not None:
            place.runs.end(progress)
        self.changes = study.changes
        return study.run, gaps


@pytest.fixture
def installation(tmp_path):
    """Return one on a ledger in memory."""
    made = Installation(tmp_path)
    yield made
    made.bridge.close()


@pytest.fixture
def genesys():
    """Return a running Genesys Cloud."""
    with running_genesys() as server:
        yield server
