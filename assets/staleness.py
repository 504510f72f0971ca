"""The sensor that evaluates the checks of what is late, missed or lost, and requests stale windows again."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import dagster as dg

from assets.checks import evaluation_of, late_result, lost_result, missed_result
from assets.requests import Request, stale_request
from pipeline.clock import EPOCH, SystemClock
from pipeline.quality.affected import MissedHeartbeats
from pipeline.services.dagster_names import COMPUTE_WINDOWS
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


def staleness_sensor(settings: Settings) -> dg.SensorDefinition:
    """The sensor for these settings."""
    windows, clock, memory = settings.windows, SystemClock(), Memory()

    @dg.sensor(
        name="staleness",
        job_name=COMPUTE_WINDOWS,
        minimum_interval_seconds=int(settings.watermark.tick.total_seconds()),
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=(
            "Counts what is late, missed and lost outside of the pipeline, evaluates the asset checks of it, and "
            f'requests stale windows again: recompute_missed = "{windows.recompute_missed}".'
        ),
    )
    def staleness(context: dg.SensorEvaluationContext, lake: LakeResource) -> dg.SensorResult:
        now, watermark = clock.now(), lake.tracking_log(USER).catch_up().watermark
        check = lake.staleness(USER)
        missed = check.step()
        check.keep()
        results = [late_result(lake, USER, watermark, now)]
        if not missed.left:
            results.insert(0, missed_result(missed, settings))
        if now - memory.audited_at >= AUDIT_EVERY:
            results.append(lost_result(lake, USER, now))
            memory.audited_at = now
        if missed.left:
            request = Request(
                (),
                f"A long check of what is missed is under way: {missed.left} commits, manifests or hours of the "
                "tables are left, and perhaps more after them; the next tick goes on",
            )
        else:
            kept_since = lake.kept_windows().since()
            stale = to_compute_again(missed, watermark, windows.recompute_within, kept_since)
            request = stale_request(context.instance, lake, memory.requestable(stale, now), now)
            memory.requested |= dict.fromkeys(request.windows, now)
        said = "; ".join(str(result.description) for result in results)
        return request.result(context, f"{said}. ", memory.news(results))

    return staleness


def to_compute_again(
    missed: MissedHeartbeats, watermark: datetime | None, within: timedelta, kept_since: datetime | None
) -> list[Window]:
    """The stale windows that end less than `within` before the watermark, and are kept."""
    if watermark is None:
        return []
    stale = [found.window for found in missed.stale if watermark - found.window.end < within]
    return [window for window in stale if kept_since is None or window.start >= kept_since]
