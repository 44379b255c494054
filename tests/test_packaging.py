"""What users install: the wheel holds everything the code needs, and its metadata is right."""

import importlib.metadata
import os
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"


@pytest.fixture(scope="module")
def wheel():
    """Open the wheel that `make test` has built."""
    wheels = sorted((ROOT / "dist").glob("*.whl"))
    if not wheels and os.environ.get("ONCEBRIDGE_TEST_SOURCE") == "1":
        pytest.skip("no wheel when testing the sources")
    assert len(wheels) == 1, f"expected one wheel in dist/, found {wheels}: run `make test`"
    with zipfile.ZipFile(wheels[0]) as archive:
        yield archive


@pytest.fixture(scope="module")
def metadata(wheel) -> Message:
    """Return the wheel's metadata."""
    return Parser().parsestr(read(wheel, "METADATA"))


def read(wheel: zipfile.ZipFile, name: str) -> str:
    """Return the text of a file in the wheel's dist-info folder."""
    (path,) = [path for path in wheel.namelist() if path.endswith(f".dist-info/{name}")]
    return wheel.read(path).decode("utf-8")


def test_wheel_says_that_it_is_typed(wheel):
    """Type checkers of our users see our types."""
    assert "oncebridge/py.typed" in wheel.namelist()


def test_wheel_holds_every_file_of_the_package(wheel):
    """Modules, SQL, Lua and other data all reach the user, and nothing else does."""
    expected = {
        path.relative_to(SOURCE).as_posix()
        for path in (SOURCE / "oncebridge").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert packed == expected


def test_core_needs_msgspec_alone(metadata):
    """Whoever installs no extra gets one dependency."""
    required = metadata.get_all("Requires-Dist") or []
    core = [line for line in required if "extra ==" not in line]
    assert [line.partition(">")[0] for line in core] == ["msgspec"]


def test_extra_all_holds_every_extra(metadata):
    """Installing `oncebridge[all]` leaves no feature out."""
    by_extra: dict[str, set[str]] = {extra: set() for extra in metadata.get_all("Provides-Extra") or []}
    for line in metadata.get_all("Requires-Dist") or []:
        requirement, _, extra = line.partition("; extra == ")
        if extra:
            by_extra[extra.strip("'\"")].add(requirement)
    everything = by_extra.pop("all")
    assert by_extra
    assert everything == set().union(*by_extra.values())


def test_metadata_tells_what_this_is(wheel, metadata):
    """Name, licence, Python and description are there and are those of the project."""
    assert metadata["Name"] == "oncebridge"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload().strip() == (ROOT / "README.md").read_text(encoding="utf-8").strip()
    assert read(wheel, "licenses/LICENSE") == (ROOT / "LICENSE").read_text(encoding="utf-8")


def test_command_is_installed_with_the_wheel(wheel):
    """The wheel brings the command `oncebridge`."""
    assert "oncebridge = oncebridge.cli:main" in read(wheel, "entry_points.txt")


def test_installed_version_is_the_one_built(metadata):
    """The package under test comes from the wheel in dist/."""
    assert importlib.metadata.version("oncebridge") == metadata["Version"]


def test_changelog_tells_of_what_is_not_released():
    """The changelog has a place for the next entry."""
    assert "## [Unreleased]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
