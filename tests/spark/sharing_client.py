"""Run as a program: clients of the shared session, one after another. The second closes it, the third closes the next
one, and then there is none to share. The first two work on Spark, and the first computes the windows of a lake. Prints
the ids of their sessions and how many rows the windows have, as JSON. A process holds one kind of session, so that the
tests start this one."""

import json
import sys
from pathlib import Path

from tests.spark.test_micro_batch import WINDOWS, House
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import SparkSettings
from tidemark.pipeline.spark import session as sessions
from tidemark.pipeline.spark.session import session_config, shared_session
from tidemark.pipeline.spark.warm_up import warm_up

if __name__ == "__main__":
    config = session_config(Settings(spark=SparkSettings(remote=sys.argv[1])))
    names, rows, sessions.GENERATIONS = [], 0, 2
    for closes in (False, True, True, None):
        session = shared_session(config)
        assert session.conf.get("spark.sql.session.timeZone") == "UTC"
        if len(names) < 2:
            assert warm_up(session) == 10
        rows = rows or sum(House(Path(sys.argv[2]), session).compute(WINDOWS).rows.values())
        names.append(session.session_id)  # type: ignore[attr-defined]
        if closes is not None:
            session.release_session_on_close = closes  # type: ignore[attr-defined]
        session.stop()
    print(json.dumps([names, rows]))
