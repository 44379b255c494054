"""`close` beside running batches: handlers finish, the rest is given back, and nobody gets an error."""

import asyncio
import threading

import pytest

from oncebridge import Bridge, Settings
from oncebridge.claim import Status
from payloads import ACW, TIME_MS, envelope

SECONDS = 30
NUMBER = 20


def facts():
    """Build events that have nothing to do with each other."""
    return [envelope(ACW, {"eventTime": TIME_MS + n}, id=f"fact {n}") for n in range(NUMBER)]


@pytest.mark.parametrize("ledger", ["memory", "sqlite"])
@pytest.mark.parametrize("way", ["plain", "async", "side by side"])
def test_close_beside_a_running_batch(ledger, way, tmp_path):
    """The running handler finishes, what was not tried is given back, and the same deliveries can be had again."""
    url = "memory://" if ledger == "memory" else f"sqlite:///{tmp_path}/once.db"
    bridge = Bridge(url, settings=Settings(concurrency=2 if way == "side by side" else 1))
    began, goes_on, done, ended = threading.Event(), threading.Event(), [], []

    def plain(event):
        began.set()
        goes_on.wait(SECONDS)
        done.append(event.envelope.id)

    async def coroutine(event):
        began.set()
        await asyncio.to_thread(goes_on.wait, SECONDS)
        done.append(event.envelope.id)

    bridge.on("*")(coroutine if way == "async" else plain)
    batch = threading.Thread(target=lambda: ended.append(bridge.process_many(facts())), daemon=True)
    batch.start()
    assert began.wait(SECONDS)
    closing = threading.Thread(target=bridge.close, daemon=True)
    closing.start()
    closing.join(0.1)
    assert closing.is_alive()  # it waits for the handler
    goes_on.set()
    closing.join(SECONDS)
    batch.join(SECONDS)
    assert not closing.is_alive()
    columns, first = [result.column for result in ended[0]], len(done)
    assert columns.count("processed") == first < NUMBER
    assert columns.count("retrying") == NUMBER - first
    assert bridge.books.as_dict()["balanced"]
    again = [result.column for result in bridge.process_many(facts())]
    assert sorted(again) == ["processed"] * (NUMBER - first) + ["redelivery"] * first
    assert len(done) == len(set(done)) == NUMBER
    assert bridge.ledger.counts() == {Status.DONE: NUMBER}
    bridge.close()


@pytest.mark.parametrize("way", ["plain", "async", "side by side"])
def test_close_in_a_handler(way, tmp_path):
    """A handler that closes its own bridge does not wait: its effect is settled, and the batch lets go at its end."""
    bridge = Bridge(f"sqlite:///{tmp_path}/once.db", settings=Settings(concurrency=2 if way == "side by side" else 1))

    def plain(event):
        bridge.close()

    async def coroutine(event):
        bridge.close()

    bridge.on("*")(coroutine if way == "async" else plain)
    ended = []
    batch = threading.Thread(target=lambda: ended.append(bridge.process_many(facts())), daemon=True)
    batch.start()
    batch.join(SECONDS)
    columns = [result.column for result in ended[0]]
    assert set(columns) == {"processed", "retrying"}
    assert columns.count("processed") <= 2


def test_close_at_any_moment():
    """Threads that work while another one closes again and again never see an error, and everything gets done once."""
    bridge, stop, errors, done = Bridge("memory://"), threading.Event(), [], []
    bridge.on("*")(lambda event: done.append(event.envelope.id))

    def work(number):
        try:
            left = [envelope(ACW, {"eventTime": TIME_MS + n}, id=f"{number} {n}") for n in range(200)]
            while left:
                results = bridge.process_many(left[:5])
                left = [one for one, result in zip(left, results, strict=False) if not result.acknowledged] + left[5:]
        except Exception as error:  # noqa: BLE001 - looked at below
            errors.append(error)

    def close():
        while not stop.is_set():
            bridge.close()

    closing = threading.Thread(target=close)
    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in (closing, *threads):
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    stop.set()
    closing.join(SECONDS)
    assert errors == []
    assert len(done) == len(set(done)) == 200  # the three had the same events
    assert bridge.books.as_dict()["balanced"]
