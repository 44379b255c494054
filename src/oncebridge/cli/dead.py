"""`oncebridge dead`: list, show, redrive, discard."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from oncebridge.claim import Outcome, Verdict
from oncebridge.cli.output import progress_bar, say, write_fields, write_json, write_table, write_text
from oncebridge.cli.wiring import (
    EXIT_AGAIN,
    EXIT_WRONG,
    BridgeOption,
    HandlerOption,
    JSONOption,
    LedgerOption,
    SettingsOption,
    existing_bridge,
    opened,
    without_handlers,
)
from oncebridge.errors import ConfigurationError
from oncebridge.identity import read_time

if TYPE_CHECKING:
    from oncebridge.bridge import Bridge
    from oncebridge.deadletters import DeadLetter
    from oncebridge.engine.result import Result

EXIT_STILL_DEAD: Final = 1
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

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
    handler: BridgeOption = None,
    topic: Topic = None,
    reason: Reason = None,
    since: Since = None,
    until: Until = None,
    ledger: LedgerOption = None,
    settings: SettingsOption = None,
    json: JSONOption = False,
) -> None:
    """List dead letters, the oldest first, without what they hold."""
    with existing_bridge(handler, ledger, settings) as bridge:
        letters = [*bridge.dead_letters.list(**_filters(topic, reason, since, until))]
    if json:
        for letter in letters:
            write_json(_as_dict(letter))
        return
    rows = [
        (letter.key, _time(letter.changed_ms), letter.topic or "?", letter.handler, letter.attempts, letter.reason)
        for letter in letters
    ]
    write_table(("key", "since", "topic", "handler", "attempts", "reason"), rows, empty="no dead letters")


@app.command()
def show(
    key: Annotated[str, typer.Argument(help="Key, as `dead list` shows it.")],
    *,
    handler: BridgeOption = None,
    ledger: LedgerOption = None,
    settings: SettingsOption = None,
    json: JSONOption = False,
) -> None:
    """Show one dead letter with all it holds: this may be personal data."""
    with existing_bridge(handler, ledger, settings) as bridge:
        letters = bridge.dead_letters.show(key)
    if not letters:
        raise ConfigurationError(f"no dead letter under {key}; see: oncebridge dead list")
    for letter in letters:
        raw = (letter.raw or b"").decode(errors="backslashreplace")
        if json:
            write_json({**_as_dict(letter), "detail": letter.detail, "raw": raw})
        else:
            write_fields(_as_dict(letter))
            write_text("")
            if letter.detail:
                write_text(letter.detail)
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
    bridge = existing_bridge(handler, ledger, settings)
    if not bridge.add_downstream():
        if handler is not None:
            raise without_handlers(handler)
        raise ConfigurationError("--handler: name the Bridge or the function to redrive to, or set up sinks")
    with opened(bridge):
        letters = _chosen(bridge, keys, every, _filters(topic, reason, since, until))
        with progress_bar() as bar:
            results = [
                _until_settled(bridge, letter, force=force) for letter in bar.track(letters, description="redriving")
            ]
    _report(results, json=json)


@app.command()
def discard(
    keys: Keys = None,
    *,
    handler: BridgeOption = None,
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
    with existing_bridge(handler, ledger, settings) as bridge:
        letters = _chosen(bridge, keys, every, _filters(topic, reason, since, until))
        with progress_bar() as bar:
            results = [bridge.dead_letters.discard(letter) for letter in bar.track(letters, description="discarding")]
    _report(results, json=json)


def _until_settled(bridge: Bridge, letter: DeadLetter, *, force: bool) -> Result:
    """Redrive one, and again as its retries fall due: nobody else redelivers it."""
    letters = bridge.dead_letters
    result = letters.redrive(letter, force=force)
    while result.outcome is not None and not result.acknowledged and not bridge.stopping.is_set():
        bridge.clock.wait(bridge.stopping, result.retry_in_us / 1_000_000)
        result = letters.redrive(letter, force=force)
    return result


def _chosen(bridge: Bridge, keys: list[str] | None, every: bool, filters: dict[str, Any]) -> list[DeadLetter]:
    """Return the dead letters that keys or filters name; all of them only when asked in so many words."""
    letters = bridge.dead_letters
    if keys:
        found = {key: letters.show(key) for key in dict.fromkeys(keys)}
        unknown = [key for key, of_key in found.items() if not of_key]
        if unknown:
            raise ConfigurationError(f"no dead letter under {', '.join(unknown)}; see: oncebridge dead list")
        return [letter for of_key in found.values() for letter in of_key]
    if not every and not any(filters.values()):
        raise ConfigurationError("name keys, filters such as --topic, or --all")
    return [*letters.list(**filters)]


def _report(results: list[Result], *, json: bool) -> None:
    if json:
        for result in results:
            line = {"key": result.key, "verdict": result.verdict, "outcome": result.outcome, "reason": result.reason}
            write_json(line)
    else:
        rows = [(result.key, result.verdict.value, result.outcome, result.reason) for result in results]
        write_table(("key", "verdict", "outcome", "reason"), rows, empty="no dead letters match")
    if any(result.verdict is Verdict.UNHANDLED for result in results):
        say(
            "some stay dead letters, because the handlers that they are for are not here (`oncebridge dead list` has "
            "their names); name the Bridge that has them, --handler module:bridge, or call a sink in the settings so"
        )
        raise typer.Exit(EXIT_WRONG)
    if any(not result.acknowledged for result in results):
        say("some are still retrying; run the same command again")
        raise typer.Exit(EXIT_AGAIN)
    if any(result.outcome is Outcome.DEAD for result in results):
        say("some are still dead letters: see oncebridge dead list")
        raise typer.Exit(EXIT_STILL_DEAD)


def _as_dict(letter: DeadLetter) -> dict[str, Any]:
    """Write a dead letter for JSON output, without what it holds."""
    return {
        "key": letter.key,
        "handler": letter.handler,
        "status": letter.status,
        "topic": letter.topic,
        "time_ms": letter.time_ms,
        "id": letter.envelope_id,
        "attempts": letter.attempts,
        "changed_ms": letter.changed_ms,
        "retry_at_ms": letter.retry_at_ms,
        "lease_until_ms": letter.lease_until_ms,
        "reason": letter.reason or None,
    }


def _filters(topic: str | None, reason: str | None, since: str | None, until: str | None) -> dict[str, Any]:
    return {"topic": topic, "reason": reason, "since": _read("--since", since), "until": _read("--until", until)}


def _read(option: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    time = read_time(text if "T" in text or " " in text or text.isdigit() else f"{text}T00:00:00")
    if time is None:
        raise ConfigurationError(f"{option}: expected a time such as 2026-03-02T08:00:00Z, got {text!r}")
    return EPOCH + timedelta(microseconds=time[0] // 1000)


def _time(ms: int) -> str:
    return (EPOCH + timedelta(milliseconds=ms)).strftime("%Y-%m-%dT%H:%M:%SZ")
