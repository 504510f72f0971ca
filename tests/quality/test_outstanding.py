"""What is tracked and has not landed: counted against real tables, without opening what cannot matter."""

from collections.abc import Iterable, Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lake.builders import LATER, Beat, append_beats, append_rejected, columns_of, lake_in
from tests.watermark.builders import START_BUCKET, at, bounded, published
from tidemark.pipeline.errors import LakeError
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.quality.lost import Outstanding, landed_by_second, outstanding
from tidemark.pipeline.watermark.histogram import Histogram

Message = tuple[str, float, float]
"""A message's id, publish time and event time, in seconds from the start."""


def land(lake: Lake, messages: Iterable[Message]) -> None:
    append_beats(
        lake.heartbeats(),
        columns_of([Beat("a", event, message_id=name, publish_time=publish) for name, publish, event in messages]),
    )


def reject(lake: Lake, messages: Sequence[tuple[str, float]]) -> None:
    append_rejected(
        lake.quarantine(),
        {
            "reason": ["NO_EVENT_TIME" for _ in messages],
            "detail": ["" for _ in messages],
            "message_id": [name for name, _ in messages],
            "publish_time": [at(publish) for _, publish in messages],
            "ordering_key": [None for _ in messages],
            "attributes": [[] for _ in messages],
            "payload": [b"" for _ in messages],
            "landed_at": [at(LATER) for _ in messages],
        },
    )


def left(lake: Lake, histogram: Histogram, since: float, before: float) -> Outstanding:
    landed = landed_by_second(lake.heartbeats(), lake.quarantine(), at(since), at(before))
    return outstanding(histogram, landed, at(since), at(before))


THREE = [("m0", 10.1, 3.0), ("m1", 10.9, 4.5), ("m2", 12.0, 6.0)]
TRACKED = published([(publish, event) for _, publish, event in THREE], rejected=[11.5])


def test_messages_in_either_table_are_not_outstanding(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    land(lake, THREE[:1])
    reject(lake, [("m3", 11.5)])
    found = left(lake, TRACKED, 10, 20)
    assert (found.tracked, found.landed, found.at_most) == (4, 2, 2)
    assert [(second.published_from, second.landed, second.outstanding_at_most) for second in found.in_lines(99)] == [
        (at(10), 1, 1),
        (at(12), 0, 1),
    ]


def test_files_that_hold_no_such_publish_time_are_not_opened(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    land(lake, [("old", 5.0, 4.0)])
    before = set((tmp_path / "lake").rglob("*.parquet"))
    assert len(before) == 1
    land(lake, THREE)
    for path in before:
        path.unlink()
    assert left(lake, TRACKED, 10, 20).landed == 3
    with pytest.raises((LakeError, OSError)):
        left(lake, TRACKED, 0, 20)


def test_few_seconds_are_shown_one_by_one_and_many_are_grouped_no_more_than_needed(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    histogram = published((second, second - 1) for second in range(100))
    found = left(lake, histogram, 0, 100)
    assert len(found.in_lines(100)) == 100
    lines = found.in_lines(20)
    assert [line.published_before - line.published_from for line in lines] == [timedelta(seconds=5)] * 20
    assert (lines[1].published_from, lines[1].tracked, lines[1].oldest_event_time) == (at(5), 5, at(4))
    far = left(lake, published([(1, 0), (2, 1), (3_000_000, 5)]), 0, 3_000_001)
    assert [line.outstanding_at_most for line in far.in_lines(2)] == [2, 1]


@bounded
@given(
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 400), st.booleans(), st.booleans()), max_size=40),
    st.integers(1, 10),
)
def test_the_count_of_outstanding_messages_is_an_upper_bound(
    messages: list[tuple[int, int, bool, bool]], lines: int
) -> None:
    histogram = Histogram.empty()
    landed: dict[int, int] = {}
    for publish, event, is_redelivered, has_landed in messages:
        for _ in range(1 + is_redelivered):
            histogram += published([(publish / 4, event)])
        if has_landed:
            landed[START_BUCKET + publish // 4] = landed.get(START_BUCKET + publish // 4, 0) + 1
    found = outstanding(histogram, landed, at(0), at(200))
    truth = [(publish // 4, event) for publish, event, _, has_landed in messages if not has_landed]
    assert len(truth) <= found.at_most <= len(truth) + sum(twice for _, _, twice, _ in messages)
    shown = {second.published_from: second for second in found.in_lines(1000)}
    for publish, event in truth:
        assert shown[at(publish)].oldest_event_time is not None
        assert shown[at(publish)].oldest_event_time <= at(event)  # type: ignore[operator]
    grouped = found.in_lines(lines)
    assert len(grouped) <= lines
    assert sum(line.outstanding_at_most for line in grouped) == found.at_most
