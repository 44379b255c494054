"""What AWS Lambda hands over, into deliveries, and what became of them into the answer that each shape wants."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from oncebridge.clock import Clock
    from oncebridge.intake.results import Result
    from oncebridge.intake.terms import Terms
    from oncebridge.settings.secrets import Secret


def answer(
    run: Callable[[list[Any], Terms], list[Result]],
    event: Any,
    context: Any,
    *,
    api_keys: Sequence[Secret],
    clock: Clock,
) -> Any:
    """Work off one invocation, and answer it."""
    raise NotImplementedError
