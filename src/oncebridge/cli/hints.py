"""Commands that messages suggest: with the ledger of the command that was given, but never with a password."""

from __future__ import annotations

import re
import shlex
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit

#: Commands that look at a ledger, as messages quote them; not those that name one already.
_COMMAND: Final = re.compile(
    r"\boncebridge (?:dead (?:list|show|redrive|discard)|doctor|find|migrate|purge)\b(?! --(?:ledger|handler)\b)"
)
#: Options by which this process was given its ledger.
_given: list[str] = []


def repeat_in_hints(*, ledger: str | None, handler: str | None, settings: str | None) -> None:
    """Repeat these options in every command that is suggested from now on."""
    options = {"--handler": handler, "--ledger": ledger and without_password(ledger), "--settings": settings}
    _given[:] = [f"{option} {shlex.quote(value)}" for option, value in options.items() if value is not None]


def with_ledger(text: str) -> str:
    """Return a message whose commands look at the same ledger."""
    return _COMMAND.sub(lambda found: " ".join([found[0], *_given]), text) if _given else text


def without_password(url: str) -> str:
    """Return a ledger's URL without its password; of one that may hide it elsewhere, nothing but the scheme."""
    try:
        parts = urlsplit(url)
        query = [pair for pair in parse_qsl(parts.query, keep_blank_values=True) if "password" not in pair[0].lower()]
    except ValueError:
        return "URL"
    if "@" in parts.path + parts.query + parts.fragment:
        return f"{parts.scheme}://..."
    user, at, host = parts.netloc.rpartition("@")
    user = user.partition(":")[0]
    slashes = "//" if url.startswith(f"{parts.scheme}://") else ""
    shown = urlencode(query, safe="/:,")
    return f"{parts.scheme}:{slashes}{user}{at and user and '@'}{host}{parts.path}{shown and '?'}{shown}"
