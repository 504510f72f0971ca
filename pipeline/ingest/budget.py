"""How much one tick may take, and the batches that fit in it."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

from tidemark.pipeline.clock import Clock
from tidemark.pipeline.errors import PubSubError, ReadingPostponed
from tidemark.pipeline.pubsub.backlog import Backlog
from tidemark.pipeline.pubsub.subscription import PulledBatch, Subscription

logger = logging.getLogger(__name__)

Done = TypeVar("Done")

SMALL_SHARE = 0.05
"""A batch smaller than this share of a full one is small. It may mean that the backlog is nearly gone."""

SMALL_BATCHES = 3
"""The number of small batches in a row that ends a tick, whatever the backlog is: another consumer may hold it."""

FIRST_SECONDS = 0.4
"""A tick's first batch is pulled for so long at most, so that a tick without a backlog decides soon."""

FURTHER_SECONDS = 2.0
"""The same for a batch after a small one."""

CAUGHT_UP = timedelta(seconds=0.2)
"""How long before a batch was begun its subscription's oldest message may be published if there is no backlog: messages
become visible a moment later, and clocks differ."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The most that one tick pulls. The first limit that is reached ends it; a batch that was pulled is finished."""

    max_messages: int
    max_bytes: int
    max_time: timedelta
    batch_messages: int


def for_each_batch(
    subscription: Subscription,
    budget: Budget,
    clock: Clock,
    process: Callable[[PulledBatch], Done],
    backlog: Backlog | None = None,
) -> Iterator[Done]:
    """Pull batches until the budget is spent or there is no backlog, and yield what `process` makes of each.

    While a batch is processed, a part of the next may be pulled ahead within the budget. A batch is in memory only
    while it is processed. An empty pull does not prove that there is no backlog: a reading of `backlog` does. Without
    one, or where the budget of snapshots puts it off, a batch that is nearly empty ends it.
    """
    until = clock.monotonic() + budget.max_time.total_seconds()
    messages, size, small = budget.max_messages, budget.max_bytes, 0
    at_most = budget.max_time.total_seconds() if backlog is None else FIRST_SECONDS
    while messages > 0 and size > 0 and (seconds := until - clock.monotonic()) > 0:
        began, wanted = clock.now(), min(budget.batch_messages, messages)
        batch = subscription.pull(wanted, size, min(seconds, at_most), messages - wanted)
        pulled = len(batch)
        messages -= pulled
        size -= batch.size_bytes
        if pulled:
            done = process(batch)
            del batch
            yield done
        is_small = pulled < budget.batch_messages * SMALL_SHARE
        if backlog is None:
            if is_small:
                return
            continue
        small = small + 1 if is_small else 0
        at_most = FURTHER_SECONDS if small else seconds
        if (
            messages > 0
            and size > 0
            and pulled < wanted
            and (small == SMALL_BATCHES or is_gone(backlog, began, is_small=is_small))
        ):
            return


def is_gone(backlog: Backlog, since: datetime, *, is_small: bool) -> bool:
    """Whether nothing is outstanding that was published before that moment, as far as a reading can tell.

    What cannot be read now counts as gone: the next tick goes on. If no reading is due, a small batch tells it.
    """
    try:
        reading = backlog.read()
    except ReadingPostponed:
        return is_small
    except PubSubError as error:
        logger.warning("whether there is more to pull is not known: %s", error)
        return True
    return reading.no_later_than >= since - CAUGHT_UP
