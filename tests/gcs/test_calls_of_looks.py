"""What those who look at a lake again and again ask of Cloud Storage."""

from pathlib import Path

import pytest

from tests.gcs.fault_proxy import FaultProxy, table
from tests.gcs.ticking import TickingOnABucket
from tidemark.pipeline.quality.status import read_losses, read_report
from tidemark.pipeline.settings_sections import LakeSettings

pytestmark = pytest.mark.gcs


def test_looks(tmp_path: Path, lake_apart: LakeSettings, proxy: FaultProxy) -> None:
    world = TickingOnABucket(tmp_path, lake_apart, proxy)
    world.compute("first")
    for _ in range(6):
        world.publish()
        world.tick()
    lake = world.behind_proxy
    log = lake.tracking_log()
    for _ in range(3):
        world.publish()
        world.tick()
        for _ in range(2):
            proxy.calls()
            read_report(lake, *world.windows, log)
            calls = proxy.calls()
            print(len(calls), sorted(table(calls).items()))
    proxy.calls()
    read_losses(lake, *world.windows, world.clock.now())
    calls = proxy.calls()
    print("losses", len(calls), sorted(table(calls).items()))
    proxy.calls()
    opened = lake.heartbeats()
    opened.current()
    print("open", [(c.permission, c.name) for c in proxy.calls()])
    world.publish()
    world.tick()
    proxy.calls()
    opened.current()
    print("update", [(c.permission, c.name) for c in proxy.calls()])
    opened.current()
    print("nothing", [(c.permission, c.name) for c in proxy.calls()])
