"""The synthetic source as a pure function: what it promises of its messages."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ingest.judged import read_payload
from tidemark.local.demo.shapes.json_shapes import JsonObject
from tidemark.local.demo.shapes.shape import REASONS
from tidemark.local.demo.synthetic_beats import (
    DUPLICATE,
    FIRST_BROKEN,
    HEARTBEAT,
    KINDS,
    LEAST_BROKEN,
    Rows,
    SyntheticSource,
    compose,
    messages,
)
from tidemark.local.demo.truth import truth_of
from tidemark.pipeline.clock import duration_us, from_us, to_us
from tidemark.pipeline.contract.heartbeat import FieldKind, Heartbeat, HeartbeatReader, Rejection, read_field
from tidemark.pipeline.errors import InvalidSettings
from tidemark.pipeline.settings import Settings

START = datetime(2026, 11, 21, 5, 0, tzinfo=UTC)
LARGE = SyntheticSource(streams=2_000)
READER = HeartbeatReader(Settings().contract)

shares = st.sampled_from([0.0, 0.01, 0.3, 1.0])


@st.composite
def sources(draw: st.DrawFn) -> SyntheticSource:
    period = draw(st.integers(1_000, 60_000))
    return SyntheticSource(
        streams=draw(st.integers(1, 40)),
        period=timedelta(milliseconds=period),
        jitter=timedelta(milliseconds=draw(st.integers(0, 5_000))),
        event_jitter=timedelta(milliseconds=draw(st.integers(0, (period - 1) // 2))),
        lag=timedelta(milliseconds=draw(st.integers(0, 100_000))),
        duplicates=draw(shares),
        duplicate_delay_share=draw(shares),
        broken=draw(shares),
        stragglers=draw(shares),
        silent=draw(shares),
        seed=draw(st.integers(0, 2**64)),
    )


few = settings(max_examples=30)
lengths = st.integers(1, 600_000).map(lambda milliseconds: timedelta(milliseconds=milliseconds))


def all_of(source: SyntheticSource, length: timedelta = timedelta(minutes=20), **cut: int) -> Rows:
    return np.concatenate(list(messages(source, START, START + length, **cut)))


def of_kind(rows: Rows, kind: int) -> Rows:
    return rows[rows["kind"] == kind]


def disorder_us(event: Any, publish: Any) -> int:
    """The smallest D with: for any two, an earlier event is published at most D after a later one."""
    order = np.argsort(event, kind="stable")
    event, publish = event[order], publish[order]
    first_later = np.searchsorted(event, event, side="right")
    earliest_after = np.append(np.minimum.accumulate(publish[::-1])[::-1], np.iinfo(np.int64).max)
    return max(0, int((publish - earliest_after[first_later]).max(initial=0)))


@few
@given(sources(), lengths)
def test_the_same_seed_gives_the_same_messages_however_they_are_cut(source: SyntheticSource, length: timedelta) -> None:
    assert all_of(source, length).tobytes() == all_of(source, length, rows_at_least=1).tobytes()


def test_another_seed_gives_other_messages() -> None:
    assert all_of(LARGE).tobytes() != all_of(replace(LARGE, seed=1)).tobytes()


@few
@given(sources(), lengths)
def test_messages_come_in_the_order_of_their_publication(source: SyntheticSource, length: timedelta) -> None:
    assert (np.diff(all_of(source, length)["publish_us"]) >= 0).all()


@few
@given(sources(), lengths)
def test_heartbeats_lie_within_the_range_and_a_stream_beats_once_a_period(
    source: SyntheticSource, length: timedelta
) -> None:
    beats = of_kind(all_of(replace(source, silent=0.0), length), HEARTBEAT)
    assert ((beats["event_ms"] >= to_us(START) // 1000) & (beats["event_ms"] < to_us(START + length) // 1000)).all()
    whole = length // source.period
    numbers, counts = np.unique(beats["sequence"], return_counts=True)
    assert (counts[numbers < whole] == source.streams).all()
    assert (numbers < whole).sum() == whole
    assert len(np.unique(beats[["stream", "sequence"]])) == len(beats)
    for stream in np.unique(beats["stream"]):
        gaps = np.diff(np.sort(beats["event_ms"][beats["stream"] == stream])) * 1000
        assert (abs(gaps - duration_us(source.period)) <= 2 * duration_us(source.event_jitter)).all()


@few
@given(sources(), lengths)
def test_disorder_is_at_most_the_jitter_without_stragglers_and_late_copies(
    source: SyntheticSource, length: timedelta
) -> None:
    rows = all_of(replace(source, stragglers=0.0, duplicate_delay_share=0.0), length)
    valid = rows[rows["kind"] < FIRST_BROKEN]
    delay = valid["publish_us"] - valid["event_ms"] * 1000 - duration_us(source.lag)
    assert ((delay >= 0) & (delay <= duration_us(source.jitter))).all()
    assert disorder_us(valid["event_ms"] * 1000, valid["publish_us"]) <= duration_us(source.jitter)


@few
@given(sources(), lengths)
def test_stragglers_come_their_delay_later(source: SyntheticSource, length: timedelta) -> None:
    beats = of_kind(all_of(source, length), HEARTBEAT)
    delay = beats["publish_us"] - beats["event_ms"] * 1000 - duration_us(source.lag)
    late = delay > duration_us(source.jitter)
    assert (delay[late] >= duration_us(source.straggler_delay)).all()
    assert late.all() if source.stragglers == 1 else source.stragglers > 0 or not late.any()


@few
@given(sources(), lengths)
def test_a_duplicate_is_the_same_message_again_at_once_or_its_delay_later(
    source: SyntheticSource, length: timedelta
) -> None:
    rows = all_of(source, length)
    originals = {(row["stream"], row["sequence"]): row for row in of_kind(rows, HEARTBEAT)}
    copies = of_kind(rows, DUPLICATE)
    copied = compose(source, np.array([originals[row["stream"], row["sequence"]] for row in copies], rows.dtype))
    assert [one[:2] for one in compose(source, copies)] == [one[:2] for one in copied]
    later = {int(row["publish_us"] - originals[row["stream"], row["sequence"]]["publish_us"]) for row in copies}
    assert later <= {0, duration_us(source.duplicate_delay)}
    if source.duplicates in (0, 1):
        assert len(copies) == source.duplicates * len(originals)


@few
@given(sources(), lengths)
def test_broken_messages_are_of_every_kind_in_turn_or_not_at_all(source: SyntheticSource, length: timedelta) -> None:
    rows = all_of(source, length)
    counts = [len(of_kind(rows, FIRST_BROKEN + at)) for at in range(len(REASONS))]
    if source.broken == 0:
        assert counts == [0] * len(REASONS)
    else:
        assert min(counts) >= 2
        assert max(counts) - min(counts) <= 1
        for at in range(len(REASONS)):
            assert set(of_kind(rows, FIRST_BROKEN + at)["variant"]) == {0, 1}


def test_broken_messages_are_spread_evenly() -> None:
    rows = all_of(LARGE)
    broken = rows[(rows["kind"] >= FIRST_BROKEN)]
    assert len(broken) == LEAST_BROKEN
    tenth = to_us(START) + np.arange(5) * duration_us(timedelta(minutes=4))
    assert np.bincount(np.searchsorted(tenth, broken["publish_us"]), minlength=6)[1:].min() >= 2


@few
@given(sources(), lengths)
def test_the_truth_of_a_message_is_what_the_contract_reads_in_it(source: SyntheticSource, length: timedelta) -> None:
    rows = all_of(source, length)[:500]
    composed = compose(source, rows)
    published_at = START + timedelta(days=1)
    truth = truth_of(composed, ["id"] * len(rows), published_at).to_pylist()
    for (said, payload, *_), true in zip(composed, truth, strict=True):
        assert len(payload) + sum(len(name) + len(value) for name, value in said.items()) < 1_000
        content = read_payload(payload)
        judged = content if isinstance(content, Rejection) else READER.read(said, content, to_us(published_at))
        if isinstance(judged, Rejection):
            assert judged.reason == true["kind"]
        else:
            assert isinstance(judged, Heartbeat)
            assert true["kind"] in KINDS[:FIRST_BROKEN]
            assert (judged.stream_id, from_us(judged.event_time_us)) == (true["stream_id"], true["event_time"])
        assert true["stream_id"] == (said.get("stream_id") or None)
        assert true["heartbeat_id"] == said["heartbeat_id"]
        if not isinstance(content, Rejection):
            assert true["temperature"] == read_field(content["temperature"], FieldKind.NUMBER)
            assert true["status"] == read_field(content.get("status"), FieldKind.TEXT)


def test_shares_are_kept_over_many_heartbeats() -> None:
    rows = all_of(replace(LARGE, silent=0.01, duplicates=0.05, stragglers=0.02))
    beats = of_kind(rows, HEARTBEAT)
    assert len(beats) == pytest.approx(80_000 * 0.99, rel=0.005)
    assert len(of_kind(rows, DUPLICATE)) == pytest.approx(0.05 * len(beats), rel=0.1)
    late = beats["publish_us"] - beats["event_ms"] * 1000 > duration_us(LARGE.jitter)
    assert late.sum() == pytest.approx(0.02 * len(beats), rel=0.1)


def test_both_ways_of_writing_a_time_and_every_oddity_of_a_payload_occur() -> None:
    rows = of_kind(all_of(LARGE), HEARTBEAT)
    composed = compose(LARGE, rows)
    attributes, payloads = [one.attributes for one in composed], [one.payload for one in composed]
    assert 0 < sum("T" in said["event_time"] for said in attributes) < len(rows) / 100
    for oddity in (b'"temperature":null', b'"temperature":"', b'"status":"warn"', b'"status":"ok"'):
        assert any(oddity in payload for payload in payloads)
    assert any(b"status" not in payload for payload in payloads)
    assert len({said["heartbeat_id"] for said in attributes}) == len(rows)


def test_names_of_attributes_are_the_sources_own() -> None:
    source = replace(LARGE, shape=JsonObject(event_time="at", stream_id="sensor", heartbeat_id="id"))
    composed = compose(source, all_of(source, timedelta(minutes=1)))
    assert {name for one in composed for name in one.attributes} == {"at", "sensor", "id"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"streams": 0},
        {"period": timedelta(0)},
        {"event_jitter": timedelta(seconds=15)},
        {"jitter": timedelta(seconds=-1)},
        {"duplicates": 1.5},
        {"broken": -0.1},
        {"seed": -1},
    ],
)
def test_a_source_that_makes_no_sense_names_what_is_wrong(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidSettings, match=next(iter(wrong))):
        SyntheticSource(**wrong)


def test_an_end_that_is_not_after_the_start_is_refused() -> None:
    with pytest.raises(InvalidSettings, match="end must be later"):
        next(messages(LARGE, START, START))
