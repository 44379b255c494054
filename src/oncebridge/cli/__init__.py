"""The command line."""

from __future__ import annotations

import sys


def main() -> None:
    """Run `oncebridge`; without its extra, name the line that installs it."""
    try:
        from oncebridge.cli.app import run
    except ImportError as error:
        if error.name is None or error.name.split(".")[0] not in ("typer", "rich"):
            raise
        sys.exit("oncebridge: the command line needs its extra; install it with: pip install 'oncebridge[cli]'")
    sys.exit(run())
