"""What users install: the wheel and the zip for Lambda hold everything the code needs, and their metadata is right."""

import importlib.metadata
import importlib.util
import os
import re
import stat
import subprocess
import sys
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

from servers.stack import tool

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


EXTRAS = {"all", "aws", "cli", "http", "postgres", "redis"}


def test_extras_have_the_names_that_users_know(metadata):
    """The names of the extras stand in installation guides and error messages, so they stay."""
    assert set(metadata.get_all("Provides-Extra") or []) == EXTRAS


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


# --- the zip that Lambda runs ---------------------------------------------------------------------------------------

package = tool("package")
LIBRARIES = Path(sys.prefix) / "lambda"  # fetched by `make test`, a folder for each platform
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def wheel_path(tmp_path_factory):
    """Return the wheel that `make test` has built; when testing the sources, one in its place."""
    wheels = sorted((ROOT / "dist").glob("*.whl"))
    if os.environ.get("ONCEBRIDGE_TEST_SOURCE") != "1":
        return wheels[0]
    path = tmp_path_factory.mktemp("wheel") / "sources.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in package.together(package.given(SOURCE / "oncebridge")).items():
            archive.writestr(name, content)
    return path


def made(path, wheel, *added):
    """Make the zip as `make package` does."""
    libraries = [str(folder) for folder in sorted(LIBRARIES.iterdir())]
    package.main([str(path), "--wheel", str(wheel), "--libraries", *libraries, "--add", *map(str, added)])
    return path


@pytest.fixture(scope="module")
def function(tmp_path_factory, wheel_path):
    """Open the zip."""
    with zipfile.ZipFile(made(tmp_path_factory.mktemp("zip") / "function.zip", wheel_path)) as archive:
        yield archive


def test_the_same_sources_give_the_same_zip(tmp_path, wheel_path):
    """Whoever makes the zip again, later and elsewhere, gets the same bytes."""
    moved = tmp_path / "elsewhere" / "wheel.whl"
    moved.parent.mkdir()
    moved.write_bytes(wheel_path.read_bytes())
    first, second = made(tmp_path / "first.zip", wheel_path), made(tmp_path / "second.zip", moved)
    assert first.read_bytes() == second.read_bytes()


def test_the_zip_has_no_times_and_everybody_may_read_it(function):
    """Entries are sorted, without the time or the rights of whoever made them."""
    names = function.namelist()
    assert names == sorted(set(names))
    assert {entry.date_time for entry in function.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    modes = {entry.external_attr >> 16 for entry in function.infolist()}
    assert [stat.filemode(mode) for mode in modes] == ["-rw-r--r--"]
    assert {entry.create_system for entry in function.infolist()} == {3}


def locked(name):
    """Return what a lock file holds, by name, for the Python of the zip."""
    text = (ROOT / "requirements" / name).read_text(encoding="utf-8")
    lines = re.findall(r"^([\w.-]+)==(\S+)(.*)$", text, re.MULTILINE)
    return {library: version for library, version, marker in lines if "python_full_version < '3.1" not in marker}


def test_the_zip_holds_what_is_locked_and_no_more(function):
    """Oncebridge, and the libraries of its lock, in those versions; boto3 is Lambda's own."""
    found = dict(re.findall(r"^([^/]+)-([^/-]+)\.dist-info/METADATA$", "\n".join(function.namelist()), re.MULTILINE))
    found.pop("oncebridge", None)
    assert found == locked("lambda.txt")
    assert set(found) == {"hiredis", "jmespath", "msgspec", "urllib3"}
    tops = {name.partition("/")[0] for name in function.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"oncebridge", *found}


def test_the_zip_has_the_versions_that_are_tested():
    """What runs in Lambda is what the tests run with."""
    assert locked("lambda.txt").items() <= locked("dev.txt").items()


def test_the_zip_brings_every_licence(function):
    """Each library of the zip comes with its licence."""
    libraries = locked("lambda.txt")
    assert libraries
    for library in libraries:
        assert [name for name in function.namelist() if re.match(rf"{library}-.+\.dist-info/.*LICENSE", name)]


def test_the_zip_holds_the_whole_package(function, wheel_path):
    """Of the wheel everything is there but what installers left."""
    with zipfile.ZipFile(wheel_path) as wheel:
        names = [name for name in wheel.namelist() if not name.endswith((".dist-info/RECORD", ".dist-info/WHEEL"))]
        assert "oncebridge/bridge.py" in names
        for name in names:
            assert function.read(name) == wheel.read(name)


def test_the_zip_runs_on_both_processors(function):
    """Every extension module is there for both of Lambda's processors, and for the template's Python."""
    (python,) = re.findall(r"^LAMBDA_PYTHON := (.+)$", MAKEFILE, re.MULTILINE)
    modules = [name for name in function.namelist() if name.endswith(".so")]
    start = f".cpython-{python.replace('.', '')}-"
    ends = {f"{start}x86_64-linux-gnu.so", f"{start}aarch64-linux-gnu.so"}
    by_module: dict[str, set[str]] = {}
    for module in modules:
        name, dot, end = module.partition(".")
        by_module.setdefault(name, set()).add(dot + end)
    assert by_module == {"hiredis/hiredis": ends, "msgspec/_core": ends}


def test_the_zip_is_small(function):
    """A cold start fetches and unpacks all of it."""
    assert sum(entry.compress_size for entry in function.infolist()) < 4_000_000
    assert sum(entry.file_size for entry in function.infolist()) < 12_000_000


def test_the_zip_is_enough_to_start(function, tmp_path):
    """From the zip alone the function is made, and nothing that only some ledgers need is loaded for it."""
    function.extractall(tmp_path / "function")
    # Extension modules are for the processor and the Python of Lambda; here are those of the Python that runs here.
    for library in ("msgspec", "hiredis"):
        spec = importlib.util.find_spec(library)
        (tmp_path / library).symlink_to(Path(spec.origin).parent)
    code = f"""
import sys
sys.path[:0] = [{str(tmp_path)!r}, {str(tmp_path / "function")!r}]
import oncebridge.aws
assert oncebridge.__file__.startswith({str(tmp_path / "function")!r})
oncebridge.aws._bridge()
print(sorted({{"boto3", "botocore", "hiredis", "redis", "typer", "urllib3"}} & set(sys.modules)))
"""
    environment = {"ONCEBRIDGE_LEDGER": "dynamodb://table", "ONCEBRIDGE_DOWNSTREAM_URL": "https://crm.example/events"}
    command = [sys.executable, "-I", "-S", "-B", "-W", "error", "-c", code]
    ran = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.strip() == "['urllib3']"


def test_files_of_ones_own_go_into_the_zip(tmp_path, wheel_path):
    """Settings and modules are put where Lambda looks for them; hidden files and compiled ones are not."""
    (tmp_path / "oncebridge.toml").write_text('ledger = "dynamodb://table"\n')
    (tmp_path / "crm" / "__pycache__").mkdir(parents=True)
    (tmp_path / "crm" / "__init__.py").write_text("")
    (tmp_path / "crm" / ".env").write_text("PASSWORD=secret")
    (tmp_path / "crm" / "__pycache__" / "crm.pyc").write_bytes(b"")
    path = made(tmp_path / "own.zip", wheel_path, tmp_path / "oncebridge.toml", tmp_path / "crm")
    with zipfile.ZipFile(path) as archive:
        own = [name for name in archive.namelist() if name.startswith(("crm", "oncebridge.toml"))]
        assert own == ["crm/__init__.py", "oncebridge.toml"]


def test_nothing_in_the_zip_takes_the_place_of_something_else(tmp_path, wheel_path):
    """A module of one's own that is called like one of ours is refused, and so is a file that is not there."""
    (tmp_path / "msgspec").mkdir()
    (tmp_path / "msgspec" / "__init__.py").write_text("raise SystemExit")
    with pytest.raises(SystemExit, match=r"msgspec/__init__\.py is there twice"):
        made(tmp_path / "own.zip", wheel_path, tmp_path / "msgspec")
    with pytest.raises(SystemExit, match=r"no such file or folder: .*missing\.toml"):
        made(tmp_path / "own.zip", wheel_path, tmp_path / "missing.toml")
