"""`bridge.dead_letters`: list, show, redrive and discard, from a program."""

from datetime import UTC, datetime, timedelta

import pytest

from oncebridge import Bridge, ConfigurationError, PermanentError, Settings
from payloads import ACW, CANARIES, PRESENCE, envelope, raw, routing_status

NO_KEY = "ob1_" + "0" * 32


class Program:
    """A bridge with handlers that fail until told otherwise, and what took effect."""

    def __init__(self, url, *names, **settings):
        """Register a handler under each name."""
        self.bridge = Bridge(url, settings=Settings(**settings))
        self.failing = {*names}
        self.effects = []
        for name in names:
            self.bridge.on(ACW, name=name)(self._handler(name))

    def _handler(self, name):
        def handle(event):
            if name in self.failing:
                raise PermanentError from ValueError(f"no luck with {event.body}")
            self.effects.append((name, event.key))

        return handle

    @property
    def letters(self):
        """The letters as they are listed, by handler."""
        return {letter.handler: letter for letter in self.bridge.dead_letters.list()}


@pytest.fixture
def make(tmp_path):
    """Make programs on one ledger."""
    made = []

    def make(*names, **settings):
        made.append(Program(f"sqlite:///{tmp_path / 'once.db'}", *names, **settings))
        return made[-1]

    yield make
    for program in made:
        program.bridge.close()


@pytest.fixture
def program(make):
    """Return a program whose two handlers have each left a dead letter of one event."""
    program = make("crm", "desk")
    program.result = program.bridge.process(envelope(ACW))
    assert program.result.outcome == "dead"
    return program


# --- list and show ----------------------------------------------------------------------------------------------


def test_the_list_says_what_a_list_may_say(program):
    """Each letter has its key, handler, topic, reason and times, and nothing of what it holds."""
    assert set(program.letters) == {"crm", "desk"}
    letter = program.letters["crm"]
    assert (letter.key, letter.topic, letter.attempts) == (program.result.key, ACW, 1)
    assert "PermanentError" in letter.reason
    assert (letter.raw, letter.detail) == (None, "")


def test_one_is_shown_with_all_it_holds(program):
    """`show` has the delivery as it came and the traceback, which its repr never shows."""
    shown = program.bridge.dead_letters.show(program.result.key)
    assert {letter.handler for letter in shown} == {"crm", "desk"}
    for letter in shown:
        assert letter.raw == raw(envelope(ACW))
        assert "no luck with" in letter.detail
        assert CANARIES["name"] not in repr(letter)
        assert "no luck with" not in repr(letter)
    assert program.bridge.dead_letters.show(NO_KEY) == ()


def test_filters(program):
    """Topic, reason and times choose; a time without a zone is refused, since nobody can tell when that is."""
    program.bridge.process(b"no event")
    letters, now = program.bridge.dead_letters, datetime.now(UTC)
    ago, soon = now - timedelta(hours=1), now + timedelta(hours=1)
    assert len([*letters.list()]) == 3
    assert {letter.topic for letter in letters.list(topic="v2.detail.*")} == {ACW}
    assert [letter.reason.split(":")[0] for letter in letters.list(reason="unreadable")] == ["unreadable"]
    assert len([*letters.list(since=ago, until=soon)]) == 3
    assert not [*letters.list(since=soon)]
    assert not [*letters.list(until=ago)]
    with pytest.raises(ConfigurationError, match="since: expected a time with its zone"):
        letters.list(since=datetime(2026, 1, 1))  # noqa: DTZ001


@pytest.mark.parametrize("ago", ["1h", "90m", "2d", "1h30m", timedelta(minutes=5), "2020-01-01", "2020-01-01T00:00Z"])
def test_times_are_said_in_several_ways(program, ago):
    """A duration means so long ago; until it there is nothing yet, and since it there is everything."""
    letters = program.bridge.dead_letters
    assert len([*letters.list(since=ago)]) == 2
    assert not [*letters.list(until=ago)]


@pytest.mark.parametrize("wrong", ["yesterday", "1", "5x", "-1h", "1.5h", "", "h", "1h ", "٣h", "9999999d", 3600])
def test_a_time_that_is_none_is_refused(program, wrong):
    """The error names the filter and the value, and says how times are written."""
    with pytest.raises(ConfigurationError, match=f"since: expected .* such as 30m, 2h or 3d.* got {wrong!r}"):
        program.bridge.dead_letters.list(since=wrong)


def test_a_limit_takes_the_oldest(program):
    """The list is the oldest first, so a limit keeps the oldest; a limit that is none is refused."""
    program.bridge.process(b"no event")
    letters = program.bridge.dead_letters
    everything = [*letters.list()]
    assert [*letters.list(limit=2)] == everything[:2]
    assert [*letters.list(limit=9)] == [*letters.list(limit=10**30)] == everything
    for wrong in (0, -1, True, "2"):
        with pytest.raises(ConfigurationError, match="limit: expected a number from 1"):
            letters.list(limit=wrong)


def test_keys_are_a_filter_like_any_other(program):
    """Keys choose the letters of all their handlers, the other filters still apply, and nothing they hold is shown."""
    program.bridge.process(b"no event")
    letters = program.bridge.dead_letters
    chosen = [*letters.list(keys=[program.result.key, program.result.key])]
    assert {letter.handler for letter in chosen} == {"crm", "desk"}
    assert [(letter.raw, letter.detail) for letter in chosen] == [(None, "")] * 2
    assert len([*letters.list(keys=[program.result.key], limit=1)]) == 1
    assert not [*letters.list(keys=[program.result.key], reason="unreadable")]
    assert not [*letters.list(keys=[program.result.key], since=timedelta(hours=-1))]
    assert len([*letters.list(since=timedelta.max, until=timedelta.min)]) == 3
    for keys in (NO_KEY, ["nonsense"], [NO_KEY]):
        with pytest.raises(ConfigurationError, match=r"expected a list of keys|is no key|no dead letter under"):
            letters.list(keys=keys)


def test_counts_are_by_reason_and_topic(program):
    """Letters are counted by reason and topic, the most frequent first, with the times of the oldest and the newest."""
    program.bridge.process(b"no event")
    letters = program.bridge.dead_letters
    most, least = letters.counts()
    assert (most.number, most.topic, least.number, least.topic) == (2, ACW, 1, "")
    assert "PermanentError" in most.reason
    times = [letter.changed_ms for letter in letters.list(topic=ACW)]
    assert (most.oldest_ms, most.newest_ms) == (min(times), max(times))
    assert letters.counts(reason="unreadable") == (least,)


def test_what_the_filters_list_is_what_they_redrive_and_discard(program):
    """`redrive` and `discard` take the filters of `list`, do nothing to other letters, and return a result for each."""
    program.bridge.process(b"no event")
    program.failing.clear()
    letters = program.bridge.dead_letters
    (chosen,) = letters.list(topic=ACW, limit=1)
    (result,) = letters.redrive(topic=ACW, limit=1)
    assert (result.outcome, [name for name, _ in program.effects]) == ("done", [chosen.handler])
    (discarded,) = letters.discard(reason="unreadable", since="1h")
    assert (discarded.outcome, len([*letters.list()])) == ("discard", 1)
    assert [one.outcome for one in letters.redrive(all=True)] == ["done"]
    assert letters.discard(all=True) == letters.redrive(topic="*") == ()


def test_everything_is_redriven_or_discarded_only_when_asked(program):
    """Without a filter `all=True` is needed, a limit is none, and a letter beside filters is refused."""
    letters = program.bridge.dead_letters
    for act in (letters.redrive, letters.discard):
        for nothing in ({}, {"limit": 5}, {"topic": None}, {"keys": []}):
            with pytest.raises(ConfigurationError, match="all=True"):
                act(**nothing)
        with pytest.raises(ConfigurationError, match="a letter and filters"):
            act(program.result.key, topic=ACW)
        with pytest.raises(TypeError, match="toppic"):
            act(toppic=ACW)
    assert len(program.letters) == 2


# --- redrive ----------------------------------------------------------------------------------------------------


def test_a_letter_is_redriven_to_its_own_handler(program):
    """Redriving one letter calls the handler of its name, under the event's key, and no other."""
    program.failing.clear()
    result = program.bridge.dead_letters.redrive(program.letters["desk"])
    assert (result.verdict, result.outcome) == ("fresh", "done")
    assert program.effects == [("desk", program.result.key)]
    assert set(program.letters) == {"crm"}


def test_a_key_redrives_the_letters_of_all_its_handlers(program):
    """A key stands for every letter under it; what still fails speaks for the rest."""
    program.failing = {"crm"}
    assert program.bridge.dead_letters.redrive(program.result.key).outcome == "dead"
    assert [name for name, _ in program.effects] == ["desk"]
    program.failing.clear()
    assert program.bridge.dead_letters.redrive(program.result.key).outcome == "done"
    assert sorted(name for name, _ in program.effects) == ["crm", "desk"]
    assert not program.letters


def test_a_letter_that_is_gone_by_now_is_no_error(program):
    """A letter that somebody else has redriven since it was listed is acknowledged, and not done twice."""
    program.failing.clear()
    listed = program.letters["crm"]
    program.bridge.dead_letters.redrive(listed)
    again = program.bridge.dead_letters.redrive(listed)
    assert (again.acknowledged, again.outcome) == (True, None)
    assert [name for name, _ in program.effects] == ["crm"]


def test_keys_that_are_none_are_refused(program):
    """A key without a letter, and a text that is no key, are the caller's mistakes."""
    letters = program.bridge.dead_letters
    for act in (letters.redrive, letters.discard):
        with pytest.raises(ConfigurationError, match=f"no dead letter under {NO_KEY}"):
            act(NO_KEY)
        with pytest.raises(ConfigurationError, match="'nonsense' is no key"):
            act("nonsense")


@pytest.mark.parametrize("unhandled", ["acknowledge", "dead"])
@pytest.mark.parametrize("names", [(), ("other",), ("",)])
def test_a_letter_whose_handler_is_not_there_says_so(program, make, names, unhandled):
    """Where no handler has the letter's name the result is unhandled, at once, and the letter stays as it is."""
    other = make(*names, unhandled=unhandled)
    other.failing.clear()
    for letter in program.letters.values():
        result = other.bridge.dead_letters.redrive(letter)
        assert (result.verdict, result.outcome, result.acknowledged) == ("unhandled", "dead", True)
        assert f"no handler named {letter.handler!r} takes its topic" in result.reason
    assert other.effects == []
    assert set(program.letters) == {"crm", "desk"}


def test_a_letter_of_a_nameless_handler_is_not_given_to_a_named_one(make):
    """A handler that got a name since is another handler: the letter says that its own had none."""
    before = make("")
    before.bridge.process(envelope(ACW))
    after = make("crm")
    after.failing.clear()
    (letter,) = before.letters.values()
    result = after.bridge.dead_letters.redrive(letter)
    assert (result.verdict, after.effects) == ("unhandled", [])
    assert "without a name" in result.reason
    before.failing.clear()
    assert before.bridge.dead_letters.redrive(letter).outcome == "done"


def test_what_came_in_wrong_is_redriven_to_all_named_handlers(make):
    """A letter that no handler ever got goes to every handler that takes it, named or not, once it may come in."""
    strict = make("crm", "desk", allowed_orgs=("another",))
    strict.failing.clear()
    assert strict.bridge.process(envelope(ACW)).verdict == "dead"
    (letter,) = strict.letters.values()
    assert strict.bridge.dead_letters.redrive(letter).reason.startswith("still not allowed")
    open_ = make("crm", "desk")
    open_.failing.clear()
    assert open_.bridge.dead_letters.redrive(letter).outcome == "done"
    assert sorted(name for name, _ in open_.effects) == ["crm", "desk"]
    assert not open_.letters


def test_a_letter_that_fails_at_one_of_its_handlers_goes_on_as_that_ones_letter(make):
    """Redriven to several handlers, what one of them refuses becomes that handler's own letter; nothing is lost."""
    strict = make(allowed_orgs=("another",))
    strict.bridge.process(envelope(ACW))
    (letter,) = strict.letters.values()
    program = make("crm", "desk")
    program.failing = {"crm"}
    assert program.bridge.dead_letters.redrive(letter).outcome == "dead"
    assert [name for name, _ in program.effects] == ["desk"]
    assert set(program.letters) == {"crm"}
    program.failing.clear()
    assert program.bridge.dead_letters.redrive(program.letters["crm"]).outcome == "done"
    assert sorted(name for name, _ in program.effects) == ["crm", "desk"]


def test_an_unhandled_event_is_redriven_once_a_handler_is_there(make):
    """Kept under its bytes, an unhandled event is fresh to the handler that comes, and a duplicate after that."""
    before = make(unhandled="dead")
    before.bridge.process_many([envelope(ACW), envelope(ACW, id="twin"), envelope(PRESENCE), routing_status("IDLE", 1)])
    assert len([*before.bridge.dead_letters.list()]) == 4
    after = make("crm")
    after.failing.clear()
    results = [after.bridge.dead_letters.redrive(letter) for letter in before.bridge.dead_letters.list(topic=ACW)]
    assert sorted(result.verdict for result in results) == ["fresh", "republish"]
    assert len(after.effects) == 1
    assert {letter.topic for letter in after.bridge.dead_letters.list()} == {
        PRESENCE,
        routing_status("", 1)["detail-type"],
    }
    assert after.bridge.process(envelope(ACW)).column == "redelivery"


# --- discard ----------------------------------------------------------------------------------------------------


def test_discard_gives_up_for_good(program):
    """A discarded letter is gone with what it held, and its event is not tried again when it comes again."""
    assert program.bridge.dead_letters.discard(program.letters["crm"]).outcome == "discard"
    assert set(program.letters) == {"desk"}
    assert program.bridge.dead_letters.discard(program.result.key).outcome == "discard"
    program.failing.clear()
    assert program.bridge.process(envelope(ACW)).column == "redelivery"
    assert program.effects == []
