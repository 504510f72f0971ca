"""Late heartbeats, by window and by stream: each once, and not where any copy landed in time."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lake.builders import Beat, append_beats, columns_of, lake_in
from tests.watermark.builders import START, at, bounded, seconds
from tidemark.pipeline.quality.landings import LATE_WITHIN, LateHeartbeats, late_since
from tidemark.pipeline.windows import Windowing

WINDOWING = Windowing(length=seconds(60), first=START)


LANDED = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from((10, 20, 90)), st.booleans(), st.sampled_from(("own", None))),
    min_size=1,
    max_size=4,
)


@settings(bounded, max_examples=12)
@given(steps=st.lists(st.one_of(LANDED, st.just("compact")), max_size=8))
def test_each_counts_once_unless_a_copy_was_in_time(tmp_path_factory: pytest.TempPathFactory, steps: list[Any]) -> None:
    lake = lake_in(tmp_path_factory.mktemp("late"))
    late = LateHeartbeats(lake.heartbeats(), WINDOWING)
    landed = list[Beat]()
    for step in steps:
        table = lake.heartbeats().in_place() if step == "compact" else None
        if table is not None:
            table.optimize.compact()
        elif step != "compact":
            beats = [Beat(who, event, publisher_id=name, late=is_late) for who, event, is_late, name in step]
            landed += beats
            append_beats(lake.heartbeats(), columns_of(beats))
        found = late.since(late_since(START + LATE_WITHIN, START))
        assert found == LateHeartbeats(lake.heartbeats(), WINDOWING).since(START.replace(minute=0))
        told = {is_late: {_identity(beat) for beat in landed if beat.late == is_late} for is_late in (False, True)}
        counted = told[True] - told[False]
        assert found.total + found.copies == sum(beat.late for beat in landed)
        assert dict(found.by_stream) == Counter(stream for stream, _, _ in counted)
        assert dict(found.by_window) == Counter(WINDOWING.containing(at(event)).key for _, event, _ in counted)
        assert (found.total, found.rows) == (len(counted), len(landed))


def _identity(beat: Beat) -> tuple[str, float, str | None]:
    return beat.stream_id, beat.event_time, beat.publisher_id
