"""Echo windows as lines of oncebridge.toml.

A table of the settings replaces the built-in profile of its topic, so the lines repeat that profile: with the window
alone, the topic would be a fact.
"""

from __future__ import annotations

from collections.abc import Sequence

from oncebridge.diagnosis.diagnosis import EchoWindow
from oncebridge.topics import BUILT_IN, Field, Kind, Profile, topic_pattern


def echo_settings(windows: Sequence[EchoWindow]) -> str:
    """Write the tables of the topics whose window should be another; empty if none should."""
    return "\n\n".join(_table(window) for window in windows if window.advised_ms != window.window_ms)


def _table(window: EchoWindow) -> str:
    line = f"echo_window_ms = {window.advised_ms}  # {window.window_ms} so far"
    head = f"[topics.{toml_text(window.topic)}]"
    built_in = next((profile for profile in BUILT_IN if topic_pattern(profile.topic).fullmatch(window.topic)), None)
    if built_in is None or built_in.kind is not Kind.STATE:  # how it is told apart is known to its owner alone
        return f"# {head} - in the table that describes this topic:\n# {line}"
    return "\n".join([head, *_built_in_lines(built_in), line])


def _built_in_lines(profile: Profile) -> list[str]:
    lines = ['kind = "state"']
    for name, fields in (("entity", profile.entity), ("time", profile.time)):
        if fields:
            lines.append(f"{name} = {_one_or_list(fields)}")
    if profile.version is not None:
        lines.append(f"version = {toml_text(profile.version.text)}")
    return lines


def _one_or_list(fields: Sequence[Field]) -> str:
    texts = [toml_text(field.text) for field in fields]
    return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"


def toml_text(text: str) -> str:
    """Write a text as TOML does, with everything that is not visible as an escape: it never leaves its line."""
    return '"' + "".join(_escaped(character) for character in text) + '"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    return character if character.isprintable() else f"\\U{ord(character):08X}"
