"""DynamoDB in this process: the conditional writes that the ledger uses, and trouble on cue that no emulator shows.

Strict where AWS is: every name and value of an expression must be used, an item has at most 400 KB, a transaction
names an item once. Every answer carries the `Date` of the server's own clock, to the second.
"""

import re
import threading
from collections import Counter
from email.utils import formatdate

from botocore.exceptions import ClientError, ConnectionClosedError

from oncebridge.clock import SystemClock
from oncebridge.ledgers.dynamodb.ledger import DynamoDBLedger
from oncebridge.testing.clock import ManualClock

ITEM_BYTES_MAX = 400 * 1024
PAGE = 7


class NeverWaits(SystemClock):
    """The machine's clock, but nobody has to wait by it."""

    def wait(self, stop, seconds):
        """Return at once."""
        return stop.is_set()


def date_of(now_us):
    """Write a date as servers do: to the second."""
    return formatdate(now_us // 1_000_000, usegmt=True)


def refused(code, **fields):
    """Make the error that boto3 raises for an answer with this code."""
    status = 500 if code in ("InternalServerError", "ServiceUnavailable") else 400
    response = {"Error": {"Code": code, "Message": "made up"}, "ResponseMetadata": {"HTTPStatusCode": status}, **fields}
    return ClientError(response, "Simulated")


def cancelled(*codes, items=()):
    """Make the error of a transaction that was cancelled for these reasons."""
    items = dict(items)
    reasons = [{"Code": code, **({"Item": items[n]} if items.get(n) else {})} for n, code in enumerate(codes)]
    return refused("TransactionCanceledException", CancellationReasons=reasons)


def lost():
    """Make the error of a connection that broke: nobody knows whether the request took effect."""
    return ConnectionClosedError(endpoint_url="http://simulated")


class NotUnderstood(BaseException):
    """A request that is wrong, or more than is simulated: no trouble to be waited out."""


class SimulatedDynamoDB:
    """One region with one table."""

    def __init__(self, clock=None):
        """Start without a table, by the server's own clock."""
        self.clock = clock or ManualClock()
        self.items = {}
        self.described = None
        self.time_to_live = {"TimeToLiveStatus": "DISABLED"}
        self.requests = []  # operation and arguments, in order
        self.tokens = {}
        self.skip_us = 0  # by how much the date of answers is wrong
        self._lock = threading.RLock()
        #: Called with number (from 1), operation and whether it took effect already; may raise, or do something else.
        self.on_request = lambda number, operation, after: None

    @property
    def operations(self):
        """How often each operation was called."""
        return Counter(operation for operation, _ in self.requests)

    def client(self):
        """Return what the ledger takes for a client of boto3's."""
        return _Client(self)

    def serve(self, operation, arguments):
        """Answer one request."""
        with self._lock:
            self.requests.append((operation, dict(arguments)))
            number = len(self.requests)
        try:
            self.on_request(number, operation, after=False)
            try:
                with self._lock:
                    result = self._result(operation, dict(arguments))
            finally:
                self.on_request(number, operation, after=True)
        except ClientError as error:
            error.response["ResponseMetadata"] |= self._metadata()
            raise
        return {**result, "ResponseMetadata": self._metadata()}

    def _result(self, operation, arguments):
        if self.described is None and operation != "create_table":
            raise refused("ResourceNotFoundException")
        try:
            return getattr(self, f"_{operation}")(arguments)
        except (ClientError, NotUnderstood):
            raise
        except Exception as error:
            raise NotUnderstood(f"{operation} {arguments}") from error

    def _metadata(self):
        return {"HTTPHeaders": {"date": date_of(self.clock.now_us() + self.skip_us)}}

    # --- the table -----------------------------------------------------------------------------------

    def _create_table(self, asked):
        if self.described is not None:
            raise refused("ResourceInUseException")
        self.described = {"TableStatus": "ACTIVE", **asked}
        return {}

    def _describe_table(self, asked):
        return {"Table": self.described}

    def _describe_time_to_live(self, asked):
        return {"TimeToLiveDescription": self.time_to_live}

    def _describe_continuous_backups(self, asked):
        return {"ContinuousBackupsDescription": {"ContinuousBackupsStatus": "ENABLED"}}

    def _update_time_to_live(self, asked):
        attribute = asked["TimeToLiveSpecification"]["AttributeName"]
        self.time_to_live = {"TimeToLiveStatus": "ENABLED", "AttributeName": attribute}
        return {}

    # --- items ---------------------------------------------------------------------------------------

    def _get_item(self, asked):
        assert asked["ConsistentRead"]
        item = self.items.get(_place(asked["Key"]))
        return {"Item": item} if item else {}

    def _transact_get_items(self, asked):
        found = [self.items.get(_place(one["Get"]["Key"])) for one in asked["TransactItems"]]
        return {"Responses": [{"Item": item} if item else {} for item in found]}

    def _put_item(self, asked):
        return self._write("Put", asked)

    def _update_item(self, asked):
        return self._write("Update", asked)

    def _delete_item(self, asked):
        return self._write("Delete", asked)

    def _write(self, kind, asked):
        place, old = self._find(asked)
        if not _holds(asked, old):
            shown = {"Item": old} if old and asked.get("ReturnValuesOnConditionCheckFailure") == "ALL_OLD" else {}
            raise refused("ConditionalCheckFailedException", **shown)
        self._apply(kind, asked, place, old)
        return {"Attributes": old} if old and asked.get("ReturnValues") == "ALL_OLD" else {}

    def _transact_write_items(self, asked):
        token = asked.pop("ClientRequestToken", None)
        if token is not None and token in self.tokens:
            if self.tokens[token] != asked:
                raise refused("IdempotentParameterMismatchException")
            return {}
        writes = [next(iter(one.items())) for one in asked["TransactItems"]]
        found = [self._find(write) for _, write in writes]
        assert len({place for place, _ in found}) == len(found), "a transaction names an item once"
        held = [_holds(write, old) for (_, write), (_, old) in zip(writes, found, strict=True)]
        if not all(held):
            codes = ["None" if ok else "ConditionalCheckFailed" for ok in held]
            raise cancelled(*codes, items={n: old for n, (_, old) in enumerate(found) if not held[n]})
        for (kind, write), (place, old) in zip(writes, found, strict=True):
            self._apply(kind, write, place, old)
        if token is not None:
            self.tokens[token] = asked
        return {}

    def _find(self, asked):
        place = _place(asked.get("Key") or asked["Item"])
        return place, self.items.get(place)

    def _apply(self, kind, asked, place, old):
        _all_used(asked)
        if kind == "Put":
            self.items[place] = asked["Item"]
        elif kind == "Delete":
            self.items.pop(place, None)
        elif kind == "Update":
            self.items[place] = _updated(old or dict(asked["Key"]), asked)
        assert _size(self.items.get(place, {})) <= ITEM_BYTES_MAX, "an item has at most 400 KB"

    def _query(self, asked):
        return self._page({**asked, "ConditionExpression": asked["KeyConditionExpression"]})

    def _scan(self, asked):
        return self._page({**asked, "ConditionExpression": asked["FilterExpression"]})

    def _page(self, asked):
        """Answer with a page of seven: whoever forgets to turn it sees too little."""
        assert asked["ConsistentRead"]
        start = asked.get("ExclusiveStartKey")
        places = sorted(self.items, reverse=not asked.get("ScanIndexForward", True))
        places = places if start is None else places[places.index(_place(start)) + 1 :]
        page = places[:PAGE]
        found = [self.items[place] for place in page if _holds(asked, self.items[place])]
        last = {"pk": {"S": page[-1][0]}, "sk": {"S": page[-1][1]}} if len(places) > PAGE else None
        return {"Items": found, **({"LastEvaluatedKey": last} if last else {})}


class _Client:
    """The operations, as boto3 names them."""

    def __init__(self, server):
        self._server = server

    def __getattr__(self, operation):
        return lambda **arguments: self._server.serve(operation, arguments)

    def close(self):
        """Let go of nothing."""


class OnSimulation(DynamoDBLedger):
    """A ledger whose client is simulated, and which does not wait between tries."""

    def __init__(self, server, clock=None, **settings):
        """Take the server instead of its address."""
        super().__init__("once", clock, region="simulated", **settings)
        self._server = server
        self._clock = NeverWaits()

    def _connect(self):
        return self._server.client()


# --- expressions ----------------------------------------------------------------------------------------------


def _place(item):
    (kind, pk), (other, sk) = (*item["pk"].items(), *item["sk"].items())
    assert (kind, other) == ("S", "S")
    assert pk, "a key is not empty"
    assert sk, "a key is not empty"
    return pk, sk


def _size(item):
    return sum(
        len(name) + sum(len(value) if isinstance(value, (bytes, str)) else 1 for value in one.values())
        for name, one in item.items()
    )


def _all_used(arguments):
    """Refuse names and values that no expression uses, as AWS does."""
    used = set(re.findall(r"[#:]\w+", f"{arguments.get('ConditionExpression')} {arguments.get('UpdateExpression')}"))
    given = {*arguments.get("ExpressionAttributeNames", {}), *arguments.get("ExpressionAttributeValues", {})}
    assert used == given, f"unused or undefined: {used ^ given}"


def _holds(arguments, item):
    """Tell whether a condition holds, of the kinds that the ledger writes."""
    expression = arguments.get("ConditionExpression")
    return not expression or any(
        all(_term_holds(term, arguments, item or {}) for term in terms.split(" AND "))
        for terms in expression.split(" OR ")
    )


def _term_holds(term, arguments, item):
    names, values = arguments.get("ExpressionAttributeNames", {}), arguments.get("ExpressionAttributeValues", {})
    if match := re.fullmatch(r"attribute_not_exists\((\S+)\)", term):
        return names[match[1]] not in item
    if match := re.fullmatch(r"begins_with\((\S+), (\S+)\)", term):
        return item[names.get(match[1], match[1])]["S"].startswith(values[match[2]]["S"])
    if match := re.fullmatch(r"size\((\S+)\) < (\S+)", term):
        return len(item[names[match[1]]]["BS"]) < int(values[match[2]]["N"])
    name, operator, value = term.split()
    found, wanted = item.get(names.get(name, name)), values[value]
    if found is None or found.keys() != wanted.keys():
        return False
    if operator == "=":
        return found == wanted
    return found["S"] < wanted["S"] if "S" in wanted else int(found["N"]) < int(wanted["N"])


def _updated(item, arguments):
    """Apply an update of the kinds that the ledger writes."""
    names, values = arguments["ExpressionAttributeNames"], arguments["ExpressionAttributeValues"]
    match = re.fullmatch(r"(?:ADD (.*?) )?SET (.*?)(?: REMOVE (.*))?", arguments["UpdateExpression"])
    changed = dict(item)
    for part in match[1].split(", ") if match[1] else ():
        name, more = part.split()
        changed[names[name]] = _added(item.get(names[name]), values[more])
    for part in re.split(r", (?![^(]*\))", match[2]):
        name, _, *source = part.split()
        if len(source) == 1:
            changed[names[name]] = values[source[0]]
        elif kept := re.fullmatch(r"if_not_exists\((\S+), (\S+)\)", " ".join(source)):
            changed[names[name]] = item.get(names[kept[1]], values[kept[2]])
        else:
            of, _, more = source
            changed[names[name]] = {"N": str(int(item[names[of]]["N"]) + int(values[more]["N"]))}
    for name in match[3].split(", ") if match[3] else ():
        changed.pop(names[name], None)
    return changed


def _added(before, more):
    """Add to a number or to a set; both begin with nothing."""
    if "N" in more:
        return {"N": str(int((before or {"N": 0})["N"]) + int(more["N"]))}
    return {"BS": sorted({*(before or {"BS": ()})["BS"], *more["BS"]})}
