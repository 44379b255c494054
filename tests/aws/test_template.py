"""The template that users deploy: who may do what, what is kept, and what is watched. Read, not deployed."""

import importlib
import json
import re
from fnmatch import fnmatchcase

import pytest
import yaml
from cfnlint.schema import PROVIDER_SCHEMA_MANAGER

import payloads
from oncebridge import Bridge, PermanentError, settings
from oncebridge.claim import Outcome, Verdict
from oncebridge.clock import SystemClock
from oncebridge.diagnosis import installation
from oncebridge.journal.pauses import Pauses
from oncebridge.ledgers.dynamodb import ledger as dynamodb
from oncebridge.ledgers.dynamodb import schema
from oncebridge.ledgers.dynamodb.items import EXPIRES
from oncebridge.ledgers.dynamodb.notes import DynamoDBNotes
from oncebridge.ledgers.findings import Level
from oncebridge.retry import RetryPolicy
from oncebridge.settings.reading import declared
from oncebridge.sinks import letters
from oncebridge.telemetry import Move
from oncebridge.telemetry.emf import EmbeddedMetrics
from servers.formation import Formation, needed_for
from servers.stack import ROOT, TEMPLATE, read_template

TEXT = TEMPLATE.read_text(encoding="utf-8")
READ = read_template()
RESOURCES = READ["Resources"]
README = (ROOT / "deploy" / "README.md").read_text(encoding="utf-8")
DAY_SECONDS = 86_400


def of_type(kind):
    """Return the properties of every resource of a type, by name."""
    return {name: one["Properties"] for name, one in RESOURCES.items() if one["Type"] == kind}


QUEUES = of_type("AWS::SQS::Queue")
ALARMS = of_type("AWS::CloudWatch::Alarm")
TABLE = RESOURCES["Table"]["Properties"]
FUNCTION = RESOURCES["Function"]["Properties"]
VARIABLES = FUNCTION["Environment"]["Variables"]
(MAPPING,) = FUNCTION["Events"].values()


def arn(name):
    """Return how the template writes the ARN of a resource."""
    return {"Fn::GetAtt": [name, "Arn"]}


def listed(value):
    """Return a list, also of what stands alone."""
    return value if isinstance(value, list) else [value]


def unconditional(statement):
    """Return a statement as it is when its condition holds."""
    return statement["Fn::If"][1] if "Fn::If" in statement else statement


def role_statements():
    """Return the statements of the function's role, by id."""
    (policy,) = RESOURCES["FunctionRole"]["Properties"]["Policies"]
    return {one["Sid"]: one for one in map(unconditional, policy["PolicyDocument"]["Statement"])}


def queue_statements(queue):
    """Return the statements of a queue's policy, by id."""
    (policy,) = [one for one in of_type("AWS::SQS::QueuePolicy").values() if one["Queues"] == [{"Ref": queue}]]
    return {one["Sid"]: one for one in policy["PolicyDocument"]["Statement"]}


def every_statement():
    """Return every statement that somebody is allowed or denied something by."""
    of_queues = [one for queue in QUEUES for one in queue_statements(queue).values()]
    (topic,) = of_type("AWS::SNS::TopicPolicy").values()
    return [*role_statements().values(), *of_queues, *topic["PolicyDocument"]["Statement"]]


# --- who may do what ------------------------------------------------------------------------------------------------


def test_every_statement_is_looked_at():
    """No policy stands where these tests do not look, and no managed one is attached."""
    assert TEXT.count("Statement:") == len(QUEUES) + 3  # the role's own, who may take it on, and the topic's
    assert TEXT.count("Effect:") == len(every_statement()) + 1
    assert "ManagedPolicyArns" not in TEXT
    assert not {"Policies", "RolePath", "PermissionsBoundary"} & set(FUNCTION)
    assert FUNCTION["Role"] == arn("FunctionRole")


def test_only_lambda_takes_the_role_on():
    """Nobody but the Lambda service may act as the function."""
    assert RESOURCES["FunctionRole"]["Properties"]["AssumeRolePolicyDocument"]["Statement"] == [
        {"Effect": "Allow", "Principal": {"Service": "lambda.amazonaws.com"}, "Action": "sts:AssumeRole"}
    ]


#: Where a star may stand, and why.
STARS = {
    ("BeInTheVpc", "Resource"): "interfaces have no name before they are made, and describing cannot be narrowed",
    ("WriteTraces", "Resource"): "X-Ray knows no other",
}


@pytest.mark.parametrize("statement", every_statement(), ids=lambda one: one["Sid"])
def test_nothing_is_allowed_by_a_star(statement):
    """Every right names its actions and its one resource; denials may be as wide as they like."""
    if statement["Effect"] == "Deny":
        return
    for field in ("Action", "Resource"):
        if (statement["Sid"], field) not in STARS:
            assert "*" not in json.dumps(statement[field])
    assert statement.get("Principal") in (
        None,
        {"Service": "events.amazonaws.com"},
        {"Service": "cloudwatch.amazonaws.com"},
    )


#: Line by line: what the function may do, and on what.
RIGHTS = {
    "TakeFromTheQueue": (
        {"sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes", "sqs:ChangeMessageVisibility"},
        arn("Queue"),
    ),
    "KeepWhatFailed": ({"sqs:SendMessage"}, arn("LeftoverQueue")),
    "WriteLogs": ({"logs:CreateLogStream", "logs:PutLogEvents"}, arn("LogGroup")),
    "KeepTheLedger": (
        {f"dynamodb:{name}Item" for name in ("Get", "Put", "Update", "Delete")},
        arn("Table"),
    ),
    "LookForPauses": ({"dynamodb:Query"}, arn("Table")),
    "ReadTheLedgersUrl": ({"secretsmanager:GetSecretValue"}, {"Ref": "RedisUrlSecret"}),
    "ReadThePostgresUrl": ({"secretsmanager:GetSecretValue"}, {"Ref": "PostgresUrlSecret"}),
    "ReadTheSecretOfKeys": ({"secretsmanager:GetSecretValue"}, {"Ref": "KeySecret"}),
    "SendDeadLettersToTheQueue": ({"sqs:SendMessage", "sqs:GetQueueAttributes"}, arn("DeadLetters")),
    "SendDeadLettersToTheBus": ({"events:PutEvents"}, {"Ref": "DeadLetterBusArn"}),
    "LookForTheBus": ({"events:DescribeEventBus"}, {"Ref": "DeadLetterBusArn"}),
    "ReadSecretsOfSinks": ({"secretsmanager:GetSecretValue"}, {"Ref": "SecretArns"}),
    "PutEventsOnBuses": ({"events:PutEvents", "events:DescribeEventBus"}, {"Ref": "SinkBusArns"}),
    "SendEventsToQueues": ({"sqs:SendMessage", "sqs:GetQueueAttributes"}, {"Ref": "SinkQueueArns"}),
    "UseTheKey": (
        {
            "kms:Decrypt",
            "kms:DescribeKey",
            "kms:Encrypt",
            "kms:GenerateDataKey",
            "kms:GenerateDataKeyWithoutPlaintext",
            "kms:ReEncryptFrom",
            "kms:ReEncryptTo",
        },
        {"Ref": "KeyArn"},
    ),
    "DecryptSecrets": ({"kms:Decrypt"}, {"Ref": "SecretKeyArns"}),
    "WriteTraces": ({"xray:PutTraceSegments", "xray:PutTelemetryRecords"}, "*"),
    "BeInTheVpc": (
        {
            "ec2:CreateNetworkInterface",
            "ec2:DeleteNetworkInterface",
            "ec2:DescribeNetworkInterfaces",
            "ec2:DescribeSubnets",
            "ec2:AssignPrivateIpAddresses",
            "ec2:UnassignPrivateIpAddresses",
        },
        "*",
    ),
}


def test_the_function_may_do_these_things_and_no_others():
    """The role allows exactly what is listed here, each on one resource."""
    allowed = {sid: one for sid, one in role_statements().items() if one["Effect"] == "Allow"}
    assert {sid: (set(listed(one["Action"])), one["Resource"]) for sid, one in allowed.items()} == RIGHTS


#: A right that only some parameters need, and the condition that it hangs on.
CONDITIONAL = {
    "KeepTheLedger": "OnDynamoDB",
    "LookForPauses": "OnDynamoDB",
    "ReadTheLedgersUrl": "ReadsUrl",
    "ReadThePostgresUrl": "ReadsPostgresUrl",
    "ReadTheSecretOfKeys": "HasKeySecret",
    "SendDeadLettersToTheQueue": "SendsToQueue",
    "SendDeadLettersToTheBus": "SendsToBus",
    "LookForTheBus": "SendsToBus",
    "ReadSecretsOfSinks": "ReadsSecrets",
    "PutEventsOnBuses": "PutsOnBuses",
    "SendEventsToQueues": "SendsToQueues",
    "UseTheKey": "HasKey",
    "DecryptSecrets": "HasSecretKeys",
    "WriteTraces": "Traces",
    "BeInTheVpc": "InVpc",
    "ButNotFromItsCode": "InVpc",
}


def test_rights_are_there_only_where_they_are_needed():
    """What a parameter switches on has no right before."""
    (policy,) = RESOURCES["FunctionRole"]["Properties"]["Policies"]
    conditional = [one["Fn::If"] for one in policy["PolicyDocument"]["Statement"] if "Fn::If" in one]
    assert {held["Sid"]: condition for condition, held, _ in conditional} == CONDITIONAL
    assert all(otherwise == {"Ref": "AWS::NoValue"} for *_, otherwise in conditional)


def test_the_functions_code_may_not_touch_the_network():
    """What Lambda needs to put the function into a VPC is denied to the function itself."""
    statement = role_statements()["ButNotFromItsCode"]
    assert (statement["Effect"], statement["Action"], statement["Resource"]) == ("Deny", "ec2:*", "*")
    named = statement["Condition"]["ArnEquals"]["lambda:SourceFunctionArn"]["Fn::Sub"]
    assert named.endswith(":function:${AWS::StackName}")
    assert FUNCTION["FunctionName"] == {"Ref": "AWS::StackName"}


def test_on_the_bus_the_function_speaks_as_nobody_else():
    """Dead letters are the only events that the function may put."""
    (condition,) = role_statements()["SendDeadLettersToTheBus"]["Condition"].items()
    assert condition == (
        "ForAllValues:StringEquals",
        {"events:source": letters.SOURCE, "events:detail-type": letters.DETAIL_TYPE},
    )


@pytest.mark.parametrize("queue", QUEUES)
def test_queues_speak_tls_alone(queue):
    """Whoever comes without TLS is refused, whatever else they may do."""
    statement = queue_statements(queue)["NobodyWithoutTLS"]
    assert statement["Effect"] == "Deny"
    assert (statement["Principal"], statement["Action"], statement["Resource"]) == ("*", "sqs:*", arn(queue))
    assert statement["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}


@pytest.mark.parametrize("queue", QUEUES)
def test_queues_let_the_rule_send_and_nobody_else(queue):
    """EventBridge may send, but only for this rule of this account: others could send forged events."""
    allowed = [one for one in queue_statements(queue).values() if one["Effect"] == "Allow"]
    if queue not in ("Queue", "UndeliveredQueue"):
        assert not allowed
        return
    (statement,) = allowed
    assert statement["Principal"] == {"Service": "events.amazonaws.com"}
    assert (statement["Action"], statement["Resource"]) == ("sqs:SendMessage", arn(queue))
    condition = Formation(READ).value(statement["Condition"])
    assert set(condition) == {"ArnLike", "StringEquals"}
    assert condition["StringEquals"] == {"aws:SourceAccount": "123456789012"}
    admitted = condition["ArnLike"]["aws:SourceArn"]

    def admits(source):
        return any(fnmatchcase(source, pattern) for pattern in admitted)

    here = "arn:aws:events:eu-central-1:123456789012:rule/"
    assert admits(f"{here}aws.partner/genesys.com/cloud/org/suffix/stack")  # a partner bus has slashes in its name
    assert admits(f"{here}stack")  # on the default bus
    for other in (f"{here}bus/another", f"{here}another", f"{here}bus/xstack", f"{here}xstack"):
        assert not admits(other)
    for place in ("eu-central-1:999999999999", "us-east-1:123456789012"):
        assert not admits(f"arn:aws:events:{place}:rule/bus/stack")


# --- what the ledger really calls -------------------------------------------------------------------------------------

#: What is written and read inside of transactions, and the right that each needs.
IN_TRANSACTIONS = {
    "Get": "GetItem",
    "Put": "PutItem",
    "Update": "UpdateItem",
    "Delete": "DeleteItem",
    "ConditionCheck": "ConditionCheckItem",
}


@pytest.fixture
def called(monkeypatch):
    """Return the rights that the ledger's calls need, as they are made."""
    rights = set()

    def note(params, model, **_):
        for item in params.get("TransactItems", ()):
            rights.update(IN_TRANSACTIONS[kind] for kind in item)
        if "TransactItems" not in params:
            rights.add(model.name)

    def connected(place):
        client = connect(place)
        client.meta.events.register("before-parameter-build.dynamodb", note)
        return client

    connect = dynamodb.connected
    monkeypatch.setattr(dynamodb, "connected", connected)
    return rights


def test_the_ledgers_rights_are_those_that_it_uses(ministack, called):
    """A worker that meets facts, states, duplicates, refusals and somebody who was quicker calls what it may call."""
    url = f"dynamodb://rights?region={ministack.region}&endpoint_url={ministack.url}"
    worker = Bridge(url)
    worker.ledger.migrate()
    called.clear()  # whoever migrates is somebody else
    other = ministack.client("dynamodb")

    @worker.on("*")
    def handle(event):
        if "overtaken" in event.body:
            for item in other.scan(TableName="rights")["Items"]:
                if item.get("status") == {"S": "claimed"}:
                    item["token"] = {"N": str(int(item["token"]["N"]) + 1)}
                    other.put_item(TableName="rights", Item=item)
        if "refused" in event.body:
            raise PermanentError("no")

    large = "n" * 100_000
    with worker:
        results = worker.process_many(
            [
                payloads.envelope(payloads.ACW),
                payloads.envelope(payloads.ACW),
                payloads.presence("AVAILABLE", modified_ms=payloads.TIME_MS),
                payloads.presence("MEAL", modified_ms=payloads.TIME_MS - 60_000),
                payloads.envelope(payloads.ACW, {"refused": large}),
            ]
        )
        # Its letter is larger than one item, and must not stay behind when the claim is lost.
        worker.process(payloads.envelope(payloads.ACW, {"refused": large, "overtaken": True}))
    assert [result.verdict for result in results][:4] == ["fresh", "redelivery", "fresh", "stale"]
    assert results[4].outcome is Outcome.DEAD
    allowed = {right.removeprefix("dynamodb:") for right in RIGHTS["KeepTheLedger"][0]}
    assert called == allowed


def test_a_functions_journal_lists_the_pauses_and_nothing_else(ministack, called, monkeypatch):
    """It heeds a pause by the rights that the template gives, which are to query that one page of notes."""
    url = f"dynamodb://journal?region={ministack.region}&endpoint_url={ministack.url}"
    listed_pages = []
    read_notes = DynamoDBNotes.read_notes
    monkeypatch.setattr(
        DynamoDBNotes,
        "read_notes",
        lambda notes, page, **more: listed_pages.append(page) or read_notes(notes, page, **more),
    )
    function = Bridge(url)
    function.register("*", lambda event: None, name="crm")
    function.ledger.migrate()
    with Bridge(url) as person:
        Pauses(person.ledger.notes, SystemClock()).pause("crm", "anna")
    called.clear()
    function.start_journal("lambda")
    with function:
        result = function.process(payloads.envelope(payloads.ACW))
    assert "handler crm is paused" in result.reason
    statement = role_statements()["LookForPauses"]
    assert statement["Condition"] == {
        "ForAllValues:StringEquals": {"dynamodb:LeadingKeys": [f"note#{page}" for page in dict.fromkeys(listed_pages)]}
    }
    allowed = {
        right.removeprefix("dynamodb:") for sid in ("KeepTheLedger", "LookForPauses") for right in RIGHTS[sid][0]
    }
    assert "Query" in called
    assert called <= allowed


# --- nothing is lost on the way ---------------------------------------------------------------------------------------


def test_the_rule_tries_for_as_long_as_it_can():
    """EventBridge tries for a day, and keeps what it could not deliver."""
    (target,) = RESOURCES["Rule"]["Properties"]["Targets"]
    assert target["Arn"] == arn("Queue")
    assert target["RetryPolicy"] == {"MaximumEventAgeInSeconds": DAY_SECONDS, "MaximumRetryAttempts": 185}
    assert target["DeadLetterConfig"] == {"Arn": arn("UndeliveredQueue")}


def test_the_rule_is_made_when_its_queues_admit_it():
    """EventBridge does not try again where a right is missing: the policies come before the rule, and go after it."""
    before = needed_for(RESOURCES, "Rule")
    assert {"QueuePolicy", "UndeliveredQueuePolicy", "Queue", "UndeliveredQueue", "Function"} <= before
    for name in before:
        assert "Rule" not in needed_for(RESOURCES, name)


@pytest.mark.parametrize("prefixes", [["v2."], ["v2.users.", "v2.detail.events.conversation.{id}.acw"]], ids=str)
def test_the_rule_takes_topics_by_their_beginnings(prefixes):
    """However many prefixes are given, the pattern that they make is JSON with one entry for each."""
    text, names = RESOURCES["Rule"]["Properties"]["EventPattern"]["Fn::Sub"]
    between, parameter = names["Prefixes"]["Fn::Join"]
    assert parameter == {"Ref": "TopicPrefixes"}
    filled = text.replace("${EventSourcePrefix}", "aws.partner/x/").replace("${Prefixes}", between.join(prefixes))
    assert json.loads(filled) == {
        "source": [{"prefix": "aws.partner/x/"}],
        "detail-type": [{"prefix": prefix} for prefix in prefixes],
    }


@pytest.mark.parametrize("name", ["EventSourcePrefix", "TopicPrefixes"])
@pytest.mark.parametrize("text", ['"', "a\\", 'v2."}], "account": [{"prefix": "', "v2.\n"], ids=repr)
def test_what_would_break_the_pattern_is_refused(name, text):
    """No parameter can get out of its quotes."""
    allowed = READ["Parameters"][name]["AllowedPattern"]
    assert not re.fullmatch(allowed, text)
    assert re.fullmatch(allowed, READ["Parameters"][name]["Default"])


@pytest.mark.parametrize("queue", QUEUES)
def test_queues_keep_for_as_long_as_they_can(queue):
    """Every queue keeps messages for 14 days, encrypted."""
    assert QUEUES[queue]["MessageRetentionPeriod"] == 14 * DAY_SECONDS
    assert Formation(READ, DeadLetterQueue="yes").properties(queue)["SqsManagedSseEnabled"] is True


#: Every timeout that can be chosen, without batches that are waited for, and with the shortest and longest wait.
TIMES = [
    pytest.param(timeout, batching, id=f"{timeout} s, batches of {batching} s")
    for timeout in READ["Parameters"]["Timeout"]["AllowedValues"]
    for batching in (0, 1, READ["Parameters"]["BatchingSeconds"]["MaxValue"])
]


@pytest.mark.parametrize(("timeout", "batching"), TIMES)
def test_a_message_is_hidden_for_six_times_as_long_as_it_may_take(timeout, batching):
    """The queue waits for six times the function's timeout, and for as long as a batch is collected, as AWS asks."""
    chosen = Formation(READ, Timeout=timeout, BatchingSeconds=batching)
    assert chosen.properties("Function")["Timeout"] == timeout
    mapping = chosen.properties("Function")["Events"]["Queue"]["Properties"]
    assert mapping["MaximumBatchingWindowInSeconds"] == batching
    assert chosen.properties("Queue")["VisibilityTimeout"] >= 6 * timeout + batching


@pytest.mark.parametrize(("timeout", "batching"), TIMES)
def test_the_ledger_gives_up_first_then_the_queue_then_the_time(timeout, batching):
    """A message has far more receives than attempts, and reaches the leftover queue with a week left to be read there.

    SQS counts a message's time from when it was first sent, in the leftover queue too.
    """
    queue = Formation(READ, Timeout=timeout, BatchingSeconds=batching).properties("Queue")
    redrive = queue["RedrivePolicy"]
    assert redrive["maxReceiveCount"] > 2 * RetryPolicy().attempts
    assert redrive["maxReceiveCount"] <= 1000  # the most that SQS takes
    assert redrive["deadLetterTargetArn"] == arn("LeftoverQueue")
    week = 7 * DAY_SECONDS
    assert redrive["maxReceiveCount"] * queue["VisibilityTimeout"] <= week
    assert QUEUES["LeftoverQueue"]["MessageRetentionPeriod"] >= 2 * week


def test_one_event_that_fails_comes_again_alone():
    """The function names what failed, and Lambda listens."""
    properties = MAPPING["Properties"]
    assert (MAPPING["Type"], properties["Queue"]) == ("SQS", arn("Queue"))
    assert properties["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
    assert properties["ScalingConfig"] == {"MaximumConcurrency": {"Ref": "MaximumConcurrency"}}
    assert "ReservedConcurrentExecutions" not in FUNCTION


def test_a_direct_invocation_that_fails_is_kept():
    """Whoever invokes the function without the queue loses nothing either."""
    kept = FUNCTION["EventInvokeConfig"]["DestinationConfig"]["OnFailure"]
    assert kept == {"Type": "SQS", "Destination": arn("LeftoverQueue")}


def test_the_ledger_remembers_for_longer_than_anything_is_repeated():
    """By doctor's own rule the retention outlasts Genesys, EventBridge and both queues."""
    days, queue_days = (float(VARIABLES[f"ONCEBRIDGE_{name}RETENTION_DAYS"]) for name in ("", "QUEUE_"))
    assert queue_days * DAY_SECONDS == QUEUES["Queue"]["MessageRetentionPeriod"]
    assert installation.retention(days, queue_days).level is Level.GOOD


def test_what_remembers_outlives_the_stack():
    """Neither the ledger nor the partner bus goes with the stack."""
    for name in ("Table", "Bus"):
        assert RESOURCES[name]["DeletionPolicy"] == RESOURCES[name]["UpdateReplacePolicy"] == "Retain"


def test_the_table_is_as_migrate_makes_it():
    """Keys, billing, expiry and protection are those that the ledger makes itself; backups come on top."""
    assert TABLE["KeySchema"] == schema.KEYS
    assert TABLE["AttributeDefinitions"] == [{"AttributeName": n, "AttributeType": "S"} for n in ("pk", "sk")]
    assert TABLE["TimeToLiveSpecification"] == {"AttributeName": EXPIRES, "Enabled": True}
    assert (TABLE["BillingMode"], TABLE["DeletionProtectionEnabled"]) == ("PAY_PER_REQUEST", True)
    assert TABLE["PointInTimeRecoverySpecification"] == {"PointInTimeRecoveryEnabled": True}


# --- what runs --------------------------------------------------------------------------------------------------------


def test_the_function_runs_what_make_package_makes():
    """Runtime, handler and code are those of the zip."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (python,) = re.findall(r"^LAMBDA_PYTHON := (.+)$", makefile, re.MULTILINE)
    assert FUNCTION["Runtime"] == f"python{python}"
    assert f"tools/package.py {FUNCTION['CodeUri'].removeprefix('../')} " in makefile
    assert FUNCTION["Handler"] == {"Ref": "Handler"}
    module, _, name = READ["Parameters"]["Handler"]["Default"].rpartition(".")
    assert callable(getattr(importlib.import_module(module), name))


def test_every_variable_is_a_setting():
    """Nothing is set that nobody reads."""
    known = {f"ONCEBRIDGE_{name.upper()}" for name in declared(settings.Settings)}
    assert set(VARIABLES) <= known


def test_strangers_are_kept_out_behind_the_queue_too():
    """Whoever may send to the queue gets no further with another source or org."""
    assert VARIABLES["ONCEBRIDGE_ALLOWED_SOURCES"] == {"Fn::Sub": "${EventSourcePrefix}*"}
    assert VARIABLES["ONCEBRIDGE_ALLOWED_ORGS"] == {"Ref": "AllowedOrgs"}


def test_no_secret_is_filled_in():
    """A password is named by where it is: whoever may look at the function or the stack does not see it."""
    assert "{{resolve" not in TEXT
    secret = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:ledger/url-a1b2c3"
    assert re.fullmatch(READ["Parameters"]["RedisUrlSecret"]["AllowedPattern"], secret)
    assert not re.fullmatch(
        READ["Parameters"]["RedisUrlSecret"]["AllowedPattern"], "rediss://user:password@host:6379/0"
    )
    chosen = Formation(READ, Ledger="Redis", RedisUrlSecret=secret)
    variables = chosen.properties("Function")["Environment"]["Variables"]
    assert variables["ONCEBRIDGE_LEDGER"] == f"secretsmanager:{secret}"
    (policy,) = chosen.properties("FunctionRole")["Policies"]
    (right,) = [one for one in policy["PolicyDocument"]["Statement"] if one["Sid"] == "ReadTheLedgersUrl"]
    assert right["Resource"] == secret
    assert Formation(READ, Ledger="Redis").refused()


def test_postgres_is_named_by_its_secret_alone():
    """The URL of Postgres is read from its secret by the one function, and without that secret nothing is deployed."""
    secret = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:ledger/postgres-a1b2c3"
    chosen = Formation(READ, Ledger="Postgres", PostgresUrlSecret=secret)
    assert not chosen.refused()
    variables = chosen.properties("Function")["Environment"]["Variables"]
    assert variables["ONCEBRIDGE_LEDGER"] == f"secretsmanager:{secret}"
    (policy,) = chosen.properties("FunctionRole")["Policies"]
    rights = {one["Sid"]: one for one in policy["PolicyDocument"]["Statement"]}
    assert rights["ReadThePostgresUrl"]["Resource"] == secret
    assert not {"KeepTheLedger", "ReadTheLedgersUrl"} & set(rights)
    assert "Table" not in chosen.resources
    (said,) = Formation(READ, Ledger="Postgres").refused()
    assert "PostgresUrlSecret" in said
    unused = Formation(READ, PostgresUrlSecret=secret).properties("FunctionRole")["Policies"][0]
    assert "ReadThePostgresUrl" not in json.dumps(unused)


def test_the_secret_of_keys_outlives_the_ledger():
    """A secret of one's own is named by where it is, and may be read; without one there is no variable."""
    secret = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:keys-a1b2c3"
    chosen = Formation(READ, KeySecret=secret)
    assert chosen.properties("Function")["Environment"]["Variables"]["ONCEBRIDGE_SECRET"] == f"secretsmanager:{secret}"
    (policy,) = chosen.properties("FunctionRole")["Policies"]
    (right,) = [one for one in policy["PolicyDocument"]["Statement"] if one["Sid"] == "ReadTheSecretOfKeys"]
    assert right["Resource"] == secret
    assert "ONCEBRIDGE_SECRET" not in Formation(READ).properties("Function")["Environment"]["Variables"]


# --- what is watched --------------------------------------------------------------------------------------------------


def dimensions(alarm):
    """Return the dimensions of an alarm as a dictionary, on a bus that is not the default one."""
    return {one["Name"]: one["Value"] for one in Formation(READ).value(alarm["Dimensions"])}


@pytest.fixture
def written(capsys):
    """Return what the function writes of an invocation with one of everything, by metric and dimensions."""
    observer = EmbeddedMetrics(
        namespace=settings.Settings().metrics_namespace, function="f", clock=SystemClock(), silent=lambda: {"v2.x"}
    )
    columns = {
        Verdict.DEAD: "dead",
        Verdict.CONFLICT: "conflict",
        Verdict.UNHANDLED: "unhandled",
        Verdict.BUSY: "retrying",
    }
    for verdict, column in columns.items():
        observer(Move(move="delivered", key="k", topic="v2.x", verdict=verdict, column=column))
    observer(Move(move="lost", key="k", topic="v2.x"))
    observer(Move(move="handed_back", key="", topic="", age_ms=1000))
    observer.flush()
    found = {}
    for document in map(json.loads, capsys.readouterr().out.splitlines()):
        for directive in document["_aws"]["CloudWatchMetrics"]:
            for names in directive["Dimensions"]:
                for metric in directive["Metrics"]:
                    key = (directive["Namespace"], metric["Name"], frozenset(names))
                    found[key] = found.get(key, 0) + document[metric["Name"]]
    return found


@pytest.mark.parametrize("name", [name for name, alarm in ALARMS.items() if "/" not in alarm["Namespace"]])
def test_alarms_look_at_metrics_that_are_written(name, written):
    """A metric of our own that an alarm looks at is written under that name, with those dimensions."""
    alarm = ALARMS[name]
    assert written[alarm["Namespace"], alarm["MetricName"], frozenset(dimensions(alarm))] == 1
    assert dimensions(alarm)["Function"] == {"Ref": "Function"}


#: What AWS itself tells, and of what.
FROM_AWS = {
    "LeftoverAlarm": (
        "ApproximateNumberOfMessagesVisible",
        {"QueueName": {"Fn::GetAtt": ["LeftoverQueue", "QueueName"]}},
    ),
    "UndeliveredAlarm": (
        "ApproximateNumberOfMessagesVisible",
        {"QueueName": {"Fn::GetAtt": ["UndeliveredQueue", "QueueName"]}},
    ),
    "SilenceAlarm": ("NumberOfMessagesSent", {"QueueName": {"Fn::GetAtt": ["Queue", "QueueName"]}}),
    "OldestMessageAlarm": ("ApproximateAgeOfOldestMessage", {"QueueName": {"Fn::GetAtt": ["Queue", "QueueName"]}}),
    "ErrorsAlarm": ("Errors", {"FunctionName": {"Ref": "Function"}}),
    "ThrottlesAlarm": ("Throttles", {"FunctionName": {"Ref": "Function"}}),
    "FailedInvocationsAlarm": (
        "FailedInvocations",
        {"EventBusName": "EventBusName", "RuleName": "stack"},
    ),
    "LostInvocationsAlarm": (
        "InvocationsFailedToBeSentToDlq",
        {"EventBusName": "EventBusName", "RuleName": "stack"},
    ),
}


def test_on_the_default_bus_metrics_of_rules_have_no_bus():
    """EventBridge names the bus of a rule in its metrics, except the default bus."""
    for name in ("FailedInvocationsAlarm", "LostInvocationsAlarm"):
        alarm = Formation(READ, EventBusName="default").properties(name)
        assert alarm["Dimensions"] == [{"Name": "RuleName", "Value": "stack"}]


def test_alarms_look_at_what_aws_tells():
    """Queues, function and rule are watched; the rule's metrics are kept by its bus too, which is not the default."""
    from_aws = {name: alarm for name, alarm in ALARMS.items() if "/" in alarm["Namespace"]}
    assert {name: (alarm["MetricName"], dimensions(alarm)) for name, alarm in from_aws.items()} == FROM_AWS


#: Alarms that do not go off at the first: above what value, and for how many periods.
LATER = {
    "OldestMessageAlarm": (900, 1),
    "UnfinishedAlarm": (900, 1),
    "RetryingAlarm": (0, 3),
}


@pytest.mark.parametrize("name", [name for name in ALARMS if name != "SilenceAlarm"])
def test_alarms_go_off_at_the_first(name):
    """One is too many, but for age and retries; that nothing is told is no alarm."""
    alarm = Formation(READ).properties(name)
    assert alarm["ComparisonOperator"] == "GreaterThanThreshold"
    assert (alarm["Threshold"], alarm["EvaluationPeriods"]) == LATER.get(name, (0, 1))
    assert alarm["TreatMissingData"] == "notBreaching"
    assert alarm["Statistic"] == ("Maximum" if alarm["MetricName"].startswith(("Oldest", "Approximate")) else "Sum")


@pytest.mark.parametrize("name", ALARMS)
def test_alarms_tell_somebody(name):
    """Whoever is named is told, and nobody else."""
    assert "AlarmActions" not in Formation(READ).properties(name)
    topic = "arn:aws:sns:eu-central-1:123456789012:on-call"
    assert Formation(READ, AlarmTopicArn=topic).properties(name)["AlarmActions"] == [topic]
    assert Formation(READ, AlarmEmail="on-call@example.com").properties(name)["AlarmActions"] == [{"Ref": "AlarmTopic"}]


@pytest.mark.parametrize(("timeout", "batching"), TIMES)
@pytest.mark.parametrize("name", ["UnfinishedAlarm", "RetryingAlarm"])
def test_an_alarm_on_retries_looks_for_as_long_as_a_message_is_hidden(name, timeout, batching):
    """A message that fails is told of once in every period, so the alarm stays on until it is done."""
    chosen = Formation(READ, Timeout=timeout, BatchingSeconds=batching)
    alarm = chosen.properties(name)
    assert alarm["Period"] > chosen.properties("Queue")["VisibilityTimeout"]
    assert alarm["Period"] % 60 == 0
    assert alarm["Period"] * alarm["EvaluationPeriods"] <= DAY_SECONDS  # CloudWatch takes no more


def test_silence_is_heard():
    """No event for a day is an alarm, also where the queue tells nothing; it can be shorter, or switched off."""
    alarm = Formation(READ).properties("SilenceAlarm")
    assert (alarm["ComparisonOperator"], alarm["Threshold"], alarm["Statistic"]) == ("LessThanThreshold", 1, "Sum")
    assert alarm["TreatMissingData"] == "breaching"
    assert (
        alarm["Period"] * alarm["EvaluationPeriods"]
        == DAY_SECONDS
        == 60 * READ["Parameters"]["SilenceMinutes"]["MaxValue"]
    )
    assert Formation(READ, SilenceMinutes=30).properties("SilenceAlarm")["EvaluationPeriods"] == 30
    assert "SilenceAlarm" not in Formation(READ, SilenceMinutes=0).resources


# --- by the rules of the house ----------------------------------------------------------------------------------------

KEY = "arn:aws:kms:eu-central-1:123456789012:key/0a1b2c3d-0000-1111-2222-333344445555"
SERVICES = {"sqs.eu-central-1.amazonaws.com", "dynamodb.eu-central-1.amazonaws.com"}


def test_without_them_nothing_is_there():
    """Nobody who gives none of these parameters gets anything by them."""
    usual = Formation(READ)
    assert not {"AlarmTopic", "AlarmTopicPolicy"} & set(usual.resources)
    assert not {"VpcConfig"} & set(usual.properties("Function"))
    assert usual.properties("Function")["Tracing"] == "PassThrough"  # as Lambda does it by itself
    assert "PermissionsBoundary" not in usual.properties("FunctionRole")
    assert "SSESpecification" not in usual.properties("Table")
    assert "KmsKeyId" not in usual.properties("LogGroup")
    assert not any("KmsMasterKeyId" in usual.properties(queue) for queue in set(QUEUES) & set(usual.resources))


def test_everything_that_is_kept_is_kept_under_the_key():
    """Queues, table, log and topic are encrypted with the key that is named, and with no other."""
    chosen = Formation(READ, KeyArn=KEY, DeadLetterQueue="yes", AlarmEmail="on-call@example.com")
    for queue in QUEUES:
        properties = chosen.properties(queue)
        assert (properties["KmsMasterKeyId"], properties["SqsManagedSseEnabled"]) == (KEY, False)
    assert chosen.properties("Table")["SSESpecification"] == {
        "SSEEnabled": True,
        "SSEType": "KMS",
        "KMSMasterKeyId": KEY,
    }
    assert chosen.properties("LogGroup")["KmsKeyId"] == KEY
    assert chosen.properties("AlarmTopic")["KmsMasterKeyId"] == KEY


def test_keys_are_used_through_the_services_alone():
    """The function cannot decrypt anything by itself, only by way of the service that keeps it."""
    for sid, services in (("UseTheKey", SERVICES), ("DecryptSecrets", {"secretsmanager.eu-central-1.amazonaws.com"})):
        condition = Formation(READ).value(role_statements()[sid]["Condition"])
        assert set(listed(condition["StringEquals"].pop("kms:ViaService"))) == services
        assert condition == {"StringEquals": {}}


@pytest.mark.parametrize("text", ["alias/aws/sqs", "arn:aws:kms:eu-central-1:123456789012:alias/mine", "0a1b2c3d"])
def test_a_key_is_named_by_its_own_arn(text):
    """An alias could be Amazon's own key for queues, which EventBridge may not use: every event would be lost."""
    assert not re.fullmatch(READ["Parameters"]["KeyArn"]["AllowedPattern"], text)
    assert re.fullmatch(READ["Parameters"]["KeyArn"]["AllowedPattern"], KEY)


def test_the_readme_lets_every_service_use_the_key():
    """The key policy in the README allows what each service needs; EventBridge could meet no condition."""
    (text,) = re.findall(r"```json\n(\[.*?\])\n```", README, re.DOTALL)
    statements = {one["Principal"]["Service"]: one for one in json.loads(text)}
    assert set(statements) == {"events.amazonaws.com", "logs.REGION.amazonaws.com", "cloudwatch.amazonaws.com"}
    events = statements["events.amazonaws.com"]
    assert set(events["Action"]) == {"kms:GenerateDataKey", "kms:Decrypt"}
    assert "Condition" not in events
    assert {"kms:GenerateDataKey*", "kms:Decrypt"} <= set(statements["cloudwatch.amazonaws.com"]["Action"])
    (group,) = statements["logs.REGION.amazonaws.com"]["Condition"]["ArnEquals"].values()
    assert group == "arn:aws:logs:REGION:ACCOUNT:log-group:/aws/lambda/STACK"
    assert RESOURCES["LogGroup"]["Properties"]["LogGroupName"] == {"Fn::Sub": "/aws/lambda/${AWS::StackName}"}


@pytest.mark.parametrize("ledger", ["DynamoDB", "Redis", "Postgres"])
def test_the_function_may_run_in_a_vpc(ledger):
    """Subnets and security groups are taken with either ledger."""
    chosen = Formation(READ, Ledger=ledger, SubnetIds="subnet-1,subnet-2", SecurityGroupIds="sg-1")
    assert chosen.properties("Function")["VpcConfig"] == {
        "SubnetIds": ["subnet-1", "subnet-2"],
        "SecurityGroupIds": ["sg-1"],
    }
    (policy,) = chosen.properties("FunctionRole")["Policies"]
    assert {"BeInTheVpc", "ButNotFromItsCode"} <= {one["Sid"] for one in policy["PolicyDocument"]["Statement"]}


def test_roles_are_bounded():
    """Every role has the boundary that is named, and SAM makes no other role."""
    boundary = "arn:aws:iam::123456789012:policy/platform/boundary"
    assert re.fullmatch(READ["Parameters"]["PermissionsBoundaryArn"]["AllowedPattern"], boundary)
    assert list(of_type("AWS::IAM::Role")) == ["FunctionRole"]
    chosen = Formation(READ, PermissionsBoundaryArn=boundary)
    assert chosen.properties("FunctionRole")["PermissionsBoundary"] == boundary


def test_invocations_may_be_traced():
    """X-Ray gets every invocation if asked to, by a right of its own."""
    chosen = Formation(READ, Tracing="yes")
    assert chosen.properties("Function")["Tracing"] == "Active"
    (policy,) = chosen.properties("FunctionRole")["Policies"]
    assert "WriteTraces" in {one["Sid"] for one in policy["PolicyDocument"]["Statement"]}


def test_alarms_may_be_mailed():
    """An address gets a topic of its own, to which only the alarms of this stack may write."""
    chosen = Formation(READ, AlarmEmail="on-call@example.com")
    assert chosen.properties("AlarmTopic")["Subscription"] == [{"Protocol": "email", "Endpoint": "on-call@example.com"}]
    (statement,) = chosen.properties("AlarmTopicPolicy")["PolicyDocument"]["Statement"]
    assert (statement["Principal"], statement["Action"]) == ({"Service": "cloudwatch.amazonaws.com"}, "sns:Publish")
    assert statement["Condition"] == {
        "ArnLike": {"aws:SourceArn": "arn:aws:cloudwatch:eu-central-1:123456789012:alarm:stack-*"},
        "StringEquals": {"aws:SourceAccount": "123456789012"},
    }
    assert all(alarm["AlarmName"]["Fn::Sub"].startswith("${AWS::StackName}-") for alarm in ALARMS.values())
    both = Formation(READ, AlarmEmail="on-call@example.com", AlarmTopicArn="arn:aws:sns:eu-central-1:123456789012:t")
    assert both.refused() == ["Give AlarmTopicArn or AlarmEmail, not both: subscribe the address to your topic"]
    assert not chosen.refused()


def test_the_stacks_tags_reach_whatever_can_have_tags():
    """CloudFormation hands a stack's tags on to every resource here but policies, which have none."""
    kinds = {one["Type"] for one in RESOURCES.values()}
    serverless = {"AWS::Serverless::Function"}
    made_of_it = {"AWS::Lambda::Function", "AWS::Lambda::EventSourceMapping", "AWS::Lambda::EventInvokeConfig"}
    bare = {
        kind
        for kind in (kinds - serverless) | made_of_it
        if not PROVIDER_SCHEMA_MANAGER.get_resource_schema("eu-central-1", kind).schema["tagging"]["taggable"]
    }
    assert bare == {"AWS::SQS::QueuePolicy", "AWS::SNS::TopicPolicy", "AWS::Lambda::EventInvokeConfig"}


# --- what is written about it -----------------------------------------------------------------------------------------


def rows(title):
    """Return the cells of the one table under a heading of the README."""
    (text,) = re.findall(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", README, re.MULTILINE | re.DOTALL)
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:]]


def test_every_parameter_is_in_the_readme():
    """The table of parameters has each one, in order, with its default."""
    groups = READ["Metadata"]["AWS::CloudFormation::Interface"]["ParameterGroups"]
    assert [name for group in groups for name in group["Parameters"]] == list(READ["Parameters"])
    shown = {row[0].strip("`"): row[1].strip("`") for row in rows("Parameters")}
    defaults = {name: str(one.get("Default", "required")) for name, one in READ["Parameters"].items()}
    assert list(shown.items()) == list(defaults.items())


def test_every_right_is_in_the_readme():
    """The table of rights has each statement, with every action in it."""
    shown = {row[0].strip("`"): set(re.findall(r"`([^`]+)`", row[1])) for row in rows("Who may do what")}
    assert shown == {one["Sid"]: set(listed(one["Action"])) for one in every_statement()}


def test_the_template_can_be_read():
    """Without the functions of CloudFormation it is plain YAML, with every key once."""
    seen = []

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node, deep=False):
            seen.append([key.value for key, _ in node.value])
            return super().construct_mapping(node, deep)

    Loader.add_multi_constructor("!", lambda *_: None)
    yaml.load(TEXT, Loader)
    assert [key for keys in seen for key in keys if key == "Resources"] == ["Resources"]
    assert all(len(keys) == len(set(keys)) for keys in seen)
