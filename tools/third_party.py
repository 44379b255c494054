"""What is delivered with Oncebridge: the notice of licences, and a bill of materials, both made from the lock files.

The function's zip, the container's image and the page for browsers hold other people's packages. Their lock files say
which, and the notice (THIRD-PARTY.md) adds each licence, as the package itself states it. The same files give the same
bytes.
"""

import argparse
import base64
import hashlib
import importlib.metadata
import json
import re
import sys
import tomllib
import uuid
from dataclasses import dataclass
from pathlib import Path

from packaging.markers import Marker

ROOT = Path(__file__).resolve().parent.parent
NOTICE = ROOT / "THIRD-PARTY.md"
#: What is delivered, with the lock file that it is made of and the Python that it runs.
DELIVERED = {"zip": ("lambda.txt", "3.12"), "image": ("container.txt", "3.13"), "page": ("page.txt", "3.14")}
#: What the page holds of npm's registry; the lock has more, which the page leaves out.
PAGE_LOCK = ROOT / "tools" / "page" / "package-lock.json"
OF_NPM = ("pyodide",)
LINUX = {
    "implementation_name": "cpython",
    "os_name": "posix",
    "platform_python_implementation": "CPython",
    "platform_system": "Linux",
    "sys_platform": "linux",
}
PIN = re.compile(r"^([\w.-]+)==([^\s;]+)(?: ; (.*?))? \\\n((?:    --hash=.*\n)+)", re.MULTILINE)
ROW = re.compile(r"^\| ([a-z0-9][\w.-]*) \| (\d\S*) \| (.+?) \| (.+?) \|$", re.MULTILINE)
#: By SPDX, for packages that name their licence in words.
SPDX = {
    "Apache License 2.0": "Apache-2.0",
    "Apache-2.0": "Apache-2.0",
    "BSD-3-Clause": "BSD-3-Clause",
    "ISC License": "ISC",
    "MIT": "MIT",
    "MIT License": "MIT",
}
#: Where the metadata says less than the licence file in the package; read there.
STATED = {"python-dateutil": "Apache-2.0 OR BSD-3-Clause", "uvloop": "Apache-2.0 OR MIT"}
HEAD = """\
# Third-party software

The function's zip (`make package`), the container's image and the page for browsers (`make page`) hold these packages
besides Oncebridge, which is under the [Apache License 2.0](LICENSE). Each brings its licence's text along, in its
`.dist-info` folder. The wheel on its own holds no one else's code. `make notices` writes this file from the lock files;
`make check` compares it.

psycopg and psycopg-binary are under the LGPL: they are unchanged, and can be replaced by other builds of the same
interface. psycopg-binary carries compiled libraries (libpq, OpenSSL, Kerberos, OpenLDAP, SASL and what they need); its
`.dist-info/sboms` folder lists them.

pyodide is Python for browsers, from npm. It carries CPython (PSF-2.0) and the libraries that this links. The page
leaves out modules of the standard library, and turns the loader from a module into a script: `AS_SCRIPT` and `LEFT_OUT`
in `tools/page.py` are all that is changed. Its source is that of the project
[Pyodide](https://github.com/pyodide/pyodide).

| package | version | licence (SPDX) | in |
| --- | --- | --- | --- |
"""


@dataclass(frozen=True)
class Package:
    """A locked package, with where it is delivered; its hashes are those of every file that may be installed."""

    name: str
    version: str
    hashes: tuple[str, ...]
    places: tuple[str, ...]
    #: Whose package it is, as addresses of packages name it.
    registry: str = "pypi"
    #: As the lock states it, where it does.
    licence: str = ""


def locked(lock: str, python: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return version and hashes by name of what a lock file installs on Linux with this Python."""
    text = (ROOT / "requirements" / lock).read_text(encoding="utf-8")
    environment = {**LINUX, "python_version": python, "python_full_version": f"{python}.0"}
    return {
        name: (version, tuple(sorted(re.findall(r"sha256:([0-9a-f]{64})", hashes))))
        for name, version, marker, hashes in PIN.findall(text)
        if not marker or Marker(marker).evaluate(environment)
    }


def packages() -> list[Package]:
    """Return what is delivered, by name; a package has the same version everywhere, since one lock binds the others."""
    found: dict[str, Package] = {}
    for place, (lock, python) in DELIVERED.items():
        for name, (version, hashes) in locked(lock, python).items():
            places = (*found[name].places, place) if name in found else (place,)
            if name in found and found[name].version != version:
                raise SystemExit(f"third_party: {name} is locked as {found[name].version} and as {version}: make lock")
            found[name] = Package(name, version, hashes, places)
    found |= {name: of_npm(name) for name in OF_NPM}
    return [found[name] for name in sorted(found)]


def of_npm(name: str) -> Package:
    """Return a package of the page's lock; npm writes hashes in base64."""
    entry = json.loads(PAGE_LOCK.read_text(encoding="utf-8"))["packages"][f"node_modules/{name}"]
    hashed = base64.b64decode(entry["integrity"].removeprefix("sha512-")).hex()
    return Package(name, entry["version"], (hashed,), ("page",), "npm", entry["license"])


def licence(package: Package) -> str:
    """Return the licence that an installed package states, or the lock."""
    if package.licence:
        return package.licence
    try:
        metadata = importlib.metadata.metadata(package.name)
    except importlib.metadata.PackageNotFoundError:
        raise SystemExit(f"third_party: {package.name} is not installed here; run `make check` first") from None
    if metadata["Version"] != package.version:
        raise SystemExit(f"third_party: {package.name} is {metadata['Version']} here, locked is {package.version}")
    classifiers = [line.rpartition(" :: ")[2] for line in metadata.get_all("Classifier") or [] if "License ::" in line]
    expressions = metadata.get_all("License-Expression") or []
    words = [*(metadata.get_all("License") or []), *classifiers]
    stated = [STATED.get(package.name, ""), *expressions, *(SPDX.get(text, "") for text in words)]
    known = next((text for text in stated if text), "")
    if not known:
        raise SystemExit(f"third_party: {package.name} names no known licence; read it, and add it to STATED")
    return known


def notice() -> str:
    """Write the notice, from the lock files and the installed packages."""
    rows = [f"| {one.name} | {one.version} | {licence(one)} | {', '.join(one.places)} |\n" for one in packages()]
    return HEAD + "".join(rows)


def problems(text: str) -> list[str]:
    """Say where a notice and the lock files disagree; nothing needs to be installed for that."""
    noted = {name: (version, places) for name, version, _, places in ROW.findall(text)}
    wanted = {one.name: (one.version, ", ".join(one.places)) for one in packages()}
    names = sorted(noted.keys() | wanted.keys())
    return [
        f"{name}: THIRD-PARTY.md has {' in '.join(noted.get(name, ('nothing',)))}, the lock files have "
        f"{' in '.join(wanted.get(name, ('nothing',)))}"
        for name in names
        if noted.get(name) != wanted.get(name)
    ]


def component(package: Package, expression: str) -> dict[str, object]:
    """Return a package as CycloneDX writes it."""
    purl = f"pkg:{package.registry}/{package.name}@{package.version}"
    algorithm = "SHA-512" if package.registry == "npm" else "SHA-256"
    return {
        "type": "library",
        "bom-ref": purl,
        "name": package.name,
        "version": package.version,
        "hashes": [{"alg": algorithm, "content": each} for each in package.hashes],
        "licenses": [{"expression": expression}],
        "purl": purl,
        "properties": [{"name": "oncebridge:delivered-in", "value": place} for place in package.places],
    }


def bill() -> str:
    """Write the bill of materials, in CycloneDX 1.6; its serial number is made of its content."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    licences = {name: text for name, _, text, _ in ROW.findall(NOTICE.read_text(encoding="utf-8"))}
    delivered = packages()
    own = f"pkg:pypi/{project['name']}@{project['version']}"
    components = [component(one, licences[one.name]) for one in delivered]
    digest = hashlib.sha256(json.dumps([own, components]).encode()).hexdigest()
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, digest)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": own,
                "name": project["name"],
                "version": project["version"],
                "licenses": [{"expression": project["license"]}],
                "purl": own,
            }
        },
        "components": components,
        "dependencies": [{"ref": own, "dependsOn": [one["bom-ref"] for one in components]}],
    }
    return json.dumps(document, indent=2) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Write the notice, or the bill where the notice is current."""
    parser = argparse.ArgumentParser(description="Write what is delivered with Oncebridge, and under which licences.")
    parser.add_argument("action", choices=["notice", "sbom"])
    parser.add_argument("path", type=Path, nargs="?", help="of the bill of materials")
    chosen = parser.parse_args(arguments)
    if chosen.action == "notice":
        NOTICE.write_text(notice(), encoding="utf-8")
        return 0
    found = problems(NOTICE.read_text(encoding="utf-8"))
    if found:
        print("\n".join([*found, "THIRD-PARTY.md is not current: run `make notices`"]))
        return 1
    chosen.path.parent.mkdir(parents=True, exist_ok=True)
    chosen.path.write_text(bill(), encoding="utf-8")
    print(f"{chosen.path}: {len(packages())} packages, CycloneDX 1.6")
    return 0


if __name__ == "__main__":
    sys.exit(main())
