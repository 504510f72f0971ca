"""Opens Dagster's instance once, in the process from which the code server forks runs. This loads the modules and the
revisions of the instance's storage before any run needs them, and saves each run a quarter of a second. A hook reseeds
NumPy's random numbers in each run, because Python itself reseeds only `random` after a fork."""

import os
from contextlib import suppress

import dagster as dg
import numpy as np

from tidemark.resources.memory import load_revisions_once

TEMPLATE = os.getpid()
# Not in the forks of a run, which may have chosen a seed.
os.register_at_fork(after_in_child=lambda: os.getppid() == TEMPLATE and np.random.seed())
load_revisions_once()
with suppress(Exception), dg.DagsterInstance.get():  # a run opens the instance again, and says why it cannot
    pass
