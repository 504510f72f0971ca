"""How much one tick may take, and the batches that fit in it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

from pipeline.clock import Clock
from pipeline.pubsub.subscription import PulledBatch, Subscription

Done = TypeVar("Done")

SMALL_SHARE = 0.05
"""A batch smaller than this share of a full one means that the backlog is nearly gone: the next tick takes the rest."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The most that one tick pulls. The first limit that is reached ends it; a batch that was pulled is finished."""

    max_messages: int
    max_bytes: int
    max_time: timedelta
    batch_messages: int


def for_each_batch(
    subscription: Subscription, budget: Budget, clock: Clock, process: Callable[[PulledBatch], Done]
) -> Iterator[Done]:
    """Pull batches until the budget is spent or little is left to pull, and yield what `process` makes of each.

    A batch is processed before the next is pulled. It is in memory only while it is processed.
    """
    until = clock.monotonic() + budget.max_time.total_seconds()
    messages, size = budget.max_messages, budget.max_bytes
    while messages > 0 and size > 0 and (seconds := until - clock.monotonic()) > 0:
        batch = subscription.pull(min(budget.batch_messages, messages), size, seconds)
        pulled = len(batch)
        if not pulled:
            return
        messages -= pulled
        size -= batch.size_bytes
        done = process(batch)
        del batch
        yield done
        if pulled < budget.batch_messages * SMALL_SHARE:
            return
