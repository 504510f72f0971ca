"""The calculator of costs, and the calls of a tick that it multiplies."""

import random
from pathlib import Path

from google.pubsub_v1 import SubscriberClient

from benchmarks.calls import CLOCK, Counted, Ticks, counted_client
from tests.dagster.house import publish
from tidemark.local.emulator.model import PubSubModel
from tidemark.local.emulator.server import served
from tidemark.pipeline.kept import Kept
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.pubsub.connection import publisher_client
from tidemark.pipeline.pubsub.provision import provision
from tidemark.pipeline.pubsub.readings import Subscriptions
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import LakeSettings, PubSubSettings
from tools import costs


def test_a_tick_without_a_backlog_calls_pubsub_as_the_page_says_and_the_log_keeps_the_account(tmp_path: Path) -> None:
    with served(PubSubModel(rng=random.Random(1))) as address:
        settings = Settings(pubsub=PubSubSettings(emulator_host=address), lake=LakeSettings(uri=f"file:{tmp_path}"))
        counted, kept, publisher = Counted(), Kept(), publisher_client(address)
        client: SubscriberClient = kept.get("subscriber client", lambda: counted_client(address, counted))
        provision(client, publisher, settings.pubsub, settings.contract, CLOCK)
        pubsub = Subscriptions(settings, kept, CLOCK)
        lake = Lake(settings.lake, settings.message.kinds, CLOCK)
        ticks = Ticks(settings, pubsub, lake)
        publish(publisher, settings, [(f"stream-{number}", CLOCK.now()) for number in range(10)])
        ticks.play()
        counted.calls.clear()
        before = lake.tracking_log().catch_up().account.known
        publish(publisher, settings, [(f"stream-{number}", CLOCK.now()) for number in range(10)])
        ticks.play()
        used = lake.tracking_log().catch_up().account.known
        assert set(counted.calls) <= set(costs.CALLS)
        assert counted.calls["ListSnapshots"] == costs.CALLS["ListSnapshots"][0]
        # One for each subscription's reading, and for each end of pulling at least one and at most three.
        assert 4 <= counted.calls["CreateSnapshot"] <= 8
        assert counted.calls["DeleteSnapshot"] == counted.calls["CreateSnapshot"]
        assert used.snapshots - before.snapshots == counted.calls["CreateSnapshot"]
        assert used.pulls - before.pulls == counted.calls["Pull"]
        assert (used.tracked - before.tracked, used.landed - before.landed, used.ticks - before.ticks) == (10, 10, 1)
        assert used.landed_bytes > before.landed_bytes
