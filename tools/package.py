"""Make the zip that AWS Lambda runs: the wheel, the libraries that it needs there, and your own files and libraries.

The same input gives the same bytes: names are sorted, times and modes fixed. One zip serves both of Lambda's
processors: only extension modules differ, and their names say what they are for. boto3 is left out, because Lambda's
runtime has it.
"""

import argparse
import sys
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

#: What installers leave behind; running code reads none of it.
LEFT_OUT = ("RECORD", "WHEEL", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json")
EARLIEST = (1980, 1, 1, 0, 0, 0)  # no zip can hold an earlier time
READABLE = 0o100644 << 16  # a file that everybody may read: Lambda runs it as another user
#: Lambda's own limits, in bytes: of a zip that is uploaded without S3, and of everything unpacked, layers included.
UPLOADED_MAX = 50 * 2**20
UNPACKED_MAX = 250 * 2**20


def packed(name: str) -> bool:
    """Return whether a file belongs in the zip, by its name there."""
    *folders, last = name.split("/")
    made_for_terminals = folders[:1] == ["bin"]
    of_installers = bool(folders) and folders[-1].endswith(".dist-info") and last in LEFT_OUT
    of_one_platform = len(folders) > 1 and folders[0].endswith(".dist-info") and folders[1] == "sboms"
    left_out = made_for_terminals or of_installers or of_one_platform
    return not (left_out or "__pycache__" in folders or last.startswith("."))


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


def libraries(folders: Iterable[Path]) -> Iterator[tuple[str, bytes]]:
    """Yield the files of each platform's folder; those that both processors need under one name cannot share a zip."""
    seen: dict[str, tuple[str, bytes]] = {}
    for folder in folders:
        for name, content in in_folder(folder):
            first, kept = seen.setdefault(name, (folder.name, content))
            if packed(name) and kept != content:
                raise SystemExit(
                    f"package: {name} differs between {first} and {folder.name}, so one zip cannot serve both. Make it "
                    "for one processor, with ARCHITECTURE=arm64 or ARCHITECTURE=x86_64, as you deploy it"
                )
            yield name, content


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
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, EARLIEST)
            entry.create_system = 3  # Unix, wherever this runs: else the mode would not count
            entry.external_attr = READABLE
            archive.writestr(entry, files[name], zipfile.ZIP_DEFLATED, 6)


def size(path: Path, zipped: int, unpacked: int, files: int) -> str:
    """Say how large the zip is beside Lambda's limits; too large a one is refused."""
    if unpacked > UNPACKED_MAX:
        raise SystemExit(
            f"package: unpacked it is {unpacked / 2**20:.1f} MB, and Lambda takes {UNPACKED_MAX // 2**20} MB. Make it "
            "for one processor (ARCHITECTURE=arm64), or leave libraries out that Lambda has, such as boto3"
        )
    line = (
        f"{path}: {zipped / 2**20:.1f} MB, unpacked {unpacked / 2**20:.1f} MB of Lambda's {UNPACKED_MAX // 2**20} MB, "
        f"{files} files"
    )
    if zipped > UPLOADED_MAX:
        line += (
            f"\nUpload it through S3, as `sam deploy` does: without, Lambda takes {UPLOADED_MAX // 2**20} MB at most"
        )
    return line


def main(arguments: list[str] | None = None) -> int:
    """Make the zip, and say how large it is."""
    parser = argparse.ArgumentParser(description="Make the zip that AWS Lambda runs.")
    parser.add_argument("zip", type=Path)
    parser.add_argument("--wheel", type=Path, required=True)
    parser.add_argument("--libraries", type=Path, nargs="+", required=True, help="a folder for each platform")
    parser.add_argument("--layer", action="store_true", help="everything below python/, where Lambda looks in layers")
    parser.add_argument("--own", type=Path, nargs="*", default=[], help="the same, with libraries of your own")
    parser.add_argument("--add", type=Path, nargs="*", default=[], help="files and folders of your own")
    chosen = parser.parse_args(arguments)
    missing = [str(path) for path in (chosen.wheel, *chosen.libraries, *chosen.own, *chosen.add) if not path.exists()]
    if missing:
        raise SystemExit(f"package: no such file or folder: {', '.join(missing)}")
    files = together(
        in_wheel(chosen.wheel), libraries(chosen.libraries), libraries(chosen.own), *map(given, chosen.add)
    )
    if chosen.layer:
        files = {f"python/{name}": content for name, content in files.items()}
    write_zip(chosen.zip, files)
    print(size(chosen.zip, chosen.zip.stat().st_size, sum(map(len, files.values())), len(files)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
