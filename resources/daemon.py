"""Dagster's daemon, changed to end within ten seconds of SIGTERM. Dagster's own daemon waits half a minute for a busy
thread.

The changed daemon is started by `python -m tidemark.resources.daemon`, with the arguments of `dagster-daemon`. The code
server and the web server use the functions of this module too.
"""

import gc
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from threading import Thread

import psutil

from tidemark.resources.json_logs import ask_for_json
from tidemark.resources.memory import load_revisions_once
from tidemark.resources.private import command

ENDS_WITHIN_SECONDS = 8.0
"""Maximum time for which work continues after a signal, because supervisors kill a process after ten seconds.
Interrupted work loses nothing: messages that were not acknowledged are redelivered."""


def end_soon_after(asked: Callable[[], object]) -> None:
    """Start a thread that ends this process, and asks its children to end, ENDS_WITHIN_SECONDS after `asked` returns.
    `asked` must block until this process is asked to end."""

    def end() -> None:
        asked()
        time.sleep(ENDS_WITHIN_SECONDS)
        for child in psutil.Process().children(recursive=True):  # such as runs, which nothing would monitor any longer
            with suppress(psutil.NoSuchProcess):
                child.terminate()
        os._exit(0)

    Thread(target=end, name="end", daemon=True).start()


def end_soon_after_a_signal() -> None:
    """End this process at most ENDS_WITHIN_SECONDS after SIGTERM or SIGINT. Call this in the main thread, before
    Dagster sets its signal handlers.

    Also restore the default handler of SIGINT, because a shell starts background commands with SIGINT ignored.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def signalled() -> None:
        while os.read(reader, 1)[0] not in (signal.SIGTERM, signal.SIGINT):
            pass

    end_soon_after(signalled)


if __name__ == "__main__":
    end_soon_after_a_signal()
    ask_for_json()
    load_revisions_once()
    run = command("dagster-daemon")
    gc.freeze()  # Python collects old garbage once old objects have grown by a quarter; modules must not count as old
    run()
