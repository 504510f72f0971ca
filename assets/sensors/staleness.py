"""The sensor that evaluates the checks of late, missed and lost heartbeats, and requests stale windows."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any, cast
from uuid import uuid4

import dagster as dg

from tidemark.assets import checks
from tidemark.assets.catalog import WATERMARK, key_of
from tidemark.assets.checks import CheckInput, DeclaredCheck
from tidemark.assets.scheduler.requests import Request, WindowChooser, next_request
from tidemark.assets.scheduler.runs import Runs
from tidemark.assets.sensors.watching import recorder_of, ticking_sensor
from tidemark.pipeline.clock import EPOCH, Clock, is_recent
from tidemark.pipeline.errors import CorruptObject, InvalidSettings, LakeFull, LakeUnwritable
from tidemark.pipeline.observe.recorder import CHECKED
from tidemark.pipeline.quality.landings import MissedHeartbeats
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.windows import Window
from tidemark.resources.keys import PUBSUB, pubsub_of
from tidemark.resources.lake import LakeResource

USER = "staleness"
"""Name of the sensor. `LakeResource` caches the sensor's objects under this name."""

AUDIT_EVERY = timedelta(minutes=5)
"""Interval of the checks that are not urgent. `lost_outside` and `passed_over` read an hour of the tables,
`quarantine_share` and `fields_present` read the newest files or their statistics, and `subscriptions` calls Pub/Sub
twice."""

CHECK_EVERY, STEPS_AT_ONCE = timedelta(seconds=50), 3
"""Counts of late and missed heartbeats begin at least CHECK_EVERY apart, because in a bucket, a count costs at least a
dozen requests. CHECK_EVERY is not a whole minute: otherwise each tick could coincide with a run over a live window of a
minute, and no stale window would ever be requested. A tick does at most STEPS_AT_ONCE steps of a count, and the next
tick continues. Each step has a bounded size."""

REQUEST_EVERY = timedelta(minutes=1)
"""Minimum interval between two requests of the same window. Without it, a window that keeps receiving late heartbeats
would be requested in every tick."""

COUNTS = (
    *("missed", "stale_windows", "mended", "late", "late_copies", "lost_at_least", "lost_at_most", "untracked"),
    *("passed_over", "breaks", "dangers", "quarantined", "most_frequent_reason", "null_fields"),
)
"""A check is reported again only if one of these figures has changed. Row counts are left out, since they change
whenever messages land."""


@dataclass
class StalenessMemory:
    """The sensor's memory of its reports and requests. A restarted code server reports and requests
    everything once more. `cursor` is the cursor that the last tick gave to Dagster."""

    reported: dict[str, tuple[bool, Sequence[object]]] = field(default_factory=dict)
    audited_at: datetime = EPOCH
    requested: dict[Window, datetime] = field(default_factory=dict)
    cursor: str | None = None

    def news(self, evaluations: Sequence[dg.AssetCheckEvaluation], stored: str | None) -> list[dg.AssetCheckEvaluation]:
        """Return the evaluations that differ from the last reported evaluation of the same check. `stored` is the
        cursor that Dagster has stored. If it differs from the cursor that the last tick returned, Dagster may have lost
        that tick's reports, so return all evaluations."""
        if stored != self.cursor:
            self.reported.clear()
        found, self.cursor = [], uuid4().hex
        for evaluation in evaluations:
            outcome = (evaluation.passed, [evaluation.metadata.get(name) for name in COUNTS])
            if self.reported.get(evaluation.check_name) != outcome:
                self.reported[evaluation.check_name] = outcome
                found.append(evaluation)
        return found


def staleness_sensor(
    settings: Settings, clock: Clock, job: dg.JobDefinition | None = None, asking: WindowChooser | None = None
) -> dg.SensorDefinition:
    """Define the sensor that evaluates the checks, and requests runs of `job` over stale windows. `job` is None if this
    pipeline lands nothing."""
    again, memory = settings.windows.recompute_missed, StalenessMemory()
    audits = [check for check in checks.AUDITS if check.is_due(settings)]
    about = "Checks the watermark's age, and both subscriptions for changes."
    # Dagster lets a sensor name jobs or assets.
    updates: dict[str, Any] = {"asset_selection": [key_of(settings, WATERMARK)]}
    if job is not None:
        about = (
            "Counts late heartbeats, missed ones and those lost outside of the pipeline, evaluates their checks, and "
            f'requests stale windows again: recompute_missed = "{again}".'
        )
        updates = {"job": job}

    @ticking_sensor(settings, USER, PUBSUB, at_least=CHECK_EVERY, description=about, **updates)
    def staleness(context: dg.SensorEvaluationContext, lake: LakeResource) -> dg.SensorResult:
        look = CheckInput(lake, pubsub_of(context, settings), USER, clock.now())
        results, request = list[dg.AssetCheckEvaluation](), Request((), "")
        if asking is not None:
            results = [checks.late.reported(look)]
            try:
                found = _missed(look, context.log)
            except (CorruptObject, InvalidSettings) as error:  # a damaged table, or windows of another length
                said = f"missed heartbeats cannot be counted: {error}"
                results.insert(0, checks.missed.reported(look, checks.verdict(passed=False, description=said)))
            else:
                if not found.left:
                    results.insert(0, checks.missed.reported(look, checks.missed_result(found, settings)))
                request = _request(context, look, found, asking, memory.requested)
        if not is_recent(memory.audited_at, look.now, AUDIT_EVERY):
            results += _audited(look, audits, context.log)
            memory.audited_at = look.now
        results.append(checks.watermark_age.reported(look))
        for result in results:
            for figure in CHECKED.keys() & result.metadata.keys():
                recorder_of(look.lake).counted(figure, cast("int", result.metadata[figure].value))
        said = "; ".join(str(result.description) for result in results)
        news = memory.news(results, context.cursor)
        return request.result(settings, context.log, f"{said}. ", asset_events=news, cursor=memory.cursor)

    return staleness


def _missed(look: CheckInput, log: logging.Logger) -> MissedHeartbeats:
    staleness, steps = look.lake.staleness(look.user), iter(range(1, STEPS_AT_ONCE))
    found = staleness.check(lambda: next(steps, None) is not None)
    try:
        staleness.keep()
    except (LakeFull, LakeUnwritable) as error:  # only a restart needs it; watermark_age reports the lake
        log.warning("the checkpoint of the check for missed heartbeats was not written: %s", error)
    return found


def _audited(look: CheckInput, audits: Sequence[DeclaredCheck], log: logging.Logger) -> list[dg.AssetCheckEvaluation]:
    results = []
    for audited in audits:
        try:
            results.append(audited.reported(look))
        except CorruptObject as error:  # other audits, and the request, do not wait for a repair
            log.error("the check %s could not be evaluated: %s", audited.name, error)
    return results + [checks.subscriptions.reported(look, seen) for seen in checks.seen_subscriptions(look)]


def _request(
    context: dg.SensorEvaluationContext,
    look: CheckInput,
    found: MissedHeartbeats,
    asking: WindowChooser,
    requested: dict[Window, datetime],
) -> Request:
    if found.left:
        return Request(
            (),
            f"A long check for missed heartbeats is under way: {found.left} commits, manifests or hours of the tables "
            "are left, and perhaps more after them; the next tick continues",
        )
    lake, settings = look.lake, look.lake.settings
    for window in [window for window, at in requested.items() if not is_recent(at, look.now, REQUEST_EVERY)]:
        del requested[window]
    due = to_compute_again(found, look.state.watermark, settings.windows.recompute_within, lake.kept_windows().since())
    if not (stale := [window for window in due if window not in requested]):
        return Request((), "no stale window needs to be recomputed")
    runs = Runs(context.instance, settings)
    choose = partial(next_request, runs, lake, look.state.watermark, look.now, stale)
    request = asking.request(USER, choose, context.log)
    requested |= dict.fromkeys(request.windows, look.now)
    return request


def to_compute_again(
    missed: MissedHeartbeats, watermark: datetime | None, within: timedelta, kept_since: datetime | None
) -> list[Window]:
    """Return the stale windows whose end is after `watermark - within`, and whose start is not before `kept_since`."""
    if watermark is None:
        return []
    stale = [found.window for found in missed.stale if watermark - found.window.end < within]
    return [window for window in stale if kept_since is None or window.start >= kept_since]
