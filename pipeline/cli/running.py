"""What runs: `tidemark init`, `provision`, `connector`, `up`, and `recompute`, which asks Dagster for windows."""

import signal
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Annotated

import typer
from rich.progress import DownloadColumn

from tidemark.pipeline.cli.doctor import at_once
from tidemark.pipeline.cli.options import AsJson, config_file, duration_option, positive, window_named
from tidemark.pipeline.cli.output import console, print_json, progress_bar, safe, safe_lines
from tidemark.pipeline.cli.trying import MOST_SAMPLED, SAMPLE_WAIT, try_topic
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.demo.shapes.names import ShapeName
from tidemark.pipeline.doctor.finding import Level
from tidemark.pipeline.durations import format_duration
from tidemark.pipeline.errors import ServiceFailed
from tidemark.pipeline.printable import printable
from tidemark.pipeline.services.dagster_api import DagsterApi
from tidemark.pipeline.services.dagster_names import COMPUTE_WINDOWS, RANGE_END, RANGE_START, compute_job
from tidemark.pipeline.services.own_files import (
    INSTANCE,
    SETTINGS,
    WORKSPACE,
    brought,
    put_down,
    with_message,
    with_other_ports,
)
from tidemark.pipeline.services.processes import Supervisor
from tidemark.pipeline.services.stack import provision_here, refuse_taken_ports, start_stack
from tidemark.pipeline.settings import Settings, load_settings
from tidemark.pipeline.spark.connector import CONNECTOR, connector_file, fetch
from tidemark.pipeline.spark.table_definition import own_tables, read_table
from tidemark.pipeline.windows import Window

LOOK_EVERY_SECONDS = 1.0
MARKS = {
    "created": "[green]created[/]  ",
    "found": "[dim]found[/]    ",
    "differences": "[yellow]differs[/]  ",
    "warnings": "[bold yellow]warning[/]  ",
}


def init(
    folder: Annotated[Path, typer.Argument(help="Where to write; it is made.")] = Path(),
    dagster: Annotated[
        bool, typer.Option("--dagster", help="Write workspace.yaml and dagster.yaml too, to change them.")
    ] = False,
    port_offset: Annotated[
        int,
        typer.Option(min=0, max=50_000, help="Add this to every port, for a second pipeline on this machine."),
    ] = 0,
    shape: Annotated[
        ShapeName, typer.Option(help="Have the settings read messages of this shape of `tidemark publish`.")
    ] = ShapeName.JSON,
) -> None:
    """Write a settings file to begin with: every setting, with what it means, for an emulator on this machine."""
    files = {name: brought(name) for name in (SETTINGS, *((WORKSPACE, INSTANCE) if dagster else ()))}
    files[SETTINGS] = with_other_ports(files[SETTINGS], port_offset)
    if shape is not ShapeName.JSON:
        from tidemark.pipeline.demo.shapes.all_shapes import SHAPES  # loads what encodes Avro

        files[SETTINGS] = with_message(files[SETTINGS], SHAPES[shape].settings)
        files |= SHAPES[shape].files
    for name, content in files.items():
        print(f"wrote {put_down(name, folder, content)}")
    inside = "" if folder == Path() else f"cd {folder}; "
    publish = "tidemark publish" if shape is ShapeName.JSON else f"tidemark publish --shape {shape}"
    print(f"next: {inside}tidemark up, and in another terminal {publish}, then tidemark status")


def provision(
    sample: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MOST_SAMPLED,
            help="Create nothing that stays. Show what the settings make of this many messages of the topic, as "
            "`tidemark try` does; only what is published from now on is seen.",
        ),
    ] = None,
    sample_wait: Annotated[
        timedelta | None,
        duration_option(
            f"The longest that --sample waits, {format_duration(SAMPLE_WAIT)} if not given.", parser=positive
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create the topic, the tracking subscription, then the base subscription; report what differs."""
    if sample is not None:
        try_topic(load_settings(), SystemClock(), sample, sample_wait or SAMPLE_WAIT, as_json=as_json)
        return
    if sample_wait is not None:
        raise typer.BadParameter("--sample-wait says how long --sample waits; give a number of messages with that")
    report = asdict(provision_here(load_settings(), SystemClock()))
    if as_json:
        print_json({name: report[name] for name in MARKS})
        return
    terminal = console()
    for name, mark in MARKS.items():
        for line in report[name]:
            terminal.print(mark + safe(line))


def connector(
    source: Annotated[
        str | None,
        typer.Option("--from", help="A file, or a mirror's address, instead of Maven Central. The checksum decides."),
    ] = None,
) -> None:
    """Fetch the JAR by which Spark uses gs:// into the cache, unless it is there. `tidemark up` does the same."""
    with progress_bar(DownloadColumn()) as bar:
        task = bar.add_task("fetching", total=CONNECTOR.size)
        fetched = fetch(SystemClock(), source=source, progress=lambda done, _of: bar.update(task, completed=done))
    print(f"{'fetched' if fetched else 'found'} {printable(str(connector_file()))}")


def up() -> None:
    """Start what is needed (emulator, Spark Connect, Dagster), keep it running, and stop it all on Ctrl-C."""
    settings, clock, terminal = load_settings(), SystemClock(), console()

    def say(text: str) -> None:
        terminal.print(f"[dim]tidemark[/] {safe_lines(text)}")

    stopped = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    say(f"with the settings of {config_file()}, the lake in {settings.lake.uri}")
    own_tables(settings)  # raises what the code server would end by
    supervisor = Supervisor(Path(settings.dagster.storage).parent, clock, say)
    supervisor.take_over()
    try:
        refuse_taken_ports(settings)
        found = at_once(settings, clock)
        for finding in found:
            say(f"{finding.level}: {finding.said}")
        if any(finding.level is Level.BROKEN for finding in found):
            raise ServiceFailed("nothing was started, since something above would break; `tidemark doctor` looks again")
        start_stack(supervisor, settings, config_file())
        say(f"running: http://127.0.0.1:{settings.dagster.web_port}, logs in {supervisor.state_folder}/logs")
        say("Ctrl-C stops it all")
        while not stopped.wait(LOOK_EVERY_SECONDS):
            supervisor.restart_what_died()
    finally:
        say("stopping")
        supervisor.stop()
        say("stopped")


def recompute(
    first: Annotated[
        str, typer.Option("--from", help="The first window: its key (2026-11-21T05-20Z), or any time within it.")
    ],
    last: Annotated[str, typer.Option("--to", help="The last window, in the same way; may be the first.")],
    table: Annotated[str | None, typer.Option(help="A table of your own. Without it: heartbeat_diffs.")] = None,
) -> None:
    """Compute a range of windows again, in one run of the Dagster at `dagster.url`; by default `tidemark up`'s.

    The same input gives the same rows. If a window is above the watermark, the run fails and writes nothing.
    """
    settings = load_settings()
    begin, end = window_named(settings, first), window_named(settings, last)
    if end < begin:
        raise typer.BadParameter(f"--to {last} is before --from {first}")
    job = COMPUTE_WINDOWS
    if table is not None:
        if table not in settings.tables:
            raise typer.BadParameter(f"[tables] names no {table}; it names {', '.join(settings.tables) or 'none'}")
        windowing, job = read_table(settings, table).windowing(settings.windows), compute_job(table)
        begin, end = windowing.containing(begin.start), windowing.containing(end.start)
    where = launch(settings, begin, end, job)
    print(f"requested {begin.key} to {end.key}; {where}")


def launch(settings: Settings, first: Window, last: Window, job: str = COMPUTE_WINDOWS) -> str:
    """Have Dagster compute a range of windows in one run, and say where the run can be watched. Raises ServiceFailed if
    Dagster does not answer, or does not take the run."""
    asked = {RANGE_START: first.key, RANGE_END: last.key}
    run = DagsterApi(settings.dagster).launch(job, settings.lake.uri, asked)
    return f"the run is at {run}"
