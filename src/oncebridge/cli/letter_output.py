"""How `oncebridge dead` shows letters: as counts, as a list, one in full, and for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from oncebridge.cli.output import iso_time, results, say, write_fields, write_json, write_table, write_text
from oncebridge.deadletters import count_letters

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oncebridge.deadletters import DeadLetter, LetterCount

#: A terminal shows as many letters and groups of them, unless a limit is given; a pipe gets all.
SHOWN_MAX: Final = 50
GROUPS_MAX: Final = 10


def letter_as_dict(letter: DeadLetter) -> dict[str, Any]:
    """Write a dead letter for JSON output, without what it holds."""
    return {
        "key": letter.key,
        "handler": letter.handler,
        "status": letter.status,
        "topic": letter.topic,
        "time_ms": letter.time_ms,
        "id": letter.envelope_id,
        "attempts": letter.attempts,
        "changed_ms": letter.changed_ms,
        "retry_at_ms": letter.retry_at_ms,
        "lease_until_ms": letter.lease_until_ms,
        "reason": letter.reason or None,
    }


def write_letters(letters: Sequence[DeadLetter]) -> None:
    """Write a row for each letter."""
    rows = [
        (letter.key, _second(letter.changed_ms), letter.topic or "?", letter.handler, letter.attempts, letter.reason)
        for letter in letters
    ]
    columns = ("key", "since", "topic", "handler", "attempts", "reason")
    write_table(columns, rows, empty="no dead letters", below=("topic", "handler", "reason"))


def write_overview(letters: Sequence[DeadLetter], *, limited: bool) -> None:
    """Show a person how many there are of what, and then the first of them."""
    if not limited and len(letters) > 1:
        groups = count_letters(letters)
        write_counts(groups[:GROUPS_MAX], json=False)
        if len(groups) > GROUPS_MAX:
            say(f"and {len(groups) - GROUPS_MAX:,} more kinds: oncebridge dead list --counts")
        write_text("")
    shown = letters if limited else letters[:SHOWN_MAX]
    write_letters(shown)
    if len(shown) < len(letters):
        say(
            f"the oldest {len(shown):,} of {len(letters):,}; --limit {len(letters)} shows all, --since 1h those of the "
            "last hour"
        )


def write_counts(groups: Sequence[LetterCount], *, json: bool) -> None:
    """Write how many letters have the same reason and topic."""
    if json:
        for group in groups:
            write_json(group)
        return
    rows = [
        (group.number, group.reason, group.topic or "?", _second(group.oldest_ms), _second(group.newest_ms))
        for group in groups
    ]
    columns = ("number", "reason", "topic", "oldest", "newest")
    write_table(columns, rows, empty="no dead letters", below=("reason", "topic"))


def write_letter(letter: DeadLetter) -> None:
    """Show one letter: why, since when and of what first, then the error and the payload."""
    again = {"retry at": letter.retry_at_ms, "lease until": letter.lease_until_ms}
    write_fields({
        "reason": letter.reason,
        "attempts": letter.attempts,
        "status": letter.status.value,
        "since": iso_time(letter.changed_ms * 1000),
        **{name: iso_time(ms * 1000) for name, ms in again.items() if ms},
        "topic": letter.topic or "unknown",
        "event time": "none" if letter.time_ms is None else iso_time(letter.time_ms * 1000),
        "handler": letter.handler or "the one without a name, or none yet",
        "envelope id": letter.envelope_id or "none",
        "key": letter.key,
    })  # fmt: skip
    if letter.detail:
        write_text("")
        write_text(f"error:\n{letter.detail.rstrip()}")
    raw = letter.raw or b""
    write_text("")
    write_text(f"payload, {len(raw):,} bytes:\n{_pretty(letter) if results.is_terminal else raw_text(letter)}")


def raw_text(letter: DeadLetter) -> str:
    """Write a payload as it came; bytes that are no text are escapes."""
    return (letter.raw or b"").decode(errors="backslashreplace")


def _pretty(letter: DeadLetter) -> str:
    """Write a payload over several lines for a person, if it is JSON; numbers and repeated names stay as they came."""
    try:
        return msgspec.json.format(letter.raw or b"", indent=2).decode()
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return raw_text(letter)


def _second(ms: int) -> str:
    return iso_time(ms * 1000, "seconds")
