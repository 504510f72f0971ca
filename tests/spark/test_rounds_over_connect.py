"""Rounds over Spark Connect, on a standalone cluster of two worker processes."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from google.pubsub_v1 import PublisherClient, SubscriberClient

from tests.spark.pubsub_world import PubSubWorld
from tests.spark.rounds import landed, settings_of
from tests.spark.standalone import SECRET
from tidemark.local.services.stack import TOKEN
from tidemark.pipeline.settings_sections import PubSubSettings

pytestmark = pytest.mark.slow

MESSAGES = 20_000


def test_four_readers_on_two_workers_land_everything_and_the_client_tells_how_far_it_is(
    remote: str, subscriber: SubscriberClient, publisher: PublisherClient, fresh_pubsub: PubSubSettings, tmp_path: Path
) -> None:
    world = PubSubWorld(subscriber, publisher, fresh_pubsub, tmp_path)
    world.publish(MESSAGES, broken=5)
    assert not world.is_quiet()
    answer = subprocess.run(
        [*(sys.executable, "-m", "tests.spark.rounds_client", remote, str(world.lake)), fresh_pubsub.model_dump_json()],
        env={**os.environ, TOKEN: SECRET},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    said = json.loads(answer.stdout)
    assert said["ended"] == "caught up"
    assert (said["landed"], said["quarantined"], said["tracked"]) == (MESSAGES, 5, MESSAGES + 5)
    assert said["acknowledged"] == MESSAGES + 5
    assert all("the 3 readers of base and 1 of tracking took" in sentence for sentence in said["sentences"])
    assert world.is_quiet(is_tracked=True)
    assert Counter(landed(settings_of(fresh_pubsub, str(world.lake)))) == Counter(world.published)
    executors = [folder for worker in (0, 1) for folder in (tmp_path / f"worker-{worker}").glob("app-*/*")]
    assert len({folder.parents[1] for folder in executors}) == 2, "both workers ran an executor"
