"""Where a reply begins and ends on the wire, and which request it answers: Redis, Postgres, and HTTP as DynamoDB's."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Final

_LINE: Final = b"\r\n"


class Conversation(ABC):
    """One connection, as both sides speak: whole replies, and what was asked for each."""

    def __init__(self) -> None:
        """Begin with nothing said."""
        self.asked: deque[str] = deque()
        self._requests = b""
        self._replies = b""

    def request(self, data: bytes) -> None:
        """Take bytes of the client's."""
        self._requests += data
        while (found := self._next_request(self._requests)) is not None:
            label, length = found
            self._requests = self._requests[length:]
            if label:
                self.asked.append(label)

    def replies(self, data: bytes) -> Iterator[tuple[str, bytes]]:
        """Take bytes of the server's; yield the replies that are whole by now, each with what was asked."""
        self._replies += data
        while self._replies and (length := self._reply_length(self._replies)):
            whole, self._replies = self._replies[:length], self._replies[length:]
            yield self.asked.popleft() if self.asked else "nothing", whole

    def rest(self) -> bytes:
        """Return what was said without a proper end."""
        return self._replies

    @abstractmethod
    def _next_request(self, data: bytes) -> tuple[str, int] | None:
        """Return what is asked, if that needs a reply, and its length; None if it is not whole."""

    @abstractmethod
    def _reply_length(self, data: bytes) -> int:
        """Return the length of the first reply; 0 if it is not whole."""


# --- Redis -----------------------------------------------------------------------------------------------


class Redis(Conversation):
    """RESP: each command has one reply."""

    def _next_request(self, data: bytes) -> tuple[str, int] | None:
        length = _resp_length(data, 0)
        if not length:
            return None
        words = data[:length].split(_LINE, 7)[2::2]
        name = words[0].decode().upper()
        if name in ("EVAL", "EVALSHA"):
            name = _script_names().get(words[1] if name == "EVALSHA" else data[:length], "") or _named_in(data[:length])
        return name, length

    def _reply_length(self, data: bytes) -> int:
        return _resp_length(data, 0)


def _resp_length(data: bytes, start: int) -> int:
    """Return where the value ends that starts here; 0 if it is not whole."""
    end = data.find(_LINE, start)
    if end < 0:
        return 0
    kind, end = data[start : start + 1], end + len(_LINE)
    if kind in b"+-:":
        return end
    number = int(data[start + 1 : end - 2])
    if kind == b"$":
        last = end + number + len(_LINE) if number >= 0 else end
        return last if last <= len(data) else 0
    for _ in range(number):
        if not (end := _resp_length(data, end)):
            return 0
    return end


@cache
def _script_names() -> dict[bytes, str]:
    from oncebridge.ledgers.redis.scripts import script

    lua = [path.name.removesuffix(".lua") for path in files("oncebridge.ledgers.redis").joinpath("lua").iterdir()]
    return {script(name).sha: name for name in lua}


def _named_in(data: bytes) -> str:
    """Recognise a script that was sent in full."""
    from oncebridge.ledgers.redis.scripts import script

    return next((name for name in _script_names().values() if script(name).text in data), "script")


# --- Postgres --------------------------------------------------------------------------------------------

_STARTUP_CODES: Final = {80877103: "TLS?", 80877104: "GSS?"}
#: What a statement does: the function of ours that it calls, or its first word.
_FUNCTION: Final = re.compile(rb"\bFROM [a-z_\"]+\.\"?([a-z_]+)\"?\(|\bSELECT [a-z_\"]+\.\"?([a-z_]+)\"?\(")
_WORD: Final = re.compile(rb"[A-Z]+")
#: Requests for authentication to which the client has to say something.
_ASKING: Final = (3, 5, 10, 11)
#: Of commands that were executed: complete, failed, empty, or suspended.
_COMMAND_ENDS: Final = (b"C", b"E", b"I", b"s")


class Postgres(Conversation):
    """Frontend and backend messages; a reply ends where the server waits for the client."""

    def __init__(self) -> None:
        """Begin before the first message, which has no type."""
        super().__init__()
        self._is_started = False
        self._statements: dict[bytes, str] = {}
        self._flight: list[str] = []
        #: For each reply that is awaited, how many ends of commands it has; 0 if it ends when the server is ready.
        self._ends: deque[int] = deque()
        self._executes = 0

    def _next_request(self, data: bytes) -> tuple[str, int] | None:
        head = 0 if not self._is_started else 1
        if len(data) < head + 4:
            return None
        length = head + int.from_bytes(data[head : head + 4], "big")
        if len(data) < length:
            return None
        if not self._is_started:
            code = int.from_bytes(data[4:8], "big")
            self._is_started = code not in _STARTUP_CODES
            self._ends.append(0)
            return _STARTUP_CODES.get(code, "startup"), length
        return self._labelled(data[:1], data[5:length]), length

    def _labelled(self, kind: bytes, body: bytes) -> str:
        """Return what is asked with a message that asks for a reply."""
        if kind == b"P":
            name, _, text = body.partition(b"\0")
            self._statements[name] = _in_words(text)
        elif kind == b"B":
            statement = body.split(b"\0", 2)[1]
            self._flight.append(self._statements.get(statement, "statement"))
        elif kind == b"E":
            self._executes += 1
        elif kind in b"pQ":
            self._ends.append(0)
            return _in_words(body) if kind == b"Q" else "password"
        elif kind == b"S" or (kind == b"H" and self._executes):
            self._ends.append(self._executes if kind == b"H" else 0)
            flight, self._flight, self._executes = self._flight, [], 0
            return "+".join(dict.fromkeys(flight)) or "sync"
        return ""

    def _reply_length(self, data: bytes) -> int:
        if self.asked and self.asked[0] in _STARTUP_CODES.values():
            self._ends.popleft()
            return 1
        end, ends = 0, 0
        while len(data) >= end + 5:
            kind, body = data[end : end + 1], end + 5
            end += 1 + int.from_bytes(data[end + 1 : end + 5], "big")
            if end > len(data):
                return 0
            ends += kind in _COMMAND_ENDS
            is_flushed = bool(self._ends) and ends == self._ends[0] > 0
            is_asking = kind == b"R" and int.from_bytes(data[body : body + 4], "big") in _ASKING
            if kind == b"Z" or is_asking or is_flushed:
                self._end(failed=kind == b"E")
                return end
        return 0

    def _end(self, *, failed: bool) -> None:
        """Go on to the next reply; after an error there is none until the client's next sync."""
        if self._ends:
            self._ends.popleft()
        while failed and self._ends and self._ends[0]:
            self._ends.popleft()
            del self.asked[1]  # what is asked first is the reply that ends


def _in_words(text: bytes) -> str:
    found = _FUNCTION.search(text)
    if found:
        return (found[1] or found[2]).decode()
    word = _WORD.match(text)
    return word[0].decode() if word else "statement"


# --- HTTP ------------------------------------------------------------------------------------------------

_TARGET: Final = re.compile(rb"(?i)^x-amz-target: *[^\r.]*\.(\w+)", re.MULTILINE)
_LENGTH: Final = re.compile(rb"(?i)^content-length: *([0-9]+)", re.MULTILINE)


class Http(Conversation):
    """HTTP/1.1: one reply to each request."""

    def _next_request(self, data: bytes) -> tuple[str, int] | None:
        length = self._reply_length(data)
        found = _TARGET.search(data[:length])
        return (found[1].decode() if found else "request", length) if length else None

    def _reply_length(self, data: bytes) -> int:
        head = data.find(_LINE + _LINE)
        if head < 0:
            return 0
        head += 2 * len(_LINE)
        if b"chunked" in data[:head].lower():
            end = data.find(b"0\r\n\r\n", head)
            return end + 5 if end >= 0 else 0
        found = _LENGTH.search(data[:head])
        length = head + int(found[1]) if found else head
        return length if length <= len(data) else 0


CONVERSATIONS: Final[dict[str, type[Conversation]]] = {"redis": Redis, "postgres": Postgres, "dynamodb": Http}
