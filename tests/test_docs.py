"""The documentation is true: what it shows runs, what it names exists, and what exists is named."""

import ast
import doctest
import importlib
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer
from msgspec.structs import replace

import oncebridge
from oncebridge import settings
from oncebridge.claim import SETTLED, Ask, Claim, Outcome, Settlement, Status, Verdict
from oncebridge.cli.app import app
from oncebridge.clock import SystemClock
from oncebridge.diagnosis.diagnosis import Cause, Diagnosis
from oncebridge.diagnosis.keys import BUILT_IN as KEYS
from oncebridge.diagnosis.words import LOOK_ALIKES
from oncebridge.errors import OncebridgeError
from oncebridge.ledgers.grants import Call, Entity, Record, claim_chain, claim_fact, settle_claim
from oncebridge.ledgers.memory import MemoryLedger
from oncebridge.retry import RetryPolicy
from oncebridge.settings.console import ConsoleSettings
from oncebridge.settings.genesys import GenesysSettings
from oncebridge.settings.reading import declared
from oncebridge.settings.serve import ServeSettings
from oncebridge.settings.sinks.bus import BusSettings
from oncebridge.settings.sinks.queue import QueueSettings
from oncebridge.settings.sinks.table import TableSettings
from oncebridge.settings.sinks.webhook import WebhookSettings
from oncebridge.simulation import simulate
from oncebridge.sinks import Breakers, SinkContext, make_sink
from oncebridge.telemetry import COLUMNS
from oncebridge.validation import metadata

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
GLOSSARY = ROOT / "docs" / "glossary.md"
ARCHITECTURE = ROOT / "docs" / "architecture.md"
GUARANTEES = ROOT / "docs" / "guarantees.md"
SETTINGS = ROOT / "docs" / "settings.md"
AWS = ROOT / "docs" / "aws.md"
CAPTURES = ROOT / "docs" / "captures.md"
CONSOLE = ROOT / "docs" / "console.md"
DIAGNOSE = ROOT / "docs" / "diagnose.md"
HTTP = ROOT / "docs" / "http.md"
RECONCILE = ROOT / "docs" / "reconcile.md"
SINKS = ROOT / "docs" / "sinks.md"
QUESTIONS = ROOT / "docs" / "questions.md"
CUT_OVER = ROOT / "docs" / "cut-over.md"
TESTING = ROOT / "docs" / "testing.md"
MANUAL = [
    README, GLOSSARY, ARCHITECTURE, GUARANTEES, SETTINGS, SINKS, AWS, CAPTURES, CONSOLE, DIAGNOSE, HTTP, CUT_OVER,
    QUESTIONS, TESTING, RECONCILE,
]  # fmt: skip
BESIDE = [ROOT / "deploy" / "README.md", *sorted((ROOT / "examples").glob("*/README.md"))]
OTHERS = [
    "docs/ledgers.md",
    "docs/proofs.md",
    "docs/specification.md",
    "docs/runbook.md",
    "docs/upgrading.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
]
DOCS = [*MANUAL, *BESIDE, *(ROOT / name for name in OTHERS)]

# Words of others for what we have a word for.
NOT_OURS = {"store", "job", "broker", "consumer", "idempotency", "dedup", "quarantine", "dlq"}


def named(path: Path) -> str:
    """Name a document in the output of tests."""
    return str(path.relative_to(ROOT))


# --- reading documents --------------------------------------------------------------------------------------


def read(path: Path) -> str:
    """Return the text of a file."""
    return path.read_text(encoding="utf-8")


class Block(NamedTuple):
    """A fenced block, its language, and the line that it begins on."""

    language: str
    line: int
    text: str


def blocks(path: Path, language: str | None = None) -> list[Block]:
    """Return the fenced blocks of a document, all or those of one language."""
    found: list[Block] = []
    lines: list[str] | None = None
    for number, line in enumerate(read(path).splitlines(), 1):
        if not line.startswith("```"):
            if lines is not None:
                lines.append(line)
        elif lines is None:
            opened, first, lines = line.removeprefix("```"), number + 1, []
        else:
            found.append(Block(opened, first, "\n".join(lines)))
            lines = None
    assert lines is None, f"{path.name}: a block is never closed"
    return [block for block in found if language in (None, block.language)]


def section(path: Path, title: str) -> str:
    """Return the text under a heading, up to the next one of that depth."""
    (found,) = re.findall(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", read(path), re.MULTILINE | re.DOTALL)
    return found


def table(text: str) -> list[list[str]]:
    """Return the rows of the one table in a text, without its heading."""
    rows = [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in text.splitlines() if line[:1] == "|"
    ]
    assert all(len(row) == len(rows[0]) for row in rows), "every row of a table has as many cells as its heading"
    return rows[2:]


def quoted(text: str) -> list[str]:
    """Return what stands in backticks, blocks left out."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))


def mentions(word: str, text: str) -> bool:
    """Tell whether a text holds a word, not only as part of a longer one."""
    return re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text) is not None


def manual() -> str:
    """Return everything that a user may read."""
    return "\n".join(read(path) for path in MANUAL)


# --- what is shown runs -------------------------------------------------------------------------------------


@pytest.fixture
def workplace(tmp_path):
    """Make a directory with a capture in it."""
    (tmp_path / "capture.jsonl").write_bytes(b"".join(delivery.raw + b"\n" for delivery in simulate(3, seed=1)))
    return tmp_path


def surroundings(directory: Path) -> dict[str, str]:
    """Return an environment in which `oncebridge` is the one under test, and nothing is set."""
    folder = directory / ".bin"
    folder.mkdir()
    command = folder / "oncebridge"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m oncebridge "$@"\n')
    command.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ONCEBRIDGE_")}
    # Unbuffered, so that standard output and standard error come in the order of a terminal.
    return {**kept, "PATH": f"{folder}:{os.environ['PATH']}", "COLUMNS": "200", "PYTHONUNBUFFERED": "1"}


@pytest.mark.parametrize("path", [path for path in DOCS if blocks(path, "python") and path != TESTING], ids=named)
def test_python_runs(path, workplace):
    """The Python of a document, read from top to bottom as one program, runs without an error or a warning."""
    lines = [""] * len(read(path).splitlines())
    for block in blocks(path, "python"):
        text = block.text.splitlines()
        lines[block.line - 1 : block.line - 1 + len(text)] = text
    program = workplace / f"{path.stem}.py"
    program.write_text("\n".join(lines))  # each line where it stands in the document, for tracebacks
    command = [sys.executable, "-W", "error", program.name]
    ran = subprocess.run(
        command, cwd=workplace, env=surroundings(workplace), capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")


def test_the_tests_of_the_manual_pass(tmp_path):
    """The files of the page on tests, each block in the file that its first line names, pass as tests of a user."""
    for block in blocks(TESTING, "python"):
        name = block.text.partition("\n")[0].removeprefix("# ")
        with (tmp_path / name).open("a") as file:
            file.write(f"{block.text}\n\n\n")
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "."]
    ran = subprocess.run(command, cwd=tmp_path, env=surroundings(tmp_path), capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout
    (passed,) = re.findall(r"(\d+) passed", ran.stdout)
    assert int(passed) >= read(tmp_path / "test_app.py").count("def test_") >= 9


def test_the_first_program_may_be_imported(tmp_path):
    """Lambda and `--handler` import a program: the README's first one then only registers its handlers."""
    (tmp_path / "app.py").write_text(blocks(README, "python")[0].text)
    command = [sys.executable, "-W", "error", "-c", "from app import bridge, lambda_handler"]
    ran = subprocess.run(command, cwd=tmp_path, env=surroundings(tmp_path), capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


@pytest.mark.parametrize("path", [path for path in DOCS if blocks(path, "console")], ids=named)
def test_console_runs(path, tmp_path):
    """The commands of a document, given one after the other, answer what it shows."""
    environment = surroundings(tmp_path)
    for block in blocks(path, "console"):
        parts = re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]
        assert parts, f"{path.name}, line {block.line}: shows no command"
        for part in parts:
            command, _, shown = part.partition("\n")
            ran = subprocess.run(
                ["sh", "-c", f"{command} 2>&1"],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            assert ran.returncode == 0, f"{path.name}: {command}: {ran.stdout}"
            same = doctest.OutputChecker().check_output(shown.rstrip() + "\n", ran.stdout, doctest.ELLIPSIS)
            assert same, f"{path.name}: {command} answers:\n{ran.stdout}"


#: One Python session: it gets blocks one by one, and says what each printed.
SESSION = """
import contextlib, io, json, sys

names = {"__name__": "__main__"}
for line in sys.stdin:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(json.loads(line), "README.md", "exec"), names)
    print(json.dumps(said.getvalue()), flush=True)
"""


def test_the_readme_runs_in_its_own_order(tmp_path):
    """A new user pastes each block, from top to bottom, into one shell and one Python session: each works."""
    environment = surroundings(tmp_path)
    command = [sys.executable, "-W", "error", "-c", SESSION]
    pipe = subprocess.PIPE
    ran: list[str] = []
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdin=pipe, stdout=pipe, text=True) as session:
        assert session.stdin is not None
        assert session.stdout is not None
        for block in blocks(README):
            if block.language == "python":
                session.stdin.write(json.dumps(block.text) + "\n")
                session.stdin.flush()
                answer = session.stdout.readline()
                assert answer, f"README.md, line {block.line}: fails"
                ran.append(json.loads(answer))
            elif block.language == "console":
                for line in re.findall(r"^\$ (.*)", block.text, re.MULTILINE):
                    subprocess.run(["sh", "-c", line], cwd=tmp_path, env=environment, capture_output=True, check=True)
                ran.append("")
        session.stdin.close()
    assert ran[0].split()[0] == "fresh"
    assert "redelivery" in ran[0]
    assert len(ran) >= 4


@pytest.mark.parametrize("path", [path for path in DOCS if blocks(path, "toml")], ids=named)
def test_settings_files_are_valid(path, tmp_path, monkeypatch):
    """The settings of a document can be loaded, and sinks be made from them."""
    secrets = {"DATABASE_URL": "postgresql://desk.example/crm"}
    places = dict.fromkeys(settings.secrets._PLACES, lambda place: secrets.get(place, "a secret"))
    monkeypatch.setattr(settings.secrets, "_PLACES", places)
    for block in blocks(path, "toml"):
        file = tmp_path / "oncebridge.toml"
        file.write_text(block.text)
        loaded, clock = settings.load_settings(file), SystemClock()
        assert loaded != settings.Settings()
        for sink in loaded.sinks:
            context = SinkContext(clock=clock, breakers=Breakers(clock), ledger=MemoryLedger(clock), retention_us=1)
            make_sink(sink, context).close()


@pytest.mark.parametrize("path", DOCS, ids=named)
def test_make_targets_exist(path):
    """Whatever make is asked for, it can make."""
    makefile = read(ROOT / "Makefile")
    texts = [*quoted(read(path)), *(block.text for block in blocks(path, "sh"))]
    wanted = {target for text in texts for target in re.findall(r"^make ([a-z]+)", text, re.MULTILINE)}
    assert wanted <= set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))


# --- what is named exists -----------------------------------------------------------------------------------


def commands() -> dict[str, Any]:
    """Return every command by the words that call it; groups too."""
    found: dict[str, Any] = {}
    ahead: list[tuple[str, Any]] = [("", typer.main.get_command(app))]
    while ahead:
        name, command = ahead.pop(0)
        found[name] = command
        ahead += [(f"{name} {short}".strip(), below) for short, below in getattr(command, "commands", {}).items()]
    return found


def calls(path: Path) -> list[list[str]]:
    """Return every call of `oncebridge` in a document, as its words."""
    code = [*quoted(read(path))]
    for block in blocks(path):
        if block.language in ("console", "sh"):
            code += block.text.splitlines()
    found = [re.search(r"(?:^|[|$] ?)(?:\.venv/bin/)?oncebridge ([^|#]+)", line) for line in code]
    return [shlex.split(match[1]) for match in found if match]


def command_of(words: list[str]) -> str:
    """Return the command that a call names; nothing where it names none."""
    known, name = commands(), ""
    for word in words:
        longer = f"{name} {word}".strip()
        name = longer if longer in known else name
    return name


def flags_of(*names: str) -> set[str]:
    """Return the options of these commands."""
    options = [option for name in names for option in commands()[name].params]
    return {flag for option in options for flag in (*option.opts, *option.secondary_opts)}


def call_problem(words: list[str]) -> str | None:
    """Say what is wrong with a call, if anything is."""
    name = command_of(words)
    flags = flags_of("", name) | {"--help"}
    unknown = [word for word in words if word.startswith("--") and word.partition("=")[0] not in flags]
    if not name and any(not word.startswith("-") for word in words):
        return f"no command in: oncebridge {shlex.join(words)}"
    return f"{name}: no option {', '.join(unknown)}" if unknown else None


@pytest.mark.parametrize("path", DOCS, ids=named)
def test_commands_and_options_exist(path):
    """Every command and option that a document shows exists."""
    assert not list(filter(None, map(call_problem, calls(path))))


@pytest.mark.parametrize("path", MANUAL, ids=named)
def test_options_exist(path):
    """Every option that a document names by itself is one of some command."""
    assert {name.split()[0] for name in quoted(read(path)) if name.startswith("--")} <= flags_of(*commands())


@pytest.mark.parametrize("words", [["deduplicate"], ["process", "--nonsense"], ["dead", "list", "--force"]], ids=str)
def test_wrong_commands_are_caught(words):
    """A command or option that does not exist is noticed."""
    assert call_problem(words)


@pytest.mark.parametrize("path", DOCS, ids=named)
def test_links_resolve(path):
    """Every relative link leads to a file or a folder, and to a heading or a part of a page where one is named."""
    for link in re.findall(r"\]\((?!https?://)([^)\s]+)\)", read(path)):
        target, _, anchor = link.partition("#")
        file = (path.parent / target).resolve() if target else path
        assert file.exists(), f"{path.name}: {link}"
        headings = re.findall(r"^#+ (.+)$", read(file) if file.suffix == ".md" else "", re.MULTILINE)
        anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
        anchors |= set(re.findall(r' id="([^"]+)"', read(file) if file.suffix == ".html" else ""))
        assert not anchor or anchor in anchors, f"{path.name}: {link}"


@pytest.mark.parametrize("path", DOCS, ids=named)
def test_named_files_exist(path):
    """Every file of this project that a document names is there, and so is a test it names in it."""
    text = read(path)
    for name in quoted(text):
        file, _, test = name.partition("::")
        if re.fullmatch(r"(?:tests|src|docs|tools|requirements|examples|deploy)/[\w./-]+", file):
            assert (ROOT / file).exists(), f"{path.name}: {name}"
            assert not test or f"def {test}(" in read(ROOT / file), f"{path.name}: {name}"


#: What CONTRIBUTING quotes beside names of ours: a language of blocks, dots, and what a command is called with.
NO_NAMES = re.compile(r"console|\.\.\.|make\b.*")


def names_of(source: str) -> set[str]:
    """Return what a module defines at its top: functions, classes and variables."""
    found: set[str] = set()
    for node in ast.parse(source).body:
        targets = getattr(node, "targets", [getattr(node, "target", None)])
        found |= {target.id for target in targets if isinstance(target, ast.Name)}
        found |= {node.name} if isinstance(node, ast.FunctionDef | ast.ClassDef) else set()
    return found


def test_contributing_names_what_is_there():
    """Each file, table, class and function that CONTRIBUTING quotes exists; a table exists in the file it names."""
    text = read(ROOT / "CONTRIBUTING.md")
    files = {name: folder / name for folder in (ROOT, PACKAGE) for name in quoted(text) if (folder / name).exists()}
    defined = {name for path in PACKAGE.rglob("*.py") for name in names_of(read(path))}
    modules = {path.stem for path in PACKAGE.iterdir()}
    names = [name for name in quoted(text) if not NO_NAMES.fullmatch(name)]
    assert [name for name in names if name not in {*files, *defined, *modules}] == []
    placed = re.findall(r"`(\w+)` in `([^`]+\.py)`", text)
    assert ("SCHEMES", "ledgers/__init__.py") in placed
    assert [(name, file) for name, file in placed if name not in names_of(read(files[file]))] == []


NO_SETTINGS = {"ONCEBRIDGE_SECRET", "ONCEBRIDGE_SETTINGS", "ONCEBRIDGE_LOG_FORMAT", "ONCEBRIDGE_TEST_SOURCE"}
#: The name of a secret, as an example.
OF_USERS = {"ONCEBRIDGE_KEY"}


@pytest.mark.parametrize("path", DOCS, ids=named)
def test_named_settings_exist(path):
    """Every environment variable that a document names is read."""
    named_here = set(re.findall(r"ONCEBRIDGE_[A-Z_]+(?![A-Z_*])", read(path)))
    variables = {quoted(row[1])[0] for row in setting_rows()}
    assert named_here <= {*variables, *NO_SETTINGS, *OF_USERS}


# --- what exists is named -----------------------------------------------------------------------------------


def test_every_command_is_in_the_readme():
    """Whatever `oncebridge --help` lists, the README shows."""
    shown = {command_of(words) for words in calls(README)}
    assert {name for name, command in commands().items() if not hasattr(command, "commands")} <= shown


def as_written(value: object) -> str:
    """Write a default or a bound as the table of settings has it."""
    if value is None or value == ():
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.12g}" if isinstance(value, int | float) else f"`{value}`"


def setting_rows() -> list[list[str]]:
    """Return the rows of the table of settings, from their declarations."""
    rows = []
    tables: dict[str, Any] = {
        "": settings.Settings(),
        "retry": RetryPolicy(),
        "serve": ServeSettings(),
        "console": ConsoleSettings(),
        "genesys": GenesysSettings(),
    }
    for name, start in settings.VARIABLES.items():
        for setting, type_ in settings.known_settings(name).items():
            said = metadata(type_)
            bounds = [as_written(said[bound]) for bound in ("ge", "le") if bound in said]
            default = getattr(tables[name], setting, None)
            place = f"`{setting}` in `[{name}]`" if name else f"`{setting}`"
            variable = f"`{start}{setting.upper()}`"
            rows.append([place, variable, as_written(default), " to ".join(bounds), said["description"]])
    return rows


def test_every_setting_is_documented():
    """The table of settings has each one as it is declared; only links are added."""
    found = [
        [re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", cell) for cell in row]
        for row in table(section(SETTINGS, "All of them"))
    ]
    assert found == setting_rows()


def test_the_waits_are_documented():
    """The table of waits is the policy's own curve."""
    first, _ = re.split(r"^The longest wait", section(SETTINGS, "Retries"), maxsplit=1, flags=re.MULTILINE)
    policy, rows, since = RetryPolicy(), [], 0.0
    for attempt in range(1, policy.attempts):
        longest = policy.ceiling_seconds(attempt)
        since += longest * 3 / 4
        rows.append(
            [str(attempt), *(as_a_wait(seconds) for seconds in (longest / 2, longest)), as_a_wait(round(since))]
        )
    assert table(first) == rows


def as_a_wait(seconds: float) -> str:
    """Write a time as the table of waits has it."""
    return f"{seconds:g} s" if seconds < 120 else f"{round(seconds / 60)} min"


@pytest.mark.parametrize(
    ("path", "title", "known"),
    [
        (SETTINGS, "Your own topics", settings.profiles.PROFILE),
        (SETTINGS, "Behind an input transformer", settings.envelope.ENVELOPE),
        (SINKS, "A webhook", declared(WebhookSettings)),
        (SINKS, "Another bus", declared(BusSettings)),
        (SINKS, "A queue", declared(QueueSettings)),
        (SINKS, "A table", {*declared(TableSettings), *("agent", "status", "changed")} - {"columns"}),
    ],
)
def test_every_setting_of_a_table_is_shown(path, title, known):
    """The settings file of a section sets everything that such a table may have."""
    assert set(re.findall(r"^(\w+) =", section(path, title), re.MULTILINE)) == set(known)


@pytest.mark.parametrize("name", ["ONCEBRIDGE_SECRET", "ONCEBRIDGE_SETTINGS", "REDIS_HOST", *settings.OLD_VARIABLES])
def test_variables_without_a_setting_are_in_the_readme(name):
    """What only the environment can say is documented too."""
    assert mentions(name, read(SETTINGS))


def test_every_error_is_in_the_readme():
    """Every public error is in the table of errors, and nothing else is."""
    public = {name for name in oncebridge.__all__ if isinstance(getattr(oncebridge, name), type)}
    errors = {name for name in public if issubclass(getattr(oncebridge, name), OncebridgeError)}
    named_there = [name for row in table(section(README, "Errors")) for name in quoted(row[0])]
    assert sorted(named_there) == sorted(errors)


def test_every_public_name_is_documented():
    """Whatever can be imported from `oncebridge` is spoken of."""
    assert not [name for name in oncebridge.__all__ if not mentions(name, manual())]


def test_every_verdict_is_documented():
    """README and glossary have exactly the verdicts there are; the glossary in the order they are looked at."""
    in_readme = [quoted(row[0])[0] for row in table(section(README, "What you get"))]
    in_glossary = [quoted(row[0])[0] for row in table(section(GLOSSARY, "Verdicts"))]
    assert sorted(in_readme) == sorted(Verdict)
    assert in_glossary == [Verdict.DEAD, *(verdict for verdict in Verdict if verdict is not Verdict.DEAD)]


def test_every_outcome_is_documented():
    """The glossary has exactly the outcomes there are."""
    assert [quoted(row[0])[0] for row in table(section(GLOSSARY, "Outcomes"))] == list(Outcome)


def test_the_books_are_documented():
    """The equation that the books keep is the one that is promised."""
    equation = f"received = {' + '.join(COLUMNS)}"
    assert equation in section(GLOSSARY, "The books")
    assert equation in read(GUARANTEES)


@pytest.mark.parametrize(
    ("title", "known"),
    [
        ("Causes", list(Cause)),
        ("The back-test", [*(key.name for key in KEYS), "oncebridge"]),
        ("What only looks like a duplicate", list(LOOK_ALIKES)),
        ("For programs", list(Diagnosis.__struct_fields__)),
    ],
)
def test_every_name_of_a_diagnosis_is_documented(title, known):
    """The page on diagnose has exactly the causes, keys, look-alikes and fields that there are."""
    assert sorted(name for row in table(section(DIAGNOSE, title)) for name in quoted(row[0])) == sorted(known)


# --- the words ----------------------------------------------------------------------------------------------


def found_at(dotted: str) -> object:
    """Return what a dotted name of the package stands for."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            found = getattr(found, part)
        return found
    raise ModuleNotFoundError(dotted)


GLOSSARY_WORDS = table(section(GLOSSARY, "Words"))


@pytest.mark.parametrize(("word", "where"), [(row[0], row[2]) for row in GLOSSARY_WORDS if row[2]])
def test_words_live_where_the_glossary_says(word, where):
    """A word of the glossary is the name of what it means in the code."""
    dotted = where.strip("`")
    assert found_at(dotted) is not None
    assert re.sub("[ -]", "", word) in dotted.lower().replace("_", "").rpartition("oncebridge.")[2]


@pytest.mark.parametrize("word", [row[0] for row in GLOSSARY_WORDS])
def test_words_are_used_in_the_code(word):
    """A word of the glossary is used in the code, in names or in what is said of them."""
    folder = Path(oncebridge.__file__).parent
    text = "\n".join(read(path) for path in folder.rglob("*.py"))
    assert re.search(rf"\b{word.replace(' ', '[ _]')}", text, re.IGNORECASE)


def test_words_of_others_name_nothing():
    """Nothing in the code is named by a word that the glossary calls somebody else's."""
    assert {word for word in NOT_OURS if not mentions(word, section(GLOSSARY, "Words").lower())} == set()
    folder = Path(oncebridge.__file__).parent
    for path in folder.rglob("*.py"):
        tree = ast.parse(read(path))
        names = [getattr(node, "name", None) or getattr(node, "arg", None) for node in ast.walk(tree)]
        parts = {part.lower() for name in names if name for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}
        assert not parts & NOT_OURS, path


# --- the architecture ---------------------------------------------------------------------------------------


PACKAGE = Path(oncebridge.__file__).parent


def module_tree() -> dict[str, str]:
    """Return the tree of modules: each file and folder, with its line and whatever continues that."""
    (tree,) = [block.text for block in blocks(ARCHITECTURE, "text") if "errors.py" in block.text]
    found: dict[str, str] = {}
    folders: list[str] = []
    for line in tree.splitlines():
        name, _, said = line.strip().partition(" ")
        depth = (len(line) - len(line.lstrip())) // 2
        if depth > len(folders):  # a continued line is indented further than any entry
            found[[*found][-1]] += f" {line.strip()}"
            continue
        path = "".join([*folders[:depth], name])
        assert path not in found, f"{path} is there twice"
        found[path] = said.strip()
        folders = [*folders[:depth], name] if name.endswith("/") else folders[:depth]
    return found


def test_every_module_is_in_the_tree():
    """Each module has its line, or is named in the line of its folder; and nothing else is."""
    listed = [path for path in module_tree() if path.endswith(".py")]
    for folder, said in module_tree().items():
        listed += [f"{folder}{name}" for name in re.findall(r"\w+\.py", said) if folder.endswith("/")]
    there = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if not path.name.startswith("__")}
    assert there - set(listed) == set(), "add them to the tree in docs/architecture.md"
    assert set(listed) - there == set(), "take them out of the tree in docs/architecture.md"
    assert len(listed) == len(there)


def test_the_tree_is_in_the_order_of_imports():
    """Files and folders come in the order in which they may import each other, as far as that is laid down."""
    layout = read(ROOT / "tests" / "test_layout.py")
    (order,) = re.findall(r"^ORDER = (\[.*?^\])", layout, re.MULTILINE | re.DOTALL)
    (faces,) = re.findall(r"^FACES = (\[.*?\])", layout, re.MULTILINE)
    lines = [*ast.literal_eval(order), *ast.literal_eval(faces)]
    listed = [path.removesuffix("/").removesuffix(".py").replace("/", ".") for path in module_tree()]
    parents = {name.rpartition(".")[0] for name in listed}
    assert {"", "engine"} <= parents
    for parent in parents:
        here = [name for name in listed if name.rpartition(".")[0] == parent and name in lines]
        assert here == sorted(here, key=lines.index)


def drawn() -> dict[tuple[str, str], str]:
    """Return the moves of the diagram, and the letter of each."""
    (diagram,) = blocks(ARCHITECTURE, "mermaid")
    return {(start, end): letter for start, end, letter in re.findall(r"(\S+) --> (\S+): (\w)", diagram.text)}


def test_every_move_is_explained():
    """Each move of the diagram has a letter of its own, and each letter an explanation."""
    letters = list(drawn().values())
    explained: list[str] = []
    for label in re.findall(r"^- \*\*(.+?)\*\*", section(ARCHITECTURE, "A claim's life"), re.MULTILINE):
        first, _, last = label.partition(" to ")
        explained += map(chr, range(ord(first), ord(last) + 1)) if last else label.split(", ")
    assert letters == sorted(set(letters))
    assert explained == letters


def records() -> list[Record | None]:
    """Return what a ledger may remember of an event, by status and by whether a dead letter is kept."""
    unsettled = [(status, letter) for status in Status if status not in SETTLED for letter in (False, True)]
    settled = [(status, status is Status.DEAD) for status in Status if status in SETTLED]
    return [None, *(Record(status=status, token=1, letter=letter) for status, letter in unsettled + settled)]


def moves_of_the_code() -> set[tuple[str, str]]:
    """Try every claim and every settle on every record, and return the moves between statuses."""
    moves: set[tuple[str, str]] = set()
    call = Call(b"new", 10, 100)
    entities = [Entity(), Entity(token=1, nonce=b"old", lease_until_us=50), Entity(token=1, lease_until_us=500)]
    flags = itertools.product((False, True), repeat=3)
    for record, (redrive, force, alone) in itertools.product(records(), flags):
        ask = Ask(key=b"k", redrive=redrive, force=force, alone=alone)
        made = [claim_fact(ask, record, call)[1]]
        state = replace(ask, entity=b"e", state=b"s")
        for entity in entities:
            made += [after for _, after in claim_chain([state], [record], entity, call).records]
        moves |= {(record.status.value if record else "[*]", after.status.value) for after in made if after is not None}
    for record, outcome in itertools.product(filter(None, records()), Outcome):
        after = settle_claim(Settlement(Claim(Ask(key=b"k"), 1), outcome), record, None, 100).record
        if after is not None:
            moves.add((record.status.value, after.status.value))
    return moves


def test_the_diagram_shows_every_move_and_no_other():
    """The moves drawn are the moves that the code makes."""
    assert set(drawn()) == moves_of_the_code()


def test_readme_is_short():
    """The README can be read in one sitting."""
    assert len(read(README).splitlines()) <= 240
