"""What spoiled input is given to: whatever reads something from outside. Each says what it may do, and nothing else."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Sequence
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, Protocol
from unittest import mock

from oncebridge import Bridge, Settings
from oncebridge.errors import ConfigurationError, NotAcknowledged
from oncebridge.settings import load_settings
from oncebridge.settings.serve import ServeSettings
from oncebridge.sources.captures.found import Tally
from oncebridge.sources.captures.reading import read_captures
from oncebridge.sources.unwrap import unwrap
from prove.mutate import spoiled

#: Of everything that is tried.
SHARES: Final = {"parser": 0.4, "unwrapper": 0.2, "captures": 0.1, "http": 0.15, "console": 0.05, "settings": 0.1}
#: They stand for what a console or a service makes up anew, in samples that a seed repeats.
CLAIM: Final = "made-up-claim"
KEY: Final = "made-up-key"
OF_FORM: Final = "made-up-word"
#: A real event comes after so many spoiled ones, in one batch with them.
REAL_EACH: Final = 16
UNACCOUNTED: Final = "the books do not account for it"


class Wrong(Exception):
    """A promise is broken."""


class Target(Protocol):
    """Something that reads input."""

    def renew(self) -> None:
        """Begin anew, without whatever was kept of earlier input."""

    def normal(self, size: int) -> bytes:
        """Make usual input of about this size."""

    def make(self, dice: random.Random) -> bytes:
        """Make spoiled input."""

    def run(self, data: bytes) -> None:
        """Give it the input: this is what time and memory are measured of. Raise if a promise is broken."""

    def check(self) -> None:
        """See whether all is well after it; raise if a promise is broken."""

    def close(self) -> None:
        """End what would outlive the work."""


def event_samples() -> list[bytes]:
    """Return an event of every family, and those that people make by hand."""
    from payloads import BODIES, HAND_MADE, envelope, raw

    return [raw(envelope(topic)) for topic in BODIES] + [raw(make()) for make in HAND_MADE.values()]


def _usual(size: int) -> bytes:
    from hostile_inputs import usual

    return bytes(usual(size))


def _smallest() -> bytes:
    """Return the smallest event that people make by hand."""
    from payloads import HAND_MADE, raw

    return min((bytes(raw(make())) for make in HAND_MADE.values()), key=len)


def _real(number: int) -> bytes:
    """Make an event that no other is a copy of."""
    from payloads import ACW, TIME_MS, envelope, raw

    return bytes(raw(envelope(ACW, {"eventTime": TIME_MS + number, "conversationId": f"real {number}"})))


def _without_effect(_event: Any) -> None:
    """Do nothing: what reading costs is the question."""


class Parser:
    """A delivery, as the library is called with one."""

    def __init__(self) -> None:
        """Begin without a bridge."""
        self._samples = event_samples()
        self._numbers, self._group, self._received = 0, list[bytes](), 0

    def renew(self) -> None:
        """Take a new ledger, in memory."""
        self._received, self._group = 0, []
        if hasattr(self, "bridge"):
            self.bridge.close()
        self.bridge = Bridge("memory://", settings=Settings(allow_requests_without_key=True))
        self.bridge.register("*", _without_effect, name="nothing")
        self.bridge.open()

    def normal(self, size: int) -> bytes:
        """Make a usual event."""
        return _usual(size)

    def make(self, dice: random.Random) -> bytes:
        """Spoil an event."""
        return spoiled(dice, self._samples)

    def run(self, data: bytes) -> None:
        """Process it."""
        self._received += 1
        self._group.append(data)
        self.bridge.process(data)

    def check(self) -> None:
        """It must be in the books, and a real event among such must be processed."""
        self._check_books()
        if len(self._group) >= REAL_EACH:
            group, self._group = self._group, []
            self._check_real(group)

    def close(self) -> None:
        """Nothing outlives it."""

    def _check_real(self, others: Sequence[bytes]) -> None:
        self._numbers += 1
        real = _real(self._numbers)
        self._received += len(others) + 1
        results = self.bridge.process_many([*others, real])
        self._check_books()
        if results[-1].column != "processed":
            raise Wrong(f"a real event among spoiled ones was {results[-1].column}: {results[-1].reason}")

    def _check_books(self) -> None:
        books = self.bridge.books.as_dict()
        if books["received"] != self._received or not books["balanced"]:
            raise Wrong(UNACCOUNTED)


class Unwrapper(Parser):
    """An invocation of Lambda, of any shape."""

    def __init__(self) -> None:
        """Put some events into every shape."""
        super().__init__()
        from payloads import HAND_MADE, PRESENCE, envelope
        from shapes import every_shape

        events = [envelope(PRESENCE), *(make() for make in HAND_MADE.values())]
        self._samples = [json.dumps(shape).encode() for event in events for shape in every_shape(event).values()]

    def normal(self, size: int) -> bytes:
        """Put small events into one invocation, as a pipe does: what each of them costs is the most of it."""
        one = _smallest().decode()
        return json.dumps([one] * max(1, size // len(one))).encode()

    def run(self, data: bytes) -> None:
        """Invoke with it, where it is JSON at all; unwrap it as it is, too."""
        try:
            tree = json.loads(data)
        except (ValueError, RecursionError):  # no runtime would call a function with it
            pass
        else:
            with suppress(NotAcknowledged):
                json.dumps(self.bridge.lambda_handler(tree, None))
        unwrap(data)

    def check(self) -> None:
        """Whatever it was, it must be in the books, and a real event in the next invocation must be processed."""
        if not self.bridge.books.as_dict()["balanced"]:
            raise Wrong(UNACCOUNTED)
        self._numbers += 1
        if self._numbers % REAL_EACH == 0:
            self._check_invoked()

    def _check_invoked(self) -> None:
        from shapes import message, records

        before = self.bridge.books.as_dict()["processed"]
        answer = self.bridge.lambda_handler(records(message(_real(self._numbers).decode())), None)
        if self.bridge.books.as_dict()["processed"] != before + 1 or answer.get("batchItemFailures"):
            raise Wrong("a real event after it was not processed")


class Captures(Parser):
    """A file of captures, in any format."""

    def __init__(self) -> None:
        """Write some events in every format."""
        super().__init__()
        from capture_shapes import every_format
        from payloads import HAND_MADE, PRESENCE, envelope

        events = [envelope(PRESENCE), *(make() for make in HAND_MADE.values())][:3]
        self._samples = [data for data, _ in every_format(events).values()]
        self._file = Path(f"fuzzed-{os.getpid()}.jsonl")
        self._tally, self._found, self._data = Tally(), 0, b""

    def normal(self, size: int) -> bytes:
        """Write small events of a line each: what each of them costs is the most of it."""
        one = _smallest()
        return (one + b"\n") * max(1, size // len(one))

    def make(self, dice: random.Random) -> bytes:
        """Spoil a file."""
        return spoiled(dice, self._samples, as_json=False)

    def run(self, data: bytes) -> None:
        """Read it, and process what is found."""
        self._data, self._tally = data, Tally()
        self._file.write_bytes(data)
        found = [one.raw for one in read_captures([str(self._file)], self._tally) if one is not None]
        self._found = len(found)
        self._received += len(found)
        self.bridge.process_many(found)

    def check(self) -> None:
        """All that was found must be in the books; what is no delivery must be counted as skipped, or be a trouble."""
        self._check_books()
        told = self._found + self._tally.skipped_total + self._tally.troubles_total
        if self._data.strip(b"\x00 \r\n\t,[]") and not told:
            raise Wrong("neither found nor skipped nor a trouble")

    def close(self) -> None:
        """Remove the file."""
        self._file.unlink(missing_ok=True)


class HTTP(Parser):
    """A request to the service, past the server that reads its lines."""

    STATUSES: Final = frozenset({200, 400, 401, 404, 405, 413, 415, 503})

    def __init__(self) -> None:
        """Make requests of each kind."""
        super().__init__()
        self._client: Any = None
        claims = [
            json.dumps({"event": json.loads(event), "handler": "desk", "lease_seconds": 5}).encode()
            for event in self._samples[::6]
        ]
        settle = {"claim": CLAIM, "outcome": "done"}
        failed = {"claim": CLAIM, "outcome": "failed", "error": "no such customer", "retry": True}
        self._bodies = {
            b"POST /events": [*self._samples, b"[" + b",".join(self._samples[:4]) + b"]"],
            b"POST /claims": claims,
            b"POST /claims/settle": [json.dumps(settle).encode(), json.dumps(failed).encode()],
            b"POST /claims/extend": [json.dumps({"claim": CLAIM, "lease_seconds": 1}).encode()],
        }

    def renew(self) -> None:
        """Take a new application."""
        from oncebridge.service.app import make_application
        from service.asgi import Client

        self.close()
        limits = ServeSettings(answer_within_seconds=60, read_within_seconds=60)
        self.bridge = Bridge("memory://", settings=Settings(serve=limits, busy_wait_seconds=0))
        self.bridge.register("*", _without_effect, name="nothing")
        self._client = Client(make_application(self.bridge))
        # Signed with a secret of this ledger's: a seed cannot know it, so samples have a word in its place.
        event = json.loads(_real(0))
        self._claim = self._client.post("/claims", {"event": event, "handler": "desk"}).json["claim"].encode()

    def close(self) -> None:
        """End the thread that the application runs in."""
        if self._client is not None:
            self._client.close()
            self.bridge.close()

    def normal(self, size: int) -> bytes:
        """Post a usual event."""
        return b"POST /events\n" + _usual(size)

    def make(self, dice: random.Random) -> bytes:
        """Spoil the body, and sometimes the line."""
        line = dice.choice([b"POST /events", *self._bodies])
        body = spoiled(dice, self._bodies[line])
        if dice.random() < 0.03:
            line = dice.choice(
                [b"GET /events", b"POST /", b"PUT /claims", b"POST /events/..", b"DELETE /%00", b"GET /health"]
            )
        return line + b"\n" + body

    def run(self, data: bytes) -> None:
        """Send it; the answer must be one that is promised."""
        line, _, body = data.replace(CLAIM.encode(), self._claim).partition(b"\n")
        method, _, path = line.decode("latin-1").partition(" ")
        answer = self._client.send(method or "POST", path or "/", body)
        if answer.status not in self.STATUSES:
            raise Wrong(f"answered with {answer.status}")

    def check(self) -> None:
        """The books must account for it, and a good request after it must be answered."""
        if not self.bridge.books.as_dict()["balanced"]:
            raise Wrong(UNACCOUNTED)
        self._numbers += 1
        if self._numbers % REAL_EACH == 0:
            answer = self._client.send("POST", "/events", _real(self._numbers))
            if answer.status != HTTPStatus.OK or answer.json.get("processed") != 1:
                raise Wrong(f"a good request after it was answered with {answer.status}")


class ConsolePages:
    """Forms and addresses of the console, sent by an operator who is logged in."""

    STATUSES: Final = frozenset({200, 303, 307, 400, 403, 404, 405, 413, 415, 429})
    #: A form without our token must change nothing, whatever is in it.
    REFUSED: Final = frozenset({303, 307, 400, 403, 404, 405, 413, 415, 429})

    def __init__(self) -> None:
        """Make requests to every page."""
        self._place: Any = None
        self._numbers = 0
        self._looks = [
            b"/", b"/deliveries?only=dead,failed&handler=crm", b"/dead?handler=crm&reason=no+such&topic=v2.*&after=0",
            b"/dead/" + KEY.encode(), b"/about/" + b"0" * 64, b"/about/call-31/save", b"/event/" + KEY.encode(),
            b"/event/call-31/save", b"/requests?after=1", b"/requests/00000000000001-0123456789ab", b"/handlers",
            b"/doctor", b"/log?before=1", b"/console.css", b"/login?next=/console/log",
        ]  # fmt: skip
        self._forms = [
            b"/find\nwhat=call-31", b"/dead/confirm\nwhat=discard&key=" + KEY.encode(),
            b"/dead/do\nwhat=redrive&id=1-2",
            b"/dead/confirm\nwhat=redrive&all=1&handler=crm&reason=no+such&seen=1", b"/handlers/confirm\nhandler=crm",
            b"/requests/00000000000001-0123456789ab/cancel\n", b"/handlers/pause\nhandler=desk",
            b"/handlers/resume\nhandler=desk", b"/login\nkey=wrong&next=/console/log",
        ]  # fmt: skip

    def renew(self) -> None:
        """Open a console with a dead letter, and log in."""
        from console.visiting import KEYS, OPERATOR, Place
        from oncebridge.ledgers.memory import MemoryLedger

        self.close()
        self._place = Place(MemoryLedger(), **KEYS)
        (self._key,) = self._place.letters(1)
        self._person = self._place.person(OPERATOR)
        self._token = self._person.token()

    def close(self) -> None:
        """End the thread that it runs in."""
        if self._place is not None:
            self._place.close()
            self._place = None

    def normal(self, size: int) -> bytes:
        """Ask for the first page at a long address."""
        return b"/?only=" + b"a" * size

    def make(self, dice: random.Random) -> bytes:
        """Spoil an address, or a form; one in four has no token."""
        if dice.random() < 0.4:
            return spoiled(dice, self._looks, as_json=False).replace(b"\n", b"")
        token = b"" if dice.random() < 0.25 else b"&token=" + OF_FORM.encode()
        return spoiled(dice, self._forms, as_json=False) + token

    def run(self, data: bytes) -> None:
        """Send it; the answer must be one that is promised."""
        filled = data.replace(KEY.encode(), self._key.encode()).replace(OF_FORM.encode(), self._token.encode())
        line, has_form, form = filled.partition(b"\n")
        path = f"/console{line.decode('latin-1')}"
        answer = self._person.post(path, raw=form) if has_form else self._person.get(path)
        is_ours = not has_form or self._token.encode() in form
        if answer.status not in (self.STATUSES if is_ours else self.REFUSED):
            raise Wrong(f"answered with {answer.status}")

    def check(self) -> None:
        """Pages must still be shown."""
        self._numbers += 1
        if self._numbers % REAL_EACH == 0:
            from console.visiting import OPERATOR

            person = self._place.person(OPERATOR) if self._person.get("/").status != HTTPStatus.OK else self._person
            if person.get("/").status != HTTPStatus.OK:
                raise Wrong("the first page is not shown after it")


class SettingsFile:
    """A file of settings, and variables."""

    def __init__(self) -> None:
        """Take the samples of the documentation, and one of everything."""
        self._file = Path(f"fuzzed-{os.getpid()}.toml")
        self._samples = [
            b'ledger = "sqlite:///once.db"\nlease_seconds = 30\napi_keys = ["env:HOME"]\nunhandled = "dead"\n',
            b'secret_file = "secret"\nallowed_orgs = ["5b1e6f0a-6f0c-4d57-9c4c-0d6a3a1f7e11"]\nretention_days = 30\n',
            b'[retry]\nattempts = 12\ncap_seconds = 20\n[sinks.board]\nurl = "https://board.example/hook"\n',
            b'[sinks.board]\nurl = "https://board.example/hook"\n[sinks.board.retry]\nattempts = 5\n',
            b'[sinks.calls]\ntopics = ["v2.users.*"]\ntable = "calls"\nwrite = "newest"\nkey = ["id"]\n',
            b'[sinks.calls]\ntable = "calls"\n[sinks.calls.columns]\nid = "event.conversation_id"\n',
            b'[sinks.clean]\nbus = "clean"\n[sinks.work]\nqueue = "https://sqs.eu-west-2.amazonaws.com/1/work.fifo"\n',
            b'[topics."Changed"]\nkind = "state"\nentity = "conversation_id"\ntime = "updated_at"\nstale = true\n',
            b'[topics."Changed"]\nexplicit_id = "event_id"\nexclude = ["trace", "participants[].score"]\n',
            b'[envelope]\nid = "eventId"\nsource = "from"\ndetail_type = "what"\ndetail = "payload"\n',
            b"[serve]\nport = 8080\nworkers = 2\nbody_bytes_max = 1000000\nread_within_seconds = 1\n",
            b'[console]\noperator_keys = ["env:HOME"]\nreader_keys = ["env:PATH"]\nsession_minutes = 20\n',
        ]
        self._variables = [
            b"ONCEBRIDGE_LEASE_SECONDS=30", b"ONCEBRIDGE_LEDGER=redis://cache:6379/0", b"ONCEBRIDGE_API_KEYS=env:HOME",
            b"DOWNSTREAM_URL=https://crm.example/events", b"REDIS_HOST=cache",
        ]  # fmt: skip

    def renew(self) -> None:
        """Keep nothing anyway."""

    def check(self) -> None:
        """Loading leaves nothing behind."""

    def close(self) -> None:
        """Remove the file."""
        self._file.unlink(missing_ok=True)

    def normal(self, size: int) -> bytes:
        """Write a usual file, with as many sinks as it takes."""
        sink = '[sinks.sink{}]\nurl = "https://board{}.example/hook"\n'
        return b"\x00" + "".join(sink.format(number, number) for number in range(max(1, size // 60))).encode()

    def make(self, dice: random.Random) -> bytes:
        """Spoil a variable or none, and a file."""
        lines = [spoiled(dice, self._variables, as_json=False)] if dice.random() < 0.4 else []
        file = spoiled(dice, self._samples, as_json=False) if dice.random() < 0.8 else b""
        return b"\n".join(lines).replace(b"\x00", b"") + b"\x00" + file

    def run(self, data: bytes) -> None:
        """Load them: settings come of it, or an error that says what to change."""
        lines, _, file = data.partition(b"\x00")
        self._file.write_bytes(file)
        variables = {
            name: value
            for name, mark, value in (
                line.decode("utf-8", "surrogateescape").partition("=") for line in lines.splitlines()
            )
            if name and mark and "\x00" not in value
        }
        try:
            with mock.patch.dict(os.environ, variables):
                if not isinstance(load_settings(self._file), Settings):
                    raise Wrong("no settings came of it")
        except ConfigurationError:
            pass


TARGETS: Final[dict[str, type[Any]]] = {
    "parser": Parser,
    "unwrapper": Unwrapper,
    "captures": Captures,
    "http": HTTP,
    "console": ConsolePages,
    "settings": SettingsFile,
}
