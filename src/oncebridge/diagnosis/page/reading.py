"""The data inside a page: written so that nothing in it ends the block, and read back with suspicion."""

from __future__ import annotations

import math
import re
from typing import Any, Final, NoReturn

import msgspec

from oncebridge.diagnosis.diagnosis import FORM, Diagnosis
from oncebridge.errors import ConfigurationError, Unreadable
from oncebridge.quantities import MOST
from oncebridge.strict_json import check_size
from oncebridge.visible import visible

#: Of a page or of JSON that is read; what is written is far smaller.
READ_MAX: Final = 4_000_000
_TEXT_MAX: Final = 20_000
_ENTRIES_MAX: Final = 20_000
_NAME_MAX: Final = 200

#: The block that holds a diagnosis.
DATA: Final = "oncebridge-diagnosis"
_MARK: Final = f'id="{DATA}"'.encode()
_BLOCK: Final = re.compile(rb'<script [^<>]{0,200}?id="oncebridge-diagnosis"[^<>]{0,200}>([^<]*)(</script>)?')
_AGAIN: Final = "write it again with diagnose --html or --json"


class _Head(msgspec.Struct):
    """What must be right before anything else is read."""

    form: int
    oncebridge: str = "unknown"


_read_head = msgspec.json.Decoder(_Head).decode
_read_diagnosis = msgspec.json.Decoder(Diagnosis).decode


def read_page(data: bytes, name: str) -> Diagnosis:
    """Read a diagnosis back: from a page, or from JSON as `diagnose --json` writes it.

    Raises `ConfigurationError` with the file's name, what is wrong, and what to do.
    """
    shown = visible(name if len(name) <= _NAME_MAX else f"{name[:_NAME_MAX]}…")
    if len(data) > READ_MAX:
        _refuse(shown, f"is longer than {READ_MAX:,} bytes, and no report is", _NO_REPORT)
    text = _json_in(data, shown)
    try:
        check_size(text, bytes_max=READ_MAX)
        head = _read_head(text)
        if head.form != FORM:
            version = visible(head.oncebridge[:40])
            _refuse(
                shown,
                f"was written in form {head.form} by Oncebridge {version}, and this version reads form {FORM}",
                "diagnose the capture again with this version",
            )
        diagnosis = _read_diagnosis(text)
    except Unreadable as error:
        _refuse(shown, f"is damaged: its data {error}", _AGAIN)
    except msgspec.ValidationError as error:
        _refuse(shown, f"is damaged: {_where(error)} is not what a report holds", _AGAIN)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        _refuse(shown, "is damaged: its data is no JSON, or is cut off", _AGAIN)
    fault = _absurd(diagnosis, "its data") or _contradiction(diagnosis)
    if fault:
        _refuse(shown, f"holds what no report holds: {fault}", _AGAIN)
    return diagnosis


_NO_REPORT: Final = "name a page that diagnose --html wrote, or JSON that diagnose --json wrote"


def _refuse(name: str, wrong: str, fix: str) -> NoReturn:
    raise ConfigurationError(f"{name} {wrong}; {fix}") from None


def _json_in(data: bytes, name: str) -> bytes:
    """Return the JSON: the block of a page, or all of it."""
    bare = data.removeprefix(b"\xef\xbb\xbf").strip()
    if bare.startswith(b"{"):
        if b'"form"' not in bare or b'"answer"' not in bare:  # most likely a capture
            _refuse(name, "is no report of oncebridge diagnose", _NO_REPORT)
        return bare
    if not bare:
        _refuse(name, "is empty", _NO_REPORT)
    blocks = list(_BLOCK.finditer(bare))
    if not blocks:
        if _MARK in bare or b"oncebridge" in bare[:20_000].lower():
            _refuse(name, "is no complete report: the block with its data is missing or cut off", _AGAIN)
        _refuse(name, "is no report of oncebridge diagnose", _NO_REPORT)
    if len(blocks) > 1:
        _refuse(name, "holds two blocks of data, and a report has one", _AGAIN)
    if blocks[0][2] is None:
        _refuse(name, "is damaged: its data is cut off", _AGAIN)
    return blocks[0][1]


def _where(error: msgspec.ValidationError) -> str:
    """Name the field that is wrong; never its value, which may be anything."""
    missing = re.match(r"Object missing required field `(\w+)`", str(error))
    if missing:
        return missing[1]
    _, found, path = str(error).rpartition(" - at ")
    return visible(path.strip("`").removeprefix("$.")[:80]) if found else "a field of it"


def _absurd(value: Any, name: str) -> str | None:
    """Return what is beyond all measure, if anything is."""
    if isinstance(value, str):
        return f"a text of {len(value):,} characters ({name})" if len(value) > _TEXT_MAX else None
    if isinstance(value, (int, float)):
        return None if math.isfinite(value) and abs(value) <= MOST else f"a number out of range ({name})"
    if isinstance(value, msgspec.Struct):
        fields = ((each, getattr(value, each)) for each in value.__struct_fields__)
    elif isinstance(value, dict):
        if len(value) > _ENTRIES_MAX or any(len(key) > _TEXT_MAX for key in value):
            return f"too many or too long names ({name})"
        fields = ((name, item) for item in value.values())
    elif isinstance(value, (list, tuple)):
        if len(value) > _ENTRIES_MAX:
            return f"{len(value):,} entries ({name})"
        fields = ((name, item) for item in value)
    else:
        return None
    return next((fault for each, item in fields if (fault := _absurd(item, each))), None)


def _contradiction(diagnosis: Diagnosis) -> str | None:
    """Return which numbers cannot be true of any capture, if any are."""
    if min(diagnosis.deliveries, diagnosis.events, diagnosis.duplicates, diagnosis.unreadable) < 0:
        return "a count below zero"
    if diagnosis.duplicates > diagnosis.deliveries:
        return "more duplicates than deliveries"
    if any(not 0 <= found.share <= 1 for found in diagnosis.found):
        return "a share that is not from 0 to 1"
    if len(diagnosis.lags.edges) != len(diagnosis.lags.counts):
        return "lags without their counts"
    return None
