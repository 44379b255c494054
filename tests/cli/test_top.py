"""`oncebridge top`: what all workers are doing."""

import json

from oncebridge import Bridge
from oncebridge.cli.top import sparkline
from payloads import queue_conversation, raw

LEDGER = "sqlite:///once.db"


def work(cli, number=5):
    """Let a worker with a journal process some events, each twice."""
    with Bridge(f"sqlite:///{cli.folder}/once.db") as bridge:
        bridge.register("*", lambda event: None, name="crm")
        bridge.start_journal("consume")
        batch = [raw(queue_conversation(event_id=f"{n}", conversation=f"{n}")) for n in range(number)]
        bridge.process_many(batch)
        bridge.process_many(batch)


def test_the_last_hour_of_all_workers_is_shown(cli):
    """In a pipe it is written once: the books, topics, handlers and workers, in words and columns."""
    work(cli)
    work(cli, 7)
    ran = cli("top", "--ledger", LEDGER)
    assert ran.code == 0
    assert ran.out.startswith("24 deliveries in the last hour, 71% of them copies; 0 workers run\n")
    for said in ("processed ", "redelivery ", "routing:queueConversation", "crm", "at least once", "consume"):
        assert said in ran.out
    assert "\x1b" not in ran.out


def test_programs_get_one_object(cli):
    """With --json there is one object with the columns of the books, topics, handlers and workers."""
    work(cli)
    shown = json.loads(cli("top", "--ledger", LEDGER, "--json").out)
    assert (shown["received"], shown["processed"], shown["redelivery"]) == (10, 5, 5)
    assert [row["topic"] for row in shown["topics"]] == ["routing:queueConversation"]
    assert [(row["name"], row["done"]) for row in shown["handlers"]] == [("crm", 5)]
    assert sum(shown["columns"]["processed"]) == 5


def test_a_ledger_without_a_journal_is_said(cli, facts):
    """Where no worker has written one, it says who does, and nothing is made up."""
    cli.write("in.jsonl", facts(2))
    assert cli("process", "in.jsonl", "--ledger", LEDGER).code == 0
    assert "No worker has written a journal" in cli("top", "--ledger", LEDGER).out


def test_bars_grow_with_their_numbers():
    """The highest number has the highest bar, nothing has none, and one of many is still seen."""
    assert sparkline([0, 1, 500, 1000]) == " ▁▄█"
    assert sparkline([0, 0]) == "  "
