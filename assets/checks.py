"""The checks of late, missed and lost heartbeats, and the sensor that evaluates them and requests stale windows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from typing import cast

import dagster as dg

from tidemark.assets.catalog import HEARTBEAT_DIFFS, HEARTBEATS, QUARANTINED, ticking_sensor
from tidemark.assets.declared_check import Look, check_of
from tidemark.assets.fields import fields_present
from tidemark.assets.ingest import watch_of
from tidemark.assets.requests import OneAsks, Request, next_request
from tidemark.assets.runs import Runs
from tidemark.assets.subscriptions import seen_subscriptions, subscriptions
from tidemark.assets.watching import observer_of
from tidemark.assets.watermark_age import watermark_age
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
from tidemark.pipeline.watermark.holding import passed_over as count_passed_over
from tidemark.pipeline.windows import Window
from tidemark.resources.keys import LAKE, PUBSUB, keys_of, lake_of, pubsub_of

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
    return [check.by_hand(settings, clock.now) for check in CHECKS]


@check_of(HEARTBEAT_DIFFS)
def missed(look: Look) -> dg.AssetCheckResult:
    """How many heartbeats landed after their window was computed, which has not been computed again."""
    return missed_result(look.lake.staleness(look.user).check(), look.lake.settings)


def missed_result(missed: MissedHeartbeats, settings: Settings) -> dg.AssetCheckResult:
    """The check `missed`: an error if stale windows are never computed again automatically, else a warning."""
    return dg.AssetCheckResult(
        passed=missed.total <= settings.checks.max_missed and not missed.damaged,
        severity=(
            dg.AssetCheckSeverity.ERROR if settings.windows.recompute_missed == NEVER else dg.AssetCheckSeverity.WARN
        ),
        description=(
            f"{missed.total} heartbeats missed in {len(missed.by_window)} windows; {len(missed.stale)} windows are "
            f"stale; {missed.mended} were missed before and are not any more"
            f"{_unknown('missed', missed.damaged)}"
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


@check_of(HEARTBEATS)
def late(look: Look) -> dg.AssetCheckResult:
    """How many of the last day's heartbeats first landed below the watermark."""
    # A warning, since late heartbeats have landed and are computed with their windows.
    found = look.lake.late(look.user).since(late_since(look.watermark, look.now))
    return dg.AssetCheckResult(
        passed=found.share <= look.lake.settings.checks.max_late_share and not found.damaged,
        severity=dg.AssetCheckSeverity.WARN,
        description=(
            f"{found.total} late heartbeats of {found.rows} rows ({found.share:.3%}) with event times since "
            f"{iso(found.since)}, and {found.copies} late copies; `tidemark tune` says which band would have been "
            "enough. What a requeue landed is among them, whatever the band"
            f"{_unknown('late', found.damaged)}"
        ),
        metadata={
            "late": found.total,
            "late_copies": found.copies,
            "late_share": found.share,
            "rows": found.rows,
            "by_window": dg.MetadataValue.json(first_of(found.by_window)),
            "by_stream": dg.MetadataValue.json(most_of(found.by_stream)),
        },
    )


@check_of(HEARTBEATS)
def lost_outside(look: Look) -> dg.AssetCheckResult:
    """Messages that tracking saw, that base has passed within an hour, and that never landed: after a seek forward, an
    expiry, or another consumer's acknowledgements on base."""
    # An error, since only a seek of base to before the loss brings the messages back.
    lake, user = look.lake, look.user
    found = audit(lake.past(user), lake.staleness(user).heartbeats, lake.quarantine(user), look.now - LOST_WITHIN)
    where = "base has passed nothing yet"
    if found.since is not None and found.before is not None:
        where = f"published from {iso(found.since)} to {iso(found.before)}"
    return dg.AssetCheckResult(
        passed=found.at_least <= look.lake.settings.checks.max_lost and not found.damaged,
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


@check_of(HEARTBEATS)
def passed_over(look: Look) -> dg.AssetCheckResult:
    """How many of the last hour's heartbeats lag more than `watermark.max_lag` and do not hold the watermark."""
    # A warning, since what is passed over has landed and is computed with its windows.
    lake, now = look.lake, look.now
    max_lag, description = look.lake.settings.watermark.max_lag, "max_lag is not set: nothing is passed over"
    found, tracked = PassedOver(), 0
    if max_lag is not None:
        found = read_passed_over(lake.staleness(look.user).heartbeats, max_lag, now - LOST_WITHIN, now)
        tracked = count_passed_over(lake.state(look.user).histogram, max_lag)
        description = (
            f"{found.total} of the {found.rows} rows ({found.share:.3%}) that were published in the last hour lag more "
            f"than {format_duration(max_lag)} (max_lag) and hold nobody; by_stream names their streams. Mend their "
            f"clocks, or raise max_lag if they are to be waited for{_unknown('passed over', found.damaged)}"
        )
    return dg.AssetCheckResult(
        passed=found.share <= look.lake.settings.checks.max_late_share and not found.damaged,
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


@check_of(QUARANTINED)
def quarantine_share(look: Look) -> dg.AssetCheckResult:
    """Which share of what landed within an hour was rejected, mostly for which reason: a contract that does not fit the
    messages parks them."""
    # A warning, since a requeue lands what waits once the contract is mended.
    lake, user = look.lake, look.user
    found = read_quarantine_share(lake.staleness(user).heartbeats, lake.quarantine(user), look.now - LOST_WITHIN)
    detail, mostly = printable(found.detail or ""), ""
    waiting = "".join(f"; {printable(said)}" for said in watch_of(lake).waiting.values() if said)
    if found.reason is not None:
        mostly = (
            f", the newest mostly as {found.reason}: {detail}. Mend [message] or the publisher; then "
            "`tidemark requeue` lands what passes"
        )
    return dg.AssetCheckResult(
        passed=found.share <= look.lake.settings.checks.max_quarantine_share,
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


AUDITS = (lost_outside, quarantine_share, passed_over, fields_present)
"""The checks that are evaluated every AUDIT_EVERY, beside `subscriptions`."""

CHECKS = (missed, late, *AUDITS, subscriptions, watermark_age)


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

    def news(self, evaluations: Sequence[dg.AssetCheckEvaluation]) -> list[dg.AssetCheckEvaluation]:
        """The evaluations that differ from the last one of the same check."""
        found = []
        for evaluation in evaluations:
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
    idle = {passed_over: settings.watermark.max_lag is None, fields_present: not settings.message.fields}
    audits = [check for check in AUDITS if not idle.get(check)]

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
        look = Look(lake_of(context, settings), pubsub_of(context, settings), user, clock.now())
        lake, now, watermark = look.lake, look.now, look.watermark
        staleness = lake.staleness(user)
        steps = iter(range(1, STEPS_AT_ONCE))
        found = staleness.check(lambda: next(steps, None) is not None)
        staleness.keep()
        results = [late.reported(look)]
        if not found.left:
            results.insert(0, missed.reported(look, missed_result(found, settings)))
            observer_of(lake).missed(found.total)
        if now - memory.audited_at >= AUDIT_EVERY:
            for audited in audits:
                try:
                    results.append(audited.reported(look))
                except CorruptObject as error:  # the others, and the request, do not wait until somebody repairs it
                    context.log.error("%s is not known: %s", audited.name, error)
                    continue
                if audited is lost_outside:
                    observer_of(lake).lost(cast("int", results[-1].metadata["lost_at_least"].value))
            results += [subscriptions.reported(look, seen) for seen in seen_subscriptions(look)]
            memory.audited_at = now
        results.append(watermark_age.reported(look))
        if found.left:
            request = Request(
                (),
                f"A long check of what is missed is under way: {found.left} commits, manifests or hours of the "
                "tables are left, and perhaps more after them; the next tick goes on",
            )
        else:
            kept_since = lake.kept_windows().since()
            stale = to_compute_again(found, watermark, windows.recompute_within, kept_since)
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
