"""`oncebridge pause` and `oncebridge resume`: have events of one handler wait, and go on."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oncebridge.cli.action_log import log_action, person
from oncebridge.cli.output import say, write_json, write_text
from oncebridge.cli.top import journal_of
from oncebridge.cli.wiring import JSONOption, LedgerOption, SettingsOption, existing_bridge
from oncebridge.errors import ConfigurationError, OncebridgeError
from oncebridge.handlers import uncalled
from oncebridge.journal.pauses import Pauses, called
from oncebridge.ledgers.notes import KeepsNotes
from oncebridge.quantities import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oncebridge.bridge import Bridge
    from oncebridge.journal.reader import JournalReader
    from oncebridge.journal.records import WorkerSeen

Name = Annotated[
    str, typer.Argument(help='The handler or sink, as `top` names it; "" for the one without a name.', metavar="NAME")
]


def pause(
    name: Name,
    *,
    force: Annotated[bool, typer.Option(help="Even if no worker is known to have this handler.")] = False,
    ledger: LedgerOption = None,
    settings: SettingsOption = None,
    json: JSONOption = False,
) -> None:
    """Have the events of one handler wait at their source, untried, at all workers; duplicates end as ever."""
    with existing_bridge(None, ledger, settings) as bridge:
        reader = journal_of(bridge)
        having = _having(reader, name)
        if not force and not having:
            _refuse_unknown(reader, name)
        pauses = Pauses(reader.notes, bridge.clock)
        was = name in pauses.read()
        made = pauses.pause(name, person())
        reason = made.reason(bridge.clock.now_us() // 1000)
        log_action(bridge, "pause", called(name), "was paused before" if was else "paused")
    holds = sorted({worker.holds for worker in having if worker.holds})
    if json:
        told: dict[str, Any] = {"handler": name, "since_ms": made.since_ms, "who": made.who, "was_paused": was}
        write_json({**told, "workers": [worker.name for worker in having], "holds": holds})
        return
    write_text(f"{reason}{' already' * was}")
    if not having:
        say(
            "no running worker is seen that has it: only workers that keep a journal heed a pause, and with "
            "journal = false in their settings they do not"
        )
        return
    say(f"{counted(len(having), 'worker heeds', 'workers heed')} it within about 5 s (Lambda: with the next events)")
    for words in holds:
        say(f"its events can wait {words}")
    say("go on with:")
    say(f"  oncebridge resume {_quoted(name)}")


def resume(
    name: Name,
    *,
    ledger: LedgerOption = None,
    settings: SettingsOption = None,
    json: JSONOption = False,
) -> None:
    """Let the events of a paused handler go on."""
    with existing_bridge(None, ledger, settings) as bridge:
        reader = journal_of(bridge)
        pauses = Pauses(reader.notes, bridge.clock)
        paused = pauses.read()
        resumed = pauses.resume(name, person())
        having = _having(reader, name)
        if resumed:
            log_action(bridge, "resume", called(name), "resumed")
    if json:
        write_json({"handler": name, "resumed": resumed, "workers": [worker.name for worker in having]})
    elif resumed:
        write_text(f"{called(name)} is resumed")
        workers = counted(len(having), "worker goes", "workers go")
        say(f"{workers} on within about 5 s, with events as their sources deliver them again")
    else:
        others = ", ".join(called(one) for one in paused if one != name)
        write_text(f"{called(name)} was not paused" + (f"; paused: {others}" if others else ""))


def heed_pauses(bridge: Bridge) -> None:
    """Have a run that keeps no journal heed the pauses of this moment; if they cannot be read, it goes on."""
    if not bridge.settings.journal or not isinstance(bridge.ledger, KeepsNotes):
        return
    with suppress(OncebridgeError):
        reasons = Pauses(bridge.ledger.notes, bridge.clock).reasons()
        bridge.open().paused.reasons = reasons
        for handler in {handler.name: handler for handler in bridge.handlers if handler.function is not uncalled}:
            if handler in reasons:
                say(f"{reasons[handler]}: its events are not tried")


def _having(reader: JournalReader, name: str) -> Sequence[WorkerSeen]:
    """Return the workers that run and have this handler."""
    return [
        worker
        for worker in reader.workers()
        if reader.runs(worker) and any(handler.name == name for handler in worker.handlers)
    ]


def _refuse_unknown(reader: JournalReader, name: str) -> None:
    known = dict.fromkeys(handler.name for worker in reader.workers() for handler in worker.handlers)
    if name in known:
        return
    names = ", ".join(map(_quoted, known)) or "none"
    raise ConfigurationError(
        f"no worker has been seen lately that has a handler {_quoted(name)}; known: {names}. Give --force to pause it "
        "for workers that start later, for those without a journal's word, and for claims over HTTP"
    )


def _quoted(name: str) -> str:
    return name if name.replace("-", "").replace("_", "").isalnum() else f'"{name}"'
