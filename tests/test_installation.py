"""Whether an installation is right, and what it promises: rules on findings, without any ledger."""

import pytest

from oncebridge import RetryPolicy
from oncebridge.diagnosis import installation, retries
from oncebridge.handlers import Handlers
from oncebridge.ledgers import SCHEMES
from oncebridge.ledgers.findings import Finding, Level
from oncebridge.sinks.promise import AT_LEAST_ONCE, EFFECTIVELY_ONCE, EXACTLY_ONCE, SinkPromise

GOOD = Finding(level=Level.GOOD, subject="a", found="fine")
WARNING = Finding(level=Level.WARNING, subject="b", found="so-so", weakens="the moon is full")
WRONG = Finding(level=Level.WRONG, subject="c", found="bad", weakens="the ledger forgets")
HARMLESS = Finding(level=Level.WRONG, subject="d", found="bad, but not for the promise")


@pytest.fixture
def handlers():
    """Register a handler with a transaction, and one without."""
    both = Handlers()
    both.add("*", lambda event, transaction: None, name="crm:put")
    both.add("*", lambda event: None, name="crm:send")
    return both


def promised(*findings, handlers=(), scheme="sqlite", transactions=True, at_sinks=None):
    """Return the promises, by handler."""
    made = installation.promises(handlers, scheme, findings, transactions=transactions, at_sinks=at_sinks)
    return {promise.handler: promise for promise in made}


# --- findings ---------------------------------------------------------------------------------------------------


def test_warnings_are_allowed():
    """An installation is right unless something is wrong."""
    assert installation.is_right([])
    assert installation.is_right([GOOD, WARNING])
    assert not installation.is_right([GOOD, WARNING, HARMLESS])


def test_a_ledger_that_looked_itself_knows_better():
    """What is fine in general gives way to a ledger's own finding of that subject; what is not fine stays."""
    own = Finding(level=Level.GOOD, subject="a", found="fine, and here is why")
    other = Finding(level=Level.GOOD, subject="b", found="fine by me")
    assert installation.together([GOOD, WARNING], [own, other]) == [WARNING, own, other]
    assert installation.together([GOOD, WARNING], []) == [GOOD, WARNING]


@pytest.mark.parametrize(
    ("days", "queue_days", "level"),
    [
        (30, 4, Level.GOOD),  # the defaults
        (23, 4, Level.GOOD),
        (22.9, 4, Level.WARNING),
        (9.1, 4, Level.WARNING),
        (9, 4, Level.WRONG),  # the last retry may come just then
        (0, 4, Level.WRONG),
        (5, 0, Level.WRONG),
        (5.1, 0, Level.WARNING),
        (19, 0, Level.GOOD),
        (30, 14, Level.WARNING),
        (33, 14, Level.GOOD),
        (19, 14, Level.WRONG),
    ],
)
def test_retention_is_longer_than_the_retries_in_front(days, queue_days, level):
    """Events are remembered for longer than Genesys, EventBridge and the queue try, and a dead-letter queue keeps."""
    found = installation.retention(days, queue_days)
    assert found.level is level
    assert bool(found.weakens) is bool(found.fix) is (level is not Level.GOOD)


def test_a_short_retention_is_told_in_numbers():
    """Whoever must change the retention is told what it is, what is added up, and what to set."""
    found = installation.retention(7, 6)
    assert "7 days" in found.found
    assert "11 days (Genesys 4 + EventBridge 1 + queue 6)" in found.found
    assert "retention_days to more than 11" in found.fix
    assert "25" in found.fix
    assert "dead-letter queue" in installation.retention(12, 6).found


@pytest.mark.parametrize(
    ("times_ms", "lease_seconds", "level"),
    [
        ([1, 1, 1, 1, 900], 30, Level.GOOD),  # one slow answer says nothing
        ([900, 80, 80, 80, 1], 30, Level.WARNING),
        ([20] * 5, 0.1, Level.WRONG),
        ([20] * 5, 0.2, Level.GOOD),
        ([4000] * 5, 30, Level.WRONG),
    ],
)
def test_latency_is_judged_by_the_median_and_by_the_lease(times_ms, lease_seconds, level):
    """A ledger far away is a warning; one so far that claims run out before they are extended is wrong."""
    assert installation.latency([ms * 1000 for ms in times_ms], lease_seconds).level is level


@pytest.mark.parametrize("scheme", [scheme for scheme in SCHEMES if scheme not in ("memory", "sqlite")])
def test_a_server_out_of_reach_names_what_to_check(scheme):
    """A refused or timed-out connection is wrong, and leads to address, network, TLS and who one is."""
    found = installation.unreachable(scheme, "connection refused")
    assert (found.level, found.found) == (Level.WRONG, "connection refused")
    for word in ("VPC", "security group", "TLS"):
        assert word in found.fix
    assert "credentials" in found.fix if scheme == "dynamodb" else "address" in found.fix and "password" in found.fix


def test_a_file_out_of_reach_is_no_matter_of_the_network():
    """For a file, the error itself says what to do."""
    assert installation.unreachable("sqlite", "disk full; make room").fix == ""


# --- the promise ------------------------------------------------------------------------------------------------


def test_a_handler_with_the_transaction_has_exactly_once(handlers):
    """What is written in the transaction that settles takes effect exactly once; anything else at least once."""
    promises = promised(GOOD, handlers=handlers)
    assert {name: promise.promise for name, promise in promises.items()} == {
        "crm:put": "exactly once",
        "crm:send": "at least once",
    }
    assert "SQLite file" in promises["crm:put"].sentence
    assert "effectively once where the receiver honours event.key" in promises["crm:send"].sentence
    assert "effectively" not in promises["crm:put"].sentence


@pytest.mark.parametrize("scheme", ["sqlite", "postgres", "postgresql", "dynamodb"])
def test_the_promise_says_where_the_transaction_writes(scheme, handlers):
    """Exactly once holds in one place, which the sentence names."""
    sentence = promised(handlers=handlers, scheme=scheme)["crm:put"].sentence
    assert scheme[:6].lower() in sentence.lower()


def test_something_wrong_breaks_exactly_once(handlers):
    """A wrong finding that weakens the promise leaves at least once, with its reason."""
    promise = promised(GOOD, WRONG, handlers=handlers)["crm:put"]
    assert promise.promise == "at least once"
    assert promise.weakened_by == ["the ledger forgets"]
    assert promise.sentence.endswith("because the ledger forgets")


def test_a_warning_leaves_a_doubt(handlers):
    """A warning that weakens the promise lets it stand, with its reason."""
    promise = promised(WARNING, handlers=handlers)["crm:put"]
    assert promise.promise == "exactly once"
    assert promise.sentence.endswith("not beyond doubt, because the moon is full")


def test_what_does_not_weaken_the_promise_is_not_in_it(handlers):
    """A finding without such a reason changes no promise, however wrong it is."""
    assert promised(HARMLESS, GOOD, handlers=handlers) == promised(handlers=handlers)


@pytest.mark.parametrize("name", ["crm:put", "crm:send"])
def test_every_reason_is_given(name, handlers):
    """Each sentence is one sentence about its handler, and names every reason once."""
    promise = promised(WARNING, GOOD, WRONG, handlers=handlers)[name]
    assert promise.weakened_by == ["the moon is full", "the ledger forgets"]
    assert promise.sentence.startswith(f"{name}: at least once, ")
    assert [promise.sentence.count(reason) for reason in promise.weakened_by] == [1, 1]
    assert "\n" not in promise.sentence


def test_without_handlers_any_handler_is_spoken_of():
    """With none named, there is a sentence for each kind that the ledger allows."""
    assert [promise.promise for promise in promised().values()] == ["exactly once", "at least once"]
    (only,) = promised(scheme="redis", transactions=False).values()
    assert (only.handler, only.promise) == ("any handler", "at least once")


# --- the promise of sinks ---------------------------------------------------------------------------------------


class Sent:
    """A sink that says of itself how often an event takes effect there."""

    def __init__(self, *promise, **more):
        """Take the promise."""
        self.promise = SinkPromise(*promise, **more)

    def __call__(self, event):
        """Send nothing."""


def with_sinks(*topics, **sinks):
    """Register sinks by name, each for these topics."""
    handlers = Handlers()
    for name, sink in sinks.items():
        for topic in topics or ("*",):
            handlers.add(topic, sink, name=name.removesuffix("_"))
    return handlers


def test_a_sink_says_itself_how_often_an_event_takes_effect():
    """The promise of a sink is its own, once for all of its topics; that of `downstream_url` goes by that name."""
    sinks = {"crm": Sent(EFFECTIVELY_ONCE, "its key is honoured"), "_": Sent(AT_LEAST_ONCE, "nobody looks")}
    sentences = [promise.sentence for promise in promised(handlers=with_sinks("a", "b", **sinks)).values()]
    assert sentences == [
        "crm: effectively once, because its key is honoured",
        "downstream_url: at least once, because nobody looks",
    ]


def test_a_sink_in_the_transaction_that_settles_relies_on_the_ledger():
    """What is wrong with the ledger breaks the promise of a sink in its transaction, and a warning leaves a doubt."""
    sinks = with_sinks(rows=Sent(EXACTLY_ONCE, "both or neither"))
    assert promised(GOOD, HARMLESS, handlers=sinks)["rows"].promise == EXACTLY_ONCE
    assert promised(WARNING, handlers=sinks)["rows"].sentence.endswith(
        "because both or neither; not beyond doubt, because the moon is full"
    )
    broken = promised(WRONG, handlers=sinks)["rows"]
    assert broken.sentence == "rows: at least once, not exactly once, because the ledger forgets"


def test_a_sink_that_knows_what_it_has_seen_does_not_rely_on_the_ledger():
    """Only that the ledger's retention is also its own matters to it, and what was found at itself, not at others."""
    sinks = with_sinks(rows=Sent(EXACTLY_ONCE, "it keeps keys", whatever_the_ledger=True))
    assert promised(WRONG, WARNING, handlers=sinks)["rows"].sentence == "rows: exactly once, because it keeps keys"
    short = installation.retention(1, 4)
    assert promised(short, handlers=sinks)["rows"].promise == AT_LEAST_ONCE
    assert promised(handlers=sinks, at_sinks={"rows": [WRONG]})["rows"].promise == AT_LEAST_ONCE
    assert promised(handlers=sinks, at_sinks={"other": [WRONG]})["rows"].promise == EXACTLY_ONCE


def test_what_is_found_at_a_sink_names_it():
    """In the table of findings, those of a sink carry its name."""
    assert [one.subject for one in installation.of_sink("rows", [GOOD, WRONG])] == ["sink rows: a", "sink rows: c"]


def test_no_ledger_no_promise(handlers):
    """While the ledger does not answer nothing is promised but that nothing is lost."""
    assert [promise.handler for promise in installation.no_promises(handlers)] == ["crm:put", "crm:send"]
    (only,) = installation.no_promises([])
    assert (only.handler, only.promise) == ("any handler", "none")
    assert "nothing is lost" in only.sentence


def test_a_secret_that_may_be_forgotten_is_not_good_and_breaks_what_rests_on_keys():
    """Where the ledger may forget its own secret, keys may change: no receiver knows an event by the old one."""
    assert installation.secret(given=True, forgettable=True).level is Level.GOOD
    assert installation.secret(given=False).level is Level.GOOD
    found = installation.secret(given=False, forgettable=True)
    assert found.level is Level.WARNING
    assert "secret_file" in found.fix
    rows = Sent(EXACTLY_ONCE, "it keeps keys", whatever_the_ledger=True)
    sinks = with_sinks(rows=rows, crm=Sent(EFFECTIVELY_ONCE, "its key is honoured"))
    for name, level in (("rows", EXACTLY_ONCE), ("crm", EFFECTIVELY_ONCE)):
        broken = promised(found, handlers=sinks)[name]
        assert broken.promise == AT_LEAST_ONCE
        assert broken.sentence.startswith(f"{name}: at least once, not {level}, because the ledger may forget")
    assert all("effectively" not in promise.sentence for promise in promised(found).values())


def test_letters_that_only_a_forgetful_ledger_keeps_are_warned_of():
    """Nobody delivers a dead letter again, so one that must last is sent on."""
    assert installation.dead_letters(elsewhere=True).level is Level.GOOD
    found = installation.dead_letters(elsewhere=False)
    assert found.level is Level.WARNING
    assert "dead_letter_queue" in found.fix


# --- retries, and the queue in front ----------------------------------------------------------------------------


def handlers_of(**policies):
    """Register handlers with these policies, by name."""
    handlers = Handlers()
    for name, policy in policies.items():
        handlers.add("v2.users.{id}.presence", print, name=name, retry=policy)
    return handlers


@pytest.mark.parametrize(
    ("policy", "days", "level", "words"),
    [
        (RetryPolicy(), 4, Level.GOOD, "10 attempts within 2.04 h to 4.08 h"),
        (RetryPolicy(), 0.1, Level.WARNING, "keeps a message for 0.1 days"),
        (RetryPolicy(attempts=200), 4, Level.WARNING, "200 attempts within 4.04 days to 8.09 days"),
        (RetryPolicy(cap_seconds=86_400), 14, Level.WARNING, "more than 12 hours"),
        (RetryPolicy(attempts=1), 4, Level.GOOD, "1 attempt"),
    ],
)
def test_events_are_not_tried_for_longer_than_their_queue_keeps_them(policy, days, level, words):
    """A queue that drops a message before its last attempt, or cannot hide it for so long, is warned of."""
    (found,) = retries.spans([], policy, days)
    assert (found.level, found.subject) == (level, "retries")
    assert words in found.found
    assert bool(found.fix) is (level is not Level.GOOD)


def test_each_policy_is_judged_once():
    """Handlers of one policy are one finding, which names them; a policy of its own is another."""
    found = retries.spans(handlers_of(crm=None, audit=None, board=RetryPolicy(attempts=2)), RetryPolicy(), 4)
    assert [one.found.partition(":")[0] for one in found] == ["crm, audit", "board"]


@pytest.mark.parametrize(
    ("attributes", "levels"),
    [
        ({"MessageRetentionPeriod": "345600"}, [Level.GOOD]),
        ({"MessageRetentionPeriod": "1209600"}, [Level.WARNING, Level.GOOD]),
        ({"RedrivePolicy": '{"maxReceiveCount": 3}'}, [Level.WARNING]),
        ({"RedrivePolicy": '{"maxReceiveCount": "10"}'}, [Level.WARNING]),
        ({"RedrivePolicy": '{"maxReceiveCount": 100}'}, [Level.GOOD]),
        ({"RedrivePolicy": "["}, [Level.GOOD]),
        ({}, [Level.GOOD]),
    ],
)
def test_a_queue_gives_up_later_than_we_do(attributes, levels):
    """A queue that hands a message out no more often than it is tried is warned of, and so is another retention."""
    assert [one.level for one in retries.queue(attributes, 10, 4)] == levels
