"""Every message shape: what landing and tracking read in its messages is what the publisher meant."""

import tomllib
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from google.pubsub_v1 import PubsubMessage

from tests.ingest.judged import histogram_of, judged
from tidemark.local.demo.shapes.all_shapes import SHAPES
from tidemark.local.demo.shapes.shape import Message, Shape, ShapeName
from tidemark.local.demo.synthetic_beats import DUPLICATE, HEARTBEAT, KINDS, SyntheticSource, compose, messages
from tidemark.local.demo.truth import truth_of
from tidemark.pipeline.clock import to_us
from tidemark.pipeline.contract.heartbeat import HeartbeatReader, RejectionReason
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.watermark.histogram import NO_MINIMUM, Histogram

START = datetime(2026, 11, 21, 5, 0, tzinfo=UTC)
VALID = (KINDS[HEARTBEAT], KINDS[DUPLICATE])
COLUMNS = ("message_id", "stream_id", "event_time", "publisher_id", "temperature", "status")
PUBLISHED = START + timedelta(hours=1)

Rows = list[dict[str, Any]]


@pytest.fixture(params=ShapeName, scope="module")
def played(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> "Played":
    """Ten minutes of 60 streams in one shape, as it was published and as it was judged."""
    return Played(SHAPES[request.param], tmp_path_factory.mktemp(request.param))


class Played:
    """The messages of a shape, what was meant by them, and what was read in them."""

    def __init__(self, shape: Shape, folder: Path) -> None:
        self.shape = shape
        source = SyntheticSource(streams=60, duplicates=0.05, broken=0.05, shape=shape)
        rows = np.concatenate(list(messages(source, START, START + timedelta(minutes=10))))
        self.composed: list[Message] = compose(source, rows)
        ids = [f"m{number}" for number in range(len(self.composed))]
        self.truth: Rows = truth_of(self.composed, ids, PUBLISHED).to_pylist()
        self.reader = HeartbeatReader(settings_of(shape, folder).message.contract_from(START))
        self.pulled = [
            PubsubMessage(data=one.payload, attributes=one.attributes, message_id=its_id, publish_time=PUBLISHED)._pb
            for one, its_id in zip(self.composed, ids, strict=True)
        ]
        self.judged = judged(self.pulled, self.reader, None)


def settings_of(shape: Shape, folder: Path) -> Settings:
    for name, content in shape.files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)
    written = tomllib.loads(shape.settings)
    if "schema" in written["message"]:
        written["message"]["schema"] = str(folder / written["message"]["schema"])
    return Settings.model_validate(written)


def keyed(row: dict[str, Any]) -> tuple[str, ...]:
    return tuple(map(str, row.values()))


def test_landing_reads_what_the_publisher_meant(played: Played) -> None:
    meant = [
        {**{name: row[name] for name in COLUMNS if name != "publisher_id"}, "publisher_id": row["heartbeat_id"]}
        for row in played.truth
        if row["kind"] in VALID
    ]
    landed = played.judged.heartbeats.select(COLUMNS).to_pylist()
    in_order = [{name: row[name] for name in COLUMNS} for row in meant]
    assert sorted(landed, key=keyed) == sorted(in_order, key=keyed)
    assert len({row["stream_id"] for row in landed}) == 60
    assert None in {row["temperature"] for row in landed}
    assert {row["status"] for row in landed} == {"ok", "warn", None}


def test_each_broken_message_is_rejected_whole_for_its_reason(played: Played) -> None:
    meant = {
        row["message_id"]: (row["kind"], row["payload"], orjson.loads(row["attributes"]))
        for row in played.truth
        if row["kind"] not in VALID
    }
    rejected = {
        row["message_id"]: (row["reason"], row["payload"], dict(row["attributes"]))
        for row in played.judged.rejected.to_pylist()
    }
    assert rejected == meant
    reasons = Counter(reason for reason, _, _ in rejected.values())
    assert reasons.keys() == set(played.shape.reasons)
    assert min(reasons.values()) >= 2  # both variants


def test_tracking_counts_the_event_times_that_the_publisher_meant(played: Played) -> None:
    """What is wrong with a payload it notices only where it needs the payload."""
    counted = [*VALID, *([] if played.reader.contract.needs_payload else [RejectionReason.UNREADABLE_PAYLOAD])]
    event_us = np.array([to_us(row["event_time"]) for row in played.truth if row["kind"] in counted])
    published_us, rejected = np.full(len(played.truth), to_us(PUBLISHED)), len(played.truth) - len(event_us)
    meant = Histogram.of(published_us, np.append(event_us, np.full(rejected, NO_MINIMUM)))
    assert histogram_of(played.pulled, played.reader) == meant


@pytest.mark.parametrize("name", [ShapeName.AVRO, ShapeName.PROTOBUF])
def test_a_schema_gets_a_field_in_mid_stream(name: ShapeName) -> None:
    source = SyntheticSource(streams=60, shape=SHAPES[name])
    rows = np.concatenate(list(messages(source, START, START + timedelta(minutes=5))))
    valid = [one for one in compose(source, rows) if not one.beats[0].broken]
    revisions = Counter(one.attributes["googclient_schemarevisionid"] for one in valid)
    assert revisions.keys() == {"00000001", "00000002"}
    assert min(revisions.values()) > 100
    with_status = {one.attributes["googclient_schemarevisionid"] for one in valid if one.beats[0].status == "ok"}
    assert with_status == {"00000002"}
