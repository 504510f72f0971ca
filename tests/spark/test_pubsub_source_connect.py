"""The source `pubsub` over Spark Connect, on a standalone cluster of two workers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from google.pubsub_v1 import PublisherClient, SubscriberClient

from tests.spark.pubsub_world import PubSubWorld
from tests.spark.standalone import SECRET
from tidemark.local.services.stack import TOKEN
from tidemark.pipeline.settings_sections import PubSubSettings

pytestmark = pytest.mark.slow


@pytest.mark.timeout(900)  # six JVMs: on a busy machine they take their time
def test_both_forms_bring_everything_through_executors_that_are_sent_the_options_alone(
    remote: str,
    subscriber: SubscriberClient,
    publisher: PublisherClient,
    fresh_pubsub: PubSubSettings,
    tmp_path: Path,
) -> None:
    world = PubSubWorld(subscriber, publisher, fresh_pubsub, tmp_path)
    world.publish(2000)
    answer = subprocess.run(
        [
            *(sys.executable, "-m", "tests.spark.pubsub_client", remote, str(tmp_path)),
            json.dumps(world.options(maxMessages="500", batchMessages="250", readers="2")),
        ],
        env={**os.environ, TOKEN: SECRET},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    said = json.loads(answer.stdout)
    first, again = said["batches"]
    assert 0 < len(first) <= 1000
    assert again == first
    assert sorted(first + said["streamed"]) == sorted(world.published)
    assert world.is_quiet()
    executors = [folder for worker in (0, 1) for folder in (tmp_path / f"worker-{worker}").glob("app-*/*")]
    assert len({folder.parents[1] for folder in executors}) == 2, "both workers ran an executor"
