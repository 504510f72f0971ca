"""Each part makes the calls that the table of permissions lists for it, and no others: real sensors and provisioning,
on servers that record every call. Runs have a file of their own, tests/spark/test_calls_of_runs.py."""

import base64
import random
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest

from tests.dagster import house
from tests.dagster.house import Hasty, Ticking, beats_between, publish
from tests.fixtures_emulator import unique_pubsub
from tests.gcs.apart import fresh_lake
from tests.identity.recording import RecordedBuckets, Recorder, recorded_buckets
from tests.lake.builders import put
from tests.pubsub.fake_monitoring import FakeMonitoring, metrics_at
from tests.pubsub.fake_monitoring import served as serve_monitoring
from tidemark.local.emulator.model import PubSubModel
from tidemark.local.emulator.server import served as serve_pubsub
from tidemark.pipeline.clock import SystemClock, iso
from tidemark.pipeline.doctor.identity import BREAK_OFF, IN_PARTS, METRICS, NEEDS, SCHEMA, Component, On, Permission
from tidemark.pipeline.lake import layout
from tidemark.pipeline.pubsub.connection import publisher_client, subscriber_client
from tidemark.pipeline.pubsub.provision import provision_here
from tidemark.pipeline.pubsub.sampling import sample_messages
from tidemark.pipeline.quality import staleness as staleness_checkpoint
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import ON_CHANGE, PubSubSettings, QuarantineSettings, SignalSettings

ONLY_SOMETIMES = {METRICS.permission, IN_PARTS, BREAK_OFF}
"""Needed for what the Delta library writes in parts, such as a checkpoint of a table with very many files; and after a
failure, when such an upload is given up. Metrics are asked where a snapshot is refused."""

SECOND = timedelta(seconds=1)


@dataclass
class Servers:
    """A Pub/Sub with a Cloud Monitoring, and perhaps buckets, that write down what they are asked."""

    pubsub: PubSubSettings
    recorder: Recorder
    buckets: RecordedBuckets | None = None

    def taken(self) -> set[Permission]:
        found = self.recorder.taken()
        return found if self.buckets is None else found | self.buckets.taken()


@pytest.fixture
def servers() -> Iterator[Servers]:
    recorder, monitoring = Recorder(), FakeMonitoring(SystemClock().now)
    model = PubSubModel(rng=random.Random(0))
    with (
        serve_pubsub(model, interceptors=[recorder]) as address,
        serve_monitoring(monitoring, [recorder]) as metrics,
        metrics_at(metrics),
    ):
        pubsub = unique_pubsub(address)
        monitoring.project = pubsub.project
        yield Servers(pubsub, recorder)


def of(component: Component, *, on_bucket: bool = True) -> set[Permission]:
    """What the table says of a topic without a schema."""
    needed = {need.permission for need in NEEDS[component]} - {SCHEMA.permission}
    return {permission for permission in needed if on_bucket or permission.on is not On.BUCKET}


def settings_of(pubsub: PubSubSettings, folder: Path) -> Settings:
    return house.settings_of(pubsub, folder).model_copy(update={"signal": SignalSettings(publish_to="signals")})


def ticking_on(settings: Settings, stack: ExitStack) -> Ticking:
    sections = {"quarantine": QuarantineSettings(requeue=ON_CHANGE), "signal": SignalSettings(publish_to="signal")}
    settings = settings.model_copy(update=sections)
    provision_here(settings, SystemClock())
    return Ticking(settings, stack.enter_context(dg.DagsterInstance.ephemeral()), Hasty())


def play(ticking: Ticking, servers: Servers) -> dict[Component, set[Permission]]:
    """Some ticks of every sensor over a few messages, one of them large; what each part needed."""
    settings, found = ticking.settings, {component: set[Permission]() for component in Component}
    client, now = publisher_client(*settings.pubsub.server), SystemClock().now()
    large = base64.b64encode(random.Random(0).randbytes(6 << 20))
    for number in range(2):
        publish(client, settings, beats_between(now - timedelta(minutes=2), now))
        attributes = {"stream_id": "large", "event_time": iso(now + number * SECOND)}
        client.publish(topic=settings.pubsub.topic_path, messages=[{"data": b'"%s"' % large, "attributes": attributes}])
        servers.taken()
        for sensor, component in (
            ("landing", Component.LANDER),
            ("tracking", Component.TRACKER),
            ("ingest", Component.TRACKER),
            ("staleness", Component.CHECKS),
            ("requeue", Component.CHECKS),
        ):
            ticking.tick(sensor)
            found[component] |= servers.taken()
    client.transport.close()
    return found


def compute_a_silent_window(ticking: Ticking) -> None:
    """So that the check of missed heartbeats has something to look at."""
    now = SystemClock().now()
    window = ticking.settings.windowing.containing(now - timedelta(hours=1))
    put(ticking.lake().diffs(), "by-hand", [window.key], now=now)


def test_provisioning_calls_what_the_table_says(servers: Servers, tmp_path: Path) -> None:
    settings = settings_of(servers.pubsub, tmp_path)
    provision_here(settings, SystemClock())
    with subscriber_client(*settings.pubsub.server) as client:
        client.delete_subscription(subscription=settings.pubsub.tracking_path)
        servers.recorder.methods.remove("/google.pubsub.v1.Subscriber/DeleteSubscription")
        provision_here(settings, SystemClock())
        sample_messages(client, settings.pubsub, SystemClock(), 1, SECOND)
    assert servers.taken() == of(Component.PROVISION)


def test_the_sensors_ask_pubsub_and_monitoring_for_what_the_table_says(servers: Servers, tmp_path: Path) -> None:
    settings = settings_of(servers.pubsub, tmp_path)
    provision_here(settings, SystemClock())
    with ExitStack() as stack:
        found = play(ticking_on(settings, stack), servers)
    for component in (Component.TRACKER, Component.LANDER, Component.CHECKS):
        needed = of(component, on_bucket=False)
        assert needed - ONLY_SOMETIMES <= found[component] <= needed, component


@pytest.mark.gcs
def test_sensors_ask_a_bucket_as_documented(servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staleness_checkpoint, "COMMITS_BETWEEN", 1)
    monkeypatch.setattr(layout, "CHECKPOINT_EVERY", 2)
    with recorded_buckets(tmp_path) as buckets, ExitStack() as stack:
        recording = replace(servers, buckets=buckets)
        settings = settings_of(servers.pubsub, tmp_path).model_copy(update={"lake": fresh_lake(buckets.endpoint)})
        provision_here(settings, SystemClock())
        ticking = ticking_on(settings, stack)
        compute_a_silent_window(ticking)
        found = play(ticking, recording)
    for component in (Component.TRACKER, Component.LANDER, Component.CHECKS):
        assert of(component) - ONLY_SOMETIMES <= found[component] <= of(component), component
