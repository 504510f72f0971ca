"""Every lake that an earlier version made is read and gone on with; one of a later version is refused by name."""

import hashlib
import io
import json
import shutil
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.cli.test_cli import Place
from tests.dagster.house import ModelWorld, Ticking, beats_between, publish, settings_of
from tests.lake_fixture import FIXTURES, beats, closed, compute_here, world_in
from tests.lake_reading import LATER, lake_in, said_by, settings_in
from tests.watermark.builders import at
from tidemark.assets.jobs.heartbeat_diffs import compute_range
from tidemark.pipeline import version
from tidemark.pipeline.errors import NewerFormat
from tidemark.pipeline.lake.layout import CORRECTIONS, PARTITIONS, Lake
from tidemark.pipeline.lake.log import codec
from tidemark.pipeline.quality.staleness import Staleness
from tidemark.pipeline.replay.replay import verify
from tidemark.pipeline.replay.sources import recorded_ticks
from tidemark.pipeline.settings_sections import PubSubSettings
from tidemark.pipeline.version import FORMAT

NEWEST = FIXTURES / f"lake-{FORMAT}"
NEWER = {"tidemark.version": "9.0.0", "tidemark.format": str(FORMAT + 1)}
TABLES = tuple(name for name in PARTITIONS if name != CORRECTIONS)
"""The tables that a lake has by the default settings."""

REFUSED = "was written by tidemark 9.0.0, and this is tidemark "


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A copy of this version's lake, with its settings."""
    return Path(shutil.copytree(NEWEST, tmp_path / "place"))


def content_of(folder: Path) -> dict[str, str]:
    """Every file and what is in it."""
    files = (file for file in folder.rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def remark(file: Path, mark: Mapping[str, str]) -> None:
    """Put another mark into a Parquet file or a JSON object; the seal of an entry is made anew."""
    if file.suffix == ".json":
        file.write_text(json.dumps(json.loads(file.read_text()) | mark))
        return
    table = pq.read_table(io.BytesIO(file.read_bytes()))
    metadata: dict[Any, Any] = {**(table.schema.metadata or {})} | {
        name.encode(): text.encode() for name, text in mark.items()
    }
    is_entry = codec.SEAL in metadata
    if is_entry:
        metadata[codec.SEAL] = codec.OPEN_SEAL
    sink = io.BytesIO()
    pq.write_table(table.replace_schema_metadata(metadata), sink)
    file.write_bytes(codec._sealed(sink.getvalue()) if is_entry else sink.getvalue())


def remark_table(place: Path, name: str) -> None:
    DeltaTable(place / "lake" / name).alter.set_table_properties(dict(NEWER), raise_if_not_exists=False)


def raise_the_lake(place: Path) -> None:
    """As the first program of a later format does, before it writes anything else."""
    (place / "lake" / "format" / f"{FORMAT + 1:06d}.json").write_text(json.dumps(NEWER))


def raise_its_objects(place: Path) -> None:
    """Everything is of a later format, and the lake's own mark is lost."""
    shutil.rmtree(place / "lake" / "format")
    for pattern in ("tracking/*/*.parquet", "log_witness/*", "diff_runs/*", "staleness/*", "reports/tuning/*.json"):
        for file in (place / "lake").glob(pattern):
            remark(file, NEWER)
    for name in TABLES:
        remark_table(place, name)


# Lakes of earlier versions, and of this one


@pytest.mark.parametrize("fixture", sorted(path.name for path in FIXTURES.glob("lake-*")))
def test_a_lake_that_was_kept_says_what_it_said_when_it_was_made(fixture: str, tmp_path: Path) -> None:
    place = Path(shutil.copytree(FIXTURES / fixture, tmp_path / "place"))
    expected = json.loads((place / "expected.json").read_text())
    before = content_of(place)
    said = said_by(place)
    assert {name: said[name] for name in expected} == expected
    assert content_of(place) == before, "who only reads writes nothing"


@pytest.mark.parametrize("fixture", sorted(path.name for path in FIXTURES.glob("lake-*")))
def test_a_lake_that_was_kept_is_gone_on_with(fixture: str, tmp_path: Path) -> None:
    place = Path(shutil.copytree(FIXTURES / fixture, tmp_path / "place"))
    before = said_by(place)
    world = world_in(place, (LATER - at(0)).total_seconds())
    lake, settings = lake_in(place, world.clock), settings_in(place)
    seconds = (LATER - at(0)).total_seconds()
    for minute in range(12):
        beats(world, seconds + minute * 60, ["a", "b"])
        world.wait(60)
        if minute % 4 == 3:
            world.tick()
    windows = closed(lake, settings)
    compute_here(lake, settings, windows[-2:])
    state, ticks = recorded_ticks(lake.tracking_log())
    verified = verify(ticks, state)
    assert (verified.first_difference, verified.decisions) == (None, before["verified"][0] + 3)
    assert state.number < 0, "from the archive on"
    assert lake.heartbeats().extent().rows == len(before["heartbeats"]) + 24
    known = {row["stream_id"]: row for row in lake.streams().save().rows.to_pylist()}
    assert known["c"]["last_event_time"] < at(300)
    assert known["a"]["last_event_time"] > LATER
    assert lake.diffs().computed() > {window.key for window in windows[-2:]}
    assert Staleness(lake, settings.windowing).check().total == before["missed"][0]


# Every object has a mark


def test_a_table_of_a_later_format_is_refused_also_by_who_holds_it_open(place: Path) -> None:
    for name in TABLES:
        table = lake_in(place).table(name)
        assert table.current() is not None
        remark_table(place, name)
        for opened in (table, lake_in(place).table(name)):
            with pytest.raises(NewerFormat, match=REFUSED):
                opened.current()
            with pytest.raises(NewerFormat, match=REFUSED):
                opened.complete(pa.schema([]))


@pytest.mark.parametrize(
    "protocol",
    [
        {"minReaderVersion": 9, "minWriterVersion": 9},
        {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["later"], "writerFeatures": ["later"]},
    ],
    ids=["version", "feature"],
)
def test_a_delta_table_of_a_later_protocol_is_not_called_damaged(protocol: dict[str, Any], place: Path) -> None:
    commit = place / "lake" / "heartbeats" / "_delta_log" / f"{0:020d}.json"
    lines = [json.loads(line) for line in commit.read_text().splitlines()]
    commit.write_text("\n".join(json.dumps({"protocol": protocol} if "protocol" in line else line) for line in lines))
    with pytest.raises(NewerFormat, match="this lake was written by a later version of tidemark"):
        lake_in(place).heartbeats().current()


# A lake of a later version


def test_a_newer_writer_raises_a_lake_and_who_holds_it_open_stops(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_in(place, (LATER - at(0)).total_seconds())
    held = world.lake()
    held.heartbeats().current()
    monkeypatch.setattr(version, "FORMAT", FORMAT + 1)
    monkeypatch.setattr(version, "own_version", lambda: "9.0.0")
    later = Lake(settings_in(place).lake.model_copy(update={"endpoint": "http://127.0.0.1:1"}), {}, world.clock)
    later.objects().create("anything", b"")
    marks = sorted((place / "lake" / "format").iterdir())
    assert [file.name for file in marks] == [f"{FORMAT:06d}.json", f"{FORMAT + 1:06d}.json"]
    assert json.loads(marks[1].read_text()) == NEWER
    later.heartbeats().complete(pa.schema([]))
    monkeypatch.undo()
    with pytest.raises(NewerFormat, match=REFUSED):
        held.heartbeats().current()


COMMANDS = (
    ("status",),
    ("explain",),
    ("explain", "--at", "2026-11-21T05:30:00Z"),
    ("diffs", "--stream", "a"),
    ("streams",),
    ("replay", "--from-lake"),
    ("tune", "--since", "20000h", "--bands", "10s"),
    ("repair", "--from", "2026-11-21T05-20Z", "--to", "2026-11-21T05-20Z", "--remove-orphans", "--grace", "0s"),
    ("housekeep",),
    ("repair", "--forget", "12"),
    ("release", "--before", "2026-11-21T09:00:00Z", "--yes"),
)


@pytest.mark.parametrize("raised", [raise_the_lake, raise_its_objects])
def test_every_command_refuses_a_later_lake_and_writes_nothing(raised: Callable[[Path], None], place: Path) -> None:
    raised(place)
    before = content_of(place)
    for command in COMMANDS:
        said = Place(place).tidemark(*command)
        text = said.out + said.err
        assert (said.code, REFUSED in text.replace("\n", " ")) == (1, True), (command, text)
        assert "Run tidemark 9.0.0 or a newer one" in text
        assert "corrupt" not in text
        assert "tidemark repair --forget" not in text
        assert content_of(place) == before, command


@pytest.mark.parametrize("raised", [raise_the_lake, raise_its_objects])
def test_no_tick_or_run_writes_into_a_later_lake_or_acknowledges(raised: Callable[[Path], None], place: Path) -> None:
    pubsub = PubSubSettings()
    world, settings = ModelWorld(pubsub), settings_of(pubsub, place)
    start = world.clock.now() - timedelta(minutes=5)
    publish(world, settings, beats_between(start, start + timedelta(minutes=1)))
    raised(place)
    before = content_of(place)
    with dg.DagsterInstance.ephemeral() as instance:
        ticking = Ticking(settings, instance, world.clock, world)
        for sensor in ("landing", "tracking", "staleness", "landing", "tracking"):
            with pytest.raises(NewerFormat, match=REFUSED):
                ticking.tick(sensor)
        with pytest.raises(NewerFormat, match=REFUSED):
            compute_range([settings.windowing.containing(at(0))], ticking.lake_resource, None, "run")  # type: ignore[arg-type]
    assert content_of(place) == before
    for path in (pubsub.base_path, pubsub.tracking_path):
        assert len(list(world.model.unacknowledged(path))) == 4, "every message is still to come"
