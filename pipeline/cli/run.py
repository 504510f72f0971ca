"""Commands that do something: provision, publish, up, demo."""

import json
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from pipeline.clock import SystemClock, iso
from pipeline.demo.synthetic import publish as publish_synthetic
from pipeline.demo.synthetic_beats import SyntheticSource
from pipeline.durations import parse_duration
from pipeline.pubsub.connection import publisher_client
from pipeline.services.processes import Supervisor
from pipeline.services.stack import provision_here, start_stack
from pipeline.settings import Settings, load_settings

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]

UP_LOOKS_EVERY_SECONDS = 1.0
LOG_WIDTH = 150


def duration(text: str | timedelta) -> timedelta:
    """A duration option: `10s`, `5m`. Defaults come by here as well, as what they are."""
    try:
        return parse_duration(text) if isinstance(text, str) else text
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def config_file() -> Path:
    """The settings file that is in force."""
    return Path(os.environ.get("TIDEMARK_CONFIG", "tidemark.toml")).resolve()


def provision(as_json: AsJson = False) -> None:
    """Create the topic, the tracking subscription, then the base subscription; report what differs."""
    report = provision_here(load_settings(), SystemClock())
    if as_json:
        print(
            json.dumps(
                {
                    "created": report.created,
                    "found": report.found,
                    "differences": report.differences,
                    "warnings": report.warnings,
                }
            )
        )
        return
    console = Console()
    for name in report.created:
        console.print(f"[green]created[/]  {name}", highlight=False)
    for name in report.found:
        console.print(f"[dim]found[/]    {name}", highlight=False)
    for line in report.differences:
        console.print(f"[yellow]differs[/]  {line}", highlight=False)
    for line in report.warnings:
        console.print(f"[bold yellow]mind[/]     {line}", highlight=False)


def publish(
    streams: Annotated[int, typer.Option(min=1, help="How many sources.")] = 10_000,
    period: Annotated[timedelta, typer.Option(parser=duration, help="Between a source's heartbeats.")] = timedelta(
        seconds=30
    ),
    since: Annotated[
        timedelta, typer.Option(parser=duration, help="How long ago the heartbeats begin; the past goes at full speed.")
    ] = timedelta(0),
    lasting: Annotated[
        timedelta, typer.Option("--for", parser=duration, help="For how long from now the heartbeats go on live.")
    ] = timedelta(minutes=5),
    jitter: Annotated[
        timedelta, typer.Option(parser=duration, help="The most by which a message is delayed at random.")
    ] = timedelta(seconds=3),
    lag: Annotated[timedelta, typer.Option(parser=duration, help="By which every message is delayed.")] = timedelta(0),
    duplicates: Annotated[float, typer.Option(min=0, max=1, help="Share published twice, half of them later.")] = 0.01,
    broken: Annotated[float, typer.Option(min=0, max=1, help="Share that is no heartbeat.")] = 0.0001,
    stragglers: Annotated[float, typer.Option(min=0, max=1, help="Share delayed by --straggler-delay.")] = 0.0,
    straggler_delay: Annotated[timedelta, typer.Option(parser=duration)] = timedelta(seconds=60),
    speed_up: Annotated[
        float | None, typer.Option(min=0.001, help="At most so many times real time; else as fast as Pub/Sub takes it.")
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same heartbeats.")] = 20_260_101,
    truth: Annotated[Path, typer.Option(help="Where the record of what was published goes.")] = Path(
        "build/truth.parquet"
    ),
    as_json: AsJson = False,
) -> None:
    """Publish synthetic heartbeats, and leave a record of each as Parquet."""
    settings, clock = load_settings(), SystemClock()
    source = SyntheticSource(
        streams=streams,
        period=period,
        jitter=jitter,
        lag=lag,
        duplicates=duplicates,
        broken=broken,
        stragglers=stragglers,
        straggler_delay=straggler_delay,
        seed=seed,
        event_time_attribute=settings.message.event_time_attribute,
        stream_id_attribute=settings.message.stream_id_attribute,
        heartbeat_id_attribute=settings.message.publisher_id_attribute,
    )
    now = clock.now()
    stopped = Event()
    signal.signal(signal.SIGINT, lambda *_: stopped.set())
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[sent]}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        total = (since + lasting).total_seconds()
        task = progress.add_task("publishing", total=total, sent="")
        published = publish_synthetic(
            source,
            publisher_client(settings.pubsub.emulator_host),
            settings.pubsub.topic_path,
            clock,
            now - since,
            now + lasting,
            truth_path=truth,
            speed_up=speed_up,
            progress=lambda sent, reached: progress.update(
                task, completed=(reached - (now - since)).total_seconds(), sent=f"{sent:,} sent, at {iso(reached)}"
            ),
            stop=stopped.is_set,
        )
    facts: dict[str, Any] = {
        "published": published.messages,
        "heartbeats": published.heartbeats,
        "duplicates": published.duplicates,
        "broken": dict(published.broken),
        "messages_per_second": round(published.messages_per_second, 1),
        "truth": str(truth),
    }
    if as_json:
        print(json.dumps(facts))
    else:
        print(", ".join(f"{name} {value}" for name, value in facts.items()))


def up() -> None:
    """Start what is needed (emulator, Spark Connect, Dagster), keep it running, and stop it all on Ctrl-C."""
    settings, clock, console = load_settings(), SystemClock(), wide_console()

    def say(text: str) -> None:
        console.print(f"[dim]tidemark[/] {text}", highlight=False)

    stopped = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    say(f"with the settings of {config_file()}, the lake in {settings.lake.uri}")
    supervisor = Supervisor(state_folder(settings), clock, say)
    supervisor.stop_leftovers()
    try:
        start_stack(supervisor, settings, config_file(), say, clock)
        say(f"[bold]running[/]: http://127.0.0.1:{settings.dagster.web_port}, logs in {supervisor.state_folder}/logs")
        say("Ctrl-C stops it all")
        while not stopped.wait(UP_LOOKS_EVERY_SECONDS):
            supervisor.restart_what_died()
    finally:
        say("stopping")
        supervisor.stop()
        say("stopped")


def wide_console() -> Console:
    """A console whose lines are not folded where they go to a file."""
    return Console(width=None if sys.stdout.isatty() else LOG_WIDTH)


def state_folder(settings: Settings) -> Path:
    """Where the notes and logs of what runs are: beside Dagster's storage."""
    return Path(settings.dagster.storage).parent


def demo(
    folder: Annotated[Path, typer.Option(help="Where it all goes.")] = Path("build/demo"),
    streams: Annotated[int, typer.Option(min=1)] = 10_000,
    backlog: Annotated[timedelta, typer.Option(parser=duration)] = timedelta(minutes=20),
    live: Annotated[timedelta, typer.Option(parser=duration, help="Live traffic after the drain.")] = timedelta(
        minutes=1
    ),
) -> None:
    """Play the whole mission on real parts, and compare every row with the truth."""
    from pipeline.demo.script import DemoPlan, run_demo  # needs DuckDB, which only the demonstration does

    source = SyntheticSource(streams=streams, jitter=timedelta(seconds=8))
    summary = run_demo(folder.resolve(), DemoPlan(backlog, live, source), wide_console(), SystemClock())
    if not summary.is_right:
        raise typer.Exit(code=1)


def register(app: typer.Typer) -> None:
    """Add these commands."""
    for command in (provision, publish, up, demo):
        app.command()(command)
