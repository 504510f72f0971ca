"""Run as a program: three clients of the shared session, one after another, of which the second closes it. Prints the
ids of their sessions as JSON."""

import json
import sys

from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import SparkSettings
from tidemark.pipeline.spark.session import session_config, shared_session
from tidemark.pipeline.spark.warm_up import warm_up

if __name__ == "__main__":
    config = session_config(Settings(spark=SparkSettings(remote=sys.argv[1])))
    names = []
    for closes in (False, True, False):
        session = shared_session(config)
        assert session.conf.get("spark.sql.session.timeZone") == "UTC"
        warm_up(session)
        names.append(session.session_id)  # type: ignore[attr-defined]
        session.release_session_on_close = closes  # type: ignore[attr-defined]
        session.stop()
    print(json.dumps(names))
