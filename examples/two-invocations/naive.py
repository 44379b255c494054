"""What most people write: ask Redis whether it was seen, and remember it for ten seconds."""

import os
from pathlib import Path

import redis

SECONDS = 10

cache = redis.Redis.from_url(os.environ["REDIS_URL"])


def update_database(conversation, state):
    """Stand in for your database: one line for each update."""
    with Path(os.environ["DATABASE"]).open("a") as lines:
        lines.write(f"{conversation} {state}\n")


def look_then_write(event, context):
    """Look for the conversation; if it is new, remember it and work."""
    call = event["detail"]
    name = f"call:{call['conversationId']}"
    if cache.get(name):
        return {"statusCode": 200, "body": "seen before"}
    cache.set(name, "1", ex=SECONDS)
    update_database(call["conversationId"], call["state"])
    return {"statusCode": 200, "body": "done"}


def write_then_work(event, context):
    """Look and remember in one step, by the envelope's id, so that nobody can come between; then work."""
    if not cache.set(f"event:{event['id']}", "1", nx=True, ex=SECONDS):
        return {"statusCode": 200, "body": "seen before"}
    call = event["detail"]
    update_database(call["conversationId"], call["state"])
    return {"statusCode": 200, "body": "done"}
