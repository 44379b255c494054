"""What an input transformer made of envelopes, back into envelopes: the table `[envelope]`."""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

from oncebridge.event import ENVELOPE_FIELDS, Reshape
from oncebridge.settings.expressions import Search, read_expression
from oncebridge.settings.reading import check_table, read_by, read_settings


def read_envelope(given: Any, file: str) -> Reshape:
    """Check the table, and return what turns an object without `detail` into an envelope."""
    searches = read_settings(ENVELOPE, check_table(given, file, "envelope"), f"{file}: [envelope]")
    found_by = {name.replace("_", "-"): search for name, search in searches.items()}
    # What belongs to the envelope is no part of the event: its id is another one when the event is published again.
    framing = frozenset(given[name] for name in searches if name != "detail")

    def reshape(tree: dict[str, Any]) -> dict[str, Any]:
        found = {name: search(tree) for name, search in found_by.items()}
        rest = {name: value for name, value in tree.items() if name not in framing}
        return {"detail": rest} | {name: value for name, value in found.items() if value is not None}

    return reshape


_Expression: TypeAlias = Annotated[Search, read_by(read_expression, "a JMESPath expression such as conversation.id")]
ENVELOPE: Final = {name.replace("-", "_"): _Expression for name in (*ENVELOPE_FIELDS, "detail")}
