"""Tell a container's engine whether what runs in it is well: by the exit code, and a sentence where it is not.

The service is asked. Any other command is well while it runs, and the engine sees by itself when it ends.
"""

import os
import sys
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

#: What the image runs; an engine that puts an init in front of it names the command there too.
COMMAND = Path("/proc/1/cmdline")
SECONDS = 4.0  # less than the image's HEALTHCHECK waits


def is_service(command: bytes) -> bool:
    """Tell whether a command line, as the kernel shows it, is that of `oncebridge serve`."""
    return b"serve" in command.split(b"\0")


def ask(port: str) -> str | None:
    """Return what is wrong with the service, if anything."""
    try:
        # No proxy: this machine is asked, whatever the environment says of others.
        with build_opener(ProxyHandler({})).open(f"http://127.0.0.1:{port}/health", timeout=SECONDS):
            return None
    except OSError as error:  # refused, too slow, or an answer that is no good
        return f"http://127.0.0.1:{port}/health: {error}"


def problem() -> str | None:
    """Return what is wrong in this container, if anything."""
    if not is_service(COMMAND.read_bytes()):
        return None
    return ask(os.environ.get("ONCEBRIDGE_SERVE_PORT") or "8080")


if __name__ == "__main__":
    sys.exit(problem())
