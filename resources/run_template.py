"""Opens Dagster's instance once, in the process from which the code server forks runs. This imports the modules and the
revisions of the instance's storage before any run needs them, and saves each run a quarter of a second. Also gives each
run its own random numbers of NumPy. Python itself reseeds only `random` after a fork."""

import os
from contextlib import suppress

import dagster as dg
import numpy as np

from tidemark.resources.memory import load_revisions_once

TEMPLATE = os.getpid()


def reseed() -> None:
    """Seed NumPy's global generator in a run, but not in the run's own forks, whose seed is the run's decision."""
    if os.getppid() == TEMPLATE:
        np.random.seed()


os.register_at_fork(after_in_child=reseed)
load_revisions_once()
with suppress(Exception), dg.DagsterInstance.get():  # a run opens the instance again, and says why it cannot
    pass
