"""Runs the demonstration in a folder that it empties first, and prints a summary that compares the lake with the
published messages."""

import json
import os
import shutil
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from tidemark.local.demo.shapes.shape import Shape
from tidemark.local.demo.summary import Spread, Summary, show
from tidemark.local.demo.synthetic import Source
from tidemark.local.demo.synthetic_beats import SyntheticSource
from tidemark.local.demo.verification import compare
from tidemark.local.services import own_files
from tidemark.local.services.processes import STATE_FILE, Supervisor
from tidemark.local.services.stack import start_emulator, start_stack
from tidemark.pipeline.clock import Clock, format_duration, iso, rough
from tidemark.pipeline.errors import LakeError, ServiceFailed
from tidemark.pipeline.lake.layout import HEARTBEAT_DIFFS, HEARTBEATS, QUARANTINE, OpenLake
from tidemark.pipeline.lake.store.address import open_objects
from tidemark.pipeline.lake.store.disk import why_unwritable
from tidemark.pipeline.observe.facts import LakeReport, read_report, read_waiting
from tidemark.pipeline.pubsub.provision import provision_here
from tidemark.pipeline.settings import PREFIX, Settings, load_settings
from tidemark.pipeline.settings_sections import LakeSettings, WatermarkSettings
from tidemark.pipeline.spark.java import find_java

BEGINNING = "# Written by the demonstration. `make up` opens its lake in the Dagster UI.\n"
"""The first line of the demonstration's settings file."""

IN_THE_FOLDER = LakeSettings(uri="file:lake")
"""The default lake: a folder next to the settings file."""

LOOK_EVERY_SECONDS = 2.0
SAY_EVERY_SECONDS = 10.0
BEFORE_A_WINDOW_ENDS = timedelta(seconds=2)
"""The source stops this long before a window's end. So the window of the last heartbeats ends soon after the stop."""

PATIENCE = timedelta(minutes=8)
"""Maximum duration of one wait for the pipeline, such as the wait until the backlog has landed. `run_demo` extends it
by the durations in its Scale."""


@dataclass(frozen=True, slots=True)
class Scale:
    """The size of a demonstration.

    - `backlog` is the duration of the outage before the pipeline starts.
    - `live` is the minimum duration of live traffic.
    - `idle_timeout` is the length of the silence after which the last windows close.
    """

    streams: int
    backlog: timedelta
    live: timedelta
    idle_timeout: timedelta


QUICK = Scale(2_000, timedelta(minutes=10), timedelta(seconds=15), timedelta(seconds=20))
"""The default size. It is small enough for Google's official emulator, whose pulls slow down with every outstanding
message."""

FULL = Scale(10_000, timedelta(minutes=20), timedelta(minutes=3), WatermarkSettings().idle_timeout)


class DemoFolder:
    """The paths of a demonstration's files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.config = root / "tidemark.toml"
        self.lake = root / "lake"
        self.truth = root / "truth.parquet"
        self.summary = root / "summary.json"

    def refuse_unusable(self) -> None:
        """Raise ServiceFailed if the folder cannot be written to, or has files that are not from a demonstration."""
        if (why := why_unwritable(self.root)) is not None:
            raise ServiceFailed(f"the demonstration needs a folder of its own, but {why}: name another with --folder")
        is_earlier = self.config.is_file() and self.config.read_bytes().startswith(BEGINNING.encode())
        if not is_earlier and self.root.exists() and any(self.root.iterdir()):
            raise ServiceFailed(
                f"the demonstration empties its folder, but {self.root} has files that are not a demonstration's: name "
                "a new folder with --folder"
            )

    def recreate(self, first_window: datetime, lake: LakeSettings, shape: Shape, idle_timeout: timedelta) -> None:
        """Empty the folder, except for its supervisor's note, and write the settings file and the shape's files. Use
        the usual ports or, if they are taken, other free ports."""
        for one in self.root.iterdir():
            if one.is_dir() and not one.is_symlink():
                shutil.rmtree(one)
            elif one.name != STATE_FILE:
                one.unlink()
        values = {
            "windows.length": "1m",
            "windows.first": iso(first_window),
            "watermark.idle_timeout": format_duration(idle_timeout),
            "lake.uri": lake.uri,
            "lake.endpoint": lake.endpoint or "",
            "dagster.storage": "dagster",
        }
        settings = own_files.with_message(own_files.installed_text(own_files.SETTINGS), shape.settings)
        files = {self.config.name: BEGINNING + own_files.with_values(settings, values), **shape.files}
        own_files.write_new_files(own_files.with_ports(files, free_port), self.root)


@dataclass
class LakeWatch:
    """Waits until a pipeline's lake has reached a given state, and prints the progress meanwhile. `keep_up` is called
    before each reading of the lake. `patience` is the maximum duration of one wait."""

    settings: Settings
    source: Source
    keep_up: Callable[[], None]
    clock: Clock
    say: Callable[[str], None]
    patience: timedelta = PATIENCE
    look_every_seconds: float = LOOK_EVERY_SECONDS
    _said: float = 0.0

    def __post_init__(self) -> None:
        self._lake = OpenLake(self.settings.lake, self.settings.message.kinds, self.clock)

    def until(self, reached: Callable[[LakeReport], bool]) -> LakeReport:
        """Read the lake's report repeatedly, and return the first one for which `reached` is true. Raises ServiceFailed
        if that takes longer than `patience`, and the error that ended publishing, if any."""
        began = self.clock.monotonic()
        while self.clock.monotonic() - began < self.patience.total_seconds():
            self.keep_up()
            self.source.raise_failure()
            with suppress(LakeError):  # a table that is being created cannot be read yet
                report = read_report(self._lake)
                self._show(report)
                if reached(report):
                    return report
            self.clock.sleep(self.look_every_seconds)
        raise ServiceFailed(
            f"gave up waiting for the lake after {format_duration(self.patience)}: read the logs in "
            f"{self.settings.dagster.state_folder}/logs, and run `tidemark explain` to see what holds the watermark"
        )

    def _show(self, report: LakeReport) -> None:
        if self.clock.monotonic() - self._said < SAY_EVERY_SECONDS:
            return
        self._said = self.clock.monotonic()
        waiting = read_waiting(self._lake, self.settings.windowing, report.state.watermark)
        decision, now = report.state.decision, self.clock.now()
        stands = "no watermark yet"
        if decision is not None and decision.watermark is not None:
            stands = f"watermark {rough(now - decision.watermark)} behind the clock"
        elif decision is not None:
            stands += f" ({decision.reason})"
        computed = f"windows computed: {len(report.computed)}" + f", due: {len(waiting)}" * bool(waiting)
        self.say(f"  {self.source.sent:,} published, {report.landed.rows:,} landed; {stands}; {computed}")


def run_demo(
    root: Path,
    beats: SyntheticSource,
    console: Console,
    clock: Clock,
    *,
    scale: Scale = QUICK,
    lake: LakeSettings = IN_THE_FOLDER,
) -> Summary:
    """Run the demonstration in the folder `root`: an outage, live traffic and a comparison with the truth file. Print
    the progress and the summary, and stop all started services.

    The lake is kept, in `root` or in a bucket. Raises, before anything is started: ToolMissing if Java is missing,
    LakeError if a bucket has objects under the lake's prefix, and ServiceFailed if `root` cannot be written to or has
    files that are not from an earlier demonstration.
    """
    ignore_variables()
    find_java()
    refuse_used(lake)
    folder = DemoFolder(root)
    folder.refuse_unusable()
    began = clock.monotonic()

    def say(text: str) -> None:
        console.print(f"[dim]{clock.monotonic() - began:5.0f} s[/]  {escape(text)}", highlight=False)

    supervisor = Supervisor(folder.root, clock, say)
    supervisor.take_over()
    # The partitions start an hour before the first heartbeat: Dagster shows few partitions faster than a year of them.
    first_window = (clock.now() - scale.backlog).replace(minute=0, second=0, microsecond=0) - timedelta(hours=1)
    folder.recreate(first_window, lake, beats.shape, scale.idle_timeout)
    settings = load_settings(folder.config)
    start = clock.now().replace(second=0, microsecond=0) - scale.backlog
    source = Source(replace(beats, streams=scale.streams), settings, folder.truth, start, clock)
    try:
        patience = PATIENCE + scale.backlog + scale.live + scale.idle_timeout
        watch = LakeWatch(settings, source, supervisor.restart_what_died, clock, say, patience)
        summary = _play(folder, watch, supervisor, scale)
    finally:
        try:
            source.stop()
        finally:
            supervisor.stop()
    summary = replace(summary, seconds=clock.monotonic() - began)
    folder.summary.write_text(json.dumps(summary.as_json(), indent=1) + "\n")
    show(summary, console)
    console.print(f"Everything is in {folder.root}.", markup=False, highlight=False)
    if lake.endpoint is None:  # a server on loopback stops before its lake can be explored
        show_next_steps(folder, console)
    return summary


def show_next_steps(folder: DemoFolder, console: Console) -> None:
    """Print the commands with which the user can explore the lake."""
    started = Path(sys.argv[0])
    program = shown(started) if started.stem == "tidemark" else "tidemark"
    console.print("\nTo look closer, run:", style="bold")
    for command, why in (
        ("explain", "why the watermark is where it is"),
        ("diffs --stream stream-00000 --limit 5", "the differences between one stream's heartbeats"),
        ("up", "the pipeline again, with Dagster's UI; Ctrl-C stops it"),
    ):
        line = f"  {program} --config {shown(folder.config)} {command}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)
        console.print(f"      {why}", style="dim")


def shown(path: Path) -> str:
    """Return a path for use in a command: relative if it is inside the current folder, else absolute."""
    path = path.absolute()
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _play(folder: DemoFolder, watch: LakeWatch, supervisor: Supervisor, scale: Scale) -> Summary:
    settings, source, clock, say = watch.settings, watch.source, watch.clock, watch.say
    say(f"{scale.streams:,} devices publish a heartbeat every 30 s. Everything runs on this machine.")
    start_emulator(supervisor, settings)
    say("creating the topic and its two subscriptions: base has the data, tracking only shows what was published")
    provision_here(settings, clock)
    say(f"OUTAGE: publishing the last {format_duration(scale.backlog)} of heartbeats while nothing reads them")
    source.start()
    while source.reached < clock.now() - timedelta(seconds=1):
        source.raise_failure()
        clock.sleep(0.2)
    messages = source.sent
    say(f"{messages:,} messages wait; the devices now publish live")
    pipeline_began = clock.monotonic()
    start_stack(supervisor, settings, folder.config)
    say("CATCHING UP: Dagster's sensors pull both subscriptions; a window is computed once the watermark has passed it")
    watch.until(lambda report: report.landed.rows >= messages)
    landed_after, live_from = clock.monotonic() - pipeline_began, clock.now()
    end = settings.windowing.containing(live_from + scale.live + BEFORE_A_WINDOW_ENDS).end - BEFORE_A_WINDOW_ENDS
    say(f"LIVE for {rough(end - live_from)}: the backlog landed within {landed_after:.0f} s")
    watch.until(lambda _: clock.now() >= end)
    published, live_to = source.stop(), clock.now()
    if published is None or published.first_event_time is None or published.last_event_time is None:
        raise ServiceFailed("the source published no heartbeat")
    idle = format_duration(scale.idle_timeout)
    say(f"SILENCE: the devices stop. The last window closes {idle} later, by the idle rule")
    windowing = settings.windowing
    first, last = map(windowing.containing, (published.first_event_time, published.last_event_time))
    windows = {window.key for window in windowing.between(first.start, last.end)}
    report = watch.until(lambda report: windows <= set(report.computed))
    say("CHECK: every window is computed; comparing every row with the devices' own record")
    if settings.lake.folder is None:
        copy_tables(settings.lake, folder.lake)
    comparison = compare(folder.truth, folder.lake, settings.windows)
    ends = {key: settings.windowing.named(key).end for key in report.computed}
    ready = [(end, (report.computed_at[key] - end).total_seconds()) for key, end in ends.items()]
    return Summary(
        published=published,
        comparison=comparison,
        ready=Spread.of(seconds for _, seconds in ready),
        live_ready=Spread.of(seconds for end, seconds in ready if end >= live_from),
        backlog_messages=messages,
        landed_after=landed_after,
        seconds=0.0,
        live=(live_from, live_to),
    )


def ignore_variables() -> None:
    """Remove from the environment the variables that override settings, and print their names. They could make the
    demonstration use the lake or topic of a real pipeline."""
    overriding = (one for one in os.environ if one.upper().startswith(PREFIX) and "__" in one)
    if found := sorted({*overriding, *({"PUBSUB_EMULATOR_HOST"} & os.environ.keys())}):
        print(f"ignored, because the demonstration has its own settings: {', '.join(found)}")
        for name in found:
            del os.environ[name]


def refuse_used(lake: LakeSettings) -> None:
    """Raise LakeError if a bucket has objects under the lake's prefix, because the demonstration never empties a
    bucket."""
    if lake.folder is None and (found := next(open_objects(lake).names(""), None)) is not None:
        raise LakeError(
            f"the demonstration needs an empty lake, but {lake.uri}/{found} exists: name another prefix of the bucket"
        )


def copy_tables(lake: LakeSettings, folder: Path) -> None:
    """Copy the compared tables from a bucket to a folder. Each table's log is copied before its files. Files added in
    the meantime are therefore not in the copied log."""
    objects = open_objects(lake)
    for table in (HEARTBEATS, QUARANTINE, HEARTBEAT_DIFFS):
        for name in objects.names(f"{table}/"):
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(objects.read(name))


def free_port(wanted: int) -> int:
    """Return the wanted port if it is free on loopback, otherwise any free port."""
    for port in (wanted, 0):
        with socket.socket() as candidate:
            candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                candidate.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(candidate.getsockname()[1])
    raise OSError("no port is free on the loopback interface")
