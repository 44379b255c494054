"""Set up every run of tests and examples: on the installed package, with real servers and reproducible examples."""

import importlib.metadata
import importlib.util
import os
import platform
import signal
import sqlite3
import sys
from pathlib import Path

import hypothesis
import pytest

from prove import specification
from servers import chromium as browsers
from servers import terraform
from servers.fixtures import chromium, ministack, postgres, valkey  # noqa: F401 - fixtures, by being here

SOURCE = Path(__file__).resolve().parent / "src"
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


def left_out() -> dict[str, str]:
    """Say what cannot run on this machine, by its marker."""
    linux = None if sys.platform == "linux" else f"tests marked `root`, which need Linux; this is {sys.platform}"
    reasons = {
        "root": linux,
        "terraform": terraform.left_out(),
        "browser": browsers.left_out(),
        "specification": specification.left_out(),
    }
    return {marker: why for marker, why in reasons.items() if why is not None}


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to test anything but the installed wheel by accident, and to leave out anything in CI."""
    # A shell has what it runs in the background ignore Ctrl-C, which the commands under test would inherit.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    problem = wrong_package(package_folder())
    # No package registry has Terraform's AWS provider: a CI without it has to say so itself.
    waived = {"terraform"} if os.environ.get(terraform.VARIABLE) == "no" else set()
    missing = [why for marker, why in left_out().items() if marker not in waived]
    if problem is None and "CI" in os.environ and missing:
        problem = f"CI has to run everything, but would leave out {'; '.join(missing)}"
    if problem is not None:
        raise pytest.UsageError(problem)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what cannot run here; the header says so."""
    for marker in left_out():
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker(marker)])
        items[:] = [item for item in items if not item.get_closest_marker(marker)]


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Name what is tested and what it runs on."""
    version = "sources" if TEST_SOURCE else importlib.metadata.version("oncebridge")
    lines = [
        f"oncebridge: {version} from {package_folder()}",
        f"python: {platform.python_version()} sqlite: {sqlite3.sqlite_version} on {platform.platform()}",
    ]
    return [*lines, *(f"left out: {why}" for why in left_out().values())]


@pytest.fixture
def empty_workplace(monkeypatch, tmp_path):
    """Work in an empty folder, with none of our settings in the environment."""
    for name in [*os.environ]:
        if name.startswith(("ONCEBRIDGE_", "REDIS_")) or name in ("DOWNSTREAM_URL", "DLQ_EVENT_BUS"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path
