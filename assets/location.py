"""The code location that the code server serves: the definitions for the settings in force."""

import gc

gc.disable()  # modules and definitions are not garbage, and collecting takes a quarter of the start

import dagster as dg  # noqa: E402

from tidemark.assets.definitions import build_definitions  # noqa: E402
from tidemark.pipeline.lake.store import gcs  # noqa: E402, F401 (so that the forked runs have it imported)
from tidemark.pipeline.settings import load_settings  # noqa: E402
from tidemark.resources.json_logs import log_as  # noqa: E402

settings = load_settings()
log_as(settings.logs)

# Runs started in the UI use a single process, too. This location has no other definitions.
defs = dg.Definitions.merge(build_definitions(settings), dg.Definitions(executor=dg.in_process_executor))

gc.freeze()  # Python collects old garbage once old objects have grown by a quarter; definitions must not count as old
gc.enable()
