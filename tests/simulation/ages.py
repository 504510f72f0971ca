"""Messages that happened too long before they are published: they are rejected, and hold nothing."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace

from tests.simulation.traffic import SECOND, Planned

TOO_OLD = "too old"


def by_age(one: Planned, max_age_us: int | None) -> Planned:
    """The message as it is judged: one that lags more than this is flawed."""
    if max_age_us is None or one.flaw not in (None, "payload") or one.publish_us - one.event_us <= max_age_us:
        return one
    return replace(one, flaw=TOO_OLD)


def with_old_messages(
    rng: random.Random, messages: Sequence[Planned], *, above_all: bool
) -> tuple[tuple[Planned, ...], int]:
    """A bound on age, in microseconds, and the messages by it. The bound is the lag of one of them, or (`above_all`)
    more than that of each; besides, some heartbeats with all their copies are made older than it. (Where a first copy
    was rejected alone, a later one would be the first, with more disorder.)"""
    lags = sorted(one.lag_us for one in messages)
    bound_us = max(lags[-1] + SECOND if above_all else rng.choice(lags[len(lags) // 2 :]), SECOND)
    share, beyond = rng.choice([0, 0.1, 0.3]), (1000, SECOND, 100 * SECOND)
    older: dict[object, int] = {}
    made = []
    for number, one in enumerate(sorted(messages, key=lambda one: one.publish_us)):
        heartbeat = number if one.publisher_id is None else one.heartbeat
        if heartbeat not in older:
            too_old_us = (one.publish_us - bound_us - rng.choice(beyond)) // 1000 * 1000
            older[heartbeat] = too_old_us if not above_all and rng.random() < share else one.event_us
        made.append(replace(one, event_us=older[heartbeat]))
    return _in_order(by_age(one, bound_us) for one in made), bound_us


def _in_order(messages: Iterable[Planned]) -> tuple[Planned, ...]:
    return tuple(sorted(messages, key=lambda one: one.arrives_us))
