"""The sink in the ledger's own transaction: one row for each effect that was committed, read past the program."""

from __future__ import annotations

import sqlite3
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

TABLE: Final = "proof_effects"
#: The ledgers whose transaction can hold the effect of a handler.
LEDGERS: Final = ("sqlite", "postgres", "dynamodb")
CREATE: Final = f"CREATE TABLE IF NOT EXISTS {TABLE} (round text NOT NULL, number integer NOT NULL)"
#: Two that create it at once would get in each other's way on Postgres, IF NOT EXISTS or not.
ALONE: Final = "SELECT pg_advisory_xact_lock(hashtext('proof_effects'))"

Write = Callable[[Any, int], None]


def create(url: str) -> None:
    """Make the table."""
    if url.startswith("dynamodb"):
        names = {"round": "HASH", "id": "RANGE"}
        _dynamodb(url).create_table(
            TableName=TABLE,
            KeySchema=[{"AttributeName": name, "KeyType": kind} for name, kind in names.items()],
            AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name in names],
            BillingMode="PAY_PER_REQUEST",
        )
        return
    with _sql(url) as connection:
        if not url.startswith("sqlite"):
            connection.execute(ALONE)
        connection.execute(CREATE)
        connection.commit()


def writer(url: str, name: str) -> Write:
    """Return what writes the effect of an event of this round, as part of the transaction."""
    if url.startswith("dynamodb"):
        return lambda transaction, number: transaction.append(
            {
                "Put": {
                    "TableName": TABLE,
                    "Item": {"round": {"S": name}, "id": {"S": str(uuid.uuid4())}, "number": {"N": str(number)}},
                }
            }
        )
    mark = _mark(url)
    insert = f"INSERT INTO {TABLE} (round, number) VALUES ({mark}, {mark})"
    return lambda transaction, number: transaction.execute(insert, (name, number))


def counted(url: str, name: str) -> dict[int, int]:
    """Count the rows of each event of a round."""
    if url.startswith("dynamodb"):
        pages = (
            _dynamodb(url)
            .get_paginator("query")
            .paginate(
                TableName=TABLE,
                ConsistentRead=True,
                KeyConditionExpression="#r = :r",
                ExpressionAttributeNames={"#r": "round"},
                ExpressionAttributeValues={":r": {"S": name}},
            )
        )
        return dict(Counter(int(item["number"]["N"]) for page in pages for item in page["Items"]))
    with _sql(url) as connection:
        found = connection.execute(f"SELECT number FROM {TABLE} WHERE round = {_mark(url)}", (name,))
        return dict(Counter(number for (number,) in found))


def _mark(url: str) -> str:
    return "?" if url.startswith("sqlite") else "%s"


@contextmanager
def _sql(url: str) -> Iterator[Any]:
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30)) as file:
            yield file
    else:
        import psycopg

        # The schema is for the ledger's tables: this one is in that of every connection.
        address, _, parameters = url.partition("?")
        kept = "&".join(one for one in parameters.split("&") if not one.startswith("schema="))
        with psycopg.connect(f"{address}?{kept}" if kept else address) as server:
            yield server


def _dynamodb(url: str) -> Any:
    import boto3

    return boto3.client("dynamodb", endpoint_url=parse_qs(urlsplit(url).query)["endpoint_url"][0])
