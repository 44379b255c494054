"""`oncebridge diagnose`: why do I get duplicates?"""

from __future__ import annotations

import os
import shlex
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer
from rich.text import Text

from oncebridge.cli.captures import CapturesOrNone, check_writable, say_skipped, total_bytes
from oncebridge.cli.output import (
    iso_time,
    opened_for_writing,
    progress_bar,
    results,
    say,
    write_json,
    write_table,
    write_text,
)
from oncebridge.cli.tables import wrapped
from oncebridge.cli.wiring import (
    EXIT_NOTHING_FOUND,
    JSONOption,
    SettingsOption,
    stopped_by_signals,
)
from oncebridge.clock import SystemClock
from oncebridge.errors import ConfigurationError
from oncebridge.quantities import part_of, percent, span
from oncebridge.settings import FILE_NAME, load_settings
from oncebridge.settings.environment import SETTINGS_VARIABLE
from oncebridge.sources.captures.found import Tally
from oncebridge.sources.captures.inputs import NO_STANDARD_INPUT
from oncebridge.visible import visible

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from oncebridge.diagnosis.diagnosis import Diagnosis, Example, KeyTried

HTMLOption = Annotated[
    str | None, typer.Option(help="Write the report as one page to this file.", metavar="FILE", show_default="none")
]
CausesOption = Annotated[
    str | None, typer.Option(help="Write a JSON line per duplicate to this file.", metavar="FILE", show_default="none")
]
KeyOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Try this key, too: JMESPath over the whole event, with an optional span: 'detail.id for 10 s'.",
        metavar="EXPRESSION",
        show_default="none",
    ),
]
CompareOption = Annotated[
    list[str] | None,
    typer.Option(help="Try these settings, too: another oncebridge.toml.", metavar="FILE", show_default="none"),
]
FromOption = Annotated[
    str | None, typer.Option("--from", help="Show an earlier report instead.", metavar="REPORT", show_default="none")
]
AgainstOption = Annotated[
    str | None, typer.Option(help="Say what changed since an earlier report.", metavar="REPORT", show_default="none")
]
ProcessesOption = Annotated[
    int | None, typer.Option(help="Processes that share the work.", min=1, max=256, show_default="one per core")
]
WorkDirOption = Annotated[
    str | None, typer.Option(help="Where rows are kept meanwhile.", metavar="DIRECTORY", show_default="the system's")
]

#: Topics in a terminal; the page has more.
TOPICS_SHOWN: Final = 12
REPORT_BYTES_MAX: Final = 4 * 1_048_576


def diagnose(
    files: CapturesOrNone = None,
    *,
    html: HTMLOption = None,
    causes: CausesOption = None,
    key: KeyOption = None,
    compare: CompareOption = None,
    from_report: FromOption = None,
    against: AgainstOption = None,
    processes: ProcessesOption = None,
    work_dir: WorkDirOption = None,
    settings: SettingsOption = None,
    json: JSONOption = False,
) -> None:
    """Say why deliveries repeat, from captures: causes with evidence, what each usual key would have done, advice.

    Nothing is sent anywhere, no ledger is opened, and reports hold no payload.
    """
    paths = files or []
    asked = {"--causes": causes, "--key": key, "--compare": compare}
    _check(paths, from_report=from_report, written=(html, causes), asked=asked)
    earlier = None if against is None else _read_report(against)
    tally = Tally()
    if from_report is not None:
        found = _read_report(from_report)
    else:
        found = _studied(
            paths,
            tally,
            causes=causes,
            settings_path=settings,
            own_keys=key or [],
            other_settings=compare or [],
            processes=processes or _cores(),
            work_dir=work_dir,
        )
    if html is not None:
        _write_page(html, found, earlier)
    if html == "-" and not json:
        say_skipped(tally)  # the page stands alone
    elif json:
        write_json(found if earlier is None else _with_changes(found, earlier))
    else:
        _write(found, earlier)
        say_skipped(tally)
    if html is not None and html != "-":
        say(f"the report is in {html}; open it in a browser, or attach it to a ticket: it holds no payload")
    if tally.troubles:
        raise ConfigurationError(tally.trouble_text)
    if not found.events:
        raise typer.Exit(EXIT_NOTHING_FOUND)


def _check(
    paths: Sequence[str], *, from_report: str | None, written: Sequence[str | None], asked: Mapping[str, object]
) -> None:
    if from_report is not None:
        wrong = ["the captures"] * bool(paths) + [name for name, value in asked.items() if value]
        if wrong:
            raise ConfigurationError(f"--from: shows a report that is there; leave {', '.join(wrong)} out, or --from")
    if from_report is None and not paths:
        raise ConfigurationError("FILE: name captures (files, directories, - for standard input), or a report: --from")
    names = [name for name in written if name is not None]
    if len(names) != len({Path(name).resolve() if name != "-" else name for name in names}):
        raise ConfigurationError(f"--html, --causes: {names[0]} cannot take both; name another file for one of them")
    for name in names:
        check_writable(name, paths)


def _with_changes(found: Diagnosis, earlier: Diagnosis) -> dict[str, Any]:
    from oncebridge.diagnosis.comparison import changes

    return {**msgspec.to_builtins(found), "changes": [change.text for change in changes(found, earlier)]}


def _settings_name(given: str | None) -> str:
    """Name the file of settings that is in force; empty if there is none."""
    chosen = given or os.environ.get(SETTINGS_VARIABLE)
    return visible(chosen) if chosen else FILE_NAME if Path(FILE_NAME).exists() else ""


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


def _studied(
    paths: Sequence[str], tally: Tally, *, causes: str | None, settings_path: str | None, **given: Any
) -> Diagnosis:
    from oncebridge.diagnosis.diagnose import diagnose as diagnosed  # other commands start without it

    settings = load_settings(settings_path)
    with ExitStack() as stack:
        lines: IO[bytes] | None = None if causes is None else stack.enter_context(opened_for_writing(causes))
        stopping = stack.enter_context(stopped_by_signals())
        bar = stack.enter_context(progress_bar(over_bytes=True))
        reading = bar.add_task("reading", total=total_bytes(paths))
        grouping: list[Any] = []

        def on_part(done: int, total: int) -> None:
            if not grouping:
                bar.update(reading, visible=False)
                grouping.append(bar.add_task("comparing", total=total, over_bytes=False))
            bar.update(grouping[0], completed=done)

        found = diagnosed(
            paths,
            settings=settings,
            settings_path=settings_path,
            causes=lines,
            tally=tally,
            stopping=stopping,
            progress=lambda number: bar.advance(reading, number),
            on_part=on_part,
            made=iso_time(SystemClock().now_us(), "seconds"),
            command=_command(),
            settings_name=_settings_name(settings_path),
            **given,
        )
    if stopping.is_set():
        say("stopped: what follows is about the part that was read")
    return found


def _command() -> str:
    return visible(shlex.join(["oncebridge", *sys.argv[1:]]))


def _read_report(name: str) -> Diagnosis:
    from oncebridge.diagnosis.page import read_page

    try:
        if name == "-" and sys.stdin is None:
            raise ConfigurationError(f"-: {NO_STANDARD_INPUT}")
        if name == "-":
            return read_page(sys.stdin.buffer.read(REPORT_BYTES_MAX), name)
        with Path(name).open("rb") as file:
            return read_page(file.read(REPORT_BYTES_MAX), name)
    except OSError as error:
        raise ConfigurationError(f"{name}: {error.strerror}; name a report that diagnose wrote") from None


def _write_page(name: str, found: Diagnosis, earlier: Diagnosis | None) -> None:
    from oncebridge.diagnosis.page import page

    with opened_for_writing(name) as file:
        file.write(page(found, earlier).encode())


# --- in a terminal -------------------------------------------------------------------------------------------


def _write(found: Diagnosis, earlier: Diagnosis | None) -> None:
    results.print(Text(visible(found.answer), style="bold"))
    if earlier is not None:
        from oncebridge.diagnosis.comparison import changes

        _heading("What changed")
        for change in changes(found, earlier):
            _write_lines("  ", change.text)
    if found.found:
        _heading("Causes")
        rows = [
            (one.cause.value, f"{one.count:,}", percent(part_of(one.count, found.duplicates)), one.title)
            for one in found.found
        ]
        write_table(("cause", "deliveries", "share", "what"), rows, empty="", prose=("what",))
        for one in found.found:
            _write_lines(f"  {one.cause.value}: ", one.advice)
            for example in one.examples[:1]:
                _write_lines("    for example ", f"{example.place}: {example.reason}")
    _write_backtest(found)
    _write_topics(found)
    if found.look_alikes:
        _heading("Not duplicates, though they look like it")
        for alike in found.look_alikes:
            _write_lines(f"  {alike.count:,} x ", f"{alike.title}. {alike.what}")
    if found.events:
        _write_advice(found)
    _heading("To paste into a chat")
    write_text(found.chat)


def _write_backtest(found: Diagnosis) -> None:
    if not found.events:
        return
    _heading("What each key would have done with this traffic")
    rows = [(row.title, f"{row.let_through:,}", f"{row.lost:,}", _remembers(row)) for row in found.backtest]
    columns = ("a key on", "let through", "real events lost", "remembers")
    write_table(columns, rows, empty="", below=columns[2:])
    for row in found.backtest:
        for example in row.lost_examples[:1]:
            _write_lines("  ", f"{row.title} loses {_pair(example)}")
    if any(row.key == "oncebridge" and row.let_through for row in found.backtest):
        pairs = found.causes.get("two_topics", 0)
        if pairs:
            _write_lines(
                "  ", f"Oncebridge keeps {pairs:,} facts that came under two topics, since they are two events"
            )


def _pair(example: Example) -> str:
    return (
        f"{example.topic} of {example.time} ({example.place}), taken for {example.of_topic} of {example.of_time} "
        f"({example.of_place})"
    )


def _remembers(row: KeyTried) -> str:
    return "for ever" if row.seconds is None else span(int(row.seconds * 1000))


def _write_topics(found: Diagnosis) -> None:
    if not found.topics:
        return
    _heading("Topics")
    rows = [
        (one.topic, one.kind, f"{one.deliveries:,}", f"{one.duplicates:,}", next(iter(one.causes), ""))
        for one in found.topics[:TOPICS_SHOWN]
    ]
    write_table(("topic", "kind", "deliveries", "duplicates", "most of them"), rows, empty="", below=("most of them",))
    left = len(found.topics) - TOPICS_SHOWN + found.topics_left_out
    if left > 0:
        say(f"and {left:,} more topics: see --html")


def _write_advice(found: Diagnosis) -> None:
    advice = found.advice
    _heading("Advice")
    _write_lines("  retention: ", advice.retention_text)
    if advice.redis_text:
        _write_lines("  memory: ", advice.redis_text)
    for window in advice.echo_windows:
        if window.advised_ms != window.window_ms:
            _write_lines("  echo window: ", f"{window.topic}: {window.text}")
    for pair in advice.topic_pairs:
        _write_lines("  topics: ", f"{pair.topic} and {pair.other}: {pair.text}")


def _heading(text: str) -> None:
    write_text("")
    results.print(Text(text, style="bold"))


def _write_lines(label: str, text: str) -> None:
    """Write a label and a text; in a terminal, long ones wrap between words."""
    if not results.is_terminal:
        write_text(label + text)
        return
    for number, line in enumerate(wrapped(text, max(results.width - len(label), 8))):
        write_text((" " * len(label) if number else label) + line)
