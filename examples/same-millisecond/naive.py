"""Three ways to tell doubled routing events apart, as people write them. Each returns whether it took the event."""

from datetime import datetime, timedelta

import boto3

WINDOW = timedelta(milliseconds=500)

database = boto3.client("dynamodb")  # table `board`, key `conversation`; table `seen`, key `mark`


def show(change, **condition):
    """Put a conversation's status on the board."""
    item = {"conversation": change["conversationId"], "status": change["status"], "updated_at": change["timestamp"]}
    database.put_item(TableName="board", Item={name: {"S": value} for name, value in item.items()}, **condition)


def newest_wins(event):
    """Take what is newer than what the board shows."""
    change = event["detail"]
    try:
        show(
            change,
            ConditionExpression="attribute_not_exists(updated_at) OR updated_at < :time",
            ExpressionAttributeValues={":time": {"S": change["timestamp"]}},
        )
    except database.exceptions.ConditionalCheckFailedException:
        return False
    return True


def by_id(event):
    """Take each event id once."""
    change = event["detail"]
    try:
        database.put_item(
            TableName="seen",
            Item={"mark": {"S": change["eventId"]}},
            ConditionExpression="attribute_not_exists(mark)",
        )
    except database.exceptions.ConditionalCheckFailedException:
        return False
    show(change)
    return True


def by_state(event):
    """Take each status of a conversation once in half a second, by the time that events carry themselves."""
    change = event["detail"]
    until = datetime.fromisoformat(change["timestamp"]) + WINDOW
    try:
        database.put_item(
            TableName="seen",
            Item={
                "mark": {"S": f"{change['conversationId']} {change['status']}"},
                "until": {"S": until.isoformat()},
            },
            ConditionExpression="attribute_not_exists(mark) OR #until < :now",
            ExpressionAttributeNames={"#until": "until"},
            ExpressionAttributeValues={":now": {"S": datetime.fromisoformat(change["timestamp"]).isoformat()}},
        )
    except database.exceptions.ConditionalCheckFailedException:
        return False
    show(change)
    return True
