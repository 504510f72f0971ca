"""The checks of late, missed and lost heartbeats, and the sensor that evaluates them and requests stale windows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from typing import cast

import dagster as dg

from tidemark.assets.catalog import HEARTBEAT_DIFFS, HEARTBEATS, QUARANTINED, key_of, ticking_sensor
from tidemark.assets.fields import fields_check, fields_result
from tidemark.assets.ingest import watch_of
from tidemark.assets.requests import OneAsks, Request, next_request
from tidemark.assets.runs import Runs
from tidemark.assets.subscriptions import seen_subscriptions, subscriptions_check
from tidemark.assets.watching import observer_of
from tidemark.assets.watermark_age import watermark_age_check, watermark_age_result
from tidemark.pipeline.clock import EPOCH, Clock, iso
from tidemark.pipeline.durations import format_duration
from tidemark.pipeline.errors import CorruptObject
from tidemark.pipeline.printable import printable
from tidemark.pipeline.quality.affected import MissedHeartbeats, not_known
from tidemark.pipeline.quality.audit import audit
from tidemark.pipeline.quality.passed_over import PassedOver, read_passed_over
from tidemark.pipeline.quality.quarantined import read_quarantine_share
from tidemark.pipeline.quality.status import LOST_WITHIN, late_since
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import NEVER
from tidemark.pipeline.watermark.holding import passed_over
from tidemark.pipeline.windows import Window
from tidemark.resources.keys import LAKE, PUBSUB, keys_of, lake_of, pubsub_of
from tidemark.resources.lake import LakeResource

MISSED, LATE, LOST_OUTSIDE, PASSED_OVER = "missed", "late", "lost_outside", "passed_over"
QUARANTINE_SHARE = "quarantine_share"
NAMED = 20
"""Windows, streams or minutes that a check's metadata names."""

AUDIT_EVERY = timedelta(minutes=5)
"""The audit and the check `passed_over` read an hour of the tables, `quarantine_share` the newest files,
`fields_present` their statistics, the check `subscriptions` asks Pub/Sub twice, and what they find is not urgent."""

CHECK_EVERY, STEPS_AT_ONCE = timedelta(minutes=1), 3
"""How often what is late and missed is counted, if ticks are not further apart, and how many steps of a long check are
taken then. In a bucket, each look at the tables' newest commits costs a dozen calls."""

REQUEST_EVERY = timedelta(minutes=1)
"""A window that late heartbeats drip into is requested at most this often."""

COUNTS = (
    *("missed", "stale_windows", "mended", "late", "late_copies", "lost_at_least", "lost_at_most", "passed_over"),
    *("breaks", "dangers", "quarantined", "most_frequent_reason", "null_fields"),
)
"""A check is reported again when one of these changes; a growing number of rows alone is no news."""


def asset_checks(settings: Settings, clock: Clock) -> list[dg.AssetChecksDefinition]:
    """The checks for running by hand. The sensor `staleness` evaluates them on its own."""
    user, needed = "checks", keys_of(settings, LAKE)
    diffs, heartbeats = key_of(settings, HEARTBEAT_DIFFS), key_of(settings, HEARTBEATS)

    @dg.asset_check(asset=diffs, name=MISSED, required_resource_keys=needed)
    def missed(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        """How many heartbeats landed after their window was computed, which has not been computed again."""
        return missed_result(lake_of(context, settings).staleness(user).check(), settings)

    @dg.asset_check(asset=heartbeats, name=LATE, required_resource_keys=needed)
    def late(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        """How many of the last day's heartbeats first landed below the watermark."""
        lake = lake_of(context, settings)
        return late_result(lake, user, lake.state(user).watermark, clock.now())

    @dg.asset_check(asset=heartbeats, name=LOST_OUTSIDE, required_resource_keys=needed)
    def lost_outside(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        """Messages that tracking saw, that base has passed within an hour, and that never landed: after a seek forward,
        an expiry, or another consumer's acknowledgements on base."""
        return lost_result(lake_of(context, settings), user, clock.now())

    @dg.asset_check(asset=heartbeats, name=PASSED_OVER, required_resource_keys=needed)
    def passed_over(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        """How many of the last hour's heartbeats lag more than `watermark.max_lag` and do not hold the watermark."""
        return passed_over_result(lake_of(context, settings), user, clock.now())

    @dg.asset_check(asset=key_of(settings, QUARANTINED), name=QUARANTINE_SHARE, required_resource_keys=needed)
    def quarantine_share(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        """Which share of what landed within an hour was rejected, mostly for which reason: a contract that does not fit
        the messages parks them."""
        return quarantine_result(lake_of(context, settings), user, clock.now())

    of_heartbeats = [late, lost_outside, passed_over, fields_check(settings, clock)]
    of_others = [quarantine_share, subscriptions_check(settings), watermark_age_check(settings, clock)]
    return [missed, *of_heartbeats, *of_others]


def missed_result(missed: MissedHeartbeats, settings: Settings) -> dg.AssetCheckResult:
    """The check `missed`: an error if stale windows are never computed again automatically, else a warning."""
    return dg.AssetCheckResult(
        asset_key=key_of(settings, HEARTBEAT_DIFFS),
        check_name=MISSED,
        passed=missed.total <= settings.checks.max_missed and not missed.damaged,
        severity=(
            dg.AssetCheckSeverity.ERROR if settings.windows.recompute_missed == NEVER else dg.AssetCheckSeverity.WARN
        ),
        description=(
            f"{missed.total} heartbeats missed in {len(missed.by_window)} windows; {len(missed.stale)} windows are "
            f"stale; {missed.mended} were missed before and are not any more"
            f"{_unknown(MISSED, missed.damaged)}"
        ),
        metadata={
            "missed": missed.total,
            "stale_windows": len(missed.stale),
            "mended": missed.mended,
            "heartbeats_version": missed.heartbeats_version,
            "by_window": dg.MetadataValue.json(first_of(missed.by_window)),
            "by_stream": dg.MetadataValue.json(most_of(missed.by_stream)),
            "stale": dg.MetadataValue.md(listed([stale.sentence for stale in missed.stale])),
        },
    )


def _unknown(what: str, damaged: Mapping[str, str]) -> str:
    return f"; {not_known(what, damaged)}" if damaged else ""


def late_result(lake: LakeResource, user: str, watermark: datetime | None, now: datetime) -> dg.AssetCheckResult:
    """The check `late`: a warning, since late heartbeats have landed and are computed with their windows."""
    late = lake.late(user).since(late_since(watermark, now))
    return dg.AssetCheckResult(
        asset_key=key_of(lake.settings, HEARTBEATS),
        check_name=LATE,
        passed=late.share <= lake.settings.checks.max_late_share and not late.damaged,
        severity=dg.AssetCheckSeverity.WARN,
        description=(
            f"{late.total} late heartbeats of {late.rows} rows ({late.share:.3%}) with event times since "
            f"{iso(late.since)}, and {late.copies} late copies; `tidemark tune` says which band would have been "
            "enough. What a requeue landed is among them, whatever the band"
            f"{_unknown(LATE, late.damaged)}"
        ),
        metadata={
            "late": late.total,
            "late_copies": late.copies,
            "late_share": late.share,
            "rows": late.rows,
            "by_window": dg.MetadataValue.json(first_of(late.by_window)),
            "by_stream": dg.MetadataValue.json(most_of(late.by_stream)),
        },
    )


def lost_result(lake: LakeResource, user: str, now: datetime) -> dg.AssetCheckResult:
    """The check `lost_outside`: an error, since only a seek of base to before the loss brings the messages back."""
    landed = lake.staleness(user).heartbeats
    found = audit(lake.past(user), landed, lake.quarantine(user), now - LOST_WITHIN)
    where = "base has passed nothing yet"
    if found.since is not None and found.before is not None:
        where = f"published from {iso(found.since)} to {iso(found.before)}"
    return dg.AssetCheckResult(
        asset_key=key_of(lake.settings, HEARTBEATS),
        check_name=LOST_OUTSIDE,
        passed=found.at_least <= lake.settings.checks.max_lost and not found.damaged,
        severity=dg.AssetCheckSeverity.ERROR,
        description=(
            f"{found.at_least} messages lost for certain, {found.at_most} at most, of {found.tracked} tracked and "
            f"{found.landed} landed, {where}{_unknown('lost', found.damaged)}"
        ),
        metadata={
            "lost_at_least": found.at_least,
            "lost_at_most": found.at_most,
            "tracked": found.tracked,
            "landed": found.landed,
            "by_minute": dg.MetadataValue.json(
                {iso(minute.minute): [minute.at_least, minute.at_most] for minute in found.minutes[:NAMED]}
            ),
        },
    )


def passed_over_result(lake: LakeResource, user: str, now: datetime) -> dg.AssetCheckResult:
    """The check `passed_over`: a warning, since what is passed over has landed and is computed with its windows."""
    max_lag, description = lake.settings.watermark.max_lag, "max_lag is not set: nothing is passed over"
    found, tracked = PassedOver(), 0
    if max_lag is not None:
        found = read_passed_over(lake.staleness(user).heartbeats, max_lag, now - LOST_WITHIN, now)
        tracked = passed_over(lake.state(user).histogram, max_lag)
        description = (
            f"{found.total} of the {found.rows} rows ({found.share:.3%}) that were published in the last hour lag more "
            f"than {format_duration(max_lag)} (max_lag) and hold nobody; by_stream names their streams. Mend their "
            f"clocks, or raise max_lag if they are to be waited for{_unknown('passed over', found.damaged)}"
        )
    return dg.AssetCheckResult(
        asset_key=key_of(lake.settings, HEARTBEATS),
        check_name=PASSED_OVER,
        passed=found.share <= lake.settings.checks.max_late_share and not found.damaged,
        severity=dg.AssetCheckSeverity.WARN,
        description=description,
        metadata={
            "passed_over": found.total,
            "passed_over_share": found.share,
            "rows": found.rows,
            "tracked": tracked,
            "by_stream": dg.MetadataValue.json(first_of(found.by_stream)),
        },
    )


def quarantine_result(lake: LakeResource, user: str, now: datetime) -> dg.AssetCheckResult:
    """The check `quarantine_share`: a warning, since a requeue lands what waits once the contract is mended."""
    found = read_quarantine_share(lake.staleness(user).heartbeats, lake.quarantine(user), now - LOST_WITHIN)
    detail, mostly = printable(found.detail or ""), ""
    waiting = "".join(f"; {printable(said)}" for said in watch_of(lake).waiting.values() if said)
    if found.reason is not None:
        mostly = (
            f", the newest mostly as {found.reason}: {detail}. Mend [message] or the publisher; then "
            "`tidemark requeue` lands what passes"
        )
    return dg.AssetCheckResult(
        asset_key=key_of(lake.settings, QUARANTINED),
        check_name=QUARANTINE_SHARE,
        passed=found.share <= lake.settings.checks.max_quarantine_share,
        severity=dg.AssetCheckSeverity.WARN,
        description=(
            f"about {found.quarantined} of the {found.landed + found.quarantined} rows that landed in the last hour "
            f"({found.share:.3%}) were quarantined{mostly}{waiting}"
        ),
        metadata={
            "quarantined": found.quarantined,
            "landed": found.landed,
            "quarantine_share": found.share,
            "most_frequent_reason": found.reason or "none",
            "newest_detail": detail,
        },
    )


def evaluation_of(result: dg.AssetCheckResult) -> dg.AssetCheckEvaluation:
    """A check's result as the event that a sensor reports."""
    return dg.AssetCheckEvaluation(**result._asdict())


def first_of(counts: Mapping[str, int]) -> dict[str, int]:
    """The first NAMED counts, as the metadata shows them."""
    return dict(islice(counts.items(), NAMED))


def most_of(counts: Mapping[str, int]) -> dict[str, int]:
    """The largest NAMED counts."""
    return dict(sorted(counts.items(), key=lambda entry: -entry[1])[:NAMED])


def listed(sentences: Sequence[str]) -> str:
    """A Markdown list of at most NAMED sentences, and how many more there are."""
    lines = [f"- {sentence}" for sentence in sentences[:NAMED]]
    return "\n".join([*lines, *([f"- and {len(sentences) - NAMED} more"] if len(sentences) > NAMED else [])])


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


def staleness_sensor(settings: Settings, clock: Clock, job: dg.JobDefinition, asking: OneAsks) -> dg.SensorDefinition:
    user, windows, memory = "staleness", settings.windows, Memory()
    audits: list[Callable[[LakeResource, str, datetime], dg.AssetCheckResult]] = [lost_result, quarantine_result]
    audits += [passed_over_result] if settings.watermark.max_lag is not None else []
    audits += [fields_result] if settings.message.fields else []

    @ticking_sensor(
        settings,
        user,
        at_least=CHECK_EVERY,
        job=job,
        required_resource_keys=keys_of(settings, LAKE, PUBSUB),
        description=(
            "Counts what is late, missed and lost outside of the pipeline, evaluates the asset checks of it, and "
            f'requests stale windows again: recompute_missed = "{windows.recompute_missed}".'
        ),
    )
    def staleness(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        lake, pubsub = lake_of(context, settings), pubsub_of(context, settings)
        now, watermark = clock.now(), lake.state(user).watermark
        check = lake.staleness(user)
        steps = iter(range(1, STEPS_AT_ONCE))
        missed = check.check(lambda: next(steps, None) is not None)
        check.keep()
        results = [late_result(lake, user, watermark, now)]
        if not missed.left:
            results.insert(0, missed_result(missed, settings))
            observer_of(lake).missed(missed.total)
        if now - memory.audited_at >= AUDIT_EVERY:
            for one in audits:
                try:
                    results.append(one(lake, user, now))
                except (
                    CorruptObject
                ) as error:  # the others, and the request, do not wait until somebody has repaired it
                    context.log.error("%s is not known: %s", one.__name__, error)
                    continue
                if one is lost_result:
                    observer_of(lake).lost(cast("int", results[-1].metadata["lost_at_least"].value))
            results += seen_subscriptions(settings, pubsub)
            memory.audited_at = now
        results.append(watermark_age_result(settings, watermark, now))
        if missed.left:
            request = Request(
                (),
                f"A long check of what is missed is under way: {missed.left} commits, manifests or hours of the "
                "tables are left, and perhaps more after them; the next tick goes on",
            )
        else:
            kept_since = lake.kept_windows().since()
            stale = to_compute_again(missed, watermark, windows.recompute_within, kept_since)
            stale = memory.requestable(stale, now)

            def choose() -> Request:
                if not stale:
                    return Request((), "no stale window is to be computed again")
                return next_request(Runs(context.instance, settings), lake, watermark, now, stale)

            request = asking.request(user, choose, context.log)
            memory.requested |= dict.fromkeys(request.windows, now)
        said = "; ".join(str(result.description) for result in results)
        return request.result(settings, context.log, f"{said}. ", asset_events=memory.news(results))

    return staleness


def to_compute_again(
    missed: MissedHeartbeats, watermark: datetime | None, within: timedelta, kept_since: datetime | None
) -> list[Window]:
    """The stale windows that end less than `within` before the watermark, and are kept."""
    if watermark is None:
        return []
    stale = [found.window for found in missed.stale if watermark - found.window.end < within]
    return [window for window in stale if kept_since is None or window.start >= kept_since]
