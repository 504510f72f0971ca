"""Requeueing: what was parked by a wrong contract lands once the contract is mended, whatever dies on the way."""

import gzip
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from tests.ingest import law
from tests.ingest.fakes import CONTRACT, World, requeued_after_each_death
from tests.ingest.law import small_bounds
from tests.watermark.builders import at
from tidemark.pipeline.contract.heartbeat import HeartbeatReader, RejectionReason
from tidemark.pipeline.contract.payloads.rejections import Unknown
from tidemark.pipeline.contract.payloads.schemas import Definition
from tidemark.pipeline.contract.places import Place
from tidemark.pipeline.errors import CorruptObject, PubSubUnreachable
from tidemark.pipeline.ingest import requeue as requeueing
from tidemark.pipeline.lake.tables.quarantine import Rejected
from tidemark.pipeline.lake.tables.table import merged
from tidemark.pipeline.quality.recent import read_reasons

WRONG = HeartbeatReader(replace(CONTRACT, stream_id=(Place.of("attribute:sensor"),)))
RIGHT = HeartbeatReader(CONTRACT)
TICKS, A_TICK = 2, 4


def parked(folder: Path) -> World:
    """A topic whose messages went to quarantine, tick by tick, among them one that no contract takes."""
    world = World(folder)
    world.reader = WRONG
    for number in range(TICKS):
        world.wait(10)
        for beat in range(A_TICK):
            world.topic.publish(number * 10.0 + beat, publisher_id=f"p{number}-{beat}", payload={"load": beat})
        world.tick()
    world.topic.publish("yesterday")
    world.wait(10)
    world.tick()
    assert world.landed_ids() == []
    world.reader = RIGHT
    return world


@pytest.fixture
def world(tmp_path: Path) -> World:
    return parked(tmp_path)


def messages(world: World) -> list[str]:
    """The ids of those that pass by the right contract."""
    return sorted(message.message_id for message in world.topic.messages[:-1])


def test_what_passes_now_lands_once_and_what_fails_waits_on(world: World) -> None:
    done = world.requeue()
    assert (done.heartbeats, done.there) == (TICKS * A_TICK, 0)
    assert done.rejected == Counter({RejectionReason.UNREADABLE_EVENT_TIME: 1})
    assert sorted(world.landed_ids()) == messages(world)
    assert len(world.quarantined_ids()) == TICKS * A_TICK + 1, "nothing is taken out"
    counts = read_reasons(world.lake())
    assert counts.waiting == {"UNREADABLE_EVENT_TIME": 1}
    assert counts.requeued == {"NO_STREAM_ID": TICKS * A_TICK}
    before, again = world.rows("heartbeats"), world.requeue()
    assert (again.heartbeats, again.there, again.rejected.total()) == (0, 0, 1), "what was noted is not looked at"
    assert world.rows("heartbeats") == before


def test_the_reason_of_the_last_requeue_counts_although_the_clock_was_set_back_since(world: World) -> None:
    for reader, hours in ((HeartbeatReader(replace(CONTRACT, event_time=Place.of("attribute:ts"))), 2), (WRONG, -1)):
        world.clock.advance(timedelta(hours=hours))
        world.reader = reader
        world.requeue()
    assert read_reasons(world.lake()).waiting == {"NO_STREAM_ID": TICKS * A_TICK, "UNREADABLE_EVENT_TIME": 1}


def test_a_message_that_was_rejected_for_two_reasons_counts_under_the_newest(tmp_path: Path) -> None:
    world, reasons = World(tmp_path), [RejectionReason.NO_STREAM_ID, RejectionReason.NO_EVENT_TIME]
    world.wait(10)
    world.topic.publish(1.0, publisher_id="p", payload={})
    world.fails["acknowledge base"] = PubSubUnreachable("x")
    for world.reader in (WRONG, HeartbeatReader(replace(CONTRACT, event_time=Place.of("attribute:ts")))):
        with suppress(PubSubUnreachable):
            world.land()
        world.restart()
        world.clock.advance(timedelta(minutes=5))
    assert [row["reason"] for row in world.rows("quarantine")] == sorted(reasons)
    assert [read_reasons(world.lake(), Rejected(one)).waiting for one in reasons] == [{}, {"NO_EVENT_TIME": 1}]


def test_what_is_landed_at_once_is_bounded_in_rows_and_in_bytes() -> None:
    rows = pa.table({"a": [0] * 3})
    for bounds in ((10 * rows.nbytes, 6), (2 * rows.nbytes,)):
        assert [len(batch) for batch in merged([rows] * 5, *bounds)] == [6, 6, 3], bounds
    assert [len(batch) for batch in merged([rows] * 2, 1)] == [3, 3], "a table alone may be larger"


def test_a_requeued_row_is_what_the_landing_would_have_written_but_for_when(tmp_path: Path) -> None:
    (tmp_path / "parked").mkdir()
    (tmp_path / "landed").mkdir()
    rows = []
    for folder, reader in (("parked", WRONG), ("landed", RIGHT)):
        world = World(tmp_path / folder)
        world.wait(100)
        world.reader = reader
        world.topic.publish(90.5, publisher_id="p", payload={"load": 2, "more": [1]})
        world.topic.publish(91.5, payload={"load": "high"})
        world.land()
        world.reader = RIGHT
        world.wait(100)
        world.requeue()
        rows.append(world.rows("heartbeats"))
    requeued, landed = rows
    assert all(row.pop("landed_at") > at(200) for row in requeued)
    assert all(row.pop("landed_at") < at(200) for row in landed)
    assert requeued == landed


def test_a_requeue_that_dies_anywhere_loses_or_doubles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requeueing, "BATCH_ROWS", A_TICK)
    worlds = requeued_after_each_death(tmp_path, parked)
    for world in worlds:
        assert sorted(world.landed_ids()) == messages(world), world.folder
        assert dict(read_reasons(world.lake()).requeued) == {"NO_STREAM_ID": TICKS * A_TICK}, world.folder
    assert len(worlds) == 4 * TICKS


def test_good_messages_behind_bombs_in_quarantine_land(tmp_path: Path) -> None:
    """Each bomb inflates to more than a message may, and together they are more than is decoded at once."""
    world, bomb = World(tmp_path), gzip.compress(b" " * 30_000)
    world.reader = WRONG
    world.wait(100)
    for data in (*[bomb] * 14, *[gzip.compress(b'{"load": 1}')] * 10):
        world.topic.publish(90.0, payload=data)
    with small_bounds():
        world.land()
        world.reader = RIGHT
        done = world.requeue()
    assert (done.heartbeats, done.rejected) == (10, Counter({RejectionReason.UNREADABLE_PAYLOAD: 14}))


def test_a_requeue_fails_where_messages_cannot_be_judged_and_the_next_one_lands_them(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.reader = WRONG
    world.wait(100)
    data = law.avro(90.0, "a")
    world.topic.publish_plain(data, {law.SCHEMA_REVISION: "r0", "event_time": "0", "stream_id": "a"})
    world.topic.publish_plain(b"{}", {law.SCHEMA_REVISION: law.REFUSED})
    world.land()
    world.reader = HeartbeatReader(law.BY_REVISION, (schemas := Failing({"r0": 0})))
    for _ in range(2):
        with pytest.raises(PubSubUnreachable, match="1 quarantined message cannot be judged now: no answer"):
            world.requeue()
    schemas.fails = False
    assert world.requeue().heartbeats == 1


@dataclass
class Failing(law.Appearing):
    """Schemas that cannot be looked up."""

    fails: bool = True

    def find(self, name: str, at_us: int) -> tuple[Definition | None, int]:
        if self.fails:
            raise Unknown("no answer")
        return super().find(name, at_us)


class Measured(list[int]):
    """Rows that are counted whenever their size is asked for."""

    nbytes = property(lambda self: self.append(0) or 1)


def test_the_size_of_each_of_many_small_files_is_asked_for_once() -> None:
    files = [Measured([0]) for _ in range(100)]
    with pytest.raises(TypeError, match="Table"):  # they are no tables, so they cannot be merged
        list(merged(files, 1 << 30))  # type: ignore[arg-type]
    assert sum(map(len, files)) == 200


def test_a_damaged_file_is_named_and_the_messages_of_the_others_land(world: World) -> None:
    first = min(world.folder.glob("**/rejected_on=*/*.parquet"), key=lambda file: file.stat().st_mtime)
    first.write_bytes(b"no Parquet")
    with pytest.raises(CorruptObject, match=f"1 damaged file, the first is .*{first.name}.*\\. 4 heartbeats of other"):
        world.requeue()
    assert sorted(world.landed_ids()) == messages(world)[A_TICK:]


def test_only_what_is_meant_is_requeued(world: World) -> None:
    assert world.requeue(Rejected(reason=RejectionReason.UNREADABLE_EVENT_TIME)).heartbeats == 0
    assert world.requeue(Rejected(since=at(15))).heartbeats == A_TICK
    assert sorted(world.landed_ids()) == sorted(
        message.message_id for message in world.topic.messages[-1 - A_TICK : -1]
    )
    counts = read_reasons(world.lake(), Rejected(since=at(15)))
    assert (counts.waiting["UNREADABLE_EVENT_TIME"], counts.requeued["NO_STREAM_ID"]) == (1, A_TICK)
    assert sum(counts.waiting.values()) + sum(counts.requeued.values()) == A_TICK + 1
