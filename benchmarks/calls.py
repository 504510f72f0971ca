"""Counts calls to Pub/Sub by kind, at 10,000 sources that publish every 30 s, for `docs/concepts/costs-and-scale.md`.

`python -m benchmarks.calls` plays both ticks as the sensors do, every 10 s, on tidemark's own Pub/Sub. With
`--like-the-service` it answers as slowly and in as small pieces as the service does.
"""

import argparse
import random
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import grpc
from google.pubsub_v1 import SubscriberClient

from benchmarks.traffic import REGULAR
from tidemark.local.demo.synthetic import publish
from tidemark.local.emulator.faults import LIKE_THE_SERVICE, Faults
from tidemark.local.emulator.model import PubSubModel
from tidemark.local.emulator.server import served
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.contract.heartbeat import HeartbeatReader
from tidemark.pipeline.ingest.outcome import Side
from tidemark.pipeline.ingest.settle import Settling, new_files
from tidemark.pipeline.ingest.take import Budget
from tidemark.pipeline.ingest.ticks import land, track
from tidemark.pipeline.kept import Kept
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.pubsub.connection import publisher_client
from tidemark.pipeline.pubsub.provision import provision
from tidemark.pipeline.pubsub.readings import Subscriptions
from tidemark.pipeline.pubsub.subscription import PubSubSubscription
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import LakeSettings, PubSubSettings

A_DAY = timedelta(days=1).total_seconds()
AMPLE = Budget(250_000, 256 << 20, timedelta(seconds=7), 25_000)
CLOCK = SystemClock()
WARM_UP = 2
"""Ticks that are not counted: they make the connections, the log and the tables."""


class Counted(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    """Counts the calls of a channel by their method."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def intercept_unary_unary(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        self.calls[details.method.rsplit("/", 1)[1]] += 1
        return continuation(details, request)


def main() -> None:
    """Play so many ticks, and print the calls of a tick and of a day."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.calls", description=__doc__)
    parser.add_argument("--ticks", type=int, default=12)
    parser.add_argument("--like-the-service", action="store_true")
    options = parser.parse_args()
    # A refused call would end a tick, which the sensors' next tick makes up for.
    faults = replace(LIKE_THE_SERVICE, throttled=0.0) if options.like_the_service else Faults()
    model = PubSubModel(rng=random.Random(1), faults=faults)  # noqa: S311 (no secret)
    with served(model) as address, tempfile.TemporaryDirectory() as folder:
        settings = Settings(pubsub=PubSubSettings(emulator_host=address), lake=LakeSettings(uri=f"file:{folder}/lake"))
        play(settings, options.ticks, Path(folder))


def play(settings: Settings, ticks: int, folder: Path) -> None:
    """The ticks, beside a source that publishes all the while."""
    counted, kept, tick = Counted(), Kept(), settings.watermark.tick
    client = kept.get("subscriber client", lambda: counted_client(str(settings.pubsub.emulator_host), counted))
    for path in (settings.pubsub.base_path, settings.pubsub.tracking_path):  # pulled as on the service
        on_the_service = settings.pubsub.model_copy(update={"emulator_host": None})
        kept.get(path, partial(PubSubSubscription, client, path, CLOCK, on_the_service, tick))
    pubsub = Subscriptions(settings, kept, CLOCK)
    publisher = publisher_client(settings.pubsub.emulator_host)
    provision(client, publisher, settings.pubsub, settings.contract, CLOCK)
    start = CLOCK.now()
    ends = start + tick * (ticks + WARM_UP + 1)
    given = (REGULAR, publisher, settings.pubsub.topic_path, CLOCK, start, ends)
    source = Thread(target=publish, args=given, kwargs={"truth_path": folder / "truth.parquet"}, daemon=True)
    source.start()
    lake = Lake(settings.lake, settings.message.kinds, CLOCK)
    both, log = Ticks(settings, pubsub, lake), lake.tracking_log()
    for number in range(ticks + WARM_UP):
        if number == WARM_UP:
            before, calls_before = log.catch_up().account.known, Counter(counted.calls)
        CLOCK.sleep(max(0.0, (start + tick * (number + 1) - CLOCK.now()).total_seconds()))
        both.play()
    calls, used = counted.calls - calls_before, log.catch_up().account.known
    print(f"{ticks} ticks, {settings.watermark.tick.total_seconds():g} s apart")
    for name, count in sorted(calls.items()):
        print(f"{name:20} {count / ticks:8.2f} a tick {count / ticks * A_DAY / tick.total_seconds():12,.0f} a day")
    messages, size = used.landed - before.landed, used.landed_bytes - before.landed_bytes
    kept_bytes = used.snapshot_bytes - before.snapshot_bytes
    print(f"{messages / ticks:,.0f} messages a tick of {size / max(messages, 1):,.0f} bytes")
    print(f"snapshots of {kept_bytes / ticks:,.0f} bytes a tick, {kept_bytes / ticks * 8640 / 2**30:.2f} GiB a day")
    source.join()


def counted_client(address: str, counted: Counted) -> SubscriberClient:
    """A client of the server at `address` whose calls are counted."""
    channel = grpc.intercept_channel(grpc.insecure_channel(address), counted)
    return SubscriberClient(transport=SubscriberClient.get_transport_class("grpc")(channel=channel))


class Ticks:
    """One landing tick, and a second later one of tracking, as the sensors do."""

    def __init__(self, settings: Settings, pubsub: Subscriptions, lake: Lake) -> None:
        self.settings, self.pubsub = settings, pubsub
        self.tables = new_files(lake, CLOCK)
        self.landing_log, self.tracking_log = lake.tracking_log(), lake.tracking_log()
        self.reader = HeartbeatReader(settings.contract)

    def play(self) -> None:
        """Both."""
        pubsub = self.pubsub
        settling = Settling(self.landing_log, CLOCK, {Side.BASE: pubsub.base()}, self.tables)
        land(settling, self.reader, AMPLE, pubsub.base_backlog("landing"), pubsub.spending())
        CLOCK.sleep(1)
        pubsub.sweep()
        track(
            Settling(self.tracking_log, CLOCK, {Side.TRACKING: pubsub.tracking()}),
            {Side.TRACKING: pubsub.tracking_backlog(), Side.BASE: pubsub.base_backlog()},
            self.reader,
            self.settings.policy,
            AMPLE,
            until_gone=pubsub.tracking_backlog("pulling"),
            spending=pubsub.spending(),
        )


if __name__ == "__main__":
    main()
