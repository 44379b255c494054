"""What CloudFormation makes of a template with given parameters: conditions decided, values filled in."""

import re
from collections.abc import Callable
from typing import Any

_NOTHING = object()
#: What CloudFormation knows by itself.
PSEUDO = {
    "AWS::AccountId": "123456789012",
    "AWS::Partition": "aws",
    "AWS::Region": "eu-central-1",
    "AWS::StackName": "stack",
    "AWS::URLSuffix": "amazonaws.com",
    "AWS::NoValue": _NOTHING,
}

#: Functions of values alone.
_PLAIN: dict[str, Callable[[list[Any]], Any]] = {
    "Equals": lambda values: str(values[0]) == str(values[1]),
    "Not": lambda values: not values[0],
    "And": all,
    "Or": any,
    "Join": lambda values: values[0].join(values[1]),
}


class Formation:
    """A template with parameters; references to resources stay as they are."""

    def __init__(self, template: dict[str, Any], **parameters: Any) -> None:
        """Take defaults for whatever is not given; a required one that is missing is its own name."""
        self._template = template
        unknown = set(parameters) - set(template["Parameters"])
        assert not unknown, f"no such parameters: {unknown}"
        given = {name: parameters.get(name, one.get("Default", name)) for name, one in template["Parameters"].items()}
        lists = [name for name, one in template["Parameters"].items() if one["Type"] == "CommaDelimitedList"]
        self._values = {**PSEUDO, **given, **{name: str(given[name]).split(",") for name in lists}}

    @property
    def resources(self) -> dict[str, Any]:
        """The resources that there are, with what is known filled in."""
        return {
            name: self.value({key: part for key, part in one.items() if key != "Condition"})
            for name, one in self._template["Resources"].items()
            if "Condition" not in one or self.holds(one["Condition"])
        }

    def properties(self, name: str) -> dict[str, Any]:
        """Return the properties of one resource."""
        return dict(self.resources[name]["Properties"])

    def refused(self) -> list[str]:
        """Return what the template's rules say against these parameters."""
        return [
            assertion["AssertDescription"]
            for rule in self._template.get("Rules", {}).values()
            if "RuleCondition" not in rule or self.value(rule["RuleCondition"])
            for assertion in rule["Assertions"]
            if not self.value(assertion["Assert"])
        ]

    def holds(self, condition: str) -> bool:
        """Decide a condition."""
        return bool(self.value(self._template["Conditions"][condition]))

    def value(self, node: Any) -> Any:
        """Fill in what is known; what has no value is left out."""
        if isinstance(node, list):
            return [value for value in map(self.value, node) if value is not _NOTHING]
        if not isinstance(node, dict):
            return node
        if len(node) == 1:
            ((name, argument),) = node.items()
            if name == "Condition" and isinstance(argument, str):
                return self.holds(argument)
            if name == "Ref":
                return self._values.get(argument, node)
            if name.startswith("Fn::") and name != "Fn::GetAtt":
                return self._function(name.removeprefix("Fn::"), argument)
        values = {key: self.value(part) for key, part in node.items()}
        return {key: value for key, value in values.items() if value is not _NOTHING}

    def _function(self, name: str, argument: Any) -> Any:
        if name == "If":
            condition, then, otherwise = argument
            return self.value(then if self.holds(condition) else otherwise)
        if name == "Sub":
            text, names = (argument, {}) if isinstance(argument, str) else argument
            return re.sub(r"\$\{([^}]+)\}", lambda found: self._inserted(found[1], names), text)
        values = self.value(argument)
        if name == "FindInMap":
            table, row, column = values
            return self._template["Mappings"][table][str(row)][column]
        return _PLAIN[name](values)

    def _inserted(self, name: str, names: dict[str, Any]) -> str:
        if name in names:
            return str(self.value(names[name]))
        return str(self._values.get(name, f"${{{name}}}"))


def needs(resource: dict[str, Any], names: set[str]) -> set[str]:
    """Return the resources that must be there before one can be made: those that it names."""
    before = resource.get("DependsOn", [])
    said = {before} if isinstance(before, str) else set(before)
    return (said | _named(resource["Properties"])) & names


def _named(node: Any) -> set[str]:
    if isinstance(node, list):
        return set().union(*map(_named, node))
    if not isinstance(node, dict):
        return set()
    found: set[str] = set()
    for key, part in node.items():
        if key == "Ref":
            found.add(part)
        elif key == "Fn::GetAtt":
            found.add(part[0])
        elif key == "Fn::Sub":
            text = part if isinstance(part, str) else part[0]
            found.update(name.split(".")[0] for name in re.findall(r"\$\{([^}!]+)\}", text))
            found |= set() if isinstance(part, str) else _named(part[1])
        else:
            found |= _named(part)
    return found


def needed_for(resources: dict[str, Any], name: str) -> set[str]:
    """Return everything that must be there before a resource, directly or because another needs it."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        for one in needs(resources[waiting.pop()], set(resources)) - found:
            found.add(one)
            waiting.append(one)
    return found
