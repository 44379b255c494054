"""Set up every test run: on the installed package, with reproducible examples."""

import importlib.metadata
import importlib.util
import os
import platform
import sqlite3
import sys
from pathlib import Path

import hypothesis
import pytest

from servers.fixtures import ministack, postgres, valkey  # noqa: F401 - fixtures, by being here

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
TEST_SOURCE = os.environ.get("ONCEBRIDGE_TEST_SOURCE") == "1"

if TEST_SOURCE:  # also for the processes that tests start
    sys.path.insert(0, str(SOURCE))
    os.environ["PYTHONPATH"] = str(SOURCE)

# No deadlines: a busy machine is not a bug. In CI the same commit gives the same examples.
hypothesis.settings.register_profile("oncebridge", deadline=None, print_blob=True, derandomize="CI" in os.environ)
hypothesis.settings.load_profile("oncebridge")


def package_folder() -> Path | None:
    """Return the folder that `import oncebridge` takes its code from."""
    spec = importlib.util.find_spec("oncebridge")
    return Path(spec.origin).resolve().parent if spec and spec.origin else None


def wrong_package(folder: Path | None) -> str | None:
    """Say why the package at this folder is not the one to test, if so."""
    if folder is None:
        return "oncebridge is not installed; `make test` builds and installs it"
    if folder.is_relative_to(SOURCE) and not TEST_SOURCE:
        return (
            f"oncebridge is imported from {folder}, but users get the wheel: run `make test`, "
            "or set ONCEBRIDGE_TEST_SOURCE=1 for quick work on the sources"
        )
    return None


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to test anything but the installed wheel by accident."""
    if problem := wrong_package(package_folder()):
        raise pytest.UsageError(problem)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Name what is tested and what it runs on."""
    version = "sources" if TEST_SOURCE else importlib.metadata.version("oncebridge")
    return [
        f"oncebridge: {version} from {package_folder()}",
        f"python: {platform.python_version()} sqlite: {sqlite3.sqlite_version} on {platform.platform()}",
    ]
