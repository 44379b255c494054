"""The DynamoDB ledger keeps the contract on an emulator of AWS, by real boto3 over HTTP, and what is its own."""

import secrets
from collections import Counter
from contextlib import closing, contextmanager
from unittest import mock

import botocore.exceptions
import pytest
from msgspec.structs import replace

from oncebridge.bridge import Bridge
from oncebridge.claim import Ask, Claim, Letter, Outcome, Settlement, Status, Verdict
from oncebridge.errors import (
    ClaimLost,
    ConfigurationError,
    HandlerWriteRefused,
    LedgerRefused,
    LedgerUnavailable,
    PermanentError,
)
from oncebridge.ledgers import ledger_from_url
from oncebridge.ledgers.dynamodb import search
from oncebridge.ledgers.dynamodb.ledger import DynamoDBLedger
from oncebridge.ledgers.dynamodb.letters import write_parts
from oncebridge.ledgers.dynamodb.lists import PARTS, lines
from oncebridge.ledgers.dynamodb.schema import META
from oncebridge.ledgers.dynamodb.table import PARALLEL
from oncebridge.ledgers.findings import Level
from oncebridge.ledgers.protocol import Examines, Query
from oncebridge.testing.clock import ManualClock
from oncebridge.testing.ledger_contract import LedgerContract
from oncebridge.testing.ledger_contract.stage import claim_of, judged, settlement_of
from servers import aws
from servers.process import free_port

CENTURY_US = 100 * 365 * 86_400 * 1_000_000
LEASE_US = 60_000_000
FACT = Ask(key=b"a fact", envelope="e1", topic="v2.a")
LARGE = Letter(raw=b"\x00\xffm" * 350_000, reason="handler raised ValueError", detail="in full")


class Shared:
    """A client that many ledgers use: it takes a tenth of a second to make, and the server knows no difference."""

    def __init__(self, client):
        """Take the client."""
        self._client = client

    def __getattr__(self, operation):
        """Pass every operation on."""
        return getattr(self._client, operation)

    def close(self):
        """Stay open: others still use it."""


class OnSharedClient(DynamoDBLedger):
    """A ledger that is given its client."""

    def __init__(self, client, table, clock=None, **settings):
        """Take the client instead of an address."""
        super().__init__(table, clock, **settings)
        self._client = Shared(client)

    def _connect(self):
        return self._client


@pytest.fixture(scope="module")
def client(ministack):
    """Return a client as impatient as the ledger's own, with a connection for every contender."""
    retries = {"total_max_attempts": 1, "mode": "standard"}
    client = ministack.client("dynamodb", retries=retries, read_timeout=5, max_pool_connections=6 * PARALLEL)
    yield client
    client.close()


class TestDynamoDBLedger(LedgerContract):
    """All workers of a test have one table."""

    contenders = 6
    contended = 120
    # Time is given, so that these cost nothing; patience is measured by leases, and a machine may be busy.
    lease_us = 600_000_000
    brief_us = 60_000_000
    patience_s = 120
    marks_max = 120

    @pytest.fixture
    def new_ledger(self, client, monkeypatch):
        """Make a table for a test, and as many handles onto it as wanted."""
        monkeypatch.setattr("oncebridge.ledgers.dynamodb.attendance.MARKS_MAX", self.marks_max)
        self.client, self.table = client, f"once-{secrets.token_hex(4)}"
        OnSharedClient(client, self.table).migrate()
        # The emulator removes what has expired by the real time, so nothing may expire by that.
        return lambda clock: OnSharedClient(client, self.table, clock, retention_us=CENTURY_US)

    def stored_bytes(self):
        """Read every item."""
        return repr(self.client.scan(TableName=self.table)["Items"]).encode()

    def write_effect(self, transaction, effect):
        """Put an item of the handler's own."""
        transaction.append({"Put": {"TableName": self.table, "Item": effect_item(effect)}})

    def effects(self):
        """Read the handler's items."""
        return effects(self.client, self.table)


# --- short words ------------------------------------------------------------------------------------------------


def effect_item(name):
    """Make an item of a handler's own."""
    return {"pk": {"S": "effect"}, "sk": {"S": name}}


def effects(client, table):
    """Read the handler's items."""
    found = client.query(
        TableName=table,
        ConsistentRead=True,
        KeyConditionExpression="pk = :pk",
        ExpressionAttributeValues={":pk": {"S": "effect"}},
    )
    return [item["sk"]["S"] for item in found["Items"]]


@pytest.fixture
def url(ministack, client):
    """Return the URL of a ledger whose table is there."""
    table = f"Once.{secrets.token_hex(4)}"
    OnSharedClient(client, table).migrate()
    return f"dynamodb://{table}?region={ministack.region}&endpoint_url={ministack.url}"


@pytest.fixture
def ledger(url):
    """Return an open ledger that goes by the dates of the emulator's answers."""
    ledger = ledger_from_url(url)
    ledger.open(None)
    yield ledger
    ledger.close()


def answer(ledger, ask, lease_us=LEASE_US):
    """Ask for one event."""
    (answer,) = ledger.claim([ask], nonce=secrets.token_bytes(8), lease_us=lease_us)
    return judged(ledger, ask, answer)


def take(ledger, ask=FACT):
    """Claim one event that is to be had."""
    got = answer(ledger, ask)
    assert got.token
    return claim_of(ask, got)


def end(ledger, claim, outcome=Outcome.DONE, letter=None):
    """Settle one claim."""
    (ok,) = ledger.settle([settlement_of(claim, outcome, 0, letter)])
    return ok


@contextmanager
def counted(ledger):
    """Count the requests that really leave."""
    sent = Counter()
    events = ledger._connection._client.meta.events

    def count(request, **_):
        target = request.headers["X-Amz-Target"]
        name = target if isinstance(target, str) else target.decode()
        sent[name.partition(".")[2]] += 1

    events.register("before-send.dynamodb", count)
    try:
        yield sent
    finally:
        events.unregister("before-send.dynamodb", count)


@contextmanager
def lost_replies(ledger, operation, number=1):
    """Lose that many replies to requests that took effect, as a broken connection does."""
    left = [number]
    events = ledger._connection._client.meta.events

    def lose(**_):
        if left[0]:
            left[0] -= 1
            raise botocore.exceptions.ConnectionClosedError(endpoint_url="http://lost")

    events.register(f"after-call.dynamodb.{operation}", lose)
    try:
        yield left
    finally:
        events.unregister(f"after-call.dynamodb.{operation}", lose)


# --- requests ---------------------------------------------------------------------------------------------------


def test_each_verb_of_a_fact_is_one_request(ledger):
    """A fresh fact, an extension, a settle and a duplicate cost one request each; nothing is read before."""
    with counted(ledger) as sent:
        claim = take(ledger)
    assert sent == {"PutItem": 1}
    with counted(ledger) as sent:
        assert ledger.extend([claim], lease_us=2 * LEASE_US) == [True]
    assert sent == {"UpdateItem": 1}
    with counted(ledger) as sent:
        assert end(ledger, claim)
    assert sent == {"UpdateItem": 1}
    with counted(ledger) as sent:
        assert answer(ledger, FACT).verdict is Verdict.REDELIVERY
    assert sent == {"PutItem": 1}


def test_a_state_moves_together_with_its_entity(ledger):
    """A state costs a read and two writes to claim, a write to extend, a read and a transaction to settle."""
    state = replace(FACT, entity=b"an entity", state=b"here")
    with counted(ledger) as sent:
        claim = take(ledger, state)
        assert ledger.extend([claim], lease_us=2 * LEASE_US) == [True]
        assert end(ledger, claim)
        assert answer(ledger, state).verdict is Verdict.REDELIVERY
    assert sent == {"TransactGetItems": 3, "PutItem": 2, "UpdateItem": 1, "TransactWriteItems": 1}


def test_a_chain_is_read_and_settled_at_once(ledger):
    """Three states of an entity are one read, one write of their entity and one of each; all are settled together."""
    chain = [replace(FACT, key=b"state %d" % n, entity=b"chained", state=b"%d" % n, alone=False) for n in range(3)]
    with counted(ledger) as sent:
        answers = ledger.claim(chain, nonce=secrets.token_bytes(8), lease_us=LEASE_US)
        claims = [claim_of(ask, one) for ask, one in zip(chain, answers, strict=True)]
        ends = [settlement_of(claim, frees=claim is claims[-1]) for claim in claims]
        assert ledger.settle(ends) == [True] * 3
    assert sent == {"TransactGetItems": 2, "PutItem": 4, "TransactWriteItems": 1}


def test_a_batch_is_as_many_requests_as_events(ledger):
    """A batch costs what its events cost, whatever is answered to each."""
    asks = [replace(FACT, key=b"%d" % number) for number in range(40)]
    with counted(ledger) as sent:
        answers = ledger.claim(asks, nonce=b"n", lease_us=LEASE_US)
        claims = [Claim(ask, one.token) for ask, one in zip(asks, answers, strict=True)]
        assert ledger.settle([Settlement(claim, Outcome.DONE) for claim in claims]) == [True] * 40
    assert sent == {"PutItem": 40, "UpdateItem": 40}


def test_nothing_is_repeated_behind_the_ledgers_back(ledger):
    """boto3 makes each request once, gives up before a lease is over, and has a connection for all of a batch."""
    config = ledger._connection._client.meta.config
    assert config.retries["total_max_attempts"] == 1
    assert config.connect_timeout + config.read_timeout < 10
    assert config.max_pool_connections >= PARALLEL


@pytest.mark.parametrize("operation", ["PutItem", "UpdateItem"])
def test_a_lost_reply_is_asked_for_again(ledger, operation):
    """A claim or settle whose reply was lost is its own when it is found again, not somebody else's."""
    with lost_replies(ledger, operation, 2) as left:
        claim = take(ledger)
        assert end(ledger, claim)
    assert left == [0]
    assert claim.attempt == 1
    assert answer(ledger, FACT).verdict is Verdict.REDELIVERY


def test_a_lost_reply_of_a_state_is_asked_for_again(ledger):
    """So is a transaction of a state and its entity."""
    state = replace(FACT, entity=b"an entity", state=b"here")
    with lost_replies(ledger, "TransactWriteItems"):
        claim = take(ledger, state)
    with lost_replies(ledger, "TransactWriteItems"):
        assert end(ledger, claim)
    assert answer(ledger, state).verdict is Verdict.REDELIVERY


# --- dead letters -----------------------------------------------------------------------------------------------


def letter_parts(ledger):
    """Return which items hold further parts of letters."""
    pages = ledger._connection._client.get_paginator("scan").paginate(TableName=ledger.place.table, ConsistentRead=True)
    names = [item["sk"]["S"] for page in pages for item in page["Items"]]
    return [name for name in names if name.startswith("letter#")]


def listed_lines(ledger):
    """Return the lines of the list of letters."""
    return list(lines(ledger._connection))


def test_a_page_of_letters_reads_nothing_but_letters(ledger):
    """However many other events there are, pages and groups query the list, and never scan the table."""
    for number in range(3):
        end(ledger, take(ledger, replace(FACT, key=bytes([number]) * 16)), Outcome.DEAD, LARGE)
    with counted(ledger) as sent:
        page, groups = ledger.letter_page(Query()), ledger.letter_groups()
    assert (len(page.entries), page.newest_first, groups.total, groups.complete) == (3, True, 3, True)
    assert sent == {"Query": 2 * PARTS, "TransactGetItems": 1}


def test_a_letter_has_a_line_whatever_its_handler_is_called(ledger):
    """The key of a line has less room for a name than the key of an event, where names may be a thousand bytes long."""
    names = ["", "crm", "crm#2", "\u540d" * 330, "n" * 1000]
    for name in names:
        end(ledger, take(ledger, replace(FACT, handler=name)), Outcome.DEAD, replace(LARGE, raw=b"{}"))
    found, after = [], None
    while after or not found:
        page = ledger.letter_page(Query(), after=after, limit=1)
        found += [entry.handler for entry in page.entries]
        after = page.next
    assert sorted(found) == sorted(names)


def test_a_line_without_its_letter_is_passed_over_and_purged(ledger):
    """A worker that died before its settle leaves a line: no page shows it, and after an hour purge removes it."""
    claim = take(ledger)
    table = ledger._connection
    write_parts(table, table.patience(), claim.ask, LARGE)
    end(ledger, claim, Outcome.DEAD, replace(LARGE, detail="the real one"))
    assert len(listed_lines(ledger)) == 2
    assert [entry.key for entry in ledger.letter_page(Query()).entries] == [FACT.key]
    with mock.patch.object(search, "ORPHAN_US", -1_000_000):
        ledger.purge(older_than_us=10**15)
    assert len(listed_lines(ledger)) == 1
    assert [entry.key for entry in ledger.letter_page(Query()).entries] == [FACT.key]


def test_letters_from_before_there_were_lists_are_still_found(ledger, url):
    """A table that an earlier version opened is read as before: in no order, and not all at once."""
    end(ledger, take(ledger), Outcome.DEAD, LARGE)
    ledger._connection._client.update_item(
        TableName=ledger.place.table,
        Key=META,
        UpdateExpression="REMOVE #lists",
        ExpressionAttributeNames={"#lists": "lists"},
    )
    with closing(ledger_from_url(url)) as other:
        other.open(None)
        page = other.letter_page(Query())
        assert ([entry.key for entry in page.entries], page.newest_first) == ([FACT.key], False)
        assert other.letter_groups().total == 1


def test_a_large_letter_is_kept_in_parts(ledger):
    """A letter of 1 MB takes several items; once it is replaced or given up, none of them is left."""
    end(ledger, take(ledger), Outcome.DEAD, LARGE)
    assert len(letter_parts(ledger)) == 3
    redrive = take(ledger, replace(FACT, redrive=True))
    assert end(ledger, redrive, Outcome.DEAD, replace(LARGE, detail="again"))
    assert len(letter_parts(ledger)) == 3
    (entry,) = ledger.get(FACT.key)
    assert (entry.raw, entry.detail) == (LARGE.raw, "again")
    assert end(ledger, take(ledger, replace(FACT, redrive=True)), Outcome.DISCARD)
    assert letter_parts(ledger) == []


def test_a_small_letter_takes_no_part(ledger):
    """An ordinary event becomes a dead letter in the request that settles it, after one for its line in the list."""
    claim = take(ledger)
    with counted(ledger) as sent:
        assert end(ledger, claim, Outcome.DEAD, replace(LARGE, raw=b"{}" * 5000))
    assert sent == {"PutItem": 1, "UpdateItem": 1}


def test_a_worker_that_is_late_leaves_no_parts(ledger):
    """Who writes a large letter for a claim that was lost, or settled already, cleans up behind itself."""
    claim = take(ledger)
    assert not end(ledger, replace(claim, token=1), Outcome.DEAD, LARGE)
    assert letter_parts(ledger) == listed_lines(ledger) == []
    assert end(ledger, claim, Outcome.DEAD, LARGE)
    assert end(ledger, claim, Outcome.DEAD, replace(LARGE, detail="again"))
    assert len(letter_parts(ledger)) == 3
    assert len(listed_lines(ledger)) == 1
    assert len(ledger.letter_page(Query()).entries) == 1
    assert ledger.get(FACT.key)[0].detail == "in full"


# --- a handler's transaction ------------------------------------------------------------------------------------


def on_condition(ledger, name, condition="attribute_not_exists(pk)"):
    """Make a handler's write that has a condition of its own."""
    return {
        "Put": {"TableName": ledger.place.table, "Item": effect_item(name), "ConditionExpression": condition},
    }


def test_a_condition_of_the_handlers_own_is_its_failure(ledger):
    """A handler's condition that does not hold is named, is no lost claim, and undoes everything."""
    claim = take(ledger)
    with pytest.raises(HandlerWriteRefused, match="write 2 of 2"), ledger.transaction(settlement_of(claim)) as writes:
        writes += [on_condition(ledger, "one"), on_condition(ledger, "two", "attribute_exists(pk)")]
    assert effects(ledger._connection._client, ledger.place.table) == []
    assert ledger.get(FACT.key)[0].status is Status.CLAIMED
    assert end(ledger, claim, Outcome.RETRY)


def test_a_lost_claim_goes_before_the_handlers_own_condition(ledger):
    """Where both fail, the claim is lost: what the handler found is no longer its business."""
    claim = take(ledger)
    assert end(ledger, claim, Outcome.RETRY)
    with pytest.raises(ClaimLost), ledger.transaction(settlement_of(claim)) as writes:
        writes.append(on_condition(ledger, "one", "attribute_exists(pk)"))


def test_a_lost_reply_of_a_transaction_commits_once(ledger):
    """A transaction is repeated under its token when its reply was lost: its effect is there once, and it is done."""
    claim = take(ledger)
    with lost_replies(ledger, "TransactWriteItems"), ledger.transaction(settlement_of(claim)) as writes:
        writes.append(on_condition(ledger, "one"))
    assert effects(ledger._connection._client, ledger.place.table) == ["one"]
    assert ledger.get(FACT.key)[0].status is Status.DONE


@pytest.mark.parametrize(
    ("writes", "error"),
    [
        (["nonsense"], HandlerWriteRefused),
        ([{"Put": {"TableName": "missing", "Item": effect_item("one")}}], HandlerWriteRefused),
        ([{}] * 100, PermanentError),
    ],
)
def test_what_cannot_be_written_is_the_handlers_failure(ledger, writes, error):
    """What DynamoDB can never accept from a handler is its failure, and the ledger stays usable."""
    claim = take(ledger)
    with pytest.raises(error), ledger.transaction(settlement_of(claim)) as transaction:
        transaction.extend(writes)
    assert end(ledger, claim, Outcome.RETRY)


def test_a_bridge_takes_a_failed_condition_for_a_failed_handler(url):
    """The event of a handler whose own condition does not hold is tried again, like after any failure."""
    with Bridge(url) as bridge:

        @bridge.on("*")
        def handle(event, transaction):
            transaction.append(on_condition(bridge.ledger, "one", "attribute_exists(pk)"))

        result = bridge.process({"id": "e1", "detail-type": "a", "detail": {"topicName": "a", "eventBody": {}}})
    assert result.outcome is Outcome.RETRY
    assert "HandlerWriteRefused" in result.reason


# --- opening ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "dynamodb://",
        "dynamodb://a?region=x",
        "dynamodb://table/path",
        "dynamodb://table?zone=b",
        "dynamodb://user:x@table",
    ],
)
def test_a_url_that_names_no_table_is_refused(url):
    """A URL is refused if it has no table, or more than the ledger knows; what may be a password is not quoted."""
    with pytest.raises(ConfigurationError, match="dynamodb://table") as raised:
        ledger_from_url(url)
    assert ":x@" not in str(raised.value)


def test_a_missing_table_says_how_to_make_it(ministack):
    """A table that is not there is refused with the command that makes it."""
    ledger = DynamoDBLedger("missing", region=ministack.region, endpoint_url=ministack.url)
    with pytest.raises(LedgerRefused, match="oncebridge migrate --ledger 'dynamodb://missing"):
        ledger.open(None)
    ledger.close()


def test_a_foreign_table_is_refused(ministack, client):
    """A table with other keys is left alone."""
    client.create_table(
        TableName="foreign",
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    ledger = DynamoDBLedger("foreign", region=ministack.region, endpoint_url=ministack.url)
    for verb in (ledger.migrate, lambda: ledger.open(None)):
        with pytest.raises(LedgerRefused, match="keys"):
            verb()
    ledger.close()


def test_a_newer_schema_is_refused(ledger, url):
    """A table that a newer Oncebridge wrote is left alone."""
    ledger._connection._client.update_item(
        TableName=ledger.place.table,
        Key={"pk": {"S": "ledger"}, "sk": {"S": "meta"}},
        UpdateExpression="SET #schema = :two",
        ExpressionAttributeNames={"#schema": "schema"},
        ExpressionAttributeValues={":two": {"N": "2"}},
    )
    newer = ledger_from_url(url)
    with pytest.raises(LedgerRefused, match="newer Oncebridge"):
        newer.open(None)
    newer.close()


def test_nobody_there_is_said_with_what_to_check():
    """Where nobody answers, the address is named, without a password in it, and what may be in between."""
    port = free_port()
    ledger = DynamoDBLedger("once", region="eu-central-1", endpoint_url=f"http://me:hush@127.0.0.1:{port}")
    ledger._clock = ManualClock()
    with pytest.raises(LedgerUnavailable, match=rf"127\.0\.0\.1:{port}.*VPC endpoint.*security group") as raised:
        ledger.open(None)
    assert "hush" not in str(raised.value)
    ledger.close()


def test_missing_credentials_are_said(ministack, monkeypatch):
    """Without credentials, the message says where they may come from."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    ledger = DynamoDBLedger("once", region=ministack.region, endpoint_url=ministack.url)
    with pytest.raises(LedgerRefused, match="no AWS credentials were found; give the worker a role"):
        ledger.open(None)
    ledger.close()


def test_a_missing_region_is_said(ministack, monkeypatch):
    """Without a region, the message says where to name it."""
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    with pytest.raises(LedgerRefused, match=r"region=eu-central-1"):
        DynamoDBLedger("once").open(None)


def test_a_ledger_that_is_not_open_says_so():
    """To make a ledger costs nothing, and asks nobody."""
    ledger = DynamoDBLedger("once")
    with pytest.raises(LedgerUnavailable, match="not open"):
        answer(ledger, FACT)


def test_the_table_is_made_to_last(ledger, client):
    """A new table is paid by request, protected from deletion, and forgets by itself."""
    described = client.describe_table(TableName=ledger.place.table)["Table"]
    assert described["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
    assert described["DeletionProtectionEnabled"]
    found = client.describe_time_to_live(TableName=ledger.place.table)["TimeToLiveDescription"]
    assert found == {"TimeToLiveStatus": "ENABLED", "AttributeName": "expires"}


def test_a_missing_emulator_says_how_to_get_it(tmp_path, monkeypatch):
    """Without the emulator's own environment, these tests name the command that makes it."""
    monkeypatch.setattr(aws, "PYTHON", tmp_path / "python")
    with pytest.raises(RuntimeError, match="make test"), aws.running_ministack(tmp_path):
        pass


# --- examination ------------------------------------------------------------------------------------------------


def test_a_new_table_is_found_good(ledger):
    """Of a table as `migrate` makes it, only what costs extra is missing."""
    assert isinstance(ledger, Examines)
    findings = list(ledger.examine())
    assert {finding.subject for finding in findings if finding.level is not Level.GOOD} <= {"recovery"}
    assert {finding.subject for finding in findings} >= {"table", "clock", "permissions", "replicas", "secret"}
    assert ledger.counts() == {}


def test_what_weakens_a_table_is_found(ledger, client):
    """Capacity that throttles, a table that can be deleted, and nothing that expires are each found."""
    table = ledger.place.table
    units = {"ReadCapacityUnits": 5, "WriteCapacityUnits": 5}
    client.update_table(
        TableName=table, BillingMode="PROVISIONED", ProvisionedThroughput=units, DeletionProtectionEnabled=False
    )
    client.update_time_to_live(TableName=table, TimeToLiveSpecification={"Enabled": False, "AttributeName": "expires"})
    found = {finding.subject: finding for finding in ledger.examine()}
    for subject in ("capacity", "deletion protection", "time to live"):
        assert found[subject].level is Level.WARNING
        assert found[subject].fix
