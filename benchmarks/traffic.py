"""Traffic made in memory, for what is measured without a Pub/Sub: sizes, memory, and a table to compute from."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from google.pubsub_v1 import PubsubMessage

from tidemark.local.demo.synthetic_beats import Rows, SyntheticSource, compose, messages
from tidemark.pipeline.contract.messages import Messages
from tidemark.pipeline.pubsub.leases import Acknowledged
from tidemark.pipeline.pubsub.pulls import GIVEN_BACK_SECONDS, table_of
from tidemark.pipeline.pubsub.subscription import PulledBatch

LIVE_RATE = 10_000 / 30
"""Messages a second: 10,000 streams that beat every 30 s."""

REGULAR = SyntheticSource(duplicates=0, broken=0, silent=0)
"""All streams, each beat once: what is measured is the same in every round."""

PLAIN = PubsubMessage.pb()
"""The plain protobuf class, which is what a pull hands out."""


class MadeSubscription:
    """Hands out a source's messages, each published when its row says; acknowledging them is free.

    It makes a batch when it is asked for one, and keeps none.
    """

    path = "projects/tidemark-bench/subscriptions/made"

    def __init__(self, source: SyntheticSource, start: datetime, end: datetime) -> None:
        self._source = source
        self._rows = messages(source, start, end)
        self._left: Rows | None = None
        self._pulled = 0

    def pull(self, max_messages: int, max_bytes: int, seconds: float, ahead: int = 0) -> PulledBatch:  # noqa: ARG002
        """As many as are asked for; fewer at the end, and then none."""
        made = [message for rows in self._next(max_messages) for message in self._messages(rows)]
        return PulledBatch(
            Messages(table_of(made)), [message.message_id for message in made], sum(one.ByteSize() for one in made)
        )

    def hold(self, ack_ids: Sequence[str]) -> None:
        """These leases do not run out."""

    def give_back(self, ack_ids: Sequence[str], seconds: int = GIVEN_BACK_SECONDS) -> None:
        """What is given back does not come again."""

    def pause(self) -> None:
        """No pull is under way."""

    def acknowledge(self, ack_ids: Sequence[str]) -> Acknowledged:
        return Acknowledged(len(ack_ids))

    def _next(self, wanted: int) -> Iterator[Rows]:
        while wanted > 0:
            rows = self._left if self._left is not None and len(self._left) else next(self._rows, None)
            if rows is None:
                return
            yield rows[:wanted]
            self._left = rows[wanted:]
            wanted -= len(rows[:wanted])

    def _messages(self, rows: Rows) -> Iterator[Any]:
        for published, made in zip(rows["publish_us"].tolist(), compose(self._source, rows), strict=True):
            message = PLAIN(data=made.payload, attributes=made.attributes, message_id=f"{self._pulled:016d}")
            message.publish_time.FromMicroseconds(published)
            self._pulled += 1
            yield message
