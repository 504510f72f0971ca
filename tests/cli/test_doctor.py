"""`tidemark doctor` as a person runs it: a set-up that is well, and ten that are not."""

import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from google.pubsub_v1 import PublisherClient, SubscriberClient

from tests.cli.command import Said
from tests.cli.test_cli import Place
from tests.doctor.world import BUCKET, World, served_world
from tests.lake.test_log_codec import of_a_later_version
from tests.official_emulator import free_port
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.doctor.checks import at_once
from tidemark.pipeline.doctor.finding import Level
from tidemark.pipeline.lake.log.tracking_log import entry_name
from tidemark.pipeline.spark import java

CONFIG = """\
[pubsub]
project = "{project}"
emulator_host = "{emulator}"
{pubsub}

[lake]
{lake}

[spark]
remote = "sc://localhost:{port}"
{spark}

[dagster]
storage = "state/dagster"
"""


@dataclass
class House:
    """Settings of its own, and ways to spoil them before doctor looks."""

    folder: Path
    emulator: str
    subscriber: SubscriberClient
    publisher: PublisherClient
    world: World
    monkeypatch: pytest.MonkeyPatch

    def __post_init__(self) -> None:
        self.project = f"doctor-{uuid.uuid4().hex[:8]}"
        self.write()

    @property
    def place(self) -> Place:
        return Place(self.folder)

    def write(self, *, lake: str = 'uri = "file:lake"', emulator: str = "", pubsub: str = "", spark: str = "") -> None:
        text = CONFIG.format(
            project=self.project,
            emulator=emulator or self.emulator,
            pubsub=pubsub,
            lake=lake,
            port=free_port(),
            spark=spark,
        )
        (self.folder / "tidemark.toml").write_text(text)

    def provision(self, tracking: dict[str, Any] | None = None, **base: Any) -> None:
        """The topic and both subscriptions, with these options of tracking and of base."""
        pubsub = self.place.settings.pubsub
        self.publisher.create_topic(name=pubsub.topic_path)
        for path, options in ((pubsub.tracking_path, tracking or {}), (pubsub.base_path, base)):
            request = {
                "name": path,
                "topic": pubsub.topic_path,
                "ack_deadline_seconds": 60,
                "message_retention_duration": timedelta(days=7),
                "expiration_policy": {},
            }
            self.subscriber.create_subscription(request={**request, **options})

    def doctor(self, *options: str) -> Said:
        return self.place.tidemark("doctor", *options)

    def broken(self) -> list[str]:
        """What it finds broken, as JSON says it. The exit code says that there is something."""
        said = self.doctor("--json")
        findings = json.loads(said.out)
        broken = [one["said"] for one in findings["findings"] if one["level"] == "broken"]
        assert (said.code, findings["broken"]) == (1 if broken else 0, len(broken))
        return broken


@pytest.fixture
def house(
    tmp_path: Path,
    emulator_host: str,
    subscriber: SubscriberClient,
    publisher: PublisherClient,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[House]:
    with served_world() as world:
        yield House(tmp_path, emulator_host, subscriber, publisher, world, monkeypatch)


def test_a_set_up_that_is_well_ends_with_exit_code_0(house: House) -> None:
    house.provision()
    said = house.doctor()
    assert (said.code, said.err) == (0, "")
    assert said.out.splitlines()[-1] == "nothing would break, 0 warnings"
    subjects = [line for line in said.out.splitlines()[:-1] if not line.startswith(" ")]
    assert subjects == ["settings", "Pub/Sub", "permissions", "quotas", "clock", "lake", "versions", "Spark", "Dagster"]
    assert not (house.folder / "lake").exists()
    assert not (house.folder / "state").exists()


def test_both_filters_are_shown_and_that_the_official_emulator_would_ignore_them(house: House) -> None:
    text = 'attributes.region = "eu"'
    house.write(pubsub=f"filter = '{text}'")
    house.provision(tracking={"filter": text}, filter=text)
    said = house.doctor()
    assert said.code == 0
    assert f"are what the method needs, both with the filter {text!r}" in " ".join(said.out.split())
    assert "Google's official emulator keeps filters and ignores them" in " ".join(said.out.split())


def nothing_provisioned(house: House) -> None: ...


def a_filter(house: House) -> None:
    house.provision(filter="attributes:a")


def a_dead_letter_topic(house: House) -> None:
    dead = f"projects/{house.project}/topics/dead"
    house.publisher.create_topic(name=dead)
    house.provision(dead_letter_policy={"dead_letter_topic": dead, "max_delivery_attempts": 5})


def push(house: House) -> None:
    house.provision(push_config={"push_endpoint": "http://127.0.0.1:1/push"})


def a_shorter_retention_of_tracking(house: House) -> None:
    house.provision(tracking={"message_retention_duration": timedelta(days=1)})


def an_emulator_elsewhere_that_is_silent(house: House) -> None:
    house.write(emulator=f"0.0.0.0:{free_port()}")


def a_bucket_that_is_not_there(house: House) -> None:
    house.provision()
    house.world.bucket = None
    in_the_worlds_bucket(house)


def a_clock_that_is_ahead(house: House) -> None:
    house.provision()
    house.world.grant_all()
    house.world.clock_is_ahead = timedelta(minutes=-10)
    in_the_worlds_bucket(house)


def no_java(house: House) -> None:
    house.provision()
    house.monkeypatch.setattr(java, "_candidates", lambda: iter(()))


def a_newer_lake(house: House) -> None:
    house.provision()
    house.place.lake().objects().create(entry_name(0), of_a_later_version({b"tidemark.format": b"2"}))


def an_unknown_setting(house: House) -> None:
    house.write(pubsub='topik = "heartbeats"')


def in_the_worlds_bucket(house: House) -> None:
    spark = '[spark.config]\n"spark.jars.packages" = "com.google.cloud.bigdataoss:gcs-connector:4.0.4"'
    house.write(lake=f'uri = "gs://{BUCKET}/lake"\nendpoint = "{house.world.endpoint}"', spark=spark)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (nothing_provisioned, ["heartbeats does not exist", "heartbeats-tracking does", "heartbeats-base does"]),
        (a_filter, ["heartbeats-base has the filter 'attributes:a'"]),
        (a_dead_letter_topic, ["heartbeats-base moves messages to the dead-letter topic"]),
        (push, ["heartbeats-base pushes to http://127.0.0.1:1/push"]),
        (a_shorter_retention_of_tracking, ["heartbeats-tracking keeps messages for 1d and"]),
        (an_emulator_elsewhere_that_is_silent, ["did not answer when asked to look up"]),
        (a_bucket_that_is_not_there, [f"there is no bucket gs://{BUCKET}"]),
        (a_clock_that_is_ahead, ["this machine's clock is"]),
        (no_java, ["Spark needs a Java, and there is no java on the path"]),
        (a_newer_lake, ["this lake was written by tidemark 7.0.0"]),
        (an_unknown_setting, ["there is no such setting; did you mean topic?"]),
    ],
)
def test_a_set_up_that_would_break_is_told_with_what_to_do(
    house: House, spoil: Callable[[House], None], said: list[str]
) -> None:
    spoil(house)
    broken = house.broken()
    assert len(broken) == len(said)
    for finding, expected in zip(broken, said, strict=True):
        assert expected in finding


def test_up_says_what_is_wrong_at_once_and_nothing_else(house: House) -> None:
    settings = house.place.settings
    assert at_once(settings, SystemClock()) == []
    house.monkeypatch.setattr(java, "_candidates", lambda: iter(()))
    (found,) = at_once(settings, SystemClock())
    assert (found.level, found.said[:18]) == (Level.BROKEN, "Spark needs a Java")
