"""`tidemark up`: everything that runs, started and supervised."""

import signal
from pathlib import Path
from threading import Event

from pipeline.cli.options import config_file
from pipeline.cli.output import console, safe
from pipeline.clock import SystemClock
from pipeline.services.processes import Supervisor
from pipeline.services.stack import start_stack
from pipeline.settings import load_settings

LOOK_EVERY_SECONDS = 1.0


def up() -> None:
    """Start what is needed (emulator, Spark Connect, Dagster), keep it running, and stop it all on Ctrl-C."""
    settings, clock, terminal = load_settings(), SystemClock(), console()

    def say(text: str) -> None:
        terminal.print(f"[dim]tidemark[/] {safe(text)}")

    stopped = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    say(f"with the settings of {config_file()}, the lake in {settings.lake.uri}")
    supervisor = Supervisor(Path(settings.dagster.storage).parent, clock, say)
    supervisor.stop_leftovers()
    try:
        start_stack(supervisor, settings, config_file(), say, clock)
        say(f"running: http://127.0.0.1:{settings.dagster.web_port}, logs in {supervisor.state_folder}/logs")
        say("Ctrl-C stops it all")
        while not stopped.wait(LOOK_EVERY_SECONDS):
            supervisor.restart_what_died()
    finally:
        say("stopping")
        supervisor.stop()
        say("stopped")
