"""A worker that dies at any statement between its claim and the end of it: nothing is lost, nothing is doubled."""

import json
import os
import subprocess
import sys
from pathlib import Path

from oncebridge.ledgers import ledger_from_url
from oncebridge.sinks import Breakers, SinkContext, make_sink
from oncebridge.testing.clock import ManualClock
from tables import keys, log, make_tables, placed  # noqa: F401 - fixtures among them

TESTS = Path(__file__).resolve().parents[1]

#: For each statement from the claim on one process with an event that dies just before it, then one that gets them all.
DRIVER = '''
import json, os, sqlite3, sys

tests, database, table, ledger = sys.argv[1:]
sys.path.insert(0, tests)

import psycopg
from oncebridge import Bridge
from oncebridge.ledgers.postgres.connections import LedgerConnection
from oncebridge.settings import Settings
from oncebridge.settings.sinks import read_sink
from tables import SECRET, status

columns = {"event_key": "oncebridge.key", "status": "detail.eventBody.routingStatus.status"}
sink = read_sink("log", {"database": database, "table": table, "columns": columns}, "here")
left = None


def maybe_die():
    global left
    if left is not None:
        left -= 1
        if left == 0:
            os.kill(os.getpid(), 9)


def dying(kind):
    class Dying(kind):
        def execute(self, *arguments):
            maybe_die()
            return super().execute(*arguments)

    return Dying


connect = sqlite3.connect
sqlite3.connect = lambda *places, factory=sqlite3.Connection, **options: connect(
    *places, **options, factory=dying(factory)
)
execute, commit = psycopg.Cursor.execute, LedgerConnection.commit


def dying_execute(self, *arguments, **options):
    maybe_die()
    return execute(self, *arguments, **options)


def dying_commit(self):
    maybe_die()
    commit(self)


psycopg.Cursor.execute, LedgerConnection.commit = dying_execute, dying_commit


def event(n):
    return status(f"S{n}", frame={"topicName": f"v2.users.agent-{n}.routingStatus"})


def worker(*numbers, dies_before=None):
    """Work events off in a process of its own; tell whether it came to its end."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] == 0
    global left
    try:
        lease = 30.0 if dies_before is None else 0.1
        settings = Settings(sinks=(sink,), secret=SECRET, lease_seconds=lease, busy_wait_seconds=120.0)
        bridge = Bridge(ledger, settings=settings)
        bridge.open()
        left = dies_before
        results = bridge.process_many([event(n) for n in numbers])
        left = None
        os._exit(0 if {result.outcome for result in results} <= {"done", None} else 3)
    finally:
        os._exit(4)


n = 1
while not worker(n, dies_before=n):
    n += 1
    if n > 100:
        sys.exit("no event comes to its end")
if not worker(*range(1, n + 1)):
    sys.exit("no end for what the dead ones left")
print(json.dumps({"died": n - 1, "events": n}))
'''


def test_a_crash_at_any_statement_is_one_row(placed, tmp_path):  # noqa: F811
    """Killed before each statement in turn: the event comes again, and in the end each has one row."""
    desk, database = placed
    make_tables(desk)
    ledger = desk.ledger_url if database == "ledger" else f"sqlite:///{tmp_path / 'once.db'}"
    ledger_from_url(ledger).migrate()
    sink = log(desk, database=database)
    if database != "ledger":
        clock = ManualClock()
        made = make_sink(sink, SinkContext(clock=clock, breakers=Breakers(clock), ledger=None, retention_us=1))
        made.migrate()
        made.close()
    ran = subprocess.run(
        [sys.executable, "-c", DRIVER, str(TESTS), sink.database, sink.table, ledger],
        env=dict(os.environ),
        capture_output=True,
        timeout=240,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr.decode()
    books = json.loads(ran.stdout)
    assert books["died"] >= 8  # statements of the claim, of the effect and of the settle
    assert len(keys(desk)) == len({*keys(desk)}) == books["events"]
