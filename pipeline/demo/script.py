"""The demonstration, from an empty folder to a summary that was checked against the truth."""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from threading import Event, Thread

from rich.console import Console

from pipeline.clock import Clock, iso
from pipeline.demo.comparison import Comparison, compare
from pipeline.demo.summary import Summary, show, spread
from pipeline.demo.workspace import DemoFolder
from pipeline.durations import format_duration
from pipeline.errors import LakeError, ServiceFailed, TidemarkError
from pipeline.lake.layout import Lake
from pipeline.lake.report import LakeReport, read_report
from pipeline.pubsub.connection import publisher_client
from pipeline.pubsub.synthetic import Published, publish
from pipeline.pubsub.synthetic_beats import SyntheticSource
from pipeline.services.emulator import find_emulator_jar, find_java
from pipeline.services.processes import Supervisor
from pipeline.services.stack import provision_here, start_emulator, start_stack
from pipeline.settings import Settings, load_settings
from pipeline.windows import Window

LOOK_EVERY_SECONDS = 2.0
SAY_EVERY_SECONDS = 10.0
PATIENCE = timedelta(minutes=8)
"""How long after the source has fallen silent the last window may take before something is wrong."""


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """What is played: how much backlog, how much live traffic, and which source."""

    backlog: timedelta = timedelta(minutes=20)
    live: timedelta = timedelta(seconds=120)
    source: SyntheticSource = field(default_factory=lambda: SyntheticSource(jitter=timedelta(seconds=8)))


class Source:
    """The synthetic source in a thread of its own, as if it were somebody else's."""

    def __init__(self, plan: DemoPlan, settings: Settings, truth: Path, start: datetime, clock: Clock) -> None:
        self.sent = 0
        self.reached = start
        self.published: Published | None = None
        self.failure: TidemarkError | None = None
        self._stop = Event()
        self._end: datetime | None = None
        self._thread = Thread(
            target=self._run, args=(plan, settings, truth, start, clock), name="synthetic source", daemon=True
        )

    def start(self) -> None:
        """Begin to publish."""
        self._thread.start()

    def stop(self) -> None:
        """Fall silent; what was published stays on record."""
        self._stop.set()
        self._thread.join()

    def _run(self, plan: DemoPlan, settings: Settings, truth: Path, start: datetime, clock: Clock) -> None:
        def progress(sent: int, reached: datetime) -> None:
            self.sent, self.reached = sent, reached

        try:
            self.published = publish(
                plan.source,
                publisher_client(settings.pubsub.emulator_host),
                settings.pubsub.topic_path,
                clock,
                start,
                start + timedelta(days=1),
                truth_path=truth,
                progress=progress,
                stop=self._stop.is_set,
            )
        except TidemarkError as error:
            self.failure = error


def run_demo(root: Path, plan: DemoPlan, console: Console, clock: Clock) -> Summary:
    """Play it in `root`, print what happens and the summary, leave everything to look at, and stop what was started.

    Raises ToolMissing before anything is done where Java or the emulator is missing.
    """
    find_java()
    find_emulator_jar()
    folder = DemoFolder(root)
    began = clock.monotonic()

    def say(text: str) -> None:
        console.print(f"[dim]{clock.monotonic() - began:5.0f} s[/]  {text}", highlight=False)

    Supervisor(folder.root, clock, say).stop_leftovers()
    folder.make_anew(first_window=_hour_before(clock.now() - plan.backlog))
    settings = load_settings(folder.config)
    supervisor = Supervisor(folder.root, clock, say)
    source: Source | None = None
    try:
        say("starting the official Pub/Sub emulator, and provisioning: topic, tracking, then base")
        start_emulator(supervisor, settings)
        provision_here(settings, clock)
        now = clock.now().replace(second=0, microsecond=0)
        source = Source(plan, settings, folder.truth, now - plan.backlog, clock)
        say(
            f"{plan.source.streams:,} sources publish {format_duration(plan.backlog)} of heartbeats, as if the "
            "pipeline had been down"
        )
        source.start()
        backlog = _await_backlog(source, clock)
        say(f"{backlog:,} messages wait on both subscriptions; the sources go on live")
        pipeline_began = clock.monotonic()
        start_stack(supervisor, settings, folder.config, say, clock)
        say("the pipeline runs: the sensors tick, the backlog drains")
        watch = _Watch(settings, source, supervisor, clock, say)
        landed_after = watch.until_landed(backlog) - pipeline_began
        watch.for_a_while(plan.live)
        source.stop()
        if source.failure is not None:
            raise source.failure
        say("the sources fall silent; the idle rule will close what is left")
        report = watch.until_computed(_windows_of(settings, source.published))
        say("every window is computed; comparing every row with the truth")
        comparison = compare(
            folder.truth,
            folder.lake,
            lookback_seconds=settings.windows.lookback.total_seconds(),
            period_seconds=settings.windows.heartbeat_period.total_seconds(),
            window_seconds=settings.windows.length.total_seconds(),
        )
    finally:
        if source is not None:
            source.stop()
        supervisor.stop()
    if source.published is None:
        raise ServiceFailed("the source left no record of what it published")
    summary = _summary(
        source.published,
        comparison,
        report,
        settings,
        backlog,
        landed_after,
        clock.monotonic() - began,
        watch.live_from,
    )
    folder.summary.write_text(json.dumps(summary.as_json(), indent=1) + "\n")
    show(summary, comparison.examples, console)
    console.print(f"The lake is in {folder.lake}, the truth in {folder.truth}, the summary in {folder.summary}.")
    console.print("[bold]make up[/] opens this lake in the Dagster UI; tidemark status says where it stands.")
    return summary


class _Watch:
    """Looks at the lake while the pipeline runs, and says what it sees. The pipeline is not asked."""

    def __init__(
        self, settings: Settings, source: Source, supervisor: Supervisor, clock: Clock, say: Callable[[str], None]
    ) -> None:
        self._lake = Lake(settings.lake, settings.message.fields, clock)
        self._log = self._lake.tracking_log()
        self._windowing = settings.windowing
        self._source = source
        self._supervisor = supervisor
        self._clock = clock
        self._say = say
        self._said = 0.0
        self.live_from = clock.now()

    def until_landed(self, messages: int) -> float:
        """Wait until so many rows have landed; the moment of the monotonic clock at which they had."""
        self._until(lambda report: report.landed_rows >= messages)
        self.live_from = self._clock.now()
        return self._clock.monotonic()

    def for_a_while(self, duration: timedelta) -> None:
        """Let live traffic go on."""
        until = self._clock.monotonic() + duration.total_seconds()
        self._until(lambda _: self._clock.monotonic() >= until)

    def until_computed(self, windows: set[str]) -> LakeReport:
        """Wait for every window."""
        return self._until(lambda report: windows <= set(report.computed))

    def _until(self, reached: Callable[[LakeReport], bool]) -> LakeReport:
        began = self._clock.monotonic()
        while self._clock.monotonic() - began < PATIENCE.total_seconds():
            self._supervisor.restart_what_died()
            if self._source.failure is not None:
                raise self._source.failure
            with suppress(LakeError):  # an instant in which a table is being made
                report = read_report(self._lake, self._windowing, self._log)
                self._show(report)
                if reached(report):
                    return report
            self._clock.sleep(LOOK_EVERY_SECONDS)
        raise ServiceFailed(
            f"nothing came of waiting {format_duration(PATIENCE)}; the logs are in "
            f"{self._supervisor.state_folder}/logs, and `tidemark explain` says what holds the watermark"
        )

    def _show(self, report: LakeReport) -> None:
        if self._clock.monotonic() - self._said < SAY_EVERY_SECONDS:
            return
        self._said = self._clock.monotonic()
        decision = report.standing.decision
        where = "no decision yet"
        if decision is not None:
            watermark = "none yet" if decision.watermark is None else iso(decision.watermark.replace(microsecond=0))
            where = f"watermark {watermark} [dim]{decision.reason}[/]"
        self._say(
            f"sent {self._source.sent:>9,}   landed {report.landed_rows:>9,}   windows {len(report.computed):>3} "
            f"computed, {len(report.waiting)} waiting   {where}"
        )


def _hour_before(moment: datetime) -> datetime:
    """An hour's partitions before the first heartbeat are quicker to look at than a year of them."""
    return moment.replace(minute=0, second=0, microsecond=0) - timedelta(hours=1)


def _await_backlog(source: Source, clock: Clock) -> int:
    """Until the source has nothing more to say about the past."""
    while source.reached < clock.now() - timedelta(seconds=1):
        if source.failure is not None:
            raise source.failure
        clock.sleep(0.2)
    return source.sent


def _windows_of(settings: Settings, published: Published | None) -> set[str]:
    """The windows from the first heartbeat's to the last one's."""
    if published is None or published.first_event_time is None or published.last_event_time is None:
        raise ServiceFailed("the source published nothing")
    windowing = settings.windowing
    last: Window = windowing.containing(published.last_event_time)
    return {
        window.key for window in windowing.between(windowing.containing(published.first_event_time).start, last.end)
    }


def _summary(
    published: Published,
    comparison: Comparison,
    report: LakeReport,
    settings: Settings,
    backlog: int,
    landed_after: float,
    seconds: float,
    live_from: datetime,
) -> Summary:
    ends = {key: settings.windowing.named(key).end for key in report.computed}
    ready = {key: (report.computed_at[key] - end).total_seconds() for key, end in ends.items()}
    overall, live = spread(list(ready.values())), spread([ready[key] for key, end in ends.items() if end >= live_from])
    return Summary(
        published=published.messages,
        duplicates=published.duplicates,
        broken=dict(published.broken),
        landed=comparison.landed,
        quarantined=comparison.quarantined,
        quarantine_differences=comparison.quarantine_differences,
        windows=comparison.windows,
        rows=comparison.rows,
        expected_rows=comparison.expected_rows,
        differences=comparison.differences,
        late=comparison.late,
        missed=comparison.missed,
        ready_after_seconds_p50=overall[0] if overall else 0.0,
        ready_after_seconds_max=overall[1] if overall else 0.0,
        live_ready_after_seconds_p50=live[0] if live else None,
        live_ready_after_seconds_max=live[1] if live else None,
        messages_per_second=round(backlog / landed_after, 1),
        backlog_messages=backlog,
        backlog_landed_after_seconds=round(landed_after, 1),
        seconds=round(seconds, 1),
    )
