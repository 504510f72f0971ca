"""Follows tidemark's signal, and prints the windows that closed.

python subscriber.py projects/my-project/subscriptions/hours

The subscription must belong to the topic in signal.publish_to, with message ordering. The last message is kept in
seen.json, so that after a restart no window is printed twice or left out.
"""

import json
import sys
from pathlib import Path
from typing import Any

from google.api_core.exceptions import DeadlineExceeded
from google.cloud.pubsub_v1 import SubscriberClient

SEEN = Path("seen.json")


def take(said: dict[str, Any]) -> None:
    """Act on a message, unless this message or a newer one was already seen."""
    seen = json.loads(SEEN.read_text()) if SEEN.exists() else {"log_entry": -1}
    if said["log_entry"] <= seen["log_entry"]:
        return
    if said["watermark"] is not None and said["windows"] is None:
        print(f"all windows that end at or below {said['watermark']} are closed", flush=True)
    elif said["windows"] and said["windows"]["count"]:
        print("{count} windows closed, {first} to {last}".format_map(said["windows"]), flush=True)
    SEEN.write_text(json.dumps(said))  # after it was acted on, and before it is acknowledged


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
