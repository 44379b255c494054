"""Rows on disk: what was written comes back in order, and is the same however chunks and processes are cut."""

import errno
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import payloads
from oncebridge.diagnosis import chunks, processes
from oncebridge.diagnosis import diagnose as whole
from oncebridge.diagnosis.chunks import ChunkReader, ChunkWriter, Question, deliveries_in
from oncebridge.diagnosis.grouping import sightings_in
from oncebridge.diagnosis.spill import PARTS, Writer, disk_error, read_part, read_run
from oncebridge.errors import ConfigurationError
from oncebridge.settings import Settings
from oncebridge.simulation import simulate
from oncebridge.sources.captures.found import NOTHING_AROUND, Captured, Surroundings

BLOCKS = st.lists(st.binary(max_size=20), min_size=4, max_size=4)
IN_ONE_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)


# --- runs ------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 2), BLOCKS), max_size=10))
@IN_ONE_FOLDER
def test_blocks_come_back_in_the_order_of_runs(tmp_path, written):
    """Whichever writer wrote a run, the blocks of a part come back as the runs are named, and empty ones not at all."""
    folder = tmp_path / os.urandom(8).hex()
    folder.mkdir()
    writers = [Writer(str(folder), f"rows{at}") for at in range(3)]
    runs = [writers[at].write(blocks) for at, blocks in written]
    for part in range(4):
        assert list(read_part(runs, part)) == [blocks[part] for _, blocks in written if blocks[part]]
    assert [list(read_run(run)) for run in runs] == [[block for block in blocks if block] for _, blocks in written]


def test_files_are_closed(tmp_path):
    """Reading leaves no file open, even if it is given up half-way."""
    run = Writer(str(tmp_path), "rows").write([b"a", b"b"])
    before = len(list(Path("/dev/fd").iterdir()))
    for _ in range(5):
        for _block in read_part([run, run], 0):
            break
    assert len(list(Path("/dev/fd").iterdir())) == before


@pytest.mark.parametrize(
    ("number", "said"), [(errno.ENOSPC, "is full"), (errno.EROFS, "cannot be written: Read-only file system")]
)
def test_a_disk_that_takes_no_rows_is_named_with_what_to_do(number, said):
    """The error says where there is no room, how much it takes, and how to go elsewhere."""
    text = str(disk_error(OSError(number, os.strerror(number)), "/var/rows/keys-1"))
    assert text.startswith(f"/var/rows: {said}; ")
    assert "--work-dir" in text
    assert "TMPDIR" in text


def test_a_folder_that_is_gone_is_an_error_in_words(tmp_path):
    """Somebody who cleans up the folder under a diagnosis does not get a traceback."""
    with pytest.raises(ConfigurationError, match="cannot be written: No such file or directory"):
        Writer(str(tmp_path / "gone"), "rows").write([b"a"])


# --- chunks ----------------------------------------------------------------------------------------------------

AROUND = st.builds(
    Surroundings,
    message_id=st.none() | st.text(max_size=5),
    receive_count=st.none() | st.integers(0, 9),
    sent_ms=st.none() | st.integers(0, 2**53),
)


@given(
    st.lists(
        st.tuples(st.binary(max_size=30), st.integers(0, 3), st.integers(1, 2**40), st.just(NOTHING_AROUND) | AROUND)
    ),
    st.integers(1, 2**40),
)
def test_a_chunk_keeps_its_deliveries(deliveries, first):
    """Bytes, file, line and surroundings come out as they went in, numbered from the first."""
    writer = ChunkWriter()
    for raw, file, line, around in deliveries:
        writer.add(Captured(raw, "f", line, 0, 0, around), file)
    assert len(writer) == len(deliveries)
    found = list(deliveries_in(writer.written(), first))
    assert [(one.raw, one.file, one.line) for one in found] == [one[:3] for one in deliveries]
    assert [one.n for one in found] == list(range(first, first + len(deliveries)))
    assert [one.around or NOTHING_AROUND for one in found] == [one[3] for one in deliveries]


# --- details that are known ------------------------------------------------------------------------------------

TOPICS = (payloads.ACW, payloads.ROUTING_STATUS, payloads.PRESENCE, payloads.SNAPSHOT)


def envelope(topic, body, **changes):
    """Write a delivery of a topic, in one of two versions of its body."""
    return payloads.raw(payloads.envelope(topic, {"note": body}, **changes))


#: What EventBridge and others do to an envelope around the same detail.
CHANGES = {
    "as it was": lambda raw: raw,
    "another id": lambda raw: raw.replace(payloads.ENVELOPE_ID.encode(), b"00000000-0000-0000-0000-00000000000f"),
    "an id that is no UUID": lambda raw: raw.replace(payloads.ENVELOPE_ID.encode(), b"x"),
    "no id": lambda raw: raw.replace(b'"id":"' + payloads.ENVELOPE_ID.encode() + b'",', b"", 1),
    "a blank id": lambda raw: raw.replace(payloads.ENVELOPE_ID.encode(), b"  ", 1),
    "an empty id": lambda raw: raw.replace(payloads.ENVELOPE_ID.encode(), b"", 1),
    "a null character": lambda raw: raw.replace(payloads.ENVELOPE_ID.encode(), b"\\u0000", 1),
    "a long id": lambda raw: raw.replace(payloads.ENVELOPE_ID.encode(), b"x" * 257, 1),
    "the id twice": lambda raw: raw.replace(b'{"version":"0",', b'{"version":"0","id":"x",', 1),
    "another org": lambda raw: raw.replace(payloads.ORG.encode(), payloads.OTHER_ORG.encode(), 1),
    "another integration": lambda raw: raw.replace(b"/service-desk", b"/second", 1),
    "no partner": lambda raw: raw.replace(b"aws.partner/", b"own/", 1),
    "another topic": lambda raw: raw.replace(b'"detail-type":"v2.', b'"detail-type":"v3.', 1),
    "another account": lambda raw: raw.replace(b"210987654321", b"1", 1),
    "another time": lambda raw: raw.replace(b'"time":"2025', b'"time":"2024', 1),
    "resources": lambda raw: raw.replace(b'"resources":[]', b'"resources":["a","b"]', 1),
    "resources that are too large": lambda raw: raw.replace(b"[]", b'["' + b"r" * 1_200_000 + b'"]', 1),
    "a number for a version": lambda raw: raw.replace(b'"version":"0"', b'"version":0', 1),
    "a replay before": lambda raw: raw.replace(b'"detail":', b'"replay-name":"r","detail":', 1),
    "a replay behind": lambda raw: raw[:-1] + b',"replay-name":"r"}',
    "a detail before": lambda raw: raw.replace(b'"detail":', b'"detail":{},"detail":', 1),
    "a space": lambda raw: raw.replace(b'"detail":', b'"detail": ', 1),
    "a space behind": lambda raw: raw + b" ",
    "cut off": lambda raw: raw[:-1],
    "too much": lambda raw: raw + b"}",
    "the detail alone": lambda raw: raw[raw.index(b'"detail":') + 9 : -1],
}
#: A megabyte in every example takes long; each change is tried by itself, too.
SMALL_CHANGES = sorted(CHANGES.keys() - {"resources that are too large"})


def rows_of(folder, deliveries, *, apart):
    """Read deliveries, all by one reader or each by its own; return everything that is left of them."""
    found = []
    question = Question(str(folder), own_keys=("detail.topicName",))
    reader = ChunkReader(question, Settings())
    for n, (raw, around) in enumerate(deliveries, 1):
        if apart:
            reader = ChunkReader(Question(str(folder), own_keys=question.own_keys), Settings())
            for file in folder.iterdir():  # a new reader thinks that its files are new
                file.unlink()
        writer = ChunkWriter()
        writer.add(Captured(raw, "f", n, 0, 0, around), 0)
        read = reader.read(writer.written(), n)
        keys = [list(read_run(run)) for run in read.keys]
        found.append(
            (list(sightings_in(read_run(read.sightings))), keys, read.told, read.published, read.unreadable,
             read.topics, read.digest)
        )  # fmt: skip
    return found


@given(
    st.lists(st.tuples(st.sampled_from(TOPICS), st.integers(1, 2), st.sampled_from(SMALL_CHANGES), AROUND), max_size=12)
)
@IN_ONE_FOLDER
def test_a_detail_that_is_known_is_read_as_if_it_were_new(tmp_path, drawn):
    """Whatever envelope stands around a detail that came before, its row is the one that reading it alone gives."""
    deliveries = [(CHANGES[change](envelope(topic, body)), around) for topic, body, change, around in drawn]
    folders = [tmp_path / os.urandom(8).hex() for _ in range(2)]
    for folder in folders:
        folder.mkdir()
    assert rows_of(folders[0], deliveries, apart=False) == rows_of(folders[1], deliveries, apart=True)


@pytest.mark.parametrize("change", CHANGES)
def test_each_change_of_an_envelope_is_seen_behind_the_original(tmp_path, change):
    """The same rule for each change by itself, so that a failure names it."""
    original = envelope(payloads.ACW, 1)
    changed = CHANGES[change](original)
    assert change == "as it was" or changed != original
    deliveries = [(original, Surroundings()), (changed, Surroundings())]
    folders = [tmp_path / "together", tmp_path / "apart"]
    for folder in folders:
        folder.mkdir()
    assert rows_of(folders[0], deliveries, apart=False) == rows_of(folders[1], deliveries, apart=True)


# --- any cut of the work ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def capture(tmp_path_factory):
    """A capture of simulated traffic in two files, with lines that cannot be read; and other settings."""
    folder = tmp_path_factory.mktemp("capture")
    lines = [one.raw for one in simulate(12, 5)]
    lines[100:100] = [b"no event", b'{"id":']
    half = len(lines) // 2
    (folder / "a.jsonl").write_bytes(b"\n".join(lines[:half]))
    (folder / "b.jsonl").write_bytes(b"\n".join(lines[half:]))
    (folder / "other.toml").write_text("retention_days = 5\n")
    return folder


def diagnosed(folder, causes, **given):
    """Diagnose the capture with everything that can be asked; a digest is compared by itself."""
    names = [str(folder / "a.jsonl"), str(folder / "b.jsonl")]
    with causes.open("wb") as file:
        found = whole.diagnose(
            names,
            settings=Settings(),
            own_keys=["id", "detail.topicName for 10 s"],
            other_settings=[str(folder / "other.toml")],
            causes=file,
            **given,
        )
    return replace(found, input_digest=""), causes.read_bytes(), found.input_digest


@pytest.fixture(scope="module")
def usual(capture):
    """What the capture gives in chunks of the usual size, in one process."""
    return diagnosed(capture, capture / "usual.causes")


@pytest.mark.parametrize("size", [1, 7, 100])
def test_any_size_of_chunks_gives_the_same_answer(capture, usual, tmp_path, monkeypatch, size):
    """Chunks are how the work is cut, and nothing that anybody sees depends on it."""
    monkeypatch.setattr(chunks, "CHUNK", size)
    assert diagnosed(capture, tmp_path / "causes")[:2] == usual[:2]


@pytest.mark.parametrize("size", [1, 5000])
def test_any_number_of_bytes_in_a_chunk_gives_the_same_answer(capture, usual, tmp_path, monkeypatch, size):
    """Large deliveries make chunks of different lengths, in which examples are found again all the same."""
    monkeypatch.setattr(chunks, "CHUNK_BYTES", size)
    assert diagnosed(capture, tmp_path / "causes") == usual


def test_the_digest_of_the_input_does_not_depend_on_chunks(capture, usual, tmp_path, monkeypatch):
    """Two reports are of the same capture whatever the version that wrote them thought of chunks."""
    monkeypatch.setattr(chunks, "CHUNK", 100)
    assert diagnosed(capture, tmp_path / "causes")[2] == usual[2]


def test_any_number_of_processes_gives_the_same_answer(capture, usual, tmp_path, monkeypatch):
    """Which process read a chunk or compared a part is not seen in the answer, nor in the lines of causes."""
    monkeypatch.setattr(chunks, "CHUNK", 100)
    monkeypatch.setattr(processes, "HERE_MAX", 0)
    assert diagnosed(capture, tmp_path / "causes", processes=3)[:2] == usual[:2]


def test_causes_are_in_order_however_many_there_are(capture, usual, tmp_path, monkeypatch):
    """Evidence is sorted so many deliveries at a time, and the lines come in the order of the input all the same."""
    for module in (whole, processes):
        monkeypatch.setattr(module, "RANGE", 64)
    assert diagnosed(capture, tmp_path / "causes")[1] == usual[1]


def test_the_answer_is_one_that_could_differ(usual):
    """The capture has duplicates, lines that cannot be read, lost events, and more rows than parts."""
    found, causes, _ = usual
    assert found.unreadable == 2
    assert found.deliveries > 2 * PARTS
    assert len(found.causes) > 3
    assert causes.count(b"\n") == found.duplicates > 100
    assert any(row.lost for row in found.backtest)
