"""Exit codes as the README has them: 0 settled, 75 not all, 2 change something, 1 nothing found or still dead."""

import json
import shlex
import sys

from oncebridge.cli.app import COMMANDS
from oncebridge.cli.dead import app as dead

NO_KEY = "ob1_" + "0" * 32
NOWHERE = "redis://127.0.0.1:1/0"  # nobody listens there
QUEUE = "https://sqs.eu-central-1.amazonaws.com/123456789012/events"

#: A call, and the code that it ends with. There is a ledger at once.db with one dead letter, KEY.
TABLE = {
    "process in.jsonl --ledger sqlite:///once.db": 0,
    "process missing.jsonl": 2,
    "process missing/in.jsonl": 2,
    "process in.jsonl --ledger sqlite:///missing/once.db": 2,
    "process in.jsonl --ledger sqlite:///in.jsonl/once.db": 2,
    "process in.jsonl --ledger nothing://here": 2,
    "process in.jsonl --verdicts missing/verdicts.jsonl": 2,
    "process in.jsonl --settings missing.toml": 2,
    "process in.jsonl --handler missing:name": 2,
    f"process in.jsonl --handler hooks:note --ledger {NOWHERE}": 75,
    "explain in.jsonl": 0,
    "explain missing.jsonl": 2,
    "explain in.jsonl --ledger sqlite:///missing/once.db": 2,
    f"explain in.jsonl --ledger {NOWHERE}": 75,
    "diagnose in.jsonl": 0,
    "diagnose in.jsonl missing.jsonl": 2,
    "diagnose missing.jsonl": 2,
    "diagnose": 2,
    "diagnose in.jsonl --key [": 2,
    "diagnose in.jsonl --html in.jsonl": 2,
    "diagnose in.jsonl --html missing/report.html": 2,
    "diagnose in.jsonl --work-dir missing": 2,
    "diagnose in.jsonl --settings missing.toml": 2,
    "diagnose in.jsonl --compare missing.toml": 2,
    "diagnose --from in.jsonl": 2,
    "diagnose hooks.py": 1,
    "reconcile --ledger sqlite:///once.db": 2,
    "reconcile --ledger sqlite:///missing/once.db": 2,
    "reconcile --since yesterday --ledger sqlite:///once.db": 2,
    f"reconcile --ledger {NOWHERE}": 75,
    "top --ledger sqlite:///once.db": 0,
    "top --ledger sqlite:///missing/once.db": 2,
    f"top --ledger {NOWHERE}": 75,
    "console --ledger sqlite:///missing/once.db": 2,
    "console --ledger sqlite:///once.db --host 0.0.0.0": 2,
    "deliveries --ledger sqlite:///once.db": 1,
    "deliveries --ledger sqlite:///once.db --since yesterday": 2,
    f"deliveries --ledger {NOWHERE}": 75,
    "pause crm --ledger sqlite:///once.db": 2,
    "pause crm --force --ledger sqlite:///once.db": 0,
    "pause crm --ledger sqlite:///missing/once.db": 2,
    f"pause crm --ledger {NOWHERE}": 75,
    "resume crm --ledger sqlite:///once.db": 0,
    f"resume crm --ledger {NOWHERE}": 75,
    "log --ledger sqlite:///once.db": 0,
    "log --ledger sqlite:///missing/once.db": 2,
    f"log --ledger {NOWHERE}": 75,
    "find KEY --ledger sqlite:///once.db": 0,
    f"find {NO_KEY} --ledger sqlite:///once.db": 1,
    "find nobody --ledger sqlite:///once.db": 1,
    "find missing/in.jsonl --ledger sqlite:///once.db": 2,
    "find missing.jsonl --ledger sqlite:///once.db": 2,
    "find KEY --ledger sqlite:///missing/once.db": 2,
    f"find KEY --ledger {NOWHERE}": 75,
    "dead list --ledger sqlite:///once.db": 0,
    "dead list --ledger sqlite:///missing.db": 2,
    f"dead list --ledger {NOWHERE}": 75,
    "dead show KEY --ledger sqlite:///once.db": 0,
    f"dead show {NO_KEY} --ledger sqlite:///once.db": 1,
    "dead show nonsense --ledger sqlite:///once.db": 2,
    "dead show KEY --ledger sqlite:///missing/once.db": 2,
    "dead redrive KEY --ledger sqlite:///once.db": 2,
    "dead redrive KEY --ledger sqlite:///once.db --handler hooks:refuse": 1,
    f"dead redrive {NO_KEY} --ledger sqlite:///once.db --handler hooks:note": 1,
    "dead redrive nonsense --ledger sqlite:///once.db --handler hooks:note": 2,
    "dead redrive --ledger sqlite:///once.db --handler hooks:note": 2,
    f"dead discard {NO_KEY} --ledger sqlite:///once.db": 1,
    "dead discard nonsense --ledger sqlite:///once.db": 2,
    "dead discard --ledger sqlite:///once.db": 2,
    "doctor --ledger sqlite:///missing/once.db": 2,
    f"doctor --ledger {NOWHERE}": 75,
    "migrate --ledger sqlite:///once.db": 0,
    "migrate --ledger sqlite:///missing/once.db": 2,
    "migrate --ledger postgresql://127.0.0.1:1/crm": 75,
    "purge --ledger sqlite:///once.db": 0,
    "purge --ledger sqlite:///missing/once.db": 2,
    "purge --ledger sqlite:///once.db --older-than-days 0": 2,
    f"purge --ledger {NOWHERE}": 75,
    "simulate --conversations 1 --out missing/out.jsonl": 2,
    "simulate --conversations 1 --out out.jsonl --truth missing/truth.jsonl": 2,
    "serve --ledger sqlite:///missing/once.db --handler hooks:note --port 0": 2,
    "serve --host 192.0.2.1": 2,
    f"consume {QUEUE}": 2,
    "consume nonsense --handler hooks:note": 2,
    f"consume {QUEUE} --handler hooks:note --ledger sqlite:///missing/once.db": 2,
    "demo --conversations 1": 2,
}


def test_every_command_is_in_the_table():
    """No command is left out."""
    named = {command.name or command.callback.__name__ for command in dead.registered_commands}
    called = {tuple(call.split()[: 1 + call.startswith("dead")]) for call in TABLE}
    assert {*((name,) for name in COMMANDS if name != "dead"), *(("dead", name) for name in named)} <= called


#: Runs many calls in one process, as each would end in its own.
PROGRAM = """
import contextlib, io, json, sys
from oncebridge.cli.app import run

for call in json.loads(sys.argv[1]):
    sys.argv = ["oncebridge", *call]
    said = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        code = run()
    print(json.dumps([code, said.getvalue()]))
"""


def test_exit_codes(cli, facts):
    """Each call ends with its code, and says why if that is not 0."""
    cli.write_hooks()
    cli.process(cli.write("in.jsonl", facts(1)), "--handler", "hooks:refuse")
    (letter,) = cli.dead("list", "--json").items
    words = [shlex.split(call.replace("KEY", letter["key"])) for call in TABLE]
    ran = cli.start_program(sys.executable, "-c", PROGRAM, json.dumps(words)).finish()
    ends = dict(zip(TABLE, ran.items, strict=True))
    assert {call: end for call, end in ends.items() if end[0] != TABLE[call]} == {}
    assert [call for call, (code, said) in ends.items() if code and not said] == []
