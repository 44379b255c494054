"""A ledger's file that is deleted, moved or replaced under a worker: nothing is acknowledged that is in no file."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from children import delivery
from oncebridge import Bridge, Settings
from oncebridge.errors import LedgerRefused, LedgerUnavailable

PARTS = ("", "-wal", "-shm")


@pytest.fixture
def path(tmp_path):
    """Return where the ledger of a test is."""
    return tmp_path / "once.db"


def write(event, transaction):
    """Write an effect in the transaction that settles it."""
    transaction.execute("CREATE TABLE IF NOT EXISTS effect (name TEXT)")
    transaction.execute("INSERT INTO effect VALUES (?)", (event.body["eventId"],))


def fail(event):
    """Fail, so that a dead letter is kept."""
    raise ValueError


def bridge_on(path, handler=write, **settings):
    """Make a bridge on a file."""
    bridge = Bridge(f"sqlite:///{path}", settings=Settings(**settings))
    bridge.on("*", permanent=(ValueError,))(handler)
    return bridge


def kept(path, table="effect"):
    """Return what is in a table, as somebody else sees it; nothing where there is no such file."""
    if not path.exists():
        return []
    with closing(sqlite3.connect(path)) as db:
        return [name for (name,) in db.execute(f"SELECT {'name' if table == 'effect' else 'raw'} FROM {table}")]


def until_taken(bridge, name):
    """Deliver an event until it is acknowledged; return how often it was refused."""
    refused = 0
    while True:
        try:
            assert bridge.process(delivery(name)).acknowledged
        except LedgerUnavailable:
            refused += 1
            bridge.clock.wait(bridge.stopping, 0.02)
        else:
            return refused


def delete(path, *parts):
    """Delete some of the files."""
    for part in parts:
        Path(f"{path}{part}").unlink()


def move(path, there, *parts):
    """Move some of the files."""
    for part in parts:
        Path(f"{path}{part}").rename(f"{there}{part}")


# --- the file itself ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("act", "parts"), [("delete", PARTS), ("move", ("",))])
def test_what_is_acknowledged_is_in_a_file(path, act, parts):
    """After the file is gone events are refused first, and then kept in a new one; what was moved keeps what it had."""
    bridge, moved = bridge_on(path), path.with_name("rotated.db")
    assert bridge.process(delivery("before")).acknowledged
    if act == "delete":
        delete(path, *parts)
    else:
        move(path, moved, *parts)
    with pytest.raises(LedgerUnavailable, match="deleted, moved or replaced"):
        bridge.process(delivery("refused"))
    assert not path.exists()
    names = ["refused", "one", "two", "three"]
    assert until_taken(bridge, names[0]) + sum(until_taken(bridge, name) for name in names[1:]) > 0
    bridge.close()
    assert kept(path) == names
    if act == "move":
        assert kept(moved) == ["before"]


def test_letters_are_in_a_file(path):
    """A dead letter that is acknowledged after the file was deleted is in the new one."""
    bridge = bridge_on(path, fail)
    assert bridge.process(delivery("before")).acknowledged
    delete(path, *PARTS)
    until_taken(bridge, "after")
    bridge.close()
    assert kept(path, "oncebridge_letter") == [delivery("after")]


@pytest.mark.parametrize("parts", [PARTS, ("",)], ids=["all", "alone"])
def test_a_file_that_is_put_back_is_used_again(path, parts):
    """A file that was away for a moment is taken up again at once, with everything that it remembers."""
    bridge, moved = bridge_on(path), path.with_name("away.db")
    assert bridge.process(delivery("before")).acknowledged
    move(path, moved, *parts)
    with pytest.raises(LedgerUnavailable):
        bridge.process(delivery("meanwhile"))
    move(moved, path, *(part for part in parts if Path(f"{moved}{part}").exists()))
    assert bridge.process(delivery("meanwhile")).verdict == "fresh"
    assert bridge.process(delivery("before")).verdict == "redelivery"
    bridge.close()
    assert kept(path) == ["before", "meanwhile"]


@pytest.mark.parametrize("parts", [("-wal",), ("-shm",), ("-wal", "-shm")], ids=str)
def test_a_log_that_is_deleted_costs_nothing(path, parts):
    """What is still in the log when it is deleted is brought home, and a new log is begun."""
    bridge = bridge_on(path)
    names = [f"before {number}" for number in range(20)]
    for name in names:
        assert bridge.process(delivery(name)).acknowledged
    delete(path, *parts)
    until_taken(bridge, "after")
    assert bridge.process(delivery("before 0")).verdict == "redelivery"
    bridge.close()
    assert kept(path) == [*names, "after"]


def test_a_handler_under_which_the_file_goes_is_not_acknowledged(path):
    """A file that goes while a handler has its transaction takes the effect along, so the event has to come again."""

    def goes(event, transaction):
        write(event, transaction)
        if event.body["eventId"] == "one" and path.exists():
            delete(path, *PARTS)

    bridge = bridge_on(path, goes)
    with pytest.raises(LedgerUnavailable, match="deleted, moved or replaced"):
        bridge.process(delivery("one"))
    assert not path.exists()
    until_taken(bridge, "two")
    bridge.close()
    assert kept(path) == ["two"]


def test_workers_find_to_one_new_file(path):
    """Of several workers whose file was deleted all go on in the same new one, and none takes from another."""
    bridges = [bridge_on(path) for _ in range(2)]
    for number, bridge in enumerate(bridges):
        assert bridge.process(delivery(f"before {number}")).acknowledged
    delete(path, *PARTS)
    for turn in range(2):
        for number, bridge in enumerate(bridges):
            until_taken(bridge, f"{number} {turn}")
            assert bridge.process(delivery("0 0")).verdict == "redelivery"
    for bridge in bridges:
        bridge.close()
    assert sorted(kept(path)) == ["0 0", "0 1", "1 0", "1 1"]


# --- another file in its place --------------------------------------------------------------------------------------


def keys_on(bridge):
    """Let a bridge show the key that it gives an event."""
    return bridge.process(delivery("the same")).key


def test_keys_stay_the_same_in_a_new_file(path):
    """The new file is given the secret that the old one had: a receiver that knows keys is not told of other events."""
    bridge = bridge_on(path)
    before = keys_on(bridge)
    delete(path, *PARTS)
    until_taken(bridge, "another")
    assert keys_on(bridge) == before
    bridge.close()
    with bridge_on(path) as another:
        assert keys_on(another) == before


def test_a_ledger_with_another_secret_is_refused_first(path, tmp_path):
    """A batch is refused when its file was replaced by another ledger; the next one goes by the secret there."""
    other, bridge = tmp_path / "other.db", bridge_on(path)
    with bridge_on(other) as another:
        expected = keys_on(another)
    bridge.process(delivery("before"))
    delete(path, *PARTS)
    other.rename(path)
    with pytest.raises(LedgerRefused, match="another secret"):
        until_taken(bridge, "one")
    assert keys_on(bridge) == expected
    bridge.close()


def test_a_copy_that_was_restored_is_used(path, tmp_path):
    """A backup that takes the file's place remembers what it had, and takes what comes."""
    copy, bridge = tmp_path / "copy.db", bridge_on(path)
    assert bridge.process(delivery("before")).acknowledged
    with closing(sqlite3.connect(path)) as db, closing(sqlite3.connect(copy)) as backup:
        db.backup(backup)
    assert bridge.process(delivery("not in the copy")).acknowledged
    delete(path, "-wal", "-shm")
    copy.rename(path)
    until_taken(bridge, "after")
    assert bridge.process(delivery("before")).verdict == "redelivery"
    bridge.close()
    assert kept(path) == ["before", "after"]


def test_a_change_of_directory_is_no_change_of_file(path, tmp_path, monkeypatch):
    """A relative path leads to the same file after the process has gone elsewhere."""
    monkeypatch.chdir(tmp_path)
    bridge = bridge_on("once.db")
    assert bridge.process(delivery("here")).acknowledged
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert bridge.process(delivery("there")).acknowledged
    bridge.close()
    assert kept(path) == ["here", "there"]
