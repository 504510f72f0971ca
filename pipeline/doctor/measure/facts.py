"""What a measurement found. Each fact is what was seen, or a sentence on why it was not measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class NotMeasured:
    """Why a fact is not known."""

    why: str


@dataclass(frozen=True, slots=True)
class SnapshotFacts:
    """Readings by snapshot. `shown` has each reading beside the publish time that it should have been: of the oldest
    message that was pulled and not acknowledged. `passed`: by how much a reading was later than a message published
    before it. `acknowledged`: how long after an acknowledgement the reading had moved; `is_stuck` if the last one had
    not. `empty`: how long before its request a reading was, at least, with nothing outstanding."""

    shown: Sequence[tuple[datetime, datetime]]
    passed: Sequence[timedelta]
    acknowledged: Sequence[timedelta]
    empty: Sequence[timedelta]
    is_stuck: bool = False


@dataclass(frozen=True, slots=True)
class DelayFacts:
    """How long after a message was sent it was pulled, at most: publishing and pulling take a part of it. `missing`
    messages had not come after `waited`."""

    messages: int
    missing: int
    waited: timedelta
    p50: timedelta
    p99: timedelta
    largest: timedelta


@dataclass(frozen=True, slots=True)
class RedeliveryFacts:
    """Messages that were given back, how many came again, and the largest change of a publish time."""

    given_back: int
    came_again: int
    largest_change: timedelta


@dataclass(frozen=True, slots=True)
class FilterFacts:
    """Messages that pass the filter and came, and others that came."""

    passing: int
    came: int
    others: int


@dataclass(frozen=True, slots=True)
class TransformFacts:
    """Messages behind the metadata-only transform: how many came, with a payload, and with other attributes, id or
    publish time than without it."""

    sent: int
    came: int
    with_payload: int
    changed: int


@dataclass(frozen=True, slots=True)
class MonitoringFacts:
    """The first point sampled after a message was published: the bounds on its publish time that follow from the point,
    and how long after its end the point was visible, at most."""

    published: datetime
    age_seconds: int
    not_before: datetime
    not_after: datetime
    visible_after: timedelta


@dataclass(frozen=True, slots=True)
class ClockFacts:
    """How far Pub/Sub's clock is ahead of this machine's: between these two."""

    at_least: timedelta
    at_most: timedelta


@dataclass(frozen=True, slots=True)
class CallFacts:
    """How often a call was made, and how long it took."""

    count: int
    p50: timedelta
    largest: timedelta


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that one measurement found. `swept` has the names of what a killed run had left behind."""

    server: str
    at: datetime
    snapshot: SnapshotFacts | NotMeasured
    delay: DelayFacts | NotMeasured
    redelivery: RedeliveryFacts | NotMeasured
    filter: FilterFacts | NotMeasured
    transform: TransformFacts | NotMeasured
    monitoring: MonitoringFacts | NotMeasured
    clock: ClockFacts | NotMeasured
    calls: Mapping[str, CallFacts]
    charged_bytes: int
    took: timedelta
    swept: Sequence[str]
