"""The whole function. ONCEBRIDGE_LEDGER names a table in the account that holds the board: dynamodb://once."""

from oncebridge import Bridge

bridge = Bridge.from_settings()


@bridge.on("routing:queueConversation")
def show(event, transaction):
    """Put a conversation's status on the board, in the one write that also says that this event is done."""
    item = {"conversation": event.conversation_id, "status": event.body["status"]}
    transaction.append({"Put": {"TableName": "board", "Item": {name: {"S": value} for name, value in item.items()}}})


lambda_handler = bridge.lambda_handler
