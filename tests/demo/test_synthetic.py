"""Publishing the synthetic source: its pace, its truth, and what is left when it is interrupted."""

import math
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow.parquet as pq
import pytest
from google.api_core import exceptions as api
from google.pubsub_v1 import PublisherClient, PublishResponse, SubscriberClient

from tests.cli.command import said_here
from tests.clock import ManualClock
from tests.pubsub.builders import subscription_of
from tidemark.local.demo import fitting
from tidemark.local.demo.shapes.json_shapes import JsonObject
from tidemark.local.demo.shapes.schema_shapes import Protobuf
from tidemark.local.demo.synthetic import BATCH, Published, publish
from tidemark.local.demo.synthetic_beats import SyntheticSource, messages
from tidemark.pipeline.clock import SystemClock, to_us
from tidemark.pipeline.contract.payloads import protobuf
from tidemark.pipeline.errors import LakeUnwritable, SubscriptionMissing
from tidemark.pipeline.pubsub.provision import provision
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import PubSubSettings

START = datetime(2026, 11, 21, 5, 0, tzinfo=UTC)
SOURCE = SyntheticSource(streams=300, duplicates=0.05, broken=0.01)
TOPIC = "projects/some/topics/where"
Run = Callable[..., Published]


class RecordingPublisher:
    """Confirms every request, with the moment and the size of each; the request `fails_at` gets the error."""

    def __init__(self, clock: ManualClock, fails_at: int | None = None, error: Exception | None = None) -> None:
        self._clock = clock
        self._fails_at = fails_at
        self._error = error
        self.requests: list[tuple[datetime, int]] = []

    @property
    def confirmed(self) -> int:
        return sum(size for _, size in self.requests)

    def publish(self, request: Any, **_bounds: Any) -> PublishResponse:
        if self._fails_at == len(self.requests) and self._error is not None:
            raise self._error
        size = len(request.messages)
        assert 1 <= size <= BATCH
        first = self.confirmed
        self.requests.append((self._clock.now(), size))
        return PublishResponse(message_ids=[str(number) for number in range(first, first + size)])


@pytest.fixture
def truth_path(tmp_path: Path) -> Path:
    return tmp_path / "of" / "the" / "truth.parquet"


@pytest.fixture
def run(truth_path: Path) -> Run:
    """Publish ten minutes of event time from START, with other arguments as given."""

    def publish_it(publisher: Any, clock: Any, **others: Any) -> Published:
        arguments = {"start": START, "end": START + timedelta(minutes=10), "truth_path": truth_path, **others}
        return publish(SOURCE, publisher, TOPIC, clock, **arguments)

    return publish_it


def planned_us() -> Any:
    pieces = messages(SOURCE, START, START + timedelta(minutes=10))
    return np.concatenate([rows["publish_us"] for rows in pieces])


def moments_us(publisher: RecordingPublisher) -> Any:
    """When each message was sent."""
    return np.concatenate([np.full(size, to_us(moment)) for moment, size in publisher.requests])


def test_live_messages_are_never_sent_before_their_time(run: Run) -> None:
    clock = ManualClock(START)
    publisher = RecordingPublisher(clock)
    assert run(publisher, clock).messages == publisher.confirmed == len(planned_us())
    assert (moments_us(publisher) >= planned_us()).all()
    assert len(publisher.requests) > 1_000


def test_a_speed_up_limits_how_fast_the_past_is_sent(run: Run) -> None:
    now = START + timedelta(hours=1)
    clock = ManualClock(now)
    publisher = RecordingPublisher(clock)
    run(publisher, clock, speed_up=10.0)
    assert (planned_us() - to_us(START) <= (moments_us(publisher) - to_us(now)) * 10).all()
    assert clock.now() - now >= timedelta(minutes=1)
    assert run(RecordingPublisher(clock), clock, speed_up=math.inf).messages == len(planned_us())


def test_stopping_leaves_a_truth_of_exactly_what_was_confirmed(run: Run, truth_path: Path) -> None:
    clock = ManualClock(START)
    publisher = RecordingPublisher(clock)
    published = run(publisher, clock, stop=lambda: clock.now() >= START + timedelta(minutes=2))
    assert 0 < published.messages == publisher.confirmed < len(planned_us())
    assert pq.read_table(truth_path).num_rows == publisher.confirmed


def test_a_failed_request_is_explained_and_leaves_the_truth_of_those_before(run: Run, truth_path: Path) -> None:
    clock = ManualClock(START + timedelta(hours=1))
    publisher = RecordingPublisher(clock, fails_at=3, error=api.NotFound("gone"))
    with pytest.raises(SubscriptionMissing, match=f"{TOPIC}.*tidemark provision"):
        run(publisher, clock)
    assert pq.read_table(truth_path).num_rows == publisher.confirmed == 3 * BATCH


def test_an_interruption_leaves_the_truth_of_everything_that_was_sent(run: Run, truth_path: Path) -> None:
    clock = ManualClock(START + timedelta(hours=1))
    publisher = RecordingPublisher(clock)

    def interrupt(sent: int, _reached: datetime) -> None:
        if sent >= 2 * BATCH:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(publisher, clock, progress=interrupt)
    assert pq.read_table(truth_path).num_rows == publisher.confirmed >= 2 * BATCH


def test_a_truth_that_cannot_be_written_is_said_before_anything_is_sent(run: Run, tmp_path: Path) -> None:
    clock = ManualClock(START)
    publisher = RecordingPublisher(clock)
    with pytest.raises(LakeUnwritable, match=str(tmp_path)):
        run(publisher, clock, truth_path=tmp_path)
    assert publisher.requests == []


def test_every_message_of_the_truth_is_on_the_topic_and_no_other(
    subscriber: SubscriberClient, publisher: PublisherClient, fresh_pubsub: PubSubSettings, truth_path: Path
) -> None:
    provision(subscriber, publisher, fresh_pubsub, Settings().contract, SystemClock())
    source = replace(SOURCE, streams=200)
    now = SystemClock().now()
    published = publish(
        source,
        publisher,
        fresh_pubsub.topic_path,
        SystemClock(),
        now - timedelta(minutes=10),
        now - timedelta(minutes=2),
        truth_path=truth_path,
    )
    truth = pq.read_table(truth_path).to_pylist()
    kinds = [row["kind"] for row in truth]
    assert published.messages == len(truth)
    assert published.heartbeats == kinds.count("heartbeat")
    assert published.duplicates == kinds.count("duplicate") > 0
    assert published.broken == {reason: kinds.count(reason) for reason in published.broken}
    assert min(published.broken.values()) >= 2
    times = [row["event_time"] for row in truth if row["kind"] == "heartbeat"]
    assert (published.first_event_time, published.last_event_time) == (min(times), max(times))

    subscription = subscription_of(subscriber, fresh_pubsub)
    arrived: dict[str, Any] = {}
    while batch := subscription.pull(1_000, 1 << 30, 5):
        arrived |= {message["message_id"]: message for message in batch.messages.table.to_pylist()}
        subscription.acknowledge(batch.ack_ids)
    assert arrived.keys() == {row["message_id"] for row in truth}
    for row in truth:
        message = arrived[row["message_id"]]
        assert message["payload"] == row["payload"]
        assert dict(message["attributes"]) == orjson.loads(row["attributes"])


def test_what_the_settings_read_otherwise_is_not_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "BEATS", 2)  # of each shape, and no change of revision
    (tmp_path / "tidemark.toml").write_text('[message]\nevent_time = "payload:at"\n')
    said = said_here(tmp_path, ("publish",), {})
    assert (said.code, said.out) == (1, "")
    rejected = "a message would be rejected (NO_EVENT_TIME: payload:at is absent or null)"
    assert f"the settings misread messages of the shape json: {rejected}" in said.err
    assert JsonObject().settings.strip() in said.err
    monkeypatch.setattr(protobuf, "COMPILED_WITHIN_SECONDS", 0)
    (tmp_path / "beat.proto").write_text(next(iter(Protobuf.files.values())))
    (tmp_path / "tidemark.toml").write_text('[message]\npayload = "protobuf"\nschema = "beat.proto"\n')
    said = said_here(tmp_path, ("publish", "--shape", "protobuf"), {})
    assert (said.code, said.out) == (1, "")
    assert said.err.startswith("tidemark: cannot check now how the settings read messages: protoc took more than 0 s")
