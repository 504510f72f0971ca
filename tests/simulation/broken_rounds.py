"""The broken rounds that are planted: each says by its name what it does wrong."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from tests.simulation.broken_parts import Early
from tests.simulation.faults import Planted, in_rounds, plant
from tidemark.pipeline.ingest.counting import RememberedCopies
from tidemark.pipeline.ingest.outcome import Settled, Side, Taken
from tidemark.pipeline.ingest.rounds import Share, taken_of
from tidemark.pipeline.ingest.settle import Settling
from tidemark.pipeline.ingest.take import Budget, Tracking
from tidemark.pipeline.watermark.histogram import Histogram


@plant("readers acknowledge what they have written", "take", 3, in_rounds, about="rounds")
@plant(
    "readers acknowledge files, which count as durable", "take", 3, in_rounds, about="rounds", files_are_durable=True
)
def take_acknowledging_base(share: Share, side: Side, subscription: Any, *others: Any) -> Taken:
    """A reader acknowledges as soon as its files are written, and no version lists them yet."""
    taken = taken_of(share, side, subscription, *others)
    if side is Side.BASE and taken.ack_ids:
        subscription.acknowledge(taken.ack_ids)
    return taken


@plant("readers are told no watermark", "share", 4, in_rounds, about="rounds")
def told_no_watermark(share: Share) -> Share:
    return replace(share, watermark=None)


@plant("readers have no bounds", "tidemark.pipeline.ingest.rounds.Share.budget", 3, in_rounds, about="rounds")
def unbounded(_share: Share, _side: Side) -> Budget:
    """A reader takes all there is, for as long as that lasts."""
    return Budget(10**9, 10**12, timedelta(hours=1), 10**6)


@plant("readers look into no late payload", "tidemark.pipeline.ingest.rounds.Tracking", 5, in_rounds, about="rounds")
def tracking_without_laggards(reader: Any, copies: Any, _laggard: Any, clock: Any) -> Tracking:
    """No message is judged by its payload on tracking."""
    return Tracking(reader, copies, None, clock)


@plant("a driver acknowledges tracking before its entry", "settling", 3, in_rounds, about="rounds")
def settling_acknowledging_tracking_first(*, subscriptions: Any, **others: Any) -> Settling:
    early = Early(subscriptions[Side.TRACKING])
    return Settling(subscriptions={**subscriptions, Side.TRACKING: early}, **others)


@plant("a driver acknowledges base before its commit", "settling", 3, in_rounds, about="rounds")
def settling_acknowledging_base_first(*, subscriptions: Any, **others: Any) -> Settling:
    return Settling(subscriptions={**subscriptions, Side.BASE: Early(subscriptions[Side.BASE])}, **others)


@plant("a driver keeps no leases", "settling", 438, in_rounds, about="rounds")
class HoldsNothing(Settling):
    """The leases of what other processes have taken last as long as these have asked for."""

    def hold(self, taken: Sequence[Taken]) -> None: ...


@plant("a round loses the histogram of a tracker", "settling", 5, in_rounds, about="rounds")
class WithoutOneHistogram(Settling):
    """What the first tracker has counted is dropped, and its messages are acknowledged."""

    def settle(self, taken: Sequence[Taken], *others: Any) -> Settled:
        first = next((one for one in taken if one.side is Side.TRACKING), None)
        kept = [replace(one, histogram=Histogram.empty()) if one is first else one for one in taken]
        if not sum(one.histogram.count.sum() for one in kept):
            kept = list(taken)  # the sum of nothing is no entry
        return super().settle(kept, *others)


@plant("a round loses the files of a lander", "settling", 3, in_rounds, about="rounds")
class WithoutOneFile(Settling):
    """The commit leaves out what the first lander has written, and its messages are acknowledged."""

    def settle(self, taken: Sequence[Taken], *others: Any) -> Settled:
        first = next((one for one in taken if one.side is Side.BASE), None)
        kept = [replace(one, heartbeats=(), rejected=()) if one is first else one for one in taken]
        return super().settle(kept, *others)


class AddedTwice:
    """Files whose commit is repeated, as if its answer had been lost."""

    def __init__(self, files: Any) -> None:
        self._files = files

    def add(self, files: Any, says: Any) -> None:
        self._files.add(files, says)
        self._files.add(files, says)


def settling_adding_twice(*, tables: Any, **others: Any) -> Settling:
    return Settling(tables=[AddedTwice(table) for table in tables], **others)  # type: ignore[misc]


@plant("copies of what was not settled are remembered", "copies", 19, in_rounds, about="rounds")
class RememberedUnsettled(RememberedCopies):
    """What any attempt has counted is remembered when the next one begins, also where its histogram is in no entry."""

    def settle(self, attempts: Collection[str]) -> None:
        super().settle({*attempts, *self._noted})


ADDED_TWICE = Planted("a round is added twice", where=in_rounds, about="rounds", settling=settling_adding_twice)
"""No fault, although it looks like one: it breaks no invariant."""
