"""What the facts mean: a row for each, with what the method expects of it, and the settings that follow. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from math import ceil

from tidemark.pipeline.clock import iso, to_us
from tidemark.pipeline.doctor.measure.facts import (
    ClockFacts,
    DelayFacts,
    Facts,
    FilterFacts,
    MonitoringFacts,
    NotMeasured,
    RedeliveryFacts,
    SnapshotFacts,
    TransformFacts,
)
from tidemark.pipeline.durations import format_duration
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_types import ZERO

EXACT = timedelta(milliseconds=1)
"""Publish times and expiries have milliseconds at least."""

VISIBLE_WITHIN = timedelta(seconds=1)
"""The delay that an empty `reading_slack` allows for on the service."""

SLACK_TIMES = 3
"""A slack is so many times the largest delay that was seen: a quiet topic shows no bound."""

BASE_SLACK_AT_LEAST = timedelta(seconds=2)
NEAR = timedelta(seconds=1)
"""A reading that is older than its request by this counts as a message's publish time, which must be occupied."""

MONITORED_WITHIN = timedelta(minutes=4)
"""A point is sampled every minute, and visible up to two minutes later, by Google's list of metrics; a minute more."""

STEPS = {"a minute": 60_000_000, "a second": 1_000_000}
"""To what a reading may be rounded, in microseconds."""

DOLLARS_A_TIB = 40
"""List price of publishing, and of delivering (docs/costs.md)."""


class Verdict(StrEnum):
    """How a fact compares with what the method expects."""

    AS_EXPECTED = "as expected"
    DIFFERS = "differs"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class Row:
    """A fact in words. `then` says what follows where it differs."""

    fact: str
    expected: str
    found: str
    verdict: Verdict
    then: str = ""


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting that follows: its section, key and value as the settings file writes it, and why."""

    section: str
    key: str
    value: str
    why: str


def rows(facts: Facts, settings: Settings) -> list[Row]:
    """The table. Differences that no setting takes care of say what to do."""
    return [
        *_snapshot(facts, settings.watermark.near_real_time),
        _delay(facts.delay),
        _redelivery(facts.redelivery),
        _filter(facts.filter, settings),
        _transform(facts.transform, settings),
        _monitoring(facts.monitoring),
        _clock(facts.clock, settings.watermark.near_real_time),
    ]


def follows(facts: Facts, settings: Settings) -> list[Setting]:
    """The settings that follow. None from a fact that was not measured, and none that would lower a slack that is
    set."""
    found = []
    snapshot, monitoring = facts.snapshot, facts.monitoring
    fails = [row for row in _snapshot(facts, settings.watermark.near_real_time) if row.verdict is Verdict.DIFFERS]
    if fails and _monitoring(monitoring).verdict is not Verdict.DIFFERS:
        why = "; ".join(f"{row.fact}: {row.found}" for row in fails)
        found.append(Setting("pubsub", "reading", "monitoring", f"the snapshot's expiry cannot be relied on ({why})"))
    elif not fails and _monitoring(monitoring).verdict is Verdict.DIFFERS:
        found.append(Setting("pubsub", "reading", "snapshot", "Cloud Monitoring does not show what the method expects"))
    if isinstance(facts.delay, DelayFacts) and not facts.delay.missing:
        passed = max(snapshot.passed, default=ZERO) if isinstance(snapshot, SnapshotFacts) else ZERO
        largest = max(facts.delay.largest, passed)
        slack = timedelta(seconds=ceil(SLACK_TIMES * largest / timedelta(seconds=0.1)) / 10)
        why = f"{SLACK_TIMES} times the largest delay seen, {_short(largest)}, and at least"
        for key, least in (("reading_slack", VISIBLE_WITHIN), ("base_slack", BASE_SLACK_AT_LEAST)):
            value, is_set = max(slack, least), getattr(settings.watermark, key)
            if is_set is None or is_set < value:
                found.append(Setting("watermark", key, format_duration(value), f"{why} {format_duration(least)}"))
    return found


def cost(facts: Facts) -> float:
    """What the measurement's messages cost by the list price, in dollars."""
    return facts.charged_bytes / 2**40 * DOLLARS_A_TIB


def _snapshot(facts: Facts, near: timedelta) -> Iterator[Row]:
    fact, expected = "a snapshot's expiry less 7d", "the publish time of the oldest unacknowledged message"
    found = facts.snapshot
    if isinstance(found, NotMeasured):
        yield _unknown(fact, expected, found)
        return
    yield _row(fact, expected, *_shown(found.shown))
    if found.acknowledged:
        latest = max(found.acknowledged)
        said = "in the next reading" if not latest else f"up to {_short(latest)} late"
        said = f"not within {_short(latest)}" if found.is_stuck else said
        expected = f"within near_real_time ({format_duration(near)})"
        yield _row("a snapshot shows an acknowledgement", expected, said, latest <= near and not found.is_stuck)
    if found.empty:
        ahead = facts.clock.at_least if isinstance(facts.clock, ClockFacts) else ZERO
        behind = max(max(found.empty) + ahead, ZERO)
        said = f"up to {_short(behind)} before the request" if behind > EXACT else "the moment of the request"
        yield _row("with nothing outstanding", "the moment of the request, to a second", said, behind < NEAR)
    passed = [one for one in found.passed if one]
    largest = max(passed, default=ZERO)
    said = f"passed in {len(passed)} of {len(found.passed)} readings, by up to {_short(largest)}"
    if found.passed:
        yield _row(
            "a message just published",
            f"passed by less than {format_duration(VISIBLE_WITHIN)}",
            said if passed else f"never passed in {len(found.passed)} readings",
            largest < VISIBLE_WITHIN,
        )


def _shown(shown: Sequence[tuple[datetime, datetime]]) -> tuple[str, bool]:
    """In words, and whether the method holds with it: most readings name the second of the message's publication, and
    none is later. A single earlier one is an acknowledgement that was lost, as Pub/Sub may lose it."""
    errors = [reading - published for reading, published in shown]
    off = sum(reading > published + EXACT or _second(reading) != _second(published) for reading, published in shown)
    latest, earliest = max(errors), -min(errors)
    holds = latest <= EXACT and 2 * off < len(errors)
    if max(latest, earliest) <= EXACT:
        return f"exact in {len(errors)} readings", holds
    step = next((name for name, us in STEPS.items() if not any(to_us(reading) % us for reading, _ in shown)), None)
    if step is not None:
        how = f"rounded to {step}, off by up to {_short(max(latest, earliest))}"
    elif latest > EXACT:
        how = f"later than the message by up to {_short(latest)}"
    else:
        how = f"earlier than the message by up to {_short(earliest)}"
    return f"{how}; another second in {off} of {len(errors)} readings", holds


def _delay(found: DelayFacts | NotMeasured) -> Row:
    fact, expected = "delay until a message can be pulled", f"below {format_duration(VISIBLE_WITHIN)}"
    if isinstance(found, NotMeasured):
        return _unknown(fact, expected, found)
    if found.missing:
        said = f"{found.missing:,} of {found.messages:,} messages had not come {_short(found.waited)} after the last"
        return _row(fact, expected, said, False, "no slack follows: measure again, and ask what delivers so late")
    said = f"p50 {_short(found.p50)}, p99 {_short(found.p99)}, largest {_short(found.largest)} of {found.messages:,}"
    return _row(fact, expected, said, found.largest < VISIBLE_WITHIN)


def _redelivery(found: RedeliveryFacts | NotMeasured) -> Row:
    fact, expected = "a redelivery's publish time", "the same"
    if isinstance(found, NotMeasured):
        return _unknown(fact, expected, found)
    if found.came_again < found.given_back:
        return _unknown(fact, expected, NotMeasured("the message that was given back did not come again in time"))
    changed = found.largest_change
    said = f"changed by {_short(changed)}" if changed else "the same"
    return _row(fact, expected, said, not changed, "the method does not hold here: a watermark would pass messages")


def _filter(found: FilterFacts | NotMeasured, settings: Settings) -> Row:
    fact, expected = "a filter", "what passes it, and nothing else"
    if isinstance(found, NotMeasured):
        return _unknown(fact, expected, found)
    if found.others and settings.emulated and settings.pubsub.emulator != "local":
        return _unknown(fact, expected, NotMeasured("not measured here: Google's official emulator ignores filters"))
    said = f"{found.came} of {found.passing} that pass came, and {found.others} others"
    holds = found.came == found.passing and not found.others
    return _row(fact, expected, said, holds, "leave pubsub.filter empty: both subscriptions must get the same messages")


def _transform(found: TransformFacts | NotMeasured, settings: Settings) -> Row:
    fact, expected = "the metadata-only transform", "no payload; attributes and publish times as they were"
    if isinstance(found, NotMeasured):
        return _unknown(fact, expected, found)
    if found.with_payload and settings.emulated:
        return _unknown(fact, expected, NotMeasured("not measured here: an emulator ignores message transforms"))
    said = f"{found.came} of {found.sent} came: {found.with_payload} with a payload, {found.changed} changed"
    holds = found.came == found.sent and not found.with_payload and not found.changed
    return _row(fact, expected, said, holds, "leave pubsub.metadata_only = false")


def _monitoring(found: MonitoringFacts | NotMeasured) -> Row:
    fact = "oldest_unacked_message_age"
    expected = f"bounds the publish time; visible within {format_duration(MONITORED_WITHIN)}"
    if isinstance(found, NotMeasured):
        return _unknown(fact, expected, found)
    is_bound = found.not_before <= found.published <= found.not_after
    said = (
        f"age {found.age_seconds} s, so published between {iso(found.not_before)} and {iso(found.not_after)}: "
        f"{'right' if is_bound else f'wrong, it was at {iso(found.published)}'}; visible after at most "
        f"{_short(found.visible_after)}"
    )
    return _row(fact, expected, said, is_bound and found.visible_after <= MONITORED_WITHIN)


def _clock(found: ClockFacts | NotMeasured, near: timedelta) -> Row:
    fact, expected = "Pub/Sub's clock", f"within near_real_time ({format_duration(near)}) of this machine's"
    if isinstance(found, NotMeasured):
        return _unknown(fact, expected, found)
    said = f"between {_short(found.at_least)} and {_short(found.at_most)} ahead of this machine's"
    holds = -near < found.at_most and found.at_least < near
    return _row(fact, expected, said, holds, "have the machine's clock be set by NTP (`timedatectl set-ntp true`)")


def _row(fact: str, expected: str, found: str, holds: bool, then: str = "") -> Row:
    verdict = Verdict.AS_EXPECTED if holds else Verdict.DIFFERS
    return Row(fact, expected, found, verdict, "" if holds else then)


def _unknown(fact: str, expected: str, found: NotMeasured) -> Row:
    return Row(fact, expected, found.why, Verdict.NOT_MEASURED)


def _second(moment: datetime) -> int:
    return to_us(moment) // 1_000_000


def _short(duration: timedelta) -> str:
    """To the millisecond, rounded up."""
    return format_duration(timedelta(milliseconds=ceil(duration / EXACT)))
