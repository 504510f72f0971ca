"""Stands in for a BigQuery subscription: pulls, appends rows to a table, and acknowledges after the commit.

python -m tests.attach.loader PROJECT SUBSCRIPTION DATABASE SECONDS ROWS_A_BATCH
"""

import json
import os
import sys
import time

import duckdb
from google.pubsub_v1 import SubscriberClient

from tidemark.pipeline.pubsub.connection import subscriber_client

CREATE = (
    "create table if not exists events (message_id varchar, publish_time timestamptz, attributes json, data varchar)"
)


def load(reader: SubscriberClient, subscription: str, database: str, seconds: float, at_most: int) -> int:
    """Load for some seconds, so many rows at a time; how many were. Others may open the database in between."""
    until, loaded = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        request = {"subscription": subscription, "max_messages": at_most, "return_immediately": True}
        received = list(reader.pull(request=request, timeout=10).received_messages)
        rows = [
            (m.message_id, m.publish_time.isoformat(), json.dumps(dict(m.attributes)), m.data.decode(errors="replace"))
            for m in (one.message for one in received)
        ]
        if rows:
            append(database, rows)
            reader.acknowledge(subscription=subscription, ack_ids=[one.ack_id for one in received])
        loaded += len(rows)
        time.sleep(0.5)
    return loaded


def append(database: str, rows: list[tuple[str, str, str, str]]) -> None:
    """Commit rows; waits while somebody else has the database open."""
    for _ in range(200):
        try:
            with duckdb.connect(database) as connection:
                connection.execute(CREATE)
                connection.executemany("insert into events values (?, ?, ?, ?)", rows)
            return
        except duckdb.IOException:
            time.sleep(0.1)
    raise AssertionError(f"{database} was locked for 20 s")


if __name__ == "__main__":
    project, subscription, database, seconds, at_most = sys.argv[1:]
    client = subscriber_client(os.environ["PUBSUB_EMULATOR_HOST"])
    path = f"projects/{project}/subscriptions/{subscription}"
    print(load(client, path, database, float(seconds), int(at_most)), "loaded")
