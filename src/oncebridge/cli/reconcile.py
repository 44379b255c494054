"""`oncebridge reconcile`: what never came?"""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.text import Text

from oncebridge.cli.captures import check_writable, total_bytes
from oncebridge.cli.output import iso_time, opened_for_writing, progress_bar, results, say, write_table, write_text
from oncebridge.cli.wiring import (
    EXIT_AGAIN,
    BridgeOption,
    JSONOption,
    LedgerOption,
    SettingsOption,
    existing_bridge,
    opened,
)
from oncebridge.errors import ConfigurationError
from oncebridge.ledgers import DAY_US
from oncebridge.letter_filter import read_moment
from oncebridge.visible import visible, visible_json

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable, Iterator

    from oncebridge.bridge import Bridge
    from oncebridge.genesys.conversations import Conversation
    from oncebridge.reconciling.comparison import Window
    from oncebridge.reconciling.filling import Filling
    from oncebridge.reconciling.gaps import Gaps
    from oncebridge.reconciling.place import Place
    from oncebridge.reconciling.result import Run, ShownGap
    from oncebridge.reconciling.runs import Progress
    from oncebridge.reconciling.study import Question, Study

EXIT_GAPS: Final = 1
SINCE: Final = "24h"
#: One conversation is looked for as far back as Genesys takes at a time.
SINCE_OF_ONE: Final = "30d"
DAYS_MAX: Final = 60
GAPS_IN_TERMINAL: Final = 20
MINUTE_US: Final = 60_000_000

WHEN: Final = "30m, 2h or 3d ago, or a time such as 2026-03-02T08:00:00Z"
SinceOption = Annotated[
    str | None,
    typer.Option(
        help="Conversations that ended since: 24h or 3d ago.",
        metavar="AGO",
        show_default=f"{SINCE}, with --conversation {SINCE_OF_ONE}",
    ),
]
FromOption = Annotated[
    str | None, typer.Option("--from", help=f"The same: {WHEN}.", metavar="WHEN", show_default="--since")
]
UntilOption = Annotated[
    str | None, typer.Option(help="Only those that ended before then.", metavar="WHEN", show_default="now")
]
ConversationOption = Annotated[
    str | None, typer.Option(help="Only this conversation.", metavar="ID", show_default="all")
]
ExpectOption = Annotated[
    list[str] | None,
    typer.Option(
        help="What should come: families such as customer.end, or topics; * works.",
        metavar="FAMILY",
        show_default="what ever came, and what handlers name",
    ),
]
DetailsOption = Annotated[
    list[str] | None,
    typer.Option(help="Ask nobody: read saved answers of Genesys' API.", metavar="FILE", show_default="asks Genesys"),
]
HTMLOption = Annotated[
    str | None, typer.Option(help="Write the run as one page to this file.", metavar="FILE", show_default="none")
]
FillOption = Annotated[
    bool,
    typer.Option("--fill", help="Give each gap to the handlers of oncebridge.missing; once, however often it is run."),
]
AnewOption = Annotated[bool, typer.Option("--anew", help="Do not go on with a run that was interrupted.")]


def reconcile(
    *,
    since: SinceOption = None,
    from_: FromOption = None,
    until: UntilOption = None,
    conversation: ConversationOption = None,
    expect: ExpectOption = None,
    details: DetailsOption = None,
    html: HTMLOption = None,
    fill: FillOption = False,
    anew: AnewOption = False,
    handler: BridgeOption = None,
    ledger: LedgerOption = None,
    settings: SettingsOption = None,
    json: JSONOption = False,
) -> None:
    """Say which conversations ended in Genesys Cloud and did not come, or not whole, and why.

    Workers must keep attendance (the setting `attendance`). Exit code 0: complete up to the watermark; 1: gaps; 75: run
    it again, it goes on where it was; 2: something must be changed first.
    """
    if since is not None and from_ is not None:
        raise ConfigurationError("--since, --from: say one of them")
    if html is not None:
        check_writable(html, details or [])
    from oncebridge.genesys.api import GenesysUnavailable, Stopped  # other commands start without HTTP
    from oncebridge.reconciling.filling import Filling
    from oncebridge.reconciling.gaps import Gaps
    from oncebridge.reconciling.place import place_of
    from oncebridge.reconciling.study import Question

    with opened(existing_bridge(handler, ledger, settings)) as bridge, Gaps() as gaps:
        filling = Filling(bridge) if fill else None
        place, begin = place_of(bridge, expect), since or from_ or (SINCE_OF_ONE if conversation else SINCE)
        asked = (begin, until or "", conversation or "", *(expect or []))
        named = "--from" if since is None else "--since"
        question = Question(_window(bridge, named, begin, until), conversation, asked)
        progress = None
        try:
            if details is not None:
                study = _Saved(details, bridge.stopping).study(question, bridge, place, gaps)
            else:
                study, progress = _from_genesys(question, bridge, place, gaps, anew=anew)
        except (GenesysUnavailable, Stopped) as error:
            say(str(error))
            raise typer.Exit(EXIT_AGAIN) from None
        _write(study, conversation, filling, json=json)
        if conversation is None:
            place.runs.keep(study.run)
        if progress is not None:
            place.runs.end(progress)
        if html is not None:
            _write_page(html, study.run)
    if filling is not None and filling.filled.again:
        raise typer.Exit(EXIT_AGAIN)
    if not study.run.is_complete:
        raise typer.Exit(EXIT_GAPS)


# --- what is asked ---------------------------------------------------------------------------------------------------


def _window(bridge: Bridge, named: str, begin: str, until: str | None) -> Window:
    from oncebridge.reconciling.comparison import Window

    # Never the present minute: Genesys itself does not know it yet.
    now_us = bridge.clock.now_us() // MINUTE_US * MINUTE_US
    from_us = read_moment(named, begin, bridge.clock.now_us()) or 0
    until_us = min(read_moment("--until", until, bridge.clock.now_us()) or now_us, now_us)
    if from_us >= until_us:
        raise ConfigurationError(f"{named}: {iso_time(from_us)} is not before {iso_time(until_us)}")
    if until_us - from_us > DAYS_MAX * DAY_US:
        raise ConfigurationError(f"{named}: at most {DAYS_MAX} days can be asked about at a time")
    return Window(from_us // 1000, until_us // 1000)


# --- where conversations come from -----------------------------------------------------------------------------------


class _Saved:
    """Saved answers of Genesys' API, in files."""

    def __init__(self, files: list[str], stopping: threading.Event) -> None:
        from oncebridge.genesys.saved import SavedAnswers

        self._files, self._stopping = files, stopping
        self._answers = SavedAnswers()

    def study(self, question: Question, bridge: Bridge, place: Place, gaps: Gaps) -> Study:
        """Read them twice: they say at their end, or nowhere, up to when they are complete."""
        from oncebridge.genesys.conversations import iso
        from oncebridge.reconciling.study import study_files

        with progress_bar(over_bytes=True) as bar:
            reading = bar.add_task("reading", total=total_bytes(self._files))
            found: Iterable[Conversation] = self._conversations(lambda number: bar.advance(reading, number))
            if "-" in self._files:
                found = list(found)  # it can be read once
            else:
                for _ in self._texts(lambda _: None):
                    pass
            window = question.window._replace(watermark_ms=self._answers.available_ms)
            made = iso(bridge.clock.now_us() // 1000, "milliseconds")
            return study_files(found, question._replace(window=window), made, place, gaps)

    def _conversations(self, progress: Callable[[int], None]) -> Iterator[Conversation]:
        from oncebridge.genesys.conversations import AnswerUnreadable, read_conversation

        for number, text in enumerate(self._texts(progress), 1):
            try:
                yield read_conversation(text)
            except AnswerUnreadable as error:
                raise ConfigurationError(f"--details: conversation {number:,}: {error}") from None

    def _texts(self, progress: Callable[[int], None]) -> Iterator[bytes]:
        from oncebridge.genesys.api import Stopped
        from oncebridge.genesys.conversations import AnswerUnreadable
        from oncebridge.sources.captures.found import Tally
        from oncebridge.sources.captures.inputs import inputs_of

        tally = Tally()
        for one in inputs_of(self._files, self._stopping, tally, progress):
            try:
                yield from self._answers.conversations(one.blocks)
            except AnswerUnreadable as error:
                raise ConfigurationError(f"--details: {one.name}: {error}") from None
            if self._stopping.is_set():
                raise Stopped
        if tally.troubles:
            raise ConfigurationError(f"--details: {tally.trouble_text}")


def _from_genesys(
    question: Question, bridge: Bridge, place: Place, gaps: Gaps, *, anew: bool
) -> tuple[Study, Progress]:
    from oncebridge.genesys.api import GenesysAPI
    from oncebridge.reconciling.study import study_genesys

    with progress_bar() as bar:
        api = GenesysAPI(bridge.settings.genesys, bridge.clock, stopping=bridge.stopping, tell=say)
        reading = bar.add_task("asking Genesys", total=None)

        def on_slice(done: int, of: int, judged: int) -> None:
            bar.update(reading, completed=done, total=of, description=f"asking Genesys: {judged:,} conversations")

        now_ms = bridge.clock.now_us() // 1000
        try:
            study, progress = study_genesys(api, question, place, gaps, now_ms=now_ms, anew=anew, on_slice=on_slice)
        finally:
            api.close()
    if progress.now_ms != now_ms:
        say(f"this is the run of {progress.made}, which was interrupted; --anew begins another")
    return study, progress


# --- the answer ------------------------------------------------------------------------------------------------------


def _write(study: Study, conversation: str | None, filling: Filling | None, *, json: bool) -> None:
    if json:
        _write_object(study, filling)
    else:
        for _ in _filled(study, filling):
            pass
        _write_run(study.run)
    if filling is not None:
        filled = filling.filled
        say(
            f"filled: {filled.done:,} missing events were given to handlers now, {filled.before:,} before, "
            f"{filled.again:,} are to be tried again"
        )
        if filled.dead:
            say(f"{filled.dead:,} of them became dead letters: oncebridge dead list")
    if conversation is not None and not study.run.counts.ended:
        say(f"no conversation {visible(conversation)} ended in this time, as far as Genesys' data is complete")


def _write_page(name: str, run: Run) -> None:
    from oncebridge.reconciling.page import page

    with opened_for_writing(name) as file:
        file.write(page(run, version("oncebridge")).encode())
    say(f"the report is in {name}: it holds ids of conversations, and nothing else of them")


def _filled(study: Study, filling: Filling | None) -> Iterator[ShownGap]:
    """Yield the gaps, and fill them on the way."""
    if filling is None:
        yield from study.gaps()
        return
    yield from study.gaps(filling)
    filling.flush()


def _write_object(study: Study, filling: Filling | None) -> None:
    """Write one object; its gaps come first, since what is said of them is known behind the last one."""
    from oncebridge.reconciling.result import contract

    sys.stdout.write('{"gaps": [')
    for number, gap in enumerate(_filled(study, filling)):
        sys.stdout.write((", " if number else "") + visible_json(gap))
    rest = {**contract(study.run), "compared": study.changes}
    if filling is not None:
        rest["filled"] = filling.filled
    sys.stdout.write(f"], {visible_json(rest)[1:]}\n")


def _write_run(run: Run) -> None:
    from oncebridge.reconciling.words import ADVICE, TITLES, balance, remarks, silence_in_words

    results.print(Text(visible(balance(run)), style="bold"))
    for line in remarks(run):
        write_text(line)
    if run.changes:
        _heading("Since an earlier run")
        for line in run.changes:
            write_text(f"  {line}")
    if run.causes:
        _heading("Causes")
        for cause, title in TITLES.items():
            if cause.value in run.causes:
                write_text(f"  {title}: {run.causes[cause.value]:,}")
                write_text(f"    {ADVICE[cause]}")
        for silence in run.silences:
            write_text(f"  {silence_in_words(silence)}")
        _heading("Gaps")
        _write_gaps(run.gaps)
    left = len(run.gaps) - GAPS_IN_TERMINAL if results.is_terminal else 0
    left = max(left, 0) + run.gaps_left_out
    if left:
        say(f"and {left:,} more: see --json")


def _write_gaps(gaps: list[ShownGap]) -> None:
    some = gaps[:GAPS_IN_TERMINAL] if results.is_terminal else gaps
    rows = [
        (gap.conversation, gap.ended, "everything" if gap.never else ", ".join(gap.missing), gap.since, gap.cause.value)
        for gap in some
    ]
    write_table(("conversation", "ended", "missing", "since", "cause"), rows, empty="", below=("missing",))


def _heading(text: str) -> None:
    write_text("")
    results.print(Text(text, style="bold"))
