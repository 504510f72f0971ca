"""The tracking log's entries: exact in both directions, and any damage is told."""

import io
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.watermark.builders import at, bounded, histogram_of, message_lists, published, reading, rejected_lists
from tidemark.pipeline.errors import CorruptObject, NewerFormat
from tidemark.pipeline.lake.log import codec
from tidemark.pipeline.lake.log.codec import decode, encode
from tidemark.pipeline.lake.log.tracking_log import TrackingLog, entry_name
from tidemark.pipeline.lake.store.disk import DiskObjects
from tidemark.pipeline.upkeep.survey import check_log
from tidemark.pipeline.watermark.decision import Reason
from tidemark.pipeline.watermark.histogram import A_COPY, Histogram
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.state import Beginning, Compacted, Entry, Lost, Snapshot, WatermarkState
from tidemark.pipeline.watermark.usage import Account, Usage

NAME = "tracking/log/000000000007.parquet"

histograms = st.builds(
    lambda messages, rejected, copies: histogram_of([*messages, *((publish, A_COPY) for publish in copies)], rejected),
    message_lists,
    rejected_lists,
    rejected_lists,
)
OF_TYPE: dict[Any, st.SearchStrategy[Any]] = {
    datetime: st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
    timedelta: st.timedeltas(timedelta(0), timedelta(days=400)),
    int: st.integers(1, 1 << 40),
    float: st.floats(0, 1, exclude_max=True),
    bool: st.booleans(),
    str: st.text(max_size=50),
    NoneType: st.none(),
    Reason: st.sampled_from(Reason),
    Histogram: histograms,
    Account: st.just(Account()),
}
NOT_WRITTEN = {"number", "checkpoint"}
"""A state's place in the log, which the entry's name says."""


def any_of(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a type: of a dataclass all fields are drawn by their types."""
    if kind in OF_TYPE:
        return OF_TYPE[kind]
    if get_origin(kind) is Literal:
        return st.sampled_from(get_args(kind))
    if isinstance(kind, UnionType):
        return st.one_of(*map(any_of, get_args(kind)))
    types = get_type_hints(kind)
    return st.builds(kind, **{one.name: any_of(types[one.name]) for one in fields(kind) if one.name not in NOT_WRITTEN})


OF_TYPE[Snapshot] = st.builds(Snapshot, histograms) | st.builds(
    Snapshot, histograms, any_of(Usage), any_of(datetime)
)  # with what was used is noted when


@pytest.mark.parametrize("kind", get_args(Entry))
@settings(bounded, max_examples=25)
@given(data=st.data())
def test_an_entry_comes_back_bit_for_bit(kind: type[Entry], data: st.DataObject) -> None:
    entry = data.draw(any_of(kind))
    content = encode(entry, "a writer")
    again = decode(content, NAME)
    assert again == entry
    assert encode(again, "a writer") == content


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
def test_a_later_version_s_entry_is_not_damaged_nor_forgotten(tmp_path: Path, change: dict[bytes, bytes]) -> None:
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
