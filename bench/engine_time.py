"""The processor time of a delivery in batches on the memory ledger, beside that of an earlier commit.

Both run in processes of their own that differ in nothing but where they find `oncebridge`, and take the same deliveries
in turns. Run as a script, this is that process: it uses nothing but what both commits have.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tarfile
import time
from contextlib import ExitStack, contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

ROOT: Final = Path(__file__).resolve().parent.parent
#: The last commit whose engine asked for each event of an entity in a call of its own.
BASELINE: Final = "16312bc"
BATCH: Final = 100


def sources_of(commit: str, folder: Path) -> Path | None:
    """Unpack the package as it was at a commit, and return where; None if this history does not have it."""
    try:
        archive = subprocess.run(
            ["git", "archive", commit, "src"],  # noqa: S607 - the user's own git
            cwd=ROOT,
            check=True,
            capture_output=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")
    return folder / "src"


def take_turns(
    sources: Mapping[str, Path | None],
    portions: Iterable[Sequence[bytes]],
    folder: Path,
    after: Callable[[], None],
) -> dict[str, list[float]]:
    """Return the microseconds of processor time per delivery, turn by turn. The first portion warms up.

    Args:
        sources: Where each contestant finds its package, by name; None for the one that is installed here.

        portions: One for each turn.

        folder: For the file through which a portion is handed over.

        after: Called after each turn of all.

    """
    file = folder / "portion"
    taken: dict[str, list[float]] = {name: [] for name in sources}
    with ExitStack() as stack:
        measure = {name: stack.enter_context(_process(at)) for name, at in sources.items()}
        for turn, portion in enumerate(portions):
            file.write_bytes(b"\n".join(portion))
            names = list(sources) if turn % 2 else list(reversed(sources))
            for name in names:
                seconds = measure[name](file)
                if turn:
                    taken[name].append(seconds / len(portion) * 1e6)
            after()
    return taken


@contextmanager
def _process(source: Path | None) -> Iterator[Callable[[Path], float]]:
    """Start a process; return a function that hands it a file of deliveries and returns its seconds for them."""
    environment = dict(os.environ) if source is None else {**os.environ, "PYTHONPATH": str(source)}
    with subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        asks, answers = process.stdin, process.stdout
        assert asks is not None
        assert answers is not None
        running = Path(answers.readline().strip())
        if source is not None and not running.is_relative_to(source.resolve()):
            raise RuntimeError(f"{source} was to be measured, but {running} runs")

        def measure(file: Path) -> float:
            print(file, file=asks, flush=True)
            return float(answers.readline())

        yield measure


# --- the process that is measured --------------------------------------------------------------------------------


def main() -> None:
    """Say which package runs, then process each file that is named on standard input."""
    import oncebridge

    print(Path(oncebridge.__file__).resolve(), flush=True)
    with oncebridge.Bridge("memory://") as bridge:
        bridge.on("*")(lambda _: None)
        for line in sys.stdin:
            raws = Path(line.strip()).read_bytes().split(b"\n")
            gc.collect()
            started = time.process_time()
            for at in range(0, len(raws), BATCH):
                bridge.process_many(raws[at : at + BATCH])
            print(time.process_time() - started, flush=True)


if __name__ == "__main__":
    main()
