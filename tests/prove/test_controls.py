"""The short form of the negative controls: each wrong program is caught, and the sound one beside it is not."""

from dataclasses import replace

import pytest
from prove.outcome import Options
from prove.parts.controls import CONTROLS, controlled
from prove.removals import Edit, remove
from prove.round import in_child

SEED = 20
#: Caught within a second or two. The others take longer, and are left to `make prove`.
QUICK = ("SET NX", "every call is a repeat", "frees an entity", "file's inode", "taken over", "could not settle")


def quick():
    """Return the quick controls, each with a ledger on which it exists."""
    for control in CONTROLS:
        if any(name in control.name for name in QUICK):
            ledger = "sqlite" if control.is_for("sqlite") else "redis"
            yield pytest.param(control, ledger, id=control.name)


@pytest.mark.parametrize(("control", "ledger"), [*quick()])
def test_a_wrong_program_is_caught(control, ledger, tmp_path):
    """The judge finds what the missing check lets happen, and nothing of the sound program in as many rounds."""
    outcome = controlled(Options(ledger, SEED, 1, 60.0, tmp_path), [control])
    assert outcome.broken == {}, "\n".join(outcome.history)
    assert outcome.figures[f"{control.name} ({ledger})"]["caught"] == "1 of 1"


def test_a_sound_program_is_no_control(tmp_path):
    """A control that removes nothing is not caught, and then the part has not held."""
    sound = next(control for control in CONTROLS if "frees" in control.name)
    sound = replace(sound, removed={"sqlite": ()})
    outcome = controlled(Options("sqlite", SEED, 1, 60.0, tmp_path), [sound], rounds_max=2)
    assert outcome.broken == {f"not caught: {sound.name}": 1}


@pytest.mark.parametrize(
    "where", ["oncebridge.ledgers.grants:settle_claim", "oncebridge.ledgers.sqlite.rows:_SETTLE_USUAL"]
)
def test_a_check_that_is_not_there_cannot_be_removed(where):
    """A control whose text has changed says so, instead of removing nothing."""
    with pytest.raises(LookupError, match="say what to remove"):
        remove([Edit(where, "no such text", "")])


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.name)
def test_every_control_finds_what_it_removes(control):
    """The texts of all removals are in the program, whatever ledger they belong to."""
    for edits in control.removed.values():
        in_child(lambda edits=edits: remove(edits))
