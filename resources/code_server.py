"""Dagster's code server, changed to fork each run from a process that has already imported the definitions. `tidemark
up` starts it: `python -m tidemark.resources.code_server` with the arguments of `dagster api grpc`.

Dagster's own server starts a new Python for each run, whose imports take longer than a window's micro-batch.
"""

import multiprocessing
import sys
from functools import cache
from multiprocessing import forkserver
from typing import Any

from alembic import util

from tidemark.resources import private
from tidemark.resources.daemon import end_soon_after, end_soon_after_a_signal
from tidemark.resources.json_logs import ask_for_json

SERVED, STARTS, ENDS = private.served_module, private.starts_runs, private.server_ends
"""The names of private attributes of Dagster's server, looked up before the server's class is replaced."""


class ForkingApiServer(private.DagsterApiServer):  # type: ignore[misc]
    """Forks each run from a separate template process. The template never ran anything itself, so it has no
    connections, open tables or threads. It ends with the code server."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        served = getattr(self, SERVED)
        multiprocessing.set_forkserver_preload([served.module_name] if served and served.module_name else ["dagster"])
        forkserver.ensure_running()  # now, so that the first run finds it ready
        setattr(self, STARTS, multiprocessing.get_context("forkserver"))
        # Otherwise Dagster would wait for the threads of ticks, and Python for the threads of clients.
        end_soon_after(getattr(self, ENDS).wait)


def main() -> None:
    """Serve until a signal or a request ends the server. After a signal, Dagster's own server would refuse new runs,
    and wait for all running ones."""
    end_soon_after_a_signal()
    ask_for_json()
    # Dagster opens its storage at each tick. Each time, Alembic would look up its scripts again, and keep what it found
    # until the process ends.
    util.coerce_resource_to_filename = cache(util.coerce_resource_to_filename)
    private.replace("DagsterApiServer", ForkingApiServer)
    sys.argv[1:1] = ["api", "grpc"]
    private.command("dagster")()


if __name__ == "__main__":
    main()
