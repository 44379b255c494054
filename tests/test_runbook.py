"""The runbook has every alarm and every log line of level warning or above."""

import ast
import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src/oncebridge"
RUNBOOK = (ROOT / "docs/runbook.md").read_text()
SPANS = {" ".join(span.split()) for span in re.findall(r"`([^`\n]+)`", RUNBOOK)}

#: The functions that write such lines, or are given their words.
WRITERS = {"warn", "_warn", "_log", "began", "Outage"}
LOGGER = {"warning", "error", "exception", "critical", "log"}
#: Lines whose words are not written where they are logged, by module and expression.
MADE_ELSEWHERE = {
    ("breaker", "self._outage.began(words, now_us)"): [],  # after the prefix of an outage
    ("engine.letter_room", "self._telemetry.warn(self.words)"): [
        (
            "there are dead_letters_max = … dead letters already, so it is not acknowledged, and comes again; "
            "redrive or discard some: oncebridge dead list"
        )
    ],
    ("service.connections", "self._warn(words)"): [],  # of the next one
    ("service.connections", "self._log(reason, self._words(reason, len(connections)))"): [
        "… connections were closed: their clients had not taken an answer for … s",
        (
            "… connections were closed: one address had more than connections_per_peer = …; behind a proxy, "
            "set it higher, in [serve] of the settings"
        ),
        "… connections were closed: all connections = … were taken, and these were idle",
    ],
    ("telemetry.failures", "self._warn(move, f'{who}: {move.reason}', unsaid, place, detail)"): [
        "…: handler raised … at attempt … of …; to be tried again"
    ],
    ("telemetry.__init__", "logger.warning(visible(message), extra={'oncebridge': fields})"): [],  # of all others
}


def module_name(path):
    """Return the name of a module inside the package."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


def _part(node):
    return node.value if isinstance(node, ast.Constant) else "…"


def words(node):
    """Return a text as the runbook writes it, with … for every part that is not fixed; None if nothing is."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value.replace("%s", "…")
    if isinstance(node, ast.JoinedStr):
        return re.sub("…+", "…", "".join(_part(part) for part in node.values))
    return None


def assigned(node):
    """Yield the variable that an assignment gives a text to, with that text."""
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    text = words(node.value) if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
    for target in targets if text else ():
        if isinstance(target, ast.Name):
            yield target.id, text


def is_writer(call):
    """Return whether a call writes a log line, or passes its words on."""
    if isinstance(call.func, ast.Name):
        return call.func.id in WRITERS
    if not isinstance(call.func, ast.Attribute):
        return False
    on = ast.unparse(call.func.value)
    return call.func.attr in WRITERS or (on == "logger" and call.func.attr in LOGGER)


def written():
    """Yield the module, the call and the words of each line."""
    for path in sorted(PACKAGE.rglob("*.py")):
        nodes = [*ast.walk(ast.parse(path.read_text()))]
        named = dict(variable for node in nodes for variable in assigned(node))
        for node in nodes:
            if isinstance(node, ast.Call) and is_writer(node):
                given = [*node.args, *(keyword.value for keyword in node.keywords)]
                texts = [named.get(one.id) if isinstance(one, ast.Name) else words(one) for one in given]
                found = [text for text in texts if text is not None and len(text.strip("… :")) > 8]
                yield module_name(path), ast.unparse(node), found


def test_every_log_line_is_in_the_runbook():
    """Each text that is logged at level warning or above is in the runbook, word for word."""
    lines = {text.rstrip(": ") if text.endswith(": ") else text for _, _, found in written() for text in found}
    lines |= {text for found in MADE_ELSEWHERE.values() for text in found}
    assert len(lines) > 15
    missing = {line for line in lines if not any(line in span for span in SPANS)}
    assert missing == set(), "add them to the table at the end of docs/runbook.md"


def test_no_log_line_hides_its_words():
    """A line whose words are made elsewhere is listed here with them, so that the test above sees it."""
    hidden = {(module, call) for module, call, found in written() if not found and "lambda _: None" not in call}
    assert hidden == set(MADE_ELSEWHERE)


def test_the_table_has_no_line_that_nobody_writes():
    """A row whose line is gone from the source is removed."""
    table = RUNBOOK.split("| log line |")[1]
    source = " ".join(text for _, _, found in written() for text in found)
    source += " ".join(text for found in MADE_ELSEWHERE.values() for text in found)
    for row in table.splitlines()[2:]:
        line = re.match(r"\| `([^`]+)`", row)
        assert line, row
        longest = max(line[1].split("…"), key=len)
        assert longest.strip() in source, row


def alarms():
    """Return the ends of the names of the template's alarms."""
    text = (ROOT / "deploy/template.yaml").read_text()
    return re.findall(r'AlarmName: !Sub "\$\{AWS::StackName\}-([\w-]+)"', text)


def test_every_alarm_is_in_the_runbook():
    """Each alarm of the template and each alert of the rules has a row that leads to a heading."""
    rules = yaml.safe_load((ROOT / "deploy/prometheus/rules.yaml").read_text())
    names = [*alarms(), *(rule["alert"] for group in rules["groups"] for rule in group["rules"])]
    assert len(names) > 20
    rows = RUNBOOK.split("| CloudWatch |")[1].split("\n\n")[0].splitlines()
    for name in names:
        assert sum(f"`{name}`" in row and "](#" in row for row in rows) == 1, name


@pytest.mark.parametrize("call", ["telemetry.warn(f'no {x} here at all')", "logger.error('gone, all of it')"])
def test_a_new_line_is_seen(call):
    """The collector finds lines as they are usually written, so the comparison is not with nothing."""
    (node,) = [node for node in ast.walk(ast.parse(call)) if isinstance(node, ast.Call)]
    assert is_writer(node)
    assert words(node.args[0])
