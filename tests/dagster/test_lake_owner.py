"""Pipelines in Dagster and the owner of their lake: what another one may not do there, and what cohorts share."""

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest

from tests.dagster.house import PUBSUB, ModelWorld, Ticking, beats_between, publish, settings_of
from tidemark.assets.jobs.housekeeping import housekeeping_job
from tidemark.pipeline.errors import LakeOwned, LakeUnwritable
from tidemark.pipeline.lake.store.disk import DiskObjects


@dataclass
class Side(Ticking):
    """A pipeline with a topic of its own."""

    @classmethod
    def of(cls, name: str, folder: Path, instance: dg.DagsterInstance) -> "Side":
        names = {"topic": name, "base_subscription": f"{name}-base", "tracking_subscription": f"{name}-tracking"}
        pubsub = PUBSUB.model_copy(update=names)
        world = ModelWorld(pubsub)
        return cls(settings_of(pubsub, folder), instance, world.clock, world)

    def publish(self) -> int:
        assert self.world is not None
        now = self.clock.now()
        beats = beats_between(now - timedelta(minutes=3), now - timedelta(minutes=1))
        publish(self.world, self.settings, beats)
        return len(beats)

    def ticks(self) -> None:
        self.publish()
        self.land_and_close()


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_another_pipeline_pulls_and_writes_nothing_in_a_lake_that_is_owned(
    instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    owner, other = Side.of("heartbeats", tmp_path, instance), Side.of("orders", tmp_path, instance)
    owner.ticks()
    published = other.publish()
    before = files(tmp_path / "lake")
    for sensor in ("landing", "tracking", "ingest", "staleness"):
        with pytest.raises(LakeOwned, match=r"another pipeline writes file:.*topics/heartbeats"):
            other.tick(sensor)
    job = housekeeping_job(other.settings)
    with pytest.raises(dg.Failure, match="another pipeline writes"):
        job.execute_in_process(instance=instance)
    assert files(tmp_path / "lake") == before, "not even the note of a failed tick"
    assert len(list(other.world.model.unacknowledged(other.settings.pubsub.base_path))) == published
    owner.ticks()
    Side.of("orders", tmp_path / "its own", instance).ticks()


def test_sensors_that_only_read_go_on_where_the_lake_cannot_be_written(
    instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    side = Side.of("heartbeats", tmp_path, instance)
    side.ticks()
    side.restart()

    def read_only(*_: object) -> int:
        raise LakeUnwritable("a read-only file system")

    with monkeypatch.context() as disk:
        disk.setattr(DiskObjects, "replace", read_only)
        disk.setattr(DiskObjects, "create", read_only)
        side.tick("ingest")
        with pytest.raises(LakeUnwritable):
            side.tick("tracking")
    side.ticks()
