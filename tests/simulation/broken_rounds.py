"""The broken rounds that are planted: each says by its name what it does wrong."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.simulation.broken_parts import Early
from tidemark.pipeline.ingest.rounds import (
    Provisional,
    Settled,
    TakenHeartbeats,
    TakenTimes,
    settle,
    take_heartbeats,
)
from tidemark.pipeline.watermark.histogram import Histogram


def take_heartbeats_acknowledging_them(subscription: Any, **others: Any) -> TakenHeartbeats:
    """A reader acknowledges as soon as its files are written, and no version lists them yet."""
    taken = take_heartbeats(subscription, **others)
    subscription.acknowledge(taken.ack_ids)
    return taken


def settle_acknowledging_tracking_first(of_base: Any, of_tracking: Any, *, tracking: Any, **others: Any) -> Settled:
    return settle(of_base, of_tracking, tracking=Early(tracking), **others)  # type: ignore[arg-type]


def settle_acknowledging_base_first(of_base: Any, of_tracking: Any, *, base: Any, **others: Any) -> Settled:
    return settle(of_base, of_tracking, base=Early(base), **others)  # type: ignore[arg-type]


def settle_without_one_histogram(of_base: Any, of_tracking: Sequence[TakenTimes], **others: Any) -> Settled:
    """What the first tracker has counted is dropped, and its messages are acknowledged."""
    kept = [replace(one, histogram=Histogram.empty()) if not n else one for n, one in enumerate(of_tracking)]
    if not sum(one.histogram.count.sum() for one in kept):
        kept = list(of_tracking)  # the sum of nothing is no entry
    return settle(of_base, kept, **others)


def settle_without_one_file(of_base: Sequence[TakenHeartbeats], of_tracking: Any, **others: Any) -> Settled:
    """The commit leaves out what the first lander has written, and its messages are acknowledged."""
    kept = [replace(one, heartbeats=(), rejected=()) if not n else one for n, one in enumerate(of_base)]
    return settle(kept, of_tracking, **others)


class AddedTwice:
    """Files whose commit is repeated, as if its answer had been lost."""

    def __init__(self, files: Any) -> None:
        self._files = files

    def add(self, files: Any, says: Any) -> None:
        self._files.add(files, says)
        self._files.add(files, says)


def settle_adding_twice(of_base: Any, of_tracking: Any, *, heartbeats: Any, quarantine: Any, **others: Any) -> Settled:
    twice = {"heartbeats": AddedTwice(heartbeats), "quarantine": AddedTwice(quarantine)}
    return settle(of_base, of_tracking, **twice, **others)  # type: ignore[arg-type]


class RememberedUnsettled(Provisional):
    """What any attempt has counted is remembered, also where its histogram is in no entry."""

    def settle(self, attempts: frozenset[str]) -> None:
        super().settle(attempts | frozenset(self._noted))
