"""The template that users deploy: read as CloudFormation reads it, and deployed to the emulator."""

import importlib.util
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

from servers.aws import Ministack
from servers.process import wait_until

ROOT = Path(__file__).resolve().parent.parent.parent
TEMPLATE = ROOT / "deploy" / "template.yaml"
BUCKET = "code"
#: What the function's zip holds; for the Python that runs here, since that is what the emulator runs functions with.
LIBRARIES = ("oncebridge", "msgspec", "jmespath", "urllib3", "redis", "hiredis")
if sys.version_info < (3, 11, 3):
    LIBRARIES += ("async_timeout",)  # redis needs it there


class _Loader(yaml.SafeLoader):
    """Reads the short forms of CloudFormation's functions as the long ones."""


def _function(loader: _Loader, name: str, node: yaml.Node) -> dict[str, Any]:
    if isinstance(node, yaml.ScalarNode):
        text = loader.construct_scalar(node)
        given: Any = str(text).split(".", 1) if name == "GetAtt" else text
    elif isinstance(node, yaml.SequenceNode):
        given = loader.construct_sequence(node, deep=True)
    else:
        given = loader.construct_mapping(node, deep=True)
    return {name if name in ("Ref", "Condition") else f"Fn::{name}": given}


_Loader.add_multi_constructor("!", _function)


def read_template() -> dict[str, Any]:
    """Return the template, with functions in their long form."""
    read: dict[str, Any] = yaml.load(TEMPLATE.read_text(encoding="utf-8"), _Loader)
    return read


def tool(name: str) -> Any:
    """Import one of the scripts in tools/."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def function_zip(path: Path) -> bytes:
    """Make the function's zip for the Python that runs here."""
    package = tool("package")
    package.write_zip(path, package.together(*(package.given(_folder_of(library)) for library in LIBRARIES)))
    return path.read_bytes()


def _folder_of(library: str) -> Path:
    spec = importlib.util.find_spec(library)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def for_the_emulator(template: Mapping[str, Any]) -> dict[str, Any]:
    """Return the template as `aws cloudformation package` would, and with one number in the place of a parameter.

    The emulator takes the text of a parameter for a number only where it looks for one, and there it does not.
    """
    copy = deepcopy(dict(template))
    function = copy["Resources"]["Function"]["Properties"]
    function["CodeUri"] = {"Bucket": BUCKET, "Key": "function.zip"}
    scaling = function["Events"]["Queue"]["Properties"]["ScalingConfig"]
    assert scaling == {"MaximumConcurrency": {"Ref": "MaximumConcurrency"}}
    scaling["MaximumConcurrency"] = copy["Parameters"]["MaximumConcurrency"]["Default"]
    return copy


class Stack:
    """A stack that is deployed."""

    def __init__(
        self,
        server: Ministack,
        name: str,
        template: Mapping[str, Any],
        tags: Mapping[str, str] | None = None,
        **parameters: str,
    ) -> None:
        """Deploy it, and wait until it is there."""
        self.name = name
        self._logs = server.client("logs")
        self._formation = server.client("cloudformation")
        self._formation.create_stack(
            StackName=name,
            TemplateBody=json.dumps(for_the_emulator(template)),
            Parameters=[{"ParameterKey": key, "ParameterValue": value} for key, value in parameters.items()],
            Capabilities=["CAPABILITY_IAM", "CAPABILITY_AUTO_EXPAND"],
            Tags=[{"Key": key, "Value": value} for key, value in (tags or {}).items()],
        )
        wait_until(lambda: not self.status.endswith("IN_PROGRESS"), f"stack {name}")
        assert self.status == "CREATE_COMPLETE", self._failures()

    @property
    def status(self) -> str:
        """What CloudFormation says of it."""
        return str(self._described()["StackStatus"])

    @property
    def outputs(self) -> dict[str, str]:
        """What it tells whoever deployed it."""
        return {output["OutputKey"]: output["OutputValue"] for output in self._described()["Outputs"]}

    def _described(self) -> dict[str, Any]:
        (found,) = self._formation.describe_stacks(StackName=self.name)["Stacks"]
        return dict(found)

    def _failures(self) -> list[str]:
        events = self._formation.describe_stack_events(StackName=self.name)["StackEvents"]
        return [f"{one['LogicalResourceId']}: {one.get('ResourceStatusReason')}" for one in events]

    @property
    def made(self) -> list[str]:
        """What was made, in that order."""
        events = self._formation.describe_stack_events(StackName=self.name)["StackEvents"]
        done = [one for one in reversed(events) if one["ResourceStatus"] == "CREATE_COMPLETE"]
        return [str(one["LogicalResourceId"]) for one in done]

    def log(self) -> list[str]:
        """Return every line that the function has written."""
        group = f"/aws/lambda/{self.name}"
        streams = [each["logStreamName"] for each in self._logs.describe_log_streams(logGroupName=group)["logStreams"]]
        pages = [self._logs.get_log_events(logGroupName=group, logStreamName=name)["events"] for name in streams]
        return [event["message"] for events in pages for event in events]

    def delete(self) -> None:
        """Remove it."""
        self._formation.delete_stack(StackName=self.name)
        wait_until(self._is_gone, f"stack {self.name} to be deleted")

    def _is_gone(self) -> bool:
        stacks = self._formation.describe_stacks()["Stacks"]
        return self.name not in {stack["StackName"] for stack in stacks if stack["StackStatus"] != "DELETE_COMPLETE"}


@contextmanager
def deployed(
    server: Ministack,
    name: str,
    template: Mapping[str, Any],
    tags: Mapping[str, str] | None = None,
    **parameters: str,
) -> Iterator[Stack]:
    """Deploy a stack, and remove it in the end."""
    stack = Stack(server, name, template, tags, **parameters)
    try:
        yield stack
    finally:
        stack.delete()
