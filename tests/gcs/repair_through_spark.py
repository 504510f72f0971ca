"""Harm a lake in a bucket, have the job `repair` mend it with Spark, and print what it said as JSON.

`python -m tests.gcs.repair_through_spark <lake.uri> <lake.endpoint> <scratch folder>`: a program of its own, because a
Spark session and its JARs belong to a process for good. The classic session gets the connector as every session does.
"""

import json
import sys
from pathlib import Path

import dagster as dg
import pyarrow.compute as pc

from tests.dagster.test_diffs_asset import CLASSIC, WINDOWS
from tests.dagster.test_repair import Repairing, materialized, output
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.lake.layout import HEARTBEAT_DIFFS, Lake
from tidemark.pipeline.lake.store.address import open_objects
from tidemark.pipeline.lake.store.objects import ObjectStore
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import LakeSettings
from tidemark.pipeline.spark.session import session_config
from tidemark.resources.spark import SparkResource

ORPHAN = f"{HEARTBEAT_DIFFS}/runs/dead/window={WINDOWS[1]}/part-0.parquet"


def copied_by_spark(settings: Settings) -> list[str]:
    """Have a classic session itself, and no Python worker, read a column of the diffs and write it elsewhere in the
    bucket; returns what is there afterwards, in order."""
    diffs = Lake(settings.lake, {}, SystemClock()).diffs().table.current()
    assert diffs is not None
    session = SparkResource(spark_config=session_config(settings)).session()
    copy = f"{settings.lake.uri}-copy"
    session.read.parquet(*diffs.file_uris()).select("stream_id").distinct().write.parquet(copy)
    return sorted(row.stream_id for row in session.read.parquet(copy).collect())


def object_of(house: Repairing, key: str) -> str:
    """The one object of a window."""
    (path,) = house.lake.diffs().fence([key])[key]
    return f"{HEARTBEAT_DIFFS}/{path}"


def corrupt(objects: ObjectStore, name: str) -> None:
    """Flip a bit of the footer: the size stays right."""
    content = bytearray(objects.read(name))
    content[-1] ^= 0x10
    objects.delete(name)
    objects.create(name, bytes(content))


def main(uri: str, endpoint: str, scratch: str) -> None:
    lake = LakeSettings(uri=uri, endpoint=endpoint)
    objects = open_objects(lake)
    with dg.DagsterInstance.ephemeral() as instance:
        house = Repairing(Path(scratch), instance, CLASSIC, lake)
        was_sound = house.look().is_sound
        gone, damaged = object_of(house, WINDOWS[0]), object_of(house, WINDOWS[2])
        objects.delete(gone)
        corrupt(objects, damaged)
        objects.create(ORPHAN, objects.read(object_of(house, WINDOWS[1])))
        dry = output(house.repair(dry_run=True, remove_orphans=True, grace="0"))
        young = output(house.repair(dry_run=True))
        result = house.repair(remove_orphans=True, grace="0")
        stream = house.whole.filter(pc.equal(house.whole["stream_id"], "stream-0"))
        said = output(result)
        facts = {
            "was_sound": was_sound,
            "harmed": [gone, damaged],
            "dry": [dry["windows_broken"], dry["windows_computed"], dry["orphans"], dry["orphans_removed"]],
            "young": young["orphans"],
            "found": said["found"].splitlines(),
            "mended": [said["windows_computed"], said["orphans_removed"]],
            "materialized": materialized(result),
            "computed": {name: stream[name].to_pylist() for name in ("gap_seconds", "temperature_delta")},
            "rows_are_the_same": house.rows().equals(house.whole),
            "orphans_left": list(objects.names(ORPHAN)),
            "is_sound": house.look().is_sound,
        }
        facts["copied"] = copied_by_spark(house.settings)
    print(json.dumps(facts))


if __name__ == "__main__":
    main(*sys.argv[1:])
