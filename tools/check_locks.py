"""Fail when a lock leaves open what is installed: each package has one version, and the hashes of its files.

Installers compare hashes only where a lock has them, and npm is silent where one is missing.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MADE = {"dist", "node_modules"}
CONTINUED = re.compile(r"\s*\\\n\s*")
PIN = re.compile(r"[a-z0-9][\w.-]*==[\w.!+]+(?: ; .+?)?(?: --hash=sha256:[0-9a-f]{64})+")
INTEGRITY = re.compile(r"sha512-[A-Za-z0-9+/]{86}==")


def open_requirements(text: str) -> Iterator[str]:
    """Yield each requirement that is not one version with its hashes, and each option, since it could fetch more."""
    for line in CONTINUED.sub(" ", text).splitlines():
        requirement = line.strip()
        if requirement and not requirement.startswith("#") and not PIN.fullmatch(requirement):
            yield requirement.partition(" --hash")[0]


def open_packages(text: str) -> Iterator[str]:
    """Yield each package of a package-lock.json that has no hash; one that its parent brings along needs none."""
    lock = json.loads(text)
    if "packages" not in lock:
        yield "(a lock of npm 6 or older)"
    for name, entry in lock.get("packages", {}).items():
        is_own = name == ""
        if not is_own and not entry.get("inBundle") and not INTEGRITY.fullmatch(entry.get("integrity", "")):
            yield name


def npm_folders(root: Path) -> list[Path]:
    """Return the folders that want packages of npm's registry."""
    folders = [path for path in sorted(root.iterdir()) if path.is_dir() and not path.name.startswith(".")]
    found = [path for folder in folders for path in sorted(folder.rglob("package.json"))]
    return [path.parent for path in found if MADE.isdisjoint(path.relative_to(root).parts)]


def findings(root: Path) -> Iterator[str]:
    """Yield a line for each package of each lock file that is not pinned by hash."""
    for path in sorted((root / "requirements").glob("*.txt")):
        for requirement in open_requirements(path.read_text(encoding="utf-8")):
            yield f"{path.relative_to(root)}: no version with hashes: {requirement}"
    for folder in npm_folders(root):
        lock = folder / "package-lock.json"
        if not lock.is_file():
            yield f"{folder.relative_to(root)}: package.json without a package-lock.json"
            continue
        for name in open_packages(lock.read_text(encoding="utf-8")):
            yield f"{lock.relative_to(root)}: no hash: {name}"


def main(root: Path = ROOT) -> int:
    """Print every finding and return the exit code."""
    locks = len(list((root / "requirements").glob("*.txt")))
    if not locks:
        print("check_locks: found no lock file, so this check would check nothing")
        return 1
    found = list(findings(root))
    print("\n".join(found) or f"Every package is locked by hash ({locks + len(npm_folders(root))} lock files)")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
