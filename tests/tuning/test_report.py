"""What the report says in words, and that its page holds together whatever the figures are."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.tuning.tuning_traces import MemoryTrace, Source
from tests.watermark.builders import START
from tidemark.pipeline.lake.store.disk import DiskObjects
from tidemark.pipeline.phrases import percent
from tidemark.pipeline.replay.trace import extent_of, ticks_of
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import WatermarkSettings
from tidemark.pipeline.tuning.disorder import Distribution, LagBound, disorder_of, lag_bound
from tidemark.pipeline.tuning.page import FIGURES, page_of, write_report
from tidemark.pipeline.tuning.report import Asked, TuningReport, lag_bound_sentence, make_report, sentences
from tidemark.pipeline.tuning.sweep import Workload
from tidemark.pipeline.watermark.policy import Policy

PRESENT = Policy()
TICK = timedelta(seconds=10)
BANDS = [timedelta(seconds=n) for n in (0, 5, 20, 60)]
PRESENT_ALONE = [PRESENT.band]
"""What is tried where a test looks at the messages, and not at what other bands would do."""


def report_on(
    trace: MemoryTrace, *, present: Policy = PRESENT, target: float = 0.001, bands: Sequence[timedelta] = BANDS
) -> TuningReport:
    disorder = disorder_of(trace, present.band)
    chosen = {name: value for name, value in asdict(present).items() if name in WatermarkSettings.model_fields}
    extent = extent_of(trace)
    workload = Workload(
        ticks_of(trace, TICK, present.idle_timeout, extent=extent),
        trace,
        disorder.first_publish_us,
        disorder.last_publish_us,
    )
    present_settings = Settings(watermark=WatermarkSettings(**chosen, slack=timedelta(0)))
    asked = Asked(present_settings, START, target=target, bands=bands, targets=[])
    return make_report(workload, disorder, "a trace", asked)


def test_the_report_describes_disorder_names_the_band_that_is_enough_and_the_streams_to_blame() -> None:
    report = report_on(Source(slow=2, slow_by=45, left=0, rate=10, streams=100).trace())
    said = sentences(report)
    assert said[0].startswith("With the present band of 10s and the rule band, ")
    assert "of 6,000 messages are late; the watermark is " in said[0]
    assert said[1].startswith("For at most 0.1 % late: ")
    assert any("the rule frontier is" in sentence and "fresher at the median" in sentence for sentence in said)
    assert "2 of 100 streams are slow by more than the band" in said[-2]
    assert (
        said[-2].endswith("They are stream-0000 and stream-0001.") or "They are stream-0001 and stream-0000" in said[-2]
    )
    assert said[-1].startswith("No stream is fast")
    assert page_of(report).count("<svg") == 5


def test_the_few_that_have_nearly_all_of_the_slow_messages_are_named_whoever_else_has_one() -> None:
    trace = Source(slow=2, slow_by=45, late=0.004, late_by=30, rate=40).trace()
    report = report_on(trace, bands=PRESENT_ALONE)
    assert report.disorder.sides["slow"].streams > 20
    assert " of these are from stream-000" in sentences(report)[-2]
    assert sentences(report)[-2].endswith(("stream-0000 and stream-0001.", "stream-0001 and stream-0000."))
    alike = report_on(Source(slow=9, slow_by=45, late=0.004, late_by=30, rate=40).trace(), bands=PRESENT_ALONE)
    assert sentences(alike)[-2].endswith("they are from too many streams to name a few as the cause.")


BAND = timedelta(seconds=10)


def test_the_max_lag_is_the_least_round_duration_that_hardly_any_message_exceeds_and_is_said() -> None:
    lag = Distribution((2.0, 60.0, 200.0, 4000.0), (9_000, 989, 10, 1))
    assert lag_bound(lag, BAND, 0.0001) == LagBound(timedelta(minutes=5), 1 / 10_000)
    assert lag_bound(lag, BAND, 0.01) == LagBound(timedelta(minutes=1), 11 / 10_000)
    assert lag_bound(lag, BAND, 0.0) == LagBound(timedelta(hours=2), 0.0)
    assert lag_bound(lag, timedelta(minutes=5), 0.01) == LagBound(timedelta(minutes=10), 1 / 10_000)
    lag = Distribution((2.0, 4000.0), (9_999, 1))
    said = lag_bound_sentence(lag, lag_bound(lag, BAND, 0.0001))
    assert said.startswith(
        "With max_lag = 1m, a slow clock would hold the watermark back by at most max_lag plus the band"
    )
    assert "0.01 % of the messages would be passed over (the worst is published 1h6m40s after its event)" in said
    for_years = Distribution((1e9,), (1,))
    assert lag_bound_sentence(for_years, lag_bound(for_years, BAND, 0.0)).startswith("No max_lag up to 7d is large")


def test_a_share_has_three_digits_and_is_never_rounded_to_none_or_all() -> None:
    assert [percent(share) for share in (0, 4e-9, 0.00523, 1)] == ["none", "0.0000004 %", "0.523 %", "100 %"]
    assert [percent(share) for share in (0.9994, 0.9996, 1 - 4e-9)] == ["99.9 %", "99.96 %", "99.9999996 %"]


MADE = datetime(2026, 11, 21, 4, 15, tzinfo=UTC)
DAY = timedelta(days=1)


def test_the_newest_are_kept_and_no_other_object_than_a_report_or_half_of_one_is_removed(tmp_path: Path) -> None:
    objects = DiskObjects(tmp_path)
    objects.create(f"{FIGURES.prefix}2026-11-01T04-15-00.000000Z.json", b"{}")  # by a crash
    objects.create("tracking/log/000000000000.parquet", b"an entry")
    for day in range(5):
        write_report(objects, MADE + day * DAY, "page", {}, keep=2)
    assert sorted(objects.names(FIGURES.prefix)) == [
        f"{FIGURES.prefix}2026-11-{day}T04-15-00.000000Z.{kind}" for day in (24, 25) for kind in ("html", "json")
    ]
    assert objects.read("tracking/log/000000000000.parquet") == b"an entry"
