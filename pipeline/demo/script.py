"""The demonstration, from an empty folder to a summary that was checked against the truth."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from rich.console import Console

from pipeline.clock import Clock
from pipeline.demo.publishing import Source
from pipeline.demo.summary import Summary, show, spread
from pipeline.demo.synthetic import Published
from pipeline.demo.synthetic_beats import SyntheticSource
from pipeline.demo.verification import Comparison, compare
from pipeline.demo.watch import Watch
from pipeline.demo.workspace import DemoFolder
from pipeline.durations import format_duration
from pipeline.errors import ServiceFailed
from pipeline.quality.status import LakeReport
from pipeline.services.processes import Supervisor
from pipeline.services.stack import provision_here, start_emulator, start_stack
from pipeline.settings import Settings, load_settings
from pipeline.spark.java import find_java
from pipeline.windows import Window


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """What is played: how much backlog, how much live traffic, and which source."""

    backlog: timedelta = timedelta(minutes=20)
    live: timedelta = timedelta(seconds=60)
    source: SyntheticSource = field(default_factory=lambda: SyntheticSource(jitter=timedelta(seconds=8)))


@dataclass(frozen=True, slots=True)
class Played:
    """What came of playing it. `landed_after` is in seconds from the pipeline's start."""

    published: Published
    comparison: Comparison
    report: LakeReport
    backlog_messages: int
    landed_after: float
    live_from: datetime


def run_demo(root: Path, plan: DemoPlan, console: Console, clock: Clock) -> Summary:
    """Play it in `root`, print what happens and the summary, leave everything to look at, and stop what was started.

    Raises ToolMissing before anything is done where Java is missing.
    """
    find_java()
    folder = DemoFolder(root)
    began = clock.monotonic()

    def say(text: str) -> None:
        console.print(f"[dim]{clock.monotonic() - began:5.0f} s[/]  {text}", highlight=False)

    supervisor = Supervisor(folder.root, clock, say)
    supervisor.stop_leftovers()
    folder.make_anew(first_window=_hour_before(clock.now() - plan.backlog))
    settings = load_settings(folder.config)
    source = Source(plan.source, settings, folder.truth, _minute(clock.now()) - plan.backlog, clock)
    try:
        played = _play(plan, folder, settings, source, supervisor, say, clock)
    finally:
        try:
            source.stop()
        finally:
            supervisor.stop()
    summary = _summary(played, settings, clock.monotonic() - began)
    folder.summary.write_text(json.dumps(summary.as_json(), indent=1) + "\n")
    show(summary, played.comparison.examples, console)
    console.print(f"The lake is in {folder.lake}, the truth in {folder.truth}, the summary in {folder.summary}.")
    console.print("[bold]make up[/] opens this lake in the Dagster UI; tidemark status says where it stands.")
    return summary


def _play(
    plan: DemoPlan,
    folder: DemoFolder,
    settings: Settings,
    source: Source,
    supervisor: Supervisor,
    say: Callable[[str], None],
    clock: Clock,
) -> Played:
    """An outage's backlog, the pipeline, live traffic, silence, and the comparison."""
    start_emulator(supervisor, settings)
    say("provisioning: topic, tracking, then base")
    provision_here(settings, clock)
    say(
        f"{plan.source.streams:,} sources publish {format_duration(plan.backlog)} of heartbeats, as if the pipeline "
        "had been down"
    )
    source.start()
    backlog = _await_backlog(source, clock)
    say(f"{backlog:,} messages wait on both subscriptions; the sources go on live")
    pipeline_began = clock.monotonic()
    start_stack(supervisor, settings, folder.config, say, clock)
    say("the pipeline runs: the sensors tick, the backlog drains")
    watch = Watch(settings, source, supervisor, clock, say)
    landed_after = watch.until_landed(backlog) - pipeline_began
    watch.for_a_while(plan.live)
    published = source.stop()
    say("the sources fall silent; the idle rule will close what is left")
    report = watch.until_computed(_windows_of(settings, published))
    say("every window is computed; comparing every row with the truth")
    comparison = compare(
        folder.truth,
        folder.lake,
        lookback_seconds=settings.windows.lookback.total_seconds(),
        period_seconds=settings.windows.heartbeat_period.total_seconds(),
        window_seconds=settings.windows.length.total_seconds(),
    )
    if published is None:
        raise ServiceFailed("the source left no record of what it published")
    return Played(published, comparison, report, backlog, landed_after, watch.live_from)


def _hour_before(moment: datetime) -> datetime:
    """An hour's partitions before the first heartbeat are quicker to look at than a year of them."""
    return moment.replace(minute=0, second=0, microsecond=0) - timedelta(hours=1)


def _await_backlog(source: Source, clock: Clock) -> int:
    """Until the source has nothing more to say about the past."""
    while source.reached < clock.now() - timedelta(seconds=1):
        source.raise_failure()
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


def _minute(moment: datetime) -> datetime:
    return moment.replace(second=0, microsecond=0)


def _summary(played: Played, settings: Settings, seconds: float) -> Summary:
    published, comparison, report = played.published, played.comparison, played.report
    ends = {key: settings.windowing.named(key).end for key in report.computed}
    ready = {key: (report.computed_at[key] - end).total_seconds() for key, end in ends.items()}
    overall = spread(list(ready.values()))
    live = spread([ready[key] for key, end in ends.items() if end >= played.live_from])
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
        messages_per_second=round(played.backlog_messages / played.landed_after, 1),
        backlog_messages=played.backlog_messages,
        backlog_landed_after_seconds=round(played.landed_after, 1),
        seconds=round(seconds, 1),
    )
