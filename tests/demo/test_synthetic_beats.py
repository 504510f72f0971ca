"""The synthetic source as a pure function: what it promises of its messages."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cli.command import said_here
from tests.ingest.judged import read_payloads
from tidemark.local.demo.synthetic_beats import FIRST_BROKEN, KINDS, Rows, SyntheticSource, compose, messages
from tidemark.local.demo.truth import truth_of
from tidemark.pipeline.clock import from_us, to_us
from tidemark.pipeline.contract.heartbeat import FieldKind, Heartbeat, HeartbeatReader, Rejection, read_field
from tidemark.pipeline.errors import InvalidSettings
from tidemark.pipeline.settings import Settings

START = datetime(2026, 11, 21, 5, 0, tzinfo=UTC)
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


@few
@given(sources(), lengths)
def test_the_same_seed_gives_the_same_messages_however_they_are_cut(source: SyntheticSource, length: timedelta) -> None:
    assert all_of(source, length).tobytes() == all_of(source, length, rows_at_least=1).tobytes()


@few
@given(sources(), lengths)
def test_messages_come_in_the_order_of_their_publication(source: SyntheticSource, length: timedelta) -> None:
    assert (np.diff(all_of(source, length)["publish_us"]) >= 0).all()


@few
@given(sources(), lengths)
def test_the_truth_of_a_message_is_what_the_contract_reads_in_it(source: SyntheticSource, length: timedelta) -> None:
    rows = all_of(source, length)[:500]
    composed = compose(source, rows)
    published_at = START + timedelta(days=1)
    truth = truth_of(composed, ["id"] * len(rows), published_at).to_pylist()
    contents = read_payloads([payload for _, payload, *_ in composed])
    for (said, payload, *_), content, true in zip(composed, contents, truth, strict=True):
        assert len(payload) + sum(len(name) + len(value) for name, value in said.items()) < 1_000
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


@pytest.mark.parametrize("jitter", [timedelta(0), timedelta(seconds=15)])
def test_a_period_as_short_as_the_jitter_of_event_times_is_refused(jitter: timedelta) -> None:
    with pytest.raises(InvalidSettings, match="period"):
        SyntheticSource(period=2 * jitter, event_jitter=jitter)


@pytest.mark.parametrize(
    "wrong",
    [
        *(("streams", "0"), ("streams", "10000001"), ("jitter", "-1s"), ("duplicates", "1.5"), ("duplicates", "nan")),
        *(("broken", "-0.1"), ("seed", "-1")),
    ],
)
def test_a_source_that_makes_no_sense_names_what_is_wrong(wrong: tuple[str, str], tmp_path: Path) -> None:
    name, value = wrong
    said = said_here(tmp_path, ("publish", f"--{name}", value), {})
    assert said.code == 2
    assert f"Invalid value for '--{name}'" in said.err
