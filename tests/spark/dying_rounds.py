"""Run as a program: rounds on a classic session, killed in the middle of one as soon as another has landed anything."""

import os
import signal
import sys
import time
from pathlib import Path
from threading import Thread

from pyspark.sql import SparkSession

from tests.quick import classic
from tests.spark.rounds import done_in, read_little, settings_of
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import PubSubSettings
from tidemark.pipeline.spark.java import set_java_home
from tidemark.pipeline.spark.session import session_config


def die_once_landed(lake: Path) -> None:
    while not any((lake / "heartbeats" / "_delta_log").glob("*.json")):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    lake, pubsub = Path(sys.argv[1]), PubSubSettings.model_validate_json(sys.argv[2])
    set_java_home()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    classic = Settings(spark=classic("local[2,4]"))
    session = SparkSession.builder.config(map={**session_config(classic)}).getOrCreate()
    Thread(target=die_once_landed, args=(lake,), daemon=True).start()
    done_in(session, settings_of(pubsub, str(lake), readers=2), 60, read_little)
