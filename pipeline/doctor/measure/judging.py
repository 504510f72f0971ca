"""Judge the facts: a row for each, with what the method expects of it, and the settings that follow. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from math import ceil

from tidemark.pipeline.doctor.measure.facts import (
    EXACT,
    MONITORED_WITHIN,
    VISIBLE_WITHIN,
    ClockFacts,
    DelayFacts,
    Facts,
    NotMeasured,
    SnapshotFacts,
    Verdict,
    judged,
    short,
)
from tidemark.pipeline.durations import format_duration
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_types import ZERO

SLACK_TIMES = 3
"""A slack is so many times the largest delay that was seen: a quiet topic shows no bound."""

SLACK_AT_LEAST = timedelta(seconds=2)
NEAR = timedelta(seconds=1)
"""A reading that is older than its request by this counts as a message's publish time, which must be occupied."""

JUST_PUBLISHED = "a message just published"
"""The fact of a snapshot that a larger slack takes care of."""

DOLLARS_A_TIB = 40
"""List price of publishing, and of delivering (docs/concepts/costs-and-scale.md)."""


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
    near = settings.policy.near_real_time
    visible = f"below {format_duration(VISIBLE_WITHIN)}"
    bare = "no payload; attributes and publish times as they were"
    bounds = f"bounds the publish time; visible within {format_duration(MONITORED_WITHIN)}"
    on_time = f"within {format_duration(near)} of this machine's"
    return [
        *_snapshot(facts, near),
        Row("delay until a message can be pulled", visible, *facts.delay.seen()),
        Row("a redelivery's publish time", "the same", *facts.redelivery.seen()),
        Row("a filter", "what passes it, and nothing else", *facts.filter.seen(settings)),
        Row("the metadata-only transform", bare, *facts.transform.seen(settings)),
        Row("oldest_unacked_message_age", bounds, *facts.monitoring.seen()),
        Row("Pub/Sub's clock", on_time, *facts.clock.seen(near)),
    ]


def follows(facts: Facts, settings: Settings) -> list[Setting]:
    """The settings that follow. None from a fact that was not measured, and none that would lower a slack that is
    set."""
    found, snapshot = list[Setting](), facts.snapshot
    differing = [row for row in _snapshot(facts, settings.policy.near_real_time) if row.verdict is Verdict.DIFFERS]
    failing = [row for row in differing if row.fact != JUST_PUBLISHED]
    is_monitored = facts.monitoring.seen().verdict is not Verdict.DIFFERS
    if failing and is_monitored:
        why = "; ".join(f"{row.fact}: {row.found}" for row in failing)
        found.append(Setting("pubsub", "reading", "monitoring", f"the snapshot's expiry cannot be relied on ({why})"))
    elif not failing and not is_monitored:
        found.append(Setting("pubsub", "reading", "snapshot", "Cloud Monitoring does not show what the method expects"))
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


def cost(facts: Facts) -> float:
    """Return the list price of the measurement's messages, in dollars."""
    return facts.charged_bytes / 2**40 * DOLLARS_A_TIB


def _snapshot(facts: Facts, near: timedelta) -> Iterator[Row]:
    found = facts.snapshot
    yield Row("a snapshot's expiry less 7d", "the publish time of the oldest unacknowledged message", *found.seen())
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
