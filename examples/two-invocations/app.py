"""The whole function. ONCEBRIDGE_LEDGER says where the ledger is: redis://cache.internal:6379/0."""

import os
from pathlib import Path

from oncebridge import Bridge

bridge = Bridge.from_settings()


def update_database(conversation, state):
    """Stand in for your database: one line for each update."""
    with Path(os.environ["DATABASE"]).open("a") as lines:
        lines.write(f"{conversation} {state}\n")


@bridge.on("conversation:call:status")
def update(event):
    """Take one change of a call; called again only if it raised or its worker died."""
    update_database(event.conversation_id, event.body["state"])


lambda_handler = bridge.lambda_handler
