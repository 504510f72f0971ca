"""One real Spark session for all of these tests, with the settings that production sessions have."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.pubsub_v1 import PublisherClient, SubscriberClient
from pyspark.sql import SparkSession

from tests.quick import classic
from tests.spark.pubsub_world import PubSubWorld
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import PubSubSettings
from tidemark.pipeline.spark.java import set_java_home
from tidemark.pipeline.spark.session import session_config


@pytest.fixture
def world(
    subscriber: SubscriberClient, publisher: PublisherClient, fresh_pubsub: PubSubSettings, tmp_path: Path
) -> PubSubWorld:
    return PubSubWorld(subscriber, publisher, fresh_pubsub, tmp_path)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    set_java_home()
    os.environ["PYSPARK_PYTHON"] = sys.executable  # else the workers are the path's python3
    session = SparkSession.builder.config(map={**session_config(Settings(spark=classic("local[2,6]")))}).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
