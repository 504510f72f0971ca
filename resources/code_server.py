"""Dagster's code server, changed so that each run is forked from a process that has already imported the definitions.
Dagster's own server starts a new Python per run, whose imports take longer than computing a window.

`tidemark up` starts the changed server by `python -m tidemark.resources.code_server`, with the arguments of `dagster
api grpc`.
"""

import multiprocessing
import sys
from multiprocessing import forkserver
from typing import Any

from tidemark.resources import private
from tidemark.resources.daemon import end_soon_after, end_soon_after_a_signal
from tidemark.resources.json_logs import ask_for_json
from tidemark.resources.memory import load_revisions_once, return_free_memory

SERVED, STARTS, ENDS = private.served_module, private.starts_runs, private.server_ends
"""Names of private attributes of Dagster's server: the module that it serves, the `multiprocessing` context
with which it starts runs, and the event that ends it. They are looked up before the server's class is replaced."""

FOR_RUNS = ("tidemark.resources.code_server", "tidemark.resources.run_template")
"""Modules that the template process imports besides the definitions, because each run imports them."""


class ForkingApiServer(private.DagsterApiServer):  # type: ignore[misc]
    """Dagster's code server, which forks each run from a separate template process. The template has no connections and
    no threads. It ends with the code server."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        served = getattr(self, SERVED)
        preloaded = [served.module_name] if served and served.module_name else []
        multiprocessing.set_forkserver_preload([*preloaded, *FOR_RUNS])
        forkserver.ensure_running()  # now, so that the first run finds it ready
        setattr(self, STARTS, multiprocessing.get_context("forkserver"))
        # Otherwise Dagster would wait for the threads of ticks, and Python for the threads of clients.
        end_soon_after(getattr(self, ENDS).wait)


def main() -> None:
    """Serve until a signal or a request ends the server. After a signal, runs in progress end within seconds."""
    end_soon_after_a_signal()
    ask_for_json()
    load_revisions_once()
    return_free_memory()
    private.replace("DagsterApiServer", ForkingApiServer)
    sys.argv[1:1] = ["api", "grpc"]
    private.command("dagster")()


if __name__ == "__main__":
    main()
