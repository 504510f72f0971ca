"""Opens Dagster's instance once, in the process from which the code server forks runs. This imports the modules and the
revisions of the instance's storage before any run needs them, and saves each run a quarter of a second."""

from contextlib import suppress

import dagster as dg

from tidemark.resources.memory import load_revisions_once

load_revisions_once()
with suppress(Exception), dg.DagsterInstance.get():  # a run opens the instance again, and says why it cannot
    pass
