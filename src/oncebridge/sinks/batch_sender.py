"""Sends events or dead letters to one of Amazon's buses or queues: many in a call, and each has its own end.

A call may succeed although some of its entries do not, so every entry is looked up in the answer. An entry that the
answer leaves out has failed: sent again under the same key it may arrive twice, taken for sent it may never arrive.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

import msgspec

from oncebridge.amazon import LazyClient, Meaning, code_of, meaning_of, meaning_of_code
from oncebridge.breaker import NoAttempt, Open
from oncebridge.discreet import Discreet
from oncebridge.errors import PermanentError, RetryLater, SaysWhy

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from oncebridge.breaker import Breaker

Item = TypeVar("Item")

ENTRIES_MAX: Final = 10
#: Of all entries of a call, so of one alone too: 1 MiB since January 2026, 256 KiB before. Where Amazon still takes no
#: more than that it refuses the call, and its entries go one by one.
BYTES_MAX: Final = 1_048_576

BUSY_SECONDS: Final = 1.0


# --- what goes wrong ---------------------------------------------------------------------------------


class EntryRefused(PermanentError, SaysWhy):
    """Amazon will never take this event as it is."""


class EntryDeferred(SaysWhy):
    """Amazon did not take this event now, and may do so later."""


class DestinationUnavailable(SaysWhy):
    """The bus or queue is in trouble, which says nothing about one event."""


class DestinationBusy(RetryLater, DestinationUnavailable):
    """It is throttled, or has failed itself."""


class DestinationSilent(DestinationUnavailable):
    """No answer came: the events may have been taken, so they are repeated under the same keys."""


class DestinationClosed(DestinationUnavailable, NoAttempt):
    """It does not exist, or not for us: nothing was taken, and every event would fare the same."""


_BUSY: Final = frozenset({Meaning.FULL, Meaning.THROTTLED, Meaning.FAILED})


def error_for(destination: str, code: str, meaning: Meaning, advice: str) -> SaysWhy:
    """Turn an error into the end of an attempt. Amazon's own words are left out: they may quote the event."""
    words = f"{destination} answered {code}"
    if meaning in _BUSY:
        return DestinationBusy(words, after_seconds=BUSY_SECONDS)
    if meaning is Meaning.REFUSED:
        return EntryRefused(words)
    if meaning in {Meaning.UNREACHABLE, Meaning.NO_HANDLES}:
        return DestinationSilent(f"{destination} did not answer ({code})")
    if meaning is Meaning.UNKNOWN:
        return EntryDeferred(words)
    return DestinationClosed(f"{words}: {advice}")


# --- entries and calls -------------------------------------------------------------------------------


class Failure(Discreet, msgspec.Struct, frozen=True, gc=False):
    """Why Amazon did not take an entry: its code, and its own words, which may quote the event."""

    shown = ("code",)

    code: str
    words: str = ""


NO_ANSWER: Final = Failure("nothing for it")


class Entry(Discreet, msgspec.Struct, frozen=True, gc=False):
    """One event as Amazon takes it, and its bytes as Amazon counts them."""

    shown = ("size",)

    content: dict[str, Any]
    size: int


class BatchSender(ABC, Generic[Item]):
    """Sends entries to one bus or queue, made of events or dead letters, and leaves it alone while it is in trouble."""

    many = ENTRIES_MAX
    #: Amazon's service, and what only this sink knows to say of its errors.
    service: ClassVar[str]
    own_words: ClassVar[Mapping[Meaning, str]]

    def __init__(self, name: str, destination: str, client: LazyClient, breaker: Breaker) -> None:
        """Take its name in settings, the name of the bus or queue for people, the client and the breaker for it."""
        self._name = name
        self._destination = destination
        self._client = client
        self._breaker = breaker

    @abstractmethod
    def _entry(self, item: Item) -> Entry:
        """Write one item as an entry."""

    @abstractmethod
    def _call(self, contents: list[dict[str, Any]]) -> list[Failure | None]:
        """Make one call; return for each entry why it was not taken."""

    def __repr__(self) -> str:
        """Show where it sends to, without the account."""
        return f"<{type(self).__name__} {self._name} to {self._destination}>"

    def __call__(self, item: Item) -> None:
        """Send one item."""
        (error,) = self.send_many([item])
        if error is not None:
            raise error

    def close(self) -> None:
        """Close the connections; the sink may be used again."""
        self._client.close()

    def send_many(self, items: Sequence[Item]) -> list[Exception | None]:
        """Send items; return for each what it failed with."""
        ends: list[Exception | None] = [None] * len(items)
        entries: list[tuple[int, Entry]] = []
        for at, item in enumerate(items):
            try:
                entries.append((at, self._checked(self._entry(item))))
            except Exception as error:  # noqa: BLE001 - an error in making one entry is the failure of that item alone
                ends[at] = error
        for group in groups(entries):
            for (at, _), end in zip(group, self._send([entry.content for _, entry in group]), strict=True):
                ends[at] = end
        return ends

    def _send_one(self, entry: Entry) -> Exception | None:
        try:
            (end,) = self._send([self._checked(entry).content])
        except EntryRefused as error:
            return error
        return end

    def _checked(self, entry: Entry) -> Entry:
        if entry.size > BYTES_MAX:
            raise EntryRefused(f"it has {entry.size:,} bytes, and {self._destination} takes no more than {BYTES_MAX:,}")
        return entry

    def _send(self, contents: list[dict[str, Any]]) -> list[Exception | None]:
        """Make one call for a group, unless the breaker is open."""
        try:
            with self._breaker.attempt(DestinationUnavailable):
                ends = self._attempt(contents)
                unwell = [end for end in ends if isinstance(end, DestinationUnavailable)]
                if len(unwell) == len(ends):
                    raise next((end for end in unwell if isinstance(end, NoAttempt)), unwell[0])
        except Open as error:
            return [error] * len(contents)
        except DestinationUnavailable:
            pass
        return [*ends]

    def _attempt(self, contents: list[dict[str, Any]]) -> list[SaysWhy | None]:
        try:
            failures = self._call(contents)
        except Exception as error:  # noqa: BLE001 - any error of boto3 becomes ours
            return self._after(error, contents)
        return [None if failure is None else self._refused(failure) for failure in failures]

    def _refused(self, failure: Failure) -> SaysWhy:
        trouble = self._trouble(failure.code, meaning_of_code(failure.code))
        if failure.words:
            trouble.add_note(failure.words)  # for `dead show` alone
        return trouble

    def _trouble(self, code: str, meaning: Meaning) -> SaysWhy:
        return error_for(self._destination, code, meaning, meaning.words(self.service, self.own_words))

    def _after(self, error: Exception, contents: list[dict[str, Any]]) -> list[SaysWhy | None]:
        """Tell what a call that failed says of its entries."""
        meaning = meaning_of(error)
        trouble = self._trouble(code_of(error), meaning)
        if not isinstance(trouble, DestinationUnavailable):
            trouble.__cause__ = error  # for `dead show` alone
        if len(contents) > 1 and (meaning is Meaning.DENIED or not isinstance(trouble, DestinationUnavailable)):
            # One entry may spoil a call for the others: too large for this account, or a source that a policy forbids.
            return [end for content in contents for end in self._attempt([content])]
        return [trouble] * len(contents)


def groups(entries: Iterable[tuple[int, Entry]]) -> Iterator[list[tuple[int, Entry]]]:
    """Cut entries into calls, in order: as many in each as Amazon takes, by number and by bytes."""
    group: list[tuple[int, Entry]] = []
    size = 0
    for at, entry in entries:
        if group and (len(group) == ENTRIES_MAX or size + entry.size > BYTES_MAX):
            yield group
            group, size = [], 0
        group.append((at, entry))
        size += entry.size
    if group:
        yield group
