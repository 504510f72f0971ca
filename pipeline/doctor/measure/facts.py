"""The findings of a measurement, and whether the method expects them. A fact is what was seen, or why it was not
measured. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from math import ceil
from typing import NamedTuple

from tidemark.pipeline.clock import iso, to_us
from tidemark.pipeline.durations import format_duration
from tidemark.pipeline.quantiles import quantile
from tidemark.pipeline.settings import Settings

EXACT = timedelta(milliseconds=1)
"""Publish times and expiries have milliseconds at least."""

VISIBLE_WITHIN = timedelta(seconds=1)
"""The delay that an empty `slack` allows for on the service."""

MONITORED_WITHIN = timedelta(minutes=4)
"""A point is sampled every minute, and visible up to two minutes later, by Google's list of metrics; a minute more."""

STEPS = {"a minute": 60_000_000, "a second": 1_000_000}
"""To what a reading may be rounded, in microseconds."""


class Verdict(StrEnum):
    """The result of comparing a fact with what the method expects."""

    AS_EXPECTED = "as expected"
    DIFFERS = "differs"
    NOT_MEASURED = "not measured"


class Seen(NamedTuple):
    """A fact in words, and what to do where it differs."""

    found: str
    verdict: Verdict
    then: str = ""


@dataclass(frozen=True, slots=True)
class NotMeasured:
    """Why a fact is not known."""

    why: str

    def seen(self, *_: object) -> Seen:
        return Seen(self.why, Verdict.NOT_MEASURED)


@dataclass(frozen=True, slots=True)
class Took:
    """Durations of one kind of thing, and their count."""

    count: int
    p50: timedelta
    p99: timedelta
    largest: timedelta

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Took":
        """At least one is needed."""
        return cls(len(seconds), *(timedelta(seconds=quantile(seconds, share)) for share in (0.5, 0.99, 1.0)))


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

    def seen(self) -> Seen:
        """The method holds if most readings name the second of the message's publication, and none is later. A single
        earlier one is an acknowledgement that was lost, as Pub/Sub may lose it."""
        errors = [reading - published for reading, published in self.shown]
        off = sum(one > other + EXACT or _second(one) != _second(other) for one, other in self.shown)
        latest, earliest = max(errors), -min(errors)
        largest = max(latest, earliest)
        step = next((name for name, us in STEPS.items() if not any(to_us(one) % us for one, _ in self.shown)), None)
        holds = latest <= EXACT and 2 * off < len(errors)
        if largest <= EXACT:
            return judged(f"exact in {len(errors)} readings", holds)
        if step is not None:
            how = f"rounded to {step}, off by up to {short(largest)}"
        elif latest > EXACT:
            how = f"later than the message by up to {short(latest)}"
        else:
            how = f"earlier than the message by up to {short(earliest)}"
        return judged(f"{how}; another second in {off} of {len(errors)} readings", holds)


@dataclass(frozen=True, slots=True)
class DelayFacts:
    """The longest time from sending a message to pulling it: publishing and pulling take a part of it. `missing`
    messages had not come after `waited`."""

    messages: int
    missing: int
    waited: timedelta
    took: Took

    def seen(self) -> Seen:
        took, messages = self.took, f"of {self.messages:,}"
        if self.missing:
            said = f"{self.missing:,} {messages} messages had not come {short(self.waited)} after the last"
            return judged(said, False, "no slack follows: measure again, and ask what delivers so late")
        said = f"p50 {short(took.p50)}, p99 {short(took.p99)}, largest {short(took.largest)} {messages}"
        return judged(said, took.largest < VISIBLE_WITHIN)


@dataclass(frozen=True, slots=True)
class RedeliveryFacts:
    """By how much the publish time of a message that was given back changed."""

    change: timedelta

    def seen(self) -> Seen:
        said = f"changed by {short(self.change)}" if self.change else "the same"
        return judged(said, not self.change, "the method does not hold here: a watermark would pass messages")


@dataclass(frozen=True, slots=True)
class FilterFacts:
    """Messages that pass the filter and came, and others that came."""

    passing: int
    came: int
    others: int

    def seen(self, settings: Settings) -> Seen:
        if self.others and settings.emulated and settings.pubsub.emulator != "local":
            return NotMeasured("not measured here: Google's official emulator ignores filters").seen()
        said = f"{self.came} of {self.passing} that pass came, and {self.others} others"
        holds = self.came == self.passing and not self.others
        return judged(said, holds, "leave pubsub.filter empty: both subscriptions must get the same messages")


@dataclass(frozen=True, slots=True)
class TransformFacts:
    """Messages behind the metadata-only transform: how many came, with a payload, and with other attributes, id or
    publish time than without it."""

    sent: int
    came: int
    with_payload: int
    changed: int

    def seen(self, settings: Settings) -> Seen:
        if self.with_payload and settings.emulated:
            return NotMeasured("not measured here: an emulator ignores message transforms").seen()
        said = f"{self.came} of {self.sent} came: {self.with_payload} with a payload, {self.changed} changed"
        holds = self.came == self.sent and not self.with_payload and not self.changed
        return judged(said, holds, "leave pubsub.metadata_only = false")


@dataclass(frozen=True, slots=True)
class MonitoringFacts:
    """The first point sampled after a message was published: the bounds on its publish time that follow from the point,
    and how long after its end the point was visible, at most."""

    published: datetime
    age_seconds: int
    not_before: datetime
    not_after: datetime
    visible_after: timedelta

    def seen(self) -> Seen:
        is_bound = self.not_before <= self.published <= self.not_after
        said = (
            f"age {self.age_seconds} s, so published between {iso(self.not_before)} and {iso(self.not_after)}: "
            f"{'right' if is_bound else f'wrong, it was at {iso(self.published)}'}; visible after at most "
            f"{short(self.visible_after)}"
        )
        return judged(said, is_bound and self.visible_after <= MONITORED_WITHIN)


@dataclass(frozen=True, slots=True)
class ClockFacts:
    """Bounds on how far Pub/Sub's clock is ahead of this machine's."""

    at_least: timedelta
    at_most: timedelta

    def seen(self, near: timedelta) -> Seen:
        said = f"between {short(self.at_least)} and {short(self.at_most)} ahead of this machine's"
        holds = -near < self.at_most and self.at_least < near
        return judged(said, holds, "have the machine's clock be set by NTP (`timedatectl set-ntp true`)")


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
    calls: Mapping[str, Took]
    charged_bytes: int
    took: timedelta
    swept: Sequence[str]


def judged(found: str, holds: bool, then: str = "") -> Seen:
    """A fact that was measured."""
    return Seen(found, Verdict.AS_EXPECTED) if holds else Seen(found, Verdict.DIFFERS, then)


def short(duration: timedelta) -> str:
    """To the millisecond, rounded up."""
    return format_duration(timedelta(milliseconds=ceil(duration / EXACT)))


def _second(moment: datetime) -> int:
    return to_us(moment) // 1_000_000
