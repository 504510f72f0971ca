"""What runs: `tidemark init`, `provision`, `connector`, `pack`, `up`; and `recompute`, which asks Dagster for runs."""

import re
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Annotated

import typer
from pydantic import ValidationError
from rich.progress import DownloadColumn

from tidemark.local.demo.shapes.shape import ShapeName
from tidemark.local.services import cohort_files, own_files
from tidemark.local.services.ownership import Ownership
from tidemark.local.services.processes import StopAsked, Supervisor, page_sentence
from tidemark.local.services.stack import start_stack
from tidemark.local.services.watch import Watch
from tidemark.pipeline.cli.options import (
    AsJson,
    config_file,
    duration_option,
    landing_only,
    moment,
    option,
    positive,
    window_named,
)
from tidemark.pipeline.cli.output import console, print_json, progress_bar, safe, safe_lines
from tidemark.pipeline.cli.starting import ask, end, make_ready
from tidemark.pipeline.cli.trying import MOST_SAMPLED, SAMPLE_WAIT, try_topic
from tidemark.pipeline.clock import SystemClock, iso
from tidemark.pipeline.durations import format_duration
from tidemark.pipeline.orchestrator.api import DagsterApi
from tidemark.pipeline.orchestrator.names import COMPUTE_WINDOWS, TO, WINDOWS, compute_job
from tidemark.pipeline.printable import printable
from tidemark.pipeline.pubsub.provision import provision_here
from tidemark.pipeline.settings import Settings, load_settings
from tidemark.pipeline.settings_sections import LISTEN, PubSubSettings
from tidemark.pipeline.spark.connector import CONNECTOR, connector_file, fetch
from tidemark.pipeline.spark.executor_archive import own_manifest
from tidemark.pipeline.spark.executor_archive import pack as write_archive
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
    dagster: Annotated[bool, option("Write workspace.yaml and dagster.yaml too, to change them.", "--dagster")] = False,
    ports: Annotated[
        int | None,
        option(
            "The first of consecutive ports for everything that listens; two pipelines on a machine need different "
            "ones.",
            min=1024,
            max=65_535 - own_files.MOST_PORTS,
            metavar="<first port>",
        ),
    ] = None,
    topic: Annotated[
        str | None,
        option(
            "projects/P/topics/T is a topic on Google's service, and its subscriptions are T-base and T-tracking. A "
            "name alone is a topic on the emulator.",
        ),
    ] = None,
    first: Annotated[
        str | None,
        option(
            "Where event time begins: earlier event times are rejected.",
            metavar="<today|date|time>",
        ),
    ] = None,
    shape: Annotated[
        ShapeName, option("Have the settings read messages of this shape of `tidemark publish`.")
    ] = ShapeName.JSON,
    cohort: Annotated[
        list[str] | None,
        option(
            "Write a project with a pipeline for each cohort, and one for the rest, instead; repeat for more. FILTER "
            'is Pub/Sub\'s, such as eu=attributes.region = "eu".',
            "--cohort",
            "--cohorts",
            metavar="[NAME=]FILTER",
        ),
    ] = None,
) -> None:
    """Write a settings file to begin with: every setting, with what it means, for an emulator on this machine."""
    values = ({} if topic is None else _of_topic(topic)) | ({} if first is None else {"first": _begins(first)})
    is_on_service = values.get("emulator_host") == ""
    if cohort:
        if dagster or shape is not ShapeName.JSON:
            raise typer.BadParameter("--cohort writes a project of its own, without --dagster and --shape")
        _init_cohorts(folder, ports, cohort, values)
        return
    of_dagster = (own_files.WORKSPACE, own_files.INSTANCE) if dagster else ()
    files = {name: own_files.brought(name) for name in (own_files.SETTINGS, *of_dagster)}
    settings = files[own_files.SETTINGS]
    if shape is not ShapeName.JSON:
        from tidemark.local.demo.shapes.all_shapes import SHAPES  # loads what encodes Avro

        settings = own_files.with_message(settings, SHAPES[shape].settings)
        files |= SHAPES[shape].files
    _put_down({**files, own_files.SETTINGS: settings}, folder, ports, values)
    inside = "" if folder == Path() else f"cd {folder}; "
    publish = "tidemark publish" if shape is ShapeName.JSON else f"tidemark publish --shape {shape}"
    following = f"tidemark up, and in another terminal {publish}, then tidemark status"
    print(f"next: {inside}{'tidemark provision, tidemark doctor, then tidemark up' if is_on_service else following}")


def _put_down(files: Mapping[str, str], folder: Path, ports: int | None, values: Mapping[str, str]) -> None:
    """Write files into the folder, the settings among them with these ports and values."""
    values = values if ports is None else {"listen": LISTEN, **values}  # so that two projects have a page each
    written = {
        name: own_files.with_values(content, values) if name.endswith(".toml") else content
        for name, content in files.items()
    }
    for name, content in (written if ports is None else own_files.with_ports(written, ports)).items():
        print(f"wrote {own_files.put_down(name, folder, content)}")


def _of_topic(written: str) -> dict[str, str]:
    """The settings of a topic: on the service by its full name, on the emulator by a name alone."""
    full = re.fullmatch(r"projects/([^/]+)/topics/([^/]+)", written)
    values = {"project": full[1], "emulator_host": ""} if full else {}
    topic = full[2] if full else written
    values |= {
        "topic": topic,
        "base_subscription": f"{topic}-base",
        "tracking_subscription": f"{topic}-tracking",
    }
    try:
        PubSubSettings.model_validate(values)
    except ValidationError as error:
        raise typer.BadParameter(
            f"{written} is not a topic: write projects/PROJECT/topics/TOPIC, or a name of letters, digits and -_.~+% "
            "that begins with a letter"
        ) from error
    return values


def _begins(written: str) -> str:
    """`windows.first`, for `today`, a date, or a time with its zone."""
    text = f"{SystemClock().now():%Y-%m-%d}" if written == "today" else written
    begins = moment(f"{text}T00:00:00Z" if re.fullmatch(r"\d{4}-\d\d-\d\d", text) else text, "neither today nor a time")
    window = Settings().windowing.containing(begins)
    if window.start != begins:
        raise typer.BadParameter(f"{written} is within a window: begin with one, such as {iso(window.start)}")
    return f"{begins:%Y-%m-%dT%H:%M:%SZ}"


def _init_cohorts(folder: Path, ports: int | None, cohorts: list[str], values: Mapping[str, str]) -> None:
    filters = cohort_files.cohorts_of(cohorts)
    pubsub = PubSubSettings.model_validate({key: values[key] for key in ("project", "topic") if key in values})
    files = cohort_files.project_files(filters, pubsub, values.get("first"))
    _put_down(files, folder, ports, {key: value for key, value in values.items() if key == "emulator_host"})
    if "emulator_host" in values:
        print("next: docs/how-to/cohorts.md says what to set up on Google's service")
        return
    print("next, on this machine, with tidemark's own Pub/Sub in a terminal of its own:")
    steps = [f"cd {folder}"] * (folder != Path())
    steps += ["tidemark --config rest.toml pubsub"]
    steps += [f"for name in {' '.join(filters)}; do tidemark --config $name.toml provision; done"]
    steps += ["DAGSTER_HOME=$PWD dagster dev -f definitions.py", "tidemark --config rest.toml status"]
    print(*(f"  {step}" for step in steps), sep="\n")
    print("docs/how-to/cohorts.md says what to change for Google's service")


def provision(
    sample: Annotated[
        int | None,
        option(
            "Create nothing that stays. Show what the settings make of this many messages of the topic, as "
            "`tidemark try` does; only what is published from now on is seen.",
            min=1,
            max=MOST_SAMPLED,
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
        option("A file, or a mirror's address, instead of Maven Central. The checksum decides.", "--from"),
    ] = None,
) -> None:
    """Fetch the JAR by which Spark uses gs:// into the cache, unless it is there. `tidemark up` does the same."""
    with progress_bar(DownloadColumn()) as bar:
        task = bar.add_task("fetching", total=CONNECTOR.size)
        fetched = fetch(SystemClock(), source=source, progress=lambda done, _of: bar.update(task, completed=done))
    print(f"{'fetched' if fetched else 'found'} {printable(str(connector_file()))}")


def pack(
    file: Annotated[Path, typer.Argument(help="The archive to write, such as executors.tar.gz; it is replaced.")],
) -> None:
    """Pack tidemark and what it needs for Spark's executors, whose Python then needs neither.

    The archive holds packages, as they are installed here, and no Python. It assumes that executors have a Python of
    the same minor version, PySpark, the same kind of machine and system, and `sh`. It holds no settings and no
    credentials. Pack it again after each upgrade.

    Name it in the settings as spark.executor_environment: a path here, or an address that Spark's machines read,
    such as gs://…
    """
    packed, manifest = write_archive(file), own_manifest()
    print(
        f"packed {len(packed)} distributions, tidemark {manifest.tidemark} among them, for Python {manifest.python} on "
        f"{manifest.machine}: {printable(str(file))}, {file.stat().st_size >> 20} MB"
    )
    print(f'next: [spark] executor_environment = "{printable(str(file))}"')


def up(
    status: Annotated[
        bool, option("Say whether it runs, with its services, and who owns the lake; exit code 3 if not.", "--status")
    ] = False,
    stop: Annotated[
        bool, option("Have the one with these settings stop, wait for it, and end what a killed one left.", "--stop")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Start what is needed (emulator, Spark Connect, Dagster), keep it running, and stop it all on Ctrl-C.

    Nothing is started if something would break, if it runs already, or if another pipeline writes the lake: exit
    code 1.
    """
    settings, clock, terminal = load_settings(), SystemClock(), console()

    def say(text: str) -> None:
        with suppress(OSError):  # a log on a full disk ends nothing
            terminal.print(f"[dim]tidemark[/] {safe_lines(text)}")

    if status or stop or as_json:
        ask(settings, clock, say, status=status, stop=stop, as_json=as_json)
        return
    stopped = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    say(f"with the settings of {config_file()}, the lake in {settings.lake.uri}")
    own_tables(settings)  # raises what the code server would end by
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


@landing_only
def recompute(
    first: Annotated[str, option("The first window: its key (2026-11-21T05-20Z), or any time within it.", "--from")],
    last: Annotated[str, option("The last window, in the same way; may be the first.", "--to")],
    table: Annotated[str | None, option("A table of your own. Without it: heartbeat_diffs.")] = None,
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
    asked = {WINDOWS: f"{first.key}{TO}{last.key}"}
    run = DagsterApi(settings.dagster).launch(job, settings.lake.uri, asked)
    return f"the run is at {run}"
