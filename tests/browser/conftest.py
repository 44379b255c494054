"""Windows of the browser on the console."""

import pytest

from browser.looking import DESK, Looked


@pytest.fixture
def window(chromium):
    """Open a window on a console, used by mouse or by keyboard."""
    contexts = []

    def opened(of, width=DESK, by="mouse", **given):
        contexts.append(chromium.new_context(viewport={"width": width, "height": 900}, **given))
        return Looked(contexts[-1], of, by)

    yield opened
    for context in contexts:
        context.close()
