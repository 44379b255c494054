"""What commands share: options, settings into a bridge, handlers and bridges by name, an orderly stop."""

from __future__ import annotations

import signal
import sys
import threading
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from traceback import extract_tb
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer

from oncebridge.bridge import Bridge, bridges_of
from oncebridge.cli.hints import repeat_in_hints
from oncebridge.cli.output import say
from oncebridge.errors import ConfigurationError, OncebridgeError
from oncebridge.ledgers import kind_of, scheme_of
from oncebridge.ledgers.sqlite.ledger import SQLiteLedger
from oncebridge.settings import DEFAULT_LEDGER, FILE_NAME, Settings, is_shadow_by_environment, with_given
from oncebridge.sinks.table.sink import NeedsUpkeep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

EXIT_AGAIN: Final = 75  # try again later, as mail programs say it
EXIT_WRONG: Final = 2  # something must be changed first
EXIT_NOTHING_FOUND: Final = 1
EXIT_DECLINED: Final = 1  # a person was asked, and said no


def setting_or(name: str) -> str:
    """Describe for `--help` what holds without an option: the setting of this name, which has its own default."""
    default = getattr(_DEFAULTS if hasattr(_DEFAULTS, name) else _DEFAULTS.serve, name)
    return f"setting {name}, or {f'{default:g}' if isinstance(default, float) else default}"


_DEFAULTS: Final = Settings()

LedgerOption = Annotated[
    str | None,
    typer.Option(
        "--ledger",
        help="URL of the ledger, such as sqlite:///once.db.",
        metavar="URL",
        show_default=setting_or("ledger"),
    ),
]
SettingsOption = Annotated[
    str | None,
    typer.Option(
        "--settings",
        help="File with the settings.",
        metavar="FILE",
        show_default=f"$ONCEBRIDGE_SETTINGS, or {FILE_NAME} if there is one",
    ),
]
LeaseOption = Annotated[
    float | None,
    typer.Option(
        "--lease", help="Seconds before others may take over a claim.", show_default=setting_or("lease_seconds")
    ),
]
ShadowOption = Annotated[
    bool,
    typer.Option(
        "--shadow",
        help="Judge and count events beside a program that handles them; call no handler and no sink.",
        show_default="setting shadow",
    ),
]
ErrorsOption = Annotated[
    bool | None,
    typer.Option(
        "--errors/--no-errors",
        help="Log the message and the traceback of a handler's exception, which may hold personal data.",
        show_default=f"{setting_or('log_errors')}; on in `process` at a terminal",
    ),
]
JSONOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
HandlerOption = Annotated[
    str | None,
    typer.Option(
        "--handler",
        help="A Bridge, with its handlers, settings and ledger; or a function that takes every event.",
        metavar="MODULE:NAME",
        show_default="the sinks of the settings",
    ),
]
BridgeOption = Annotated[
    str | None,
    typer.Option(
        "--handler",
        help="A Bridge whose ledger and settings are to be used.",
        metavar="MODULE:NAME",
        show_default="those of options, environment and file",
    ),
]

#: What `--handler` may name.
Named: TypeAlias = "Bridge | Callable[..., Any]"


def bridge_for(handler: str | None, ledger: str | None, settings: str | None, **given: Any) -> Bridge:
    """Take the bridge that `--handler` names, or make the one that options, environment and file describe.

    The command line wins over both.
    """
    named = None if handler is None else load_handler(handler)
    repeat_in_hints(ledger=ledger, handler=handler if isinstance(named, Bridge) else None, settings=settings)
    if isinstance(named, Bridge):
        if settings is not None:
            raise ConfigurationError(
                f"--settings: {handler} is a Bridge, and has settings of its own; drop --settings, or make the bridge "
                "with Bridge.from_settings, which reads the file"
            )
        return take_bridge(named, str(handler), ledger, **given)
    bridge = with_directory(Bridge.from_settings(settings, ledger=ledger, **given))
    if named is not None:
        bridge.register("*", named)
    return bridge


def with_directory(bridge: Bridge) -> Bridge:
    """Return the bridge, unless its ledger is a file in a directory that is not there: waiting makes none.

    For a function or a worker that runs already, the same is an outage: a volume may come back.
    """
    if isinstance(bridge.ledger, SQLiteLedger) and not Path(bridge.ledger.path).parent.is_dir():
        folder = Path(bridge.ledger.path).parent
        raise ConfigurationError(f"--ledger: {bridge.ledger.path}: there is no directory {folder}; create it first")
    return bridge


def take_bridge(bridge: Bridge, name: str, ledger: str | None, **given: Any) -> Bridge:
    """Apply the command line's settings to a program's own bridge, and say so where that is another ledger."""
    if is_shadow_by_environment():
        given["shadow"] = True
    chosen = with_given(bridge.settings, ledger=ledger, **given)
    if ledger is not None:
        if chosen.ledger != bridge.settings.ledger:
            other = scheme_of(chosen.ledger)
            say(f"ledger: the one of --ledger ({other}), instead of {name}'s own ({ledger_kind(bridge)})")
        bridge.rewire(chosen, chosen.ledger)
    elif chosen != bridge.settings:
        bridge.rewire(chosen)
    return with_directory(bridge)


def ledger_kind(bridge: Bridge) -> str:
    """Return which kind of ledger a bridge has."""
    return kind_of(bridge.ledger, bridge.settings.ledger)


def is_unnamed(bridge: Bridge) -> bool:
    """Return whether a bridge has the default ledger."""
    ledger = bridge.ledger
    there = isinstance(ledger, SQLiteLedger) and DEFAULT_LEDGER.endswith(f"/{ledger.path}")
    return there and bridge.settings.ledger == DEFAULT_LEDGER


def say_which_ledger(bridge: Bridge) -> None:
    """Name the ledger where nobody has chosen one."""
    if is_unnamed(bridge):
        say(f"ledger: {DEFAULT_LEDGER} (see --ledger)")


def without_handlers(name: str) -> ConfigurationError:
    """Say that a bridge has nobody to give events to."""
    return ConfigurationError(
        f"--handler: {name} is a Bridge without handlers and sinks, so events would go nowhere; register some in its "
        "module, or in modules that this one imports"
    )


# --- what `--handler` names --------------------------------------------------------------------------


def load_handler(name: str) -> Named:
    """Import `module:name`, from the working directory too: a bridge, or a function that is registered on none."""
    module_name, _, attribute = name.partition(":")
    if not attribute or not all(part.isidentifier() for part in module_name.split(".")):
        raise ConfigurationError(f"--handler: expected module:name, got {name!r}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = import_module(module_name)
    except OncebridgeError:
        raise  # of a bridge in it; these say themselves how to mend them
    except Exception as error:  # noqa: BLE001 - whatever a module raises, it has to be changed first
        raise ConfigurationError(f"--handler: {_why_not_imported(error, module_name, here)}") from None
    found = getattr(module, attribute, None)
    if isinstance(found, Bridge):
        return found
    if not callable(found):
        raise ConfigurationError(f"--handler: {module_name!r} has no function and no Bridge {attribute!r}")
    _refuse_registered(name, found, module)
    return found  # type: ignore[no-any-return]


def _why_not_imported(error: Exception, module_name: str, here: str) -> str:
    """Say whether a module is missing or wrong, and at which of its lines."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing is not None and (module_name == missing or module_name.startswith(f"{missing}.")):
        if module_name.endswith(".py"):
            return f"{module_name!r} is a file; name the module, without .py"
        return f"no module {module_name!r} in {here} or among the installed"
    if isinstance(error, SyntaxError):
        place = f"{error.filename}, line {error.lineno}"
    else:
        lines = [line for line in extract_tb(error.__traceback__) if not line.filename.startswith("<frozen")]
        place = f"{lines[-1].filename}, line {lines[-1].lineno}"
    said = error.msg if isinstance(error, SyntaxError) else error
    return f"module {module_name!r} cannot be imported: {place}: {type(error).__name__}: {said}"


def _refuse_registered(name: str, function: Callable[..., Any], module: ModuleType) -> None:
    """Refuse a function that belongs to a bridge: by itself it would have neither its name nor its topics."""
    itself = getattr(function, "__self__", None)
    if isinstance(itself, Bridge):
        raise ConfigurationError(f"--handler: {name} is a method of a Bridge; {_how_to_say(itself, module)}")
    registered = [found for one in _unwrapped(function) for found in bridges_of(one)]
    if not registered:
        return
    bridge, handler = registered[0]
    topics = ", ".join(dict.fromkeys(repr(other.pattern) for owner, other in registered if owner is bridge))
    known_as = f" under the name {handler.name!r}" if handler.name else ""
    raise ConfigurationError(
        f"--handler: {name} is registered on a Bridge, for {topics}{known_as}, which it would lose here; "
        f"{_how_to_say(bridge, module)}"
    )


def _unwrapped(function: Callable[..., Any]) -> list[Callable[..., Any]]:
    """Return a function, and those that decorators have wrapped in it."""
    found = [function]
    while (inner := getattr(found[-1], "__wrapped__", None)) is not None and all(inner is not one for one in found):
        found.append(inner)
    return found


def _how_to_say(bridge: Bridge, module: ModuleType) -> str:
    variable = _variable_of(bridge, module)
    return f"name the bridge: --handler {variable or 'module:bridge, by the variable that holds it'}"


def _variable_of(bridge: Bridge, first: ModuleType) -> str | None:
    """Return how a bridge is named on the command line: by a variable of this module, or of any other."""
    for module in [first, *sys.modules.values()]:
        variables = getattr(module, "__dict__", {})
        for variable, value in [*variables.items()]:
            if value is bridge and module.__name__ != "__main__":
                return f"{module.__name__}:{variable}"
    return None


# --- bridges that are open ---------------------------------------------------------------------------


@contextmanager
def opened(bridge: Bridge) -> Iterator[Bridge]:
    """Open a bridge; SIGTERM and Ctrl-C let running handlers finish and give the rest back, a second one does not."""

    def stop(number: int, _: object) -> None:
        # Not the handler from before: a program in the background is started with Ctrl-C ignored.
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        bridge.stop()
        # In a thread: the signal may have interrupted a write to the same stream.
        threading.Thread(target=tell, name="oncebridge-tell").start()

    def tell() -> None:
        bridge.stopping.wait()
        say("stopping: running handlers finish, the rest is handed back; a second signal waits for nobody")

    with bridge, _handled_by(stop):
        yield bridge


@contextmanager
def stopped_by_signals() -> Iterator[threading.Event]:
    """Set the event at Ctrl-C or SIGTERM, for work that answers for what it has read; a second one ends everything."""
    stopping = threading.Event()

    def stop(number: int, _: object) -> None:
        # For SIGTERM, too: what was kept on disk meanwhile is to be removed.
        signal.signal(number, signal.default_int_handler)
        stopping.set()

    with _handled_by(stop):
        yield stopping


@contextmanager
def _handled_by(stop: Callable[[int, object], None]) -> Iterator[None]:
    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def existing_bridge(handler: str | None, ledger: str | None, settings: str | None, **given: Any) -> Bridge:
    """Take or make a bridge to a ledger that is there: a mistyped name should not create an empty one."""
    return with_ledger_there(bridge_for(handler, ledger, settings, **given))


def with_ledger_there(bridge: Bridge) -> Bridge:
    """Return the bridge, unless its ledger is a file that is not there."""
    if isinstance(bridge.ledger, SQLiteLedger) and not bridge.ledger.was_opened():
        raise ConfigurationError(
            f"--ledger: there is no ledger at {bridge.ledger.path}, or no worker has opened it yet; name the file that "
            "was written to, or start the worker first: it makes a new one"
        )
    return bridge


def upkeep_of(bridge: Bridge) -> list[NeedsUpkeep]:
    """Return the sinks that keep a table of their own."""
    return [sink for sink in bridge.sinks.values() if isinstance(sink, NeedsUpkeep)]
