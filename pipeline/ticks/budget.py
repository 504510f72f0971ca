"""How much one tick may take, and the batches that fit in it."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from pipeline.clock import Clock
from pipeline.pubsub.subscription import PulledBatch, Subscription

SMALL_SHARE = 0.05
"""A batch smaller than this share of a full one means that the backlog is nearly gone: the next tick takes the rest."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The most that one tick pulls. What ends it first ends the pulling; a batch in hand is always finished."""

    max_messages: int
    max_bytes: int
    max_time: timedelta
    batch_messages: int


def batches(subscription: Subscription, budget: Budget, clock: Clock) -> Iterator[PulledBatch]:
    """Batches until the budget is spent or there is little left to pull.

    A batch is handed out before the next is pulled: whoever takes it persists and acknowledges it first, and lets go of
    it, so that one batch is in memory and not two.
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
        yield batch
        del batch
        if pulled < budget.batch_messages * SMALL_SHARE:
            return
