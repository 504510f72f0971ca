"""The two ticks as sensors: each gathers what its tick needs and reports the result to Dagster."""

from dataclasses import replace
from datetime import timedelta
from functools import partial

import dagster as dg

from tidemark.assets.catalog import HEARTBEATS, QUARANTINED, TRACKING_HISTOGRAM, WATERMARK, ticking_sensor
from tidemark.assets.events import landing_events, landing_sentence, tracking_events
from tidemark.assets.ingest import run_at_work, watch_of
from tidemark.assets.requests import OneAsks, next_request
from tidemark.assets.runs import Runs
from tidemark.assets.watching import Jobs, note_problem, observer_of
from tidemark.pipeline.clock import Clock
from tidemark.pipeline.durations import format_duration
from tidemark.pipeline.ingest.copies import RememberedCopies
from tidemark.pipeline.ingest.outcome import Ingested, Side
from tidemark.pipeline.ingest.pace import AtWork, Closings, Pace
from tidemark.pipeline.ingest.readers import tick_budget
from tidemark.pipeline.ingest.ticks import land, track
from tidemark.pipeline.settings import Settings
from tidemark.resources.keys import LAKE, PUBSUB, keys_of, lake_of, pubsub_of
from tidemark.resources.lake import LakeResource

LANDS_BEFORE = timedelta(seconds=1)
"""How long before a tracking tick the landing tick is due, so that the decision knows what has landed."""

LANDS_WITHIN = timedelta(seconds=1)
"""How long a tracking tick waits for a landing tick at work: with a short tick the daemon may begin both late."""


def tracking_sensor(
    settings: Settings, clock: Clock, pace: Pace, landing: AtWork, jobs: Jobs, asking: OneAsks
) -> dg.SensorDefinition:
    """Track what was published, decide the watermark, and request the windows that closed."""
    policy, judged_by = settings.policy, settings.judged_by
    budget, closings = tick_budget(settings, Side.TRACKING), Closings(settings.windowing)
    copies = RememberedCopies(settings.copies_remembered)

    @ticking_sensor(
        settings,
        "tracking",
        waits=True,
        required_resource_keys=keys_of(settings, PUBSUB, LAKE),
        jobs=jobs,
        description=(
            f"Every {format_duration(settings.watermark.tick)}: pulls the tracking subscription, persists the "
            f"histogram snapshot, decides {WATERMARK.to_user_string()}, and requests one run over the windows that "
            f"closed. Keeps {TRACKING_HISTOGRAM.to_user_string()} up to date."
        ),
    )
    def tracking(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        pubsub, lake = pubsub_of(context, settings), lake_of(context, settings)
        pubsub.sweep()
        pace.wait()
        landing.wait(LANDS_WITHIN)
        runs, now = Runs(context.instance, settings), clock.now()
        pulls = budget
        if run_at_work(runs, now, settings) is not None:
            pubsub.tracking().close()
            pulls = replace(budget, max_messages=0)
        tracked = track(
            pubsub.tracking(),
            tracking_backlog=pubsub.tracking_backlog(),
            base_backlog=pubsub.base_backlog(),
            log=lake.tracking_log("tracking"),
            reader=lake.judge("tracking"),
            policy=policy,
            copies=copies,
            budget=pulls,
            clock=clock,
            until_gone=pubsub.tracking_backlog("pulling"),
            spending=pubsub.spending(),
            watermark_object=lake.watermark_object("tracking"),
            contract=judged_by,
        )
        _remember(lake, Side.TRACKING, "tracking", tracked.persisted)
        lake.folded(tracked.state)
        observer_of(lake).tracked(tracked)
        pace.aim(closings.expected(tracked.decision))
        watermark = tracked.decision.watermark
        said = f"{tracked.decision.sentence()}. {tracked.persisted.messages} messages tracked; "
        # A hint for people: the next tick goes on from the lake.
        cursor = f"entry {tracked.state.number}, watermark {'none' if watermark is None else watermark.isoformat()}"

        choose = partial(next_request, runs, lake, watermark, clock.now())
        request = asking.request("tracking", choose, context.log)
        events = tracking_events(settings, tracked)
        return request.result(settings, context.log, said, asset_events=events, cursor=cursor)

    return tracking


def landing_sensor(
    settings: Settings, clock: Clock, pace: Pace, tracking: Pace, at_work: AtWork
) -> dg.SensorDefinition:
    """Land what the base subscription delivers, shortly before each tick of `tracking`."""
    budget, judged_by = tick_budget(settings, Side.BASE), settings.judged_by

    @ticking_sensor(
        settings,
        "landing",
        waits=True,
        required_resource_keys=keys_of(settings, PUBSUB, LAKE),
        description=(
            f"Every {format_duration(settings.watermark.tick)}: pulls the base subscription, appends to "
            f"{HEARTBEATS.to_user_string()} and {QUARANTINED.to_user_string()}, and acknowledges what is durable. "
            "Pauses while a run lands instead."
        ),
    )
    def landing(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        pubsub, lake = pubsub_of(context, settings), lake_of(context, settings)
        decides_at = tracking.next_at
        pace.aim(None if decides_at is None else decides_at - LANDS_BEFORE)
        pace.wait()
        runs, now = Runs(context.instance, settings), clock.now()
        if (run := run_at_work(runs, now, settings)) is not None:
            pubsub.base().close()
            said = dg.SkipReason(f"run {run[:8]} lands and tracks: its readers land instead")
            return dg.SensorResult(skip_reason=said)
        heartbeats, quarantine = lake.new_files("landing")
        with at_work.working():
            landed = land(
                pubsub.base(),
                heartbeats=heartbeats,
                quarantine=quarantine,
                log=lake.tracking_log("landing"),
                reader=lake.judge("landing"),
                budget=budget,
                clock=clock,
                backlog=pubsub.base_backlog("landing"),
                spending=pubsub.spending(),
                contract=judged_by,
            )
        _remember(lake, Side.BASE, "landing", landed)
        observer_of(lake).landed(landed)
        said = dg.SkipReason(landing_sentence(landed))
        return dg.SensorResult(skip_reason=said, asset_events=landing_events(settings, landed))

    return landing


def _remember(lake: LakeResource, side: Side, sensor: str, came: Ingested) -> None:
    """Keep what other sensors and people are told of a tick."""
    watch, waits = watch_of(lake), came.waiting.sentence()
    watch.leaves_more[side], watch.waiting[side] = came.leaves_more, waits
    note_problem(lake, sensor, waits)
