"""A reader of base that keeps a message, and the ticks of attach beside it, in one process."""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from google.pubsub_v1 import PublisherClient, SubscriberClient

from tests.cli.command import said_here
from tests.quick import with_policy
from tidemark.pipeline.cli.advanced.attach import Attached
from tidemark.pipeline.clock import SystemClock, iso
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.log.history import decision_in_force
from tidemark.pipeline.pubsub.connection import publisher_client, subscriber_client
from tidemark.pipeline.pubsub.provision import provision_here
from tidemark.pipeline.settings import Settings, load_settings
from tidemark.pipeline.settings_sections import PubSubSettings
from tidemark.pipeline.watermark.decision import Decision, Reason

SETTINGS = """
[pubsub]
project = "{project}"
topic = "events"
base_subscription = "theirs"
tracking_subscription = "tracking"
attach = true
emulator_host = "{address}"
[watermark]
band = "1s"
tick = "5s"

[lake]
uri = "file:lake"
"""
BAND = timedelta(seconds=1)


@dataclass(slots=True)
class Beside:
    """The reader's client, the publisher's, and attach."""

    settings: Settings
    config: Path
    publisher: PublisherClient
    reader: SubscriberClient
    attached: Attached

    @property
    def base(self) -> str:
        return self.settings.pubsub.base_path

    def publish(self, count: int = 5) -> datetime:
        """Publish events that happened just now; the last one's event time."""
        now = datetime.now(UTC)
        attributes = {"event_time": iso(now), "stream_id": "s"}
        messages = [{"data": b"{}", "attributes": attributes}] * count
        self.publisher.publish(topic=self.settings.pubsub.topic_path, messages=messages)
        return now

    def read(self, *, keep: Sequence[str] = ()) -> list[Any]:
        """Pull what there is and acknowledge it, all but the ids to keep; what was pulled."""
        received = list(
            self.reader.pull(
                request={"subscription": self.base, "max_messages": 100, "return_immediately": True}, timeout=5
            ).received_messages
        )
        ids = [one.ack_id for one in received if one.message.message_id not in keep]
        if ids:
            self.reader.acknowledge(subscription=self.base, ack_ids=ids)
        return received

    def traffic(self, *, seconds: float = 2, keep: Sequence[str] = ()) -> datetime:
        """Publish and read for some seconds, with a tick each second; the last event time."""
        until = time.monotonic() + seconds
        while True:
            last = self.publish()
            self.read(keep=keep)
            self.attached.tick()
            if time.monotonic() > until:
                return last
            time.sleep(0.5)

    def decision(self) -> Decision:
        """The newest decision in the lake."""
        settings = self.settings
        found = decision_in_force(Lake(settings.lake, settings.message.kinds, SystemClock()).tracking_log())
        assert found is not None
        return found[1].decision


@contextmanager
def beside(folder: Path, address: str, project: str) -> Iterator[Beside]:
    """Attach beside a subscription of a topic of its own."""
    config = folder / "tidemark.toml"
    config.write_text(SETTINGS.format(address=address, project=project))
    settings, clock = with_policy(load_settings(config), seek_tolerance=timedelta(seconds=1)), SystemClock()
    publisher, reader = publisher_client(address), subscriber_client(address)
    publisher.create_topic(name=settings.pubsub.topic_path)
    make_base(reader, settings)
    provision_here(settings, clock)
    with closing(Attached(settings, clock)) as attached:
        yield Beside(settings, config, publisher, reader, attached)


def make_base(reader: SubscriberClient, settings: Settings, **config: Any) -> None:
    """Create the subscription that is theirs."""
    names = {"name": settings.pubsub.base_path, "topic": settings.pubsub.topic_path}
    reader.create_subscription(request={**names, "ack_deadline_seconds": 10, **config})


@pytest.fixture
def world(tmp_path: Path, fresh_pubsub: PubSubSettings) -> Iterator[Beside]:
    assert fresh_pubsub.emulator_host
    with beside(tmp_path, fresh_pubsub.emulator_host, fresh_pubsub.project) as found:
        yield found


def test_a_message_that_is_never_acknowledged_pins_the_watermark_and_explain_names_the_backlog(world: Beside) -> None:
    world.traffic()
    time.sleep(BAND.total_seconds())
    kept_at = world.publish(1)
    message = world.reader.pull(request={"subscription": world.base, "max_messages": 1}, timeout=5).received_messages[0]
    world.traffic(seconds=3, keep=[message.message.message_id])
    decision = world.decision()
    assert decision.watermark is not None
    assert decision.watermark <= kept_at
    assert decision.reason is Reason.PINNED_BY_BACKLOG
    assert "base has a backlog" in said_here(world.config.parent, ("explain",), {}).out
    world.reader.acknowledge(subscription=world.base, ack_ids=[message.ack_id])
    world.traffic()
    assert (after := world.decision().watermark) is not None
    assert after > kept_at
