"""A service as tutorials build it: Redis remembers the event for ten minutes, then it is posted on."""

import json
import os

import redis
import urllib3

SECONDS = 600

cache = redis.Redis(
    host=os.environ["REDIS_HOST"],
    port=int(os.environ.get("REDIS_PORT", "6379")),
    password=os.environ.get("REDIS_PASSWORD"),
)


def mark_of(detail):
    """Name what makes an event unique: its id, or for users, queues and so on the id of what it is about."""
    if "conversation" in detail["eventType"]:
        return f"event {detail['eventId']}"
    return f"{detail['eventType']} {detail['body']['id']}"


def is_duplicate(detail):
    """Look and remember in one step."""
    return not cache.set(mark_of(detail), "1", nx=True, ex=SECONDS)


def post(detail):
    """Send an event downstream."""
    payload = {"eventType": detail["eventType"], "body": detail["body"], "timestamp": detail["timestamp"]}
    with urllib3.PoolManager() as http:
        answer = http.request("POST", os.environ["DOWNSTREAM_URL"], json=payload, timeout=10, retries=False)
    if answer.status >= 400:
        raise RuntimeError(f"downstream answered {answer.status}")


def lambda_handler(event, context):
    """Take one event, or a batch of them, and answer that all is well."""
    counts = {"processed": 0, "skipped": 0, "errors": 0}
    for record in event.get("Records", [event]):
        try:
            if is_duplicate(record["detail"]):
                counts["skipped"] += 1
            else:
                post(record["detail"])
                counts["processed"] += 1
        except Exception as error:  # noqa: BLE001 - one bad event must not stop the others, people say
            print("failed:", error)
            counts["errors"] += 1
    return {"statusCode": 200, "body": json.dumps(counts)}
