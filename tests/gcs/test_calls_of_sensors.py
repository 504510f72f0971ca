"""What all sensors together ask of Cloud Storage while traffic goes on from day to day."""

import random
from collections import Counter
from datetime import datetime

import dagster as dg
import pytest

from tests.dagster.house import SECOND, ModelWorld, Ticking, publish, windows_of
from tests.gcs.fault_proxy import FaultProxy, table
from tests.gcs.test_calls import MOST_CLASS_A, MOST_CLASS_B
from tidemark.assets.sensors.staleness import AUDIT_EVERY, CHECK_EVERY
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.tables.windowed import DiffRun
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_message import MessageSettings
from tidemark.pipeline.settings_sections import LakeSettings, PubSubSettings, WatermarkSettings

pytestmark = pytest.mark.gcs

TICK = 10 * SECOND
WARM_UP = 6
"""The first ticks open the tables and read what a new process has to know."""

STREAMS, LATE = 20, 0.1
"""How many streams beat in a tick, and in which share of ticks a heartbeat is much older."""


def compute(request: dg.RunRequest, lake: Lake, settings: Settings, name: str, now: datetime) -> None:
    """Commit the windows that a run was asked for, without rows."""
    keys = windows_of(request, settings.windowing)
    landed, diffs = lake.heartbeats().pinned(), lake.diffs()
    assert landed is not None
    run = DiffRun(name, keys, landed.version(), now, now)
    fence = diffs.fence(keys)
    diffs.leave_manifest(run)
    diffs.replace(run, fence)


def test_all_sensors_stay_within_the_budget_of_calls(lake_apart: LakeSettings, proxy: FaultProxy) -> None:
    settings = Settings(
        pubsub=PubSubSettings(emulator_host="127.0.0.1:1"),  # nobody answers, at once
        watermark=WatermarkSettings(tick=TICK),
        message=MessageSettings(fields={"temperature": "number"}),  # type: ignore[dict-item]
        lake=lake_apart.model_copy(update={"endpoint": proxy.endpoint}),
    )
    world, rng = ModelWorld(settings.pubsub), random.Random(1)
    lake, calls, computed = Lake(lake_apart, {}, world.clock), Counter[tuple[str, str, str]](), 0
    every, ticks = CHECK_EVERY // TICK, AUDIT_EVERY // TICK
    with dg.DagsterInstance.ephemeral() as instance:
        ticking = Ticking(settings, instance, world.clock, world)
        for number in range(WARM_UP + ticks):
            began = world.clock.now()
            beats = [(f"stream-{stream}", began - rng.random() * 9 * SECOND) for stream in range(STREAMS)]
            if rng.random() < LATE:
                beats.append(("slow", began - settings.windows.length - 60 * SECOND))
            publish(world, settings, beats)
            proxy.calls()
            found = [
                ticking.tick(sensor)
                for sensor in ("landing", "tracking", "ingest", *(["staleness"] if number % every == 0 else []))
            ]
            if number >= WARM_UP:
                calls += table(proxy.calls())
            for request in [request for data in found for request in data.run_requests or []]:
                compute(request, lake, settings, f"run-{number}", began)
                computed += 1
            world.clock.advance(began + TICK - world.clock.now())
    assert computed >= AUDIT_EVERY // settings.windows.length
    for price_class, most in (("A", MOST_CLASS_A), ("B", MOST_CLASS_B + 1)):  # by when a look finds a commit
        of_class = {kind[1:]: count / ticks for kind, count in calls.items() if kind[0] == price_class}
        assert sum(of_class.values()) <= most, of_class
