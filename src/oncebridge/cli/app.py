"""Every command, in one table."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from oncebridge.cli import consume, dead, demo, doctor, explain, find, migrate, process, purge, serve, simulate
from oncebridge.cli.logs import log_to_standard_error
from oncebridge.cli.output import say_error
from oncebridge.cli.wiring import EXIT_AGAIN, EXIT_WRONG
from oncebridge.errors import ConfigurationError, LedgerUnavailable, OncebridgeError

if TYPE_CHECKING:
    from collections.abc import Callable

app = typer.Typer(
    name="oncebridge",
    help="Makes at-least-once delivery of Genesys Cloud events take effect once.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

COMMANDS: Final[dict[str, Callable[..., None]]] = {
    "demo": demo.demo,
    "process": process.process,
    "consume": consume.consume,
    "serve": serve.serve,
    "explain": explain.explain,
    "find": find.find,
    "doctor": doctor.doctor,
    "migrate": migrate.migrate,
    "purge": purge.purge,
    "simulate": simulate.simulate,
}
for name, command in COMMANDS.items():
    app.command(name)(command)
app.add_typer(dead.app, name="dead")


@app.callback()
def options(
    log_level: Annotated[
        str, typer.Option(help="Log one JSON record per move to standard error: info, or warning for less.")
    ] = "warning",
) -> None:
    """Set up what all commands share."""
    levels = logging.getLevelNamesMapping()
    if log_level.upper() not in levels:
        raise ConfigurationError(f"--log-level: expected info, warning or error, got {log_level!r}")
    log_to_standard_error(levels[log_level.upper()])


def run() -> int:
    """Run the command line; errors become one sentence and an exit code."""
    try:
        result = app(standalone_mode=False)
    except LedgerUnavailable as error:
        say_error(str(error))
        return EXIT_AGAIN
    except OncebridgeError as error:
        say_error(str(error))
        return EXIT_WRONG
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
        show()
        return EXIT_WRONG
    return result if isinstance(result, int) else 0
