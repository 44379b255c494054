"""An error of AWS means the same to the ledger, the source and the sinks, and is said in the same words."""

import botocore.exceptions
import pytest

from oncebridge.amazon import CODES, EXCEPTIONS, Meaning, meaning_of, short_code
from oncebridge.breaker import Open
from oncebridge.errors import ConfigurationError, LedgerRefused, PermanentError
from oncebridge.ledgers.dynamodb.errors import Passing, Place, translate_error
from oncebridge.ledgers.memory import MemoryLedger
from oncebridge.sinks import Breakers, SinkContext
from oncebridge.sources.sqs.queue import Queue, QueueError
from oncebridge.testing.clock import ManualClock
from payloads import ACW, envelope
from sinks.doubles import QUEUE_URL, Amazon, bus_on, named, queue_on, refusal

URL = "https://sqs.eu-central-1.amazonaws.com/123456789012/events"
#: Raised by boto3 without an answer of AWS. Warnings and the errors with a response are left out.
RAISED = sorted(
    (
        kind
        for kind in vars(botocore.exceptions).values()
        if isinstance(kind, type)
        and issubclass(kind, Exception)
        and not issubclass(kind, Warning | botocore.exceptions.ClientError)
    ),
    key=lambda kind: kind.__name__,
)
UNKNOWN_CODES = ["Unheard", "ResourceInUse", "", "no code at all"]


class Failing:
    """A client whose every call fails with one error."""

    def __init__(self, error):
        """Take the error."""
        self.error = error

    def __getattr__(self, operation):
        """Return a call that fails."""

        def call(**_):
            raise self.error

        return call


def at_the_ledger(error):
    """Return the error that a call of the DynamoDB ledger ends with."""
    return translate_error(error, "get_item", Place("once", "eu-central-1"))


def at_the_source(error):
    """Return the error that a call of `consume` ends with."""
    with pytest.raises(QueueError) as caught:
        Queue(Failing(error), URL, poll_seconds=1).receive(1, 30)
    return caught.value


def at_the_sinks(error):
    """Return what one event ends with at a queue and at a bus."""
    clock = ManualClock()
    context = SinkContext(clock=clock, breakers=Breakers(clock), ledger=MemoryLedger(clock), retention_us=1)
    event = named(envelope(ACW))
    return [make(Amazon(error), context).send_many([event])[0] for make in (queue_on, bus_on)]


def made(kind):
    """Make an error of botocore, whatever it needs to be made."""
    return kind.__new__(kind)


def passes_at_a_sink(end):
    """Tell whether an end at a sink says that the trouble may pass: the first call neither refused nor shut it."""
    return not isinstance(end, PermanentError | Open)


def judged(error):
    """Return, for each of ledger, source and sinks, whether it takes an error for one that may pass."""
    ledger, source = at_the_ledger(error), at_the_source(error)
    assert isinstance(ledger, Passing | LedgerRefused)
    queue, bus = at_the_sinks(error)
    return {
        "ledger": isinstance(ledger, Passing),
        "source": source.passing,
        "queue": passes_at_a_sink(queue),
        "bus": passes_at_a_sink(bus),
    }


@pytest.mark.parametrize("code", [*CODES, *UNKNOWN_CODES])
def test_a_code_means_the_same_everywhere(code):
    """Whether an error with a code may pass is the same at the ledger, in `consume` and at each sink."""
    error = refusal(code)
    passes = meaning_of(error).passes
    assert judged(error) == dict.fromkeys(("ledger", "source", "queue", "bus"), passes)


@pytest.mark.parametrize("kind", [*RAISED, ConfigurationError, ValueError, OSError], ids=lambda kind: kind.__name__)
def test_an_exception_means_the_same_everywhere(kind):
    """Whether an error of boto3's own may pass is the same at the ledger, in `consume` and at each sink."""
    error = made(kind)
    passes = meaning_of(error).passes
    assert judged(error) == dict.fromkeys(("ledger", "source", "queue", "bus"), passes)


@pytest.mark.parametrize("status", [413, 429, 500, 503])
def test_a_status_means_the_same_everywhere(status):
    """A code that is not known is judged by its status, in the same way everywhere."""
    assert len(set(judged(refusal("Unheard", status)).values())) == 1


SAME_WORDS = {
    "CredentialRetrievalError": made(botocore.exceptions.CredentialRetrievalError),
    "NoCredentialsError": made(botocore.exceptions.NoCredentialsError),
    "SSOTokenLoadError": made(botocore.exceptions.SSOTokenLoadError),
    "OptInRequired": refusal("OptInRequired"),
    "InvalidAccessKeyId": refusal("InvalidAccessKeyId"),
    "InvalidSecurity": refusal("InvalidSecurity"),
    "ExpiredToken": refusal("ExpiredToken"),
}


@pytest.mark.parametrize("error", SAME_WORDS.values(), ids=SAME_WORDS)
def test_what_is_wrong_with_credentials_is_said_in_the_same_words(error):
    """Credentials have nothing to do with the service: ledger, source and sinks give the same advice."""
    before = {"ledger": "DynamoDB", "source": "SQS", "queue": "SQS", "bus": "EventBridge"}
    queue, bus = at_the_sinks(error)
    said = {"ledger": str(at_the_ledger(error)), "source": str(at_the_source(error)), "queue": queue.last}
    said["bus"] = bus.last
    for who, words in said.items():
        assert meaning_of(error).words(before[who]) in words
        assert "security group" not in words


def test_the_drift_is_over():
    """The errors that once meant three different things will not pass by themselves, wherever they are met."""
    for error in SAME_WORDS.values():
        assert not any(judged(error).values())


def test_every_name_in_the_table_of_exceptions_exists():
    """A misspelt name would mean nothing: each is one of botocore's, or ours."""
    known = {kind.__name__ for kind in RAISED} | {ConfigurationError.__name__}
    assert EXCEPTIONS.keys() <= known


@pytest.mark.parametrize("meaning", Meaning)
def test_each_meaning_is_used(meaning):
    """No meaning is left over that no error has."""
    unlisted = {Meaning.UNREACHABLE, Meaning.NO_HANDLES, Meaning.UNKNOWN}
    assert meaning in {*CODES.values(), *EXCEPTIONS.values()} | unlisted


@pytest.mark.parametrize(
    ("code", "meaning"),
    [
        ("KMS.AccessDeniedException", Meaning.KEY),
        ("KMS.ThrottlingException", Meaning.THROTTLED),
        ("AWS.SimpleQueueService.NonExistentQueue", Meaning.MISSING),
        ("com.amazonaws.events#ValidationException", Meaning.REFUSED),
    ],
)
def test_names_around_a_code_do_not_hide_it(code, meaning):
    """A code is known within the names of a protocol; one of the key's service is about the key."""
    assert CODES[short_code(code)] is meaning


@pytest.mark.parametrize("code", list(CODES))
def test_no_error_quotes_what_amazon_says(code):
    """Amazon's own words may quote the event or a token, so none of the errors hold them."""
    error = refusal(code, message="SECRET-CANARY")
    shown = [at_the_ledger(error), at_the_source(error), *at_the_sinks(error)]
    assert "CANARY" not in " ".join(map(str, shown))
    assert QUEUE_URL.split("/")[3] not in " ".join(map(str, shown[2:]))
