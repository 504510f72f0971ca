"""A process that is asked to end does so, whatever its handlers and threads do."""

import signal
import subprocess
import sys

import pytest

SECONDS = 60
STUBBORN = """
import signal, time
from threading import Thread
from tidemark.resources import daemon

daemon.ENDS_WITHIN_SECONDS = 1.0
daemon.end_soon_after_a_signal()
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda *_: None)
Thread(target=time.sleep, args=(2 * {seconds},)).start()
print("ready", flush=True)
time.sleep(2 * {seconds})
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_process_whose_handlers_and_threads_go_on(number: signal.Signals) -> None:
    program = [sys.executable, "-c", STUBBORN.format(seconds=SECONDS)]
    ignoring = ["sh", "-c", 'trap "" INT; exec "$@"', "sh"]  # as a shell starts a command in the background
    with subprocess.Popen([*ignoring, *program], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            process.send_signal(number)
            assert process.wait(SECONDS) == 0
        finally:
            process.kill()
