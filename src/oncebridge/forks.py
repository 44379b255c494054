"""State that a forked child must not share with its parent, and starts over.

A fork copies the memory of a process but none of its threads, and both sides go on with the same sockets and files. A
child that used its parent's connection would read answers that are not its own; a lock that another thread held is
held for ever. So each part that has a connection, a thread or a lock registers here.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Final, Protocol

_parts: Final[dict[int, weakref.ref[AwareOfForks]]] = {}
_parents: Final[list[object]] = []
_locks: Final[dict[int, tuple[weakref.ref[object], tuple[str, ...]]]] = {}
#: How many forks lie between this process and the one that first imported this module.
_generation = 0


class AwareOfForks(Protocol):
    """A part that takes care of forks. None of these may raise, or wait for long."""

    def before_fork(self) -> None:
        """Come to rest: a lock that is held now is held in the child too."""
        ...

    def after_fork(self, *, in_child: bool) -> None:
        """Go on in the parent, or start over in the child without touching anything that the parent uses."""
        ...


def register(part: AwareOfForks) -> None:
    """Call this part at every fork from now on, for as long as it is in use."""
    number = id(part)
    _parts[number] = weakref.ref(part, lambda _: _parts.pop(number, None))


def free_locks(owner: object, *attributes: str) -> None:
    """Give this object new locks in every forked child, under these names: another thread may hold the old ones."""
    number = id(owner)
    _locks[number] = weakref.ref(owner, lambda _: _locks.pop(number, None)), attributes


def generation() -> int:
    """Return a number that differs in a forked child: work begun under another number began in the parent."""
    return _generation


def leave_to_parent(*things: object) -> None:
    """Keep objects of the parent in the child for ever: a finalizer might wait for a lock that is never released."""
    _parents.extend(things)


def _registered() -> list[AwareOfForks]:
    # A copy in one step: other threads may register meanwhile.
    return [part for reference in list(_parts.values()) if (part := reference()) is not None]


def _before() -> None:
    # Outer parts first, as they lock: a bridge before its ledger. They were registered last.
    for part in reversed(_registered()):
        part.before_fork()


def _after_in_parent() -> None:
    for part in _registered():
        part.after_fork(in_child=False)


def _after_in_child() -> None:
    global _generation  # noqa: PLW0603 - a process has one
    _generation += 1
    for reference, attributes in list(_locks.values()):
        owner = reference()
        for name in attributes if owner is not None else ():
            setattr(owner, name, threading.Lock())
    for part in _registered():
        part.after_fork(in_child=True)


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
