"""The sensor that evaluates the checks of late, missed and lost heartbeats, finds the stale windows, and counts runs in
the metrics."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import cast
from uuid import uuid4

import dagster as dg

from tidemark.assets import checks
from tidemark.assets.catalog import HEARTBEATS, QUARANTINED, WATERMARK, key_of
from tidemark.assets.checks import CheckInput, DeclaredCheck
from tidemark.assets.scheduler.requests import OLDER, OlderWindows
from tidemark.assets.scheduler.runs import Runs
from tidemark.assets.sensors.by_runs import tell_runs
from tidemark.assets.sensors.watching import recorder_of, ticking_sensor
from tidemark.pipeline.clock import EPOCH, Clock, is_recent
from tidemark.pipeline.errors import CorruptObject, InvalidSettings, LakeFull, LakeUnwritable
from tidemark.pipeline.observe.recorder import CHECKED
from tidemark.pipeline.orchestrator.names import name_of
from tidemark.pipeline.quality.landings import MissedHeartbeats
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.windows import Spans, Window
from tidemark.resources.keys import PUBSUB, pubsub_of
from tidemark.resources.lake import LakeResource

logger = logging.getLogger(__name__)

USER = "staleness"
"""Name of the sensor. `LakeResource` caches the sensor's objects under this name."""

AUDIT_EVERY = timedelta(minutes=5)
"""Interval of the checks that are not urgent. `lost_outside` and `passed_over` read an hour of the tables,
`quarantine_share` and `fields_present` read the newest files or their statistics, and `subscriptions` calls Pub/Sub
twice."""

CHECK_EVERY, STEPS_AT_ONCE = timedelta(minutes=1), 3
"""Counts of late and missed heartbeats begin at least CHECK_EVERY apart, because each count costs at least a dozen
requests if the lake is in a bucket. A tick does at most STEPS_AT_ONCE steps of a count, and the next tick continues.
Each step has a bounded size."""

COUNTS = (
    *("missed", "stale_windows", "mended", "late", "late_copies", "lost_at_least", "lost_at_most", "untracked"),
    *("passed_over", "breaks", "dangers", "quarantined", "most_frequent_reason", "null_fields"),
)
"""A check is reported again only if its verdict or one of these figures has changed, or if another figure has appeared
or disappeared (zero and empty count as absent). Row counts are not listed, as they change whenever messages land."""


@dataclass
class StalenessMemory:
    """The sensor's memory of its reports. A restarted code server reports everything once more. `cursor` is the cursor
    that the last tick gave to Dagster."""

    reported: dict[str, tuple[bool, Sequence[object], set[str]]] = field(default_factory=dict)
    audited_at: datetime = EPOCH
    cursor: str | None = None

    def news(self, evaluations: Sequence[dg.AssetCheckEvaluation], stored: str | None) -> list[dg.AssetCheckEvaluation]:
        """Return the evaluations that differ from the last reported evaluation of the same check. `stored` is the
        cursor that Dagster has stored. If it differs from the cursor that the last tick returned, Dagster may have lost
        that tick's reports, so return all evaluations."""
        if stored != self.cursor:
            self.reported.clear()
        found, self.cursor = [], uuid4().hex
        for evaluation in evaluations:
            known = {name for name, figure in evaluation.metadata.items() if figure.value}
            outcome = (evaluation.passed, [evaluation.metadata.get(name) for name in COUNTS], known)
            if self.reported.get(evaluation.check_name) != outcome:
                self.reported[evaluation.check_name] = outcome
                found.append(evaluation)
        return found


def staleness_sensor(settings: Settings, clock: Clock, *, counts: bool) -> dg.SensorDefinition:
    """Define the sensor that evaluates the checks. With `counts`, it also counts late and missed heartbeats, and finds
    the stale windows. The sensor `tracking` then requests runs for these windows."""
    memory, targets = StalenessMemory(), [key_of(settings, WATERMARK)]
    audits = [check for check in checks.AUDITS if check.is_due(settings)]
    about = "Checks the watermark's age, and both subscriptions for changes."
    if counts:
        targets += [key_of(settings, HEARTBEATS), key_of(settings, QUARANTINED)]
        about = (
            "Counts late, missed and lost heartbeats, evaluates their checks, and finds the stale windows to recompute "
            f'(recompute_missed = "{settings.windows.recompute_missed}").'
        )

    @ticking_sensor(settings, USER, PUBSUB, at_least=CHECK_EVERY, description=about, asset_selection=targets)
    def staleness(context: dg.SensorEvaluationContext, lake: LakeResource) -> dg.SensorResult:
        tell_runs(lake, Runs(context.instance, settings))
        look = CheckInput(lake, pubsub_of(context, settings), USER, clock.now())
        results, said = list[dg.AssetCheckEvaluation](), list[str]()
        if counts:
            results = [checks.late.reported(look)]
            try:
                found = _missed(look, context)
            except (CorruptObject, InvalidSettings) as error:  # a damaged table, or windows of another length
                reason = f"missed heartbeats cannot be counted: {error}"
                results.insert(0, checks.missed.reported(look, checks.verdict(passed=False, description=reason)))
                _recompute(look, ())
            else:
                if not found.left:
                    results.insert(0, checks.missed.reported(look, checks.missed_result(found, settings)))
                said = [_stale(look, found)]
        is_audit_due = not is_recent(memory.audited_at, look.now, AUDIT_EVERY)
        results += _audited(look, audits, context) if is_audit_due else []
        results.append(checks.watermark_age.reported(look))
        for result in results:
            for figure in CHECKED.keys() & result.metadata.keys():
                recorder_of(look.lake).counted(figure, cast("int", result.metadata[figure].value))
        said += _same_name(context.instance, name_of(settings, USER), look.now)
        skipped = dg.SkipReason("; ".join([*(str(result.description) for result in results), *said]))
        news = memory.news(results, context.cursor)
        if is_audit_due:
            memory.audited_at = look.now
        return dg.SensorResult(skip_reason=skipped, asset_events=news, cursor=memory.cursor)

    return staleness


def _same_name(instance: dg.DagsterInstance, sensor: str, now: datetime) -> list[str]:
    """Return a warning, which is also logged, if sensors of this name tick in several code locations."""
    locations = set[str]()
    for state in instance.schedule_storage.all_instigator_state() if instance.schedule_storage else ():
        ticked = getattr(state.instigator_data, "last_tick_start_timestamp", None) or 0.0
        if state.name == sensor and is_recent(datetime.fromtimestamp(ticked, UTC), now, 2 * CHECK_EVERY):
            locations.add(state.origin.repository_origin.code_location_origin.location_name)
    if len(locations) < 2:
        return []
    logger.warning(
        said := f"the sensor {sensor} ticks in the code locations {', '.join(sorted(locations))}: give each pipeline "
        "its own dagster.name, because Dagster treats assets with the same name as one"
    )
    return [said]


def _missed(look: CheckInput, context: dg.SensorEvaluationContext) -> MissedHeartbeats:
    staleness, steps = look.lake.staleness(look.user), iter(range(1, STEPS_AT_ONCE))
    found = staleness.check(lambda: next(steps, None) is not None)
    try:
        staleness.keep()
    except (LakeFull, LakeUnwritable) as error:  # only a restart needs it; watermark_age reports the lake
        context.log.warning("the checkpoint of the check for missed heartbeats was not written: %s", error)
    return found


def _audited(
    look: CheckInput, audits: Sequence[DeclaredCheck], context: dg.SensorEvaluationContext
) -> list[dg.AssetCheckEvaluation]:
    results = []
    for audited in audits:
        try:
            results.append(audited.reported(look))
        except CorruptObject as error:  # other audits do not wait for a repair
            context.log.error("the check %s could not be evaluated: %s", audited.name, error)
    return results + [checks.subscriptions.reported(look, seen) for seen in checks.seen_subscriptions(look)]


def _stale(look: CheckInput, found: MissedHeartbeats) -> str:
    """Tell the scheduler which stale windows to recompute. Return a sentence for the tick."""
    if found.left:
        _recompute(look, ())
        return (
            "the check for missed heartbeats is not finished: at least "
            f"{found.left} commits, manifests or hours of the tables are left; the next tick continues"
        )
    windows, kept_since = look.lake.settings.windows, look.lake.kept_windows(look.user).since()
    since = max(windows.first, kept_since or windows.first)  # runs over earlier windows are refused
    due = to_compute_again(found, look.state.watermark, windows.recompute_within, since)
    _recompute(look, due)
    return f"stale windows to recompute: {len(due)}" if due else "no stale window needs to be recomputed"


def _recompute(look: CheckInput, stale: Sequence[Window]) -> None:
    numbers = (look.lake.settings.windowing.number_of(window.start) for window in stale)
    counted = Spans(*(range(number, number + 1) for number in numbers))
    look.lake.kept.get(OLDER, OlderWindows).counted = counted, look.now


def to_compute_again(
    missed: MissedHeartbeats, watermark: datetime | None, within: timedelta, since: datetime
) -> list[Window]:
    """Return the stale windows that end after `watermark - within`, and do not start before `since`."""
    if watermark is None:
        return []
    stale = (found.window for found in missed.stale if found.window.start >= since)
    return [window for window in stale if watermark - window.end < within]
