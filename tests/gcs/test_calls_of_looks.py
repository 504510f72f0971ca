"""What those who look at a lake again and again ask of Cloud Storage, and what `tidemark status` asks at once."""

from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.gcs.fault_proxy import FaultProxy, table
from tests.gcs.ticking import TickingOnABucket
from tests.watermark.builders import START
from tidemark.pipeline.cli.app import app
from tidemark.pipeline.clock import SystemClock, iso
from tidemark.pipeline.lake.layout import OpenLake
from tidemark.pipeline.observe.facts import read_report, read_waiting
from tidemark.pipeline.settings_sections import LakeSettings

pytestmark = pytest.mark.gcs

NOTHING_NEW, AFTER_A_TICK, WAITING = 6, 11, 5
"""The most calls of a look at a lake: without anything new, after a tick, and for the windows that wait."""

TICKS = 8


@pytest.fixture
def world(tmp_path: Path, lake_apart: LakeSettings, proxy: FaultProxy) -> TickingOnABucket:
    """A lake with some ticks behind it."""
    world = TickingOnABucket(tmp_path, lake_apart, proxy)
    world.compute("first")
    for _ in range(TICKS):
        world.publish()
        world.tick()
    return world


def test_a_look_at_a_lake_that_is_open_reads_what_is_new(world: TickingOnABucket, proxy: FaultProxy) -> None:
    lake = OpenLake(world.through_proxy, {}, world.clock)
    watermark = read_report(lake).state.watermark
    for _ in range(2):
        read_waiting(lake, *world.windows, watermark)
    for _ in range(3):
        proxy.calls()
        read_report(lake)
        calls = proxy.calls()
        assert len(calls) <= NOTHING_NEW, table(calls)
        read_waiting(lake, *world.windows, watermark)
        calls = proxy.calls()
        assert len(calls) <= WAITING, table(calls)
        world.publish()
        world.tick()
        proxy.calls()
        report = read_report(lake)
        calls = proxy.calls()
        assert len(calls) <= AFTER_A_TICK, table(calls)
    assert report.landed.rows == len(world.published)
    assert report.state.number == world.lake().tracking_log().catch_up().number


def test_status_opens_each_table_and_reads_each_of_its_files_once(
    world: TickingOnABucket, proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SystemClock, "now", lambda _: world.clock.now())
    settings, lake = tmp_path / "tidemark.toml", world.through_proxy
    windows = f'[windows]\nlength = "1m"\nlookback = "5m"\nfirst = "{iso(START)}"\n'
    settings.write_text(f'[lake]\nuri = "{lake.uri}"\nendpoint = "{lake.endpoint}"\n{windows}')
    monkeypatch.setenv("TIDEMARK_CONFIG", str(settings))
    proxy.calls()
    done = CliRunner().invoke(app, ["status", "--json"])
    assert done.exit_code == 0, done.output
    calls = proxy.calls()
    read = Counter(call.name for call in calls if call.permission == "storage.objects.get" and call.status == 200)
    of_logs = "/_delta_log/", "/tracking/"
    assert [name for name, count in read.items() if count > 1 and not any(log in name for log in of_logs)] == []
    opened = [call.name for call in calls if call.permission.endswith("list") and "/_delta_log/" in call.name]
    assert len(opened) == len(set(opened)), "each table is opened once"
