"""Ask by pip-audit whether advisories are known for locked packages of Python, wherever a source can be reached.

No source in reach is said and is no failure: a build behind a mirror has none. pip-audit takes a source that knows no
package for good news, and a mirror may answer without advisories. So each question contains a version that is known to
be vulnerable, and a source that has nothing against it is not believed.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PIN = re.compile(r"^([a-z0-9][\w.-]*)==([^\s;]+)", re.MULTILINE)
#: In no lock, and full of known holes.
KNOWN_BAD = ("django", "2.0")
#: Asked in turn, until one answers; pip-audit's own variables choose another one, or another address.
SOURCES = ("pypi", "osv")
CHOSEN = "PIP_AUDIT_VULNERABILITY_SERVICE"
CONNECT_S = 5
#: For all packages of a question; pip-audit asks for one after the other.
ANSWER_S = 40
OPTIONS = (
    "--no-deps",
    "--disable-pip",
    "--format=json",
    "--desc=off",
    "--progress-spinner=off",
    f"--timeout={CONNECT_S}",
)
#: How pip-audit ends where a source is away, forbidden or no source: with an error of its client, or with this advice.
UNREACHED = re.compile(r"requests\.exceptions\.|urllib3\.exceptions\.|ServiceError|your network may be blocking")
#: Advisories that do not concern Oncebridge, by id, each with the reason.
ACCEPTED: dict[str, str] = {}


class NoAnswer(Exception):
    """A source of advisories that cannot be reached, or that knows none."""


@dataclass(frozen=True)
class Answer:
    """What a source says about the packages that it was asked for."""

    #: A line for each advisory.
    advisories: tuple[str, ...]
    #: Names that the source has never heard of.
    unknown: tuple[str, ...]


def questions(locks: Iterable[str]) -> list[dict[str, str]]:
    """Return each locked version by name; pip-audit takes a name once, so other versions go into further questions."""
    asked: list[dict[str, str]] = []
    for name, version in sorted({pin for text in locks for pin in PIN.findall(text)}):
        free = next((question for question in asked if name not in question), None)
        if free is None:
            asked.append(free := {KNOWN_BAD[0]: KNOWN_BAD[1]})
        free[name] = version
    return asked


def ask(source: str, question: dict[str, str]) -> Answer:
    """Run pip-audit with one source for one question."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pins.txt"
        path.write_text("".join(f"{name}=={version}\n" for name, version in question.items()), encoding="utf-8")
        command = [
            sys.executable,
            "-m",
            "pip_audit",
            *OPTIONS,
            f"--vulnerability-service={source}",
            f"--requirement={path}",
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_S, check=False)
        except subprocess.TimeoutExpired:
            raise NoAnswer(f"no answer within {ANSWER_S} s") from None
    return answer(done.stdout, done.stderr)


def answer(report: str, errors: str) -> Answer:
    """Read what pip-audit printed; its exit code does not tell a vulnerable package from a source that is away."""
    if not report.strip():
        if UNREACHED.search(errors):
            raise NoAnswer("cannot be reached")
        raise SystemExit(f"audit: pip-audit failed:\n{errors}")
    packages = json.loads(report)["dependencies"]
    if not any(package["name"] == KNOWN_BAD[0] and package.get("vulns") for package in packages):
        raise NoAnswer(f"has nothing against {KNOWN_BAD[0]} {KNOWN_BAD[1]}, so it has no advisories")
    others = [package for package in packages if package["name"] != KNOWN_BAD[0]]
    unknown = tuple(package["name"] for package in others if "skip_reason" in package)
    return Answer(tuple(line for package in others for line in advisories(package)), unknown)


def advisories(package: dict[str, Any]) -> Iterator[str]:
    """Yield a line for each advisory about a package that is not accepted."""
    for found in package.get("vulns", ()):
        if ACCEPTED.keys().isdisjoint([found["id"], *found["aliases"]]):
            mended = ", ".join(found["fix_versions"]) or "no version yet"
            yield f"{package['name']} {package['version']}: {found['id']}, mended in {mended}"


def main() -> int:
    """Print what the first source that answers knows; return 1 for a vulnerable package, and only for that."""
    locks = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "requirements").glob("*.txt"))]
    asked = questions(locks)
    sources = (os.environ[CHOSEN],) if os.environ.get(CHOSEN) else SOURCES
    for source in sources:
        answers: list[Answer] = []
        try:
            for question in asked:
                answers.append(ask(source, question))  # noqa: PERF401 - what came before an error counts
        except NoAnswer as error:
            print(f"Advisories: {source} {error}")
            if not any(one.advisories for one in answers):
                continue
        return told(source, answers, sum(len(question) - 1 for question in asked))
    print("Advisories: no source is in reach here, so NOTHING WAS AUDITED; this is no failure")
    return 0


def told(source: str, answers: list[Answer], asked: int) -> int:
    """Print what a source knows, and return the exit code."""
    unknown = sorted({name for one in answers for name in one.unknown})
    found = [line for one in answers for line in one.advisories]
    if unknown:
        print(f"Advisories: {source} does not know {', '.join(unknown)}")
    if found:
        print(
            "\n".join(
                [*found, "Lock other versions (`make lock UPGRADE=1`), or say in tools/audit.py why it is no harm"]
            )
        )
        return 1
    print(f"Advisories: {source} has none about {asked - len(unknown)} locked packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
