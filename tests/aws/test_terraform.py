"""The Terraform module makes what the template makes: parameter by parameter, resource by resource, right by right.

Its text is compared everywhere. Where Terraform and its AWS provider are at hand, it is planned as well, and every
planned value is compared with what CloudFormation would make of the template.
"""

import json
import re
import shutil
import zipfile

import hcl2
import pytest

from servers.formation import Formation
from servers.stack import ROOT, read_template
from servers.terraform import Terraform

MODULE = ROOT / "deploy" / "terraform"
READ = read_template()
RESOURCES = READ["Resources"]
NAME = "stack"  # as in PSEUDO of servers.formation
#: What the module has in the place of the stack's own name, code and tags.
OWN_VARIABLES = {"name", "zip", "tags"}
#: Where each of the template's resources is in the module.
PLACES = {
    "Bus": "aws_cloudwatch_event_bus.bus",
    "Rule": "aws_cloudwatch_event_rule.rule",
    "Queue": "aws_sqs_queue.queue",
    "LeftoverQueue": "aws_sqs_queue.leftover",
    "UndeliveredQueue": "aws_sqs_queue.undelivered",
    "QueuePolicy": "aws_sqs_queue_policy.queue",
    "UndeliveredQueuePolicy": "aws_sqs_queue_policy.undelivered",
    "LeftoverQueuePolicy": "aws_sqs_queue_policy.leftover",
    "Function": "aws_lambda_function.function",
    "LogGroup": "aws_cloudwatch_log_group.function",
    "FunctionRole": "aws_iam_role.function",
    "Table": "aws_dynamodb_table.ledger",
    "DeadLetters": "aws_sqs_queue.dead_letters",
    "DeadLettersPolicy": "aws_sqs_queue_policy.dead_letters",
    "AlarmTopic": "aws_sns_topic.alarms",
    "AlarmTopicPolicy": "aws_sns_topic_policy.alarms",
}
#: What Terraform has as resources of their own, and CloudFormation inside of another.
PARTS = {
    "aws_cloudwatch_event_target.queue",
    "aws_lambda_event_source_mapping.queue",
    "aws_lambda_function_event_invoke_config.function",
    "aws_iam_role_policy.function",
    "aws_sns_topic_subscription.alarms",
}
ALARMS = [name for name, one in RESOURCES.items() if one["Type"] == "AWS::CloudWatch::Alarm"]


def unquoted(node):
    """Return what the parser read, without the quotes that it keeps around texts."""
    if isinstance(node, dict):
        return {unquoted(key): unquoted(value) for key, value in node.items() if not str(key).startswith("__")}
    if isinstance(node, list):
        return [unquoted(one) for one in node]
    return node.strip('"') if isinstance(node, str) else node


def blocks(kind):
    """Return the module's blocks of a kind, of all its files."""
    read = [hcl2.loads(path.read_text(encoding="utf-8")) for path in sorted(MODULE.glob("*.tf"))]
    return [unquoted(one) for file in read for one in file.get(kind, [])]


def variables():
    """Return the module's variables by name."""
    return {name: one for block in blocks("variable") for name, one in block.items()}


def resources():
    """Return the module's resources by address."""
    found = blocks("resource")
    return {f"{kind}.{name}": one for block in found for kind, named in block.items() for name, one in named.items()}


def snake(name):
    """Return a parameter's name as Terraform writes names."""
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).lower()


def native(name, value):
    """Return a parameter's value as Terraform has it: numbers, booleans and lists are what they are."""
    parameter = READ["Parameters"][name]
    if parameter["Type"] == "CommaDelimitedList" or name == "AllowedOrgs":
        return [one for one in str(value).split(",") if one]
    if parameter.get("AllowedValues") == ["yes", "no"]:
        return value == "yes"
    return value


# --- its text ---------------------------------------------------------------------------------------------------------


def test_every_parameter_is_a_variable():
    """Each parameter of the template is a variable, with the same default, and there are hardly any others."""
    found = variables()
    assert set(found) == {snake(name) for name in READ["Parameters"]} | OWN_VARIABLES
    for name, parameter in READ["Parameters"].items():
        variable = found[snake(name)]
        assert ("default" in variable) is ("Default" in parameter)
        if "Default" in parameter:
            assert variable["default"] == native(name, parameter["Default"]), name


def test_every_resource_is_in_the_module():
    """The module makes each of the template's resources, and nothing that the template does not have."""
    assert set(PLACES) | set(ALARMS) == set(RESOURCES)
    assert set(resources()) == set(PLACES.values()) | PARTS | {
        "aws_cloudwatch_metric_alarm.alarm",
        "aws_cloudwatch_metric_alarm.silence",
    }


def test_the_modules_text_has_every_right_and_alarm():
    """Each statement, action, setting and alarm of the template is in the module's text, and no other right is."""
    text = "".join(path.read_text(encoding="utf-8") for path in sorted(MODULE.glob("*.tf")))
    template = json.dumps(RESOURCES)
    for pattern in (
        r'Sid"?\s*[=:]\s*"(\w+)"',
        r'"((?:sqs|logs|dynamodb|secretsmanager|events|kms|xray|ec2|sns):[A-Z]\w+)"',
    ):
        assert set(re.findall(pattern, text)) == set(re.findall(pattern, template))
    settings = r"\b(ONCEBRIDGE_[A-Z_]+)\b(?!\.)"
    code = re.sub(r"#.*", "", text)
    assert set(re.findall(settings, code)) == set(RESOURCES["Function"]["Properties"]["Environment"]["Variables"])
    for alarm in ALARMS:
        properties = RESOURCES[alarm]["Properties"]
        assert f'"{properties["MetricName"]}"' in text
        assert f'"{properties["AlarmDescription"]}"' in text
    assert f'"{RESOURCES["Function"]["Properties"]["Runtime"]}"' in text


def test_the_rule_is_made_when_its_queues_admit_it():
    """The rule comes after both policies and the function, and the ledger and a partner's bus cannot be destroyed."""
    found = resources()
    before = " ".join(found["aws_cloudwatch_event_rule.rule"]["depends_on"])
    for name in ("aws_sqs_queue_policy.queue", "aws_sqs_queue_policy.undelivered", "aws_lambda_function.function"):
        assert name in before
    for name in ("aws_cloudwatch_event_bus.bus", "aws_dynamodb_table.ledger"):
        assert found[name]["lifecycle"] == [{"prevent_destroy": True}]


# --- its plan ---------------------------------------------------------------------------------------------------------

SECRET = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:ledger/url-a1b2c3"
KEY = "arn:aws:kms:eu-central-1:123456789012:key/0a1b2c3d-0000-1111-2222-333344445555"
BUS = "arn:aws:events:eu-central-1:123456789012:event-bus/"
#: By name: the parameters of a plan.
CHOICES = {
    "usual": {
        "EventBusName": "aws.partner/genesys.com/cloud/org/suffix",
        "DownstreamUrl": "https://crm.example/events",
    },
    "everything": {
        "EventBusName": "default",
        "TopicPrefixes": "v2.users.,v2.detail.",
        "AllowedOrgs": "org-1,org-2",
        "Ledger": "Postgres",
        "PostgresUrlSecret": SECRET,
        "KeySecret": SECRET.replace("ledger", "keys"),
        "SecretArns": f"{SECRET}x,{SECRET}y",
        "SinkBusArns": f"{BUS}one,{BUS}two",
        "SinkQueueArns": "arn:aws:sqs:eu-central-1:123456789012:out.fifo",
        "DeadLetterQueue": "yes",
        "DeadLetterBusArn": f"{BUS}dead",
        "SubnetIds": "subnet-1,subnet-2",
        "SecurityGroupIds": "sg-1",
        "KeyArn": KEY,
        "SecretKeyArns": KEY,
        "PermissionsBoundaryArn": "arn:aws:iam::123456789012:policy/boundary",
        "Tracing": "yes",
        "BatchSize": 100,
        "BatchingSeconds": 5,
        "HandlersAtOnce": 20,
        "MaximumConcurrency": 9,
        "Timeout": 300,
        "MemorySize": 1024,
        "Architecture": "x86_64",
        "AlarmEmail": "on-call@example.com",
        "OldestMessageSeconds": 60,
        "SilenceMinutes": 30,
        "LogRetentionDays": 7,
    },
}


@pytest.fixture(scope="module")
def terraform(tmp_path_factory, ministack):
    """Return the module, ready to be planned; whom the account belongs to, the emulator says."""
    folder = tmp_path_factory.mktemp("terraform")
    assert shutil.which("terraform"), "Terraform itself is missing"
    with zipfile.ZipFile(folder / "function.zip", "w") as archive:
        archive.writestr("app.py", "")
    account = {"AWS_ACCESS_KEY_ID": "123456789012", "AWS_REGION": "eu-central-1", "AWS_ENDPOINT_URL": ministack.url}
    return Terraform(MODULE, folder, {**ministack.environment, **account})


def planned(terraform, **parameters):
    """Plan the module with the template's parameters."""
    given = {snake(name): native(name, value) for name, value in parameters.items()}
    return terraform.plan(name=NAME, zip="function.zip", **given)


@pytest.fixture(scope="module", params=CHOICES)
def both(request, terraform):
    """Return what CloudFormation makes of the template, and what Terraform plans, with the same parameters."""
    chosen = CHOICES[request.param]
    formation = Formation(READ, **chosen)
    assert not formation.refused()
    return formation, planned(terraform, **chosen)


def arns(node):
    """Write out the ARNs that the template asks resources for."""
    here = "eu-central-1:123456789012"
    known = {
        "Queue": f"arn:aws:sqs:{here}:{NAME}",
        "LeftoverQueue": f"arn:aws:sqs:{here}:{NAME}-leftover",
        "UndeliveredQueue": f"arn:aws:sqs:{here}:{NAME}-undelivered",
        "DeadLetters": f"arn:aws:sqs:{here}:{NAME}-dead-letters",
        "LogGroup": f"arn:aws:logs:{here}:log-group:/aws/lambda/{NAME}:*",
        "Table": f"arn:aws:dynamodb:{here}:table/{NAME}-ledger",
        "AlarmTopic": f"arn:aws:sns:{here}:{NAME}-alarms",
    }
    if isinstance(node, list):
        return [arns(one) for one in node]
    if not isinstance(node, dict):
        return node
    if node == {"Ref": "AlarmTopic"} or list(node) == ["Fn::GetAtt"]:
        return known[(node.get("Fn::GetAtt") or ["AlarmTopic"])[0]]
    return {key: arns(value) for key, value in node.items()}


def at(plan, name, part=""):
    """Return the planned values of one of the template's resources, or of a part of it."""
    address = part or PLACES[name]
    return plan.get(address) or plan.get(f"{address}[0]")


@pytest.mark.terraform
def test_the_plan_has_the_templates_resources(both):
    """What a parameter switches on in the template it switches on in the module, and nothing else."""
    formation, plan = both
    there = {name for name in PLACES if at(plan, name) is not None}
    assert there == set(formation.resources) & set(PLACES)
    alarms = {one["alarm_name"] for address, one in plan.items() if address.startswith("aws_cloudwatch_metric_alarm")}
    assert alarms == {formation.properties(name)["AlarmName"] for name in ALARMS if name in formation.resources}


@pytest.mark.terraform
def test_the_plan_gives_the_templates_rights(both):
    """Statement for statement, the role and the policies of queues and topic are those of the template."""
    formation, plan = both
    role = formation.properties("FunctionRole")
    (policy,) = role["Policies"]
    assert json.loads(at(plan, "", "aws_iam_role_policy.function")["policy"]) == arns(policy["PolicyDocument"])
    assert json.loads(at(plan, "FunctionRole")["assume_role_policy"]) == role["AssumeRolePolicyDocument"]
    assert at(plan, "FunctionRole")["permissions_boundary"] == role.get("PermissionsBoundary")
    for name, one in formation.resources.items():
        if one["Type"] in ("AWS::SQS::QueuePolicy", "AWS::SNS::TopicPolicy"):
            assert json.loads(at(plan, name)["policy"]) == arns(one["Properties"]["PolicyDocument"]), name


@pytest.mark.terraform
def test_the_plan_has_the_templates_alarms(both):
    """Each alarm looks at the same metric, for as long, with the same threshold."""
    formation, plan = both
    found = {
        one["alarm_name"]: one for address, one in plan.items() if address.startswith("aws_cloudwatch_metric_alarm")
    }
    for name in set(ALARMS) & set(formation.resources):
        wanted = formation.properties(name)
        alarm = found[wanted["AlarmName"]]
        assert {
            key: alarm[snake(key)] for key in ("AlarmDescription", "Namespace", "MetricName", "Statistic", "Period")
        } == {key: wanted[key] for key in ("AlarmDescription", "Namespace", "MetricName", "Statistic", "Period")}
        for key in ("EvaluationPeriods", "ComparisonOperator", "Threshold", "TreatMissingData"):
            assert alarm[snake(key)] == wanted[key], name
        names = {"Queue": NAME, "LeftoverQueue": f"{NAME}-leftover", "UndeliveredQueue": f"{NAME}-undelivered"}
        values = [one["Value"] for one in wanted["Dimensions"]]
        known = [
            value if isinstance(value, str) else names.get(value.get("Fn::GetAtt", [""])[0], NAME) for value in values
        ]
        assert alarm["dimensions"] == dict(zip((one["Name"] for one in wanted["Dimensions"]), known, strict=True)), name


@pytest.mark.terraform
def test_the_plan_has_the_templates_settings(both):
    """Queues, function, trigger, rule, table and log group have the values that the template gives them."""
    formation, plan = both
    for name in ("Queue", "LeftoverQueue", "UndeliveredQueue", "DeadLetters"):
        if name in formation.resources:
            wanted, queue = formation.properties(name), at(plan, name)
            assert queue["name"] == wanted["QueueName"]
            assert queue["message_retention_seconds"] == wanted["MessageRetentionPeriod"]
            assert queue["kms_master_key_id"] == wanted.get("KmsMasterKeyId")
    wanted, queue = formation.properties("Queue"), at(plan, "Queue")
    assert queue["visibility_timeout_seconds"] == wanted["VisibilityTimeout"]
    assert queue["receive_wait_time_seconds"] == wanted["ReceiveMessageWaitTimeSeconds"]
    assert json.loads(queue["redrive_policy"]) == arns(wanted["RedrivePolicy"])

    wanted, function = formation.properties("Function"), at(plan, "Function")
    for key in ("FunctionName", "Handler", "Runtime", "Architectures", "MemorySize", "Timeout"):
        assert function[snake(key)] == wanted[key]
    assert function["tracing_config"] == [{"mode": wanted["Tracing"]}]
    texts = {
        key: str(value) for key, value in wanted["Environment"]["Variables"].items() if isinstance(value, str | int)
    }
    if (
        "ONCEBRIDGE_DEAD_LETTER_QUEUE" not in wanted["Environment"]["Variables"]
    ):  # else it has a URL that is not known yet
        assert function["environment"] == [{"variables": texts}]
    network = [
        {"subnet_ids": one["SubnetIds"], "security_group_ids": one["SecurityGroupIds"]}
        for one in [wanted.get("VpcConfig")]
        if one
    ]
    assert [
        {key: sorted(part[key]) for key in ("subnet_ids", "security_group_ids")} for part in function["vpc_config"]
    ] == network

    trigger, mapping = wanted["Events"]["Queue"]["Properties"], at(plan, "", "aws_lambda_event_source_mapping.queue")
    assert mapping["batch_size"] == trigger["BatchSize"]
    assert mapping["maximum_batching_window_in_seconds"] == trigger["MaximumBatchingWindowInSeconds"]
    assert mapping["function_response_types"] == trigger["FunctionResponseTypes"]
    assert mapping["scaling_config"] == [{"maximum_concurrency": trigger["ScalingConfig"]["MaximumConcurrency"]}]
    direct = at(plan, "", "aws_lambda_function_event_invoke_config.function")
    assert direct["maximum_event_age_in_seconds"] == wanted["EventInvokeConfig"]["MaximumEventAgeInSeconds"]
    assert direct["maximum_retry_attempts"] == wanted["EventInvokeConfig"]["MaximumRetryAttempts"]

    wanted, rule = formation.properties("Rule"), at(plan, "Rule")
    assert json.loads(rule["event_pattern"]) == json.loads(wanted["EventPattern"])
    assert (rule["name"], rule["event_bus_name"], rule["state"]) == (
        wanted["Name"],
        wanted["EventBusName"],
        wanted["State"],
    )
    (target,), sent = wanted["Targets"], at(plan, "", "aws_cloudwatch_event_target.queue")
    assert (sent["target_id"], sent["arn"]) == (target["Id"], arns(target["Arn"]))
    assert sent["dead_letter_config"] == [{"arn": arns(target["DeadLetterConfig"]["Arn"])}]
    assert sent["retry_policy"] == [{snake(key): value for key, value in target["RetryPolicy"].items()}]

    wanted, group = formation.properties("LogGroup"), at(plan, "LogGroup")
    assert (group["name"], group["retention_in_days"]) == (wanted["LogGroupName"], wanted["RetentionInDays"])
    assert group["kms_key_id"] == wanted.get("KmsKeyId")
    if "Table" in formation.resources:
        wanted, table = formation.properties("Table"), at(plan, "Table")
        assert (table["name"], table["billing_mode"]) == (wanted["TableName"], wanted["BillingMode"])
        assert [table["hash_key"], table["range_key"]] == [one["AttributeName"] for one in wanted["KeySchema"]]
        assert (table["deletion_protection_enabled"], table["point_in_time_recovery"][0]["enabled"]) == (True, True)
        assert table["ttl"][0] == {
            "attribute_name": wanted["TimeToLiveSpecification"]["AttributeName"],
            "enabled": True,
        }


@pytest.mark.terraform
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"Ledger": "Redis"}, "redis_url_secret"),
        ({"BatchSize": 50}, "batching_seconds"),
        ({"Timeout": 61}, "timeout: one of 30, 60, 120, 300, 900"),
        ({"RedisUrlSecret": "rediss://user:password@host:6379/0"}, "redis_url_secret is not of the form"),
    ],
    ids=str,
)
def test_wrong_variables_are_refused(terraform, given, said):
    """A plan with a value that the template refuses is refused, by the variable's name."""
    with pytest.raises(AssertionError) as refusal:
        planned(terraform, EventBusName="default", **given)
    assert said in re.sub(r"[│\s]+", " ", str(refusal.value))


@pytest.mark.terraform
def test_the_module_is_formatted_and_valid(terraform):
    """Terraform's own formatter has nothing to change, and its validation nothing to say."""
    assert terraform.run("fmt", "-check", "-recursive", str(MODULE)) == ""
    terraform.run("validate")
