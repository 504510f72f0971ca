"""Keeps the memory of Dagster's processes flat: avoids creating garbage, and returns free memory to the system."""

import ctypes
import time
from functools import lru_cache, wraps
from threading import Thread

from alembic.config import Config
from alembic.script import ScriptDirectory

STORAGES = 3
"""Number of Dagster's storages with revisions: of runs, of events, and of schedules."""

RETURNED_EVERY_SECONDS = 60.0
"""Interval between returns of free memory. Each takes about 20 ms."""


def load_revisions_once() -> None:
    """Make Alembic load the revisions of Dagster's storages once per process.

    Dagster compares a storage with its revisions whenever it opens the storage: the code server at each tick, the
    daemon for each run. Loading them takes about 50 ms, and leaves 3,000 objects to the garbage collector.
    """
    load, once = ScriptDirectory.from_config, lru_cache(STORAGES)(ScriptDirectory.from_config)

    @wraps(load)
    def from_config(config: Config) -> ScriptDirectory:
        # Revisions outside Dagster are those of a user's asset, which may change its configuration.
        of_dagster = config.get_main_option("script_location", "").startswith("dagster:")
        return once(config) if of_dagster else load(config)

    ScriptDirectory.from_config = from_config  # type: ignore[method-assign]


def return_free_memory() -> None:
    """Start a thread that regularly returns glibc's free memory to the system. With another C library, do nothing.

    By itself, glibc returns memory only from the end of an arena. So after each backlog or check that needed more
    memory than any before, the process would keep most of it.
    """
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is None:
        return

    def repeat() -> None:
        while True:
            time.sleep(RETURNED_EVERY_SECONDS)
            trim(0)

    Thread(target=repeat, name="free memory", daemon=True).start()
