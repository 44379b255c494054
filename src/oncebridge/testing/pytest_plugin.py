"""A fixture for pytest. In the conftest.py of your tests: `pytest_plugins = ["oncebridge.testing.pytest_plugin"]`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from oncebridge.bridge import Bridge
from oncebridge.testing.bridge import TestBridge


@pytest.fixture
def bridge_for() -> Iterator[Callable[..., TestBridge]]:
    """Make bridges for a test, as `TestBridge(...)` does, and close them after it: `bridge_for(app.bridge)`."""
    with ExitStack() as stack:

        def made(bridge: Bridge | None = None, **options: Any) -> TestBridge:
            return stack.enter_context(TestBridge(bridge, **options))

        yield made
