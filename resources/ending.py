"""Ends a process of Dagster's soon after it is asked to, whatever its threads do."""

import os
import signal
import time
from collections.abc import Callable
from threading import Thread

ENDS_WITHIN_SECONDS = 8.0
"""The longest that work under way may go on: a supervisor kills after ten. What is cut short is as if the process had
been killed: what was not acknowledged comes again."""


def end_soon_after(asked: Callable[[], object]) -> None:
    """Have this process end ENDS_WITHIN_SECONDS after a call of `asked` has returned, which waits in a thread."""

    def end() -> None:
        asked()
        time.sleep(ENDS_WITHIN_SECONDS)
        os._exit(0)

    Thread(target=end, name="end", daemon=True).start()


def end_soon_after_a_signal() -> None:
    """Have SIGTERM and SIGINT end this process after ENDS_WITHIN_SECONDS, if their handlers have not by then.

    A shell starts background commands with SIGINT ignored, and Dagster treats SIGTERM as it treats SIGINT: so SIGINT is
    taken back. Call it in the main thread, before Dagster sets its handlers.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    come, told = os.pipe()
    os.set_blocking(told, False)
    signal.set_wakeup_fd(told, warn_on_full_buffer=False)

    def signalled() -> None:
        while os.read(come, 1)[0] not in (signal.SIGTERM, signal.SIGINT):
            pass

    end_soon_after(signalled)
