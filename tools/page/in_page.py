"""What the page for browsers runs: diagnose and explain, called by tools/page/worker.js. Answers are JSON."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, "/packages")

import msgspec

from oncebridge.diagnosis.diagnose import diagnose
from oncebridge.diagnosis.explain import explain
from oncebridge.diagnosis.page import page, read_page
from oncebridge.errors import ConfigurationError, OncebridgeError, Unreadable
from oncebridge.settings import FILE_NAME, Settings, load_settings
from oncebridge.settings.envelope import read_envelope
from oncebridge.settings.profiles import read_profile
from oncebridge.simulation import simulate
from oncebridge.sources.captures.found import LOOKED_FOR, Tally
from oncebridge.sources.captures.reading import read_captures
from oncebridge.topics import Profiles
from oncebridge.visible import visible

SIMULATED: Final = "/tmp/made-up-traffic.jsonl"  # noqa: S108 - in the memory of a page
CONVERSATIONS: Final = 60
#: Settings of what is around the events, which a page has nothing to do with: some name files and variables.
UNUSED: Final = frozenset(
    {"ledger", "secret", "secret_file", "api_keys", "downstream_url", "dead_letter_queue", "dead_letter_bus"}
    | {"retry", "serve", "sinks"}
)


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What a user may give besides captures."""

    #: The text of an oncebridge.toml.
    settings: str = ""
    #: JMESPath, one a line.
    keys: str = ""
    #: The text of an earlier report, to compare with.
    earlier: str = ""


def diagnosed(paths: str, options: str, progress: Callable[[int], None], on_part: Callable[[int, int], None]) -> str:
    """Diagnose captures; return the report."""
    names, given, tally = _names(paths), _options(options), Tally()
    try:
        earlier = read_page(given.earlier.encode(), "the earlier report") if given.earlier else None
        found = diagnose(
            names,
            settings=_settings(given.settings),
            own_keys=[line for line in map(str.strip, given.keys.splitlines()) if line],
            tally=tally,
            progress=progress,
            on_part=on_part,
            made=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            command=f"the page for browsers, {len(names):,} dropped",
        )
    except OncebridgeError as error:
        return _refused(str(error))
    if not found.events:
        return _refused(f"There is no event in {_listed(names)}.", *tally.skipped_text, f"The page {LOOKED_FOR}.")
    about = f"{found.deliveries:,} deliveries of {_listed(names)}"
    return _answer({"html": page(found, earlier), "about": about, "trouble": visible(tally.trouble_text)})


def explained(paths: str, options: str, first: int, count: int) -> str:
    """Explain some of the deliveries, from this one on; the settings have been read once, so they are good."""
    loaded = _settings(_options(options).settings)
    profiles = Profiles(loaded.profiles)
    captured = (one for one in read_captures(_names(paths), Tally()) if one is not None)
    wanted = [*islice(captured, first - 1, first + count)]
    explanations = [_explanation(first + at, one.raw, profiles, loaded) for at, one in enumerate(wanted[:count])]
    return _answer({"explanations": explanations, "last": len(wanted) <= count})


def simulated() -> str:
    """Make a capture up; return where it is."""
    text = b"".join(delivery.raw + b"\n" for delivery in simulate(CONVERSATIONS, seed=1))
    Path(SIMULATED).write_bytes(text)
    return _answer({"path": SIMULATED, "bytes": len(text)})


def _explanation(n: int, raw: bytes, profiles: Profiles, settings: Settings) -> dict[str, Any]:
    """Return what there is to say of one delivery: names with what belongs to each, and whether it is code."""
    try:
        found = explain(raw, profiles, b"", replays_anew=settings.replays_anew, reshape=settings.reshape)
    except Unreadable as error:
        return {"n": n, "title": "unreadable", "lines": [("because", visible(str(error)), False)]}
    lines = [
        ("kind", found.kind, False),
        ("entity", found.entity or "none", found.entity is not None),
        ("time", "none" if found.time_ms is None else f"{found.time_ms} ms", False),
        ("key", found.key, True),
        ("profile", found.profile, False),
        ("counts", ", ".join(found.counts), False),
        ("ignored", ", ".join(found.ignored) or "nothing", False),
        ("because", found.reason, False),
    ]
    return {"n": n, "title": visible(found.topic), "lines": [(name, visible(text), code) for name, text, code in lines]}


def _settings(text: str) -> Settings:
    """Read the settings of a file as far as they are about events."""
    try:
        tables = tomllib.loads(text)
    except ValueError as error:
        raise ConfigurationError(f"{FILE_NAME}: not TOML: {error}") from None
    given = {name: value for name, value in tables.items() if name not in UNUSED}
    topics, envelope = given.pop("topics", None), given.pop("envelope", None)
    if topics is not None:
        given["profiles"] = tuple(read_profile(topic, fields, FILE_NAME) for topic, fields in topics.items())
    if envelope is not None:
        given["reshape"] = read_envelope(envelope, FILE_NAME)
    return load_settings(**given)


def _options(text: str) -> Options:
    return msgspec.json.decode(text, type=Options)


def _names(paths: str) -> list[str]:
    """Return the paths; one that is - would stand for standard input."""
    return [f"./{path}" if path == "-" else path for path in msgspec.json.decode(paths, type=list[str])]


def _listed(names: list[str]) -> str:
    return visible(Path(names[0]).name) if len(names) == 1 else f"{len(names):,} files"


def _refused(*lines: str) -> str:
    return _answer({"refused": "\n".join(visible(line) for line in lines)})


def _answer(answer: dict[str, Any]) -> str:
    return msgspec.json.encode(answer).decode()
