"""Everything that is said of a run: the balance, the causes, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oncebridge.quantities import count, counted
from oncebridge.reconciling.silences import Cause

if TYPE_CHECKING:
    from oncebridge.reconciling.result import Run, ShownSilence

TITLES: Final = {
    Cause.EVERYTHING: "everything was silent",
    Cause.TOPIC: "one topic was silent",
    Cause.SINGLE: "single conversations",
}
ADVICE: Final = {
    Cause.EVERYTHING: (
        "The bus, its source or the rule let nothing through at that time: look at the state of the integration in "
        "Genesys Cloud and of the partner event source in EventBridge (pending, deactivated), at the rule's "
        "FailedInvocations and its dead-letter queue; events that the bus had are in its archive, if there is one"
    ),
    Cause.TOPIC: (
        "A filter or a rule leaves this topic out: look at the topics of the integration, at the pattern of the rule, "
        "and who changed them; if you no longer want the topic, say what you expect with --expect"
    ),
    Cause.SINGLE: (
        "Genesys did not send these, which its nightly batch corrects in its own data alone: fill the gaps with "
        "--fill, and look again when they are three days old"
    ),
}


def balance(run: Run) -> str:
    """Say the result in a sentence."""
    counts = run.counts
    parts = [f"{counted(counts.ended, 'conversation')} ended; {count(counts.whole)} came whole"]
    if counts.no_end:
        parts.append(f"{count(counts.no_end)} without an end")
    if counts.partial > counts.no_end:
        parts.append(f"{count(counts.partial - counts.no_end)} in part")
    if counts.missing:
        parts.append(f"{count(counts.missing)} never")
    if run.watermark:
        parts.append(f"complete up to {run.judged_until}")
    if run.watermark and run.watermark < run.until:
        parts[-1] += ", later is provisional"
        if counts.provisional:
            parts[-1] += f" ({counted(counts.provisional, 'conversation')})"
    return "; ".join(parts)


def silence_in_words(silence: ShownSilence) -> str:
    """Say when something was silent."""
    what = silence.topic or "everything"
    times = f"at {silence.since}" if silence.since == silence.until else f"between {silence.since} and {silence.until}"
    return f"{what} was silent {times}: {counted(silence.conversations, 'conversation')}"


def remarks(run: Run) -> list[str]:
    """Say what was not judged, and what the judgement is about."""
    counts, found = run.counts, []
    if counts.before:
        found.append(f"{counted(counts.before, 'conversation')} ended before attendance was kept, and are not judged")
    if counts.open:
        found.append(f"{counted(counts.open, 'conversation')} not over yet")
    if run.families:
        found.append(f"expected: {', '.join(run.families)}")
    return found
