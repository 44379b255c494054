"""The whole function. ONCEBRIDGE_LEDGER is the database that holds the board: postgresql://bridge@db.internal/crm."""

from oncebridge import Bridge

bridge = Bridge.from_settings()


def count(connection, status):
    """Count a call on the board: `calls` tells how many there are of each status."""
    connection.execute("UPDATE board SET calls = calls + 1 WHERE status = %s", [status])


@bridge.on("Conversation Status Change")
def take(event, transaction):
    """Take one change; what is written through `transaction` is committed with the note that it is done."""
    count(transaction, event.body["status"])


lambda_handler = bridge.lambda_handler
