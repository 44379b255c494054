"""What commands share: options, settings into a bridge, handlers by name, an orderly stop."""

from __future__ import annotations

import signal
import sys
import threading
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from oncebridge.bridge import Bridge
from oncebridge.cli.output import say
from oncebridge.errors import ConfigurationError
from oncebridge.ledgers.sqlite.ledger import SQLiteLedger
from oncebridge.sinks.databases import NeedsUpkeep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

EXIT_AGAIN: Final = 75  # try again later, as mail programs say it

LedgerOption = Annotated[
    str | None, typer.Option("--ledger", help="URL of the ledger, such as sqlite:///once.db.", metavar="URL")
]
SettingsOption = Annotated[
    str | None, typer.Option("--settings", help="Settings file instead of oncebridge.toml.", metavar="FILE")
]
JSONOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
HandlerOption = Annotated[
    str | None,
    typer.Option("--handler", help="Handler for every event, as module:function.", metavar="MODULE:FUNCTION"),
]


def load_handler(name: str) -> Callable[..., Any]:
    """Import `module:function`, from the working directory too."""
    module_name, _, function_name = name.partition(":")
    if not function_name or not all(part.isidentifier() for part in module_name.split(".")):
        raise ConfigurationError(f"--handler: expected module:function, got {name!r}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise  # the module is there, but something it imports is not
        raise ConfigurationError(f"--handler: no module {module_name!r} in {here} or among the installed") from None
    function = getattr(module, function_name, None)
    if not callable(function):
        raise ConfigurationError(f"--handler: {module_name!r} has no function {function_name!r}")
    return function  # type: ignore[no-any-return]


def connect(bridge: Bridge, handler: str | None) -> bool:
    """Register the handler that an option names; tell whether events go anywhere: to it, or to sinks."""
    if handler is not None:
        bridge.on("*")(load_handler(handler))
    return bridge.add_downstream()


@contextmanager
def opened(bridge: Bridge) -> Iterator[Bridge]:
    """Open a bridge; SIGTERM and Ctrl-C let running handlers finish and give the rest back, a second one does not."""

    def stop(number: int, _: object) -> None:
        # Not what was there before: a program in the background is started with Ctrl-C ignored.
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        bridge.stop()
        # In a thread: a signal may have interrupted whoever writes just now.
        threading.Thread(target=tell, name="oncebridge-tell").start()

    def tell() -> None:
        bridge.stopping.wait()
        say("stopping: running handlers finish, the rest is handed back; a second signal waits for nobody")

    with bridge:
        before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield bridge
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def bridge_for(ledger: str | None, settings: str | None, **given: Any) -> Bridge:
    """Make the bridge that options, environment and file describe."""
    return Bridge.from_settings(settings, ledger=ledger, **given)


def existing_bridge(ledger: str | None, settings: str | None) -> Bridge:
    """Make a bridge to a ledger that is there: a mistyped name should not create an empty one."""
    bridge = bridge_for(ledger, settings)
    if isinstance(bridge.ledger, SQLiteLedger) and not bridge.ledger.was_opened():
        raise ConfigurationError(
            f"--ledger: there is no ledger at {bridge.ledger.path}, or no worker has opened it yet; name the file that "
            "was written to"
        )
    return bridge


def upkeep_of(bridge: Bridge) -> list[NeedsUpkeep]:
    """Return the sinks that keep a table of their own."""
    return [sink for sink in bridge.sinks.values() if isinstance(sink, NeedsUpkeep)]
