"""Each cohort is judged by its own messages alone, as a trace or a lake with only these would be."""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer

from tests.tuning.tuning_traces import SECOND_US, MemoryTrace, Source
from tests.watermark.builders import START, START_US, seconds
from tidemark.pipeline.cli.tune.tune import cohort_key
from tidemark.pipeline.errors import NothingToTune, TidemarkError, TraceUnusable
from tidemark.pipeline.replay.trace import NEVER, NO_EVENT_TIME
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.tuning import inputs as cohorts
from tidemark.pipeline.tuning.inputs import Cohort, Cohorts, cohorts_on, report_on_trace
from tidemark.pipeline.tuning.report import Asked, TuningReport, facts_of

BANDS = [seconds(n) for n in (0, 10, 150)]
MAP = pa.map_(pa.string(), pa.string())
LATE = Source(seconds=300, rate=10, streams=20, slow=10, slow_by=100, left=0)
"""Half of the streams are a hundred seconds late."""


def on_trace(path: Path, by: str, bands: Sequence[timedelta] = BANDS) -> Cohorts:
    return cohorts_on(path, cohort_key(by), Asked(Settings(), START, target=0.0001, bands=bands))


def written(trace: MemoryTrace, path: Path, regions: Sequence[str | None], *, as_map: bool = False) -> Path:
    """The trace in a file, with each message's region as a column or as an attribute among others; None: none."""
    table = pq.read_table(trace.write(path))
    if as_map:
        attributes = [[("kind", "beat"), *([("region", region)] if region else [])] for region in regions]
        pq.write_table(table.append_column("attributes", pa.array(attributes, MAP)), path)
    else:
        pq.write_table(table.append_column("region", pa.array(regions, pa.string())), path)
    return path


def region_of(trace: MemoryTrace, *names: str | None) -> list[str | None]:
    """Each message's region: the streams are dealt out in as many equal parts, in order."""
    return [names[number * len(names) // trace.streams] for number in trace.stream.tolist()]


def figures(report: TuningReport | None) -> dict[str, Any]:
    """What a report says of both rules without a further quantile, but for the streams, which a part does not have."""
    facts = facts_of(report)
    kept = ("messages", "rejected", "published_from", "published_until", "ticks", "present", "disorder_seconds")
    tried = [each for each in facts["outcomes"] if not each["quantile"]]
    recommended = [each for each in facts["recommended"] if not each["quantile"]]
    return {**{name: facts[name] for name in kept}, "outcomes": tried, "recommended": recommended}


def troubled() -> MemoryTrace:
    """A trace with rejected messages, some that never landed, and a backlog of the first streams alone."""
    trace = LATE.trace()
    event, landed, tracked = trace.event_us.copy(), trace.landed_us.copy(), trace.tracked_us.copy()
    event[::17] = NO_EVENT_TIME
    held = (trace.stream < 10) & (landed > START_US + 150 * SECOND_US) & (landed < START_US + 200 * SECOND_US)
    landed[held] = START_US + 200 * SECOND_US
    landed[5::500] = tracked[7::500] = NEVER
    return replace(trace, event_us=event, landed_us=landed, tracked_us=tracked)


def test_each_cohort_has_the_figures_of_a_trace_that_was_filtered_by_hand(tmp_path: Path) -> None:
    trace = troubled()
    regions = region_of(trace, "us", "eu", None)
    path = written(trace, tmp_path / "trace", regions, as_map=True)
    table, settings = pq.read_table(path), Settings()
    assert table["event_time"].null_count > 100
    found = on_trace(path, "attribute:region")
    assert [part.value for part in found.parts[-1:]] == [None]
    assert {part.value for part in found.parts} == {"us", "eu", None}
    for part, among in [
        (Cohort(None, found.messages, found.together), regions),
        *((part, [part.value]) for part in found.parts),
    ]:
        by_hand = tmp_path / "by-hand"
        pq.write_table(table.filter(pa.array([region in among for region in regions])), by_hand)
        expected = report_on_trace(by_hand, Asked(settings, START, bands=BANDS))
        assert figures(part.report) == figures(expected)
        assert part.messages == expected.disorder.messages + expected.disorder.rejected


def test_the_largest_are_apart_and_the_rest_is_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cohorts, "MOST_COHORTS", 2)
    monkeypatch.setattr(cohorts, "MOST_VALUES", 4)  # a message without a value is none
    trace = Source(seconds=60, rate=20, streams=10).trace()
    regions = region_of(trace, "a", "b", "b", "c", "c", "c", "d", None, "c", "b")
    found = on_trace(written(trace, tmp_path / "trace", regions), "attribute:region", [seconds(5)])
    assert [part.value for part in found.parts] == ["c", "b", None]
    assert [part.messages for part in found.parts] == [
        regions.count("c"),
        regions.count("b"),
        regions.count("a") + regions.count("d") + regions.count(None),
    ]
    assert found.values_in_rest == 2


def test_what_cannot_be_split_is_refused_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = Source(seconds=60, rate=10).trace()
    plain = trace.write(tmp_path / "plain")
    with pytest.raises(TraceUnusable, match=r"lacks the column region \(it has message_id"):
        on_trace(plain, "attribute:region")
    attributes = written(trace, tmp_path / "map", ["eu"] * len(trace.publish_us), as_map=True)
    with pytest.raises(NothingToTune, match=r"none of the 600 messages in .* has a value for attribute:fleet"):
        on_trace(attributes, "attribute:fleet")
    with pytest.raises(NothingToTune, match="has a value for stream_prefix:/"):
        on_trace(plain, "stream_prefix:/")
    table, file = pq.read_table(plain), tmp_path / "file"
    pq.write_table(table.append_column("attributes", pa.array(["{}"] * len(table))), file)
    with pytest.raises(TraceUnusable, match=r"the column attributes of .* has the type string; write a map of text"):
        on_trace(file, "attribute:region")
    pq.write_table(table.append_column("landed_at", table["landed_at"]), file)
    with pytest.raises(TraceUnusable, match="file repeats the column landed_at; keep one of each name"):
        on_trace(file, "stream_prefix:-")
    with pytest.raises(TraceUnusable, match=r"the column landed_at of .* has the type timestamp.* write it as text"):
        on_trace(plain, "attribute:landed_at")
    monkeypatch.setattr(cohorts, "MOST_VALUES", 500)
    with pytest.raises(NothingToTune, match="attribute:message_id has more than 500 values"):
        on_trace(plain, "attribute:message_id")
    for key in ("region", "attribute:", "payload:region", "stream_prefix", ""):
        with pytest.raises(typer.BadParameter, match=": write attribute:NAME or stream_prefix:SEPARATOR"):
            cohort_key(key)


def test_unwritable_parts_are_one_error_that_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Source(seconds=60, rate=10).trace().write(tmp_path / "trace")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(TidemarkError, match=r"cannot be split in .* set TMPDIR"):
        on_trace(path, "stream_prefix:-", [seconds(5)])
