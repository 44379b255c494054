"""Who may look at the console, and who may act: keys, sessions, and tokens that no other site knows."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections import deque
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from oncebridge.clock import Clock
    from oncebridge.ledgers.notes import Notes
    from oncebridge.settings.console import ConsoleSettings
    from oncebridge.settings.secrets import Secret

COOKIE: Final = "oncebridge-session"
#: Wrong keys that one address may give in a minute, and all addresses together.
TRIES_PER_PEER: Final = 5
TRIES_IN_ALL: Final = 60
TRIES_WITHIN_US: Final = 60_000_000
KEY_MAX: Final = 4096
COOKIE_MAX: Final = 1024
#: The page of notes that holds sessions which people have ended, and how many of them where notes are kept by number.
ENDED: Final = "ended-sessions"
ENDED_KEPT: Final = 10_000
_NAME_MAX: Final = 80


class Role(StrEnum):
    """What a person may do."""

    READER = "reader"
    OPERATOR = "operator"


class Session(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A person who has given a key, until the session ends."""

    role: Role
    #: As the log of actions names the person: where the key is kept, never the key.
    who: str
    nonce: str
    until_us: int

    @property
    def may_act(self) -> bool:
        """Whether this person may change anything, and see payloads."""
        return self.role is Role.OPERATOR


class Access:
    """Lets people in by their keys, and recognises them by a signed cookie, in every process of the console."""

    def __init__(self, settings: ConsoleSettings, secret: bytes, clock: Clock) -> None:
        """Take the keys; `secret` is the ledger's, so that all processes sign alike."""
        self._keys = [
            *((Role.OPERATOR, key) for key in settings.operator_keys),
            *((Role.READER, key) for key in settings.reader_keys),
        ]
        self._lasts_us = int(settings.session_minutes * 60_000_000)
        self._clock = clock
        # With other keys no session is valid any more.
        known = b"".join(_digest(key.value) + role.encode() for role, key in self._keys)
        self._signs = hmac.digest(secret, b"console session" + hashlib.sha256(known).digest(), "sha256")

    @property
    def needs_key(self) -> bool:
        """Whether anybody has to give a key; without keys only this machine can reach the console."""
        return bool(self._keys)

    def login(self, given: str) -> Session | None:
        """Return a session for a key, or None; the time it takes does not tell how much of it was right."""
        given_digest = _digest(given)
        fits = [(role, key) for role, key in self._keys if hmac.compare_digest(_digest(key.value), given_digest)]
        return self._begun(fits[0][0], fits[0][1]) if fits else None

    def without_key(self) -> Session:
        """Return a session for somebody on this machine, where no keys are set."""
        return self._begun(Role.OPERATOR, None)

    def _begun(self, role: Role, key: Secret | None) -> Session:
        who = "this machine" if key is None else key.reference[:_NAME_MAX]
        return Session(
            role=role, who=who, nonce=secrets.token_urlsafe(12), until_us=self._clock.now_us() + self._lasts_us
        )

    def cookie(self, session: Session) -> str:
        """Write a session for the browser to keep."""
        text = base64.urlsafe_b64encode(msgspec.json.encode(session))
        return f"{text.decode()}.{self._signed(b'cookie', text)}"

    def read(self, cookie: str | None) -> Session | None:
        """Return the session of a cookie, unless it is forged or its time is over."""
        text, _, signed = (cookie or "")[:COOKIE_MAX].partition(".")
        # Bytes: compare_digest refuses texts that are not ASCII.
        if not hmac.compare_digest(self._signed(b"cookie", text.encode()).encode(), signed.encode()):
            return None
        session = msgspec.json.decode(base64.urlsafe_b64decode(text), type=Session)
        return None if session.until_us <= self._clock.now_us() else session

    def token(self, session: Session) -> str:
        """Return what a form of this session has to send back: no other site can know it."""
        return self._signed(b"form", session.nonce.encode())

    def is_token(self, session: Session, sent: str) -> bool:
        """Return whether a form was one of ours, for this session."""
        return hmac.compare_digest(self.token(session).encode(), sent.encode())

    def _signed(self, what: bytes, text: bytes) -> str:
        digest = hmac.digest(self._signs, what + b"\x00" + text, "sha256")
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")


class EndedSessions:
    """Sessions that people have ended, in the ledger's notes: a cookie that was copied is worth nothing anywhere."""

    def __init__(self, notes: Notes, clock: Clock) -> None:
        """Take the notes of an open ledger."""
        self._notes = notes
        self._clock = clock

    def end(self, session: Session) -> None:
        """Accept a session no longer, in any process of the console; raises what the ledger raises."""
        keep_us = max(1, session.until_us - self._clock.now_us())
        self._notes.write_notes(ENDED, {session.nonce: b"1"}, keep_us=keep_us, newest=ENDED_KEPT)

    def has(self, session: Session) -> bool:
        """Return whether somebody has ended it; raises what the ledger raises."""
        # The last name that is not behind the session's own: no other begins with it.
        found = self._notes.read_notes(ENDED, below=f"{session.nonce}\x01", limit=1)
        return [note.name for note in found] == [session.nonce]


class LoginLimit:
    """Limits how often keys may be guessed, by each address and by all together."""

    def __init__(self, clock: Clock) -> None:
        """Take the clock."""
        self._clock = clock
        self._wrong: deque[tuple[int, str]] = deque(maxlen=TRIES_IN_ALL)

    def wait_seconds(self, peer: str) -> int:
        """Return for how long an address has to wait before its next try; 0 if it may try now."""
        since_us = self._clock.monotonic_us() - TRIES_WITHIN_US
        while self._wrong and self._wrong[0][0] <= since_us:
            self._wrong.popleft()
        own = [at_us for at_us, address in self._wrong if address == peer]
        first_us = own[-TRIES_PER_PEER] if len(own) >= TRIES_PER_PEER else None
        if first_us is None and len(self._wrong) >= TRIES_IN_ALL:
            first_us = self._wrong[0][0]
        return 0 if first_us is None else max(1, -(-(first_us - since_us) // 1_000_000))

    def note_wrong(self, peer: str) -> None:
        """Note that an address gave a wrong key."""
        self._wrong.append((self._clock.monotonic_us(), peer))


def _digest(text: str) -> bytes:
    return hashlib.sha256(text[:KEY_MAX].encode(errors="backslashreplace")).digest()
