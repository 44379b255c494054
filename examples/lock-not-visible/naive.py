"""What most people write: look for a lock in DynamoDB, write it, and update Postgres."""

import os

import boto3
import psycopg

locks = boto3.client("dynamodb")  # table `locks`, key `event_id`
database = psycopg.connect(os.environ["DATABASE_URL"], autocommit=True)


def is_locked(event_id):
    """Look for the lock, even by the strong read that costs twice as much."""
    found = locks.get_item(TableName="locks", Key={"event_id": {"S": event_id}}, ConsistentRead=True)
    return "Item" in found


def lock(event_id):
    """Write the lock."""
    locks.put_item(TableName="locks", Item={"event_id": {"S": event_id}})


def count(connection, status):
    """Count a call on the board: `calls` tells how many there are of each status."""
    connection.execute("UPDATE board SET calls = calls + 1 WHERE status = %s", [status])


def lambda_handler(event, context):
    """Take one change of a conversation."""
    change = event["detail"]
    if is_locked(change["event_id"]):
        return {"statusCode": 200, "body": "duplicate"}
    lock(change["event_id"])
    count(database, change["status"])
    return {"statusCode": 200, "body": "counted"}
