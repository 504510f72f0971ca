"""The code location that the code server serves: the definitions of the settings that are here."""

import dagster as dg

from tidemark.assets.definitions import build_definitions
from tidemark.pipeline.settings import load_settings

# What the UI materializes runs in the run's own process as well. Nobody else's definitions are here.
defs = dg.Definitions.merge(build_definitions(load_settings()), dg.Definitions(executor=dg.in_process_executor))
