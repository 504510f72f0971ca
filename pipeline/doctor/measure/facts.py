"""Facts that a measurement finds about Pub/Sub, a table that compares them with what the watermark relies on, and the
settings that follow from them. Writing the settings into the user's file keeps its comments, order and other values.

A fact is an observation, or the reason why there is none.
"""

import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

from tomlkit.exceptions import TOMLKitError

from tidemark.local.services.own_files import with_values
from tidemark.pipeline.clock import format_duration, iso, to_us
from tidemark.pipeline.errors import InvalidSettings
from tidemark.pipeline.figures import quantile
from tidemark.pipeline.machine import replacing
from tidemark.pipeline.settings import PREFIX, Settings
from tidemark.pipeline.settings_sections import ZERO
from tidemark.pipeline.watermark.histogram import bucket_of

EXACT = timedelta(milliseconds=1)
"""Tolerance for publish times and expiry times, which are precise to at least a millisecond."""

VISIBLE_WITHIN = timedelta(seconds=1)
"""Expected maximum time from publishing a message until it is visible. The default `slack` for Google's service covers
this delay."""

MONITORED_WITHIN = timedelta(minutes=4)
"""Maximum expected delay until a data point of a metric is visible. Google's list of metrics promises one point a
minute, visible up to two minutes later. One minute is added as a margin."""

STEPS = {"a minute": 60_000_000, "a second": 1_000_000}


class Verdict(StrEnum):
    """The result of comparing a fact with what the watermark relies on."""

    AS_EXPECTED = "as expected"
    DIFFERS = "differs"
    NOT_MEASURED = "not measured"


class Seen(NamedTuple):
    """The description of a fact, its verdict, and what to do if the fact differs from the expected one."""

    found: str
    verdict: Verdict
    then: str = ""


@dataclass(frozen=True, slots=True)
class NotMeasured:
    """The reason why a fact is unknown."""

    why: str

    def seen(self, *_: object) -> Seen:
        return Seen(self.why, Verdict.NOT_MEASURED)


@dataclass(frozen=True, slots=True)
class Took:
    """A summary of the durations of one kind of call or delay: their number, median, 99th percentile and maximum."""

    count: int
    p50: timedelta
    p99: timedelta
    largest: timedelta

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Took":
        """Summarize durations in seconds. At least one is required."""
        return cls(len(seconds), *(timedelta(seconds=quantile(seconds, share)) for share in (0.5, 0.99, 1.0)))


@dataclass(frozen=True, slots=True)
class SnapshotFacts:
    """Facts about readings by snapshot. A reading is the publish time of the oldest outstanding message.

    - `shown` contains the readings taken while pulled messages were unacknowledged. Each is paired with its expected
      value: the publish time of the oldest of these messages.
    - `passed` contains a duration per round: how far a reading was past the publish time of a message that had just
      been published, or 0.
    - `acknowledged` contains the durations from an acknowledgement until the reading moved or, if it was stuck, until
      the wait ended.
    - `empty` contains how far each reading was behind the start of its request while no message was outstanding.
    - `is_stuck` is true if no acknowledgement had moved the reading when the measurement gave up.
    """

    shown: Sequence[tuple[datetime, datetime]]
    passed: Sequence[timedelta]
    acknowledged: Sequence[timedelta]
    empty: Sequence[timedelta]
    is_stuck: bool = False

    def seen(self) -> Seen:
        """Judge the readings. They are as expected if none is later than its message's publish time, and most are in
        the same second as this time. A few earlier readings are allowed, because Pub/Sub may lose an
        acknowledgement."""
        errors = [reading - published for reading, published in self.shown]
        off = sum(one > other + EXACT or bucket_of(one) != bucket_of(other) for one, other in self.shown)
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
        return judged(f"{how}; wrong in {off} of {len(errors)} readings", holds)


@dataclass(frozen=True, slots=True)
class DelayFacts:
    """The times from sending a message to receiving it, including the publish request and the pull request. `missing`
    is the number of messages that did not arrive. The wait ends after the time `waited` without an arrival."""

    messages: int
    missing: int
    waited: timedelta
    took: Took

    def seen(self) -> Seen:
        took, messages = self.took, f"of {self.messages:,}"
        if self.missing:
            said = f"{self.missing:,} {messages} messages were not received within {short(self.waited)} of the last"
            return judged(said, False, "no slack is derived: measure again, and find out why delivery is so late")
        said = f"p50 {short(took.p50)}, p99 {short(took.p99)}, largest {short(took.largest)} {messages}"
        return judged(said, took.largest < VISIBLE_WITHIN)


@dataclass(frozen=True, slots=True)
class RedeliveryFacts:
    """The amount by which a message's publish time changed on redelivery."""

    change: timedelta

    def seen(self) -> Seen:
        said = f"changed by {short(self.change)}" if self.change else "the same"
        return judged(said, not self.change, "do not use tidemark here: messages would be late")


@dataclass(frozen=True, slots=True)
class FilterFacts:
    """The numbers of messages published to a filtered subscription, and received from it.

    - `passing` is the number of published messages that pass the filter.
    - `came` is the number of passing messages that were received.
    - `others` is the number of received messages that do not pass the filter.
    """

    passing: int
    came: int
    others: int

    def seen(self, settings: Settings) -> Seen:
        if self.others and settings.emulated and settings.pubsub.emulator != "local":
            return NotMeasured("not measured here: Google's official emulator ignores filters").seen()
        said = f"received {self.came} of {self.passing} that pass, and {self.others} others"
        holds = self.came == self.passing and not self.others
        return judged(said, holds, "leave pubsub.filter empty: both subscriptions must get the same messages")


@dataclass(frozen=True, slots=True)
class TransformFacts:
    """The effect of the metadata-only transform on the messages of the experiment. `sent` is their number.

    - `came` is the number of messages received twice: with the transform, and without it.
    - `with_payload` is the number of these messages that still have a payload with the transform.
    - `changed` is the number of these messages whose attributes or publish time differ from those without the
      transform.
    """

    sent: int
    came: int
    with_payload: int
    changed: int

    def seen(self, settings: Settings) -> Seen:
        if self.with_payload and settings.emulated:
            return NotMeasured("not measured here: an emulator ignores message transforms").seen()
        said = f"received {self.came} of {self.sent}: {self.with_payload} with a payload, {self.changed} changed"
        holds = self.came == self.sent and not self.with_payload and not self.changed
        return judged(said, holds, "leave pubsub.metadata_only = false")


@dataclass(frozen=True, slots=True)
class MonitoringFacts:
    """Cloud Monitoring's first data point sampled after a message was published.

    According to the point, the message was published between `not_before` and `not_after`. `visible_after` is an upper
    bound on the delay until the point was visible.
    """

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
    """The bounds on the time by which Pub/Sub's clock is ahead of this machine's clock. Negative: behind."""

    at_least: timedelta
    at_most: timedelta

    def seen(self, near: timedelta) -> Seen:
        said = f"between {short(self.at_least)} and {short(self.at_most)} ahead of this machine's"
        holds = -near < self.at_most and self.at_least < near
        return judged(said, holds, "let NTP set the machine's clock (`timedatectl set-ntp true`)")


@dataclass(frozen=True, slots=True)
class Facts:
    """The results of one measurement. `swept` names the leftovers of killed measurements that this measurement
    removed."""

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

    @property
    def dollars(self) -> float:
        """The list price of the measurement's messages."""
        return self.charged_bytes / 2**40 * DOLLARS_A_TIB


def judged(found: str, holds: bool, then: str = "") -> Seen:
    """Return a measured fact with its verdict. `found` describes the fact, and `then` says what to do if `holds` is
    false."""
    return Seen(found, Verdict.AS_EXPECTED) if holds else Seen(found, Verdict.DIFFERS, then)


def short(duration: timedelta) -> str:
    """Format a duration to the millisecond, rounded up."""
    return format_duration(timedelta(milliseconds=ceil(duration / EXACT)))


SLACK_TIMES = 3
"""The suggested slack is the largest observed delay times this factor, because a quiet topic does not show the largest
possible delay."""

SLACK_AT_LEAST = timedelta(seconds=2)
NEAR = timedelta(seconds=1)
"""Expected maximum lag of a reading if no message is outstanding. The reading should be the time of its request."""

JUST_PUBLISHED = "a message just published"
"""Name of the row about messages that were just published. If its measured value differs from the expected one, a
larger slack compensates for the difference."""

DOLLARS_A_TIB = 40
"""List price, in dollars per TiB, of publishing and of delivering (see docs/concepts/costs-and-scale.md)."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table: a fact, its expected value and its measured value. `then` says what to do if the two
    differ."""

    fact: str
    expected: str
    found: str
    verdict: Verdict
    then: str = ""


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting that follows from the facts: its section, key and value as in the settings file, and the reason."""

    section: str
    key: str
    value: str
    why: str


def rows(facts: Facts, settings: Settings) -> list[Row]:
    """Return the rows of the table that compares the facts with the expected values. If `follows` derives no setting
    from a difference, the row says what to do."""
    near = settings.policy.near_real_time
    visible = f"below {format_duration(VISIBLE_WITHIN)}"
    bare = "no payload; attributes and publish times unchanged"
    bounds = f"bounds the publish time; visible within {format_duration(MONITORED_WITHIN)}"
    on_time = f"within {format_duration(near)} of this machine's"
    return [
        *_snapshot(facts, near),
        Row("delay until a message can be pulled", visible, *facts.delay.seen()),
        Row("a redelivery's publish time", "the same", *facts.redelivery.seen()),
        Row("a filter", "messages that pass, and no others", *facts.filter.seen(settings)),
        Row("the metadata-only transform", bare, *facts.transform.seen(settings)),
        Row("oldest_unacked_message_age", bounds, *facts.monitoring.seen()),
        Row("Pub/Sub's clock", on_time, *facts.clock.seen(near)),
    ]


def follows(facts: Facts, settings: Settings) -> list[Setting]:
    """Derive settings from the facts. A fact that was not measured gives no setting. No setting lowers the configured
    slack."""
    found, snapshot = list[Setting](), facts.snapshot
    differing = [row for row in _snapshot(facts, settings.policy.near_real_time) if row.verdict is Verdict.DIFFERS]
    failing = [row for row in differing if row.fact != JUST_PUBLISHED]
    is_monitored = facts.monitoring.seen().verdict is not Verdict.DIFFERS
    if failing and is_monitored:
        why = "; ".join(f"{row.fact}: {row.found}" for row in failing)
        found.append(Setting("pubsub", "reading", "monitoring", f"the snapshot's expiry cannot be relied on ({why})"))
    elif not failing and not is_monitored:
        found.append(Setting("pubsub", "reading", "snapshot", "Cloud Monitoring's metric is not as expected"))
    if isinstance(facts.delay, DelayFacts) and not facts.delay.missing:
        passed = max(snapshot.passed, default=ZERO) if isinstance(snapshot, SnapshotFacts) else ZERO
        largest = max(facts.delay.took.largest, passed)
        slack = timedelta(seconds=ceil(SLACK_TIMES * largest / timedelta(seconds=0.1)) / 10)
        value, is_set = max(slack, SLACK_AT_LEAST), settings.watermark.slack
        if is_set is None or is_set < value:
            least = f"at least {format_duration(SLACK_AT_LEAST)}"
            why = f"{SLACK_TIMES} times the largest delay seen, {short(largest)}, and {least}"
            found.append(Setting("watermark", "slack", format_duration(value), why))
    return found


def _snapshot(facts: Facts, near: timedelta) -> Iterator[Row]:
    found = facts.snapshot
    yield Row("a snapshot's expiry minus 7d", "the publish time of the oldest unacknowledged message", *found.seen())
    if isinstance(found, NotMeasured):
        return
    if found.acknowledged:
        latest = max(found.acknowledged)
        said = "in the next reading" if not latest else f"up to {short(latest)} late"
        said = f"not within {short(latest)}" if found.is_stuck else said
        seen = judged(said, latest <= near and not found.is_stuck)
        yield Row("a snapshot shows an acknowledgement", f"within {format_duration(near)}", *seen)
    if found.empty:
        ahead = facts.clock.at_least if isinstance(facts.clock, ClockFacts) else ZERO
        behind = max(max(found.empty) + ahead, ZERO)
        said = f"up to {short(behind)} before the request" if behind > EXACT else "the moment of the request"
        yield Row("with nothing outstanding", "the moment of the request, to a second", *judged(said, behind < NEAR))
    if found.passed:
        largest, times = max(found.passed), sum(map(bool, found.passed))
        said = f"passed in {times} of {len(found.passed)} readings, by up to {short(largest)}"
        said = said if times else f"never passed in {len(found.passed)} readings"
        expected = f"passed by less than {format_duration(VISIBLE_WITHIN)}"
        yield Row(JUST_PUBLISHED, expected, *judged(said, largest < VISIBLE_WITHIN))


@dataclass(frozen=True, slots=True)
class Written:
    """A setting that was written into the settings file. `before` is its previous value in the file (None if absent).
    `overridden_by` names the environment variable that overrides it, if there is one."""

    setting: Setting
    before: str | None
    overridden_by: str | None


def write_settings(file: Path, found: Sequence[Setting]) -> list[Written]:
    """Write the settings into the file, all or none, and return those that changed.

    The file is replaced atomically; if it is a symbolic link, the link's target is replaced. Raises InvalidSettings if
    the file cannot be read or written.
    """
    target = file.resolve()
    try:
        with target.open(encoding="utf-8-sig", newline="") as opened:
            text = opened.read()
        meaning, written = tomllib.loads(text), list[Written]()
        for setting in found:
            section = meaning.setdefault(setting.section, {})
            if (before := section.get(setting.key)) != setting.value:
                section[setting.key] = setting.value
                variable = f"{PREFIX}{setting.section}__{setting.key}".upper()
                overridden_by = variable if variable in os.environ else None
                written.append(Written(setting, None if before is None else str(before), overridden_by))
        values = {f"{one.setting.section}.{one.setting.key}": one.setting.value for one in written}
        if values:
            _replace(target, with_values(text, values), meaning)
    except (OSError, ValueError, TOMLKitError) as error:
        raise InvalidSettings(
            f"the settings file {file} could not be written: {error}; nothing in it was changed. Write the settings "
            "above by hand"
        ) from error
    return written


def _replace(target: Path, text: str, meaning: dict[str, Any]) -> None:
    """Replace the file atomically. Raises ValueError if the TOML `text` does not parse to `meaning`."""
    if tomllib.loads(text) != meaning:
        raise ValueError("its layout is not supported")
    with replacing(target) as made:
        made.write_text(text, encoding="utf-8", newline="")
        made.chmod(target.stat().st_mode & 0o7777)
