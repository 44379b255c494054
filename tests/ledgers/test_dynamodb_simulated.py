"""The DynamoDB ledger where an emulator shows nothing: throttles, lost replies, races in order, wrong dates."""

import random
import secrets
import threading

import botocore.exceptions
import pytest
from msgspec.structs import replace

from ledgers.dynamodb_simulation import NeverWaits, OnSimulation, SimulatedDynamoDB, cancelled, date_of, lost, refused
from oncebridge.claim import (
    Ask,
    Letter,
    Outcome,
    Settlement,
    Status,
    Verdict,
)
from oncebridge.errors import ClaimLost, LedgerRefused, LedgerUnavailable, OncebridgeError
from oncebridge.identity import Moment
from oncebridge.ledgers.dynamodb.items import stored, wrapped
from oncebridge.ledgers.dynamodb.server_time import DateTime
from oncebridge.ledgers.findings import Level
from oncebridge.ledgers.grants import Call, Record, settle_claim
from oncebridge.ledgers.protocol import Query
from oncebridge.testing.clock import ManualClock
from oncebridge.testing.ledger_contract import LedgerContract
from oncebridge.testing.ledger_contract.stage import claim_of, judged, settlement_of

LEASE_US = 60_000_000
SECOND_US = 1_000_000
LARGE = Letter(raw=b"\x00\xffm" * 350_000, reason="handler raised ValueError", detail="in full")
FACT = Ask(key=b"a fact", alone=True, topic="v2.a", envelope="e1")
STATE = replace(FACT, key=b"a state", entity=b"an entity", state=b"here", moment=Moment((1_767_000_000_000_000_000,)))


class Throttling:
    """Refuses three calls in ten before, and loses every tenth reply after, they took effect: by a seed."""

    ERRORS = (
        lambda: refused("ProvisionedThroughputExceededException"),
        lambda: refused("ThrottlingException"),
        lambda: refused("RequestLimitExceeded"),
        lambda: refused("InternalServerError"),
        lambda: refused("SerializationException"),
        lambda: cancelled("None", "TransactionConflict"),
        lambda: cancelled("ThrottlingError", "None"),
        lost,
    )

    def __init__(self, seed):
        """Draw from a seed."""
        self._draw = random.Random(seed)
        self._lock = threading.Lock()
        self.struck = 0

    def __call__(self, number, operation, *, after):
        """Strike, or not."""
        with self._lock:
            strikes = self._draw.random() < (0.1 if after else 0.3)
            make = lost if after else self._draw.choice(self.ERRORS)
            self.struck += strikes
        if strikes:
            raise make()


class OnServer(LedgerContract):
    """What a contract in simulation needs."""

    contenders = 8
    contended = 160
    # Time is given, so that these cost nothing; patience is measured by leases, and a machine may be busy.
    lease_us = 600_000_000
    brief_us = 60_000_000

    @pytest.fixture
    def new_ledger(self):
        """Make a table for a test, and as many handles onto it as wanted."""
        self.server = SimulatedDynamoDB()
        OnSimulation(self.server).migrate()
        self.server.on_request = self.trouble()
        return lambda clock: OnSimulation(self.server, clock)

    @property
    def notes(self):
        """Leave the rules on notes to the emulator: the simulation knows the expressions of claims alone."""
        pytest.skip("the simulation keeps no notes")

    @property
    def paged(self):
        """Leave the rules on pages to the emulator, too."""
        pytest.skip("the simulation is not read in pages")

    def trouble(self):
        """Return what goes wrong: nothing."""
        return lambda number, operation, after: None

    def stored_bytes(self):
        """Read every item."""
        return repr(self.server.items).encode()

    def write_effect(self, transaction, effect):
        """Put an item of the handler's own."""
        item = {"pk": {"S": "effect"}, "sk": {"S": effect}}
        transaction.append({"Put": {"TableName": "once", "Item": item}})

    def effects(self):
        """Read the handler's items."""
        return [sk for pk, sk in sorted(self.server.items) if pk == "effect"]


class TestSimulatedLedger(OnServer):
    """The contract where nothing goes wrong."""


class TestThrottledLedger(OnServer):
    """The contract where three calls in ten are refused, and every tenth reply is lost."""

    def trouble(self):
        """Strike by a seed that is the same in every run."""
        return Throttling(7)


# --- short words ------------------------------------------------------------------------------------------------


@pytest.fixture
def server():
    """Return a server with a table."""
    server = SimulatedDynamoDB()
    OnSimulation(server).migrate()
    return server


@pytest.fixture
def workers(server):
    """Open workers that go by the server's dates, each with a monotonic clock of its own."""
    opened = []

    def start(clock=None):
        ledger = OnSimulation(server, None if clock is None else clock)
        if clock is None:
            ledger._time = DateTime(Machine(server.clock, ahead_us=len(opened) * 977_000_123))
            ledger._clock = ledger._time._clock
        ledger.open(None)
        opened.append(ledger)
        return ledger

    yield start
    for ledger in opened:
        ledger.close()


class Machine(NeverWaits):
    """A worker's machine: its wall clock is nonsense, its monotonic one started at some time, and it may freeze."""

    def __init__(self, base, ahead_us=0):
        """Run beside the server's clock."""
        self._base = base
        self.ahead_us = ahead_us

    def now_us(self):
        """Return what nobody should go by."""
        return 0

    def monotonic_us(self):
        """Return time since this machine was switched on."""
        return self._base.now_us() - 1_700_000_000_000_000 + self.ahead_us

    def freeze(self, seconds):
        """Let time pass that this machine knows nothing of."""
        self.ahead_us -= int(seconds * SECOND_US)
        self._base.advance(seconds)


def answer(ledger, ask, nonce=None, lease_us=LEASE_US):
    """Ask for one event."""
    (answer,) = ledger.claim([ask], nonce=nonce or secrets.token_bytes(8), lease_us=lease_us)
    return judged(ledger, ask, answer)


def take(ledger, ask, lease_us=LEASE_US):
    """Claim one event that is to be had."""
    got = answer(ledger, ask, lease_us=lease_us)
    assert got.token
    return claim_of(ask, got)


def end(ledger, claim, outcome=Outcome.DONE, letter=None):
    """Settle one claim."""
    (ok,) = ledger.settle([settlement_of(claim, outcome, 0, letter)])
    return ok


def once(number, make, *, after):
    """Return what makes one request fail, before or after it took effect."""

    def strike(at, operation, *, after=False, when=after):
        if at == number and after is when:
            raise make()

    return strike


# --- every reply lost, every request refused ----------------------------------------------------------------------


def story(ledger):
    """Let one worker do everything that workers do; return what it was told."""
    told = []
    for ask in (FACT, STATE):
        claim = take(ledger, ask)
        told += ledger.extend([claim], lease_us=2 * LEASE_US)
        told.append(end(ledger, claim, Outcome.RETRY))
        claim = take(ledger, ask)
        told.append(claim.attempt)
        told.append(end(ledger, claim, Outcome.DEAD, LARGE))
        told += [entry.raw == LARGE.raw for entry in ledger.get(ask.key)]
        redrive = take(ledger, replace(ask, redrive=True))
        told.append(redrive.attempt)
        with ledger.transaction(settlement_of(redrive)) as writes:
            item = {"pk": {"S": "effect"}, "sk": {"S": ask.key.decode()}}
            condition = {"ConditionExpression": "attribute_not_exists(#pk)", "ExpressionAttributeNames": {"#pk": "pk"}}
            writes.append({"Put": {"TableName": "once", "Item": item, **condition}})
        told.append(answer(ledger, ask).verdict)
    told.append(answer(ledger, replace(STATE, key=b"an echo", echo_window_ns=1)).verdict)
    told.append(answer(ledger, replace(STATE, key=b"stale", state=b"away", moment=Moment((1,)))).verdict)
    return told


def places(server):
    """Return which items there are."""
    return sorted(server.items)


def told_with(trouble):
    """Tell the story on a new server, with trouble from its beginning."""
    server = SimulatedDynamoDB()
    OnSimulation(server).migrate()
    ledger = OnSimulation(server, ManualClock())
    ledger.open(None)
    server.requests.clear()
    server.on_request = trouble
    return story(ledger), server


EXPECTED = [True, True, 2, True, True, 1, Verdict.REDELIVERY] * 2 + [Verdict.ECHO, Verdict.STALE]


def test_the_story_has_an_end():
    """Without trouble the story ends as it should, and nothing is left of its letters."""
    told, server = told_with(lambda number, operation, after: None)
    assert told == EXPECTED
    assert not [place for place in places(server) if "letter#" in place[1] or place[0].startswith("letters#")]


@pytest.mark.parametrize(
    ("make", "after"),
    [
        (lost, True),
        (lost, False),
        (lambda: refused("ThrottlingException"), False),
        (lambda: refused("InternalServerError"), True),
        (lambda: cancelled("TransactionConflict", "None"), False),
    ],
)
def test_trouble_with_any_one_request_changes_nothing(make, after):
    """Whichever request is refused or its reply lost, the worker is told the same, and the table is the same."""
    told, calm = told_with(lambda number, operation, after: None)
    assert calm.requests
    for number in range(1, len(calm.requests) + 1):
        told, server = told_with(once(number, make, after=after))
        assert told == EXPECTED, f"request {number} of {len(calm.requests)}"
        assert places(server) == places(calm), f"request {number} of {len(calm.requests)}"


class Died(BaseException):
    """The end of a worker; nothing stops it."""


@pytest.mark.parametrize("after", [False, True])
def test_death_at_any_request_loses_nothing(after):
    """Wherever a worker dies, what is there can be read and is whole, and another gets the event done."""
    _, calm = told_with(lambda number, operation, after: None)
    assert calm.requests
    for number in range(1, len(calm.requests) + 1):
        server, clock = SimulatedDynamoDB(), ManualClock()
        OnSimulation(server).migrate()
        ledger = OnSimulation(server, clock)
        ledger.open(None)
        server.requests.clear()
        server.on_request = once(number, Died, after=after)
        with pytest.raises(Died):
            story(ledger)
        server.on_request = lambda number, operation, after: None
        _is_picked_up(server, clock)


def _is_picked_up(server, clock):
    other = OnSimulation(server, clock)
    other.open(None)
    clock.advance(2 * LEASE_US / SECOND_US + 1)
    for ask in (FACT, STATE):
        for entry in other.get(ask.key):
            assert entry.raw in (None, LARGE.raw)
        was_dead = [entry.status for entry in other.get(ask.key)] == [Status.DEAD]
        got = answer(other, replace(ask, redrive=was_dead))
        assert got.token or got.verdict in (Verdict.REDELIVERY, Verdict.ECHO)
        assert not got.token or end(other, claim_of(ask, got))
    clock.advance(7200)
    other.purge(older_than_us=10 * 86_400 * SECOND_US)
    assert not [place for place in places(server) if "letter#" in place[1] or place[0].startswith("letters#")]


# --- races in a chosen order ------------------------------------------------------------------------------------


def between(operation, act):
    """Return what lets something else happen just before the next such request."""
    waiting = [act]

    def strike(number, name, after):
        if name == operation and not after and waiting:
            waiting.pop()()

    return strike


def test_an_entity_claimed_in_between_is_busy(server, workers):
    """Who has read an entity, and finds it claimed by another when writing, is told that it is busy."""
    one, other = workers(), workers()
    server.on_request = between("put_item", lambda: take(other, replace(STATE, key=b"quicker")))
    assert answer(one, STATE).verdict is Verdict.BUSY


def test_a_newer_state_in_between_makes_stale(server, workers):
    """Who has read an entity is not granted an older state when a newer one was done before it could write."""
    one, other = workers(), workers()
    newer = replace(STATE, key=b"newer", state=b"away", moment=Moment((1_767_000_000_001_000_000,)))
    end(one, take(one, replace(STATE, key=b"first", state=b"gone")))
    server.on_request = between("update_item", lambda: end(other, take(other, newer)))
    assert answer(one, STATE).verdict is Verdict.STALE


def test_stale_is_not_recorded_on_an_entity_that_has_changed(server, workers):
    """A verdict hangs on the entity that was read: if that has changed before it is recorded, it is made anew."""
    one, other = workers(), workers()
    newest = replace(STATE, key=b"newest", moment=Moment((1_767_000_000_002_000_000,)))
    end(one, take(one, newest))
    server.on_request = between("update_item", lambda: take(other, replace(newest, key=b"other", state=b"b")))
    assert answer(one, STATE).verdict is Verdict.BUSY
    assert one.get(STATE.key) == []


def test_an_extension_in_between_does_not_disturb_a_settle(server, workers):
    """The background may extend a state while it is being settled: the settle is written at the first try."""
    one = workers()
    claim = take(one, STATE)
    server.on_request = between("transact_write_items", lambda: one.extend([claim], lease_us=2 * LEASE_US))
    server.requests.clear()
    assert end(one, claim)
    assert server.operations["transact_write_items"] == 1


@pytest.mark.parametrize("ask", [FACT, STATE])
def test_an_extension_that_was_held_up_takes_nothing_back(server, workers, ask):
    """Two extensions that arrive in the wrong order leave the longer lease."""
    one = workers()
    claim = take(one, ask)
    server.clock.advance(10)
    server.requests.clear()
    one.extend([claim], lease_us=LEASE_US)
    ((operation, held_up),) = server.requests
    server.clock.advance(10)
    one.extend([claim], lease_us=LEASE_US)
    (before,) = one.get(ask.key)
    with pytest.raises(botocore.exceptions.ClientError):
        server.serve(operation, held_up)
    assert one.get(ask.key) == [before]


def test_a_claim_that_was_held_up_changes_nothing(server, workers):
    """A claim that arrives after its own repeat, or after the event was done, is refused by its condition."""
    one = workers()
    server.requests.clear()
    claim = take(one, FACT)
    ((operation, held_up),) = server.requests
    for _ in range(2):
        with pytest.raises(botocore.exceptions.ClientError):
            server.serve(operation, held_up)
        assert end(one, claim)
    assert answer(one, FACT).verdict is Verdict.REDELIVERY


def test_an_item_that_was_made_anew_is_another(server, workers):
    """Who has seen an item that was forgotten and made again meanwhile does not write over the new one."""
    one, other = workers(), workers()
    end(one, take(one, FACT), Outcome.RETRY)

    def remake():
        server.items.pop(("event#" + FACT.key.hex(), "handler#"))
        server.clock.advance(1)
        other.extend([take(other, FACT)], lease_us=2 * LEASE_US)  # as many writes as the item before had seen

    server.on_request = between("update_item", remake)
    assert answer(one, FACT).verdict is Verdict.BUSY


def test_a_letter_removed_in_between_is_not_shown_in_half(server, workers):
    """Who reads a large letter that is discarded meanwhile sees it gone, not cut."""
    one, other = workers(), workers()
    end(one, take(one, FACT), Outcome.DEAD, LARGE)
    redrive = take(other, replace(FACT, redrive=True))
    server.on_request = between("get_item", lambda: end(other, redrive, Outcome.DISCARD))
    (entry,) = one.get(FACT.key)
    assert (entry.status, entry.raw) == (Status.DISCARD, None)


# --- what is written is what the rules say ------------------------------------------------------------------------


@pytest.mark.parametrize("had_letter", [False, True])
@pytest.mark.parametrize("outcome", list(Outcome))
def test_a_settle_without_reading_is_what_the_rules_say(server, workers, outcome, had_letter):
    """The one write that ends a fact makes of its record exactly what the pure rules make of it."""
    one = workers(server.clock)
    place = ("event#" + FACT.key.hex(), "handler#")
    if had_letter:
        end(one, take(one, FACT), Outcome.DEAD, LARGE)
    claim = take(one, replace(FACT, redrive=had_letter))
    before = stored(server.items[place], 0).record
    letter = LARGE if outcome is Outcome.DEAD else None
    settlement = Settlement(claim, outcome, 5 * SECOND_US, letter)
    server.clock.advance(1)
    assert one.settle([settlement]) == [True]
    expected = settle_claim(settlement, before, None, server.clock.now_us()).record
    assert isinstance(expected, Record)
    assert stored(server.items[place], 0).record == expected


# --- time -------------------------------------------------------------------------------------------------------


def test_the_time_is_within_its_bounds():
    """However answers dawdle, and wherever in its second the server is, its time lies between the bounds."""
    draw = random.Random(5)
    base = ManualClock()
    clock = Machine(base, ahead_us=12_345)
    time = DateTime(clock)
    for _ in range(2000):
        base.advance(draw.choice((0.001, 0.1, 3, 60)) * draw.random())
        sent_us = clock.monotonic_us()
        base.advance(draw.random() * draw.choice((0.01, 2)))
        date = date_of(base.now_us())
        base.advance(draw.random() * draw.choice((0.01, 2)))
        time.hear(date, sent_us)
        earliest_us, latest_us = time.bounds()
        assert earliest_us <= base.now_us() <= latest_us
    assert time.contradictions == 0
    assert latest_us - earliest_us < 1.5 * SECOND_US


def test_a_drifting_clock_stays_within_the_bounds():
    """A monotonic clock that loses a second in an hour does not make the bounds wrong, however long it is quiet."""
    time = DateTime(clock := ManualClock(0))
    time.hear(date_of(10**15), clock.monotonic_us())
    clock.advance(3600)
    earliest_us, latest_us = time.bounds()
    assert earliest_us <= 10**15 + 3599 * SECOND_US
    assert latest_us >= 10**15 + 3601 * SECOND_US


@pytest.mark.parametrize("date", [None, "", "yesterday", "Thu, 32 Jan 2026 00:00:00 GMT"])
def test_what_is_no_date_is_not_believed(date):
    """An answer without a readable date teaches nothing; before the first one, nothing can be judged."""
    time = DateTime(ManualClock())
    time.hear(date, 0)
    with pytest.raises(LedgerUnavailable, match="no Date"):
        time.bounds()


@pytest.mark.parametrize("ask", [FACT, STATE])
def test_nobody_takes_over_before_a_lease_is_over(server, workers, ask):
    """Whenever in a second two workers with wrong clocks come, neither steals; each takes over soon after the end."""
    for number in range(8):
        server.clock.advance(0.13)
        one, other = workers(), workers()
        one_ask = replace(ask, key=b"%d" % number, entity=ask.entity and b"%d" % number)
        take(one, one_ask, lease_us=10 * SECOND_US)
        granted_us = server.clock.now_us()
        while answer(other, one_ask).verdict is Verdict.BUSY:
            server.clock.advance(0.1)
        assert 10 * SECOND_US <= server.clock.now_us() - granted_us <= 14.2 * SECOND_US


def test_one_wrong_date_steals_nothing(server, workers):
    """An answer that is an hour ahead, among others that are right, does not end a lease."""
    one, other = workers(), workers()
    take(one, FACT)
    server.skip_us = 3600 * SECOND_US
    assert answer(other, FACT).verdict is Verdict.BUSY
    server.skip_us = 0
    assert answer(other, FACT).verdict is Verdict.BUSY
    server.clock.advance(LEASE_US / SECOND_US + 4)
    assert answer(other, FACT).token


@pytest.mark.parametrize("ask", [FACT, STATE])
def test_a_machine_that_was_frozen_claims_for_a_whole_lease(server, workers, ask):
    """A worker that slept without noticing learns the time from its claim's answer, and its lease runs from then."""
    one, other = workers(), workers()
    one._clock.freeze(3600)
    take(one, ask)
    server.clock.advance(LEASE_US / SECOND_US - 1)
    assert answer(other, ask).verdict is Verdict.BUSY


@pytest.mark.parametrize("ask", [FACT, STATE])
def test_a_machine_that_was_frozen_extends_for_a_whole_lease(server, workers, ask):
    """An extension by a worker that slept without noticing runs from the time it learns, not from when it slept."""
    one, other = workers(), workers()
    claim = take(one, ask)
    one._clock.freeze(50)
    assert one.extend([claim], lease_us=LEASE_US) == [True]
    server.clock.advance(LEASE_US / SECOND_US - 1)
    assert answer(other, ask).verdict is Verdict.BUSY


def test_a_frozen_machine_that_is_overtaken_holds_nothing(server, workers):
    """If another took over before the lease could be put right, the frozen one is told that the event is busy."""
    one, other = workers(), workers()
    one._clock.freeze(3600)
    server.on_request = between("update_item", lambda: take(other, FACT))
    assert answer(one, FACT).verdict is Verdict.BUSY


# --- what has expired -------------------------------------------------------------------------------------------


def test_what_has_expired_is_forgotten_though_it_is_there(server, workers):
    """DynamoDB may take days to remove what has expired: a duplicate after the retention is fresh all the same."""
    one = workers(server.clock)
    end(one, take(one, FACT))
    end(one, take(one, STATE))
    older = replace(STATE, key=b"older", moment=Moment((1,)))
    server.clock.advance(30 * 86_400 - 1)
    assert [answer(one, ask).verdict for ask in (FACT, STATE)] == [Verdict.REDELIVERY] * 2
    server.clock.advance(2)
    assert one.get(FACT.key) == []
    assert list(one.scan(Query())) == []
    assert one.counts() == {}
    claims = [take(one, ask) for ask in (FACT, older)]
    assert [end(one, claim) for claim in claims] == [True, True]
    assert answer(one, FACT).verdict is Verdict.REDELIVERY


def test_only_what_is_settled_expires(server, workers):
    """Claims, retries and dead letters have no time to live, nor has an entity that is held."""
    one = workers(server.clock)
    end(one, take(one, replace(FACT, key=b"done")))
    end(one, take(one, replace(FACT, key=b"retry")), Outcome.RETRY)
    end(one, take(one, replace(FACT, key=b"dead")), Outcome.DEAD, LARGE)
    take(one, STATE)
    expiring = [place for place, item in server.items.items() if "expires" in item]
    assert expiring == [("event#" + b"done".hex(), "handler#")]


# --- trouble, in words --------------------------------------------------------------------------------------------


def failing(server, make):
    """Let every request fail from now on."""

    def strike(number, operation, after):
        raise make()

    server.on_request = strike


def test_patience_ends_before_the_lease(server, workers):
    """Where throttling does not end, a verb gives up before the lease that it asked for would be over."""
    one = workers(server.clock)
    claim = take(one, FACT)
    one._connection.clock = clock = ManualClock()
    failing(server, lambda: refused("ThrottlingException"))
    for verb in (
        lambda: answer(one, replace(FACT, key=b"other"), lease_us=10 * SECOND_US),
        lambda: one.extend([claim], lease_us=10 * SECOND_US),
        lambda: end(one, claim),
    ):
        before_us = clock.monotonic_us()
        with pytest.raises(LedgerUnavailable, match=r"once in simulated.*throttled.*ThrottlingException"):
            verb()
        assert SECOND_US < clock.monotonic_us() - before_us <= 10 * SECOND_US


def test_every_error_of_botocore_becomes_ours(server, workers):
    """Whatever boto3 may raise, today or unheard of, a verb raises an error of Oncebridge's own."""
    one = workers(server.clock)
    one._connection.clock = ManualClock()
    kinds = [
        kind
        for kind in vars(botocore.exceptions).values()
        if isinstance(kind, type) and issubclass(kind, Exception) and kind is not botocore.exceptions.ClientError
    ]
    assert len(kinds) > 80
    for kind in [*kinds, ValueError, OSError, KeyError]:
        failing(server, lambda kind=kind: kind.__new__(kind))
        with pytest.raises(OncebridgeError):
            answer(one, FACT)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: refused("AccessDeniedException"), "allow it dynamodb:PutItem on this table"),
        (lambda: refused("ExpiredTokenException"), "have expired"),
        (lambda: refused("UnrecognizedClientException"), "does not accept the credentials"),
        (lambda: refused("InvalidSignatureException"), "clock is right"),
        (lambda: refused("ResourceNotFoundException"), "oncebridge migrate --ledger 'dynamodb://once"),
        (lambda: refused("ValidationException"), "string keys pk and sk"),
        (botocore.exceptions.NoCredentialsError, "no AWS credentials were found"),
    ],
)
def test_what_must_be_changed_is_said(server, workers, make, words):
    """What will not pass by itself is refused at once, with what to do about it."""
    one = workers(server.clock)
    server.requests.clear()
    failing(server, make)
    with pytest.raises(LedgerRefused, match=words) as raised:
        answer(one, FACT)
    assert len(server.requests) == 1
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__, "what AWS answers to a wrong signature quotes the session's token"


def test_a_transaction_refused_for_rights_names_them(server, workers):
    """What a state's transaction needs to be allowed is named by what IAM calls it."""
    one = workers(server.clock)

    def strike(number, operation, after):
        if operation == "transact_write_items":
            raise refused("AccessDenied")

    claim = take(one, STATE)
    server.on_request = strike
    with pytest.raises(LedgerRefused, match="dynamodb:PutItem and dynamodb:UpdateItem"):
        end(one, claim)


def test_an_entity_of_the_first_schema_is_read_as_it_was_written(server, workers):
    """Its newest state and its line are known: an echo and a stale state are recognised; then it has the new form."""
    one = workers(server.clock)
    moment = b'{"times":[1767000000000000000],"version":null,"echoes":true}'
    place = ("entity#" + STATE.entity.hex(), "entity")
    server.items[place] = wrapped(
        {
            "pk": place[0],
            "sk": place[1],
            "rev": 1,
            "token": 5,
            "changed_us": 1,
            "unsure": False,
            "state": STATE.state,
            "moment": moment,
            "line": moment,
            "newest": b"the newest",
            "topic": "v2.a",
        }
    )
    (shown,) = one.scan(Query(entities=True))
    assert (shown.key, shown.topic) == (b"the newest", "v2.a")
    assert answer(one, replace(STATE, key=b"an echo", echo_window_ns=1)).verdict is Verdict.ECHO
    assert answer(one, replace(STATE, key=b"stale", state=b"away", moment=Moment((1,)))).verdict is Verdict.STALE
    assert "data" in server.items[place]
    assert "line" not in server.items[place]
    assert take(one, replace(STATE, key=b"news", state=b"away")).token > 5


def test_workers_never_scan(server, workers):
    """Whatever a worker does, it reads no more than the items of its own events."""
    one = workers(server.clock)
    server.requests.clear()
    story(one)
    assert set(server.operations) <= {
        "get_item",
        "put_item",
        "update_item",
        "delete_item",
        "query",
        "transact_get_items",
        "transact_write_items",
    }


def test_a_transaction_commits_once(server, workers):
    """A transaction that is repeated because its reply was lost, and the claim settled, has one effect and no error."""
    one = workers(server.clock)
    claim = take(one, FACT)
    server.requests.clear()
    server.on_request = once(2, lost, after=True)
    count = {"UpdateExpression": "SET #n = #n + :n", "ExpressionAttributeNames": {"#n": "n"}}
    server.items["effect", "one"] = {"pk": {"S": "effect"}, "sk": {"S": "one"}, "n": {"N": "0"}}
    with one.transaction(settlement_of(claim)) as writes:
        key = {"pk": {"S": "effect"}, "sk": {"S": "one"}}
        values = {"ExpressionAttributeValues": {":n": {"N": "1"}}}
        writes.append({"Update": {"TableName": "once", "Key": key, **count, **values}})
    assert server.operations["transact_write_items"] == 2
    assert server.items["effect", "one"]["n"] == {"N": "1"}
    with pytest.raises(ClaimLost), one.transaction(settlement_of(claim)):
        pass


def test_calls_are_made_by_the_right_time(server, workers):
    """Others' leases are judged by the earliest that it can be now, and own leases run from the latest."""
    one = workers()
    earliest_us, latest_us = one._time.bounds()
    assert latest_us > earliest_us
    call = one._connection.calling(b"n", LEASE_US)
    assert call == Call(b"n", LEASE_US + latest_us - earliest_us, earliest_us)


# --- examination ------------------------------------------------------------------------------------------------


def examined(ledger):
    """Return the findings by subject."""
    return {finding.subject: finding for finding in ledger.examine()}


def test_replicas_weaken_the_promise(server, workers):
    """A global table is found: between regions the last writer wins, so two may claim one event."""
    one = workers()
    assert examined(one)["replicas"].level is Level.GOOD
    server.described["Replicas"] = [{"RegionName": "eu-west-1"}]
    found = examined(one)["replicas"]
    assert (found.level, found.weakens) == (Level.WRONG, "two regions may claim the same event in the same second")
    assert "eu-west-1" in found.found
    server.described["MultiRegionConsistency"] = "STRONG"
    assert examined(one)["replicas"].level is Level.WARNING


def test_what_may_not_be_done_is_found(server, workers):
    """Rights that a worker lacks are named; those that only an examination needs are no reason to stop it."""
    one = workers()
    denied = {"describe_table", "describe_time_to_live", "describe_continuous_backups", "delete_item"}

    def strike(number, operation, after):
        if operation in denied:
            raise refused("AccessDeniedException")

    server.on_request = strike
    before = dict(server.items)
    found = examined(one)
    assert found["permissions"].level is Level.WRONG
    assert found["permissions"].fix == "allow dynamodb:DeleteItem on this table"
    assert {found[name].level for name in ("table", "time to live", "recovery")} == {Level.WARNING}
    assert server.items == before, "to look changes nothing"


def test_a_clock_that_is_wrong_is_found(server, workers):
    """A machine whose clock is far off is told so: leases do not go by it, but signatures do."""
    assert examined(workers())["clock"].level is Level.WARNING
