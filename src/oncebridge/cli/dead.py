"""`oncebridge dead`: list, show, redrive, discard."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Final

import typer

from oncebridge.claim import Outcome, Verdict
from oncebridge.cli.action_log import log_action
from oncebridge.cli.letter_output import (
    letter_as_dict,
    raw_text,
    write_counts,
    write_letter,
    write_letters,
    write_overview,
)
from oncebridge.cli.output import (
    confirmed,
    progress_bar,
    results,
    say,
    write_json,
    write_table,
    write_text,
)
from oncebridge.cli.tables import shortened
from oncebridge.cli.wiring import (
    EXIT_AGAIN,
    EXIT_DECLINED,
    EXIT_WRONG,
    BridgeOption,
    ErrorsOption,
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
from oncebridge.errors import ConfigurationError, NothingFound
from oncebridge.letter_filter import EPOCH, is_any_given, read_moment

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from oncebridge.bridge import Bridge
    from oncebridge.deadletters import DeadLetter
    from oncebridge.engine.result import Result
    from oncebridge.letter_filter import Filters

EXIT_STILL_DEAD: Final = 1
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
Until = Annotated[str | None, typer.Option(help="Only before then, given in the same ways.", metavar="WHEN")]
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
    """List dead letters without their payload; a terminal gets their counts first.

    The oldest come first, since that is the order in which they are redriven.
    """
    with existing_bridge(handler, ledger, settings) as bridge:
        letters = [
            *bridge.dead_letters.list(**_filters(bridge, keys, topic, reason, since=since, until=until, limit=limit))
        ]
    if counts:
        write_counts(count_letters(letters), json=json)
    elif json:
        for letter in letters:
            write_json(letter_as_dict(letter))
    elif not results.is_terminal:
        write_letters(letters)
    else:
        write_overview(letters, limited=limit is not None)


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
        if letters:
            log_action(bridge, "show", key, "its payload was shown")
    if not letters:
        raise NothingFound(f"no dead letter under {key}; see: oncebridge dead list")
    for number, letter in enumerate(letters):
        if json:
            write_json({**letter_as_dict(letter), "detail": letter.detail, "raw": raw_text(letter)})
        else:
            if number:
                write_text("")
            write_letter(letter)
    if not json:
        to = " --handler MODULE:BRIDGE" if handler is None else ""
        say("next, once its cause is gone:")
        say(f"  oncebridge dead redrive {key}{to}")
        say("or give it up for good:")
        say(f"  oncebridge dead discard {key}")


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
    errors: ErrorsOption = None,
    ledger: LedgerOption = None,
    settings: SettingsOption = None,
    json: JSONOption = False,
) -> None:
    """Try dead letters again, the oldest first, each under its own key, with attempts from zero."""
    bridge = existing_bridge(handler, ledger, settings, log_errors=errors)
    if not bridge.add_downstream():
        if handler is not None:
            raise without_handlers(handler)
        raise ConfigurationError("--handler: name the Bridge or the function to redrive to, or set up sinks")
    with bridge:
        letters = _chosen(
            bridge, _filters(bridge, keys, topic, reason, since=since, until=until, limit=limit), every=every
        )
        _ask("redrive", letters, yes=yes)  # before signals mean an orderly stop: Ctrl-C has to end the question
        with opened(bridge), progress_bar() as bar:
            ends = _redriven(bridge, bar.track(letters, description="redriving"), force=force)
            _write_to_log(bridge, "redrive", letters, ends)
    _report(ends, json=json)


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
            ends = [bridge.dead_letters.discard(letter) for letter in bar.track(letters, description="discarding")]
        _write_to_log(bridge, "discard", letters, ends)
    _report(ends, json=json)


def _redriven(bridge: Bridge, letters: Iterable[DeadLetter], *, force: bool) -> list[Result]:
    ends: list[Result] = []
    patient = True
    for letter in letters:
        ends.append(_until_settled(bridge, letter, force=force, patient=patient))
        # Where one could not be waited for, the others are tried once: they may have the same receiver.
        patient = patient and (ends[-1].acknowledged or ends[-1].outcome is None)
    return ends


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


def _write_to_log(bridge: Bridge, what: str, letters: Sequence[DeadLetter], ends: Sequence[Result]) -> None:
    if letters:
        others = f" and {len(letters) - 1:,} others" if len(letters) > 1 else ""
        log_action(bridge, what, f"{letters[0].key}{others}", _counted(ends))


def _counted(ends: Sequence[Result]) -> str:
    counts = Counter((result.outcome or result.verdict).value for result in ends)
    return ", ".join(f"{number:,} {end}" for end, number in counts.items())


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
            say(f"{len(results):,} dead letters: {_counted(results)}")
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
