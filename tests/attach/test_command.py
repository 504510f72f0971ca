"""`tidemark attach`: ticks beside a reader that is not tidemark's, over gRPC and on a lake on disk."""

import json
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import grpc
import pytest
from google.pubsub_v1 import PublisherClient, SubscriberClient

from tests.cli.command import Said, said_here
from tests.fixtures_emulator import unique_pubsub
from tests.identity.recording import Recorder
from tests.official_emulator import HOST, free_port
from tests.pubsub.fake_monitoring import FakeMonitoring, metrics_at
from tests.pubsub.fake_monitoring import served as serve_monitoring
from tidemark.local.emulator.model import PubSubModel
from tidemark.local.emulator.server import served
from tidemark.local.services.ownership import Ownership
from tidemark.pipeline.clock import SystemClock, iso
from tidemark.pipeline.doctor.identity import SCHEMA, Component, On, permissions_of
from tidemark.pipeline.lake.owner import NAME
from tidemark.pipeline.pubsub.backlog import SAMPLE_PERIOD
from tidemark.pipeline.pubsub.connection import publisher_client, subscriber_client
from tidemark.pipeline.settings import load_settings
from tidemark.pipeline.settings_sections import PubSubSettings

SECOND = timedelta(seconds=1)
RPC = {
    **dict.fromkeys(("Pull", "Acknowledge", "ModifyAckDeadline"), "consume"),
    "CreateSnapshot": "consume",
    "GetSubscription": "get",
}
"""What a call needs of the subscription that it names."""


@dataclass
class House:
    """A folder with settings, a Pub/Sub with somebody's base, and a Cloud Monitoring, both of which record calls."""

    folder: Path
    pubsub: PubSubSettings
    recorder: Recorder
    monitoring: FakeMonitoring
    metrics: str
    publisher: PublisherClient
    reader: SubscriberClient

    def write(self, pubsub: str = "", more: str = "") -> None:
        names = ("project", "topic", "base_subscription", "tracking_subscription", "emulator_host")
        written = "\n".join(f'{name} = "{getattr(self.pubsub, name)}"' for name in names)
        rest = '[watermark]\ntick = "1s"\nband = "1s"\n[windows]\nlength = "1m"\n'
        content = f"[pubsub]\nattach = true\n{written}\n{pubsub}\n{rest}{more}"
        (self.folder / "tidemark.toml").write_text(content)

    def subscribe(self) -> None:
        self.publisher.create_topic(name=self.pubsub.topic_path)
        self.reader.create_subscription(
            request={"name": self.pubsub.base_path, "topic": self.pubsub.topic_path, "expiration_policy": {}}
        )

    def publish(self, *ages: float) -> None:
        now = SystemClock().now()
        for age in ages:
            attributes = {"stream_id": "a", "event_time": iso(now - age * SECOND)}
            self.publisher.publish(topic=self.pubsub.topic_path, messages=[{"data": b"{}", "attributes": attributes}])

    def run(self, *arguments: str) -> Said:
        return said_here(self.folder, arguments, {"PATH": os.environ["PATH"], "HOME": str(self.folder)})


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    recorder, monitoring = Recorder(), FakeMonitoring(SystemClock().now)
    model = PubSubModel(rng=random.Random(0))
    with served(model, interceptors=[recorder]) as address, serve_monitoring(monitoring, [recorder]) as metrics:
        pubsub = unique_pubsub(address)
        monitoring.project = pubsub.project
        with publisher_client(address) as publisher, subscriber_client(address) as reader:
            yield House(tmp_path, pubsub, recorder, monitoring, metrics, publisher, reader)


def needed(house: House) -> set[tuple[str, str]]:
    """What the calls so far needed of which subscription."""
    roles = {house.pubsub.base_path: "base", house.pubsub.tracking_path: "tracking"}
    return {(RPC[name], roles[path]) for name, path in house.recorder.about if name in RPC and path in roles}


def of_the_table(reading: str) -> set[tuple[str, str]]:
    permissions = permissions_of([Component.ATTACH], reading)
    return {(each.name.rpartition(".")[2], str(each.on)) for each in permissions if each.on in (On.BASE, On.TRACKING)}


@pytest.mark.parametrize("reading", ["auto", "snapshot"])
def test_base_is_looked_at_and_never_pulled_or_acknowledged(house: House, reading: str) -> None:
    house.write(f'reading = "{reading}"')
    house.subscribe()
    house.publish(3, 2)
    name, now = house.pubsub.base_subscription, SystemClock().now()
    house.monitoring.sampled(name, now - SAMPLE_PERIOD, age=0, undelivered=0)
    del house.recorder.about[:], house.recorder.methods[:]
    with metrics_at(house.metrics):
        said = house.run("attach", "--ticks", "2")
    assert (said.code, said.err) == (0, "")
    assert needed(house) == of_the_table(reading)
    about_base = {call for call, path in house.recorder.about if path == house.pubsub.base_path}
    assert about_base == {"GetSubscription"} | ({"CreateSnapshot"} if reading == "snapshot" else set())
    methods = {method.rpartition("/")[2] for method in house.recorder.methods}
    assert ("ListTimeSeries" in methods) == (reading == "auto")
    assert "CreateSubscription" in methods  # on an emulator, tracking alone
    assert SCHEMA.permission not in permissions_of([Component.ATTACH], reading)


def test_another_pipelines_lake_is_left_alone(house: House) -> None:
    house.write()
    house.subscribe()
    lake = house.folder / ".tidemark" / "lake"
    settings = load_settings(house.folder / "tidemark.toml")
    other = settings.pubsub.model_copy(update={"tracking_subscription": "another"})
    Ownership(settings.model_copy(update={"pubsub": other}), SystemClock()).state()
    before = sorted(lake.rglob("*"))
    refused = house.run("attach", "--ticks", "1")
    assert refused.code == 1
    assert "a tick failed; the next one tries again: LakeOwned: another pipeline writes file:" in refused.out
    assert sorted(lake.rglob("*")) == before
    (lake / NAME).unlink()
    assert house.run("attach", "--ticks", "1").code == 0
    assert json.loads((lake / NAME).read_text())["pipeline"]["tracking"] == settings.pubsub.tracking_path


def test_lines_are_said_when_something_changes_and_other_commands_read_the_log_alone(house: House) -> None:
    house.write()
    house.subscribe()
    said = house.run("attach", "--ticks", "3")
    assert (said.out.count("HELD_NO_DATA"), "with pubsub.attach, `tidemark try" in said.out) == (1, True)
    status = json.loads(house.run("status", "--json").out)
    assert (status["base_read_by_others"], status["reason"]) == (house.pubsub.base_path, "HELD_NO_DATA")
    assert not [name for name in status if name.startswith(("landed", "windows", "late", "lost", "missed"))]
    assert house.run("watermark").out.startswith("HELD_NO_DATA")
    assert "identical" in house.run("replay", "--from-lake").out
    assert house.run("explain").code == 0
    findings = json.loads(house.run("doctor", "--json").out)["findings"]
    assert {"settings", "Pub/Sub", "lake"} <= {one["subject"] for one in findings}
    assert "Spark" not in {one["subject"] for one in findings}
    assert sum("is pulled by others" in one["said"] for one in findings) == 1
    refused = house.run("release", "--before", iso(SystemClock().now()))
    assert (refused.code, "only that consumer can acknowledge messages" in refused.err) == (1, True)


def test_without_the_setting_and_without_base_it_says_what_to_write(house: House) -> None:
    house.write()
    refused = house.run("attach", "--ticks", "1")
    assert (refused.code, "tidemark never creates it" in refused.err) == (1, True)
    settings = house.folder / "tidemark.toml"
    settings.write_text(settings.read_text().replace("attach = true", "attach = false"))
    refused = house.run("attach")
    assert (refused.code, "set attach = true and base_subscription under [pubsub]" in refused.err) == (1, True)


def test_a_failing_tick_is_said_once_and_noted_and_the_next_good_one_clears_it(house: House) -> None:
    page = f'[metrics]\nlisten = "{HOST}:{free_port()}"\n'
    house.write(more=page)
    house.subscribe()
    assert house.run("attach", "--ticks", "1").code == 0
    house.write('reading = "monitoring"')
    house.monitoring.errors = [grpc.StatusCode.PERMISSION_DENIED] * 20
    with metrics_at(house.metrics):
        said = house.run("attach", "--ticks", "2")
        failed = json.loads(house.run("status", "--json").out)["ticks_failed"]
    assert failed == {"tracking": 2}
    assert (said.code, sum("a tick failed" in line for line in said.out.splitlines())) == (1, 1)
    house.write(more=page)
    assert "no status page" not in house.run("attach", "--ticks", "1").out  # each has closed its port
    assert "ticks_failed" not in json.loads(house.run("status", "--json").out)
