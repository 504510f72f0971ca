"""The sensor that evaluates the checks of what is late, missed or lost, and requests stale windows again."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import dagster as dg

from assets.checks import evaluation_of, late_result, lost_result, missed_result
from assets.requests import attempts_of, pause_of, stale_request
from pipeline.clock import EPOCH, SystemClock
from pipeline.quality.affected import MissedHeartbeats
from pipeline.quality.audit import audit
from pipeline.quality.status import LOST_WITHIN, late_since
from pipeline.settings import Settings
from pipeline.windows import Window
from resources.lake import LakeResource

USER = "staleness"
AUDIT_EVERY = timedelta(minutes=5)
"""The audit reads an hour of both tables, and a loss is not urgent."""

REQUEST_EVERY = timedelta(minutes=1)
"""A window that late heartbeats drip into is requested at most this often."""

COUNTS = ("missed", "stale_windows", "mended", "late", "late_copies", "lost_at_least", "lost_at_most")
"""A check is reported again when one of these changes; a growing number of rows alone is no news."""


@dataclass
class Memory:
    """What one code server remembers between ticks. A new one reports once more, and requests once more."""

    reported: dict[str, tuple[bool, Sequence[object]]] = field(default_factory=dict)
    audited_at: datetime = EPOCH
    requested: dict[Window, datetime] = field(default_factory=dict)

    def news(self, results: Sequence[dg.AssetCheckResult]) -> list[dg.AssetCheckEvaluation]:
        """The results that differ from the last one of the same check."""
        found = []
        for result in results:
            evaluation = evaluation_of(result)
            outcome = (evaluation.passed, [evaluation.metadata.get(name) for name in COUNTS])
            if self.reported.get(evaluation.check_name) != outcome:
                self.reported[evaluation.check_name] = outcome
                found.append(evaluation)
        return found

    def requestable(self, stale: Sequence[Window], now: datetime) -> list[Window]:
        """The stale windows that were not requested just now."""
        self.requested = {window: at for window, at in self.requested.items() if now - at < REQUEST_EVERY}
        return [window for window in stale if window not in self.requested]


def staleness_sensor(settings: Settings, job_name: str) -> dg.SensorDefinition:
    """The sensor for these settings."""
    windowing, windows, clock, memory = settings.windowing, settings.windows, SystemClock(), Memory()

    @dg.sensor(
        name="staleness",
        job_name=job_name,
        minimum_interval_seconds=int(settings.watermark.tick.total_seconds()),
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=(
            "Counts what is late, missed and lost outside of the pipeline, evaluates the asset checks of it, and "
            f'requests stale windows again: recompute_missed = "{windows.recompute_missed}".'
        ),
    )
    def staleness(context: dg.SensorEvaluationContext, lake: LakeResource) -> dg.SensorResult:
        now, watermark = clock.now(), lake.tracking_log(USER).catch_up().watermark
        check = lake.staleness(USER, windowing, windows.lookback)
        missed = check.step()
        check.keep()
        late = lake.late(USER, windowing).since(late_since(watermark, now))
        results = [late_result(late, settings)]
        if not missed.left:
            results.insert(0, missed_result(missed, settings))
        if now - memory.audited_at >= AUDIT_EVERY:
            log, heartbeats, quarantine = lake.tracking_log(USER), lake.heartbeats(USER), lake.quarantine(USER)
            results.append(lost_result(audit(log, heartbeats, quarantine, now - LOST_WITHIN), settings))
            memory.audited_at = now
        events, said = [*memory.news(results)], "; ".join(str(result.description) for result in results)

        def no_request(why: str) -> dg.SensorResult:
            return dg.SensorResult(skip_reason=dg.SkipReason(f"{said}. {why}"), asset_events=events)

        if missed.left:
            return no_request(
                f"A long check of what is missed is under way: {missed.left} commits, manifests or hours of the "
                "tables are left, and perhaps more after them; the next tick goes on"
            )
        kept_since = lake.kept_windows(windowing).since()
        stale = memory.requestable(to_compute_again(missed, watermark, windows.recompute_within, kept_since), now)
        pause = pause_of(context.instance, job_name, now) if stale else None
        if pause is not None:
            return no_request(pause)
        attempts = attempts_of(context.instance, job_name) if stale else []
        request = stale_request(stale, now, attempts=attempts, max_windows=windows.max_windows_per_run)
        if not request.windows:
            return no_request(request.sentence)
        memory.requested |= dict.fromkeys(request.windows, now)
        context.log.info(request.sentence)
        return dg.SensorResult(run_requests=[request.as_run_request()], asset_events=events)

    return staleness


def to_compute_again(
    missed: MissedHeartbeats, watermark: datetime | None, within: timedelta, kept_since: datetime | None
) -> list[Window]:
    """The stale windows that end less than `within` before the watermark, and are kept."""
    if watermark is None:
        return []
    stale = [found.window for found in missed.stale if watermark - found.window.end < within]
    return [window for window in stale if kept_since is None or window.start >= kept_since]
