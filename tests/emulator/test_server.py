"""The server and its command: where they listen, how they begin and end, and the answers' bytes."""

import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from google.api_core import exceptions as api
from google.pubsub_v1.types import PullResponse

from tests.emulator.builders import plain
from tests.official_emulator import HOST, free_port
from tidemark.local.emulator.faults import FEW, Faults
from tidemark.local.emulator.model import PubSubModel
from tidemark.local.emulator.server import served
from tidemark.local.emulator.unacknowledged import Delivered
from tidemark.local.emulator.wire import pull_response
from tidemark.pipeline.cli.advanced.pubsub import pubsub
from tidemark.pipeline.clock import to_us
from tidemark.pipeline.errors import InvalidSettings, ServiceFailed
from tidemark.pipeline.pubsub.connection import publisher_client, subscriber_client

TOPIC = "projects/project/topics/topic"
BASE = "projects/project/subscriptions/base"
COMMAND = [sys.executable, "-m", "tidemark.pipeline.cli", "pubsub"]


@contextmanager
def command(*options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The running command, and its ready line."""
    of_the_tests = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup, the command would ignore it
    process = subprocess.Popen([*COMMAND, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    signal.signal(signal.SIGHUP, of_the_tests)
    try:
        yield process, process.stdout.readline()
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("body", [0, 1, 127, 128, 300, 16_383, 16_384, 70_000, 3_000_000])
def test_an_answer_reads_back_whole_whatever_its_messages_length(body: int) -> None:
    delivered = [Delivered(f"s1.1.{number}", plain("x" * body, number=str(number))) for number in range(3)]
    read = PullResponse.pb().FromString(pull_response(delivered))
    assert [one.ack_id for one in read.received_messages] == [one.ack_id for one in delivered]
    assert [one.message for one in read.received_messages] == [one.message for one in delivered]


def test_a_taken_port_is_reported() -> None:
    with served() as address:
        port = int(address.rpartition(":")[2])
        with pytest.raises(ServiceFailed, match=f"cannot listen at .*{port}"), served(port=port):
            pass


def test_a_pull_that_waits_ends_with_its_subscription_and_with_its_caller() -> None:
    with served() as address, ThreadPoolExecutor() as pool:
        publisher, subscriber = publisher_client(address), subscriber_client(address)
        publisher.create_topic(name=TOPIC)
        subscriber.create_subscription(name=BASE, topic=TOPIC)

        def waiting() -> Any:
            return subscriber.pull(subscription=BASE, max_messages=10, retry=None, timeout=60)

        pull = pool.submit(waiting)
        time.sleep(0.3)
        subscriber.delete_subscription(subscription=BASE)
        with pytest.raises(api.NotFound):
            pull.result()

        subscriber.create_subscription(name=BASE, topic=TOPIC)
        pull = pool.submit(waiting)
        time.sleep(0.3)
        subscriber.transport.close()
        with pytest.raises((api.Cancelled, ValueError)):
            pull.result()
        time.sleep(0.3)
        another = subscriber_client(address)
        publisher.publish(topic=TOPIC, messages=[{"data": b"x"}])
        received = another.pull(subscription=BASE, max_messages=10, retry=None, timeout=60).received_messages
        assert len(received) == 1  # the pull whose caller is gone did not lease it
        for client in (publisher, another):
            client.transport.close()


def test_the_command_says_it_is_ready_makes_faults_of_options_and_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # no way to an emulator
    port = free_port()
    with command(f"--host={HOST}", f"--port={port}") as (process, ready):
        assert ready == f"tidemark pubsub: ready at {HOST}:{port}; all data is lost when it stops\n"
        with publisher_client(f"{HOST}:{port}") as client:
            assert client.create_topic(name=TOPIC, retry=None).name == TOPIC
            (first,) = client.publish(topic=TOPIC, messages=[{"data": b"x"}], retry=None).message_ids
        assert int(first) > to_us(datetime(2026, 1, 1, tzinfo=UTC))  # no id is used again after a restart
        ends_at_once(process, signal.SIGTERM)
    with command("--port=0", "--seed=3", "--fault=unavailable=1", "--fault", "visible_after=2s") as (process, ready):
        assert ready.endswith("; faults are drawn from seed 3\n")
        client = publisher_client(ready.split()[4].rstrip(";"))
        with pytest.raises(api.ServiceUnavailable, match="simulated fault"):
            client.create_topic(name=TOPIC, retry=None, timeout=60)
        client.transport.close()
        ends_at_once(process, signal.SIGINT)
    with command("--port=0") as (process, _):
        ends_at_once(process, signal.SIGHUP)


def ends_at_once(process: subprocess.Popen[str], sign: signal.Signals) -> None:
    process.send_signal(sign)
    assert process.wait(20) == 0
    assert process.stderr.read() == ""


@pytest.mark.parametrize(
    ("host", "fault", "said"),
    [
        ("0.0.0.0", [], "not on loopback"),  # noqa: S104 refused
        ("pubsub.example", [], "not on loopback"),
        (HOST, ["unavailable"], "NAME=VALUE"),
        (HOST, ["unheard_of=1"], "acknowledgement_lost"),
        (HOST, ["unavailable=2"], "between 0 and 1"),
        (HOST, ["unavailable="], "a probability between 0 and 1"),
        (HOST, ["shuffled=yes"], "true or false"),
        (HOST, ["visible_after=2"], "with its unit"),
    ],
)
def test_other_hosts_and_faults_that_make_no_sense_are_refused(host: str, fault: list[str], said: str) -> None:
    with pytest.raises(InvalidSettings, match=said):
        pubsub(port=0, host=host, seed=None, fault=fault, like_the_service=False)


def under_faults(faults: Faults) -> Any:
    return served(PubSubModel(rng=random.Random(1), faults=faults))


def provisioned(address: str) -> tuple[Any, Any]:
    publisher, subscriber = publisher_client(address), subscriber_client(address)
    publisher.create_topic(name=TOPIC)
    subscriber.create_subscription(name=BASE, topic=TOPIC, ack_deadline_seconds=600)
    return publisher, subscriber


def test_calls_take_time_answers_are_small_and_now_and_then_empty_beside_a_backlog() -> None:
    faults = Faults(answered_after=timedelta(milliseconds=30), small_answer=1.0, empty_answer=0.3)
    with under_faults(faults) as address:
        publisher, subscriber = provisioned(address)
        publisher.publish(topic=TOPIC, messages=[{"data": b"x"}] * 400)
        began = time.monotonic()
        sizes = [len(subscriber.pull(subscription=BASE, max_messages=1000).received_messages) for _ in range(20)]
        assert time.monotonic() - began >= 20 * 0.01
    assert 0 in sizes
    assert 0 < max(sizes) <= FEW
