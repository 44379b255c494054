"""What users install: the wheel and the zip for Lambda hold everything the code needs, and their metadata is right."""

import base64
import importlib.metadata
import importlib.util
import json
import os
import re
import stat
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

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


# --- the sources -----------------------------------------------------------------------------------------------------


def test_the_sdist_holds_no_key(tmp_path):
    """The sources bring no private key, no certificate and no ledger: tests make the keys that they need."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (path,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        files = {entry.name.partition("/")[2]: archive.extractfile(entry) for entry in archive if entry.isfile()}
        held = {name: content.read() for name, content in files.items()}
    assert {"src/oncebridge/bridge.py", "tests/test_packaging.py", "LICENSE", "SECURITY.md"} <= set(held)
    begin = b"-----BEGIN"  # in two parts, so that this file is not found
    assert not [name for name, content in held.items() if re.search(begin + rb" [A-Z ]*(KEY|CERTIFICATE)-", content)]
    assert not [name for name in held if name.endswith((".pem", ".key", ".p12", ".crt", ".db"))]


def test_the_notice_of_licences_is_current(tmp_path, monkeypatch):
    """The notice names each package that the zip, the image or the page holds, and a changed lock is noticed."""
    text = third_party.NOTICE.read_text(encoding="utf-8")
    assert not third_party.problems(text)
    assert text == third_party.notice()
    (line,) = re.findall(r"^\| msgspec .*\n", text, re.MULTILINE)
    (found,) = third_party.problems(text.replace(line, ""))
    assert found.startswith("msgspec: THIRD-PARTY.md has nothing")
    (found,) = third_party.problems(text.replace("| msgspec | 0.", "| msgspec | 9."))
    assert "9." in found
    monkeypatch.setattr(third_party, "NOTICE", tmp_path / "notice.md")
    (tmp_path / "notice.md").write_text(text.replace(line, ""))
    assert third_party.main(["sbom", str(tmp_path / "bill.json")]) == 1
    assert not (tmp_path / "bill.json").exists()


def test_the_bill_of_materials_names_every_locked_package(tmp_path):
    """The bill is CycloneDX, the same each time, with version, licence and hashes of each package that is delivered."""
    for name in ("first", "second"):
        assert third_party.main(["sbom", str(tmp_path / name)]) == 0
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str((tmp_path / "first").read_text()) is None
    bill = json.loads((tmp_path / "first").read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert bill["metadata"]["component"]["name"] == "oncebridge"
    named = {one["name"]: one for one in bill["components"]}
    assert {name: one["version"] for name, one in named.items()}.items() >= locked("lambda.txt").items()
    assert {"granian", "boto3", "psycopg-binary"} <= set(named)
    lock = (ROOT / "requirements" / "container.txt").read_text(encoding="utf-8")
    for one in named.values():
        registry = "npm" if one["name"] == "pyodide" else "pypi"
        assert one["purl"] == f"pkg:{registry}/{one['name']}@{one['version']}"
        assert one["licenses"][0]["expression"]
        assert one["hashes"]
    assert all(each["content"] in lock for each in named["granian"]["hashes"])
    assert [each["value"] for each in named["msgspec"]["properties"]] == ["zip", "image", "page"]
    (python,) = named["pyodide"]["hashes"]  # as npm's lock has it, in other letters
    integrity = base64.b64encode(bytes.fromhex(python["content"])).decode()
    assert f'"sha512-{integrity}"' in (ROOT / "tools" / "page" / "package-lock.json").read_text(encoding="utf-8")


# --- the zip that Lambda runs ---------------------------------------------------------------------------------------

package = tool("package")
third_party = tool("third_party")
LIBRARIES = Path(sys.prefix) / "lambda"  # fetched by `make test`, a folder for each platform
PLATFORMS = ("x86_64-manylinux_2_28", "aarch64-manylinux_2_28")
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


def made(path, wheel, *added, libraries=LIBRARIES):
    """Make the zip as `make package` does."""
    folders = [str(folder) for folder in sorted(libraries.iterdir())]
    package.main([str(path), "--wheel", str(wheel), "--libraries", *folders, "--add", *map(str, added)])
    return path


@pytest.fixture
def few(tmp_path):
    """Return folders for both platforms with hardly anything in them, where the libraries do not matter."""
    for platform in PLATFORMS:
        (tmp_path / "few" / platform / "msgspec").mkdir(parents=True)
        (tmp_path / "few" / platform / "msgspec" / "__init__.py").write_text("")
    return tmp_path / "few"


@pytest.fixture(scope="module")
def function(tmp_path_factory, wheel_path):
    """Open the zip."""
    with zipfile.ZipFile(made(tmp_path_factory.mktemp("zip") / "function.zip", wheel_path)) as archive:
        yield archive


def test_the_same_sources_give_the_same_zip(tmp_path, wheel_path, function):
    """The zip that is made again, later and elsewhere, has the same bytes."""
    moved = tmp_path / "elsewhere" / "wheel.whl"
    moved.parent.mkdir()
    moved.write_bytes(wheel_path.read_bytes())
    first, second = Path(function.filename), made(tmp_path / "second.zip", moved)
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
    """Return what a lock file holds, by name, for the zip's Python and platform."""
    python = re.findall(r"^LAMBDA_PYTHON := (.+)$", MAKEFILE, re.MULTILINE)[0]
    return {library: version for library, (version, _) in third_party.locked(name, python).items()}


def test_the_zip_holds_what_is_locked_and_no_more(function):
    """Oncebridge, and the libraries of its lock, in those versions; boto3 is Lambda's own."""
    found = dict(re.findall(r"^([^/\n]+)-([^/-]+)\.dist-info/METADATA$", "\n".join(function.namelist()), re.MULTILINE))
    found.pop("oncebridge", None)
    assert {library.replace("_", "-"): version for library, version in found.items()} == locked("lambda.txt")
    assert set(found) == {
        "hiredis",
        "jmespath",
        "msgspec",
        "psycopg",
        "psycopg_binary",
        "typing_extensions",
        "urllib3",
    }
    tops = {name.partition("/")[0] for name in function.namelist()}
    single = {"typing_extensions.py", "psycopg_binary.libs"}
    assert {top for top in tops if not top.endswith(".dist-info")} == {
        "oncebridge",
        *single,
        *(set(found) - {"typing_extensions"}),
    }


def test_the_zip_has_the_versions_that_are_tested():
    """What runs in Lambda is what the tests run with."""
    assert locked("lambda.txt").items() <= locked("dev.txt").items()


def test_the_zip_brings_every_licence(function):
    """Each library of the zip comes with its licence."""
    libraries = locked("lambda.txt")
    assert libraries
    for library in (name.replace("-", "_") for name in libraries):
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
    assert by_module == {
        "hiredis/hiredis": ends,
        "msgspec/_core": ends,
        "psycopg_binary/_psycopg": ends,
        "psycopg_binary/pq": ends,
    }


def test_the_zip_is_small(function):
    """A cold start fetches and unpacks all of it; nine tenths are Postgres' client, for both processors."""
    assert sum(entry.compress_size for entry in function.infolist()) < 16_000_000
    assert sum(entry.file_size for entry in function.infolist()) < 50_000_000
    own = [entry for entry in function.infolist() if not entry.filename.startswith("psycopg")]
    assert sum(entry.compress_size for entry in own) < 4_000_000
    assert sum(entry.file_size for entry in own) < 12_000_000


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


def test_files_of_ones_own_go_into_the_zip(tmp_path, wheel_path, few):
    """Settings and modules are put where Lambda looks for them; hidden files and compiled ones are not."""
    (tmp_path / "oncebridge.toml").write_text('ledger = "dynamodb://table"\n')
    (tmp_path / "crm" / "__pycache__").mkdir(parents=True)
    (tmp_path / "crm" / "__init__.py").write_text("")
    (tmp_path / "crm" / ".env").write_text("PASSWORD=secret")
    (tmp_path / "crm" / "__pycache__" / "crm.pyc").write_bytes(b"")
    path = made(tmp_path / "own.zip", wheel_path, tmp_path / "oncebridge.toml", tmp_path / "crm", libraries=few)
    with zipfile.ZipFile(path) as archive:
        own = [name for name in archive.namelist() if name.startswith(("crm", "oncebridge.toml"))]
        assert own == ["crm/__init__.py", "oncebridge.toml"]


def test_nothing_in_the_zip_takes_the_place_of_something_else(tmp_path, wheel_path, few):
    """A module of one's own that is called like one of ours is refused, and so is a file that is not there."""
    (tmp_path / "msgspec").mkdir()
    (tmp_path / "msgspec" / "__init__.py").write_text("raise SystemExit")
    with pytest.raises(SystemExit, match=r"msgspec/__init__\.py is there twice"):
        made(tmp_path / "own.zip", wheel_path, tmp_path / "msgspec", libraries=few)
    with pytest.raises(SystemExit, match=r"no such file or folder: .*missing\.toml"):
        made(tmp_path / "own.zip", wheel_path, tmp_path / "missing.toml", libraries=few)


def test_a_layer_holds_the_same_where_lambda_looks_for_it(tmp_path, wheel_path, few):
    """A layer has everything below python/, and nothing else."""
    folders = [str(folder) for folder in sorted(few.iterdir())]
    options = ["--wheel", str(wheel_path), "--libraries", *folders]
    for name, more in (("zip", []), ("layer", ["--layer"])):
        package.main([str(tmp_path / name), *options, *more])
    with zipfile.ZipFile(tmp_path / "zip") as plain, zipfile.ZipFile(tmp_path / "layer") as layer:
        assert layer.namelist() == [f"python/{name}" for name in plain.namelist()]
        assert layer.read("python/oncebridge/bridge.py") == plain.read("oncebridge/bridge.py")


# --- with libraries of your own ---------------------------------------------------------------------------------------

own_requirements = tool("own_requirements")


@pytest.fixture
def index(tmp_path, monkeypatch):
    """Return what puts a library on the only index that the installer knows, a folder."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_NO_CONFIG", "1")
    monkeypatch.setenv("UV_FIND_LINKS", str(folder))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))

    def publish(name, version, *needs, files=None, tag="py3-none-any"):
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        metadata += "".join(f"Requires-Dist: {one}\n" for one in needs)
        info = f"{name}-{version}.dist-info"
        held = {
            **(files or {f"{name}.py": f"VERSION = {version!r}\n"}),
            f"{info}/METADATA": metadata,
            f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: {tag}\n",
        }
        with zipfile.ZipFile(folder / f"{name}-{version}-{tag}.whl", "w") as archive:
            for path, content in held.items():
                archive.writestr(path, content)
            record = "".join(f"{path},,\n" for path in held) + f"{info}/RECORD,,\n"
            archive.writestr(f"{info}/RECORD", record)

    return publish


@pytest.fixture
def fetch(tmp_path):
    """Return what fetches the libraries of requirements, as `make package` does."""

    def run(*requirements, path=None):
        if path is None:
            path = tmp_path / "requirements.txt"
            path.write_text("".join(f"{line}\n" for line in requirements))
        wheel = tmp_path / "oncebridge-0.1.0-py3-none-any.whl"
        if not wheel.exists():
            with zipfile.ZipFile(wheel, "w") as archive:
                metadata = "Metadata-Version: 2.1\nName: oncebridge\nVersion: 0.1.0\n"
                archive.writestr("oncebridge-0.1.0.dist-info/METADATA", metadata)
                archive.writestr("oncebridge-0.1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
                archive.writestr("oncebridge-0.1.0.dist-info/RECORD", "")
        options = ["--lock", str(ROOT / "requirements" / "lambda.txt"), "--wheel", str(wheel), "--python", "3.12"]
        own_requirements.main([str(path), *options, "--platforms", *PLATFORMS, "--into", str(tmp_path / "own")])
        return tmp_path / "own"

    return run


def test_libraries_of_your_own_go_into_the_zip(index, fetch, tmp_path, wheel_path, *, few, capsys):
    """The libraries of a requirements file and those that they need are in the zip; Oncebridge stays the one built."""
    index("helper", "2.1")
    index("crm", "1.4", "helper>=2")
    own = fetch("crm", "oncebridge[aws,redis]>=0.1")
    assert "crm 1.4, helper 2.1" in capsys.readouterr().out
    libraries = [str(folder) for folder in sorted(few.iterdir())]
    options = ["--wheel", str(wheel_path), "--libraries", *libraries, "--own", *map(str, sorted(own.iterdir()))]
    package.main([str(tmp_path / "own.zip"), *options])
    with zipfile.ZipFile(tmp_path / "own.zip") as archive:
        assert archive.read("crm.py") == b"VERSION = '1.4'\n"
        assert archive.read("helper.py") == b"VERSION = '2.1'\n"
        assert "oncebridge/bridge.py" in archive.namelist()


def test_a_library_in_another_version_than_ours_is_refused(index, fetch, tmp_path):
    """Two versions of one library cannot be in one zip: the refusal names the library and both versions."""
    index("urllib3", "1.26.20")
    index("crm", "1.4", "urllib3<2")
    with pytest.raises(SystemExit) as refusal:
        fetch("crm")
    assert f"urllib3: yours needs 1.26.20, Oncebridge has {locked('lambda.txt')['urllib3']}" in str(refusal.value)
    assert "requirements.txt does not agree" in str(refusal.value)
    assert not (tmp_path / "own").exists()


def test_a_library_that_cannot_be_had_is_refused(index, fetch, tmp_path):
    """An unknown library, one without a wheel for Lambda's processors, and a missing file are named."""
    index("crm", "1.4", tag="cp312-cp312-win_amd64")
    with pytest.raises(SystemExit, match=r"(?s)cannot be had for x86_64.*no-such-library"):
        fetch("no-such-library")
    with pytest.raises(SystemExit, match=r"(?s)cannot be had for x86_64.*crm"):
        fetch("crm")
    with pytest.raises(SystemExit, match=r"no such file: .*absent\.txt"):
        fetch(path=tmp_path / "absent.txt")


def test_a_module_that_differs_between_processors_needs_a_zip_for_one(index, fetch, tmp_path, wheel_path, few):
    """A compiled module whose name is the same for both processors is refused, unless the zip is for one of them."""
    for processor in ("x86_64", "aarch64"):
        tag = f"cp312-abi3-manylinux_2_28_{processor}"
        index("crm", "1.4", files={"crm.abi3.so": processor}, tag=tag)
    own = fetch("crm")
    options = ["--wheel", str(wheel_path), "--libraries", *(str(few / one) for one in PLATFORMS)]
    with pytest.raises(SystemExit, match=r"crm\.abi3\.so differs .* ARCHITECTURE=arm64"):
        package.main([str(tmp_path / "own.zip"), *options, "--own", *(str(own / one) for one in PLATFORMS)])
    options = ["--wheel", str(wheel_path), "--libraries", str(few / PLATFORMS[1])]
    package.main([str(tmp_path / "own.zip"), *options, "--own", str(own / PLATFORMS[1])])
    with zipfile.ZipFile(tmp_path / "own.zip") as archive:
        assert archive.read("crm.abi3.so") == b"aarch64"


def test_a_zip_that_lambda_would_refuse_is_not_praised():
    """The size is shown beside Lambda's limits; too large a one is refused, and a large upload gets its advice."""
    megabyte = 2**20
    said = package.size(Path("f.zip"), 12 * megabyte, 41 * megabyte, 3)
    assert said == "f.zip: 12.0 MB, unpacked 41.0 MB of Lambda's 250 MB, 3 files"
    assert "through S3" in package.size(Path("f.zip"), 51 * megabyte, 200 * megabyte, 3)
    with pytest.raises(SystemExit, match=r"251\.0 MB, and Lambda takes 250 MB"):
        package.size(Path("f.zip"), 60 * megabyte, 251 * megabyte, 3)
