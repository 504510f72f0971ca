"""The tracking log's entries: exact in both directions, and any damage is told."""

import io
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.watermark.builders import at, bounded, histogram_of, message_lists, published, reading, rejected_lists
from tidemark.pipeline.errors import CorruptObject, NewerFormat
from tidemark.pipeline.lake.log import codec
from tidemark.pipeline.lake.log.codec import decode, encode
from tidemark.pipeline.lake.log.tracking_log import TrackingLog, entry_name
from tidemark.pipeline.lake.store.disk import DiskObjects
from tidemark.pipeline.upkeep.repair import check_log
from tidemark.pipeline.watermark.decision import BandEvidence, Decision, FrontierEvidence, Reason, SilenceEvidence
from tidemark.pipeline.watermark.histogram import A_COPY, Cell
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.readings import EffectiveReading, Reading
from tidemark.pipeline.watermark.state import (
    Beginning,
    Compacted,
    DecisionRecord,
    Entry,
    Lost,
    Snapshot,
    WatermarkState,
)
from tidemark.pipeline.watermark.usage import Usage

NAME = "tracking/log/000000000007.parquet"

moments = st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - see timezones
durations = st.timedeltas(timedelta(0), timedelta(days=400))
numbers = st.integers(-(1 << 40), 1 << 40)
readings = st.builds(Reading, observed_at=moments, oldest_unacked=moments, names_a_message=st.booleans())
effective_readings = st.builds(
    EffectiveReading,
    oldest_unacked=moments,
    names_a_message=st.booleans(),
    observed_at=moments,
    epoch=st.integers(1, 1 << 40),
    epoch_began=moments,
    newest=readings,
)
counts = st.integers(0, 1 << 40)
cells = st.builds(Cell, publish_bucket=numbers, min_event_time=moments, count=st.integers(1, 1 << 40))
decisions = st.builds(
    Decision,
    at=moments,
    watermark=st.none() | moments,
    reason=st.sampled_from(Reason),
    base=st.none() | effective_readings,
    tracking=st.none() | effective_readings,
    newest_publish_time=st.none() | moments,
    complete_from=st.none() | moments,
    released_before=st.none() | moments,
    evidence=st.none()
    | st.builds(SilenceEvidence, moments, durations)
    | st.builds(BandEvidence, cells, moments, moments, counts, st.none() | moments)
    | st.builds(FrontierEvidence, cells, moments, moments, counts, moments),
)
policies = st.builds(
    Policy,
    band=durations,
    near_real_time=durations,
    idle_timeout=durations,
    idle=st.sampled_from(["advance", "hold"]),
    max_idle_lag=durations,
    max_reading_age=durations,
    seek_tolerance=durations,
    quantile=st.floats(0, 1, exclude_max=True),
    reading_slack=durations,
    base_slack=durations,
)
decided = st.builds(
    DecisionRecord, decision=decisions, base=st.none() | readings, tracking=st.none() | readings, policy=policies
)
histograms = st.builds(
    lambda messages, rejected, copies: histogram_of([*messages, *((publish, A_COPY) for publish in copies)], rejected),
    message_lists,
    rejected_lists,
    rejected_lists,
)
states = st.builds(
    WatermarkState,
    histogram=histograms,
    record=st.none() | decided,
    complete_from=st.none() | moments,
    pruned_before=st.none() | numbers,
    reading_violations=st.integers(0, 1 << 40),
    is_missing_entries=st.booleans(),
    watermark_at_least=st.none() | moments,
)


snapshots = st.builds(Snapshot, histograms) | st.builds(
    Snapshot, histograms, st.just(Usage(pulls=2, landed=7, landed_bytes=700)), st.just(at(100.25))
)
notes = st.builds(Beginning, moments) | st.builds(Lost, st.text(max_size=50), st.none() | moments)


@pytest.mark.parametrize(
    "entries",
    [snapshots, decided, st.builds(Compacted, states), notes],
    ids=["snapshots", "decisions", "checkpoints", "notes"],
)
@bounded
@given(data=st.data())
def test_an_entry_comes_back_bit_for_bit(entries: st.SearchStrategy[Entry], data: st.DataObject) -> None:
    entry = data.draw(entries)
    content = encode(entry, "a writer")
    again = decode(content, NAME)
    assert again == entry
    assert encode(again, "a writer") == content


def test_any_parquet_reader_can_look_at_a_decision_and_at_a_histogram() -> None:
    snapshot, decision = an_entry_of_each_kind()[1:3]
    row = pq.read_table(io.BytesIO(encode(decision, ""))).to_pylist()[0]
    assert (row["watermark"], row["reason"]) == (at(48), "ADVANCED")
    rows = pq.read_table(io.BytesIO(encode(snapshot, ""))).to_pylist()
    assert [(row["publish_bucket"], row["min_event_time"], row["count"]) for row in rows] == [
        (at(45), None, 1),
        (at(50), at(48), 1),
        (at(60), at(59), 2),
    ]


def an_entry_of_each_kind() -> list[Entry]:
    beginning = Beginning(at(0))
    snapshot = Snapshot(published([(50, 48), (60, 59), (60, 59.5)], rejected=[45]))
    before = WatermarkState().after(0, beginning).after(1, snapshot)
    decision = before.decide(reading(61), reading(61), Policy(), at(61))
    after = before.after(2, decision)
    assert after.watermark == at(48)
    return [beginning, snapshot, decision, Compacted(after), Lost("damaged", at(30))]


@pytest.mark.parametrize("entry", an_entry_of_each_kind(), ids=lambda entry: type(entry).__name__)
def test_one_changed_byte_anywhere_is_detected(entry: Entry) -> None:
    """Parquet's footer has no checksum of its own, and decisions are kept there."""
    content = encode(entry, "a writer")
    undetected = []
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        try:
            decode(bytes(damaged), NAME)
        except CorruptObject:
            continue
        undetected.append(place)
    assert not undetected


def foreign_parquet() -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"number": [1, 2, 3]}), sink)
    return sink.getvalue()


@pytest.mark.parametrize("content", [b"", b"not Parquet", foreign_parquet()], ids=["empty", "text", "foreign Parquet"])
def test_an_object_that_is_no_entry_is_named_with_what_to_do(content: bytes) -> None:
    with pytest.raises(CorruptObject, match=rf"{NAME} cannot be read.*backup.*`tidemark repair --forget"):
        decode(content, NAME)


def of_a_later_version(change: dict[bytes, bytes]) -> bytes:
    """An entry as a later version would write it: whole, with its digest."""
    table = pq.read_table(pa.BufferReader(encode(Beginning(at(0)), "a writer")))
    later = {b"tidemark.version": b"7.0.0", codec.SEAL: codec.OPEN_SEAL, **change}
    sink = io.BytesIO()
    pq.write_table(table.replace_schema_metadata((table.schema.metadata or {}) | later), sink)
    return codec._sealed(sink.getvalue())


@pytest.mark.parametrize(
    "change",
    [{codec.KIND: b"omen"}, {b"tidemark.format": b"2"}, {codec.KIND: b"decision"}],
    ids=["kind", "format", "facts"],
)
def test_an_entry_of_a_later_version_is_not_called_damaged_and_nobody_forgets_it(
    tmp_path: Path, change: dict[bytes, bytes]
) -> None:
    content = of_a_later_version(change)
    with pytest.raises(NewerFormat) as said:
        decode(content, NAME)
    assert str(said.value).startswith("this lake was written by tidemark 7.0.0, and this is tidemark ")
    assert f"{NAME} is undamaged" in str(said.value)
    assert "Run tidemark 7.0.0 or a newer one" in str(said.value)
    assert "forget" not in str(said.value)
    objects = DiskObjects(tmp_path)
    log = TrackingLog(objects, checkpoint_every=100)
    log.begin(Beginning(at(0)))
    objects.create(entry_name(1), content)
    for reads in (log.catch_up, partial(log.forget, 1, "damaged"), partial(check_log, log, at(0))):
        with pytest.raises(NewerFormat):
            reads()
    assert objects.read(entry_name(1)) == content
