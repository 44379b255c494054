"""Every command, in one table."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from oncebridge.cli.logs import FORMATS, LEVELS, log_to_standard_error, set_level
from oncebridge.cli.output import NO_ROOM, narration, say_error, write_text
from oncebridge.cli.wiring import EXIT_AGAIN, EXIT_NOTHING_FOUND, EXIT_WRONG
from oncebridge.errors import LedgerUnavailable, NothingFound, OncebridgeError
from oncebridge.settings.environment import LOG_FORMAT_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LOG_LEVEL_HELP: Final = f"Log to standard error, from this level on: {', '.join(LEVELS)}."
LOG_FORMAT_HELP: Final = (
    "json: all of standard error as JSON lines; text: all of it in words; auto: in words, but log lines as JSON unless "
    "at a terminal."
)
LOG_LEVEL_DEFAULT: Final = "warning"


class Command(TyperCommand):
    """A command that also takes the options for its log itself: many people write all options after the command."""

    def __init__(self, *given: Any, **options: Any) -> None:
        """Add these options to the command's own, each of which shows its default, or that there is none."""
        super().__init__(*given, **options)
        for option in self.params:
            if isinstance(option, TyperOption) and not option.is_flag and option.default is None:
                option.show_default = option.show_default if isinstance(option.show_default, str) else "none"
        self.params += [
            _log_option("--log-level", "LEVEL", LOG_LEVEL_HELP, LOG_LEVEL_DEFAULT, set_level),
            _log_option("--log-format", "FORMAT", LOG_FORMAT_HELP, FORMATS[0], log_to_standard_error),
        ]


def _log_option(name: str, metavar: str, text: str, default: str, choose: Callable[[str], None]) -> TyperOption:
    def chosen(_context: object, _option: object, value: str | None) -> None:
        if value is not None:
            choose(value)

    return TyperOption(
        param_decls=[name], help=text, metavar=metavar, show_default=default, expose_value=False, callback=chosen
    )


#: Each command and its function. Its module is imported once it is asked for: the others' would take longer than it.
COMMANDS: Final = {
    "demo": "demo:demo",
    "process": "process:process",
    "consume": "consume:consume",
    "serve": "serve:serve",
    "explain": "explain:explain",
    "diagnose": "diagnose:diagnose",
    "reconcile": "reconcile:reconcile",
    "top": "top:top",
    "console": "console:console",
    "deliveries": "deliveries:deliveries",
    "pause": "pause:pause",
    "resume": "pause:resume",
    "log": "action_log:log",
    "find": "find:find",
    "doctor": "doctor:doctor",
    "migrate": "migrate:migrate",
    "purge": "purge:purge",
    "simulate": "simulate:simulate",
    "dead": "dead:app",
}


class Commands(Mapping[str, Any]):
    """The commands by name, each made when it is looked up."""

    def __init__(self) -> None:
        """Make none yet."""
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        """Make a command."""
        if name not in self._made:
            module, _, function = COMMANDS[name].partition(":")
            self._made[name] = _made(name, getattr(import_module(f"oncebridge.cli.{module}"), function))
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        """Name them in their order."""
        return iter(COMMANDS)

    def __len__(self) -> int:
        """Count them."""
        return len(COMMANDS)


def _made(name: str, of: Callable[..., None] | typer.Typer) -> Any:
    if isinstance(of, typer.Typer):
        for registered in of.registered_commands:
            registered.cls = Command
        made: Any = typer.main.get_group(of)
    else:
        alone = typer.Typer(add_completion=False)
        alone.command(name, cls=Command)(of)
        made = typer.main.get_command(alone)
    made.name = name
    return made


class Oncebridge(TyperGroup):
    """All commands."""

    def __init__(self, **given: Any) -> None:
        """Have them made as they are needed."""
        super().__init__(**given)
        self.commands = Commands()  # type: ignore[assignment]  # nothing is added to it

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - as typer calls it
        """Name them, and make none."""
        return list(self.commands)


app = typer.Typer(
    name="oncebridge",
    cls=Oncebridge,
    help="Makes at-least-once delivery of Genesys Cloud events take effect once.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version  # takes a tenth of the time of a short command

        write_text(f"oncebridge {version('oncebridge')}")
        raise typer.Exit


@app.callback()
def options(
    log_level: Annotated[str, typer.Option(help=LOG_LEVEL_HELP, metavar="LEVEL")] = LOG_LEVEL_DEFAULT,
    log_format: Annotated[
        str, typer.Option(help=LOG_FORMAT_HELP, metavar="FORMAT", envvar=LOG_FORMAT_VARIABLE)
    ] = FORMATS[0],
    show_version: Annotated[  # noqa: ARG001 - its callback has shown it
        bool, typer.Option("--version", "-V", help="Show the version.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """Set up what all commands share."""
    log_to_standard_error(log_format)
    set_level(log_level)


def run() -> int:
    """Run the command line; errors become one sentence and an exit code."""
    _have_output()
    try:
        return _run()
    except OSError as error:
        if error.errno not in NO_ROOM or error.filename is not None:
            raise
        say_error(f"standard output: cannot be written: {error.strerror}; make room, or write elsewhere")
        _drop_output()
        return EXIT_WRONG


def _run() -> int:
    try:
        result = app(standalone_mode=False, prog_name="oncebridge")
        sys.stdout.flush()  # else a disk that is full is noticed when nobody can say so any more
    except LedgerUnavailable as error:
        say_error(str(error))
        return EXIT_AGAIN
    except OncebridgeError as error:
        say_error(str(error))
        return EXIT_NOTHING_FOUND if isinstance(error, NothingFound) else EXIT_WRONG
    except typer.Abort:
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except Exception as error:
        # Wrong usage is the parser's own error; it knows best how to say it.
        show = getattr(error, "show", None)
        if show is None:
            raise
        if narration.json:
            say_error(str(error.format_message()))  # type: ignore[attr-defined]
        else:
            show()
        return EXIT_WRONG
    return result if isinstance(result, int) else 0


def _have_output() -> None:
    """Let results and messages go nowhere where they were closed: whoever did that wants none, or files alone."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - until the end


def _drop_output() -> None:
    """Let what is still buffered for standard output go nowhere: it would fail again at the end."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
