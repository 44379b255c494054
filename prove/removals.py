"""Single checks that are taken out of the program, in the process that calls this and all that it forks.

A check is named by its own text, in Python, Lua or SQL. Where that text is not there any more, the removal is refused:
a control that removes nothing would prove nothing.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Edit:
    """One piece of the program's text, and what stands in its place.

    It is in a function, as `module:function`, or in a file of a ledger, as `redis/settle`.
    """

    where: str
    text: str
    instead: str


#: Of functions that were changed already, and may be changed once more.
_texts: dict[str, str] = {}


def remove(edits: Sequence[Edit]) -> None:
    """Change the program. This process is good for nothing else any more."""
    for edit in edits:
        kind, _, name = edit.where.partition("/")
        if kind == "redis":
            _in_files("oncebridge.ledgers.redis.scripts", "_read", (name,), edit)
        elif kind == "postgres":
            _in_files("oncebridge.ledgers.postgres.migration", "_script", (name, "schema"), edit)
        else:
            _in_python(edit)


def _in_files(module_name: str, reader: str, arguments: tuple[str, ...], edit: Edit) -> None:
    """Give whoever reads this file another text."""
    module = import_module(module_name)
    read: Callable[..., str] = getattr(module, reader)
    _replaced(read(*arguments), edit)  # now, and not only once it is used

    def changed(asked: str, *more: str) -> str:
        text = read(asked, *more)
        return _replaced(text, edit) if asked == arguments[0] else text

    setattr(module, reader, changed)
    if hasattr(module, "script"):
        module.script.cache_clear()


def _in_python(edit: Edit) -> None:
    module_name, _, path = edit.where.partition(":")
    module: Any = import_module(module_name)
    found: Any = module
    for name in path.split("."):
        found = getattr(found, name)
    if isinstance(found, str):
        setattr(module, path, _replaced(found, edit))
        return
    before = _texts.get(edit.where) or textwrap.dedent(inspect.getsource(found))
    text = _texts[edit.where] = _replaced(before, edit)
    scope: dict[str, Any] = {}
    exec(  # noqa: S102 - the program's own text, with one piece of it replaced
        compile(
            "from __future__ import annotations\n" + text,
            module.__file__ or "",
            "exec",
        ),
        module.__dict__,
        scope,
    )
    # In place, so that whoever has imported the function has the changed one, too.
    found.__code__ = scope[path.rpartition(".")[2]].__code__


def _replaced(text: str, edit: Edit) -> str:
    if edit.text not in text:
        raise LookupError(f"{edit.where} has no {edit.text!r} any more: say what to remove there now")
    return text.replace(edit.text, edit.instead)
