"""The options and the offsets of the source `pubsub`, without a Spark."""

import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from pyspark.sql.types import StructType

from tests.ingest.fakes import World
from tests.pubsub.builders import raising
from tests.watermark.builders import at
from tidemark.pipeline.clock import from_us
from tidemark.pipeline.contract.heartbeat import FieldKind
from tidemark.pipeline.contract.payloads.rejections import Unreadable
from tidemark.pipeline.contract.places import Place
from tidemark.pipeline.errors import InvalidSettings, LandingOver, PubSubError, SubscriptionMissing
from tidemark.pipeline.ingest.source.pubsub_options import SourceOptions, read_options
from tidemark.pipeline.ingest.source.pubsub_source import (
    DATABRICKS,
    MILLIS,
    LandingPartition,
    NamedReader,
    PubSubDataSource,
    PubSubReader,
    PubSubStreamReader,
    as_asked,
    source_schema,
)
from tidemark.pipeline.pubsub.backlog import Backlog
from tidemark.pipeline.settings_sections import LakeSettings
from tidemark.pipeline.spark.frames import spark_schema
from tidemark.pipeline.watermark.decision import Decision, Reason
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.state import DecisionRecord

GIVEN = {"project": "project", "subscription": "base", "lake": "file:///nowhere"}


def options(lake: Path | None = None, **more: str) -> SourceOptions:
    return read_options({**GIVEN, **({} if lake is None else {"lake": f"file://{lake}"}), **more}, {})


class OnAWorld(NamedReader):
    """A reader on the subscription and the clock of a world."""

    world: World
    leased = timedelta(seconds=60)

    def lease(self) -> timedelta:
        return self.leased

    def subscription(self) -> Any:
        return nullcontext(self.world.base)

    def backlog(self) -> Backlog:
        return self.world.base_backlog


class LandsUnderNames(World):
    """Judges nothing by the tables: landing under a name has tests of its own."""

    def acknowledging(self, subscription: str, messages: Sequence[Any]) -> None: ...


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = LandsUnderNames(tmp_path)
    world.wait(1000)
    return world


class StreamOnAWorld(OnAWorld, PubSubStreamReader): ...


class BatchOnAWorld(OnAWorld, PubSubReader): ...


Made = TypeVar("Made", bound=OnAWorld)


def made(kind: type[Made], world: World, columns: StructType | None = None, **more: str) -> Made:
    chosen = options(world.folder, **more)
    reader = kind(chosen, columns or source_schema(chosen), world.clock)
    reader.world = world
    return reader


def reader_of(world: World, columns: StructType | None = None, **more: str) -> StreamOnAWorld:
    return made(StreamOnAWorld, world, columns, **more)


def next_offset(reader: PubSubStreamReader, start: dict[str, Any]) -> dict[str, Any]:
    return reader.latestOffset(start, ReadAllAvailable())


def ids(reader: PubSubStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[str]:
    return ids_in(reader, reader.partitions(start, end))


def ids_in(reader: NamedReader, partitions: Sequence[LandingPartition]) -> list[str]:
    return sorted(
        identity
        for partition in partitions
        for batch in reader.read(partition)
        for identity in batch["message_id"].to_pylist()
    )


def test_a_batch_that_is_planned_again_is_served_with_the_readers_that_it_had(world: World) -> None:
    for number in range(5):
        world.topic.publish(900 + number, payload={"load": "high"})
    reader = reader_of(world, readers="3", fields='{"load": "text"}')
    start = reader.initialOffset()
    end = next_offset(reader, start)
    assert ids(reader, start, end) == ["1", "2", "3", "4", "5"]
    world.topic.publish(950)
    after_restart = reader_of(world, readers="1", fields='{"load": "number", "id": "text"}')
    assert len(after_restart.partitions(start, end)) == 3
    assert ids(after_restart, start, end) == ["1", "2", "3", "4", "5"]
    assert ids(after_restart, end, next_offset(after_restart, end)) == ["6"]
    assert after_restart.partitions(end, end) == []


def test_batches_after_a_checkpoint_that_was_put_back_have_their_readers_and_their_watermark(world: World) -> None:
    def decide(watermark: float) -> None:
        decision = Decision(world.clock.now(), at(watermark), Reason.ADVANCED)
        reader.lake.tracking_log().append(DecisionRecord(decision, None, None, Policy()))

    reader = reader_of(world, readers="3", maxMessages="1")
    decide(800)
    start = reader.initialOffset()
    kept = next_offset(reader, start)
    assert ids(reader, start, kept) == []
    for number in range(3):
        world.topic.publish(900 + number)
    end = next_offset(reader, kept)
    assert ids(reader, kept, end) == ["1", "2", "3"]
    reader.commit(end)
    decide(950)
    for readers in ("1", "4"):
        put_back = reader_of(world, readers=readers)
        assert next_offset(put_back, kept) == end
        assert ids(put_back, kept, end) == ["1", "2", "3"]
    unfinished = next_offset(put_back, end)
    ids_in(put_back, put_back.partitions(end, unfinished)[:1])
    assert next_offset(put_back, end) == unfinished, "a slow reader of it may still acknowledge"
    new = next_offset(put_back, unfinished)
    assert (new["readers"], from_us(new["watermark_us"])) == (4, at(950))


def test_a_batch_read_lands_once_under_its_name_and_no_more_than_its_limit(world: World) -> None:
    def read(**more: str) -> list[str]:
        reader = made(BatchOnAWorld, world, **more)
        return ids_in(reader, reader.partitions())

    for number in range(10):
        world.topic.publish(900 + number)
    with pytest.raises(InvalidSettings, match="needs the option landing"):
        read()
    first = read(landing="first", maxRowsPerTrigger="4")
    assert len(first) == 4
    again = made(BatchOnAWorld, world, landing="first", readers="1")
    again.subscription = raising(SubscriptionMissing("gone"))  # type: ignore[method-assign]
    assert ids_in(again, again.partitions()) == first, "served as it was planned, without Pub/Sub"
    assert sorted([*first, *read(landing="rest")], key=int) == [str(number) for number in range(1, 11)]
    with pytest.raises(InvalidSettings, match=r"landing = 'rest' is the name of an earlier read of projects/.*/base"):
        read(landing="rest", subscription="another")


@pytest.mark.parametrize(
    ("given", "limit"),
    [
        ({}, ReadAllAvailable()),
        ({"maxRowsPerTrigger": "4"}, ReadMaxRows(4)),
        ({"maxBytesPerTrigger": "512m"}, ReadMaxBytes(512 << 20)),
    ],
)
def test_options_say_the_limit_which_survives_a_restart(given: dict[str, str], limit: object, world: World) -> None:
    reader = reader_of(world, **given)
    assert reader.getDefaultReadLimit() == limit
    start = reader.initialOffset()
    end = next_offset(reader, start)
    assert [partition.limit for partition in reader_of(world, **given).partitions(start, end)] == [limit, limit]


def test_databricks_columns_are_served_by_their_names_and_types(world: World) -> None:
    published = world.topic.publish(900)
    types = [pa.string(), pa.binary(), pa.string(), pa.int64(), pa.bool_()]
    names = ("messageId", "payload", "attributes", "publishTimestampInMillis", "late")
    asked = spark_schema(map(pa.field, names, types))
    reader = reader_of(world, columns=asked, readers="1")
    start = reader.initialOffset()
    (partition,) = reader.partitions(start, next_offset(reader, start))
    (batch,) = reader.read(partition)
    assert batch.schema.types == types
    (row,) = batch.to_pylist()
    assert (row["messageId"], row["payload"], row["late"]) == (published.message_id, published.data, False)
    assert json.loads(row["attributes"]) == dict(published.attributes)
    assert row["publishTimestampInMillis"] == published.publish_time.ToMilliseconds()
    as_text = spark_schema(pa.field(name, pa.string()) for name in (*source_schema(options()).names, *DATABRICKS))
    for plan in (asked, as_text, source_schema(options())):
        PubSubDataSource(dict(GIVEN)).streamReader(plan)
    (batch,) = reader_of(world, columns=as_text).read(partition)
    assert (batch["late"].to_pylist(), batch[MILLIS].to_pylist()) == (["false"], [str(row[MILLIS])])
    rows = pa.table({"message_id": ["1"], "messageId": ["a field"]})
    assert as_asked(rows, pa.schema([pa.field("messageId", pa.string())]), {}).to_pylist() == [{"messageId": "a field"}]
    text = pa.schema([pa.field("payload", pa.string())])
    assert as_asked(pa.table({"payload": [b"\xff"]}), text, {})["payload"].cast(pa.binary()).to_pylist() == [b"\xff"]


def test_a_column_that_the_source_does_not_have_is_refused_when_the_read_is_planned() -> None:
    source = PubSubDataSource({**GIVEN, "fields": '{"load": "number"}'})
    refused = {"payload": pa.int32(), "load": pa.int64(), "event_time": pa.int64(), MILLIS: pa.timestamp("us", "UTC")}
    for plan in (source.reader, source.streamReader):
        with pytest.raises(InvalidSettings, match="has no column message; it has stream_id"):
            plan(spark_schema([pa.field("message", pa.string())]))
        for names in ([], ["late", "late"]):
            with pytest.raises(InvalidSettings, match="at least one column, and each column once"):
                plan(spark_schema([pa.field(name, pa.bool_()) for name in names]))
        for name, kind in refused.items():
            with pytest.raises(InvalidSettings, match=rf"has {name} as \w+, not as \w+: request \w+ or string"):
                plan(spark_schema([pa.field(name, kind)]))


def test_processed_batches_are_deleted_and_cannot_be_read_again(world: World) -> None:
    world.topic.publish(900)
    reader = reader_of(world, readers="1", keepBatches="0")
    start = reader.initialOffset()
    end = next_offset(reader, start)
    assert ids(reader, start, end) == ["1"]
    reader.commit(start)
    assert ids(reader, start, end) == ["1"]
    reader.commit(end)
    with pytest.raises(LandingOver, match="a new checkpoint"):
        ids(reader, start, end)
    assert ids(reader, end, next_offset(reader, end)) == []


def test_a_checkpoint_of_another_lake_is_refused(world: World, tmp_path: Path) -> None:
    reader = reader_of(world)
    start = reader.initialOffset()
    end = next_offset(reader, start)
    chosen = options(tmp_path / "other")
    moved = PubSubStreamReader(chosen, source_schema(chosen))
    with pytest.raises(InvalidSettings, match="finish the batch with that lake"):
        moved.partitions(start, end)


def judging(chosen: SourceOptions) -> NamedReader:
    return NamedReader(chosen, source_schema(chosen))


def test_a_worker_judges_each_lakes_messages_by_the_schemas_that_this_lake_accepts(tmp_path: Path) -> None:
    avro = {"payload": "avro", "eventTime": "payload:at", "streamId": "payload:device"}
    message = {"googclient_schemaname": "projects/project/schemas/ours", "googclient_schemarevisionid": "1"}
    lakes = [judging(options(tmp_path / lake, **avro)) for lake in ("theirs", "ours")]
    named = judging(options(tmp_path / "theirs", **avro, schema=message["googclient_schemaname"]))
    lakes[0].lake.accepted_schemas().accept("projects/project/schemas/theirs")
    found: list[Any] = [one.judge().decoder._revisions._found_in for one in (*lakes, named)]
    theirs, ours, also_ours = found
    assert ours.name(message) == also_ours.name(message) == "projects/project/schemas/ours@1"
    with pytest.raises(Unreadable, match="not accepted"):
        theirs.name(message)


def test_a_worker_judges_by_a_schema_file_that_was_replaced(tmp_path: Path) -> None:
    schema = tmp_path / "beat.avsc"
    readers = []
    for content in ("old", "old", "new"):
        schema.write_text(content)
        readers.append(judging(options(tmp_path / "lake", payload="avro", schema=str(schema))).judge())
    assert readers[0] is readers[1]
    assert readers[2] is not readers[1]


def available(
    world: World, reader: PubSubStreamReader, offset: dict[str, Any], others: Callable[[], None] = lambda: None
) -> tuple[list[list[str]], dict[str, Any]]:
    """What the batches of a query with the trigger "available now" bring until it ends, and where it ends. Each takes
    a second, in which `others` do something."""
    reader.prepareForTriggerAvailableNow()
    brought: list[list[str]] = []
    while (end := next_offset(reader, offset)) != offset:
        brought.append(ids(reader, offset, end))
        world.wait(1)
        others()
        offset = end
    return brought, offset


def held_by_another_consumer(world: World, seconds: int) -> None:
    """All that base has outstanding is leased to somebody else for so long."""
    held = world.model.pull("base", 1000, world.clock.now())
    world.model.modify_ack_deadline("base", [one.ack_id for one in held], seconds, world.clock.now())


def test_available_now_ends_once_nothing_is_outstanding_that_is_older_than_the_query(world: World) -> None:
    for number in range(3):
        world.topic.publish(900 + number)
    world.wait(1)
    reader = reader_of(world, readers="1", maxMessages="2", batchMessages="2")
    brought, offset = available(world, reader, reader.initialOffset(), lambda: world.topic.publish(950))
    old = [identity for batch in brought for identity in batch if identity in ("1", "2", "3")]
    assert sorted(old) == ["1", "2", "3"]
    assert world.base.unacknowledged, "what others publish meanwhile does not keep it going"
    again = reader_of(world)
    again.prepareForTriggerAvailableNow()
    assert next_offset(again, offset) != offset, "a query that begins reads at least one batch"


def test_available_now_leaves_what_another_consumer_holds_for_longer_than_two_leases(world: World) -> None:
    world.topic.publish(900)
    held_by_another_consumer(world, seconds=600)
    world.wait(1)
    reader, began = reader_of(world, readers="1"), world.clock.now()
    reader.leased = timedelta(seconds=10)
    brought, _ = available(world, reader, reader.initialOffset())
    assert not any(brought)
    assert timedelta(seconds=20) < world.clock.now() - began < timedelta(seconds=30)
    assert len(world.base.unacknowledged) == 1


@pytest.mark.parametrize("kept", ["10", "0"])
def test_available_now_needs_two_empty_batches_if_the_backlog_cannot_be_read(world: World, kept: str) -> None:
    reader = reader_of(world, readers="1", keepBatches=kept)
    reader.backlog = raising(PubSubError("away"))  # type: ignore[method-assign]
    world.topic.publish(900)
    world.wait(1)
    reader.prepareForTriggerAvailableNow()
    offsets = [reader.initialOffset()]
    for brought in (["1"], [], []):
        end = next_offset(reader, offsets[-1])
        assert end != offsets[-1]
        assert ids(reader, offsets[-1], end) == brought
        reader.commit(offsets[-1])  # Spark commits a batch after it has planned the next one
        offsets.append(end)
    assert next_offset(reader, offsets[-1]) == offsets[-1]


def test_options_are_read_in_any_letters_and_have_the_pipeline_s_bounds() -> None:
    chosen = read_options(
        {
            **GIVEN,
            "MAXTIME": "1m30s",
            "event_time": "attribute:ts",
            "streamId": '["attribute:site", "payload:device.id"]',
            "fields": '{"load": "number"}',
            "firstEventTime": "2026-01-01T00:00:00Z",
        },
        {"PUBSUB_EMULATOR_HOST": "127.0.0.1:8085"},
    )
    assert chosen.max_time == timedelta(seconds=90)
    assert chosen.contract.event_time == Place.of("attribute:ts")
    assert chosen.contract.stream_id == (Place.of("attribute:site"), Place.of("payload:device.id"))
    assert chosen.contract.fields == {"load": FieldKind.NUMBER}
    assert (chosen.path, chosen.emulator_host) == ("projects/project/subscriptions/base", "127.0.0.1:8085")
    assert chosen.lake == LakeSettings(uri="file:///nowhere")
    assert read_options({**GIVEN, "emulatorHost": ""}, {"PUBSUB_EMULATOR_HOST": "x:1"}).emulator_host is None


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"reader": "2"}, "does not have this option; did you mean readers?"),
        ({"readers": "0"}, "readers = '0'"),
        ({"maxTime": "5"}, "with its unit"),
        ({"lake": "file:here"}, "lake = 'file:here': write an absolute path"),
        ({"lake": "s3://bucket"}, "lake = 's3://bucket'"),
        ({"fields": "{"}, "fields = '{'"),
        ({"fields": '{"watermark": "number"}'}, "already a column of the source"),
        ({"fields": '{"payload": "number"}'}, "already have"),
        ({"firstEventTime": "2026-01-01"}, "firstEventTime"),
        ({"landing": "../up"}, "landing"),
        ({"payload": "bytes", "streamId": "payload:id"}, "stream_id takes values from the payload"),
        ({"subscription": ""}, "subscription"),
        ({"projectId": "project"}, "projectId is another name for project"),
        ({"deleteSubscriptionOnStreamStop": "true"}, "leave it out"),
        ({"maxRowsPerTrigger": "5", "maxBytesPerTrigger": "5m"}, "exclude each other: remove one"),
        ({"maxBytesPerTrigger": "much"}, "maxBytesPerTrigger = 'much'"),
        ({"schema": "a.avsc", "payload": "avro"}, "schema = 'a.avsc'"),
        ({"emulatorHost": "http://x:1"}, "emulatorHost = 'http://x:1': write the address as host:port"),
    ],
)
def test_a_wrong_option_is_named_with_its_value(given: dict[str, str], told: str) -> None:
    with pytest.raises(InvalidSettings) as raised:
        read_options({**GIVEN, **given}, {})
    assert told in str(raised.value)


def test_an_option_that_is_unknown_or_refused_is_told_without_its_value() -> None:
    for name in ("privateKey", "clientEmail", "topicId", "credentials"):
        with pytest.raises(InvalidSettings, match=name) as raised:
            read_options({**GIVEN, name: "a secret"}, {})
        assert "a secret" not in str(raised.value)
