"""The template, deployed: events flow from the bus to the receiver once, by no more rights than it gives.

The emulator is one that holds everybody to their policies, over TLS alone. It has no partner buses, so the bus and
the source of these events are the tests' own.
"""

import json
from collections import Counter

import pytest

import payloads
from oncebridge import Bridge
from oncebridge.claim import Status
from oncebridge.clock import SystemClock
from oncebridge.journal.pauses import Pauses
from oncebridge.journal.reader import JournalReader
from oncebridge.ledgers import ledger_from_url
from oncebridge.ledgers.protocol import Query
from servers.aws import running_ministack
from servers.process import wait_until
from servers.receiver import Reply, running_receiver
from servers.stack import BUCKET, deployed, function_zip, read_template

BUS = "contact/centre"

pytestmark = pytest.mark.xdist_group("template")


@pytest.fixture(scope="module")
def amazon(tmp_path_factory):
    """Return a guarded emulator with a bus, and the function's code in a bucket."""
    directory = tmp_path_factory.mktemp("guarded")
    with running_ministack(directory, guarded=True) as server:
        server.client("events").create_event_bus(Name=BUS)
        bucket = server.client("s3")
        bucket.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": server.region})
        bucket.put_object(Bucket=BUCKET, Key="function.zip", Body=function_zip(directory / "function.zip"))
        yield server


@pytest.fixture(scope="module")
def receiver():
    """Return a receiver that accepts everything but what asks to be refused."""
    with running_receiver(lambda request: Reply(400 if b"refuse me" in request.body else 200)) as running:
        yield running


@pytest.fixture(scope="module")
def deploy(amazon, receiver):
    """Return what deploys the template, for a source of its own, with the receiver behind it."""

    def make(name, template=None, tags=None, **parameters):
        given = {"EventBusName": BUS, "EventSourcePrefix": f"{name}/", "DownstreamUrl": receiver.url}
        return deployed(amazon, name, template or read_template(), tags, **given, **parameters)

    return make


@pytest.fixture(scope="module")
def stack(amazon, deploy):
    """Return the template as most will deploy it, and with a queue for dead letters."""
    with deploy("usual", DeadLetterQueue="yes") as made:
        with Bridge(url_of_ledger(amazon, made)) as bridge:
            Pauses(bridge.ledger.notes, SystemClock()).pause("nobody", "anna")  # of no handler: nothing waits
        yield made


def url_of_ledger(amazon, stack):
    """Return the URL of a stack's ledger on the emulator."""
    return f"{stack.outputs['LedgerUrl']}&endpoint_url={amazon.url}"


def put(amazon, stack, envelope, **changes):
    """Put an event on the bus, from a stack's source; it gets an envelope id of its own."""
    entry = {
        "EventBusName": BUS,
        "Source": f"{stack.name}/cloud",
        "DetailType": envelope["detail-type"],
        "Detail": json.dumps(envelope["detail"]),
        **changes,
    }
    assert amazon.client("events").put_events(Entries=[entry])["FailedEntryCount"] == 0


def metrics(stack):
    """Add up the metrics that the function has written, by what CloudWatch would keep them by."""
    sums = Counter()
    for line in stack.log():
        if not line.startswith('{"_aws"'):
            continue
        document = json.loads(line)
        for directive in document["_aws"]["CloudWatchMetrics"]:
            for dimensions in directive["Dimensions"]:
                by = tuple(document[name] for name in dimensions)
                for metric in directive["Metrics"]:
                    value = document[metric["Name"]]
                    sums[metric["Name"], *by] += len(value) if isinstance(value, list) else value
    return sums


class Ear:
    """Listens to what a function tells from now on."""

    def __init__(self, stack):
        """Forget what it has told before."""
        self._stack = stack
        self._before = metrics(stack)

    def hears(self, name, *by):
        """Return how often a metric was counted."""
        return (metrics(self._stack) - self._before)[name, self._stack.name, *by]

    def wait_for(self, **verdicts):
        """Wait until deliveries with these verdicts were told of, and see that there were no others."""
        for verdict, number in verdicts.items():
            wait_until(lambda v=verdict, n=number: self.hears("Deliveries", v) >= n, f"{number} {verdict}")
        assert self.hears("Deliveries") == sum(verdicts.values())


def requests(receiver, conversation):
    """Return the bodies that the receiver got of a conversation."""
    bodies = [json.loads(request.body)["body"] for request in receiver.requests]
    return [body for body in bodies if body.get("conversationId") == conversation]


def waiting(amazon, url):
    """Count the messages in a queue, those too that somebody works on."""
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    found = amazon.client("sqs").get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
    return sum(int(found[name]) for name in names)


def test_an_event_that_is_put_twice_takes_effect_once(amazon, receiver, stack):
    """From bus to receiver every event flows once, even under two envelope ids; others do not come in at all."""
    ear = Ear(stack)
    event = payloads.envelope(payloads.ACW, {"conversationId": "twice"})
    put(amazon, stack, event, Source="somebody.else/cloud")
    put(amazon, stack, event, DetailType="of another kind")
    put(amazon, stack, event)
    ear.wait_for(fresh=1)
    put(amazon, stack, event)
    ear.wait_for(fresh=1, republish=1)
    assert requests(receiver, "twice") == [event["detail"]["eventBody"]]
    wait_until(lambda: waiting(amazon, stack.outputs["QueueUrl"]) == 0, "the queue to be empty")


def test_the_queues_admit_the_rule_before_it_is_there(stack):
    """The deployment makes both policies before the rule, which is enabled at once."""
    made = stack.made
    assert max(map(made.index, ("QueuePolicy", "UndeliveredQueuePolicy", "Function"))) < made.index("Rule")


def test_states_come_by_the_rights_that_the_role_gives(amazon, stack):
    """States need transactions and checks on the ledger, and the role allows all of these."""
    ear = Ear(stack)
    newest, older = payloads.TIME_MS, payloads.TIME_MS - 60_000
    put(amazon, stack, payloads.presence("AVAILABLE", modified_ms=newest))
    ear.wait_for(fresh=1)
    put(amazon, stack, payloads.presence("MEAL", modified_ms=older))
    ear.wait_for(fresh=1, stale=1)
    put(amazon, stack, payloads.presence("BUSY", modified_ms=newest + 1000))
    ear.wait_for(fresh=2, stale=1)


def test_the_function_keeps_its_journal_and_knows_of_pauses_by_the_rights_of_its_role(amazon, stack):
    """People see it on the console's pages, and a pause reaches it."""
    ear = Ear(stack)
    put(amazon, stack, payloads.envelope(payloads.ACW, {"conversationId": "journal"}))
    ear.wait_for(fresh=1)
    with Bridge(url_of_ledger(amazon, stack)) as bridge:
        reader = JournalReader(bridge.ledger.notes, SystemClock())
        wait_until(reader.workers, "a word of the function")
        assert {(worker.way_in, worker.paused) for worker in reader.workers()} == {("lambda", ("nobody",))}


def test_dead_letters_are_in_the_ledger_and_in_the_queue(amazon, stack):
    """What the receiver refuses for good is counted where the alarm looks, and sent to the queue that was wanted."""
    ear = Ear(stack)
    event = payloads.envelope(payloads.ACW, {"conversationId": "refuse me", "notes": "n" * 50_000})
    put(amazon, stack, event)
    wait_until(lambda: ear.hears("DeadLetters") == 1, "the metric that the alarm looks at")
    queue, url = amazon.client("sqs"), stack.outputs["DeadLetterQueueUrl"]
    (message,) = queue.receive_message(QueueUrl=url, WaitTimeSeconds=20)["Messages"]
    assert json.loads(message["Body"])["detail"] == event["detail"]
    wait_until(lambda: waiting(amazon, stack.outputs["QueueUrl"]) == 0, "the delivery to be acknowledged")
    assert waiting(amazon, stack.outputs["LeftoverQueueUrl"]) == 0
    with Bridge(url_of_ledger(amazon, stack)) as bridge:
        (found,) = bridge.ledger.scan(Query(statuses=frozenset({Status.DEAD})))
        letters = [entry.raw for entry in bridge.ledger.get(found.key) if entry.status is Status.DEAD]
    assert [json.loads(raw)["detail"] for raw in letters] == [event["detail"]]


def test_the_table_is_the_one_that_migrate_makes(amazon, stack):
    """Whoever deploys the template needs no `oncebridge migrate`; the emulator leaves out time to live alone."""
    ledger = ledger_from_url(f"dynamodb://migrated?region={amazon.region}&endpoint_url={amazon.url}")
    ledger.migrate()
    ledger.close()

    def described(table):
        found = amazon.client("dynamodb").describe_table(TableName=table)["Table"]
        names = ("KeySchema", "AttributeDefinitions", "BillingModeSummary", "DeletionProtectionEnabled")
        return {name: found[name] for name in names}

    assert described(f"{stack.name}-ledger") == described("migrated")


def test_the_ledger_may_be_redis(amazon, receiver, deploy, valkey):
    """With Redis there is no table and no right to one; the URL is read from the secret, and stands nowhere else."""
    secret = amazon.client("secretsmanager").create_secret(Name="ledger/url", SecretString=valkey.url)["ARN"]
    event = payloads.envelope(payloads.ACW, {"conversationId": "on Redis"})
    with deploy("on-redis", Ledger="Redis", RedisUrlSecret=secret) as stack:
        function = amazon.client("lambda").get_function_configuration(FunctionName=stack.name)
        assert function["Environment"]["Variables"]["ONCEBRIDGE_LEDGER"] == f"secretsmanager:{secret}"
        ear = Ear(stack)
        put(amazon, stack, event)
        ear.wait_for(fresh=1)
        put(amazon, stack, event)
        ear.wait_for(fresh=1, republish=1)
        assert len(requests(receiver, "on Redis")) == 1
    assert "on-redis-ledger" not in amazon.client("dynamodb").list_tables()["TableNames"]


@pytest.fixture(scope="module")
def house(amazon):
    """Return the parameters of a house with rules: a network, a key and a boundary of its own."""
    network = amazon.client("ec2")
    vpc = network.create_vpc(CidrBlock="10.7.0.0/16")["Vpc"]["VpcId"]
    subnets = [network.create_subnet(VpcId=vpc, CidrBlock=f"10.7.{n}.0/24")["Subnet"]["SubnetId"] for n in range(2)]
    group = network.create_security_group(GroupName="function", Description="function", VpcId=vpc)["GroupId"]
    everything = {"Effect": "Allow", "Action": "*", "Resource": "*"}
    boundary = amazon.client("iam").create_policy(
        PolicyName="boundary", PolicyDocument=json.dumps({"Version": "2012-10-17", "Statement": [everything]})
    )
    return {
        "SubnetIds": ",".join(subnets),
        "SecurityGroupIds": group,
        "KeyArn": amazon.client("kms").create_key()["KeyMetadata"]["Arn"],
        "PermissionsBoundaryArn": boundary["Policy"]["Arn"],
    }


def test_by_the_rules_of_the_house(amazon, receiver, deploy, house):
    """In a VPC, with a key, a boundary, traces, mail and tags events flow as ever, and all of it is there.

    The emulator puts nobody into a network, and encrypts nothing: this shows that rights and shape are right. It does
    not show the function's network, the role's boundary and the table's key, either; test_template.py looks at those.
    """
    tags = {"team": "contact-centre"}
    more = {"AlarmEmail": "on-call@example.com", "Tracing": "yes", "DeadLetterQueue": "yes"}
    with deploy("by-the-rules", tags=tags, **house, **more) as stack:
        ear = Ear(stack)
        put(amazon, stack, payloads.envelope(payloads.ACW, {"conversationId": "by the rules"}))
        ear.wait_for(fresh=1)
        assert len(requests(receiver, "by the rules")) == 1
        queues = amazon.client("sqs")
        for name in ("QueueUrl", "LeftoverQueueUrl", "UndeliveredQueueUrl", "DeadLetterQueueUrl"):
            url = stack.outputs[name]
            attributes = queues.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
            assert attributes["KmsMasterKeyId"] == house["KeyArn"]
            assert queues.list_queue_tags(QueueUrl=url)["Tags"].items() >= tags.items()
        function = amazon.client("lambda").get_function(FunctionName=stack.name)
        assert function["Configuration"]["TracingConfig"] == {"Mode": "Active"}
        assert function["Tags"].items() >= tags.items()
        alarms = amazon.client("cloudwatch").describe_alarms(AlarmNamePrefix=stack.name)["MetricAlarms"]
        (topic,) = {action for alarm in alarms for action in alarm["AlarmActions"]}
        (subscription,) = amazon.client("sns").list_subscriptions_by_topic(TopicArn=topic)["Subscriptions"]
        assert (subscription["Protocol"], subscription["Endpoint"]) == ("email", "on-call@example.com")


def test_the_emulator_holds_the_function_to_its_role(amazon, receiver, deploy):
    """Without its line for the ledger the function gets nowhere: what these tests show hangs on the policies."""
    template = read_template()
    (policy,) = template["Resources"]["FunctionRole"]["Properties"]["Policies"]
    lines = policy["PolicyDocument"]["Statement"]
    (ledger,) = [line for line in lines if "Fn::If" in line and line["Fn::If"][1]["Sid"] == "KeepTheLedger"]
    lines.remove(ledger)
    with deploy("without-right", template) as stack:
        put(amazon, stack, payloads.envelope(payloads.ACW, {"conversationId": "without right"}))
        wait_until(lambda: "allow it dynamodb:GetItem" in "".join(stack.log()), "the log to say what is missing")
    assert not requests(receiver, "without right")
