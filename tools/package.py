"""Make the zip that AWS Lambda runs: the wheel, what it needs there, and files of one's own.

The same input gives the same bytes: names are sorted, times and modes fixed. One zip serves both of Lambda's
processors: only extension modules differ, and their names say what they are for. boto3 is left out, because Lambda's
runtime brings it along.
"""

import argparse
import sys
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

#: What installers leave behind, none of which is looked at when the code runs.
LEFT_OUT = ("RECORD", "WHEEL", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json")
EARLIEST = (1980, 1, 1, 0, 0, 0)  # no zip can hold an earlier time
READABLE = 0o100644 << 16  # a file that everybody may read: Lambda runs it as somebody else


def packed(name: str) -> bool:
    """Tell whether a file belongs into the zip, by its name there."""
    *folders, last = name.split("/")
    made_for_terminals = folders[:1] == ["bin"]
    of_installers = bool(folders) and folders[-1].endswith(".dist-info") and last in LEFT_OUT
    return not (made_for_terminals or of_installers or "__pycache__" in folders or last.startswith("."))


def in_wheel(wheel: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the files of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        yield from ((name, archive.read(name)) for name in archive.namelist() if not name.endswith("/"))


def in_folder(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the files below a folder."""
    files = (path for path in folder.rglob("*") if path.is_file())
    yield from ((path.relative_to(folder).as_posix(), path.read_bytes()) for path in files)


def given(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield a file by its bare name; of a folder, everything in it below the folder's name."""
    if path.is_dir():
        yield from ((f"{path.resolve().name}/{name}", content) for name, content in in_folder(path))
    else:
        yield path.name, path.read_bytes()


def together(*sources: Iterable[tuple[str, bytes]]) -> dict[str, bytes]:
    """Put files from several places together; no two may differ under one name."""
    files: dict[str, bytes] = {}
    for source in sources:
        for name, content in source:
            if packed(name) and files.setdefault(name, content) != content:
                raise SystemExit(f"package: {name} is there twice, with different contents; rename one of them")
    return files


def write_zip(path: Path, files: dict[str, bytes]) -> None:
    """Write files so that the same ones always give the same bytes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, EARLIEST)
            entry.create_system = 3  # Unix, wherever this runs: else the mode would not count
            entry.external_attr = READABLE
            archive.writestr(entry, files[name], zipfile.ZIP_DEFLATED, 9)


def main(arguments: list[str] | None = None) -> int:
    """Make the zip, and say how large it is."""
    parser = argparse.ArgumentParser(description="Make the zip that AWS Lambda runs.")
    parser.add_argument("zip", type=Path)
    parser.add_argument("--wheel", type=Path, required=True)
    parser.add_argument("--libraries", type=Path, nargs="+", required=True, help="a folder for each platform")
    parser.add_argument("--add", type=Path, nargs="*", default=[], help="files and folders of one's own")
    chosen = parser.parse_args(arguments)
    missing = [str(path) for path in (chosen.wheel, *chosen.libraries, *chosen.add) if not path.exists()]
    if missing:
        raise SystemExit(f"package: no such file or folder: {', '.join(missing)}")
    files = together(in_wheel(chosen.wheel), *map(in_folder, chosen.libraries), *map(given, chosen.add))
    write_zip(chosen.zip, files)
    unpacked = sum(map(len, files.values()))
    print(
        f"{chosen.zip}: {chosen.zip.stat().st_size / 1e6:.1f} MB, unpacked {unpacked / 1e6:.1f} MB, {len(files)} files"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
