"""Which settings follow from which facts."""

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.watermark.builders import at
from tidemark.pipeline.doctor.measure.facts import (
    ClockFacts,
    DelayFacts,
    Facts,
    FilterFacts,
    MonitoringFacts,
    RedeliveryFacts,
    SnapshotFacts,
    Took,
    TransformFacts,
    Verdict,
    follows,
    rows,
)
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import WatermarkSettings

MS, SECOND = timedelta(milliseconds=1), timedelta(seconds=1)
GOOD = Facts(
    server="Google Pub/Sub",
    at=at(0),
    snapshot=SnapshotFacts([(at(1), at(1))] * 3, [0 * MS, 40 * MS], [0 * MS], [-5 * MS]),
    delay=DelayFacts(1000, 0, SECOND, Took(1000, 30 * MS, 90 * MS, 210 * MS)),
    redelivery=RedeliveryFacts(0 * MS),
    filter=FilterFacts(10, 10, 0),
    transform=TransformFacts(10, 10, 0, 0),
    monitoring=MonitoringFacts(at(0), 90, at(-30), at(32), 100 * SECOND),
    clock=ClockFacts(-2 * MS, 8 * MS),
    calls={},
    charged_bytes=1 << 40,
    took=SECOND,
    swept=[],
)


def settled(facts: Facts) -> dict[str, str]:
    return {one.key: one.value for one in follows(facts, Settings())}


def differing(facts: Facts) -> list[str]:
    return [one.fact for one in rows(facts, Settings()) if one.verdict is Verdict.DIFFERS]


def with_readings(*errors: timedelta, **more: object) -> Facts:
    assert isinstance(GOOD.snapshot, SnapshotFacts)
    shown = [(at(1.5) + error, at(1.5)) for error in errors]
    return replace(GOOD, snapshot=replace(GOOD.snapshot, **{"shown": shown, **more}))  # type: ignore[arg-type]


def test_where_all_is_as_expected_the_slack_follows_alone() -> None:
    assert differing(GOOD) == []
    assert settled(GOOD) == {"slack": "2s"}


def test_a_slack_is_three_times_the_largest_delay_rounded_up_whichever_way_it_was_seen() -> None:
    assert isinstance(GOOD.delay, DelayFacts)
    slow = replace(GOOD, delay=replace(GOOD.delay, took=replace(GOOD.delay.took, largest=701 * MS)))
    assert settled(slow) == {"slack": "2.2s"}
    assert settled(with_readings(0 * MS, passed=[900 * MS])) == {"slack": "2.7s"}


def test_a_larger_slack_that_is_set_is_not_lowered() -> None:
    for slack, raised in ((30_000 * MS, []), (0 * MS, ["slack"])):
        set_by_hand = Settings(watermark=WatermarkSettings(slack=slack))
        assert [one.key for one in follows(GOOD, set_by_hand)] == raised


@pytest.mark.parametrize(
    "facts",
    [
        with_readings(2 * MS),
        with_readings(0 * MS, 0 * MS, 2 * MS),
        with_readings(-600 * MS, -600 * MS),
        with_readings(0 * MS, acknowledged=[11 * SECOND]),
        with_readings(0 * MS, acknowledged=[SECOND], is_stuck=True),
        with_readings(0 * MS, empty=[1100 * MS]),
    ],
)
def test_a_reading_that_is_not_what_it_should_be_leads_to_monitoring(facts: Facts) -> None:
    assert settled(facts)["reading"] == "monitoring"
    assert "reading" not in settled(replace(facts, monitoring=replace(GOOD.monitoring, not_after=at(-1))))  # type: ignore[type-var]


@pytest.mark.parametrize("errors", [(-400 * MS, -400 * MS), (0 * MS, 0 * MS, -9 * SECOND)])
def test_a_reading_of_the_same_second_holds_and_so_does_one_that_is_early_once(errors: tuple[timedelta, ...]) -> None:
    """A lost acknowledgement makes one reading early."""
    assert differing(with_readings(*errors)) == []
