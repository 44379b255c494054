"""`oncebridge dead`: list, show, redrive, discard."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from oncebridge.claim import Outcome
from oncebridge.cli.output import entry_as_dict, progress_bar, say, write_fields, write_json, write_table, write_text
from oncebridge.cli.wiring import (
    EXIT_AGAIN,
    HandlerOption,
    JSONOption,
    LedgerOption,
    SettingsOption,
    connect,
    existing_bridge,
    opened,
)
from oncebridge.deadletters import DeadLetters
from oncebridge.errors import ConfigurationError
from oncebridge.identity import key_bytes, key_text, read_time
from oncebridge.intake.results import Result
from oncebridge.ledgers.protocol import Query

if TYPE_CHECKING:
    from oncebridge.bridge import Bridge
    from oncebridge.ledgers.protocol import Entry

EXIT_STILL_DEAD = 1

app = typer.Typer(help="Dead letters: list, show, redrive, discard.", no_args_is_help=True)

Keys = Annotated[list[str] | None, typer.Argument(help="Keys, as `dead list` shows them.", metavar="KEY...")]
Topic = Annotated[str | None, typer.Option(help="Only this topic; {id} and * work.")]
Reason = Annotated[str | None, typer.Option(help="Only reasons that contain this text.")]
Since = Annotated[str | None, typer.Option(help="Only since this time, such as 2026-03-02T08:00:00Z.")]
Until = Annotated[str | None, typer.Option(help="Only before this time.")]
All = Annotated[bool, typer.Option("--all", help="Every dead letter that matches.")]


@app.command("list")
def list_(
    *,
    topic: Topic = None,
    reason: Reason = None,
    since: Since = None,
    until: Until = None,
    ledger: LedgerOption = None,
    settings: SettingsOption = None,
    json: JSONOption = False,
) -> None:
    """List dead letters, the oldest first, without what they hold."""
    with existing_bridge(ledger, settings) as bridge:
        entries = [*DeadLetters(bridge.open()).matching(_query(topic, reason, since, until))]
    if json:
        for entry in entries:
            write_json(entry_as_dict(entry))
        return
    rows = [
        (key_text(entry.key), _time(entry.changed_us), entry.topic or "?", entry.handler, entry.attempts, entry.reason)
        for entry in entries
    ]
    write_table(("key", "since", "topic", "handler", "attempts", "reason"), rows, empty="no dead letters")


@app.command()
def show(
    key: Annotated[str, typer.Argument(help="Key, as `dead list` shows it.")],
    *,
    ledger: LedgerOption = None,
    settings: SettingsOption = None,
    json: JSONOption = False,
) -> None:
    """Show one dead letter with all it holds: this may be personal data."""
    with existing_bridge(ledger, settings) as bridge:
        entries = DeadLetters(bridge.open()).show(_key(key))
    if not entries:
        raise ConfigurationError(f"no dead letter under {key}; see: oncebridge dead list")
    for entry in entries:
        raw = (entry.raw or b"").decode(errors="backslashreplace")
        if json:
            write_json({**entry_as_dict(entry), "detail": entry.detail, "raw": raw})
        else:
            write_fields(entry_as_dict(entry))
            write_text("")
            if entry.detail:
                write_text(entry.detail)
            write_text(raw)


@app.command()
def redrive(
    keys: Keys = None,
    *,
    handler: HandlerOption = None,
    every: All = False,
    force: Annotated[bool, typer.Option(help="Even if it is an echo or stale by now.")] = False,
    topic: Topic = None,
    reason: Reason = None,
    since: Since = None,
    until: Until = None,
    ledger: LedgerOption = None,
    settings: SettingsOption = None,
    json: JSONOption = False,
) -> None:
    """Try dead letters again, each under its own key, with attempts from zero."""
    bridge = existing_bridge(ledger, settings)
    if not connect(bridge, handler):
        raise ConfigurationError("--handler: name the handler to redrive to, as module:function, or set up sinks")
    with opened(bridge):
        letters = DeadLetters(bridge.open())
        entries = _chosen(letters, keys, every, _query(topic, reason, since, until))
        with progress_bar() as bar:
            results = [
                _until_settled(bridge, letters, entry, force=force)
                for entry in bar.track(entries, description="redriving")
            ]
    _report(results, json=json)


@app.command()
def discard(
    keys: Keys = None,
    *,
    every: All = False,
    topic: Topic = None,
    reason: Reason = None,
    since: Since = None,
    until: Until = None,
    ledger: LedgerOption = None,
    settings: SettingsOption = None,
    json: JSONOption = False,
) -> None:
    """Give dead letters up for good: what they hold is erased, and they do not come back."""
    with existing_bridge(ledger, settings) as bridge:
        letters = DeadLetters(bridge.open())
        entries = _chosen(letters, keys, every, _query(topic, reason, since, until))
        with progress_bar() as bar:
            results = [letters.discard(entry) for entry in bar.track(entries, description="discarding")]
    _report(results, json=json)


def _until_settled(bridge: Bridge, letters: DeadLetters, entry: Entry, *, force: bool) -> Result:
    """Redrive one, and again as its retries fall due: nobody else redelivers it."""
    flow = bridge.open()
    result = letters.redrive(entry, force=force)
    while result.outcome is not None and not result.acknowledged and not flow.stopping.is_set():
        flow.clock.wait(flow.stopping, result.again_in_us / 1_000_000)
        result = letters.redrive(entry, force=force)
    return result


def _chosen(letters: DeadLetters, keys: list[str] | None, every: bool, query: Query) -> list[Entry]:
    """Return the dead letters that keys or filters name; all of them only when asked in so many words."""
    if keys:
        chosen = [entry for key in keys for entry in letters.show(_key(key))]
        known = {entry.key for entry in chosen}
        unknown = [key for key in keys if _key(key) not in known]
        if unknown:
            raise ConfigurationError(f"no dead letter under {', '.join(unknown)}; see: oncebridge dead list")
        return chosen
    if not every and query == Query():
        raise ConfigurationError("name keys, filters such as --topic, or --all")
    return [*letters.matching(query)]


def _report(results: list[Result], *, json: bool) -> None:
    if json:
        for result in results:
            line = {"key": result.key, "verdict": result.verdict, "outcome": result.outcome, "reason": result.reason}
            write_json(line)
    else:
        rows = [(result.key, result.verdict.value, result.outcome, result.reason) for result in results]
        write_table(("key", "verdict", "outcome", "reason"), rows, empty="no dead letters match")
    if any(not result.acknowledged for result in results):
        say("some are still retrying; run the same command again")
        raise typer.Exit(EXIT_AGAIN)
    if any(result.outcome is Outcome.DEAD for result in results):
        say("some are still dead letters: see oncebridge dead list")
        raise typer.Exit(EXIT_STILL_DEAD)


def _query(topic: str | None, reason: str | None, since: str | None, until: str | None) -> Query:
    return Query(
        topic=topic,
        reason=reason,
        since_us=_time_us("--since", since),
        until_us=_time_us("--until", until),
    )


def _time_us(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    time = read_time(text if "T" in text or " " in text or text.isdigit() else f"{text}T00:00:00")
    if time is None:
        raise ConfigurationError(f"{option}: expected a time such as 2026-03-02T08:00:00Z, got {text!r}")
    return time[0] // 1000


def _key(text: str) -> bytes:
    key = key_bytes(text)
    if key is None:
        raise ConfigurationError(f"{text!r} is no key; keys look like {key_text(bytes(16))}, see: oncebridge dead list")
    return key


def _time(us: int) -> str:
    return datetime.fromtimestamp(us / 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
