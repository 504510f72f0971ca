"""Dagster's code server, changed so that each run is forked from a process that has already imported the definitions.
Dagster's own server starts a new Python per run, whose imports take longer than computing a window.

`tidemark up` starts the changed server by `python -m tidemark.resources.code_server`, with the arguments of `dagster
api grpc`.
"""

import logging
import multiprocessing
import os
import re
import sys
from multiprocessing import forkserver
from pathlib import Path
from threading import Thread
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

LOST_BY_A_FORK = re.compile(r"polars-\d|tokio")
"""Matches the names of native threads that a forked run lacks and would wait for: those of Polars and delta-rs. Threads
of other libraries are not matched, because they restart after a fork, or no run waits for them."""

logger = logging.getLogger(__name__)


def end_with_lost_threads() -> None:
    """End this process, a fork of the template: with status 1 if the template has threads that a fork lacks, else 0."""
    names = Path(f"/proc/{os.getppid()}/task").glob("*/comm")
    sys.exit(any(LOST_BY_A_FORK.match(name.read_text()) for name in names))


class ForkingApiServer(private.DagsterApiServer):  # type: ignore[misc]
    """Dagster's code server, which forks each run from a separate template process. The template has no connections and
    no Python threads. It ends with the code server.

    While the template is not ready, or if it has threads that its forks would lack, each run is a new process."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        served = getattr(self, SERVED)
        preloaded = [served.module_name] if served and served.module_name else []
        multiprocessing.set_forkserver_preload([*preloaded, *FOR_RUNS])
        forkserver.ensure_running()  # now, so that the first run finds it ready
        Thread(target=self._fork_runs, name="template", daemon=True).start()
        # Otherwise Dagster would wait for the threads of ticks, and Python for the threads of clients.
        end_soon_after(getattr(self, ENDS).wait)

    def _fork_runs(self) -> None:
        """Wait for the template, and fork runs from then on, unless the forks would lack threads."""
        forks = multiprocessing.get_context("forkserver")
        probe = forks.Process(target=end_with_lost_threads)
        probe.start()
        probe.join()  # the template first imports the definitions
        if probe.exitcode:
            logger.warning(
                "importing the definitions uses Polars or Delta tables. A forked run would hang, so each run is a new "
                "process, which starts seconds later. Use both only in functions, such as those of assets"
            )
        else:
            setattr(self, STARTS, forks)


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
