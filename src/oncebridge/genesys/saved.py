"""Saved answers of Genesys, of any size: the conversations in them, one after the other."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

from oncebridge.genesys.conversations import AnswerUnreadable, milliseconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: Of one conversation, or of whatever else stands in a file.
OBJECT_BYTES_MAX: Final = 64 * 1_048_576
_LIST: Final = b"conversations"
_AVAILABLE: Final = b"dataAvailabilityDate"
#: What says that an object is an answer, though it may hold no conversation.
_OF_ANSWERS: Final = frozenset({_LIST, _AVAILABLE, b"totalHits"})
_QUOTE, _BRACE, _END_OF_BRACE = b'"{}'
_LISTED: Final = ord("L")  # the list of conversations in an answer
_IN_ANSWER: Final = b"{L"
#: A bracket, or a text; one without its end is cut off by the end of a block.
_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*(?:(")|\\?\Z)|[{}\[\]]', re.DOTALL)


class SavedAnswers:
    """Splits what `details/query` and `details/jobs` answered, page after page, into conversations.

    A file may hold whole answers, lists of conversations, or a conversation a line; nothing else needs to fit into
    memory than one conversation.
    """

    def __init__(self) -> None:
        """Know of no time yet."""
        #: The earliest time up to which the answers say to be complete.
        self.available_ms: int | None = None
        #: What is open: braces, brackets, and the list of conversations.
        self._stack = bytearray()
        self._text = b""
        self._left = b""
        #: Where the conversation begins that has not ended; -1: in none.
        self._began = -1
        #: Whether the file holds an answer or a conversation, a list, and objects that are neither.
        self._is_answer = self._has_list = self._has_others = False

    def conversations(self, blocks: Iterable[bytes | None]) -> Iterator[bytes]:
        """Yield the text of each conversation in a file."""
        self._stack, self._text, self._left = bytearray(), b"", b""
        self._is_answer = self._has_list = self._has_others = False
        for block in blocks:
            if block:
                yield from self._in_block(block)
        if self._stack or self._left:
            raise AnswerUnreadable("it is cut off in the middle")
        if not self._is_answer and (self._has_others or not self._has_list):
            raise AnswerUnreadable(
                "there is no conversation in it; give what details/query or details/jobs/{id}/results answered"
            )

    def _in_block(self, block: bytes) -> Iterator[bytes]:
        data, self._began = self._left + block, -1
        cut = len(data)
        for token in _TOKEN.finditer(data):
            kind = data[token.start()]
            if kind != _QUOTE:
                if kind in b"{[":
                    self._open(kind, token.start())
                elif found := self._close(kind, data, token.end()):
                    yield found
            elif token[1] is None:
                cut = token.start()
                break
            else:
                if len(self._stack) == 1 and self._text == _AVAILABLE:
                    self._note(token[0])
                self._text = token[0][1:-1]
                if self._stack == b"{" and self._text in _OF_ANSWERS:
                    self._is_answer = True
        # What has begun is looked through again with the next block.
        self._left = data[cut if self._began < 0 else self._began :]
        if self._began >= 0:
            del self._stack[_depth_around(self._stack) :]
        if len(self._left) > OBJECT_BYTES_MAX:
            raise AnswerUnreadable("this is no answer of Genesys: nothing in it ends")

    def _open(self, kind: int, at: int) -> None:
        stack = self._stack
        self._has_list |= not stack and kind != _BRACE
        if kind == _BRACE and _is_one(stack):
            self._began = at
        stack.append(_LISTED if kind != _BRACE and self._text == _LIST and stack == b"{" else kind)
        if stack == _IN_ANSWER:  # an answer: its conversations one by one, and not the whole
            self._began = -1

    def _close(self, kind: int, data: bytes, end: int) -> bytes:
        """Close a bracket; return the conversation that ends with it, if one does."""
        stack = self._stack
        if not stack or (stack[-1] == _BRACE) != (kind == _END_OF_BRACE):
            raise AnswerUnreadable("this is no JSON: its brackets do not match")
        stack.pop()
        if self._began < 0 or not _is_one(stack):
            return b""
        found, self._began = data[self._began : end], -1
        if b'"conversationId"' in found:
            self._is_answer = True
            return found
        self._has_others = True
        return b""

    def _note(self, text: bytes) -> None:
        try:
            time_ms = milliseconds(msgspec.json.decode(text, type=str))
        except msgspec.DecodeError:
            return
        if time_ms is not None:  # the name that follows `null` is none
            self.available_ms = min(time_ms, self.available_ms or time_ms)


def _is_one(stack: bytearray) -> bool:
    """Return whether an object here is a conversation, or an answer that holds some."""
    return bytes(stack) in (b"", b"[", _IN_ANSWER)


def _depth_around(stack: bytearray) -> int:
    """Return how deep the object lies that has begun and not ended."""
    return 2 if stack.startswith(_IN_ANSWER) else 1 if stack.startswith(b"[") else 0
