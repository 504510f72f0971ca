"""The two ticks as sensors: each gathers what its tick needs and reports the result to Dagster."""

from dataclasses import replace
from datetime import timedelta

import dagster as dg

from assets.drain import draining
from assets.events import decision_cursor, landing_events, landing_sentence, tracking_events
from assets.observed import HEARTBEATS, QUARANTINED, TRACKING_HISTOGRAM, WATERMARK
from assets.requests import attempts_of, next_request, pause_of
from pipeline.clock import SystemClock
from pipeline.durations import format_duration
from pipeline.heartbeat import HeartbeatReader
from pipeline.settings import Settings
from pipeline.settings_sections import BudgetSettings
from pipeline.ticks.budget import Budget
from pipeline.ticks.landing import land
from pipeline.ticks.tracking import track
from resources.lake import LakeResource
from resources.pubsub import PubSubResource

WHILE_DRAINING = timedelta(seconds=2)
"""The longest that a tracking tick pulls while a run drains. It suffices for what is published meanwhile, and decisions
stay on time."""


def tracking_sensor(settings: Settings, job_name: str) -> dg.SensorDefinition:
    """Track what was published, decide the watermark, and request the windows that closed."""
    reader, policy = HeartbeatReader(settings.contract), settings.policy
    budget, windowing = budget_of(settings.track), settings.windowing
    clock = SystemClock()

    @dg.sensor(
        name="tracking",
        job_name=job_name,
        minimum_interval_seconds=int(settings.watermark.tick.total_seconds()),
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=(
            f"Every {format_duration(settings.watermark.tick)}: pulls the tracking subscription, persists the "
            f"histogram snapshot, decides {WATERMARK.to_user_string()}, and requests one run over the windows that "
            f"closed. Keeps {TRACKING_HISTOGRAM.to_user_string()} up to date."
        ),
    )
    def tracking(context: dg.SensorEvaluationContext, pubsub: PubSubResource, lake: LakeResource) -> dg.SensorResult:
        pubsub.sweep()
        run = draining(context.instance, clock.now(), settings.drain)
        tracked = track(
            pubsub.tracking(),
            tracking_backlog=pubsub.tracking_backlog(),
            base_backlog=pubsub.base_backlog(),
            log=lake.tracking_log("tracking"),
            reader=reader,
            policy=policy,
            budget=budget if run is None else replace(budget, max_time=min(budget.max_time, WHILE_DRAINING)),
            clock=clock,
        )
        now = clock.now()
        events, cursor = tracking_events(tracked), decision_cursor(tracked.decision, tracked.state.number)
        pause = pause_of(context.instance, job_name, now)
        if pause is None:
            request = next_request(
                tracked.decision.watermark,
                now,
                heartbeats=lake.heartbeats("tracking"),
                diffs=lake.diffs("tracking"),
                kept=lake.kept_windows(windowing),
                attempts=attempts_of(context.instance, job_name),
                max_windows=settings.windows.max_windows_per_run,
            )
            if request.windows:
                context.log.info(request.sentence)
                return dg.SensorResult(
                    run_requests=[request.as_run_request()], asset_events=list(events), cursor=cursor
                )
            pause = request.sentence
        sentence = f"{tracked.decision.sentence()}. {tracked.messages} messages tracked; {pause}"
        return dg.SensorResult(skip_reason=dg.SkipReason(sentence), asset_events=list(events), cursor=cursor)

    return tracking


def landing_sensor(settings: Settings) -> dg.SensorDefinition:
    """Land what the base subscription delivers."""
    reader, budget, clock = HeartbeatReader(settings.contract), budget_of(settings.land), SystemClock()

    @dg.sensor(
        name="landing",
        minimum_interval_seconds=int(settings.watermark.tick.total_seconds()),
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=(
            f"Every {format_duration(settings.watermark.tick)}: pulls the base subscription, appends to "
            f"{HEARTBEATS.to_user_string()} and {QUARANTINED.to_user_string()}, and acknowledges what is durable. "
            "Pauses while a run drains a backlog."
        ),
    )
    def landing(context: dg.SensorEvaluationContext, pubsub: PubSubResource, lake: LakeResource) -> dg.SensorResult:
        run = draining(context.instance, clock.now(), settings.drain)
        if run is not None:
            return dg.SensorResult(
                skip_reason=dg.SkipReason(f"run {run[:8]} drains the backlog: its readers land instead")
            )
        landed = land(
            pubsub.base(),
            heartbeats=lake.heartbeats("landing"),
            quarantine=lake.quarantine("landing"),
            log=lake.tracking_log("landing"),
            reader=reader,
            budget=budget,
            clock=clock,
        )
        return dg.SensorResult(
            skip_reason=dg.SkipReason(landing_sentence(landed)), asset_events=list(landing_events(landed))
        )

    return landing


def budget_of(settings: BudgetSettings) -> Budget:
    """A tick's budget from the settings."""
    return Budget(settings.max_messages, settings.max_bytes, settings.max_seconds, settings.batch_messages)
