"""Which handlers take which topic."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

import msgspec
from msgspec.structs import replace

from oncebridge.discreet import Discreet
from oncebridge.errors import ConfigurationError
from oncebridge.handler_signature import refuse_wrong_function, takes_transaction
from oncebridge.topics import is_part, pattern_pieces, topic_pattern

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from oncebridge.event import Event
    from oncebridge.retry import RetryPolicy

#: How the names begin that a shadow remembers events under; no handler may have such a name.
SHADOW_OF: Final = "shadow of"


class Handler(msgspec.Struct, frozen=True, kw_only=True):
    """A handler that events are given to, and how to call it."""

    pattern: str
    function: Callable[..., Any]
    #: The name that its claims are remembered under. One handler of an event may go without.
    name: str = ""
    #: Errors that no retry can fix, beside `PermanentError`.
    permanent: tuple[type[Exception], ...] = ()
    wants_transaction: bool = False
    #: How often and when it is tried; None: as `[retry]` of the settings says.
    retry: RetryPolicy | None = None
    #: Whether it is retried until it succeeds, however often that takes.
    persistent: bool = False
    #: How many events one call takes, of a sink that sends them together (`SendsMany`).
    many: int = 1


@runtime_checkable
class SendsMany(Protocol):
    """A handler that takes several events in one call."""

    #: How many events one call takes at most.
    many: int

    def send_many(self, events: Sequence[Event]) -> list[Exception | None]:
        """Send them; return for each, in order, its error, as a handler would have raised it, or None."""
        ...


class LetterCopy(Discreet, msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A copy of a dead letter on its way to a queue or a bus; the letter itself is already in the ledger."""

    shown = ("key", "topic", "handler", "reason")

    key: str
    topic: str
    #: The handler that gave up; empty if it has no name, or if no handler ever got the event.
    handler: str
    reason: str
    envelope: str | None
    raw: bytes


class Handlers:
    """All registered handlers."""

    def __init__(self) -> None:
        """Start with none."""
        self._handlers: list[Handler] = []
        self._split = lru_cache(maxsize=1024)(self._split_by)

    def __bool__(self) -> bool:
        """Return whether there is any."""
        return bool(self._handlers)

    def __iter__(self) -> Iterator[Handler]:
        """Iterate in order of registration."""
        return iter(self._handlers)

    def add(
        self,
        pattern: str,
        function: Callable[..., Any],
        *,
        name: str = "",
        permanent: tuple[type[Exception], ...] = (),
        retry: RetryPolicy | None = None,
    ) -> Handler:
        """Register a handler; refuse one whose claims would be the same as another's."""
        refuse_wrong_function(pattern, function)
        if name.startswith(SHADOW_OF):
            raise ConfigurationError(
                f"handler for {pattern!r}: under names that begin with {SHADOW_OF!r} shadows remember events that no "
                f"handler got, and {name!r} would skip these; give it another name"
            )
        handler = Handler(
            pattern=pattern,
            function=function,
            name=name,
            permanent=permanent,
            retry=retry,
            wants_transaction=takes_transaction(function),
            many=function.many if isinstance(function, SendsMany) else 1,
        )
        twin = next((other for other in self._handlers if _may_meet(other, handler)), None)
        if twin is not None:
            raise ConfigurationError(
                f"handler for {pattern!r}: an event could go to it and to the one for {twin.pattern!r}, both under the "
                f"name {name!r}; give the new one a name of its own: on({pattern!r}, name=...)"
            )
        self._handlers.append(handler)
        self._split.cache_clear()
        return handler

    def of(self, topic: str, topic_name: str) -> tuple[Handler, ...]:
        """Return the handlers of an event, by its template or by its concrete topic name."""
        found, others = self._split(topic)
        if not others:
            return found
        named = _each_once(handler for handler in others if topic_pattern(handler.pattern).fullmatch(topic_name))
        return found if not named else _with_own_claims([*found, *named])

    def _split_by(self, topic: str) -> tuple[tuple[Handler, ...], tuple[Handler, ...]]:
        """Split the handlers into those that match a template, and the rest, which may still match one of its names."""
        found = _each_once(handler for handler in self._handlers if topic_pattern(handler.pattern).fullmatch(topic))
        return tuple(found), tuple(handler for handler in self._handlers if not _is_among(handler, found))


def uncalled(event: Event) -> None:
    """Do nothing: the event is claimed, settled and remembered, and that is all."""


def shadow_name(name: str) -> str:
    """Return the name that a shadow remembers a handler's events under: what it has judged is not done."""
    return f"{SHADOW_OF} {name}".rstrip()


def shadow_of(handler: Handler) -> Handler:
    """Return a handler that takes the same events, has claims of its own and does nothing."""
    return Handler(pattern=handler.pattern, function=uncalled, name=shadow_name(handler.name))


#: The shadow of a bridge without handlers.
SHADOW_OF_NONE: Final = Handler(pattern="*", function=uncalled, name=shadow_name(""))


def _may_meet(one: Handler, other: Handler) -> bool:
    """Return whether the two would have the same claims; one function may have several patterns."""
    same = one.function is other.function
    return one.name == other.name and not same and overlap(one.pattern, other.pattern)


def _is_among(handler: Handler, others: list[Handler]) -> bool:
    return any(handler.name == other.name and handler.function is other.function for other in others)


def _each_once(handlers: Iterable[Handler]) -> list[Handler]:
    """Leave out a function that also takes an event by a second pattern."""
    found: list[Handler] = []
    for handler in handlers:
        if not _is_among(handler, found):
            found.append(handler)
    return found


def _with_own_claims(handlers: list[Handler]) -> tuple[Handler, ...]:
    """Give handlers of the same name separate claims.

    Overlapping patterns are refused, so this is for an event whose two names disagree.
    """
    found: dict[str, Handler] = {}
    for handler in handlers:
        name = handler.name if handler.name not in found else f"{handler.name} {handler.pattern}"
        found[name] = handler if name == handler.name else replace(handler, name=name)
    return tuple(found.values())


def overlap(one: str, another: str) -> bool:
    """Return whether some topic is matched by both patterns.

    Both are read side by side. For each position in one, `reached` has a bit for every position in the other that
    some text can have brought both to.
    """
    first, second = _tokens(one), _tokens(another)
    rests = _bits(token in (_ANY, _PART_REST) for token in second)
    sharing = {token: _bits(_share_character(token, other) for other in second) for token in set(first)}
    reached = 1
    for token in first:
        shared = sharing[token]
        if token in (_ANY, _PART_REST):  # may stay as it is, and may consume the other's token
            reached = _spread(reached, rests | shared)
        else:
            reached = _spread(reached, rests) & shared
            reached = (reached & rests) | (reached & ~rests) << 1
    return bool(_spread(reached, rests) >> len(second) & 1)


def _bits(places: Iterable[bool]) -> int:
    return sum(1 << at for at, is_one in enumerate(places) if is_one)


def _spread(reached: int, through: int) -> int:
    """Advance from each position to the next, through all that may be skipped: a sum carries just that far."""
    return reached | (((reached & through) + through) ^ through)


_ANY = "*"  # any text
_PART = "+"  # one part of a topic: at least one character, no dot
_PART_REST = "~"  # the rest of such a part


def _tokens(pattern: str) -> list[str]:
    """Write a pattern as characters and wildcards, where a part is one character and then any more."""
    tokens: list[str] = []
    for piece in pattern_pieces(pattern):
        if is_part(piece):
            tokens += [_PART, _PART_REST]
        elif piece.startswith("*"):
            tokens.append(_ANY)
        else:
            tokens += ["=" + character for character in piece]
    return tokens


def _share_character(a: str, b: str) -> bool:
    if a.startswith("=") and b.startswith("="):
        return a == b
    literal = a[1:] if a.startswith("=") else b[1:] if b.startswith("=") else None
    return not (literal == "." and (_PART in (a, b) or _PART_REST in (a, b)))
