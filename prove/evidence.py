"""Writes docs/evidence.html: what was tried, what came of it, how to repeat it, and what none of it shows."""

from __future__ import annotations

import base64
import hashlib
import json
import lzma
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from oncebridge.markup import SCRIPT, STYLE, Cell, Column, Markup, definitions, details, joined, table, tag, to_copy
from prove.guarantees import CONTROLLED_BY_TESTS, GUARANTEES, NOT_SHOWN
from prove.parts import PARTS
from prove.parts.controls import CONTROLS
from prove.places import kind_of
from prove.results import PAGE, saved
from prove.sinks import LEDGERS, SINKS, Sink, at_sink, broken_at, judged
from prove.specification import CHECKING, ENGINE, NEEDED_IN, SOURCE, WORLDS

#: Parts that draw nothing: within their bounds there is no chance.
ENUMERATED: Final = ("exploration", "specification", "conformance", "conformance-echoes", "conformance-returns")
OWN_STYLE: Final = """
.held { color: var(--good); } .broken { color: var(--bad); font-weight: 600; }
.claim { font-size: 1.0625rem; font-weight: 600; }
td code { white-space: pre-wrap; }
#check select { font: inherit; color: inherit; background: var(--paper); border: 1px solid var(--quiet);
  border-radius: .25rem; padding: .35rem .5rem; max-width: 100%; }
#check button { font: inherit; font-weight: 600; color: var(--card); background: var(--link); border: 0;
  border-radius: .375rem; padding: .5rem 1.1rem; cursor: pointer; }
#check button[disabled] { opacity: .6; cursor: default; }
#check #stop { color: var(--link); background: var(--card); border: 1px solid var(--quiet); }
#check .row { display: flex; flex-wrap: wrap; gap: .5rem .75rem; align-items: center; margin: .75rem 0; }
fieldset { border: 1px solid var(--line); border-radius: .375rem; margin: .75rem 0; padding: .5rem .75rem .75rem; }
legend { font-weight: 600; padding: 0 .35rem; }
.rules { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(15rem, 100%), 1fr)); gap: .1rem 1rem; }
.rules label { display: flex; gap: .5rem; align-items: center; min-height: 1.75rem; }
#checked ol { padding-left: 1.75rem; } #checked li { margin: .3rem 0; }
#source pre { max-height: 30rem; overflow: auto; user-select: text; font-size: .75rem; white-space: pre; }
"""
#: Calls the checker in a worker of the page.
WORKER: Final = """
onmessage = ({ data: { wasm, source, constants, leftOut } }) => {
  const begun = Date.now();
  try {
    initSync({ module: wasm });
    const engine = { check_spec_with_options, explore_init, explore_next, explore_invariants };
    const found = check(engine, source, constants, leftOut);
    postMessage({ found, seconds: ((Date.now() - begun) / 1000).toFixed(1) });
  } catch (error) {
    postMessage({ error: String(error) });
  }
};
"""
OWN_SCRIPTS: Final = tuple(Path(__file__).with_name(name) for name in ("unlzma.js", "evidence.js"))
#: As unlzma.js unpacks it.
LZMA: Final = {"id": lzma.FILTER_LZMA1, "preset": 9 | lzma.PRESET_EXTREME, "lc": 3, "lp": 0, "pb": 0}
CREDIT: Final = (
    "The checker is tla-checker (npm, MIT OR Apache-2.0), unchanged but for what makes a module of it. "
    "It runs in this page, which asks for nothing from outside."
)
FIRST_COLUMNS: Final = (
    Column("ledger"),
    Column("tried", is_number=True),
    Column("so each 0 means a rate below", is_number=True),
    Column("lost", is_number=True),
)
LAST_COLUMNS: Final = (Column("seed", is_number=True), Column("commit, date"))
ANYWHERE: Final = Column("doubled anywhere", is_number=True)


def write_page(path: Path = PAGE) -> None:
    """Write the page of the newest results."""
    if not ENGINE.exists():
        raise SystemExit("the page holds the checker of the specification: make .venv/.specification")
    path.write_text(page(saved()), encoding="utf-8")


def page(rows: Sequence[dict[str, Any]]) -> str:
    """Write everything into one file that asks for nothing else."""
    by_part = {part: list(found) for part, found in groupby(rows, key=lambda row: row["part"])}
    controls = {name: what for row in by_part.get("controls", []) for name, what in row["figures"].items()}
    main = tag(
        "main",
        tag("p", tag("span", "Oncebridge", class_="brand"), "evidence", class_="eyebrow"),
        tag("h1", _headline(rows)),
        tag(
            "p",
            "Workers are killed, stopped, cut off and lied to; what takes effect is written down where they cannot "
            "reach, and judged by what was known beforehand. Every figure has the command that repeats it.",
        ),
        _figures(rows),
        _ways(),
        _by_ledger(by_part),
        _by_sink(rows),
        *(_guarantee(*guarantee, by_part, controls) for guarantee in GUARANTEES),
        _specification(),
        _controls(by_part.get("controls", []), controls),
        _not_shown(),
        id="main",
    )
    style, script = STYLE + OWN_STYLE, SCRIPT + "".join(path.read_text(encoding="utf-8") for path in OWN_SCRIPTS)
    head = tag(
        "head",
        Markup('<meta charset="utf-8">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{_policy(style, script)}">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        tag("title", "Oncebridge: the evidence"),
        Markup(f"<style>{style}</style>"),
    )
    body = tag(
        "body",
        tag("a", "Skip to the evidence", href="#main", class_="skip"),
        main,
        Markup(f'<script type="text/plain" id="packed">{packed_checker()}</script>'),
        Markup(f"<script>{script}</script>"),
    )
    return f'<!doctype html>\n<html lang="en">{head}{body}</html>\n'


def _headline(rows: Sequence[dict[str, Any]]) -> str:
    broken = [row for row in rows if not row["held"]]
    if broken:
        names = ", ".join(sorted({row["part"] for row in broken}))
        return f"{len(broken)} of {len(rows)} results show a broken promise: {names}"
    missing = sorted(_parts() - {row["part"] for row in rows})
    so_far = f"; {len(missing)} of {len(_parts())} parts have none yet" if missing else ""
    return f"{len(rows)} results, and every promise was kept in each{so_far}"


def _parts() -> set[str]:
    """Return every part that a guarantee rests on."""
    return {name for _, _, parts in GUARANTEES for name in parts}


def _figures(rows: Sequence[dict[str, Any]]) -> Markup:
    lost, doubled = (sum(row[what] for row in rows) for what in ("lost", "doubled"))
    kinds = {"lost": lost, "doubled at sinks that prevent it": doubled}
    kinds["doubled elsewhere, which is allowed"] = sum(row["doubled_plain"] for row in rows)
    return definitions(((name, f"{number:,}") for name, number in kinds.items()), class_="figures")


def _ways() -> Markup:
    places = [("ledgers", "By guarantee and ledger"), ("sinks", "By sink and ledger")]
    places += [(f"g{at}", title) for at, (title, _, _) in enumerate(GUARANTEES)]
    places += [("specification", "The specification, checked here"), ("controls", "Negative controls")]
    places.append(("not-shown", "What is not shown"))
    return tag("nav", *(tag("a", title, href=f"#{place}") for place, title in places), aria_label="On this page")


def _by_ledger(by_part: dict[str, list[dict[str, Any]]]) -> Markup:
    """Show the guarantees as rows, and what was tried of each on every ledger."""
    columns = (Column("guarantee"), *(Column(name) for name in (*LEDGERS.values(), "without one")))
    cells = []
    for title, _, parts in GUARANTEES:
        rows = [row for part in parts for row in by_part.get(part, [])]
        attacked = {ledger for part in parts for ledger in PARTS[part].ledgers}
        kept = [
            _kept([row for row in rows if kind_of(row["ledger"]) == ledger])
            if ledger in attacked
            else Cell("no part for it", class_="quiet")
            for ledger in (*LEDGERS, "")
        ]
        cells.append((None, [Cell(title), *kept]))
    return tag(
        "section",
        tag("h2", "By guarantee and ledger"),
        tag("p", "How often it was attacked, in all parts below, and what was lost or doubled against a promise."),
        table("What was tried of each guarantee, by ledger", columns, cells),
        id="ledgers",
    )


def _kept(rows: Sequence[dict[str, Any]]) -> Cell:
    if not rows:
        return Cell("nothing shown yet", class_="quiet")
    broken = [row["part"] for row in rows if not row["held"]]
    lost, doubled = (sum(row[what] for row in rows) for what in ("lost", "doubled"))
    words = f"{sum(row['tried'] for row in rows):,} tried, {lost:,} lost, {doubled:,} doubled"
    return Cell(f"{words}; broken: {', '.join(broken)}" if broken else words, class_="broken" if broken else "held")


def _by_sink(rows: Sequence[dict[str, Any]]) -> Markup:
    """Show what each kind of sink got on every ledger, with a bound for zero."""
    columns = (Column("sink"), *(Column(name) for name in LEDGERS.values()))
    cells = [(None, [Cell(sink.name), *(_at_sink(sink, ledger, rows) for ledger in LEDGERS)]) for sink in SINKS]
    return tag(
        "section",
        tag("h2", "By sink and ledger"),
        tag(
            "p",
            "What became of events at a sink in the ledger's transaction, at one that knows keys, at one that refuses "
            "lower tokens, and at one that does neither.",
        ),
        table("What each kind of sink got, by ledger", columns, cells),
        id="sinks",
    )


def _at_sink(sink: Sink, ledger: str, rows: Sequence[dict[str, Any]]) -> Cell:
    if ledger not in sink.ledgers:
        return Cell("has no transaction for it", class_="quiet")
    events, broken = at_sink(sink, ledger, rows)
    if not events:
        return Cell("nothing shown yet", class_="quiet")
    words = f"{broken:,} {sink.what}, of {events:,}"
    if sink.broken is None:
        return Cell(words)
    return Cell(words if broken else f"{words}: a rate below {_bound(events)}", class_="broken" if broken else "held")


def _bound(tried: int) -> str:
    """Write the rate above which so many tries would have shown something, with 95 % certainty."""
    return f"{Decimal(f'{3 / tried:.2g}'):f}"  # not 2.1e-05


def _guarantee(
    title: str,
    promise: str,
    parts: Sequence[str],
    by_part: dict[str, list[dict[str, Any]]],
    controls: Mapping[str, Any],
) -> Markup:
    at = [guarantee[0] for guarantee in GUARANTEES].index(title)
    shown = [_part(name, by_part[name], controls) if by_part.get(name) else _not_yet(name) for name in parts]
    return tag("section", tag("h2", title), tag("p", promise, class_="claim"), *shown, id=f"g{at}")


def _not_yet(name: str) -> Markup:
    """Say of a part that nothing is known."""
    return tag(
        "article",
        tag("h3", name),
        tag("p", "No result is kept yet: this shows nothing.", class_="bad"),
        id=f"part-{name}",
    )


def _part(name: str, rows: Sequence[dict[str, Any]], controls: Mapping[str, Any]) -> Markup:
    part = PARTS[name]
    sinks = [sink for sink in SINKS if name in sink.parts]
    at_sinks = [Column(sink.title, is_number=True) for sink in sinks] or [ANYWHERE]
    cells = [(None if row["held"] else "bad", _cells(row, sinks)) for row in rows]
    notes = sorted({note for row in rows for note in row["notes"]})
    said = [
        tag("h3", f"{name}: {part.title}"),
        table(f"{name}, counted in {part.unit}", (*FIRST_COLUMNS, *at_sinks, *LAST_COLUMNS), cells),
    ]
    if missing := [ledger for ledger in part.ledgers if ledger not in {kind_of(row["ledger"]) for row in rows}]:
        said.append(tag("p", f"No result is kept yet on {', '.join(missing)}: there this shows nothing.", class_="bad"))
    said.append(_beside(name, controls))
    said.append(tag("p", _circumstances(rows), class_="quiet"))
    said += [to_copy(_short_command(row), f"what repeats a little of {name} {row['ledger']}".strip()) for row in rows]
    if notes:
        said.append(details("What a reader should know", tag("ul", *(tag("li", note) for note in notes))))
    failed = [row for row in rows if row["history"]]
    said += [details(f"How it failed on {row['ledger']}", tag("pre", "\n".join(row["history"]))) for row in failed]
    return tag("article", *said, id=f"part-{name}")


def _beside(name: str, controls: Mapping[str, Any]) -> Markup:
    """Say what the same rounds find in programs that are known to be wrong."""
    own = [control.name for control in CONTROLS if control.beside == name]
    said = [
        tag("li", f"{shown}: ", tag("strong", _in_words(what)))
        for shown, what in controls.items()
        if shown.rpartition(" (")[0] in own
    ]
    if own and not said:
        said.append(tag("li", f"{'; '.join(own)}: no result is kept yet"))
    if name in CONTROLLED_BY_TESTS:
        does, where = CONTROLLED_BY_TESTS[name]
        said.append(tag("li", f"a program that {does}: must be caught each time by ", tag("code", where)))
    if not said:
        return tag("p", "No wrong program is tried against this part.", class_="bad")
    return tag("div", tag("p", "Negative controls, by which it would be noticed:"), tag("ul", *said))


def _circumstances(rows: Sequence[dict[str, Any]]) -> str:
    """Say how long it took, and on which machine; the command after it takes two minutes there."""
    machines = " / ".join(sorted({row["machine"] for row in rows}))
    minutes = f"{sum(row['seconds'] for row in rows) / 60:,.1f}"
    return f"{minutes} minutes in all on {machines}. About two minutes of it again:"


def _cells(row: dict[str, Any], sinks: Sequence[Sink]) -> list[Cell]:
    bound = _bound(row["tried"]) if row["held"] and row["tried"] else "no bound: it failed"
    if row["part"] in ENUMERATED and row["held"]:
        bound = "none drawn: each was looked at"
    kept = "held" if row["held"] else "broken"
    own = judged(row["part"], kind_of(row["ledger"]))
    doubled = [_at(sink, row) if sink in own else Cell("no such sink", class_="quiet") for sink in sinks]
    return [
        Cell(row["ledger"] or "none needed"),
        Cell(_tried(row), row["tried"]),
        Cell(bound),
        Cell(f"{row['lost']:,}", row["lost"], kept),
        *(doubled or [Cell(f"{row['doubled']:,}", row["doubled"], kept)]),
        Cell(str(row["seed"])),
        Cell(f"{row['commit']}, {row['date']}"),
    ]


def _at(sink: Sink, row: dict[str, Any]) -> Cell:
    number = broken_at(sink, row)
    return Cell(f"{number:,}", number, None if sink.broken is None else "broken" if number else "held")


def _tried(row: dict[str, Any]) -> str:
    """Say how much was tried, and of how much, where that is less than a whole proof has."""
    whole = PARTS[row["part"]].amount_on(row["ledger"])
    return f"{row['tried']:,}" if row["tried"] >= whole else f"{row['tried']:,} of {whole:,}"


def _short_command(row: dict[str, Any]) -> str:
    """Write the command that repeats as much of a result as two minutes allow."""
    amount = max(1, min(row["tried"], int(row["tried"] * 110 / max(row["seconds"], 1))))
    ledger = f" --ledger {row['ledger']}" if row["ledger"] else ""
    return f'make prove ARGS="{row["part"]}{ledger} --seed {row["seed"]} --amount {amount}"'


def _specification() -> Markup:
    """Show the specification, with all that is needed to check it here, and switches that leave its rules out."""
    worlds = [tag("option", world.title, value=name, data_constants=world.constants) for name, world in WORLDS.items()]
    rules = [
        tag("label", tag("input", type="checkbox", name="rule", value=rule, data_world=world), rule)
        for rule, world in NEEDED_IN.items()
    ]
    form = tag(
        "form",
        tag(
            "div",
            tag("label", "World", for_="world"),
            tag("select", *worlds, id="world", name="world"),
            tag("button", "Check it in this page", name="go", type="submit"),
            tag("button", "Stop", id="stop", type="button", hidden=True),
            class_="row",
        ),
        tag("fieldset", tag("legend", "Leave a rule out, and see what breaks"), tag("div", *rules, class_="rules")),
        id="check",
        hidden=True,
    )
    return tag(
        "section",
        tag("h2", "The specification, checked here"),
        tag(
            "p",
            "The protocol is written down in TLA+. A model checker looks at every order of steps and faults of two "
            "workers in a small world. It is in this page: press the button. Then leave a rule out, and it tells the "
            "shortest way to what breaks without it.",
            class_="claim",
        ),
        form,
        tag("noscript", tag("p", "To check it here, the page needs script; or run: make prove ARGS=specification")),
        tag("div", id="checked", role="status"),
        tag("details", tag("summary", "The specification itself"), tag("pre", tabindex="0"), id="source"),
        tag("p", CREDIT, class_="quiet"),
        id="specification",
    )


def packed_checker() -> str:
    """Pack the checker, what tells its answers in words, and the specification, as text without markup."""
    engine = (ENGINE / "tla_checker.js").read_text(encoding="utf-8").replace("import.meta.url", '""')
    modules = engine + CHECKING.read_text(encoding="utf-8")
    script = re.sub(r"^export (?:\{.*\};)?", "", modules, flags=re.MULTILINE) + WORKER
    source, wasm = SOURCE.read_bytes(), (ENGINE / "tla_checker_bg.wasm").read_bytes()
    lengths = json.dumps([len(script.encode()), len(source)]).encode()
    whole = lengths + b"\n" + script.encode() + source + wasm
    packed = lzma.compress(whole, format=lzma.FORMAT_RAW, filters=[LZMA])
    return base64.b85encode(len(whole).to_bytes(4, "big") + packed).decode().replace("<!--", "<\n!--")


def _policy(style: str, script: str) -> str:
    """Allow what is in the page, and nothing from outside."""

    def digest(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    return (
        f"default-src 'none'; style-src {digest(style)}; script-src {digest(script)} 'wasm-unsafe-eval'; "
        "worker-src blob:; base-uri 'none'; form-action 'none'"
    )


def _controls(rows: Sequence[dict[str, Any]], found: Mapping[str, Any]) -> Markup:
    """Show what the same rounds found in programs that are known to be wrong."""
    said = tag(
        "p",
        "A harness is believed when it catches what is wrong. The same stream, faults and judge, on what people write "
        "by hand and on this program with a single check taken out:",
    )
    columns = (Column("program"), Column("what the judge found"))
    repeated = [to_copy(_short_command(row), f"what repeats a little of them on {row['ledger']}") for row in rows]
    cells = [(None, [Cell(name), Cell(_in_words(what))]) for name, what in found.items()]
    inside = (
        [table("Negative controls", columns, cells)] if found else [tag("p", "No result is kept yet.", class_="bad")]
    )
    return tag("section", tag("h2", "Negative controls"), said, *inside, *repeated, id="controls")


def _in_words(what: Any) -> str:
    if isinstance(what, dict):
        return ", ".join(
            f"{name} {number:,}" if isinstance(number, int) else f"{name} {number}" for name, number in what.items()
        )
    return str(what)


def _not_shown() -> Markup:
    listed = [tag("p", text, class_="claim") for text in NOT_SHOWN]
    return tag("section", tag("h2", "What is not shown"), joined(listed), id="not-shown")
