"""One SQS queue: the calls that a way in needs, and what goes wrong with them in our words.

Errors are told apart by their names, so that nothing of AWS is imported before it is needed. What nobody has heard of
passes for passing trouble: every call here may be repeated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urlsplit

import msgspec

from oncebridge.discreet import Discreet
from oncebridge.errors import ConfigurationError
from oncebridge.sinks.amazon import OnceMade, queue_client, require_boto3

if TYPE_CHECKING:
    from collections.abc import Sequence

AT_ONCE: Final = 10  # as many messages as SQS takes and gives in one call
HIDDEN_SECONDS_MAX: Final = 43_200  # from the moment a message was received; SQS keeps none hidden for longer
ANSWER_SECONDS: Final = 10
_SETTING: Final = "QUEUE_URL"


# --- what goes wrong ---------------------------------------------------------------------------------


class QueueTrouble(Exception):
    """A call failed, in words for people; `passing` if it may be over by itself."""

    def __init__(self, words: str, *, passing: bool) -> None:
        """Take the words."""
        super().__init__(words)
        self.passing = passing


_CREDENTIALS: Final = (
    "AWS does not accept the credentials; check the access key (AWS_ACCESS_KEY_ID, AWS_PROFILE or the role), and that "
    "this machine's clock is right: a request signed more than five minutes off is refused"
)
_EXPIRED: Final = "the AWS credentials have expired; get new ones (such as `aws sso login`) and start again"
_MISSING: Final = "no AWS credentials were found; give the worker a role, or set AWS_PROFILE or AWS_ACCESS_KEY_ID"
_NO_QUEUE: Final = "does not exist; check account, region and name: aws sqs get-queue-url --queue-name NAME prints it"
_DENIED: Final = (
    "may not be used by this worker; allow it sqs:ReceiveMessage, sqs:DeleteMessage and sqs:ChangeMessageVisibility on "
    "this queue"
)
_KEY: Final = "its messages cannot be decrypted by this worker; allow it kms:Decrypt with the queue's key"
_NO_REGION: Final = "its URL names no AWS region; set AWS_DEFAULT_REGION"
_ARGUMENTS: Final = "SQS does not accept the request; check the URL"
_FULL: Final = "too many of its messages are in flight; look for workers that neither finish nor delete them"
_SLOW: Final = "requests are throttled"
_AWAY: Final = "SQS is out of reach; check the URL, and this machine's way to it (a VPC endpoint or NAT, port 443)"

#: Error codes that will not pass by themselves, with what to do.
_REFUSED: Final = {
    **dict.fromkeys(("QueueDoesNotExist", "NonExistentQueue", "InvalidAddress"), _NO_QUEUE),
    **dict.fromkeys(("AccessDenied", "AccessDeniedException", "NotAuthorized", "UnauthorizedOperation"), _DENIED),
    **dict.fromkeys(("ExpiredTokenException", "ExpiredToken", "RequestExpired"), _EXPIRED),
    **dict.fromkeys(
        (
            "UnrecognizedClientException",
            "InvalidClientTokenId",
            "InvalidAccessKeyId",
            "InvalidSignatureException",
            "InvalidSecurity",
            "SignatureDoesNotMatch",
            "IncompleteSignature",
            "MissingAuthenticationToken",
            "MissingAuthenticationTokenException",
        ),
        _CREDENTIALS,
    ),
    **dict.fromkeys(("KmsAccessDenied", "KmsDisabled", "KmsInvalidState", "KmsNotFound", "KmsOptInRequired"), _KEY),
    **dict.fromkeys(("UnsupportedOperation", "InvalidParameterValue", "InvalidAction"), _ARGUMENTS),
}
_PASSING: Final = {
    "OverLimit": _FULL,
    **dict.fromkeys(("RequestThrottled", "ThrottlingException", "Throttling", "KmsThrottled"), _SLOW),
}
#: Errors of botocore itself that will not pass by themselves.
_LOCAL: Final = {
    **dict.fromkeys(("NoCredentialsError", "PartialCredentialsError", "ProfileNotFound"), _MISSING),
    **dict.fromkeys(("TokenRetrievalError", "SSOError", "UnauthorizedSSOTokenError", "LoginError"), _EXPIRED),
    **dict.fromkeys(("NoRegionError", "InvalidRegionError", "UnknownRegionError"), _NO_REGION),
    **dict.fromkeys(("ParamValidationError", "InvalidEndpointConfigurationError"), _ARGUMENTS),
}


def understood(error: Exception, url: str) -> QueueTrouble:
    """Say what an error means. Its own words are left out: a refused signature quotes the session's token."""
    response = getattr(error, "response", None)
    if not isinstance(response, dict):
        for kind in type(error).__mro__:
            if kind.__name__ in _LOCAL:
                return QueueTrouble(f"queue {url}: {_LOCAL[kind.__name__]} ({kind.__name__})", passing=False)
        return QueueTrouble(f"queue {url}: {_AWAY} ({type(error).__name__})", passing=True)
    code = str((response.get("Error") or {}).get("Code") or "")
    name = code.rpartition(".")[2]  # some come as AWS.SimpleQueueService.NonExistentQueue
    if name in _REFUSED:
        return QueueTrouble(f"queue {url}: {_REFUSED[name]} ({code})", passing=False)
    words = _PASSING.get(name, "SQS answers with an error; look at AWS' health page")
    return QueueTrouble(f"queue {url}: {words} ({code or 'without a name'})", passing=True)


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
    """What SQS did not do of a batch: for which entry, why, and whether trying again can help."""

    at: int
    code: str
    passing: bool


class Queue:
    """One queue, as a client sees it; may be shared by threads."""

    def __init__(self, client: Any, url: str, *, poll_seconds: int) -> None:
        """Take the client, and how long SQS may wait for a message before it answers that there is none."""
        self._client = client if isinstance(client, OnceMade) else OnceMade(lambda: client)
        self._poll_seconds = poll_seconds
        self.url = url

    @classmethod
    def connected(cls, url: str, *, poll_seconds: int, workers: int) -> Self:
        """Make the client; nothing is sent yet."""
        require_boto3(_SETTING)
        if "@" in urlsplit(url).netloc:  # not shown, as the URL is from here on
            raise ConfigurationError(f"{_SETTING}: holds a name or password; AWS' own settings say who we are")
        connections = workers + 2  # one polls, one keeps messages hidden
        try:
            client = OnceMade(
                lambda: queue_client(url, _SETTING, read_seconds=poll_seconds + ANSWER_SECONDS, connections=connections)
            )
            client()  # what is wrong with its settings is said now
        except ConfigurationError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever botocore raises becomes ours
            raise ConfigurationError(str(understood(error, url))) from None
        return cls(client, url, poll_seconds=poll_seconds)

    def receive(self, number: int, hidden_seconds: int) -> list[Received]:
        """Wait for up to so many messages, which are then hidden from others; none if none came."""
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

    def delete(self, receipts: Sequence[str]) -> list[Failed]:
        """Delete up to ten messages; return what was not."""
        return self._in_batch("delete_message_batch", [{"ReceiptHandle": receipt} for receipt in receipts])

    def hide(self, seconds: Sequence[tuple[str, int]]) -> list[Failed]:
        """Keep up to ten messages hidden for so many seconds from now, 0: not at all; return what was not."""
        entries = [{"ReceiptHandle": receipt, "VisibilityTimeout": number} for receipt, number in seconds]
        return self._in_batch("change_message_visibility_batch", entries)

    def close(self) -> None:
        """Let go of connections."""
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
        except Exception as error:  # noqa: BLE001 - whatever botocore raises becomes ours
            raise understood(error, self.url) from None
        return answer
