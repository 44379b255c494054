"""The shape of the package: who may import whom, what only one module may do, and how long things get.

A rule is a function of a module's name and source that returns what is wrong, so each one is also shown to
catch a planted violation. Names are relative to the package and keep `__init__`, as in `ledgers.__init__`.
"""

import ast
import graphlib
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

PACKAGE = "oncebridge"

# A module imports only from lines above its own. A line covers every module in a package of that name, unless
# the module has a line itself.
ORDER = [
    "errors",
    "clock",
    "forks",
    "threads",
    "discreet",
    "visible",
    "quantities",
    "validation",
    "interrupts",
    "handles",
    "strict_json",
    "event",
    "topics",
    "identity",
    "attendance",
    "claim",
    "retry",
    "amazon",
    "ledgers.findings",
    "ledgers.grants",
    "ledgers.protocol",
    "ledgers.notes",
    "ledgers.pages",
    "ledgers.marks",
    "ledgers",
    "breaker",
    "telemetry",
    "handler_signature",
    "handlers",
    "genesys_topics",
    "settings",
    "sinks",
    "engine.result",
    "engine.limits",
    "engine.unhandled",
    "engine.task",
    "engine.attending",
    "engine.waiting",
    "engine.batch_order",
    "engine.joining",
    "engine.reader",
    "engine.runs",
    "engine.claimer",
    "engine.paused",
    "engine.error_text",
    "engine.loop",
    "engine.runner",
    "engine.letter_room",
    "engine.completer",
    "engine.side_by_side",
    "engine.flow",
    "engine",
    "journal.plain",
    "journal.records",
    "journal.actions",
    "journal.pauses",
    "journal.requests",
    "journal.tally",
    "journal.silence",
    "journal.worker",
    "journal.writer",
    "journal.reader",
    "journal.overview",
    "journal",
    "sources.unwrap",
    "sources.http_reply",
    "sources.request_body",
    "sources.api_keys",
    "sources.invocation",
    "sources.http_request",
    "sources.captures.found",
    "sources.captures.log_lines",
    "sources.captures.log_shapes",
    "sources.captures.inputs",
    "sources.captures.scanning",
    "sources.captures.opening",
    "sources.captures.reading",
    "sources.captures",
    "sources.file",
    "sources.shadow_queue",
    "sources.sqs.queue",
    "sources.sqs.postponing",
    "sources.lambda_handler",
    "sources.sqs.in_flight",
    "sources.sqs.visibility",
    "sources.sqs.consumer",
    "sources.remote_claims",
    "sources",
    "letter_filter",
    "journal.wanted",
    "deadletters",
    "request_runner",
    "worker_journal",
    "bridge",
    "known_keys",
    "charts.drawing",
    "charts.bars",
    "charts.over_time",
    "charts.over_lags",
    "charts",
    "markup",
    "report_page",
    "genesys.conversations",
    "genesys.saved",
    "genesys.api",
    "genesys.details",
    "genesys",
    "reconciling.expected",
    "reconciling.gaps",
    "reconciling.silences",
    "reconciling.comparison",
    "reconciling.result",
    "reconciling.words",
    "reconciling.subscribed",
    "reconciling.changes",
    "reconciling.slices",
    "reconciling.runs",
    "reconciling.place",
    "reconciling.study",
    "reconciling.filling",
    "reconciling.page",
    "reconciling",
    "diagnosis.diagnosis",
    "diagnosis.same_fact",
    "diagnosis.sighting",
    "diagnosis.arrivals",
    "diagnosis.evidence",
    "diagnosis.words",
    "diagnosis.causes",
    "diagnosis.lags",
    "diagnosis.sums",
    "diagnosis.keys",
    "diagnosis.spill",
    "diagnosis.chunks",
    "diagnosis.grouping",
    "diagnosis.backtest",
    "diagnosis.processes",
    "diagnosis.advice",
    "diagnosis.answer",
    "diagnosis.diagnose",
    "diagnosis.comparison",
    "diagnosis.echo_settings",
    "diagnosis.page.examples",
    "diagnosis.page.cutting",
    "diagnosis.page.reading",
    "diagnosis.page.sections",
    "diagnosis.page.backtest",
    "diagnosis.page.advice",
    "diagnosis.page",
    "diagnosis.explain",
    "diagnosis.on_ledger",
    "diagnosis.retries",
    "diagnosis.comparable",
    "diagnosis.installation",
    "diagnosis.examination",
    "diagnosis",
    "service.request_limits",
    "service.request_batcher",
    "service.events",
    "service.claim_messages",
    "service.signed_claim",
    "service.claims",
    "service.openapi",
    "service.app",
    "service.connections",
    "service.metrics",
    "service.workers",
    "service",
    "console.access",
    "console.layout",
    "console.pages",
    "console.reading",
    "console.answers",
    "console.forms",
    "console.app",
    "console.wiring",
    "console",
    "simulation",
    "cli",
    "testing",
]
# The outside of the package: they may import anything, and nothing inside may import them.
FACES = ["aws", "__init__", "__main__"]

# Who may do what others may not, and why.
READS_TIME = {"clock": "one place to read time is one place to move it in tests"}
LOGS = {
    "telemetry": "one record per move, so logs and metrics cannot disagree",
    "cli": "the command line decides where log lines go",
}
READS_ENVIRONMENT = {
    "settings": "one place says which setting won",
    "cli": "terminal width, colours and the like belong to the terminal",
}

CATCH_ALL_NAMES = {"base", "common", "helper", "helpers", "misc", "util", "utils"}
MODULE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70

TIME_CALLS = {
    "datetime.date.today",
    "datetime.datetime.now",
    "datetime.datetime.today",
    "datetime.datetime.utcnow",
}
ENVIRONMENT_NAMES = {"os.environ", "os.environb", "os.getenv", "os.getenvb"}

Rule = Callable[[str, str], list[str]]


# --- reading source -----------------------------------------------------------------------------------------


def imported_names(module: str, source: str) -> Iterator[str]:
    """Yield the absolute dotted name of everything imported, wherever in the module it happens."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=origin, names=names, level=level):
                parent = [PACKAGE, *module.split(".")][:-level] if level else []
                start = ".".join([*parent, *([origin] if origin else [])])
                yield from (f"{start}.{alias.name}" for alias in names)
            case ast.Call(func=func, args=[ast.Constant(value=str(name)), *_]):
                if ast.unparse(func).split(".")[-1] in {"import_module", "__import__"}:
                    yield name


def imports_within(module: str, source: str) -> Iterator[str]:
    """Yield what the module imports from this package, relative to it; the package itself is empty."""
    for name in imported_names(module, source):
        if name == PACKAGE or name.startswith(f"{PACKAGE}."):
            yield name.removeprefix(PACKAGE).removeprefix(".")


def used_names(source: str) -> Iterator[str]:
    """Yield the dotted names the module uses, with its own aliases replaced by where they come from."""
    tree = ast.parse(source)
    origin: dict[str, str] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                origin |= {a.asname: a.name for a in names if a.asname}
            case ast.ImportFrom(module=str(module), names=names, level=0):
                origin |= {a.asname or a.name: f"{module}.{a.name}" for a in names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name):
            first, *rest = ast.unparse(node).split(".")
            yield ".".join([origin.get(first, first), *rest])


def prefixes(name: str) -> Iterator[str]:
    """Yield the name, then each shorter dotted beginning of it."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        yield ".".join(parts[:length])


def line_of(name: str) -> str | None:
    """Return the line of ORDER or FACES that covers this name."""
    return next((prefix for prefix in prefixes(name) if prefix in ORDER or prefix in FACES), None)


def is_allowed(module: str, allowed: dict[str, str]) -> bool:
    """Tell whether the module, or a package it lies in, is among those allowed."""
    return any(prefix in allowed for prefix in prefixes(module))


# --- the rules ----------------------------------------------------------------------------------------------


def has_a_place(module: str, source: str) -> list[str]:
    """Require a line in the order."""
    if line_of(module) is None:
        return [f"{module}: not in ORDER; add it there, in its place"]
    return []


def imports_from_above(module: str, source: str) -> list[str]:
    """Forbid imports from lines below, and of the faces."""
    own = line_of(module)
    if own is None or own in FACES:
        return []
    found = []
    for name in imports_within(module, source):
        line = line_of(name)
        if line is None or line in FACES:
            found.append(f"{module}: imports {name or PACKAGE!r}, which is the outside of the package or unknown")
        elif ORDER.index(line) > ORDER.index(own):
            found.append(f"{module}: imports {name}, but {line} comes after {own}")
    return found


def reads_no_time(module: str, source: str) -> list[str]:
    """Forbid the time module and asking datetime for now, outside clock.py."""
    if is_allowed(module, READS_TIME):
        return []
    imports = {name for name in imported_names(module, source) if name.split(".")[0] == "time"}
    calls = TIME_CALLS & set(used_names(source))
    return [f"{module}: {name} reads the time; take a clock from {PACKAGE}.clock" for name in sorted(imports | calls)]


def does_not_log(module: str, source: str) -> list[str]:
    """Forbid logging outside telemetry.py."""
    names = {name.split(".")[0] for name in imported_names(module, source)}
    if "logging" in names and not is_allowed(module, LOGS):
        return [f"{module}: imports logging; hand a record to {PACKAGE}.telemetry"]
    return []


def reads_no_environment(module: str, source: str) -> list[str]:
    """Forbid environment variables outside settings.py."""
    if is_allowed(module, READS_ENVIRONMENT):
        return []
    names = ENVIRONMENT_NAMES & {*used_names(source), *imported_names(module, source)}
    return [f"{module}: {name}; let {PACKAGE}.settings read it and pass the value" for name in sorted(names)]


def is_short(module: str, source: str) -> list[str]:
    """Limit the length of a module."""
    lines = len(source.splitlines())
    return [f"{module}: {lines} lines, at most {MODULE_LINES_MAX}"] if lines > MODULE_LINES_MAX else []


def has_short_functions(module: str, source: str) -> list[str]:
    """Limit the length of a function, signature and docstring included."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                found.append(f"{module}: {node.name} has {lines} lines, at most {FUNCTION_LINES_MAX}")
    return found


def has_docstring(module: str, source: str) -> list[str]:
    """Require a sentence that says what the module is for."""
    return [] if (ast.get_docstring(ast.parse(source)) or "").strip() else [f"{module}: no docstring"]


def has_a_meaning(module: str, source: str) -> list[str]:
    """Forbid names that promise nothing, so anything ends up behind them."""
    names = CATCH_ALL_NAMES & {part.strip("_") for part in module.split(".")}
    return [f"{module}: {name} says nothing; name it for what it does" for name in sorted(names)]


def cycles(sources: dict[str, str]) -> list[str]:
    """Find a circle of imports among these modules, lazy imports and those for types included."""
    graph: dict[str, set[str]] = {}
    for module, source in sources.items():
        targets = (target_of(name, sources) for name in imports_within(module, source))
        # Importing a sibling runs the package's __init__ anyway; only a name taken from it counts.
        graph[module] = {target for target in targets if target and target != module}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return [" <- ".join(error.args[1])]
    return []


def target_of(name: str, sources: dict[str, str]) -> str | None:
    """Return the module that an imported name lies in."""
    for prefix in prefixes(name):
        for module in (prefix, f"{prefix}.__init__"):
            if module in sources:
                return module
    return "__init__" if "__init__" in sources else None


# --- the package obeys them ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    """Return the source of every module of the package under test."""
    spec = importlib.util.find_spec(PACKAGE)
    assert spec
    assert spec.origin
    folder = Path(spec.origin).parent
    return {
        ".".join(path.relative_to(folder).with_suffix("").parts): path.read_text(encoding="utf-8")
        for path in sorted(folder.rglob("*.py"))
    }


def require(rule: Rule, sources: dict[str, str]) -> None:
    """Apply a rule to every module and fail with all it finds, one on a line."""
    if found := [finding for module, source in sources.items() for finding in rule(module, source)]:
        pytest.fail("\n".join(found), pytrace=False)


def test_every_module_has_its_place(sources):
    """Every module belongs to a line of the order."""
    require(has_a_place, sources)


def test_imports_point_upwards(sources):
    """A module imports only from modules above its own."""
    require(imports_from_above, sources)


def test_imports_form_no_circle(sources):
    """No modules import each other in a circle, not even lazily or for types."""
    assert not cycles(sources)


def test_only_the_clock_reads_time(sources):
    """Time is read in clock.py alone."""
    require(reads_no_time, sources)


def test_only_telemetry_logs(sources):
    """Log lines are written in telemetry.py alone."""
    require(does_not_log, sources)


def test_only_settings_read_the_environment(sources):
    """Environment variables are read in settings.py and by the command line alone."""
    require(reads_no_environment, sources)


def test_modules_are_short(sources):
    """No module is longer than 500 lines."""
    require(is_short, sources)


def test_functions_fit_on_a_screen(sources):
    """No function is longer than 70 lines."""
    require(has_short_functions, sources)


def test_modules_say_what_they_are_for(sources):
    """Every module has a docstring."""
    require(has_docstring, sources)


def test_no_module_is_a_drawer_for_anything(sources):
    """No module is called utils, helpers, common or misc."""
    require(has_a_meaning, sources)


# --- the rules can fail -------------------------------------------------------------------------------------

LONG_FUNCTION = "def long():\n" + "    x = 1\n" * FUNCTION_LINES_MAX
PLANTED = [
    (has_a_place, "gadgets", ""),
    (has_a_place, "gadgets.wheel", ""),
    (imports_from_above, "event", "from oncebridge.bridge import Bridge"),
    (imports_from_above, "event", "import oncebridge.bridge"),
    (imports_from_above, "event", "from oncebridge import bridge"),
    (imports_from_above, "event", "from . import bridge"),
    (imports_from_above, "event", "from .bridge import Bridge"),
    (imports_from_above, "ledgers.memory", "from ..breaker import Breaker"),
    (imports_from_above, "ledgers.__init__", "from ..breaker import Breaker"),
    (imports_from_above, "ledgers.protocol", "from .memory import MemoryLedger"),
    (imports_from_above, "event", "def f():\n    from oncebridge.bridge import Bridge"),
    (imports_from_above, "event", "import typing\nif typing.TYPE_CHECKING:\n    from .bridge import Bridge"),
    (imports_from_above, "event", "import importlib\nimportlib.import_module('oncebridge.bridge')"),
    (imports_from_above, "cli.__init__", "from oncebridge import Bridge"),
    (imports_from_above, "cli.__init__", "import oncebridge"),
    (imports_from_above, "cli.__init__", "from oncebridge.aws import handler"),
    (imports_from_above, "cli.demo", "from oncebridge.testing import faults"),
    (reads_no_time, "event", "import time"),
    (reads_no_time, "event", "from time import monotonic as m"),
    (reads_no_time, "cli.demo", "def f():\n    import time as t"),
    (reads_no_time, "testing.faults", "import datetime\ndatetime.datetime.now()"),
    (reads_no_time, "event", "import datetime as dt\ndt.datetime.now(dt.UTC)"),
    (reads_no_time, "event", "from datetime import datetime as d\nd.utcnow()"),
    (reads_no_time, "event", "from datetime import date\ndate.today()"),
    (reads_no_time, "event", "from datetime import datetime\nnow = datetime.now"),
    (does_not_log, "bridge", "import logging"),
    (does_not_log, "bridge", "from logging import getLogger"),
    (does_not_log, "bridge", "import logging.handlers"),
    (reads_no_environment, "bridge", "import os\nos.environ['A']"),
    (reads_no_environment, "bridge", "import os as o\no.getenv('A')"),
    (reads_no_environment, "bridge", "from os import environ"),
    (reads_no_environment, "bridge", "from os import getenv as g"),
    (is_short, "event", "\n" * (MODULE_LINES_MAX + 1)),
    (has_short_functions, "event", LONG_FUNCTION),
    (has_short_functions, "event", LONG_FUNCTION.replace("def", "async def")),
    (has_short_functions, "event", "class A:\n" + "".join(f"    {x}\n" for x in LONG_FUNCTION.splitlines())),
    (has_docstring, "event", "x = 1"),
    (has_docstring, "event", '"""  """'),
    (has_a_meaning, "utils", ""),
    (has_a_meaning, "ledgers._helpers", ""),
    (has_a_meaning, "misc.__init__", ""),
]
INNOCENT = [
    (has_a_place, "ledgers.sqlite", ""),
    (has_a_place, "__main__", ""),
    (imports_from_above, "bridge", "import json\nfrom oncebridge import errors\nfrom .event import parse"),
    (
        imports_from_above,
        "ledgers.memory",
        "from .protocol import Ledger\nfrom oncebridge.ledgers import protocol",
    ),
    (imports_from_above, "ledgers.__init__", "from .memory import MemoryLedger\nfrom . import sqlite"),
    (imports_from_above, "bridge", "import oncebridger\nfrom oncebridger.testing import x"),
    (imports_from_above, "__init__", "from .bridge import Bridge"),
    (imports_from_above, "aws", "from oncebridge import Bridge"),
    (reads_no_time, "clock", "import time\ntime.time()"),
    (
        reads_no_time,
        "event",
        "from datetime import datetime\nfrom .clock import Clock\nclock.now()\nevent.time.now",
    ),
    (does_not_log, "telemetry", "import logging"),
    (does_not_log, "cli.__init__", "import logging"),
    (reads_no_environment, "settings", "import os\nos.environ"),
    (reads_no_environment, "cli.demo", "from os import environ"),
    (reads_no_environment, "bridge", "import os\nos.path\nenviron = {}"),
    (is_short, "event", "\n" * MODULE_LINES_MAX),
    (has_short_functions, "event", LONG_FUNCTION.removesuffix("    x = 1\n")),
    (has_docstring, "event", '"""Parse events."""'),
    (has_a_meaning, "ledgers.protocol", ""),
]


@pytest.mark.parametrize(("rule", "module", "source"), PLANTED)
def test_each_rule_catches_a_planted_violation(rule, module, source):
    """A rule that cannot fail is worthless."""
    assert rule(module, source)


@pytest.mark.parametrize(("rule", "module", "source"), INNOCENT)
def test_no_rule_accuses_the_innocent(rule, module, source):
    """A rule that cries wolf gets switched off."""
    assert not rule(module, source)


@pytest.mark.parametrize(
    "sources",
    [
        {"ledgers.a": "from .b import x", "ledgers.b": "def f():\n    from .a import y"},
        {
            "ledgers.a": "import typing\nif typing.TYPE_CHECKING:\n    from oncebridge.ledgers import b",
            "ledgers.b": "from . import a",
        },
        {"ledgers.__init__": "from .a import x", "ledgers.a": "from oncebridge.ledgers import y"},
        {"cli.a": "from .b import x", "cli.b": "from .c import x", "cli.c": "from .a import x"},
    ],
)
def test_a_planted_circle_is_found(sources):
    """A circle is found whether its imports are plain, lazy, for types, or through the package itself."""
    assert cycles(sources)


def test_a_package_may_import_its_own_modules():
    """A package's table of its modules is no circle as long as they leave the package alone."""
    sources = {
        "ledgers.__init__": "from .memory import MemoryLedger\nfrom .protocol import Ledger",
        "ledgers.memory": "from .protocol import Ledger",
        "ledgers.protocol": "from oncebridge.claim import Claim",
        "claim": "",
    }
    assert not cycles(sources)
