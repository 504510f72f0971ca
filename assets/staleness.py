"""The sensor that looks after what is late, missed or lost, and asks for stale windows again."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import dagster as dg

from assets.checks import evaluation_of, late_result, lost_result, missed_result
from assets.requests import attempts_of, pause_of, stale_request
from pipeline.clock import EPOCH, SystemClock
from pipeline.quality.audit import audit
from pipeline.quality.missed import Missed
from pipeline.quality.status import LOST_WITHIN, late_since
from pipeline.settings import Settings
from pipeline.windows import Window
from resources.lake import LakeResource

USER = "staleness"
AUDIT_EVERY = timedelta(minutes=5)
ASKED_AGAIN_AFTER = timedelta(minutes=1)
"""Where late heartbeats drip in, their windows are computed again at most so often."""


COUNTS = ("missed", "stale_windows", "mended", "late", "late_copies", "lost_at_least", "lost_at_most")
"""What is news when it changes; how many rows there are by now is not."""


@dataclass
class Memory:
    """What one code server remembers between ticks; a new one reports once more, and asks once more."""

    reported: dict[str, tuple[bool, Sequence[object]]] = field(default_factory=dict)
    audited_at: datetime = EPOCH
    asked: dict[Window, datetime] = field(default_factory=dict)

    def news(self, results: Sequence[dg.AssetCheckResult]) -> list[dg.AssetCheckEvaluation]:
        """Those that say something else than the last of their check."""
        found = []
        for result in results:
            evaluation = evaluation_of(result)
            said = (evaluation.passed, [evaluation.metadata.get(name) for name in COUNTS])
            if self.reported.get(evaluation.check_name) != said:
                self.reported[evaluation.check_name] = said
                found.append(evaluation)
        return found


def staleness_sensor(settings: Settings, job_name: str) -> dg.SensorDefinition:
    """Evaluate the checks, and request the stale windows that the policy wants computed again."""
    windowing, lookback = settings.windowing, settings.windows.lookback
    clock, memory = SystemClock(), Memory()

    @dg.sensor(
        name="staleness",
        job_name=job_name,
        minimum_interval_seconds=int(settings.watermark.tick.total_seconds()),
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=(
            "Counts what is late, missed and lost outside of the pipeline, evaluates the asset checks of it, and "
            f'requests stale windows again: recompute_missed = "{settings.windows.recompute_missed}".'
        ),
    )
    def staleness(context: dg.SensorEvaluationContext, lake: LakeResource) -> dg.SensorResult:
        now, watermark = clock.now(), lake.tracking_log(USER).catch_up().watermark
        checker = lake.staleness(USER, windowing, lookback)
        missed = checker.step()
        if checker.checked is not None:
            lake.checked(USER).keep(checker.checked)
        late = lake.late(USER, windowing).since(late_since(watermark, now))
        results = [late_result(late, settings)]
        if not missed.left:
            results.insert(0, missed_result(missed, settings))
        if now - memory.audited_at >= AUDIT_EVERY:
            log, heartbeats, quarantine = lake.tracking_log(USER), lake.heartbeats(USER), lake.quarantine(USER)
            results.append(lost_result(audit(log, heartbeats, quarantine, now - LOST_WITHIN), settings))
            memory.audited_at = now
        events, said = memory.news(results), "; ".join(str(result.description) for result in results)
        if missed.left:
            reason = (
                f"{said}. A long check of what is missed is under way: {missed.left} commits, manifests, files or "
                "hours of the tables are still to be looked at, and then perhaps others; the next tick goes on"
            )
            return dg.SensorResult(skip_reason=dg.SkipReason(reason), asset_events=list(events))
        kept_since = lake.kept_windows(windowing).since()
        stale = to_compute_again(missed, watermark, settings.windows.recompute_within, kept_since)
        stale = [window for window in stale if now - memory.asked.get(window, EPOCH) >= ASKED_AGAIN_AFTER]
        pause = pause_of(context.instance, job_name, now) if stale else None
        if pause is None:
            attempts = attempts_of(context.instance, job_name) if stale else []
            request = stale_request(stale, now, attempts=attempts, max_windows=settings.windows.max_windows_per_run)
            if request.windows:
                memory.asked = {
                    window: asked for window, asked in memory.asked.items() if now - asked < ASKED_AGAIN_AFTER
                } | dict.fromkeys(request.windows, now)
                context.log.info(request.sentence)
                return dg.SensorResult(run_requests=[request.as_run_request()], asset_events=list(events))
            pause = request.sentence
        return dg.SensorResult(skip_reason=dg.SkipReason(f"{said}. {pause}"), asset_events=list(events))

    return staleness


def to_compute_again(
    missed: Missed, watermark: datetime | None, within: timedelta, kept_since: datetime | None
) -> list[Window]:
    """The stale windows that end less than `within` before the watermark, and are kept."""
    if watermark is None:
        return []
    stale = [found.window for found in missed.stale if watermark - found.window.end < within]
    return [window for window in stale if kept_since is None or window.start >= kept_since]
