"""The first pass: deliveries, a chunk at a time, into rows on disk that later passes group in different ways."""

from __future__ import annotations

from array import array
from collections import Counter
from hashlib import sha256
from itertools import accumulate, islice
from struct import Struct
from typing import TYPE_CHECKING, Final
from zlib import crc32

import msgspec

from oncebridge.diagnosis.arrivals import UNKNOWN, earliest_ms, told_ms
from oncebridge.diagnosis.keys import (
    CONTENT,
    ENVELOPE,
    STREAMS,
    WHOLE,
    OwnKey,
    id_number,
    joined,
    number_in,
    numbers_of,
)
from oncebridge.diagnosis.keys import number as number_of
from oncebridge.diagnosis.sighting import Rules, Sighting, StateSeen, origin, sighted, state_seen
from oncebridge.diagnosis.spill import PARTS, Run, Writer
from oncebridge.discreet import Discreet
from oncebridge.errors import Unreadable
from oncebridge.event import TEXT_MAX, org_of
from oncebridge.identity import read_time
from oncebridge.settings import load_settings
from oncebridge.sources.captures.found import NOTHING_AROUND, Captured, Surroundings, with_short_names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncebridge.settings import Settings
    from oncebridge.topics import Kind

#: A chunk ends with so many deliveries, or so many bytes.
CHUNK: Final = 8192
CHUNK_BYTES: Final = 16 * 1_048_576
#: Rows of keys are small, so fewer parts do.
KEY_PARTS: Final = 64


class Chunk(Discreet, msgspec.Struct, array_like=True):
    """Deliveries on their way to the process that reads them: one text, and where each of them ends."""

    shown = ("files",)

    data: bytes
    ends: bytes
    lines: bytes
    #: The number of each file, and how many of its deliveries are here.
    files: list[tuple[int, int]]
    #: By position, where AWS or a logger wrote something around a delivery.
    around: dict[int, Surroundings]


class ChunkWriter:
    """Collects deliveries for a chunk."""

    def __init__(self) -> None:
        """Begin with none."""
        self._raws: list[bytes] = []
        self._bytes = 0
        self._lines = array("Q")
        self._file = -1
        self._starts: list[tuple[int, int]] = []
        self._around: dict[int, Surroundings] = {}

    def __len__(self) -> int:
        return len(self._raws)

    @property
    def is_full(self) -> bool:
        """Whether it is time to begin another."""
        return len(self._raws) >= CHUNK or self._bytes >= CHUNK_BYTES

    def add(self, one: Captured, file: int) -> None:
        """Add a delivery of a file."""
        if one.around is not NOTHING_AROUND:
            self._around[len(self._raws)] = with_short_names(one.around)
        self._raws.append(one.raw)
        self._bytes += len(one.raw)
        self._lines.append(one.line)
        if file != self._file:
            self._begin(file)

    def _begin(self, file: int) -> None:
        """Note that the delivery added last is the first of another file."""
        self._file = file
        self._starts.append((file, len(self._raws) - 1))

    def _numbered(self) -> list[tuple[int, int]]:
        """Return the number of each file, and how many of its deliveries are here."""
        ends = [*(start for _, start in self._starts[1:]), len(self._raws)][: len(self._starts)]
        return [(file, end - start) for (file, start), end in zip(self._starts, ends, strict=True)]

    def written(self) -> bytes:
        """Write the chunk for another process."""
        ends = array("Q", accumulate(map(len, self._raws)))
        data = b"".join(self._raws)
        return _encode(Chunk(data, ends.tobytes(), self._lines.tobytes(), self._numbered(), self._around))


class Raw(Discreet, msgspec.Struct, gc=False):
    """A delivery in the process that reads it."""

    shown = ("n", "file", "line")

    n: int
    file: int
    line: int
    raw: bytes
    around: Surroundings | None


class OtherSeen(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A delivery under other settings."""

    n: int
    key: bytes
    state: StateSeen | None


class Read(msgspec.Struct, frozen=True):
    """What a chunk left behind."""

    #: Arrival by AWS, and publish time, of each delivery; -1 where there is none.
    told: array[int]
    published: array[int]
    unreadable: list[int]
    #: Where those of them are that are JSON, and so no trouble to the reader of captures: the numbers of file and line.
    no_events: list[tuple[int, int]]
    topics: Counter[str]
    kinds: dict[str, Kind]
    #: What the digest of the input is made of: a number for each delivery, which equal ones share.
    digest: bytes
    sightings: Run
    #: For each stream of keys.
    keys: list[Run]
    #: For each file of other settings.
    others: list[Run]


class Question(msgspec.Struct, frozen=True):
    """What is asked, in a form that other processes can be given."""

    folder: str
    settings_path: str | None = None
    own_keys: tuple[str, ...] = ()
    other_settings: tuple[str, ...] = ()


class PartedRows:
    """Rows by part, each written at once: kept as objects, those of a chunk would be more than a processor's cache."""

    def __init__(self) -> None:
        """Begin with none."""
        self._parts = [bytearray() for _ in range(PARTS)]
        self._counts = [0] * PARTS

    def add(self, part: int, row: object) -> None:
        """Add a row to a part."""
        _append(row, self._parts[part], -1)
        self._counts[part] += 1

    def blocks(self) -> list[bytes]:
        """Return a block for each part: its rows as one list, empty where there is none."""
        rows = zip(self._counts, self._parts, strict=True)
        return [_LIST.pack(_LIST_CODE, count) + part if count else b"" for count, part in rows]


#: How MessagePack begins a list of any length: its code, and how many follow.
_LIST: Final = Struct(">BI")
_LIST_CODE: Final = 0xDD

_record: Final = Struct("<QQ").pack
_encode: Final = msgspec.msgpack.Encoder().encode
_append: Final = msgspec.msgpack.Encoder().encode_into
_decode: Final = msgspec.msgpack.Decoder(Chunk).decode


def deliveries_in(text: bytes, first: int) -> Iterator[Raw]:
    """Yield the deliveries of a chunk, the first of which has this number."""
    chunk = _decode(text)
    data, around, start, n = chunk.data, chunk.around, 0, first
    places = zip(memoryview(chunk.ends).cast("Q"), memoryview(chunk.lines).cast("Q"), strict=True)
    for file, number in chunk.files:
        for end, line in islice(places, number):
            yield Raw(n, file, line, data[start:end], around.get(n - first) if around else None)
            start, n = end, n + 1


class _Head(
    msgspec.Struct,
    forbid_unknown_fields=True,
    gc=False,
    rename={"detail_type": "detail-type"},
):
    """An envelope as EventBridge writes it, without the detail that it ends with."""

    version: str
    id: str
    detail_type: str
    source: str
    account: str
    time: str
    region: str
    resources: list[str]


class _Detail(Discreet, msgspec.Struct, gc=False):
    detail: msgspec.Raw = msgspec.Raw()


_head: Final = msgspec.json.Decoder(_Head).decode
_detail: Final = msgspec.json.Decoder(_Detail).decode
_any: Final = msgspec.json.Decoder(msgspec.Raw).decode
_written: Final = msgspec.json.Encoder().encode
_BEFORE_DETAIL: Final = b',"detail":'
#: An envelope without its detail is a few hundred bytes.
HEAD_BYTES_MAX: Final = 2048
#: Details that are remembered: copies of an event mostly come close together, and need not be parsed again.
DETAILS_MAX: Final = 2048


def _head_of(text: bytes) -> _Head | None:
    """Return a usual envelope; None if it differs in any way, or has anything that a strict reader looks at twice."""
    if len(text) > HEAD_BYTES_MAX or b"\\" in text:
        return None
    try:
        head = _head(text)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return None
    texts = (head.id, head.source, head.detail_type, head.account, head.region, head.time)
    usual = all(0 < len(text) <= TEXT_MAX and not text.isspace() for text in texts)
    return head if usual and _written(head) == text else None


def _is_json(raw: bytes) -> bool:
    try:
        _any(raw)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return False
    return True


def _detail_of(raw: bytes) -> bytes:
    try:
        return bytes(_detail(raw).detail)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return b""  # no object: it cannot be read anyway


class _Seen(msgspec.Struct, gc=False):
    """A delivery that was read: its row, the numbers of its keys, and that of its detail."""

    sighting: Sighting
    numbers: list[int | None]
    #: Where its detail and this org alone decide who it is.
    org: str | None = None


class ChunkReader:
    """Reads chunks: one in each process."""

    def __init__(self, question: Question, settings: Settings | None = None) -> None:
        """Take what is asked; settings that are not given are loaded, as every command does."""
        self._rules = Rules(load_settings(question.settings_path) if settings is None else settings)
        self._others = [Rules(load_settings(path)) for path in question.other_settings]
        self._own = [OwnKey(text, STREAMS + at) for at, text in enumerate(question.own_keys)]
        self._sightings = Writer(question.folder, "sightings")
        self._keys = [Writer(question.folder, f"key{stream}") for stream in range(STREAMS + len(self._own))]
        self._other_writers = [Writer(question.folder, f"other{at}") for at in range(len(self._others))]
        self._known: dict[bytes, _Seen] = {}
        self._kinds: dict[str, Kind] = {}

    def read(self, chunk: bytes, first: int) -> Read:
        """Read a chunk whose first delivery has this number."""
        told, published, digest = array("q"), array("q"), array("Q")
        unreadable: list[int] = []
        no_events: list[tuple[int, int]] = []
        topics: Counter[str] = Counter()
        rows = PartedRows()
        keys = [[bytearray() for _ in range(KEY_PARTS)] for _ in self._keys]
        for one in deliveries_in(chunk, first):
            n, around = one.n, one.around
            told.append(UNKNOWN if around is None else told_ms(around))
            try:
                seen = self._seen(one)
            except Unreadable:
                unreadable.append(n)
                if _is_json(one.raw):
                    no_events.append((one.file, one.line))
                digest.append(number_of(one.raw))
                published.append(UNKNOWN)
                continue
            sighting, numbers = seen.sighting, seen.numbers
            time = UNKNOWN if sighting.published_ms is None else sighting.published_ms
            published.append(time if around is None else max(time, earliest_ms(around)))
            rows.add(sighting.key[0], sighting)
            topics[sighting.topic] += 1
            digest.append(numbers[WHOLE] or 0)
            if self._own:
                numbers = numbers + [own.number_of(one.raw) for own in self._own]
            for blocks, number in zip(keys, numbers):  # noqa: B905 - checking takes time, and there are as many
                if number is not None:
                    blocks[number % KEY_PARTS] += _record(number, n)
        return Read(
            told,
            published,
            unreadable,
            no_events,
            topics,
            self._taken_kinds(),
            digest.tobytes(),
            self._sightings.write(rows.blocks()),
            [writer.write(blocks) for writer, blocks in zip(self._keys, keys, strict=True)],
            self._other_runs(chunk, first),
        )

    def _seen(self, one: Raw) -> _Seen:
        """Read a delivery, or copy what is known of its detail."""
        raw = one.raw
        at = raw.find(_BEFORE_DETAIL)
        # All that follows an envelope is its detail, if it was the whole detail of a delivery before.
        behind = raw[at + len(_BEFORE_DETAIL) : -1] if at > 0 and raw.endswith(b"}") else b""
        digest = sha256(behind).digest() if behind else b""
        known = self._known.get(digest)
        if known is not None:
            head = _head_of(raw[:at] + b"}")
            if head is not None and head.detail_type == known.sighting.topic and org_of(head.source) == known.org:
                return _copied(known, one, head, raw[:at])
        seen = self._read(one, behind, digest)
        if seen.org is not None:
            if len(self._known) >= DETAILS_MAX:
                self._known.clear()
            self._known[digest] = seen
        return seen

    def _read(self, one: Raw, behind: bytes, digest: bytes) -> _Seen:
        """Parse and identify a delivery."""
        raw = one.raw
        event, is_usual = self._rules.read(raw)
        profile, identity = self._rules.identify(event)
        self._kinds[event.topic] = profile.kind
        sighting = sighted((one.n, one.file, one.line), one.around, event, profile, identity)
        if not is_usual or not behind or event.envelope.replay_name is not None:
            content = number_of(_detail_of(raw) or raw)
            return _Seen(sighting, numbers_of(event, identity, content, number_of(raw)))
        content = number_in(digest)
        whole = _whole_number(content, event.envelope.id, raw[: -1 - len(behind)])
        # Whose detail says when it was published, and whose source names the org, is known by these two alone.
        is_dated = sighting.published_ms is not None and read_time(event.published) is not None
        org = org_of(event.envelope.source) if is_dated else None
        return _Seen(sighting, numbers_of(event, identity, content, whole), org)

    def _taken_kinds(self) -> dict[str, Kind]:
        """Return the kinds of topics that were new, and forget them: an attacker can make up any number."""
        kinds, self._kinds = self._kinds, {}
        return kinds

    def _other_runs(self, chunk: bytes, first: int) -> list[Run]:
        """Write how other settings see the deliveries."""
        runs = []
        for rules, writer in zip(self._others, self._other_writers, strict=True):
            rows = PartedRows()
            for one in deliveries_in(chunk, first):
                seen = _seen_by(rules, one.n, one.raw)
                if seen is not None:
                    rows.add(seen.key[0], seen)
            runs.append(writer.write(rows.blocks()))
        return runs


def _copied(known: _Seen, one: Raw, head: _Head, before: bytes) -> _Seen:
    """Copy what is known of a detail, for another envelope around it."""
    numbers = known.numbers.copy()
    numbers[ENVELOPE] = id_number(head.id)
    numbers[WHOLE] = _whole_number(numbers[CONTENT] or 0, head.id, before + _BEFORE_DETAIL)
    row = known.sighting
    where = origin(head.source, head.account, head.region)
    # By position, as in the record itself.
    copied = Sighting(
        one.n, one.file, one.line, row.key, row.topic, head.id, where, None, row.content, row.published_ms,
        row.time_ms, one.around, row.facts, row.state,
    )  # fmt: skip
    return _Seen(copied, numbers)


def _whole_number(content: int, envelope_id: str | None, before: bytes) -> int:
    """Return the number of a whole delivery, from that of its detail, its id, and all that stands before the detail."""
    return joined(content, joined(id_number(envelope_id) or 0, crc32(before)))


def _seen_by(rules: Rules, n: int, raw: bytes) -> OtherSeen | None:
    try:
        event, _ = rules.read(raw)
    except Unreadable:
        return None
    profile, identity = rules.identify(event, replays_anew=rules.replays_anew)
    return OtherSeen(n, identity.key, state_seen(profile, identity))
