"""`tidemark up`: run the pipeline as processes on this machine."""

import signal
from contextlib import suppress
from threading import Event
from typing import Annotated

from tidemark.local.services.ownership import Ownership
from tidemark.local.services.processes import StopAsked, Supervisor, page_sentence
from tidemark.local.services.stack import start_stack
from tidemark.local.services.watch import Watch
from tidemark.pipeline.cli.here import config_file
from tidemark.pipeline.cli.options import AsJson, option
from tidemark.pipeline.cli.output import console, safe_lines
from tidemark.pipeline.cli.start.up_state import ask, end, make_ready
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.compute.table_definition import own_tables
from tidemark.pipeline.settings import load_settings

LOOK_EVERY_SECONDS = 1.0


def up(
    status: Annotated[bool, option("Say what runs and who owns the lake; exit code 3 if not.", "--status")] = False,
    stop: Annotated[bool, option("Stop it, and what a killed one left running.", "--stop")] = False,
    as_json: AsJson = False,
) -> None:
    """Run the pipeline on this machine until Ctrl-C.

    It starts what is needed (emulator, Spark Connect, Dagster), restarts what ends, and stops all of it.

    Nothing is started if something would break, if it runs already, or if another pipeline writes the lake: exit
    code 1.
    """
    settings, clock, terminal = load_settings(), SystemClock(), console()

    def say(text: str) -> None:
        with suppress(OSError):  # a full disk must not end the pipeline
            terminal.print(f"[dim]tidemark[/] {safe_lines(text)}")

    if status or stop or as_json:
        ask(settings, clock, say, status=status, stop=stop, as_json=as_json)
        return
    stopped = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    say(f"with the settings of {config_file()}, the lake in {settings.lake.uri}")
    own_tables(settings)  # raises errors that would end the code server
    supervisor = Supervisor(settings.dagster.state_folder, clock, say, is_asked_to_stop=stopped.is_set)
    ownership = Ownership(settings, clock, up=config_file(), say=say)
    supervisor.take_over()
    try:
        make_ready(settings, clock, ownership, say)
        page = page_sentence(settings.metrics) if settings.metrics.has_page else ""
        start_stack(supervisor, settings, config_file())
        if page:
            say(page)
        say(f"running: http://127.0.0.1:{settings.dagster.web_port}, logs in {supervisor.state_folder}/logs")
        say("Ctrl-C stops it all")
        watch = Watch(settings, clock, say)
        while not stopped.wait(LOOK_EVERY_SECONDS):
            supervisor.restart_what_died()
            watch.look()
    except StopAsked:
        say("asked to stop while starting")
    finally:
        say("stopping")
        supervisor.stop()
        end(ownership, say)
        say("stopped")
