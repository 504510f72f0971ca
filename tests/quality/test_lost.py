"""What is tracked and has not landed: outstanding on base, or lost outside of the pipeline."""

import tempfile
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from unittest import mock

import hypothesis
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ingest.fakes import CONTRACT, WINDOWING, World, published_at, to_written
from tests.lake.builders import Beat, append_beats, columns_of, lake_in
from tests.watermark.builders import at, bounded, published
from tidemark.local.emulator.faults import Faults
from tidemark.pipeline.contract.heartbeat import HeartbeatReader
from tidemark.pipeline.contract.places import Place
from tidemark.pipeline.errors import LakeError
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.tables.heartbeats import HOUR_FORMAT
from tidemark.pipeline.lake.tables.quarantine import Quarantine
from tidemark.pipeline.quality.lost import Audit, Outstanding, audit, landed_by_second, outstanding
from tidemark.pipeline.upkeep.table_chores import drop_partitions
from tidemark.pipeline.watermark.histogram import Histogram


def audited(world: World, since: datetime | None = None) -> Audit:
    return audit(world.lake(), since)


def test_a_second_without_any_landed_message_is_a_certain_loss(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.wait(5)
    first, second = world.topic.publish(1.0), world.topic.publish(2.0)
    world.wait(2)
    world.topic.publish(3.0)
    for message in (first, second):
        world.base.taken_by_somebody_else(message)
    world.tick()
    world.wait(2)
    world.track()
    found = audited(world)
    assert (found.tracked, found.landed, found.at_least, found.at_most) == (3, 1, 2, 2)
    (minute,) = found.minutes
    assert (minute.minute, minute.tracked, minute.at_least) == (at(0), 3, 2)


@pytest.mark.parametrize("is_gone", [False, True], ids=["damaged", "gone"])
@pytest.mark.parametrize("apart", [-3600.0, 2405.0], ids=["an hour before", "a clock that is ahead, clamped"])
def test_what_a_damaged_file_may_hold_is_not_lost_nor_landed(tmp_path: Path, *, is_gone: bool, apart: float) -> None:
    world = World(tmp_path)
    world.wait(2390)
    lost = [world.topic.publish(2386.0), world.topic.publish(apart)]
    world.topic.publish(2387.0)
    world.topic.publish(apart + 1)
    for message in lost:
        world.base.taken_by_somebody_else(message)
    world.tick()
    world.wait(2)
    world.track()
    assert audited(world).at_most == 2
    hour = world.lake().heartbeats().files_between(at(apart), at(apart + 2)).paths
    (file,) = (Path(path) for path in hour)
    file.write_bytes(file.read_bytes()[:-40])
    if is_gone:
        file.unlink()
    found = audited(world)
    assert (found.tracked, found.landed, found.at_least, found.at_most) == (2, 1, 1, 1)
    assert list(found.damaged.items()) == [(f"{file.parent.name}/{file.name}", file.parent.name.partition("=")[2])]


def test_a_damaged_file_of_quarantine_leaves_its_day_unknown(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.topic.publish(1.0)
    world.topic.publish("no time")
    world.wait(2)
    world.tick()
    world.wait(2)
    world.track()
    assert (audited(world).tracked, audited(world).landed) == (2, 2)
    (file,) = (world.folder / "quarantine").rglob("part-*.parquet")
    file.write_bytes(file.read_bytes()[:-40])
    found = audited(world)
    assert (found.at_most, found.untracked, found.tracked) == (0, 0, 0)
    assert found.damaged == {f"{file.parent.name}/{file.name}": file.parent.name.partition("=")[2]}


message = st.tuples(
    st.integers(0, 3),
    st.integers(0, 2),
    st.sampled_from(["base", "tracking", None, None]),
    st.sampled_from(["good", "no time", "no json"]),
)
"""Half seconds until the next message, its event time in half seconds, who loses it, and its kind."""


@hypothesis.settings(bounded, max_examples=15)
@given(st.lists(message, min_size=1, max_size=12), st.integers(0, 1000))
def test_the_truth_is_between_certain_and_possible(messages: list[tuple[int, int, str | None, str]], seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), seed=seed, redelivered=0.3)
        lost, untracked = [], 0
        for wait, event, loser, kind in messages:
            event_time = "yesterday" if kind == "no time" else event / 2
            published = world.topic.publish(event_time, payload=b"{" if kind == "no json" else None)
            if loser == "tracking":
                world.tracking.taken_by_somebody_else(published)
                untracked += 1
            if loser == "base":
                world.base.taken_by_somebody_else(published)
                lost.append(published)
            world.wait(wait / 2)
            if seed % 3 == 0:
                world.tick()
        world.model.faults = Faults()  # or what was taken away might come again
        for _ in range(3):
            world.tick()
        landed = {*world.landed_ids(), *world.quarantined_ids()}
        found = audited(world)
        assert found.before is not None
        truth = [one for one in lost if one.message_id not in landed and published_at(one) < found.before]
        assert found.at_least <= len(truth) <= found.at_most + untracked
        assert found.untracked <= untracked
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tidemark.pipeline.quality.lost.AUDITED_ROWS", 0)
            assert audited(world) == found


def test_few_messages_of_a_week_are_read_by_days(tmp_path: Path) -> None:
    world = World(tmp_path)
    for _ in range(6):
        world.topic.publish(0.0)
        world.wait(86_400)
    world.tick()
    world.wait(2)
    world.track()
    with mock.patch.object(
        Quarantine, "published_between", autospec=True, side_effect=Quarantine.published_between
    ) as read:
        found = audited(world)
    assert (found.tracked, found.landed) == (6, 6)
    assert read.call_count == 7


@pytest.mark.parametrize("is_stolen", [True, False], ids=["stolen", "created again"])
def test_what_landed_and_was_never_tracked_is_counted(tmp_path: Path, *, is_stolen: bool) -> None:
    world = World(tmp_path)
    world.topic.publish(0.0)
    world.wait(2)
    world.tick()
    for one in [world.topic.publish(2.0), world.topic.publish(1.0)]:
        if is_stolen:
            world.tracking.taken_by_somebody_else(one)
    if not is_stolen:
        tracking = world.model.get_subscription("tracking")
        world.model.delete_subscription("tracking")
        world.model.create_subscription(tracking, world.clock.now())
    world.land()
    world.wait(800)
    world.track()
    found = audited(world)
    assert (found.untracked, found.tracked, found.landed, found.at_least, found.at_most) == (2, 1, 3, 0, 0)


def test_what_was_pruned_before_base_was_sought_back_counts_as_tracked(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.model.get_subscription("base").retain_acked_messages = True
    for second in range(0, 150, 10):
        world.topic.publish(float(second))
        world.wait(10)
        world.tick()
    world.model.seek("base", at(0), world.clock.now())
    world.track()
    found = audited(world, world.clock.now() - timedelta(seconds=30))
    assert found.since == found.before, "base has nothing left that it had passed"
    for _ in range(2):
        sought = world.clock.now()
        world.wait(10)
        world.tick()
    found = audited(world, sought)
    assert (found.landed, found.untracked) == (15, 0)


Message = tuple[str, float, float]
"""A message's id, publish time and event time, in seconds from the start."""


def land(lake: Lake, messages: Iterable[Message]) -> None:
    append_beats(
        lake.heartbeats(),
        columns_of([Beat("a", event, message_id=name, publish_time=publish) for name, publish, event in messages]),
    )


def left(lake: Lake, histogram: Histogram, since: float, before: float) -> Outstanding:
    return outstanding(histogram, landed_by_second(lake, at(since), at(before)), at(since), at(before))


THREE = [("m0", 10.1, 3.0), ("m1", 10.9, 4.5), ("m2", 12.0, 6.0)]
TRACKED = published([(publish, event) for _, publish, event in THREE], rejected=[11.5])


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
    found = left(lake, published((second, second - 1) for second in range(100)), 0, 100)
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
def test_the_outstanding_messages_are_an_upper_bound(messages: list[tuple[int, int, bool, bool]], lines: int) -> None:
    histogram = Histogram.empty()
    landed = np.zeros(200, np.int64)
    for publish, event, is_redelivered, has_landed in messages:
        for _ in range(1 + is_redelivered):
            histogram += published([(publish / 4, event)])
        if has_landed:
            landed[publish // 4] += 1
    found = outstanding(histogram, landed, at(0), at(200))
    truth = [(publish // 4, event) for publish, event, _, has_landed in messages if not has_landed]
    assert len(truth) <= found.at_most <= len(truth) + sum(twice for _, _, twice, _ in messages)
    shown = {second.published_from: second for second in found.in_lines(1000)}
    for publish, event in truth:
        assert shown[at(publish)].oldest_event_time <= at(event)  # type: ignore[operator]
    grouped = found.in_lines(lines)
    assert len(grouped) <= lines
    assert sum(line.outstanding_at_most for line in grouped) == found.at_most


def test_what_retention_deletes_is_not_lost(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.wait(5)
    for event_second in (-5 * 3600.0, -5 * 3600.0, 4.0):
        world.topic.publish(event_second)
    world.tick()
    world.wait(20)
    world.track()
    lake = world.lake()
    drop_partitions(lake.table("heartbeats"), at(-2 * 3600).strftime(HOUR_FORMAT))
    kept = lake.kept_windows(WINDOWING)
    assert (audited(world).at_least, kept.heartbeats_from()) == (1, None)
    kept.raise_to(WINDOWING.containing(at(0)), at(-3600).replace(minute=0, second=0))
    found = audit(lake, None, kept.heartbeats_from())
    assert (found.tracked, found.landed, found.at_most) == (1, 1, 0)
    world.topic.publish("garbage")
    world.tick()
    world.wait(20)
    world.track()
    drop_partitions(lake.table("quarantine"), "9999")
    for keep, lost in ((None, 1), (timedelta(days=2), 1), (timedelta(0), 0)):
        found = audit(lake, at(20), at(-3600), keep)
        assert found.at_least == lost


def test_what_lands_by_another_contract_than_it_was_tracked_by_is_not_lost(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.reader = HeartbeatReader(CONTRACT, judged_by="old")
    world.wait(30)
    event_times = {"event_time": to_written(1.0), "other_time": to_written(10.0), "stream_id": "a"}
    world.topic.publish_plain(b"{}", event_times)
    world.wait(1)
    world.track()
    world.restart()
    world.reader = HeartbeatReader(replace(CONTRACT, event_time=Place.of("attribute:other_time")))
    world.reader.judged_by = "new"
    for _ in range(6):
        world.wait(10)
        world.tick()
    assert audited(world, world.clock.now() - timedelta(hours=1)).at_least == 0
