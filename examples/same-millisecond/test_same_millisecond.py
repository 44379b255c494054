"""Doubles with ids of their own, and real changes in the same millisecond: what each way makes of them."""

import secrets
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from payloads import TIME_MS, queue_conversation

PATIENCE = 60  # seconds, for what happens at once
README = Path(__file__).with_name("README.md")

#: In the order of the table in the README.
DELIVERIES = [
    queue_conversation("waiting", event_id="route-1", id="envelope-1"),
    queue_conversation("accepted", event_id="route-2", id="envelope-2"),
    queue_conversation("accepted", event_id="route-3", id="envelope-3"),
    queue_conversation("accepted", event_id="route-2", id="envelope-4"),
    queue_conversation("waiting", event_id="route-4", moment=TIME_MS + 200, id="envelope-5"),
    queue_conversation("offered", event_id="route-5", moment=TIME_MS - 100, id="envelope-6"),
    queue_conversation("abandoned", event_id="route-4", moment=TIME_MS + 200, id="envelope-7"),
    queue_conversation("accepted", event_id="route-6", moment=TIME_MS + 2_000, id="envelope-8"),
]


def column(name):
    """Return a column of the README's table."""
    rows = [line.strip("|").split("|") for line in README.read_text().splitlines() if line.startswith("|")]
    heading, _, *cells = [[cell.strip(" *") for cell in row] for row in rows]
    return [row[heading.index(name)] for row in cells]


@pytest.fixture
def board(ministack, monkeypatch):
    """Make the tables, all empty; return what reads the board."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", ministack.url)
    monkeypatch.setenv("ONCEBRIDGE_LEDGER", f"dynamodb://once-{secrets.token_hex(4)}")
    tables = {"board": "conversation", "seen": "mark"}
    with closing(ministack.client("dynamodb")) as client:
        for name, key in tables.items():
            client.create_table(
                TableName=name,
                KeySchema=[{"AttributeName": key, "KeyType": "HASH"}],
                AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"}],
                BillingMode="PAY_PER_REQUEST",
            )

        def status(conversation="call-31"):
            found = client.get_item(TableName="board", Key={"conversation": {"S": conversation}}, ConsistentRead=True)
            return found["Item"]["status"]["S"]

        yield status
        for name in tables:
            client.delete_table(TableName=name)


@pytest.fixture
def app(cold_start, board):
    """Start the program, with a ledger that is ready."""
    program = cold_start("app")
    program.bridge.ledger.migrate()
    return program


@pytest.mark.parametrize(
    ("name", "way"), [("newest wins", "newest_wins"), ("by id", "by_id"), ("by state", "by_state")]
)
def test_the_usual_ways(cold_start, board, name, way):
    """Each of the usual ways takes and skips what the README says, and each goes wrong somewhere."""
    take = getattr(cold_start("naive"), way)
    assert ["taken" if take(event) else "skipped" for event in DELIVERIES] == column(name)


def test_newest_wins_loses_a_change(cold_start, board):
    """The board goes on showing a conversation as waiting that was accepted in the same millisecond."""
    naive = cold_start("naive")
    for event in DELIVERIES[:2]:
        naive.newest_wins(event)
    assert board() == "waiting"


def test_verdicts(app):
    """Oncebridge gives the verdicts that the README says."""
    assert [app.bridge.process(event).verdict for event in DELIVERIES] == column("Oncebridge")


def test_the_board_shows_every_change(app, board, deliver):
    """After each delivery the board shows the newest change, and the conflict is kept for somebody to look at."""
    shown = []
    for event in DELIVERIES:
        deliver(app.lambda_handler, event)
        shown.append(board())
    assert shown == ["waiting", "accepted", "accepted", "accepted", "waiting", "waiting", "waiting", "accepted"]
    assert app.bridge.books.as_dict()["conflict"] == 1


def test_doubles_that_come_together(app, cold_start, deliver_until_taken):
    """Two event ids of one change, taken by two environments at the same time: one is processed, the other an echo."""
    environments, both = [app, cold_start("app")], threading.Barrier(2)

    def take_all(number):
        for call in range(10):
            names = {"event_id": f"route-{call}-{number}", "conversation": f"call-{call}", "id": f"envelope-{number}"}
            both.wait(PATIENCE)
            event = queue_conversation(moment=TIME_MS + 100 * number, **names)
            deliver_until_taken(environments[number].lambda_handler, event)

    with ThreadPoolExecutor() as threads:
        list(threads.map(take_all, range(2)))
    books = [program.bridge.books.as_dict() for program in environments]
    assert [sum(book[name] for book in books) for name in ("processed", "echo")] == [10, 10]
