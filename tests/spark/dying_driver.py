"""Run as a program with the example's arguments: the example, killed with all of its processes inside of `foreachBatch`
once its rows were seen and before they are kept. It writes down which messages it saw."""

import json
import os
import signal
from pathlib import Path

from pyspark.sql import DataFrame

from examples.pubsub_stream import arguments, options_of, session, stream

SEEN = "seen.json"


def see_and_die(messages: DataFrame, _: int, out: Path) -> None:
    seen = sorted(row["message_id"] for row in messages.select("message_id").collect())
    (out / SEEN).write_text(json.dumps(seen))
    os.killpg(os.getpgid(0), signal.SIGKILL)


if __name__ == "__main__":
    chosen = arguments()
    assert os.getpgid(0) == os.getpid(), "it kills its process group: give it one of its own"
    query = (
        stream(session(), options_of(chosen))
        .writeStream.foreachBatch(lambda messages, number: see_and_die(messages, number, chosen.out))
        .option("checkpointLocation", str(chosen.out / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
