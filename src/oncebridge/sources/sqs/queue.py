"""One SQS queue: the calls that `consume` needs, and their errors in our words.

An unknown error counts as passing: every call here may be repeated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urlsplit

import msgspec

from oncebridge.amazon import LazyClient, Meaning, code_of, meaning_of, queue_client, require_boto3
from oncebridge.discreet import Discreet
from oncebridge.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

AT_ONCE: Final = 10  # as many messages as SQS takes and returns in one call
HIDDEN_SECONDS_MAX: Final = 43_200  # from the moment a message was received; SQS keeps none hidden for longer
ANSWER_SECONDS: Final = 10
_SETTING: Final = "QUEUE_URL"
#: Messages that can be received; hidden, since another worker has them; and delayed.
_COUNTS: Final = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
)


# --- errors ------------------------------------------------------------------------------------------


class QueueError(Exception):
    """A call failed, in words for people; `passing` if it may end by itself."""

    def __init__(self, words: str, *, passing: bool) -> None:
        """Take the words."""
        super().__init__(words)
        self.passing = passing


#: The words for errors of this source alone.
_OWN_WORDS: Final = {
    Meaning.DENIED: (
        "may not be used by this worker; allow it sqs:ReceiveMessage, sqs:DeleteMessage and "
        "sqs:ChangeMessageVisibility on this queue"
    ),
    Meaning.KEY: "its messages cannot be decrypted by this worker; allow it kms:Decrypt with the queue's key",
    Meaning.MISSING: (
        "does not exist; check account, region and name: aws sqs get-queue-url --queue-name NAME prints it"
    ),
    Meaning.REFUSED: "SQS does not accept the request; check the URL",
}


def translate_error(error: Exception, url: str) -> QueueError:
    """Return our own error for one of boto3's. Its words are left out: a refused signature quotes the token."""
    meaning = meaning_of(error)
    words = f"queue {url}: {meaning.words('SQS', _OWN_WORDS)} ({code_of(error)})"
    return QueueError(words, passing=meaning.passes)


# --- calls -------------------------------------------------------------------------------------------


class Received(Discreet, msgspec.Struct, frozen=True, gc=False):
    """One message as SQS hands it out."""

    shown = ("id",)

    id: str
    receipt: str
    body: str
    #: Of a FIFO queue: messages of one group are in order.
    group: str | None = None


class Failed(msgspec.Struct, frozen=True, gc=False):
    """An entry that SQS did not process in a batch: which one, why, and whether a retry can help."""

    at: int
    code: str
    passing: bool


class Queue:
    """One queue, as a client sees it; may be shared by threads."""

    def __init__(self, client: Any, url: str, *, poll_seconds: int) -> None:
        """Take the client, and how long SQS may wait for a message before it answers that there is none."""
        self._client = client if isinstance(client, LazyClient) else LazyClient(lambda: client)
        self._poll_seconds = poll_seconds
        self.url = url

    @classmethod
    def connected(cls, url: str, *, poll_seconds: int, workers: int) -> Self:
        """Make the client; nothing is sent yet."""
        require_boto3(_SETTING)
        if "@" in urlsplit(url).netloc:  # refused here, since the URL is shown from now on
            raise ConfigurationError(f"{_SETTING}: holds a name or password; AWS' own settings say who we are")
        connections = workers + 2  # one polls, one keeps messages hidden
        try:
            client = LazyClient(
                lambda: queue_client(url, _SETTING, read_seconds=poll_seconds + ANSWER_SECONDS, connections=connections)
            )
            client()  # raises for wrong settings now
        except ConfigurationError:
            raise
        except Exception as error:  # noqa: BLE001 - any error of boto3 becomes ours
            raise ConfigurationError(str(translate_error(error, url))) from None
        return cls(client, url, poll_seconds=poll_seconds)

    def receive(self, number: int, hidden_seconds: int) -> list[Received]:
        """Wait for up to this many messages, which are then hidden from others; empty if none arrived."""
        answer = self._call(
            "receive_message",
            MaxNumberOfMessages=min(number, AT_ONCE),
            WaitTimeSeconds=self._poll_seconds,
            VisibilityTimeout=hidden_seconds,
            MessageSystemAttributeNames=["MessageGroupId"],
        )
        return [
            Received(
                message["MessageId"],
                message["ReceiptHandle"],
                message.get("Body", ""),
                message.get("Attributes", {}).get("MessageGroupId") if self.url.endswith(".fifo") else None,
            )
            for message in answer.get("Messages", ())
        ]

    def count_left(self) -> int:
        """Return about how many messages the queue still has, those included that nobody can receive now."""
        answer = self._call("get_queue_attributes", AttributeNames=[*_COUNTS])
        return sum(int(answer.get("Attributes", {}).get(name, 0)) for name in _COUNTS)

    def attributes(self) -> dict[str, str]:
        """Return how long it keeps messages, and how often it hands one out."""
        answer = self._call("get_queue_attributes", AttributeNames=["MessageRetentionPeriod", "RedrivePolicy"])
        return dict(answer.get("Attributes", {}))

    def delete(self, receipts: Sequence[str]) -> list[Failed]:
        """Delete up to ten messages; return those that failed."""
        return self._in_batch("delete_message_batch", [{"ReceiptHandle": receipt} for receipt in receipts])

    def hide(self, seconds: Sequence[tuple[str, int]]) -> list[Failed]:
        """Hide up to ten messages for this many seconds from now, 0: not at all; return those that failed."""
        entries = [{"ReceiptHandle": receipt, "VisibilityTimeout": number} for receipt, number in seconds]
        return self._in_batch("change_message_visibility_batch", entries)

    def close(self) -> None:
        """Close connections."""
        self._client.close()

    def _in_batch(self, operation: str, entries: list[dict[str, Any]]) -> list[Failed]:
        answer = self._call(operation, Entries=[{"Id": str(at), **entry} for at, entry in enumerate(entries)])
        done = {one["Id"] for one in answer.get("Successful", ())}
        why = {one["Id"]: one for one in answer.get("Failed", ())}
        failed = [(at, why.get(str(at), {})) for at in range(len(entries)) if str(at) not in done]
        return [Failed(at, str(one.get("Code", "")), not one.get("SenderFault", False)) for at, one in failed]

    def _call(self, operation: str, **arguments: Any) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = getattr(self._client(), operation)(QueueUrl=self.url, **arguments)
        except Exception as error:  # noqa: BLE001 - any error of boto3 becomes ours
            raise translate_error(error, self.url) from None
        return answer
