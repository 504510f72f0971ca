"""The sensors of the tracking tick and the landing tick. Each gathers the input of its tick, and reports the result to
Dagster."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from threading import Event
from typing import Any

import dagster as dg

from tidemark.assets.catalog import COMPLETE_WINDOWS, HEARTBEATS, QUARANTINED, TRACKING_HISTOGRAM, WATERMARK, key_of
from tidemark.assets.events import landing_events, landing_sentence, tracking_events
from tidemark.assets.ingest import run_at_work
from tidemark.assets.jobs.by_window import LostEvents
from tidemark.assets.jobs.heartbeat_diffs import report_lost
from tidemark.assets.partitions import Partitions
from tidemark.assets.scheduler.requests import Request, WindowChooser, next_request
from tidemark.assets.scheduler.runs import Runs
from tidemark.assets.sensors.watching import PROBLEMS, Jobs, recorder_of, ticking_sensor
from tidemark.pipeline.clock import Clock, format_duration, is_recent
from tidemark.pipeline.ingest.counting import RememberedCopies
from tidemark.pipeline.ingest.outcome import Ingested, Side
from tidemark.pipeline.ingest.pace import Closings, Pace
from tidemark.pipeline.ingest.settle import Settling
from tidemark.pipeline.ingest.ticks import land, tick_budget, track
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.watermark.state import WatermarkState
from tidemark.resources.keys import PUBSUB, pubsub_of
from tidemark.resources.lake import LakeResource

LANDS_BEFORE = timedelta(seconds=1)
"""A landing tick is due this long before its tracking tick. The tracking tick's decision then takes into account what
has just landed."""

LANDS_WITHIN = timedelta(seconds=1)
"""Maximum time that a tracking tick waits for an unfinished landing tick. If `watermark.tick` is short, Dagster's
daemon may start the landing tick so late that it is still running when the tracking tick is due."""

RECORDED_WITHIN = timedelta(minutes=2)
"""Time within which the sensor `tracking` should have recorded a changed contract. It is counted from the first tick
interval after a process has loaded the sensors."""

RunAndEvents = tuple[Request, Sequence[dg.AssetMaterialization]]
AfterDecision = Callable[[dg.SensorEvaluationContext, LakeResource, WatermarkState], RunAndEvents]
"""A function that is called after each decision. It returns the request for a run over the closed windows, and events
to report."""


def requesting(
    settings: Settings, clock: Clock, partitions: Partitions, tables: Mapping[str, LostEvents]
) -> AfterDecision:
    """Return a function that, after a decision, requests a run over due and stale windows. It also reports the
    partitions of runs that ended before they could report them, including runs of the custom `tables`."""
    chooser = WindowChooser()

    def after_decision(context: dg.SensorEvaluationContext, lake: LakeResource, state: WatermarkState) -> RunAndEvents:
        runs, now = Runs(context.instance, settings), clock.now()

        def choose() -> Request:
            request = next_request(runs, lake, state.watermark, now)
            report_lost(runs, partitions, lake, tables)
            return request

        return chooser.request(choose, context), ()

    return after_decision


def tracking_sensor(
    settings: Settings,
    clock: Clock,
    pace: Pace,
    after_decision: AfterDecision,
    landing: Event | None = None,
    jobs: Jobs = (),
) -> dg.SensorDefinition:
    """Define the sensor that tracks published messages and decides the watermark. `after_decision` handles the windows
    that a decision closes. `landing` is an event that is cleared while a landing tick runs; it is None if this pipeline
    lands nothing."""
    budget, closings = tick_budget(settings, Side.TRACKING), Closings(settings.windowing)
    copies = RememberedCopies(settings.copies_remembered)
    follows, asks = "requests runs over the windows that are due or stale", dict[str, Any](jobs=jobs)
    if landing is None:
        # Dagster lets a sensor name either jobs or assets. Without jobs, it names the assets that it keeps up to date.
        asks = {"asset_selection": [key_of(settings, key) for key in (TRACKING_HISTOGRAM, WATERMARK, COMPLETE_WINDOWS)]}
        follows = f"materializes the partitions of {COMPLETE_WINDOWS.to_user_string()} that the watermark has passed"

    @ticking_sensor(
        settings,
        "tracking",
        PUBSUB,
        waits=True,
        **asks,
        description=(
            f"Every {format_duration(settings.watermark.tick)}: pulls the tracking subscription, persists the "
            f"histogram snapshot, decides {WATERMARK.to_user_string()}, and {follows}. Keeps "
            f"{TRACKING_HISTOGRAM.to_user_string()} up to date."
        ),
    )
    def tracking(context: dg.SensorEvaluationContext, lake: LakeResource) -> dg.SensorResult:
        pubsub = pubsub_of(context, settings)
        pubsub.sweep()
        pace.wait()
        began, pulls = clock.now(), budget
        if landing is not None:
            landing.wait(LANDS_WITHIN.total_seconds())
            if run_at_work(Runs(context.instance, settings), clock.now()) is not None:
                pubsub.tracking().close()
                pulls = replace(budget, max_messages=0)
        tracked = track(
            Settling(lake.tracking_log("tracking"), clock, {Side.TRACKING: pubsub.tracking()}, copies=copies),
            {Side.TRACKING: pubsub.tracking_backlog(), Side.BASE: pubsub.base_backlog()},
            lake.judge("tracking"),
            settings.policy,
            pulls,
            until_gone=pubsub.tracking_backlog("pulling"),
            spending=pubsub.spending(),
            signals=lake.signals("tracking"),
        )
        _remember(lake, Side.TRACKING, "tracking", tracked.persisted, clock.now())
        lake.folded(tracked.state)
        recorder_of(lake).tracked(tracked)
        watermark = tracked.decision.watermark
        pace.aim(closings.expected(watermark, began))
        said = f"{tracked.decision.sentence()}. Messages tracked: {tracked.persisted.messages}; "
        # For people only: the next tick continues from the lake.
        cursor = f"entry {tracked.state.number}, watermark {'none' if watermark is None else watermark.isoformat()}"

        request, reported = after_decision(context, lake, tracked.state)
        if request.is_held:
            problems = lake.kept.get(PROBLEMS, dict[str, str])
            problems["tracking"] = "; ".join(filter(None, (problems.get("tracking"), request.sentence)))
        events = [*tracking_events(settings, tracked), *reported]
        return request.result(settings, context, said, asset_events=events, cursor=cursor)

    return tracking


def landing_sensor(settings: Settings, clock: Clock, pace: Pace, tracking: Pace, rests: Event) -> dg.SensorDefinition:
    """Define the sensor that lands the messages of base. Each tick is due shortly before the next tracking tick.
    `tracking` is the Pace of the tracking sensor. `rests` is cleared while a tick lands, and set otherwise."""
    budget, loaded = tick_budget(settings, Side.BASE), clock.now()

    @ticking_sensor(
        settings,
        "landing",
        PUBSUB,
        waits=True,
        asset_selection=[key_of(settings, key) for key in (HEARTBEATS, QUARANTINED)],
        description=(
            f"Every {format_duration(settings.watermark.tick)}: pulls the base subscription, appends to "
            f"{HEARTBEATS.to_user_string()} and {QUARANTINED.to_user_string()}, and acknowledges what is durable. "
            "Pauses while a run with readers on Spark lands instead."
        ),
    )
    def landing(context: dg.SensorEvaluationContext, lake: LakeResource) -> dg.SensorResult | str:
        pubsub = pubsub_of(context, settings)
        decides_at = tracking.next_at
        pace.aim(None if decides_at is None else decides_at - LANDS_BEFORE)
        pace.wait()
        runs, now = Runs(context.instance, settings), clock.now()
        if (run := run_at_work(runs, now)) is not None:
            pubsub.base().close()
            return f"run {run[:8]} lands and tracks, so this tick pulls nothing"
        log, reader = lake.tracking_log("landing"), lake.judge("landing")
        waits = is_recent(loaded, now, RECORDED_WITHIN + settings.watermark.tick) and not lake.has_folded()
        if waits and log.newest().contract not in ("", reader.judged_by):
            return "the contract has changed, and `tracking` has yet to record it: this tick pulls nothing"
        rests.clear()
        try:
            settling = Settling(log, clock, {Side.BASE: pubsub.base()}, lake.new_files("landing"))
            landed = land(settling, reader, budget, pubsub.base_backlog("landing"), pubsub.spending())
        finally:
            rests.set()
        _remember(lake, Side.BASE, "landing", landed, clock.now())
        recorder_of(lake).landed(landed)
        said = dg.SkipReason(landing_sentence(landed))
        return dg.SensorResult(skip_reason=said, asset_events=landing_events(settings, landed))

    return landing


def _remember(lake: LakeResource, side: Side, sensor: str, came: Ingested, now: datetime) -> None:
    """Record what a tick took (the checks need it), and which messages wait (`status` shows them). Messages that an
    earlier tick gave back still wait until they are redelivered."""
    last = lake.watch().came
    before = last.get(side, came).waiting
    if not came.waiting.messages and before.until is not None and now < before.until:
        came = replace(came, waiting=before)
    last[side] = came
    lake.kept.get(PROBLEMS, dict[str, str])[sensor] = came.waiting.sentence()
