"""Pin the images of Dockerfile and compose.yaml by digest, as the registries name them now.

A tag can be moved to another image, a digest cannot. Only a registry knows them, so Docker asks it; each is of the
image for every platform. Run it again for newer images, and look at what changed.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
PYTHON = re.compile(r"^ARG PYTHON=(\S+)$", re.MULTILINE)
PINNED = re.compile(r"^(ARG PYTHON_DIGEST=).*$", re.MULTILINE)
SERVICE = re.compile(r"^(\s+image: )([a-z0-9./-]+:[\w.-]+)(?:@sha256:[0-9a-f]{64})?$", re.MULTILINE)


def digest(image: str) -> str:
    """Ask the image's registry for the digest of a tag."""
    command = ["docker", "buildx", "imagetools", "inspect", "--format", "{{json .Manifest}}", image]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise SystemExit("images: docker is not installed, and nothing else knows the registries' digests") from None
    if ran.returncode != 0:
        raise SystemExit(f"images: {image} cannot be looked up, nothing was changed: {ran.stderr.strip()}")
    found = str(json.loads(ran.stdout).get("digest", ""))
    if not DIGEST.fullmatch(found):
        raise SystemExit(f"images: the registry names no digest for {image}, nothing was changed")
    return found


def main() -> int:
    """Look every image up, then write both files."""
    dockerfile, compose = ROOT / "Dockerfile", ROOT / "compose.yaml"
    built, services = dockerfile.read_text(encoding="utf-8"), compose.read_text(encoding="utf-8")
    (python,) = PYTHON.findall(built)
    base = f"python:{python}-slim-trixie"
    names = [base, *(name for _, name in SERVICE.findall(services))]
    found = {name: digest(name) for name in names}
    dockerfile.write_text(PINNED.sub(rf"\g<1>@{found[base]}", built), encoding="utf-8")
    pinned = SERVICE.sub(lambda line: f"{line[1]}{line[2]}@{found[line[2]]}", services)
    compose.write_text(pinned, encoding="utf-8")
    print("\n".join(f"{name}@{one}" for name, one in found.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
