"""Make the page that needs no server: diagnose and explain in a browser, in one HTML file that works from disk.

It holds Python for browsers (Pyodide), the wheels that Oncebridge needs there, and Oncebridge itself, all of it packed
into the file. The same input gives the same bytes.
"""

import argparse
import base64
import gzip
import hashlib
import html
import io
import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from package import EARLIEST, READABLE, in_folder, in_wheel, together

SOURCES = Path(__file__).resolve().parent / "page"
#: The loader of Python is made for modules, which browsers refuse to workers of a page that lies on disk. So it becomes
#: a script, by these changes: what they look for, how often it is there, and what takes its place.
AS_SCRIPT = (
    ("import.meta.url", 3, '"http://parts.invalid/"'),
    ("export default _createPyodideModule;", 1, ""),
)
#: By this function the loader tells workers that are modules from others, which it refuses, though they work as well.
NO_IMPORTS = "self.importScripts = undefined;"
#: The parts of the standard library that only people at a terminal, or makers of other programs, need.
LEFT_OUT = re.compile(
    r"(?:_pyrepl|ctypes/macholib|idlelib|lib2to3|pydoc_data|tkinter|turtledemo|unittest|wsgiref|xmlrpc|__phello__)/"
    r"|(?:doctest|imaplib|mailbox|pdb|pickletools|pydoc|smtplib|turtle)\.py$"
)
#: Writes the policy of a report, so that the page can allow the same style and script.
REPORT_POLICY = """
import sys
sys.path.insert(0, sys.argv[1])
from oncebridge.diagnosis.diagnosis import Advice, Diagnosis, Lags, OverTime
from oncebridge.diagnosis.page import page
nothing = dict.fromkeys(("deliveries", "events", "duplicates", "unreadable"), 0)
texts = dict.fromkeys(("answer", "chat", "oncebridge", "made", "command", "settings", "input_digest"), "")
lists = {name: [] for name in ("backtest", "found", "topics", "look_alikes", "files")}
advice = Advice(retention_days=1, retention_text="")
print(page(Diagnosis(**nothing, **texts, **lists, causes={}, over_time=OverTime(), lags=Lags(), advice=advice)))
"""
DIGEST = re.compile(r"(style|script)-src '(sha256-[A-Za-z0-9+/=]+)'")
#: Who made what is in the page, by the name of the package.
CREDITS = {
    "pyodide": "Python for browsers, with CPython (PSF-2.0) and what it links; source: github.com/pyodide/pyodide",
    "msgspec": "JSON and records",
    "jmespath": "expressions in settings",
}


def digest(text: str) -> str:
    """Return how a policy names a style or script."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def packed(content: bytes) -> str:
    """Compress and write as text."""
    return base64.b64encode(gzip.compress(content, 9, mtime=0)).decode()


def zipped(files: Mapping[str, bytes]) -> bytes:
    """Put files into a zip that is not compressed: all of it is compressed once, and better."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, content in sorted(files.items()):
            entry = zipfile.ZipInfo(name, EARLIEST)
            entry.external_attr = READABLE
            archive.writestr(entry, content)
    return made.getvalue()


def pyodide_script(folder: Path) -> bytes:
    """Return the loader of Python as one script, with a list of packages that is empty: none is ever fetched."""
    loader = (folder / "pyodide.asm.mjs").read_text(encoding="utf-8")
    for text, times, instead in AS_SCRIPT:
        if loader.count(text) != times:
            raise SystemExit(f"page: pyodide.asm.mjs has {loader.count(text)} x {text}, not {times}: look at AS_SCRIPT")
        loader = loader.replace(text, instead)
    around = (folder / "pyodide.js").read_text(encoding="utf-8")
    lock = json.loads((folder / "pyodide-lock.json").read_text(encoding="utf-8"))
    nothing = json.dumps({**lock, "packages": {}})
    no_map = re.compile(r"^//# sourceMappingURL=.*$", re.MULTILINE)
    return "\n".join([NO_IMPORTS, loader, no_map.sub("", around), f"const LOCK = {nothing};", ""]).encode()


def check_platform(folder: Path, wheels: Iterable[Path]) -> None:
    """Refuse wheels that are not made for this Python."""
    info = json.loads((folder / "pyodide-lock.json").read_text(encoding="utf-8"))["info"]
    python = "cp" + "".join(info["python"].split(".")[:2])
    fitting = f"-{python}-{python}-pyemscripten_{info['abi_version']}_{info['arch']}.whl"
    for wheel in wheels:
        if not wheel.name.endswith((fitting, "-none-any.whl")):
            raise SystemExit(f"page: {wheel.name} is not for the page's Python, which takes *{fitting}")


def standard_library(folder: Path) -> bytes:
    """Return Python's own modules, as far as the page may need them."""
    with zipfile.ZipFile(folder / "python_stdlib.zip") as archive:
        names = [name for name in archive.namelist() if not name.endswith("/") and not LEFT_OUT.match(name)]
        return zipped({name: archive.read(name) for name in names})


def own_package(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield Oncebridge's files, of a wheel or of the folder that holds its sources."""
    return in_wheel(path) if path.is_file() else in_folder(path)


def policy(script: str, style: str, report: Mapping[str, str]) -> str:
    """Allow what is in the page and in its reports, and nothing from outside."""
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src '{digest(script)}' '{report['script']}' 'wasm-unsafe-eval'",
            f"style-src '{digest(style)}' '{report['style']}'",
            "worker-src blob:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


def report_policy(package: Path) -> dict[str, str]:
    """Return the digests of the style and the script of reports."""
    command = [sys.executable, "-I", "-c", REPORT_POLICY, str(package.resolve())]
    ran = subprocess.run(command, check=True, capture_output=True, text=True)
    return dict(DIGEST.findall(html.unescape(ran.stdout)))


def versions(parts: Path, wheels: Iterable[Path]) -> dict[str, tuple[str, str]]:
    """Return version and licence of what is in the page beside Oncebridge, by name."""
    lock = json.loads((parts / "package-lock.json").read_text(encoding="utf-8"))["packages"]["node_modules/pyodide"]
    found = {"pyodide": (lock["version"], lock["license"])}
    for wheel in wheels:
        name, version = wheel.name.split("-")[:2]
        found[name] = (version, {"msgspec": "BSD-3-Clause", "jmespath": "MIT"}[name])
    return found


def credits_of(found: Mapping[str, tuple[str, str]]) -> str:
    """Name what is in the page, as a list."""
    lines = (f"{name} {found[name][0]} ({found[name][1]}): {what}" for name, what in CREDITS.items())
    return "".join(f"<li>{html.escape(line)}</li>" for line in lines)


def page(package: Path, parts: Path, version: str) -> str:
    """Write the page."""
    folder = parts / "node_modules" / "pyodide"
    wheels = sorted((parts / "wheels").glob("*.whl"))
    check_platform(folder, wheels)
    files = together(*map(in_wheel, wheels), own_package(package))
    texts = {name: (SOURCES / name).read_text(encoding="utf-8") for name in ("page.css", "page.js", "page.html")}
    held = {
        "pyodide": packed(pyodide_script(folder)),
        "wasm": packed((folder / "pyodide.asm.wasm").read_bytes()),
        "stdlib": packed(standard_library(folder)),
        "wheels": packed(zipped(files)),
        "worker": (SOURCES / "worker.js").read_text(encoding="utf-8"),
        "python": (SOURCES / "in_page.py").read_text(encoding="utf-8"),
    }
    for name, text in (*held.items(), *texts.items()):
        if name != "page.html" and re.search(r"</?script|<!--|</style", text, re.IGNORECASE):
            raise SystemExit(f"page: {name} would end the element that it is in")
    values = {
        "policy": policy(texts["page.js"], texts["page.css"], report_policy(package)),
        "style": texts["page.css"],
        "script": texts["page.js"],
        "version": html.escape(version),
        "credits": credits_of(versions(parts, wheels)),
        "parts": "\n".join(
            f'<script type="text/plain" id="part-{name}">{text}</script>' for name, text in held.items()
        ),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], texts["page.html"])


def main(arguments: list[str] | None = None) -> int:
    """Write the page to a file."""
    parser = argparse.ArgumentParser(description="Make the page that runs diagnose and explain in a browser.")
    parser.add_argument("page", type=Path)
    parser.add_argument("--package", type=Path, required=True, help="Oncebridge's wheel, or the folder of its sources")
    parser.add_argument(
        "--parts", type=Path, required=True, help="what the page holds besides, as `make page` fetches it"
    )
    chosen = parser.parse_args(arguments)
    project = (SOURCES.parent.parent / "pyproject.toml").read_text(encoding="utf-8")
    (version,) = re.findall(r'^version = "(.+)"$', project, re.MULTILINE)
    text = page(chosen.package, chosen.parts, version)
    chosen.page.parent.mkdir(parents=True, exist_ok=True)
    chosen.page.write_text(text, encoding="utf-8")
    print(
        f"{chosen.page}: {len(text.encode()) / 1e6:.1f} MB; open it in a browser, from disk or from any server of files"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
