"""Readings of the oldest unacknowledged publish time, on the official emulator; and clients of the service: at which
address, and as whom."""

from datetime import datetime, timedelta
from typing import Any

import google.auth
import pytest
from google.api_core import exceptions as api
from google.auth import credentials, impersonated_credentials
from google.pubsub_v1.types import Snapshot

from tests.clock import ManualClock
from tests.pubsub.builders import Altered, Served, ids_of, raising
from tidemark.pipeline.clock import EPOCH, Clock, SystemClock, from_us
from tidemark.pipeline.errors import PermissionMissing, PubSubUnreachable, SnapshotRefused
from tidemark.pipeline.pubsub.backlog import LIFETIME, NAME_PREFIX, ReadingTimes, SnapshotBacklog, monitoring_client
from tidemark.pipeline.pubsub.connection import publisher_client, reported, subscriber_client
from tidemark.pipeline.pubsub.subscription import PulledBatch
from tidemark.pipeline.settings_sections import PubSubSettings, Server

CLOCK = SystemClock()


@pytest.fixture
def topic(served_pubsub: Served) -> Served:
    """A topic with its two subscriptions."""
    served_pubsub.provision()
    return served_pubsub


def backlog_of(topic: Served, clock: Clock = CLOCK, **altered: Any) -> SnapshotBacklog:
    """Base's, by a client some of whose methods are altered."""
    return SnapshotBacklog(Altered(topic.subscriber, **altered), topic.settings.base_path, ReadingTimes(clock))  # type: ignore[arg-type]


def publish_time(batch: PulledBatch, message_id: str) -> datetime:
    return from_us(int(batch.messages.published_us[ids_of(batch).index(message_id)]))


def acknowledge(topic: Served, batch: PulledBatch, *ids: str) -> None:
    chosen = [ack for message_id, ack in zip(ids_of(batch), batch.ack_ids, strict=True) if message_id in ids]
    topic.subscriber.acknowledge(subscription=topic.settings.base_path, ack_ids=chosen)


def test_the_oldest_unacknowledged_message_is_read_to_the_millisecond(topic: Served) -> None:
    ids = []
    for _ in range(3):
        ids += topic.send(1)
        CLOCK.sleep(0.05)
    CLOCK.sleep(1.1)
    batch = topic.subscription().pull(10, 1 << 20, 5)
    backlog = backlog_of(topic)
    assert backlog.read().oldest_unacked == publish_time(batch, ids[0])
    acknowledge(topic, batch, ids[1])
    assert backlog.read().oldest_unacked == publish_time(batch, ids[0])
    acknowledge(topic, batch, ids[0])
    reading = backlog.read()
    assert reading.oldest_unacked == publish_time(batch, ids[2])
    assert reading.names_a_message


@pytest.mark.parametrize(("seconds_behind", "names"), [(-0.5, False), (0.9, False), (1.1, True)])
def test_near_clocks_make_no_message_of_an_empty_backlog(topic: Served, seconds_behind: float, names: bool) -> None:
    """An empty backlog's snapshot expires a lifetime after the server's moment, which may be behind ours."""
    now = CLOCK.now()
    told = now - timedelta(seconds=seconds_behind)
    snapshot = Snapshot(name="a-snapshot", expire_time=told + LIFETIME)
    reading = backlog_of(topic, ManualClock(now), create_snapshot=lambda **_: snapshot).read()
    assert (reading.oldest_unacked, reading.names_a_message) == (told, names)


def test_an_undeleted_snapshot_of_ours_is_swept_later(topic: Served) -> None:
    subscriber, settings = topic.subscriber, topic.settings
    snapshots = f"projects/{settings.project}/snapshots"
    of_others = settings.tracking_subscription, f"{settings.base_subscription}-eu"
    others = [*(f"{snapshots}/{NAME_PREFIX}{name}-0123" for name in of_others), f"{snapshots}/of-somebody-else"]
    for name in others:
        subscriber.create_snapshot(name=name, subscription=settings.base_path)
    assert not backlog_of(topic, delete_snapshot=raising(api.ServiceUnavailable("away"))).read().names_a_message
    backlog = backlog_of(topic)
    assert backlog.sweep(backlog.names()) == 1
    left = [snapshot.name for snapshot in subscriber.list_snapshots(project=f"projects/{settings.project}")]
    assert sorted(left) == sorted(others)


def test_a_refused_snapshot_is_reported_by_its_reason(topic: Served) -> None:
    with pytest.raises(SnapshotRefused, match="almost 7 days old"):
        backlog_of(topic, create_snapshot=raising(api.FailedPrecondition("expires within the hour"))).read()
    with pytest.raises(PermissionMissing, match=r"pubsub\.snapshots\.create"):
        backlog_of(topic, create_snapshot=raising(api.PermissionDenied("no"))).read()


@pytest.mark.parametrize("retried", [True, False])
def test_a_quota_that_is_used_up_is_not_called_a_fault_of_the_network(retried: bool) -> None:
    exhausted = api.ResourceExhausted("Quota exceeded for quota metric 'Administrator operations'")
    error = api.RetryError("timed out", cause=exhausted) if retried else exhausted
    says = r"a quota is used up.*'Administrator operations'.*longer watermark\.tick"
    with pytest.raises(PubSubUnreachable, match=says) as said, reported("take a snapshot of", "base", "a permission"):
        raise error
    assert "network" not in str(said.value)


def test_a_clock_that_is_set_back_makes_no_reading_look_older() -> None:
    """The server's moment is known from an empty subscription, and the monotonic clock goes on from there."""
    clock = Unsteady(CLOCK.now())
    server = clock.now()
    times = ReadingTimes(clock)
    assert times.reading(times.ask(), server).observed_at == server
    clock.advance(timedelta(seconds=100))
    clock.apart = timedelta(hours=-1)
    stuck = times.reading(times.ask(), server + timedelta(seconds=5))
    late_by = server + timedelta(seconds=100) - stuck.observed_at
    assert timedelta(0) <= late_by <= timedelta(seconds=0.2)
    assert stuck.names_a_message
    assert timedelta(minutes=59) < stuck.clock_is_behind_by <= timedelta(hours=1)


@pytest.mark.parametrize("apart", [timedelta(0), timedelta(hours=-1), timedelta(hours=1)])
def test_a_message_of_base_that_is_older_than_what_tracking_reads_is_one_by_any_clock(apart: timedelta) -> None:
    """In a new process, which knows nothing of the server's clock before it reads tracking."""
    clock = Unsteady(CLOCK.now())
    server = clock.now()
    clock.apart = apart
    times = ReadingTimes(clock)
    tracking = server - timedelta(minutes=2)  # an old message itself
    times.reading(times.ask(), tracking)
    assert times.reading(times.ask(), tracking - timedelta(seconds=2)).names_a_message


class Unsteady(ManualClock):
    """A wall clock that may be set apart from the time that passes."""

    apart = timedelta(0)

    def now(self) -> datetime:
        return super().now() + self.apart

    def monotonic(self) -> float:
        return (super().now() - EPOCH).total_seconds()


ACCOUNT = "tidemark@project.iam.gserviceaccount.com"
REGIONAL = "europe-west3-pubsub.googleapis.com:443"


class OfTheMachine(credentials.Credentials):
    """Credentials with a token that never changes."""

    def __init__(self) -> None:
        super().__init__()
        self.token = "of-the-machine"  # noqa: S105 (it opens nothing)

    def refresh(self, request: object) -> None: ...


@pytest.fixture(autouse=True)
def _machine_has_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(google.auth, "default", lambda **_: (OfTheMachine(), "project"))


def test_clients_ask_a_regional_endpoint_as_the_service_account_that_is_named() -> None:
    settings = PubSubSettings(impersonate=ACCOUNT, endpoint=REGIONAL)
    clients = [subscriber_client(*settings.server), publisher_client(*settings.server)]
    for client in (*clients, monitoring_client(Server(None, impersonate=settings.impersonate))):
        used = client.transport._credentials
        assert isinstance(used, impersonated_credentials.Credentials)
        assert used.service_account_email == ACCOUNT
        client.transport.close()
    assert [client.transport.host for client in clients] == [REGIONAL] * 2
    plain = subscriber_client(*PubSubSettings().server)
    assert plain.transport.host == "pubsub.googleapis.com:443"
    assert not isinstance(plain.transport._credentials, impersonated_credentials.Credentials)
    plain.transport.close()


def test_a_refused_token_is_a_permission_and_no_broken_network() -> None:
    for said, expected, told in (
        ("('Unable to acquire impersonated credentials', '403')", PermissionMissing, "serviceAccountTokenCreator"),
        ("('invalid_grant: Bad Request', {'error': 'invalid_grant'})", PermissionMissing, "start tidemark again"),
        ("no route", PubSubUnreachable, "check the network"),
    ):
        with pytest.raises(expected, match=rf"pull from base.*{told}"), reported("pull from", "base", "consume"):
            raise api.ServiceUnavailable(f"Getting metadata from plugin failed with error: {said}")
