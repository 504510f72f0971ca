"""Follows tidemark's signal, and prints the windows that closed.

python subscriber.py projects/my-project/subscriptions/hours

The subscription must belong to the topic in signal.publish_to, with message ordering. The highest watermark is kept in
seen.txt, so that no window is left out: after a restart, in whatever order messages come, or with two trackers.
"""

import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from google.api_core.exceptions import DeadlineExceeded
from google.cloud.pubsub_v1 import SubscriberClient

SEEN = Path("seen.txt")


def take(said: dict[str, Any]) -> None:
    """Act on a message, unless its watermark was already seen."""
    reached, seen = said["watermark"], SEEN.read_text() if SEEN.exists() else None
    if reached is None or (seen and datetime.fromisoformat(reached) <= datetime.fromisoformat(seen)):
        return
    print(f"all windows that end at or below {reached} are closed", flush=True)
    beside = SEEN.with_suffix(".new")
    beside.write_text(reached)
    beside.replace(SEEN)  # after it was acted on, and before it is acknowledged


def follow(client: SubscriberClient, subscription: str) -> None:
    """Pull the waiting messages, and act on each."""
    try:
        found = client.pull(subscription=subscription, max_messages=100, timeout=30).received_messages
    except DeadlineExceeded:
        return
    for each in found:
        take(json.loads(each.message.data))
        client.acknowledge(subscription=subscription, ack_ids=[each.ack_id])


if __name__ == "__main__":
    with SubscriberClient() as subscriber:
        while True:
            follow(subscriber, sys.argv[1])
