"""`tidemark up`: run the pipeline as processes on this machine."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from threading import Event
from typing import Annotated

import typer
from rich.console import Console

from tidemark.local.services.ownership import Ownership
from tidemark.local.services.processes import StopAsked, Supervisor, page_sentence
from tidemark.local.services.stack import refuse_foreign_servers, refuse_taken_ports, start_stack
from tidemark.local.services.up_state import ServiceState, stop_up, up_state
from tidemark.local.services.watch import Watch
from tidemark.pipeline.cli.app import when_stopped
from tidemark.pipeline.cli.options import AsJson, option
from tidemark.pipeline.cli.output import console, printed, safe, safe_lines
from tidemark.pipeline.clock import Clock, SystemClock, iso
from tidemark.pipeline.compute.table_definition import own_tables
from tidemark.pipeline.doctor.checks import at_once
from tidemark.pipeline.doctor.finding import Level
from tidemark.pipeline.errors import LakeError, LakeOwned, ServiceFailed
from tidemark.pipeline.lake.owner import Owner
from tidemark.pipeline.machine import ProcessName
from tidemark.pipeline.settings import Settings, config_file, load_settings

LOOK_EVERY_SECONDS = 1.0


def up(
    status: Annotated[bool, option("Show what runs and who owns the lake; exit code 3: stopped.", "--status")] = False,
    stop: Annotated[bool, option("Stop the pipeline, and leftovers of a killed one.", "--stop")] = False,
    as_json: AsJson = False,
) -> None:
    """Run the pipeline on this machine until Ctrl-C.

    Starts the processes that the pipeline needs (emulator, Spark Connect, Dagster), restarts any that end, and stops
    all of them on Ctrl-C.

    Starts nothing and exits with code 1 if something would break, if the pipeline is already running, or if another
    pipeline writes to the lake.
    """
    settings, clock, terminal = load_settings(), SystemClock(), console()

    def say(text: str) -> None:
        # A full disk, or a closed pipe (Rich then raises SystemExit), must not end the pipeline or interrupt its stop.
        with suppress(OSError, SystemExit):
            terminal.print(f"[dim]tidemark[/] {safe_lines(text)}")

    if status or stop or as_json:
        ask(settings, clock, say, status=status, stop=stop, as_json=as_json)
        return
    stopped = Event()
    when_stopped(lambda *_: stopped.set())
    say(f"settings: {config_file()}, lake: {settings.lake.uri}")
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
        say(f"running: {settings.dagster.own_ui}, logs in {supervisor.state_folder}/logs")
        say("Ctrl-C stops it all")
        watch = Watch(settings, clock, say)
        while not stopped.wait(LOOK_EVERY_SECONDS):
            supervisor.restart_what_died()
            supervisor.shorten_logs()
            watch.look()
    except StopAsked:
        say("asked to stop while starting")
    finally:
        if has_started := bool(supervisor.running):
            say("stopping")
        supervisor.stop()
        end(ownership, say)
        if has_started:
            say("stopped")


NOT_RUNNING = 3
"""Exit code of `up --status` if the pipeline is not running. systemd uses the same code."""

Say = Callable[[str], None]


def make_ready(settings: Settings, clock: Clock, ownership: Ownership, say: Say) -> None:
    """Check that the pipeline can run, then record that it owns the lake. Raises TidemarkError if a check fails."""
    try:
        ownership.wait_until_known()
    except LakeOwned:
        raise
    except LakeError:
        pass  # the checks of the lake report it
    refuse_taken_ports(settings)
    refuse_foreign_servers(settings)
    found = at_once(settings, clock)
    for finding in sorted(found, key=lambda finding: finding.level is not Level.BROKEN):
        say(f"{finding.level}: {finding.said}")
    if any(finding.level is Level.BROKEN for finding in found):
        raise ServiceFailed("nothing was started: fix the problems above; `tidemark doctor` checks again")
    ownership.state()


def end(ownership: Ownership, say: Say) -> None:
    """Record that this pipeline no longer owns the lake. If the lake cannot be written, print a message."""
    try:
        ownership.end()
    except LakeError as error:
        say(f"the lake could not record that this pipeline has ended: {error}")


def ask(settings: Settings, clock: Clock, say: Say, *, status: bool, stop: bool, as_json: bool) -> None:
    """Run `--status` or `--stop`. Raises Exit if `--status` finds no `up`, and ServiceFailed if `--stop` fails."""
    if status == stop or (stop and as_json):
        raise typer.BadParameter("give one of --status and --stop; --json only works with --status")
    ownership = Ownership(settings, clock, up=config_file())
    if stop:
        stop_up(settings, clock, say)
        end(ownership, say)
        return
    (owner, services), there, lake = up_state(settings), None, "the owner is unknown"
    with suppress(LakeError):
        there, _, is_damaged = ownership.look()
        nobody = "owner.json is damaged" if is_damaged else "no pipeline has written this lake yet"
        lake = nobody if there is None else ownership.sentence(there)
    facts = {
        "running": owner is not None,
        **_named(owner),
        "services": [
            {"name": one.name, **_named(one.process), "runs": one.runs, "is_ready": one.is_ready} for one in services
        ],
        "ui": settings.dagster.own_ui,
        "logs": str(settings.dagster.state_folder / "logs"),
        "lake": {"uri": settings.lake.uri, "owner": None if there is None else _facts(there), "said": lake},
    }
    _print(settings, owner, services, lake, printed(facts, as_json=as_json))
    if owner is None:
        raise typer.Exit(NOT_RUNNING)


def _print(
    settings: Settings, owner: ProcessName | None, services: Sequence[ServiceState], lake: str, terminal: Console
) -> None:
    folder = safe(settings.dagster.state_folder)
    if owner is not None:
        if owner.is_paused():
            then = f"`kill -CONT {owner.process}` resumes it. Until then it restarts no service"
            terminal.print(f"[yellow]paused[/] as {safe(owner)}: {then}", soft_wrap=True)
        else:
            terminal.print(f"[green]running[/] as {safe(owner)}")
    else:
        left = sum(one.runs for one in services)
        then = f"; {left} of its services still run: `tidemark up --stop` stops them" if left else ""
        terminal.print(f"[yellow]not running[/] in {folder}{then}", soft_wrap=True)
    for one in services:
        serves = "[green]ready[/]" if one.is_ready else "[yellow]not ready[/]" if one.runs else "[red]ended[/]"
        terminal.print(
            f"  {safe(one.name):22} process {one.process.process:<8} since {iso(one.process.since)}  {serves}"
        )
    if owner is not None:
        terminal.print(f"UI {settings.dagster.own_ui}, logs in {folder}/logs", soft_wrap=True)
    terminal.print(f"lake {safe(settings.lake.uri)}: {safe(lake)}", soft_wrap=True)


def _named(process: ProcessName | None) -> dict[str, object]:
    return {"process": process and process.process, "since": process and process.since}


def _facts(owner: Owner) -> dict[str, object]:
    return {**asdict(owner.pipeline), "host": owner.process.host, **_named(owner.process), "ended": owner.ended}
