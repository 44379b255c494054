"""What is fetched is what was locked, advisories about it are heard, and silence is not taken for good news."""

import json
import shutil
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from servers.receiver import Reply, running_receiver
from servers.stack import tool

ROOT = Path(__file__).resolve().parent.parent
check_locks = tool("check_locks")
audit = tool("audit")

SHA256 = "0f" * 32
SHA512 = "A" * 86 + "=="
PINNED = f"msgspec==0.20.0 ; sys_platform == 'linux' \\\n    --hash=sha256:{SHA256}\n    # via oncebridge\n"


# --- locks ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path):
    """Return a project with one lock for each registry, both whole."""
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / "run.txt").write_text(f"# made by make lock\n{PINNED}")
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "package.json").write_text("{}")
    write_lock(tmp_path, {"node_modules/ws": {"version": "8.0.0", "integrity": f"sha512-{SHA512}"}})
    return tmp_path


def write_lock(tree: Path, packages: dict[str, dict[str, object]]) -> None:
    """Write what npm has locked."""
    lock = {"lockfileVersion": 3, "packages": {"": {"name": "page"}, **packages}}
    (tree / "page" / "package-lock.json").write_text(json.dumps(lock))


def test_every_lock_of_this_project_pins_by_hash(capsys):
    """Nothing is fetched that was not seen when it was locked, from either registry."""
    assert check_locks.main() == 0, capsys.readouterr().out
    assert ROOT / "tools" / "page" in check_locks.npm_folders(ROOT)


def test_whole_locks_are_accepted(tree):
    """Comments, markers and packages that their parent brings along are no gaps."""
    bundled = {"node_modules/ws/node_modules/in": {"version": "1.0.0", "inBundle": True}}
    write_lock(tree, {"node_modules/ws": {"integrity": f"sha512-{SHA512}"}, **bundled})
    installed = tree / "page" / "node_modules" / "ws"
    installed.mkdir(parents=True)
    (installed / "package.json").write_text("{}")
    assert check_locks.main(tree) == 0


@pytest.mark.parametrize(
    "requirement",
    [
        "msgspec==0.20.0",
        f"msgspec>=0.20.0 --hash=sha256:{SHA256}",
        f"msgspec --hash=sha256:{SHA256}",
        f"msgspec==0.20.0 --hash=md5:{SHA256[:32]}",
        f"msgspec==0.20.0 --hash=sha256:{SHA256} --hash=md5:{SHA256[:32]}",
        f"msgspec==0.20.0 --hash=sha256:{SHA256[:-1]}",
        "msgspec @ git+ssh://localhost/msgspec",
        "--editable .",
        "--find-links=elsewhere",
        "-r more.txt",
    ],
)
def test_a_requirement_without_version_and_hash_is_found(tree, capsys, requirement):
    """One open requirement among pinned ones fails the check and is named."""
    (tree / "requirements" / "run.txt").write_text(f"{PINNED}{requirement}\n{PINNED}")
    assert check_locks.main(tree) == 1
    assert (
        capsys.readouterr().out == f"requirements/run.txt: no version with hashes: {requirement.split(' --hash')[0]}\n"
    )


@pytest.mark.parametrize(
    "entry",
    [{"version": "8.0.0"}, {"version": "8.0.0", "integrity": "sha1-2jmj7l5rSw0yVb/vlWAYkK/YBwk="}, {"link": True}],
)
def test_a_package_of_npm_without_a_hash_is_found(tree, capsys, entry):
    """What has no hash is installed by npm without a word; the check does not let it come to that."""
    write_lock(tree, {"node_modules/ws": entry})
    assert check_locks.main(tree) == 1
    assert capsys.readouterr().out == "page/package-lock.json: no hash: node_modules/ws\n"


def test_a_missing_lock_is_found(tree, capsys):
    """No lock is worse than an open one, and so is a lock without a list of packages."""
    (tree / "page" / "package-lock.json").write_text('{"lockfileVersion": 1, "dependencies": {"ws": {}}}')
    assert check_locks.main(tree) == 1
    (tree / "page" / "package-lock.json").unlink()
    assert check_locks.main(tree) == 1
    assert "page: package.json without" in capsys.readouterr().out
    shutil.rmtree(tree / "requirements")
    assert check_locks.main(tree) == 1


# --- advisories -----------------------------------------------------------------------------------------------------


def knowing(*names: str):
    """Return the script of a source, as OSV answers, with an advisory about every version of these packages."""

    def script(request) -> Reply:
        name = json.loads(request.body)["package"]["name"]
        package = {"name": name, "ecosystem": "PyPI"}
        versions = {"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "99.1"}]}
        advisory = {"id": f"GHSA-{name}", "summary": "-", "affected": [{"package": package, "ranges": [versions]}]}
        return Reply(body=json.dumps({"vulns": [advisory]} if name in names else {}).encode())

    return script


@pytest.fixture
def ask(tree, monkeypatch, capsys):
    """Return a function that audits the project by the source at an address, and returns exit code and output."""
    monkeypatch.setattr(audit, "ROOT", tree)
    monkeypatch.setenv("PIP_AUDIT_VULNERABILITY_SERVICE", "osv")

    def asked(url: str) -> tuple[int, str]:
        monkeypatch.setenv("PIP_AUDIT_OSV_URL", url)
        return audit.main(), capsys.readouterr().out

    return asked


def test_a_vulnerable_package_fails_the_check(ask):
    """An advisory about a locked version is named, with the version that mends it."""
    with running_receiver(knowing("django", "msgspec")) as source:
        code, said = ask(source.url)
    assert code == 1
    assert said.startswith("msgspec 0.20.0: GHSA-msgspec, mended in 99.1\n")


def test_an_accepted_advisory_is_no_failure(ask, monkeypatch):
    """What does not concern this project is accepted one by one, and nothing else is."""
    monkeypatch.setattr(audit, "ACCEPTED", {"GHSA-msgspec": "a test"})
    with running_receiver(knowing("django", "msgspec")) as source:
        assert ask(source.url) == (0, "Advisories: osv has none about 1 locked packages\n")


def test_a_source_that_knows_no_advisories_is_not_believed(ask):
    """A mirror that has something to say about nothing clears nothing, and fails nothing."""
    with running_receiver(knowing()) as source:
        code, said = ask(source.url)
    assert code == 0
    assert "has nothing against django" in said
    assert "NOTHING WAS AUDITED" in said


@pytest.mark.parametrize("reply", [Reply(404), Reply(503), Reply(body=b"<html>Sign in</html>")])
def test_a_source_that_is_none_is_said_and_no_failure(ask, reply):
    """Errors and pages of a proxy are no advisories."""
    with running_receiver(lambda _: reply) as source:
        code, said = ask(source.url)
    assert (code, "NOTHING WAS AUDITED" in said) == (0, True)


def test_no_source_in_reach_is_said_and_no_failure(ask):
    """A build without a network passes, and says what it did not do."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    code, said = ask(f"http://127.0.0.1:{port}/")
    assert (code, "NOTHING WAS AUDITED" in said) == (0, True)


def test_an_advisory_counts_even_if_the_source_then_goes_away(ask, tree):
    """What was found before a source stopped answering is not forgotten."""
    lock = tree / "requirements" / "run.txt"
    lock.write_text(lock.read_text() + PINNED.replace("0.20.0", "0.21.0"))

    def script(request) -> Reply:
        is_second = json.loads(request.body)["version"] == "0.21.0"
        return Reply(503) if is_second else knowing("django", "msgspec")(request)

    with running_receiver(script) as source:
        code, said = ask(source.url)
    assert (code, "msgspec 0.20.0: GHSA-msgspec" in said) == (1, True)


def test_a_broken_audit_is_a_failure():
    """Only a source may be missing: pip-audit itself has to work."""
    with pytest.raises(SystemExit, match="No module named"):
        audit.answer("", "ModuleNotFoundError: No module named 'pip_audit'")


def test_each_locked_version_is_asked_for():
    """Locks for several Pythons hold a package twice: each version is asked for, with one that is known to be bad."""
    locks = [f"{PINNED}msgspec==0.21.0 ; python_version < '3.12' \\\n", PINNED, "idna==3.1 \\\n"]
    first, second = audit.questions(locks)
    assert first == {"django": "2.0", "idna": "3.1", "msgspec": "0.20.0"}
    assert second == {"django": "2.0", "msgspec": "0.21.0"}
    locked = [path.read_text(encoding="utf-8") for path in (ROOT / "requirements").glob("*.txt")]
    assert not [text for text in locked if "\ndjango==" in text]


# --- bandit ---------------------------------------------------------------------------------------------------------


def test_bandit_and_ruff_leave_no_hole_between_them():
    """What one of them leaves out, the other one looks for; asserts and imports alone are looked for by neither."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    bandit = {name.removeprefix("B") for name in settings["bandit"]["skips"]}
    ruff = {name.removeprefix("S") for name in settings["ruff"]["lint"]["ignore"] if name.startswith("S")}
    assert "S" not in settings["ruff"]["lint"]["ignore"]
    assert bandit & ruff == {"101"}


def test_bandit_finds_what_is_planted(tmp_path):
    """With this project's configuration a statement made of input fails, and one that is explained does not."""
    planted = tmp_path / "planted.py"
    planted.write_text('def read(db, name):\n    return db.execute(f"SELECT * FROM {name}")\n')
    command = [sys.executable, "-m", "bandit", "-q", "-c", str(ROOT / "pyproject.toml"), str(planted)]
    found = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (found.returncode, "B608" in found.stdout) == (1, True)
    planted.write_text(planted.read_text().replace('")', '")  # nosec B608 # a checked name'))
    assert subprocess.run(command, check=False, capture_output=True).returncode == 0
