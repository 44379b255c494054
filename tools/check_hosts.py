"""Fail when a file of this project names a package registry.

Where packages come from is the choice of whoever installs them, a mirror as well as the public registry. So
the names to look for are not written here: the installers and this machine's settings are asked for them.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path

from pip._internal.models import index as pip_defaults

ROOT = Path(__file__).resolve().parent.parent
MADE = {".git", ".venv", "dist", "node_modules", "__pycache__"}
URL = re.compile(r"https?://(?:[^@/\s>]*@)?([^/:\s>\])\"']+)", re.IGNORECASE)
LOCKS = ("requirements/*.txt", "**/*.lock")


def registry_hosts() -> set[str]:
    """Ask pip, npm and the environment which hosts packages come from."""
    indexes = (pip_defaults.PyPI, pip_defaults.TestPyPI)
    texts = [f"https://{index.netloc} https://{index.file_storage_domain}" for index in indexes]
    texts += [output(sys.executable, "-m", "pip", "config", "list")]
    texts += [value for name, value in os.environ.items() if name.upper().startswith(("PIP_", "UV_", "NPM_"))]
    if npm := shutil.which("npm"):
        texts += [output(npm, "config", "get", "registry")]
    return {host.lower() for text in texts for host in URL.findall(text) if is_public_name(host)}


def is_public_name(host: str) -> bool:
    """Tell a host name from an address or a name of this machine, which give nothing away."""
    try:
        ip_address(host)
    except ValueError:
        return "." in host
    return False


def output(*command: str | Path) -> str:
    """Run a command and return what it prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def project_files() -> Iterator[Path]:
    """List the files that are committed or would be; all but what was made, where there is no git."""
    try:
        listed = output("git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
        paths = [ROOT / name for name in listed.split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        paths = [path for path in ROOT.rglob("*") if MADE.isdisjoint(path.relative_to(ROOT).parts)]
    return (path for path in paths if path.is_file())


def findings(path: Path, hosts: set[str]) -> Iterator[str]:
    """Yield a line for each place in the file that names a registry, or for any address in a lock file."""
    name = path.relative_to(ROOT)
    is_lock = any(name.match(pattern) for pattern in LOCKS)
    for number, line in enumerate(path.read_bytes().decode("utf-8", "replace").lower().splitlines(), start=1):
        for host in sorted(hosts):
            if host in line:
                yield f"{name}:{number}: names the package registry {host}"
        if is_lock and "://" in line:
            yield f"{name}:{number}: a lock file holds names, versions and hashes, no addresses"


def main() -> int:
    """Print every finding and return the exit code."""
    hosts = registry_hosts()
    if not hosts:
        print("check_hosts: found no registry to look for, so this check would check nothing")
        return 1
    found = [line for path in project_files() for line in findings(path, hosts)]
    print("\n".join(found) or f"No file names a package registry ({len(hosts)} names looked for)")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
