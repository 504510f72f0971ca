"""Changes each setting on a lake, and compares what follows with its declaration and docs/reference/settings.md."""

import gzip
import json
import os
import random
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dagster as dg
import pyarrow as pa
import pytest

from tests.clock import ManualClock
from tests.ingest.fakes import World, to_written
from tests.lake.builders import files_of, put
from tests.lake_fixture import beats, closed, compute_here
from tests.lake_reading import COMPARED, rows_of
from tests.watermark.builders import at
from tidemark.assets.jobs.housekeeping import prune_runs
from tidemark.assets.jobs.job import tags_of
from tidemark.assets.scheduler.runs import Runs
from tidemark.local.emulator.model import PubSubModel
from tidemark.local.emulator.server import served
from tidemark.local.services.ownership import Ownership
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.compute.table_definition import read_table
from tidemark.pipeline.contract.heartbeat import HeartbeatReader
from tidemark.pipeline.doctor import lake as doctor
from tidemark.pipeline.doctor.finding import Level, Setup
from tidemark.pipeline.errors import InvalidSettings, TidemarkError
from tidemark.pipeline.ingest.requeue import Requeuer
from tidemark.pipeline.lake.layout import HEARTBEAT_DIFFS, HEARTBEATS, Lake
from tidemark.pipeline.lake.log.packing import LogPacking
from tidemark.pipeline.lake.store.address import storage_options, table_uri
from tidemark.pipeline.lake.tables.windowed import LENGTH, DiffRun
from tidemark.pipeline.orchestrator.names import name_of
from tidemark.pipeline.pubsub.provision import provision_here
from tidemark.pipeline.quality.corrected import FollowedTable, follow
from tidemark.pipeline.quality.due_windows import ComputedWindows, Followed
from tidemark.pipeline.quality.staleness import Staleness
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import Effect, LakeSettings
from tidemark.pipeline.upkeep.housekeeping import Housekeeper
from tidemark.pipeline.watermark.state import DecisionRecord
from tidemark.pipeline.windows import Window, runs_of_neighbours
from tools import reference

MINUTE = 60.0
LATER = 2 * 86_400.0
"""When the streams begin again, in seconds from the start: retention of a day reaches what came before."""

NEWEST = LATER + 40 * MINUTE
"""When the changed pipeline starts."""

OWN, KEY = "per_stream", "2026-11-21T05-00Z"
Tree = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Change:
    """One setting's new value, with what must be set beside it, before and after, and its value before."""

    to: Any
    beside: Tree = field(default_factory=dict)
    was: Any = None


SQL, PYTHON, WIDE, NARROW = "one.sql", f"{OWN}.py", "wide.avsc", "narrow.avsc"
FILES = {
    SQL: "select window, stream_id, count(*) as beats from {heartbeats} group by all",
    PYTHON: f"import tidemark\n\n@tidemark.windowed()\ndef {OWN}(heartbeats, windows):\n    return heartbeats\n",
    WIDE: '{"type": "record", "name": "r", "fields": [{"name": "load", "type": "double"}]}',
    NARROW: '{"type": "record", "name": "r", "fields": [{"name": "load", "type": "int"}]}',
}
"""Files beside the settings; a value that is such a name means the file."""

OF_EVENT: Tree = {"message": {"event_time": "attribute:ce-time", "stream_id": "attribute:ce-source"}}

CHANGES: dict[str, Any] = {
    "pubsub.project": "another-project",
    "pubsub.topic": "another",
    "pubsub.base_subscription": "another-base",
    "pubsub.tracking_subscription": "another-tracking",
    "pubsub.filter": 'attributes.stream_id = "a"',
    "pubsub.attach": Change(to=True, beside={"tables": {}}),
    "pubsub.emulator_host": "the other server",
    "pubsub.retention": "1d",
    "pubsub.metadata_only": True,
    "message.payload": Change("none", beside={"message": {"fields": {}}}),
    "message.schema": Change(NARROW, was=WIDE, beside={"message": {"payload": "avro"}}),
    "message.compression": Change("auto", was="none", beside={"message": {"event_time": "attribute:zipped_at"}}),
    "message.envelope": Change("cloudevents", beside=OF_EVENT),
    "message.each": "payload:readings[]",
    "message.event_time": "attribute:at",
    "message.event_time_unit": "s",
    "message.timezone": "Europe/Berlin",
    "message.stream_id": "attribute:site",
    "message.publisher_id": "attribute:another",
    "message.max_future_skew": "15m",
    "message.max_age": "1d",
    "message.fields": {"load": "number", "extra": "text"},
    "windows.length": "1h",
    "windows.first": "2026-11-21T04:00:00Z",
    "windows.lookback": "20m",
    "windows.heartbeat_period": "10s",
    "tables.file": Change({"file": PYTHON}, was={"file": SQL, "key": ["stream_id"]}),
    "tables.key": ["stream_id", "beats"],
    "tables.lookback": "10m",
    "tables.window": "1h",
    "housekeeping.heartbeats": "1d",
    "housekeeping.windows": "1d",
    "housekeeping.quarantine": "1d",
    "housekeeping.log": "",
    "housekeeping.dagster_runs": "1d",
    "lake.uri": "file:another",
    "lake.endpoint": Change("http://127.0.0.1:1", beside={"lake": {"uri": "gs://bucket"}}),
    "dagster.name": "orders",
    "dagster.storage": "another",
}
"""Changes that are seen one by one."""

TOGETHER: Tree = {
    "pubsub": {
        "emulator": "official",
        "endpoint": "127.0.0.1:1",
        "impersonate": "somebody@project.iam.gserviceaccount.com",
        "reading": "snapshot",
        "snapshot_budget": 5,
    },
    "windows": {"runs_at_once": 2, "recompute_missed": "never", "corrections": True},
    "checks": {"max_late_share": 0.5, "max_stopped_share": 0.5, "max_quarantine_share": 0.5, "max_watermark_age": "1h"},
    "watermark": {
        "rule": "frontier",
        "band": "2m",
        "tick": "20s",
        "idle_timeout": "3m",
        "idle": "hold",
        "quantile": 0.1,
        "slack": "1s",
        "max_lag": "1h",
    },
    "signal": {"publish_to": "told"},
    "ingest": {"mode": "continuous", "readers": 2},
    "quarantine": {"requeue": "when the contract changes"},
    "spark": {
        "remote": "sc://localhost:1",
        "executor_environment": "packed.tar.gz",
        "config": {"spark.sql.ansi.enabled": "false"},
    },
    "dagster": {
        "url": "http://127.0.0.1:1",
        "location": "another",
        "web_port": 3001,
        "allowed_hosts": ["ui.lan"],
        "code_port": 4267,
        "owners": ["team:another"],
    },
    "metrics": {"export": "otlp", "listen": "127.0.0.1:1"},
    "logs": {"format": "json"},
}
"""Settings whose change holds from now on, and nothing else: they are changed together."""

AT_ONCE = {"message.stream_id", "pubsub.filter", "windows.lookback", "tables.lookback", "housekeeping.heartbeats"}
"""Settings that are not marked as slow: one for each effect."""


def effects() -> dict[str, Effect]:
    """The declared effect of each setting."""
    sections = {name: reference.section_of(one) for name, one in Settings.model_fields.items()}
    return {
        f"{name}.{one.alias or key}": reference.effect_of(kind, key)
        for name, kind in sections.items()
        for key, one in kind.model_fields.items()
    }


@dataclass(frozen=True)
class Place:
    """A folder with a lake and the files beside it, and two Pub/Sub servers, of which one is provisioned."""

    folder: Path
    server: str
    other_server: str

    def tree(self) -> Tree:
        return {
            "pubsub": {"emulator_host": self.server},
            "message": {"fields": {"load": "number"}, "max_age": "40m"},
            "windows": {"first": "2026-11-21T05:00:00Z"},
            "tables": {OWN: {"file": SQL, "key": ["stream_id"]}},
            "lake": {"uri": "file:lake"},
            "dagster": {"storage": "dagster"},
        }

    def settings(self, tree: Tree) -> Settings:
        """The settings, with paths in the folder."""
        return Settings.model_validate(self._placed(tree))

    def _placed(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self._placed(each) for key, each in value.items()}
        if value in ("the other server", "file:lake", "file:another", "dagster", "another", *FILES):
            named = {"the other server": self.other_server, "another": "another"}
            is_lake = str(value).startswith("file:")
            path = f"file:{self.folder}/{value.removeprefix('file:')}" if is_lake else str(self.folder / value)
            return named.get(value, path)
        return value

    def elsewhere(self, folder: Path) -> "Place":
        shutil.copytree(self.folder, folder, copy_function=os.link)  # no object of a lake is written to
        return Place(folder, self.server, self.other_server)


class Pipeline(World):
    """Processes by these settings, on their lake, beside a Pub/Sub that begins so long after the start."""

    def __init__(self, place: Place, settings: Settings, seconds: float = 0.0) -> None:
        self.settings = settings
        super().__init__(place.folder, lake=settings.lake, policy=settings.policy)
        self.reader = HeartbeatReader(settings.contract)
        self.clock.advance(timedelta(seconds=seconds))

    def lake(self) -> Lake:
        return Lake(self.settings.lake, self.settings.message.kinds, self.clock)

    def acknowledging(self, subscription: str, messages: Sequence[Any]) -> None:
        """Other contracts than that of a `World` judge here; other tests are about acknowledging."""

    def compute(self) -> list[Window]:
        """Compute what is due."""
        windows = closed(self.lake(), self.settings)
        for stretch in runs_of_neighbours(windows):
            compute_here(self.lake(), self.settings, stretch)
        return windows

    def minutes(self, first: float, count: int, streams: Sequence[str]) -> None:
        """Beats of each minute, and a tick every fifth."""
        for minute in range(count):
            beats(self, first + minute * MINUTE, streams)
            self.wait(MINUTE)
            if minute % 5 == 4:
                self.tick()
        self.track()


def build(place: Place) -> None:
    """A lake with what every change could touch."""
    for name, text in FILES.items():
        (place.folder / name).write_text(text)
    settings = place.settings(place.tree())
    provision_here(settings, SystemClock())
    pipeline = Pipeline(place, settings)
    owner = Ownership(settings, pipeline.clock, up=place.folder / "tidemark.toml")
    owner.state()
    owner.end()
    beats(pipeline, 0, ["rare"])
    reject(pipeline)
    pipeline.minutes(0, 13, ["a", "b"])
    beats(pipeline, 13 * MINUTE, ["rare"])
    pipeline.minutes(13 * MINUTE, 13, ["a", "b"])
    old = {"event_time": to_written(-19 * MINUTE), "stream_id": "old"}
    pipeline.topic.publish_plain(b"{}", old)
    pipeline.tick()
    first = pipeline.compute()
    pipeline.topic.publish(60.0, stream="late", payload={"load": 1})
    pipeline.tick()
    for stretch in runs_of_neighbours(first):  # it is stale
        compute_here(pipeline.lake(), settings, stretch)
    lake = pipeline.lake()
    followed = FollowedTable("heartbeat_diffs", lake.diffs(), ("stream_id", "event_time"))
    follow(lake.corrections(), followed, pipeline.clock)
    pipeline.wait(LATER - (pipeline.clock.now() - at(0)).total_seconds())
    pipeline.minutes(LATER, 30, ["a", "b"])
    pipeline.compute()
    compute_own(lake, settings, SystemClock().now())
    LogPacking(lake.objects()).pack(pipeline.clock.now())
    (place.folder / "lake" / "heartbeats" / "left.parquet").write_bytes(b"an orphan")


def reject(pipeline: Pipeline) -> None:
    """A message for each setting of the contract that another value lets pass."""
    publish, now, gz = pipeline.topic.publish_plain, str(to_written(0)), gzip.compress(b'{"load": 1}')
    publish(b"{}", {"at": now, "stream_id": "s"})
    publish(b"{}", {"event_time": now[:-3], "stream_id": "s"})
    publish(b"{}", {"event_time": "2026-11-21T06:19:00", "stream_id": "s"})
    publish(b"{}", {"event_time": now, "site": "s"})
    publish(b"{}", {"event_time": to_written(10 * MINUTE), "stream_id": "s"})
    publish(b"{}", {"event_time": to_written(-22 * MINUTE), "stream_id": "s"})
    publish(b"\x02", {"event_time": now, "stream_id": "s"})
    publish(gz, {"zipped_at": now, "stream_id": "s"})
    event = {"specversion": "1.0", "id": "1", "type": "t", "source": "s", "time": "2026-11-21T05:20:00Z", "data": {}}
    publish(json.dumps(event).encode(), {"Content-Type": "application/cloudevents+json"})


def compute_own(lake: Lake, settings: Settings, started_at: Any) -> None:
    """Compute the table of your own, as a run does, with rows that say nothing."""
    definition, own = read_table(settings, OWN), lake.own_table(OWN)
    windowing = definition.windowing(settings.windows)
    inputs = ComputedWindows.of(lake.diffs().runs(), settings.windowing).inputs(windowing)
    digests = {windowing.numbered(number).key: digest for number, digest in inputs.items()}
    keys = list(digests)
    own.hold_to(windowing.length)
    fence, rows = own.fence(keys), pa.table({"stream_id": ["a"], "beats": [1]})
    own.prepare(rows.schema.append(pa.field("window", pa.string())), definition.version, digests)
    run = DiffRun("own", keys, 0, started_at, started_at, OWN, definition.version, digests)
    own.leave_manifest(run)
    own.replace(run, fence, files_of(own, run.name, dict.fromkeys(keys, rows.to_pylist())))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with served(PubSubModel(rng=random.Random(1))) as one, served(PubSubModel(rng=random.Random(2))) as another:
        made = Place(tmp_path_factory.mktemp("lake"), one, another)
        build(made)
        yield made


@dataclass(frozen=True)
class Seen:
    """What can be seen of a pipeline with these settings on the lake."""

    places: object
    refused: str = ""
    created: Sequence[str] = ()
    differs: Sequence[str] = ()
    due: int = 0
    deletes: object = None
    verdicts: object = None
    recomputed: object = None


@dataclass
class Probe:
    """Looks at a lake by settings. It writes to its own copy of the lake."""

    place: Place
    settings: Settings

    def __post_init__(self) -> None:
        self.clock = ManualClock(at(NEWEST))
        self.lake = Lake(self.settings.lake, self.settings.message.kinds, self.clock)

    def look(self) -> Seen:
        settings, lake = self.settings, self.settings.lake
        address = table_uri(lake, HEARTBEATS).removeprefix(str(self.place.folder)), storage_options(lake)
        storage = settings.dagster.storage.removeprefix(str(self.place.folder))
        places = address, storage, name_of(settings, "tracking")
        if lake.folder is None:
            return Seen(places)
        try:
            Ownership(settings, self.clock).allow()
            made = provision_here(settings, self.clock)
            names = settings.pubsub.topic_path, settings.pubsub.base_path, settings.pubsub.tracking_path
            created = [name for name in made.created if name in names]
            seen = self.due(), self.deletes(), self.verdicts()
            return Seen(places, "", created, made.differences, *seen, self.recomputed())
        except TidemarkError as error:
            return Seen(places, str(error))

    def due(self) -> int:
        """How many computed windows are to be computed again by themselves."""
        settings, windowing = self.settings, self.settings.windowing
        stale = Staleness(self.lake, windowing).check().stale
        if not settings.tables:
            return len(stale)
        definition, own = read_table(settings, OWN), self.lake.own_table(OWN)
        own_windowing = definition.windowing(settings.windows)
        own.hold_to(own_windowing.length)
        own.fence([])
        watermark = self.lake.tracking_log().newest().watermark
        reached = self.lake.kept_windows(windowing).closed(watermark)
        followed = Followed.read(self.lake, windowing, reached)
        due = {own_windowing.numbered(one).key for one in followed.due(own_windowing, own.made())}
        return len(stale) + len(due & own.computed())

    def deletes(self) -> object:
        """What housekeeping takes out, in the lake and in Dagster."""
        settings, now, pruned = self.settings, SystemClock().now() + timedelta(days=40), {}
        with patch.object(Housekeeper, "_time_reached", return_value=now):  # tracking has read until then
            chores = [*Housekeeper(settings, ManualClock(now), dry_run=True).chores()]
        with dg.DagsterInstance.ephemeral() as instance:
            instance.add_run(dg.DagsterRun("job", status=dg.DagsterRunStatus.SUCCESS, tags=tags_of(settings)))
            if (kept := settings.housekeeping.dagster_runs) is not None:
                pruned = prune_runs(Runs(instance, settings), now - kept, but="")
        return [(one.name, one.about, one.figures, one.failed) for one in chores], pruned

    def verdicts(self) -> object:
        """What a requeue would do with rejected messages."""
        found = Requeuer(self.lake, HeartbeatReader(self.settings.contract), self.clock).run(dry_run=True)
        return found.heartbeats, found.there, found.rejected

    def recomputed(self) -> object:
        """The rows that earlier windows have when they are computed again, and the version that made others."""
        watermark = self.lake.tracking_log().newest().watermark
        named = map(self.settings.windowing.named, self.lake.diffs().computed())
        windows = [window for window in named if window.is_closed_at(watermark) and window.start < at(3600.0)]
        for stretch in runs_of_neighbours(windows):
            compute_here(self.lake, self.settings, stretch)
        is_of_now: Any = None
        if self.settings.tables:
            made, now = self.lake.own_table(OWN).made(), read_table(self.settings, OWN).version
            is_of_now = {key for key, one in made.items() if one.version == now}
        columns = (*COMPARED, "missed_heartbeats")
        return windows and rows_of(self.lake.table("heartbeat_diffs"), columns), is_of_now


def effect_of(before: Seen, after: Seen) -> Effect:
    """The effect that is seen."""
    assert not before.refused
    differences = {
        Effect.REFUSED: after.refused,
        Effect.ANEW: after.created or before.places != after.places,
        Effect.CREATION: before.differs != after.differs,
        Effect.DUE: before.due != after.due,
        Effect.DELETES: before.deletes != after.deletes,
        Effect.REQUEUE: before.verdicts != after.verdicts,
        Effect.RECOMPUTE: before.recomputed != after.recomputed,
    }
    return next((effect for effect, is_seen in differences.items() if is_seen), Effect.NEXT)


def both(place: Place, name: str, change: Change) -> tuple[Tree, Tree]:
    """The settings before and after the change of one."""
    (section, key), trees = name.split("."), []
    for value in (change.was, change.to):
        tree = merged(place.tree(), change.beside)
        if section == "tables":
            own = value if isinstance(value, dict) else {**tree["tables"][OWN], **({key: value} if value else {})}
            tree["tables"] = {OWN: own}
        elif value is not None:
            tree = merged(tree, {section: {key: value}})
        trees.append(tree)
    return trees[0], trees[1]


def merged(tree: Tree, other: Tree) -> Tree:
    """The tree with the keys of the other one, of which an empty section empties it."""
    found = {name: dict(keys) for name, keys in tree.items()}
    return found | {name: {**found.get(name, {}), **keys} if keys else {} for name, keys in other.items()}


def test_every_setting_is_changed() -> None:
    together = {f"{section}.{key}": Effect.NEXT for section, keys in TOGETHER.items() for key in keys}
    assert {name: effects()[name] for name in CHANGES} | together == effects()


SEEN: dict[str, Seen] = {}
"""What was seen before a change, by the settings of then."""


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=() if one in AT_ONCE else pytest.mark.slow) for one in CHANGES]
)
def test_a_change_does_what_its_declaration_says(name: str, place: Place, tmp_path: Path) -> None:
    to = CHANGES[name]
    check(place, tmp_path, effects()[name], *both(place, name, to if isinstance(to, Change) else Change(to)))


def test_what_holds_from_now_on_changes_nothing_that_is_there(place: Place, tmp_path: Path) -> None:
    check(place, tmp_path, Effect.NEXT, place.tree(), merged(place.tree(), TOGETHER))


def check(place: Place, folder: Path, declared: Effect, was: Tree, now: Tree) -> None:
    """The declared effect is what is seen, and the pipeline goes on, unless it begins anew."""
    before = SEEN.get(str(was))
    if before is None:
        there = place.elsewhere(folder / "before")
        before = SEEN[str(was)] = Probe(there, there.settings(was)).look()
    changed = place.elsewhere(folder / "after")
    after = Probe(changed, changed.settings(now)).look()
    assert effect_of(before, after) is declared, (before, after)
    if declared not in (Effect.REFUSED, Effect.ANEW):
        goes_on(place.elsewhere(folder / "goes on"), was, now)


def goes_on(place: Place, was: Tree, now: Tree) -> None:
    """What is there stays as it is, and what comes follows the new settings."""
    earlier = Pipeline(place, place.settings(was), NEWEST).lake()
    landed, made = rows(earlier, HEARTBEATS), earlier.diffs().runs()
    computed = {key: made[key] for key in earlier.diffs().computed()}
    decided, watermark = list(earlier.tracking_log().numbers()), earlier.tracking_log().newest().watermark
    settings = place.settings(now)
    pipeline = Pipeline(place, settings, NEWEST)
    pipeline.minutes(NEWEST, 20, ["a", "b"])
    pipeline.tick()
    new, lake = pipeline.compute(), pipeline.lake()

    log, runs = lake.tracking_log(), lake.diffs().runs()
    added = rows(lake, HEARTBEATS) - landed
    assert not landed - rows(lake, HEARTBEATS), "what has landed stays"
    assert {key: runs[key] for key in computed} == computed, "what was computed stays"
    reached = log.newest().watermark
    assert reached >= watermark, "the watermark never moves back"
    said = [log.entry(number) for number in log.numbers() if number not in decided]
    policies = [one.policy for one in said if isinstance(one, DecisionRecord)]
    assert policies
    assert {str(one) for one in policies} == {str(settings.policy)}, "each decision is made by the settings of now"
    if was.get("message") == now.get("message"):
        assert added.total() == 40, "what comes lands"
        assert {window.start for window in new} & {
            window.start for window in settings.windowing.between(at(NEWEST), reached)
        }


def rows(
    lake: Lake,
    name: str,
    columns: Sequence[str] = ("stream_id", "event_time", "message_id", "load"),
    before: datetime | None = None,
) -> Counter[str]:
    """A table's rows, or those of event times before a moment."""
    found = rows_of(lake.table(name), columns)
    return Counter(str(row) for row in found if before is None or row["event_time"] < before)


# ------------------------------------------------------------------------------------------- what is refused


def test_another_length_and_kind_are_refused(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = place.elsewhere(tmp_path / "here")
    changed = here.settings({**here.tree(), "windows": {"first": "2026-11-21T05:00:00Z", "length": "1h"}, "tables": {}})
    lake = Lake(changed.lake, changed.message.kinds, SystemClock())
    diffs = lake.diffs()
    diffs.hold_to(timedelta(hours=1))
    for refused in (lambda: closed(lake, changed), lambda: diffs.fence([])):
        with pytest.raises(InvalidSettings, match=r"ask for windows of 1h, but .*/heartbeat_diffs has windows of 5m"):
            refused()
    (found,) = [said for said in doctor.check_windowed_tables(Setup(changed, SystemClock())) if said]
    assert (found[0], "another-window-length" in found[1]) == (Level.BROKEN, True)
    of_another_kind = here.settings(merged(here.tree(), {"message": {"fields": {"load": "text"}}}))
    ((level, said),) = doctor.check_windowed_tables(Setup(of_another_kind, SystemClock()))
    assert (level, "message.fields.load = 'text'" in said) == (Level.BROKEN, True)

    for folder in ("heartbeat_diffs", "stream_status", "streams", "corrections", "tables"):
        shutil.rmtree(here.folder / "lake" / folder, ignore_errors=True)
    Pipeline(here, changed, NEWEST).compute()
    computed = rows(lake, "heartbeat_diffs", ("stream_id", "event_time"))
    end = changed.windowing.containing(lake.tracking_log().newest().watermark).start
    landed = set(rows(lake, HEARTBEATS, ("stream_id", "event_time"), before=end))
    assert computed == Counter(landed), "every heartbeat of a closed window is in one row"
    monkeypatch.setattr(doctor, "MANY_WINDOWS", 2)
    ((level, said),) = doctor.check_windowed_tables(Setup(changed, SystemClock()))
    assert (level, "Keep fewer (housekeeping.windows)" in said) == (Level.WARNING, True)


def test_of_two_first_runs_with_windows_of_two_lengths_one_is_refused(tmp_path: Path) -> None:
    lake = Lake(LakeSettings(uri=f"file:{tmp_path}"), {}, SystemClock())
    tables = [(lake.diffs(), length) for length in (timedelta(minutes=5), timedelta(hours=1))]
    fences = []
    for table, length in tables:
        table.hold_to(length)
        fences.append(table.fence([KEY]))
    runs = [DiffRun(name, [KEY], -1, at(0), SystemClock().now()) for name in ("short", "long")]
    tables[0][0].replace(runs[0], fences[0], files_of(tables[0][0], "short", {KEY: []}))
    with pytest.raises(InvalidSettings, match=r"ask for windows of 1h, but .* has windows of 5m"):
        tables[1][0].replace(runs[1], fences[1], files_of(tables[1][0], "long", {KEY: []}))
    assert set(lake.diffs().runs().values()) == {"short"}


@pytest.mark.parametrize("keys", [["2026-11-21T05-00Z", "2026-11-21T05-05Z"], ["2026-11-21T05-05Z"]])
def test_the_windows_of_an_earlier_tidemark_tell_their_length(tmp_path: Path, keys: list[str]) -> None:
    lake = Lake(LakeSettings(uri=f"file:{tmp_path}"), {}, SystemClock())
    table = lake.diffs()
    put(table, "earlier", keys, -1)
    assert LENGTH not in lake.table(HEARTBEAT_DIFFS).complete(table.schema).metadata().configuration
    other = lake.diffs()
    other.hold_to(timedelta(hours=1))
    with pytest.raises(InvalidSettings, match="ask for windows of 1h"):
        other.fence(keys)
    same = lake.diffs()
    same.hold_to(timedelta(minutes=5))
    put(same, "now", keys, -1)
    current = lake.table(HEARTBEAT_DIFFS).current()
    assert current.metadata().configuration[LENGTH] == "5m", "it is noted with the next commit"
