"""Conversations of a time from Genesys' analytics: by query what is recent, by job what is old."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import msgspec

from oncebridge.genesys.api import GenesysUnavailable, NotThere, Rejected
from oncebridge.genesys.conversations import AnswerUnreadable, Page, iso, milliseconds, read_page

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from oncebridge.genesys.api import GenesysAPI
    from oncebridge.genesys.conversations import Conversation

QUERY: Final = "/api/v2/analytics/conversations/details/query"
JOBS: Final = "/api/v2/analytics/conversations/details/jobs"
PAGE: Final = 100
JOB_PAGE: Final = 1000
#: A query with more hits is split: far pages are slow, and move more.
HITS_MAX: Final = 10_000
SHORTEST_MS: Final = 60_000
#: How often a time is read because its pages move, before the run gives up.
READINGS_MAX: Final = 20
#: How many readings in a row have to bring nothing new, once a conversation came twice in one.
QUIET_READINGS: Final = 3
JOBS_MAX: Final = 3
POLL_SECONDS: Final = (1.0, 2.0, 3.0, 5.0, 8.0, 15.0)
POLLS_MAX: Final = 240
_OVER: Final = frozenset({"FAILED", "CANCELLED", "EXPIRED"})


class _Available(msgspec.Struct):
    dataAvailabilityDate: str  # noqa: N815 - Genesys' names, here and below


class _Begun(msgspec.Struct):
    jobId: str  # noqa: N815


class _State(msgspec.Struct):
    state: str


_available = msgspec.json.Decoder(_Available).decode
_job = msgspec.json.Decoder(_Begun).decode
_state = msgspec.json.Decoder(_State).decode


class BatchEnded(Exception):
    """A job ended without its results, or they are gone."""


def watermark_ms(api: GenesysAPI) -> int:
    """Return the time up to which Genesys' own data is complete."""
    return api.get(f"{JOBS}/availability", _read_watermark)


def _read_watermark(answer: bytes) -> int:
    time = milliseconds(_read(_available, answer).dataAvailabilityDate)
    if time is None:
        raise AnswerUnreadable("Genesys does not say up to when its data is complete")
    return time


def _read(decode: Any, answer: bytes) -> Any:
    try:
        return decode(answer)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise AnswerUnreadable("an answer of Genesys cannot be read") from None


def _question(from_ms: int, until_ms: int) -> dict[str, Any]:
    return {
        "interval": f"{iso(from_ms, 'milliseconds')}/{iso(until_ms, 'milliseconds')}",
        "order": "asc",
        "orderBy": "conversationStart",
    }


# --- by query ----------------------------------------------------------------------------------------------------


def by_query(api: GenesysAPI, from_ms: int, until_ms: int, *, conversation: str = "") -> Iterator[list[Conversation]]:
    """Read page after page, and all of them again if they moved meanwhile: some may have been passed over."""
    first = _page(api, from_ms, until_ms, 1, conversation)
    if (first.total or 0) > HITS_MAX and until_ms - from_ms >= 2 * SHORTEST_MS:
        middle_ms = from_ms + (until_ms - from_ms) // (2 * SHORTEST_MS) * SHORTEST_MS
        yield from by_query(api, from_ms, middle_ms, conversation=conversation)
        yield from by_query(api, middle_ms, until_ms, conversation=conversation)
        return
    known: set[str] = set()
    page, has_moved, quiet = first, False, 0
    for number in range(READINGS_MAX):
        reading = _Reading(first.total)
        yield from reading.pages(page, lambda at: _page(api, from_ms, until_ms, at, conversation))
        if not reading.met <= known:
            quiet = 0
        elif number > 0:
            quiet += 1
        known |= reading.met
        has_moved = has_moved or reading.brought_twice
        if number == 0 and not has_moved and len(known) >= (reading.total or 0):
            return  # nothing twice, and as many as there should be: the pages did not move
        if quiet == (QUIET_READINGS if has_moved else 1):
            return
        page = _page(api, from_ms, until_ms, 1, conversation)
    if not quiet:
        raise GenesysUnavailable(
            f"Genesys Cloud moves the conversations between {iso(from_ms)} and {iso(until_ms)} while they are read: "
            f"after {READINGS_MAX} readings there are still new ones"
        )


class _Reading:
    """One reading of all pages of a query."""

    def __init__(self, total: int | None) -> None:
        #: How many conversations there are at most, as Genesys says.
        self.total = total
        self.met: set[str] = set()
        self._read = 0

    @property
    def brought_twice(self) -> bool:
        """Whether a conversation came twice, so that another one may have been passed over."""
        return self._read > len(self.met)

    def pages(self, first: Page, turn_to: Callable[[int], Page]) -> Iterator[list[Conversation]]:
        """Yield the conversations of each page, up to the last one."""
        page, number = first, 1
        while page.conversations:
            self.total = page.total if self.total is None else max(self.total, page.total or 0)
            before = len(self.met)
            self._read += len(page.conversations)
            self.met.update(one.id for one in page.conversations)
            yield page.conversations
            is_beyond = self.total is None or number * PAGE >= self.total
            if is_beyond and len(self.met) == before:
                break  # a server that repeats its last page would never come to an end
            if is_beyond and self.total is not None and len(page.conversations) < PAGE:
                break  # the last one
            number += 1
            page = turn_to(number)


def _page(api: GenesysAPI, from_ms: int, until_ms: int, number: int, conversation: str) -> Page:
    question = {**_question(from_ms, until_ms), "paging": {"pageSize": PAGE, "pageNumber": number}}
    if conversation:
        question["conversationFilters"] = [_is_one_of("conversationId", [conversation])]
    return api.post(QUERY, question, read_page)


def _is_one_of(dimension: str, values: Sequence[str]) -> dict[str, Any]:
    is_it = {"type": "dimension", "dimension": dimension, "operator": "matches"}
    return {"type": "or", "predicates": [{**is_it, "value": value} for value in values]}


# --- by job, which Genesys works off in its own time -----------------------------------------------------------


def by_batch(
    api: GenesysAPI, from_ms: int, until_ms: int, *, media: Sequence[str] = ()
) -> Iterator[list[Conversation]]:
    """Have a job look for them, by some media only or by all; one that ends too soon is begun anew."""
    question, why = _question(from_ms, until_ms), ""
    if media:
        question["segmentFilters"] = [_is_one_of("mediaType", media)]
    for _ in range(JOBS_MAX):
        job = quote(api.post(JOBS, question, lambda answer: _read(_job, answer)).jobId, safe="")
        try:
            _await(api, job)
            yield from _results(api, job)
        except (BatchEnded, NotThere, Rejected) as error:
            why = str(error)
        else:
            return
    raise GenesysUnavailable(f"Genesys Cloud ended {JOBS_MAX} jobs without their results: {why}")


def _await(api: GenesysAPI, name: str) -> None:
    for poll in range(POLLS_MAX):
        state = api.get(f"{JOBS}/{name}", lambda answer: _read(_state, answer)).state.upper()
        if state == "FULFILLED":
            return
        if state in _OVER:
            raise BatchEnded(f"a job is {state}")
        api.wait(POLL_SECONDS[min(poll, len(POLL_SECONDS) - 1)])
    raise GenesysUnavailable("Genesys Cloud has not finished a job within an hour")


def _results(api: GenesysAPI, name: str) -> Iterator[list[Conversation]]:
    cursor = ""
    while True:
        asked = f"{JOBS}/{name}/results?pageSize={JOB_PAGE}" + (f"&cursor={quote(cursor, safe='')}" if cursor else "")
        page = api.get(asked, read_page)
        if page.conversations:
            yield page.conversations
        if not page.cursor or page.cursor == cursor:
            return
        cursor = page.cursor
