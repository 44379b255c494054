"""Failures between client, service and ledger lose nothing: a client that gets 503 sends the same request again."""

import asyncio
import threading

import pytest
from msgspec.structs import replace

import oncebridge.bridge
from oncebridge.claim import Status
from oncebridge.errors import SaysWhy
from oncebridge.handlers import Handler
from oncebridge.identity import key_bytes
from oncebridge.ledgers.memory import MemoryLedger
from oncebridge.retry import RetryPolicy
from oncebridge.service import claims
from oncebridge.service.app import make_application
from oncebridge.testing.faults import Fault, faulty
from payloads import ACW, AUDITS, TIME_MS, envelope, raw
from servers.process import wait_until
from service.clients import BRIEF_S, PATIENT

EVENT = envelope(ACW)


def fact(number):
    """Build one of many events."""
    return envelope(ACW, {"eventTime": TIME_MS + number})


def is_come_again(answered):
    """Tell whether an answer asks for the same once more, and says nothing of the ledger's whereabouts."""
    return (
        answered.status == 503
        and int(answered.headers["retry-after"]) >= 1
        and answered.headers["content-type"] == "application/problem+json"
        and "on cue" not in answered.json["detail"]
    )


def status_of(ledger, claimed):
    """Return what the ledger says of an event."""
    (entry,) = ledger.get(key_bytes(claimed["key"]))
    return entry.status


# --- the ledger is out of reach ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "path", "more"),
    [
        ("open", "/claims", {"event": EVENT}),
        ("claim", "/claims", {"event": EVENT}),
        ("claim", "/claims", {"event": "no event"}),
        ("extend", "/claims/extend", {}),
        ("settle", "/claims/settle", {"outcome": "done"}),
        ("settle", "/claims/settle", {"outcome": "dead", "event": EVENT}),
    ],
)
def test_while_the_ledger_is_out_of_reach_everything_is_to_be_sent_again(place, verb, path, more):
    """The answer is 503 with Retry-After, never anything by which a client would give up."""
    claimed = place.desk().claim(EVENT)
    desk = place.desk(faulty(place.new_ledger(), Fault(verb, call=0)))
    claim = {} if path == "/claims" else {"claim": claimed["claim"]}
    for _ in range(5):  # also once the breaker is open
        assert is_come_again(desk.send(path, **claim, **more))
    assert status_of(place.new_ledger(), claimed) is Status.CLAIMED


@pytest.mark.parametrize("after", [False, True], ids=["before", "after it took effect"])
@pytest.mark.parametrize("verb", ["claim", "extend", "settle"])
def test_a_short_outage_is_not_noticed(place, verb, after):
    """A call that had no luck once is repeated inside, whether or not it took effect."""
    desk = place.desk(faulty(place.new_ledger(), Fault(verb, after=after)))
    claimed = desk.claim(EVENT)
    assert (claimed["verdict"], claimed["attempt"]) == ("fresh", 1)
    assert desk.extend(claimed)
    assert desk.settle(claimed, "retry", EVENT) == "retry"
    assert desk.claim(EVENT)["attempt"] == 2


def test_a_lost_settle_is_settled_again(place):
    """A client that got 503 sends the same request again, and gets ok."""
    ledger = faulty(place.new_ledger(), *(Fault("settle", call=call, after=True) for call in (1, 2, 3)))
    desk = place.desk(ledger)
    claimed = desk.claim(EVENT)
    assert is_come_again(desk.send("/claims/settle", claim=claimed["claim"], outcome="done"))
    assert desk.settle(claimed, "done") == "done"
    assert desk.bridge.books.as_dict()["processed"] == 1


def test_without_the_ledgers_secret_no_claim_is_believed(place):
    """While the ledger was never reached nothing can be checked, so nothing is refused either."""
    desk = place.desk(faulty(place.new_ledger(), Fault("open", call=0)))
    assert is_come_again(desk.send("/claims/extend", claim="whatever"))


# --- dead letters are sent on --------------------------------------------------------------------------------


class Copies:
    """Takes copies of dead letters, or fails."""

    def __init__(self):
        """Take them."""
        self.taken = []
        self.fails = False

    def __call__(self, copy):
        """Take one."""
        if self.fails:
            raise SaysWhy("the queue is not there")
        self.taken.append(copy)


@pytest.fixture
def copies(monkeypatch):
    """Send dead letters on to a list."""
    found = Copies()
    copier = Handler(pattern="*", function=found, name="dead letters to the queue", persistent=True)
    monkeypatch.setattr(oncebridge.bridge, "make_copiers", lambda *_: (copier,))
    return found


def test_a_dead_letter_is_sent_on_before_ok_is_said(place, copies):
    """While it cannot be sent the client gets 503 and settles again; in the end it is sent once."""
    desk = place.desk()
    claimed = desk.claim(EVENT, handler="desktop")
    copies.fails = True
    request = {"claim": claimed["claim"], "outcome": "dead", "event": EVENT}
    answered = desk.send("/claims/settle", **request)
    assert is_come_again(answered)
    assert answered.json["detail"].startswith("kept as a dead letter, but not sent on yet: the queue is not there")
    assert is_come_again(desk.send("/claims", event=EVENT, handler="desktop"))
    copies.fails = False
    assert [desk.settle(claimed, "dead", EVENT) for _ in range(2)] == ["dead", "dead"]
    (copy,) = copies.taken
    assert (copy.key, copy.handler, copy.reason) == (claimed["key"], "desktop", "its handler gave it up at attempt 1")
    books = desk.bridge.books.as_dict()
    assert (books["received"], books["dead"], books["retrying"]) == (2, 1, 1)


@pytest.mark.parametrize("kind", ["unreadable", "conflict", "used up", "duplicate"])
def test_nothing_that_died_is_acknowledged_before_it_is_sent_on(place, copies, kind):
    """Whichever way a delivery becomes a dead letter, or turns out to be one already, its copy comes first."""
    desk = place.desk(retry=RetryPolicy(attempts=1))
    event, path = EVENT, "/claims"
    if kind == "unreadable":
        event = "no event"
    elif kind == "conflict":
        desk.claim(envelope(AUDITS))
        event = envelope(AUDITS, {"action": "Something else"})
    elif kind == "used up":
        desk.claim(event, lease_seconds=BRIEF_S)
        place.clock.advance(1)
    else:
        copies.fails = True
        desk.send("/claims/settle", claim=desk.claim(event)["claim"], outcome="dead", event=event)
    copies.fails = True
    assert is_come_again(desk.send(path, event=event))
    copies.fails = False
    answered = desk.send(path, event=event)
    assert answered.status == (400 if kind == "unreadable" else 200)
    assert answered.status == 400 or answered.json["acknowledge"]
    assert len(copies.taken) == 1


# --- too late, too many, too early ---------------------------------------------------------------------------


class Slow(MemoryLedger):
    """A ledger that grants claims, but answers only when it may."""

    def __init__(self, clock):
        """Hold back every answer."""
        super().__init__(clock)
        self.may_go_on = threading.Event()
        self.granted = 0

    def claim(self, asks, *, nonce, lease_us):
        """Grant, and answer late."""
        answers = super().claim(asks, nonce=nonce, lease_us=lease_us)
        self.granted += 1
        self.may_go_on.wait(60)
        return answers


def test_a_claim_that_comes_too_late_is_given_back(place):
    """Its client has got 503, so it would never be settled."""
    ledger = Slow(place.clock)
    desk = place.desk(ledger, serve=replace(PATIENT, answer_within_seconds=0.1))
    answered = desk.send("/claims", event=EVENT, lease_seconds=600)
    assert is_come_again(answered)
    wait_until(lambda: ledger.granted == 1, "the claim to be granted")
    ledger.may_go_on.set()
    wait_until(lambda: ledger.counts().get(Status.RELEASE) == 1, "the claim to be given back")


class Gone:
    """A client that disconnects, on command or when its answer comes."""

    def __init__(self, event, *, hears=False):
        """Ask for an event."""
        self._body = b'{"event":%s}' % raw(event)
        self._hears = hears
        self.goes = asyncio.Event()

    async def receive(self):
        """Send the request, and then the news."""
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self.goes.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        """Be there for the answer, or not."""
        if not (self._hears or self.goes.is_set()):
            raise OSError("the client has gone")

    async def ask(self, application):
        """Ask, and leave once it was answered."""
        scope = {"type": "http", "method": "POST", "path": "/claims", "headers": [], "http_version": "1.1"}
        await application({**scope, "query_string": b"", "root_path": ""}, self.receive, self.send)
        self.goes.set()


def test_a_claim_whose_answer_could_not_be_sent_is_given_back(place):
    """The event does not wait for the lease of a claim that no client knows of."""
    desk = place.desk()
    asyncio.run(Gone(EVENT).ask(make_application(desk.bridge)))
    assert desk.claim(EVENT)["verdict"] == "fresh"


def test_who_leaves_after_the_answer_keeps_the_claim(place):
    """Most clients close the connection then, and that says nothing."""
    desk = place.desk()
    asyncio.run(Gone(EVENT, hears=True).ask(make_application(desk.bridge)))
    assert desk.claim(EVENT)["verdict"] == "busy"


def test_who_leaves_while_it_waits_gets_no_claim(place):
    """A client that is less patient than the service does not take the event away from the others."""
    ledger = faulty(place.new_ledger())
    desk = place.desk(ledger, busy_wait_seconds=60, serve=replace(PATIENT, answer_within_seconds=600))
    claimed = desk.claim(EVENT)

    async def leave():
        client = Gone(EVENT)
        asking = asyncio.ensure_future(client.ask(make_application(desk.bridge)))
        await asyncio.to_thread(wait_until, lambda: ledger.calls["claim"] > 2, "it to be asked for again")
        client.goes.set()
        assert await asyncio.to_thread(desk.settle, claimed, "release") == "release"
        await asking

    asyncio.run(leave())
    assert desk.claim(EVENT)["verdict"] == "fresh"


def test_when_too_many_wait_the_next_is_told_so(place, monkeypatch):
    """Requests do not pile up behind a ledger that hangs."""
    monkeypatch.setattr(claims, "THREADS", 1)
    monkeypatch.setattr(claims, "WAITING_MAX", 2)
    ledger = Slow(place.clock)
    desk = place.desk(ledger, serve=PATIENT)
    waiting = [desk.client.start("POST", "/claims", _body(number)) for number in range(3)]
    wait_until(lambda: ledger.granted == 1, "the first to be asked for")
    answered = desk.client.send("POST", "/claims", _body(4))
    assert is_come_again(answered)
    assert answered.json["detail"] == "too much is waiting already"
    ledger.may_go_on.set()
    assert [one.result().json["verdict"] for one in waiting] == ["fresh"] * 3


def _body(number):
    return b'{"event":{"eventType":"note","eventId":"%d"}}' % number


def test_what_is_busy_is_waited_for(place):
    """Who asks while another is at it is answered when that one is done, if it does not take long."""
    ledger = faulty(place.new_ledger())
    desk = place.desk(ledger, busy_wait_seconds=60, serve=replace(PATIENT, answer_within_seconds=600))
    claimed = desk.claim(EVENT)
    waiting = desk.client.start("POST", "/claims", b'{"event":%s}' % raw(EVENT))
    wait_until(lambda: ledger.calls["claim"] > 2, "it to be asked for again")
    assert desk.settle(claimed, "done") == "done"
    assert waiting.result().json["verdict"] == "redelivery"


def test_what_stays_busy_is_answered_within_the_time_of_a_request(place, monkeypatch):
    """The answer is busy before the request would time out, and says when to ask again."""
    monkeypatch.setattr(claims, "WAITING_SHARE", 0.01)  # the rest is for a machine that is busy itself
    desk = place.desk(busy_wait_seconds=3600, serve=PATIENT)
    desk.claim(EVENT)
    answered = desk.send("/claims", event=EVENT)
    assert (answered.status, answered.json["verdict"]) == (200, "busy")
    assert answered.json["retry_in_seconds"] == 600


def test_a_service_that_stops_lends_nothing_more(place):
    """Earlier claims may still be settled there."""
    desk = place.desk()
    claimed = desk.claim(EVENT)
    desk.bridge.stop()
    wait_until(desk.bridge.stopping.is_set, "the service to be told")
    assert is_come_again(desk.send("/claims", event=fact(1)))
    assert desk.extend(claimed)
    assert desk.settle(claimed, "done") == "done"
