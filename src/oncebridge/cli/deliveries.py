"""`oncebridge deliveries`: the latest deliveries of all workers, each with what became of it and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from oncebridge.cli.output import iso_time, say, write_json, write_table
from oncebridge.cli.top import journal_of
from oncebridge.cli.wiring import EXIT_NOTHING_FOUND, JSONOption, LedgerOption, SettingsOption, existing_bridge
from oncebridge.journal.wanted import DeliveryFilter
from oncebridge.quantities import span

if TYPE_CHECKING:
    from oncebridge.journal.records import SeenDelivery

LIMIT_MAX: Final = 2000


def deliveries(
    *,
    topic: Annotated[str, typer.Option(help="Only this topic; {id} and * work.", show_default=False)] = "",
    column: Annotated[
        str, typer.Option(help="Only what became this: processed, echo, dead ...", show_default=False)
    ] = "",
    reason: Annotated[str, typer.Option(help="Only reasons that contain this text.", show_default=False)] = "",
    handler: Annotated[str, typer.Option(help="Only those of the handler of this name.", show_default=False)] = "",
    since: Annotated[str, typer.Option(help="Only those that came then, or later: 30m, 2h.", show_default=False)] = "",
    limit: Annotated[int, typer.Option(help="At most so many.", min=1, max=LIMIT_MAX)] = 50,
    ledger: LedgerOption = None,
    settings: SettingsOption = None,
    json: JSONOption = False,
) -> None:
    """Show the latest deliveries of all workers, the newest first, from the sample that they keep in the ledger."""
    chosen = DeliveryFilter(topic=topic, column=column, reason=reason, handler=handler, since=since)
    with existing_bridge(None, ledger, settings) as bridge:
        wanted = chosen.wanted(bridge.clock.now_us())
        found, _ = journal_of(bridge).deliveries(limit=limit, wanted=wanted)
    if json:
        for one in found:
            write_json(_as_dict(one))
    elif found:
        columns = ("came", "became", "topic", "late by", "key", "id", "handler", "why")
        write_table(columns, [_row(one) for one in found], empty="", below=("topic", "handler", "why"))
    if not found:
        say("none of the latest deliveries matches")
        raise typer.Exit(EXIT_NOTHING_FOUND)


def _row(one: SeenDelivery) -> tuple[str | None, ...]:
    late = "" if one.lag_ms is None else span(max(0, one.lag_ms))
    return iso_time(one.at_ms * 1000), one.column, one.topic, late, one.key, one.envelope_id, one.handler, one.reason


def _as_dict(one: SeenDelivery) -> dict[str, object]:
    whole = msgspec.structs.asdict(one)
    return {
        **{name: value for name, value in whole.items() if name not in ("conversation", "user")},
        "lag_ms": one.lag_ms,
    }
