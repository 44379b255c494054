"""`oncebridge dead`: list, show, redrive, discard."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from oncebridge.claim import Outcome, Verdict
from oncebridge.cli.output import (
    confirmed,
    iso_time,
    progress_bar,
    results,
    say,
    write_fields,
    write_json,
    write_table,
    write_text,
)
from oncebridge.cli.tables import shortened
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
from oncebridge.deadletters import count_letters
from oncebridge.engine.waiting import PATIENCE_US, made_attempt
from oncebridge.errors import ConfigurationError
from oncebridge.letter_filter import EPOCH, is_any_given, read_moment

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from oncebridge.bridge import Bridge
    from oncebridge.deadletters import DeadLetter, LetterCount
    from oncebridge.engine.result import Result
    from oncebridge.letter_filter import Filters

EXIT_STILL_DEAD: Final = 1
EXIT_DECLINED: Final = 1
#: A terminal shows as many letters and groups of them, unless a limit is given; a pipe gets all.
SHOWN_MAX: Final = 50
GROUPS_MAX: Final = 10
#: So much of a reason is in a question, which has to fit one line.
REASON_ASKED: Final = 30

app = typer.Typer(help="Dead letters: list, show, redrive, discard.", no_args_is_help=True)

Keys = Annotated[list[str] | None, typer.Argument(help="Keys, as `dead list` shows them.", metavar="KEY...")]
Topic = Annotated[str | None, typer.Option(help="Only this topic; {id} and * work.")]
Reason = Annotated[str | None, typer.Option(help="Only reasons that contain this text.")]
Since = Annotated[
    str | None,
    typer.Option(help="Only since then: 30m, 2h or 3d ago, or a time such as 2026-03-02T08:00:00Z.", metavar="WHEN"),
]
Until = Annotated[str | None, typer.Option(help="Only before then, said in the same ways.", metavar="WHEN")]
Limit = Annotated[int | None, typer.Option(help="At most so many, the oldest.", min=1, metavar="N", show_default="all")]
All = Annotated[bool, typer.Option("--all", help="Every dead letter that matches.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask at a terminal.")]


@app.command("list")
def list_(
    keys: Keys = None,
    *,
    handler: BridgeOption = None,
    topic: Topic = None,
    reason: Reason = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = None,
    counts: Annotated[bool, typer.Option("--counts", help="Only how many, by reason and topic.")] = False,
    ledger: LedgerOption = None,
    settings: SettingsOption = None,
    json: JSONOption = False,
) -> None:
    """List dead letters, the oldest first, without what they hold; a terminal gets their counts first.

    The oldest come first, since that is the order in which they are redriven.
    """
    with existing_bridge(handler, ledger, settings) as bridge:
        letters = [
            *bridge.dead_letters.list(**_filters(bridge, keys, topic, reason, since=since, until=until, limit=limit))
        ]
    if counts:
        _write_counts(count_letters(letters), json=json)
    elif json:
        for letter in letters:
            write_json(_as_dict(letter))
    elif not results.is_terminal:
        _write_letters(letters)
    else:
        _write_overview(letters, limited=limit is not None)


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
    for number, letter in enumerate(letters):
        if json:
            write_json({**_as_dict(letter), "detail": letter.detail, "raw": _raw_text(letter)})
        else:
            if number:
                write_text("")
            _write_letter(letter)
    if not json:
        options = _options(ledger, settings)
        to = f" --handler {handler or 'MODULE:BRIDGE'}"
        say("next, once its cause is gone:")
        say(f"  oncebridge dead redrive {key}{to}{options}")
        say("or give it up for good:")
        say(f"  oncebridge dead discard {key}{options}")


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
    limit: Limit = None,
    yes: Yes = False,
    ledger: LedgerOption = None,
    settings: SettingsOption = None,
    json: JSONOption = False,
) -> None:
    """Try dead letters again, the oldest first, each under its own key, with attempts from zero."""
    bridge = existing_bridge(handler, ledger, settings)
    if not bridge.add_downstream():
        if handler is not None:
            raise without_handlers(handler)
        raise ConfigurationError("--handler: name the Bridge or the function to redrive to, or set up sinks")
    with opened(bridge):
        letters = _chosen(
            bridge, _filters(bridge, keys, topic, reason, since=since, until=until, limit=limit), every=every
        )
        _ask("redrive", letters, yes=yes)
        with progress_bar() as bar:
            results: list[Result] = []
            patient = True
            for letter in bar.track(letters, description="redriving"):
                results.append(_until_settled(bridge, letter, force=force, patient=patient))
                # Where one could not be waited for, the others are tried once: they may have the same receiver.
                patient = patient and (results[-1].acknowledged or results[-1].outcome is None)
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
    limit: Limit = None,
    yes: Yes = False,
    ledger: LedgerOption = None,
    settings: SettingsOption = None,
    json: JSONOption = False,
) -> None:
    """Give dead letters up for good: what they hold is erased, and they do not come back."""
    with existing_bridge(handler, ledger, settings) as bridge:
        letters = _chosen(
            bridge, _filters(bridge, keys, topic, reason, since=since, until=until, limit=limit), every=every
        )
        _ask("discard", letters, yes=yes)
        with progress_bar() as bar:
            results = [bridge.dead_letters.discard(letter) for letter in bar.track(letters, description="discarding")]
    _report(results, json=json)


def _until_settled(bridge: Bridge, letter: DeadLetter, *, force: bool, patient: bool) -> Result:
    """Redrive one, and again as its retries fall due within a minute: nobody else redelivers it."""
    letters, clock = bridge.dead_letters, bridge.clock
    tried_us = clock.monotonic_us()
    while True:
        result = letters.redrive(letter, force=force)
        if result.outcome is None or result.acknowledged or not patient or bridge.stopping.is_set():
            return result
        now_us = clock.monotonic_us()
        tried_us = now_us if made_attempt(result) else tried_us
        if now_us + result.retry_in_us > tried_us + PATIENCE_US:
            return result
        clock.wait(bridge.stopping, result.retry_in_us / 1_000_000)


def _chosen(bridge: Bridge, filters: Filters, *, every: bool) -> Sequence[DeadLetter]:
    """Return the dead letters that keys and filters choose; all of them only when asked in so many words."""
    if not every and not is_any_given(filters):
        raise ConfigurationError("name keys, filters such as --topic, or --all")
    return [*bridge.dead_letters.list(**filters)]


def _ask(verb: str, letters: Sequence[DeadLetter], *, yes: bool) -> None:
    """Say how many letters are chosen, and have the person at a terminal confirm it."""
    if not letters or yes:
        return
    groups = count_letters(letters)
    number = f"{len(letters):,} dead letter{'s' if len(letters) > 1 else ''}"
    kinds = f", {len(groups):,} kinds" if len(groups) > 1 else ""
    if not confirmed(f"{verb} {number}{kinds} ({shortened(groups[0].reason, REASON_ASKED)})?"):
        say("nothing was changed")
        raise typer.Exit(EXIT_DECLINED)


def _report(results: list[Result], *, json: bool) -> None:
    if json:
        for result in results:
            line = {"key": result.key, "verdict": result.verdict, "outcome": result.outcome, "reason": result.reason}
            write_json(line)
    else:
        rows = [(result.key, result.verdict.value, result.outcome, result.reason) for result in results]
        columns = ("key", "verdict", "outcome", "reason")
        write_table(columns, rows, empty="no dead letters match", below=("reason",))
        if len(results) > 1:
            ends = Counter((result.outcome or result.verdict).value for result in results)
            say(f"{len(results):,} dead letters: {', '.join(f'{number:,} {end}' for end, number in ends.items())}")
    if any(result.verdict is Verdict.UNHANDLED for result in results):
        say(
            "some stay dead letters, because the handlers that they are for are not here (`oncebridge dead list` has "
            "their names); name the Bridge that has them, --handler module:bridge, or call a sink in the settings so"
        )
        raise typer.Exit(EXIT_WRONG)
    if any(not result.acknowledged for result in results):
        say("some are still retrying, after waits of more than a minute by now; run the same command again later")
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


def _filters(
    bridge: Bridge,
    keys: list[str] | None,
    topic: str | None,
    reason: str | None,
    *,
    since: str | None,
    until: str | None,
    limit: int | None,
) -> Filters:
    """Read the options into the library's filters; errors name the options."""
    return {
        "keys": keys,
        "topic": topic,
        "reason": reason,
        "since": _moment(bridge, "--since", since),
        "until": _moment(bridge, "--until", until),
        "limit": limit,
    }


def _moment(bridge: Bridge, option: str, text: str | None) -> datetime | None:
    time_us = read_moment(option, text, bridge.clock.now_us())
    return None if time_us is None else EPOCH + timedelta(microseconds=time_us)


# --- what is shown -----------------------------------------------------------------------------------


def _write_letters(letters: Sequence[DeadLetter]) -> None:
    rows = [
        (letter.key, _second(letter.changed_ms), letter.topic or "?", letter.handler, letter.attempts, letter.reason)
        for letter in letters
    ]
    columns = ("key", "since", "topic", "handler", "attempts", "reason")
    write_table(columns, rows, empty="no dead letters", below=("topic", "handler", "reason"))


def _write_overview(letters: Sequence[DeadLetter], *, limited: bool) -> None:
    """Show a person how many there are of what, and then the first of them."""
    if not limited and len(letters) > 1:
        groups = count_letters(letters)
        _write_counts(groups[:GROUPS_MAX], json=False)
        if len(groups) > GROUPS_MAX:
            say(f"and {len(groups) - GROUPS_MAX:,} more kinds: oncebridge dead list --counts")
        write_text("")
    shown = letters if limited else letters[:SHOWN_MAX]
    _write_letters(shown)
    if len(shown) < len(letters):
        say(
            f"the oldest {len(shown):,} of {len(letters):,}; --limit {len(letters)} shows all, --since 1h those of the "
            "last hour"
        )


def _write_counts(groups: Sequence[LetterCount], *, json: bool) -> None:
    if json:
        for group in groups:
            write_json(group)
        return
    rows = [
        (group.number, group.reason, group.topic or "?", _second(group.oldest_ms), _second(group.newest_ms))
        for group in groups
    ]
    columns = ("number", "reason", "topic", "oldest", "newest")
    write_table(columns, rows, empty="no dead letters", below=("reason", "topic"))


def _write_letter(letter: DeadLetter) -> None:
    """Show one letter: why, since when and of what first, then the error and the payload."""
    again = {"retry at": letter.retry_at_ms, "lease until": letter.lease_until_ms}
    write_fields({
        "reason": letter.reason,
        "attempts": letter.attempts,
        "status": letter.status.value,
        "since": iso_time(letter.changed_ms * 1000),
        **{name: iso_time(ms * 1000) for name, ms in again.items() if ms},
        "topic": letter.topic or "unknown",
        "event time": "none" if letter.time_ms is None else iso_time(letter.time_ms * 1000),
        "handler": letter.handler or "the one without a name, or none yet",
        "envelope id": letter.envelope_id or "none",
        "key": letter.key,
    })  # fmt: skip
    if letter.detail:
        write_text("")
        write_text(f"error:\n{letter.detail.rstrip()}")
    raw = letter.raw or b""
    write_text("")
    write_text(f"payload, {len(raw):,} bytes:\n{_pretty(letter) if results.is_terminal else _raw_text(letter)}")


def _raw_text(letter: DeadLetter) -> str:
    return (letter.raw or b"").decode(errors="backslashreplace")


def _pretty(letter: DeadLetter) -> str:
    """Write a payload over several lines for a person, if it is JSON; numbers and repeated names stay as they came."""
    try:
        return msgspec.json.format(letter.raw or b"", indent=2).decode()
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _raw_text(letter)


def _options(ledger: str | None, settings: str | None) -> str:
    """Repeat the options that name the ledger, for the next command; a URL may hold a password, and is not shown."""
    named = "" if ledger is None else f" --ledger {'URL' if '@' in ledger else ledger}"
    return named + ("" if settings is None else f" --settings {settings}")


def _second(ms: int) -> str:
    return (EPOCH + timedelta(milliseconds=ms)).strftime("%Y-%m-%dT%H:%M:%SZ")
