"""Fetch the libraries of a requirements file for Lambda's platforms, in versions that agree with Oncebridge's own.

The function's zip holds each library once, and Oncebridge is tested with the versions in requirements/lambda.txt. So
these bind yours: a requirements file that needs other versions is refused, with their names.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

UV = Path(sys.executable).with_name("uv")
OURS = "oncebridge"
PIN = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^\s;\\]+)", re.MULTILINE)


def name_of(text: str) -> str:
    """Return a package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", text).lower()


def pins(text: str) -> dict[str, str]:
    """Return the versions of a lock file, by name."""
    return {name_of(name): version for name, version in PIN.findall(text)}


class Fetching:
    """A requirements file, and what its libraries have to agree with."""

    def __init__(self, requirements: Path, lock: Path, wheel: Path, python: str) -> None:
        """Take the paths; nothing is fetched yet."""
        self._requirements, self._lock, self._wheel, self._python = requirements, lock, wheel, python

    def resolved(self, platform: str, folder: Path) -> Path:
        """Return a lock file of the requirements for a platform; a conflict ends the program."""
        path = folder / f"{platform}.txt"
        ran = self._compile(platform, path, "--constraint", str(self._lock))
        if ran.returncode != 0:
            raise SystemExit(self._refusal(platform, folder, ran.stderr))
        return path

    def _refusal(self, platform: str, folder: Path, said: str) -> str:
        """Name the versions that do not agree; without any, repeat what the installer said."""
        path = folder / "alone.txt"
        if self._compile(platform, path).returncode == 0:
            ours, theirs = pins(self._lock.read_text()), pins(path.read_text())
            names = sorted(name for name in ours.keys() & theirs.keys() if ours[name] != theirs[name])
            if names:
                lines = [f"  {name}: yours needs {theirs[name]}, Oncebridge has {ours[name]}\n" for name in names]
                return (
                    f"package: {self._requirements} does not agree with Oncebridge's own libraries:\n{''.join(lines)}"
                    "The zip holds each library once, in the version that Oncebridge is tested with. Loosen the pin, "
                    "or change pyproject.toml and run `make lock` and `make test`"
                )
        return f"package: the libraries of {self._requirements} cannot be had for {platform}:\n{said.strip()}"

    def _compile(self, platform: str, path: Path, *options: str) -> subprocess.CompletedProcess[str]:
        """Resolve the requirements. Where they name Oncebridge, this one is meant; the zip has its extras already."""
        override = path.with_suffix(".override")
        override.write_text(f"{OURS} @ {self._wheel.resolve().as_uri()}\n")
        command = [UV, "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--generate-hashes"]
        command += ["--python-platform", platform, "--python-version", self._python, "--only-binary", ":all:"]
        command += ["--override", override, "--no-emit-package", OURS, "--no-emit-index-url"]
        command += [*options, "--output-file", path, self._requirements]
        return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)

    def fetch(self, platform: str, resolved: Path, target: Path) -> None:
        """Install what was resolved into a folder, by hash."""
        if not pins(resolved.read_text()):
            target.mkdir(parents=True, exist_ok=True)
            return
        command = [UV, "pip", "install", "--quiet", "--target", target, "--no-deps", "--require-hashes"]
        command += ["--python-platform", platform, "--python-version", self._python, "--only-binary", ":all:"]
        command += ["-r", resolved]
        ran = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
        if ran.returncode != 0:
            raise SystemExit(f"package: the libraries of {self._requirements} cannot be fetched:\n{ran.stderr.strip()}")


def main(arguments: list[str] | None = None) -> int:
    """Fetch the libraries, a folder for each platform."""
    parser = argparse.ArgumentParser(description="Fetch the libraries of a requirements file for Lambda.")
    parser.add_argument("requirements", type=Path)
    parser.add_argument("--lock", type=Path, required=True, help="versions that they have to agree with")
    parser.add_argument("--wheel", type=Path, required=True, help="this Oncebridge, where they name it")
    parser.add_argument("--python", required=True)
    parser.add_argument("--platforms", nargs="+", required=True)
    parser.add_argument("--into", type=Path, required=True)
    chosen = parser.parse_args(arguments)
    if not chosen.requirements.is_file():
        raise SystemExit(f"package: no such file: {chosen.requirements} (REQUIREMENTS)")
    shutil.rmtree(chosen.into, ignore_errors=True)
    fetching = Fetching(chosen.requirements, chosen.lock, chosen.wheel, chosen.python)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for platform in chosen.platforms:
            resolved = fetching.resolved(platform, Path(folder))
            fetching.fetch(platform, resolved, chosen.into / platform)
            found[platform] = pins(resolved.read_text())
    versions = sorted({f"{name} {version}" for one in found.values() for name, version in one.items()})
    print(f"{chosen.requirements}: {', '.join(versions) or 'nothing more'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
