"""The demonstration, from an empty folder to a summary that was checked against the truth."""

import json
import shutil
import socket
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
from tidemark.local.services.processes import Supervisor
from tidemark.local.services.stack import start_emulator, start_stack
from tidemark.pipeline.clock import Clock, iso
from tidemark.pipeline.durations import format_duration
from tidemark.pipeline.errors import LakeError, ServiceFailed
from tidemark.pipeline.lake.layout import HEARTBEAT_DIFFS, HEARTBEATS, QUARANTINE, OpenLake
from tidemark.pipeline.lake.store.address import open_objects
from tidemark.pipeline.pubsub.provision import provision_here
from tidemark.pipeline.quality.status import LakeReport, read_report, read_waiting
from tidemark.pipeline.settings import Settings, load_settings
from tidemark.pipeline.settings_sections import LakeSettings, WatermarkSettings
from tidemark.pipeline.spark.java import find_java

TEMPLATE = """\
# Written by the demonstration. `make up` opens its lake in the Dagster UI.

[pubsub]
emulator_host = "127.0.0.1:{emulator}"

{message}
[windows]
length = "1m"
first = "{first}"

[watermark]
idle_timeout = "{idle}"

[lake]
uri = "{lake}"
endpoint = "{endpoint}"

[spark]
remote = "sc://localhost:{spark}"

[dagster]
storage = "dagster"
web_port = {web}
code_port = {code}
"""

IN_THE_FOLDER = LakeSettings(uri="file:lake")
"""The lake beside the settings."""

LOOK_EVERY_SECONDS = 2.0
SAY_EVERY_SECONDS = 10.0
IDLE_TIMEOUT = WatermarkSettings().idle_timeout
PATIENCE = timedelta(minutes=8)
"""The longest that one wait may take before something is wrong."""

USUAL_PORTS = {"emulator": 8085, "spark": 15002, "web": 3000, "code": 4266}


class DemoFolder:
    """The paths of one demonstration."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.config = root / "tidemark.toml"
        self.lake = root / "lake"
        self.truth = root / "truth.parquet"
        self.summary = root / "summary.json"

    def make_anew(self, first_window: datetime, lake: LakeSettings, shape: Shape, idle_timeout: timedelta) -> None:
        """Empty the folder, and write the settings and the files that they name, with free ports: the usual ones where
        possible."""
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir(parents=True)
        ports = {name: free_port(usual) for name, usual in USUAL_PORTS.items()}
        for name, content in shape.files.items():
            (file := self.root / name).parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content)
        where = {"lake": lake.uri, "endpoint": lake.endpoint or ""}
        told = {"first": iso(first_window), "message": shape.settings.lstrip(), "idle": format_duration(idle_timeout)}
        self.config.write_text(TEMPLATE.format(**told, **where, **ports))


@dataclass
class Watch:
    """Waits for what the lake should come to hold, and prints what it sees meanwhile."""

    settings: Settings
    source: Source
    supervisor: Supervisor
    clock: Clock
    say: Callable[[str], None]
    _said: float = 0.0

    def __post_init__(self) -> None:
        self._lake = OpenLake(self.settings.lake, self.settings.message.kinds, self.clock)

    def until(self, reached: Callable[[LakeReport], bool], every: float = LOOK_EVERY_SECONDS) -> LakeReport:
        """Wait until the lake is as it should be, looking after each so many seconds, and return its report. Raises
        ServiceFailed after `PATIENCE`."""
        began = self.clock.monotonic()
        while self.clock.monotonic() - began < PATIENCE.total_seconds():
            self.supervisor.restart_what_died()
            self.source.raise_failure()
            with suppress(LakeError):  # a table that is being created cannot be read yet
                report = read_report(self._lake)
                self._show(report)
                if reached(report):
                    return report
            self.clock.sleep(every)
        raise ServiceFailed(
            f"nothing came of waiting {format_duration(PATIENCE)}; the logs are in "
            f"{self.supervisor.state_folder}/logs, and `tidemark explain` says what holds the watermark"
        )

    def _show(self, report: LakeReport) -> None:
        if self.clock.monotonic() - self._said < SAY_EVERY_SECONDS:
            return
        self._said, windows = self.clock.monotonic(), self.settings.windowing
        waiting = read_waiting(self._lake, windows, self.settings.windows.lookback, report.state.watermark)
        decision = report.state.decision
        where = "no decision yet"
        if decision is not None:
            watermark = "none yet" if decision.watermark is None else iso(decision.watermark.replace(microsecond=0))
            where = f"watermark {watermark} {decision.reason}"
        self.say(
            f"sent {self.source.sent:>9,}   landed {report.landed.rows:>9,}   windows {len(report.computed):>3} "
            f"computed, {len(waiting)} waiting   {where}"
        )


def run_demo(
    root: Path,
    beats: SyntheticSource,
    console: Console,
    clock: Clock,
    *,
    backlog: timedelta,
    live: timedelta,
    idle_timeout: timedelta = IDLE_TIMEOUT,
    lake: LakeSettings = IN_THE_FOLDER,
) -> Summary:
    """Play an outage and live traffic in `root`, print what happens and the summary, and stop what was started.

    The lake stays: in `root`, or in a bucket, where it must be new. Raises ToolMissing before anything is done if Java
    is missing, and LakeError if something is in the bucket under the lake's prefix.
    """
    find_java()
    refuse_used(lake)
    folder = DemoFolder(root)
    began = clock.monotonic()

    def say(text: str) -> None:
        console.print(f"[dim]{clock.monotonic() - began:5.0f} s[/]  {escape(text)}", highlight=False)

    supervisor = Supervisor(folder.root, clock, say)
    supervisor.take_over()
    # The partitions begin an hour before the first heartbeat: Dagster shows few partitions sooner than a year of them.
    first_window = (clock.now() - backlog).replace(minute=0, second=0, microsecond=0) - timedelta(hours=1)
    folder.make_anew(first_window, lake, beats.shape, idle_timeout)
    settings = load_settings(folder.config)
    start = clock.now().replace(second=0, microsecond=0) - backlog
    source = Source(beats, settings, folder.truth, start, clock)
    try:
        summary = _play(folder, Watch(settings, source, supervisor, clock, say), backlog, live)
    finally:
        try:
            source.stop()
        finally:
            supervisor.stop()
    summary = replace(summary, seconds=clock.monotonic() - began)
    folder.summary.write_text(json.dumps(summary.as_json(), indent=1) + "\n")
    show(summary, console)
    where = folder.lake if lake is IN_THE_FOLDER else lake.uri
    lines = [f"The lake is in {where}, the truth in {folder.truth}, the summary in {folder.summary}."]
    if lake.endpoint is None:  # a server on loopback ends sooner than its lake is looked at
        lines.append("`make up` opens this lake in the Dagster UI; `tidemark status` shows where it stands.")
    for line in lines:
        console.print(line, markup=False, highlight=False)
    return summary


def _play(folder: DemoFolder, watch: Watch, backlog: timedelta, live: timedelta) -> Summary:
    """An outage's backlog, the pipeline, live traffic, silence, and the comparison."""
    settings, source, supervisor, clock, say = watch.settings, watch.source, watch.supervisor, watch.clock, watch.say
    start_emulator(supervisor, settings)
    say("provisioning: topic, tracking, then base")
    provision_here(settings, clock)
    streams, outage = f"{source.beats.streams:,} streams", format_duration(backlog)
    say(f"{streams} publish {outage} of heartbeats, as if the pipeline had been down")
    source.start()
    while source.reached < clock.now() - timedelta(seconds=1):
        source.raise_failure()
        clock.sleep(0.2)
    messages = source.sent
    say(f"{messages:,} messages wait on both subscriptions; the streams go on live")
    pipeline_began = clock.monotonic()
    start_stack(supervisor, settings, folder.config)
    say("the pipeline runs: the sensors tick, the backlog drains")
    watch.until(lambda report: report.landed.rows >= messages)
    landed_after, live_from = clock.monotonic() - pipeline_began, clock.now()
    live_until = clock.monotonic() + live.total_seconds()
    watch.until(lambda _: clock.monotonic() >= live_until, every=SAY_EVERY_SECONDS)
    published, live_to = source.stop(), clock.now()
    if published is None or published.first_event_time is None or published.last_event_time is None:
        raise ServiceFailed("the source published no heartbeat")
    say("the streams fall silent; the idle rule will close the last windows")
    last = settings.windowing.containing(published.last_event_time)
    windows = {window.key for window in settings.windowing.closed_at(last.end, published.first_event_time)}
    report = watch.until(lambda report: windows <= set(report.computed))
    say("every window is computed; comparing every row with the truth")
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


def refuse_used(lake: LakeSettings) -> None:
    """Raise LakeError if a bucket holds anything under the lake's prefix: the demonstration never empties a bucket."""
    if lake.folder is None and (found := next(open_objects(lake).names(""), None)) is not None:
        raise LakeError(
            f"the demonstration needs a lake of its own, and {lake.uri}/{found} is there: name another prefix"
        )


def copy_tables(lake: LakeSettings, folder: Path) -> None:
    """Copy the tables that are compared out of a bucket, byte for byte. A table's log is copied before its files, so
    that each file that the log names is there."""
    objects = open_objects(lake)
    for table in (HEARTBEATS, QUARANTINE, HEARTBEAT_DIFFS):
        for name in objects.names(f"{table}/"):
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(objects.read(name))


def free_port(wanted: int) -> int:
    """The wanted port of the loopback interface if it is free, else any free one."""
    for port in (wanted, 0):
        with socket.socket() as candidate:
            candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                candidate.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(candidate.getsockname()[1])
    raise OSError("no port is free on the loopback interface")
