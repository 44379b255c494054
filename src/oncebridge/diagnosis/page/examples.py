"""Examples of deliveries, as a list."""

from __future__ import annotations

from collections.abc import Sequence

from oncebridge.diagnosis.diagnosis import Example
from oncebridge.markup import Markup, joined, moment, tag, topic
from oncebridge.quantities import count


def examples(found: Sequence[Example], relation: str, *, anchor: str | None = None) -> Markup:
    """Write examples as a list; `relation` says what each is to the other delivery."""
    return tag("ol", *(_example(example, relation) for example in found), class_="examples", id=anchor)


def _example(example: Example, relation: str) -> Markup:
    lines = [_delivery(example.n, example.place, example.topic, example.time, example.id)]
    if example.of_n is not None:
        other = _delivery(example.of_n, example.of_place, example.of_topic, example.of_time, None)
        lines.append(joined((tag("span", relation, class_="quiet"), other), " "))
    if example.reason:
        lines.append(tag("em", example.reason))
    return tag("li", *(tag("p", line) for line in lines))


def _delivery(n: int, place: str | None, name: str | None, time: str | None, id_: str | None) -> Markup:
    parts: list[str] = [tag("b", f"delivery {count(n)}")]
    parts += [tag("span", moment(time), class_="nowrap")] if time else []
    parts += [topic(name)] if name else []
    parts += [joined(("id ", tag("code", id_)))] if id_ else []
    parts += [joined(("at ", topic(place)))] if place else []
    return joined(parts, " · ")
