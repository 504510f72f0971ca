"""Asset checks of landed data, the subscriptions and the watermark. The sensor `staleness` evaluates them, and users
can run each of them by hand."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from inspect import getdoc
from itertools import islice
from typing import Any, cast

import dagster as dg

from tidemark.assets.catalog import HEARTBEATS, QUARANTINED, WATERMARK, key_of
from tidemark.pipeline.clock import Clock, format_duration, iso, rough
from tidemark.pipeline.errors import PermissionMissing, PubSubError
from tidemark.pipeline.figures import counted
from tidemark.pipeline.phrases import percent, printable
from tidemark.pipeline.pubsub.readings import Subscriptions
from tidemark.pipeline.pubsub.requirements import Drift
from tidemark.pipeline.quality.failing import read_ticks
from tidemark.pipeline.quality.landings import MissedHeartbeats, late_since, unknown_sentence
from tidemark.pipeline.quality.lost import audit, untracked_sentence
from tidemark.pipeline.quality.recent import RECENT, read_null_fields, read_passed_over, read_quarantine_share
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import NEVER
from tidemark.pipeline.watermark.state import WatermarkState
from tidemark.resources.keys import LAKE, PUBSUB, keys_of, lake_of, pubsub_of
from tidemark.resources.lake import LakeResource

logger = logging.getLogger(__name__)

ERROR, WARN = dg.AssetCheckSeverity.ERROR, dg.AssetCheckSeverity.WARN

NAMED = 20
"""Maximum number of windows, streams or minutes that a check's metadata lists."""


@dataclass(frozen=True)
class CheckInput:
    """The input of a check: the lake, the subscriptions and the current time. `user` is the name under which
    `LakeResource` caches the objects that the check uses."""

    lake: LakeResource
    pubsub: Subscriptions
    user: str
    now: datetime

    @cached_property
    def state(self) -> WatermarkState:
        """The watermark's state from the tracking log, read once. Raises the errors of `LakeResource.state`."""
        return self.lake.state(self.user)


@dataclass(frozen=True, slots=True)
class DeclaredCheck:
    """A check of an asset. Its description in the UI is the docstring of `evaluate`."""

    asset: dg.AssetKey
    name: str
    evaluate: Callable[[CheckInput], dg.AssetCheckResult]
    is_due: Callable[[Settings], bool]
    """True if the check applies to these settings. Otherwise the check is not defined."""

    def key(self, settings: Settings) -> dg.AssetKey:
        """Return the key of the checked asset. With `pubsub.attach`, the checked asset is always the watermark."""
        return key_of(settings, WATERMARK if settings.pubsub.attach else self.asset)

    def by_hand(self, settings: Settings, now: Callable[[], datetime]) -> dg.AssetChecksDefinition:
        """Define the check so that users can run it by hand."""

        @dg.asset_check(
            asset=self.key(settings),
            name=self.name,
            description=getdoc(self.evaluate),
            required_resource_keys=keys_of(settings, LAKE, PUBSUB),
        )
        def checked(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
            return self.evaluate(CheckInput(lake_of(context, settings), pubsub_of(context, settings), "checks", now()))

        return checked

    def reported(self, look: CheckInput, result: dg.AssetCheckResult | None = None) -> dg.AssetCheckEvaluation:
        """Return the event for a sensor to report. It contains `result` or, without one, the result of a new
        evaluation."""
        found = result or self.evaluate(look)
        return evaluation_of(found._replace(asset_key=self.key(look.lake.settings), check_name=self.name))


def check_of(
    asset: dg.AssetKey, is_due: Callable[[Settings], bool] = lambda settings: not settings.pubsub.attach
) -> Callable[[Callable[[CheckInput], dg.AssetCheckResult]], DeclaredCheck]:
    """Return a decorator that turns a function into a check of `asset`, named after the function. By default, the check
    is not defined with `pubsub.attach`."""
    return lambda evaluate: DeclaredCheck(asset, evaluate.__name__, evaluate, is_due)


def verdict(
    *, passed: bool, description: str, severity: dg.AssetCheckSeverity = WARN, unknown: str = "", **metadata: Any
) -> dg.AssetCheckResult:
    """Build the result of a check. `unknown` says which figures are unknown because of damaged files. If it is not
    empty, the check does not pass."""
    passed, description = passed and not unknown, "; ".join(filter(None, (description, unknown)))
    return dg.AssetCheckResult(passed=passed, severity=severity, description=description, metadata=metadata)


def evaluation_of(result: dg.AssetCheckResult) -> dg.AssetCheckEvaluation:
    """Convert a check's result, which must name its asset and check, into the event that a sensor or a job reports."""
    return dg.AssetCheckEvaluation(**result._asdict())


@check_of(HEARTBEATS)  # on heartbeat_diffs, it would run for each partition that the UI materializes
def missed(look: CheckInput) -> dg.AssetCheckResult:
    """Count heartbeats that landed after their window was computed, unless the window has been recomputed since."""
    return missed_result(look.lake.staleness(look.user).check(), look.lake.settings)


def missed_result(missed: MissedHeartbeats, settings: Settings) -> dg.AssetCheckResult:
    """Build the result of the check `missed`: an error if stale windows are never recomputed automatically, else a
    warning."""
    return verdict(
        passed=not missed.total,
        severity=ERROR if settings.windows.recompute_missed == NEVER else WARN,
        description=(
            f"{counted(missed.total, 'heartbeat')} missed in {counted(len(missed.by_window), 'window')}; stale "
            f"windows: {len(missed.stale)}; missed earlier, now in recomputed windows: {missed.mended}"
        ),
        unknown=unknown_sentence("missed", missed.damaged),
        missed=missed.total,
        stale_windows=len(missed.stale),
        mended=missed.mended,
        heartbeats_version=missed.heartbeats_version,
        by_window=first_of(missed.by_window),
        by_stream=first_of(missed.by_stream),
        stale=dg.MetadataValue.md(listed([f"{stale.window}: {stale.why}" for stale in missed.stale])),
    )


@check_of(HEARTBEATS)
def late(look: CheckInput) -> dg.AssetCheckResult:
    """Count the late heartbeats of the last day: their event time was already below the watermark when they first
    landed."""
    # A warning, since late heartbeats have landed and are computed with their windows.
    found = look.lake.late(look.user).since(late_since(look.state.watermark, look.now))
    return verdict(
        passed=found.share <= look.lake.settings.checks.max_late_share,
        description=(
            f"late heartbeats: {found.total} of {counted(found.rows, 'row')} ({percent(found.share)}) with event times "
            f"since {iso(found.since)}; late copies: {found.copies}; `tidemark tune` says which band would have been "
            "enough. Late heartbeats that a requeue landed are included; no band prevents them"
        ),
        unknown=unknown_sentence("late", found.damaged),
        late=found.total,
        late_copies=found.copies,
        late_share=found.share,
        rows=found.rows,
        by_window=first_of(found.by_window),
        by_stream=first_of(found.by_stream),
    )


@check_of(HEARTBEATS)
def lost_outside(look: CheckInput) -> dg.AssetCheckResult:
    """Count messages that base lost in the last hour: tracking received them, and base no longer has them, but they
    never landed. Possible causes: a seek forward, an expiry, another consumer that acknowledges on base, or an
    emulator that restarted empty. Also count landed messages that tracking never received."""
    # An error, since only a seek of base to a time before the loss brings the messages back.
    lake = look.lake.of(look.user)
    kept_from, keep = look.lake.kept_windows(look.user).heartbeats_from(), look.lake.settings.housekeeping.quarantine
    found = audit(lake, look.now - RECENT, kept_from, keep)
    where = "because base's backlog has not been read yet"
    if found.since is not None and found.before is not None:
        where = f"published from {iso(found.since)} to {iso(found.before)}"
    if found.untracked:
        where += f". {untracked_sentence(found.untracked)}"
    return verdict(
        passed=not (found.at_least or found.untracked),
        severity=ERROR,
        description=(
            f"messages lost: {found.at_least} for certain, {found.at_most} at most, of {found.tracked} tracked and "
            f"{found.landed} landed, {where}"
        ),
        unknown=unknown_sentence("lost", found.damaged),
        lost_at_least=found.at_least,
        lost_at_most=found.at_most,
        tracked=found.tracked,
        landed=found.landed,
        untracked=found.untracked,
        by_minute={iso(minute.minute): [minute.at_least, minute.at_most] for minute in found.minutes[:NAMED]},
    )


@check_of(HEARTBEATS, is_due=lambda settings: settings.watermark.max_lag is not None and not settings.pubsub.attach)
def passed_over(look: CheckInput) -> dg.AssetCheckResult:
    """Count the last hour's heartbeats that were published more than `watermark.max_lag` after their event time. The
    watermark does not wait for them."""
    # A warning, since passed-over heartbeats have landed and are computed with their windows.
    lake, now = look.lake, look.now
    max_lag = cast("timedelta", lake.settings.watermark.max_lag)  # without it, the check is not defined
    found = read_passed_over(lake.of(look.user).heartbeats(), max_lag, now - RECENT, now)
    return verdict(
        passed=found.share <= lake.settings.checks.max_late_share,
        description=(
            f"{found.total} of the {found.rows} rows ({percent(found.share)}) that were published in the last hour lag "
            f"more than {format_duration(max_lag)} (max_lag) and do not delay the watermark; by_stream names their "
            "streams. Fix their clocks, or raise max_lag to make the watermark wait for them"
        ),
        unknown=unknown_sentence("passed over", found.damaged),
        passed_over=found.total,
        passed_over_share=found.share,
        rows=found.rows,
        tracked=look.state.histogram.passed_over(max_lag),
        by_stream=first_of(found.by_stream),
    )


@check_of(QUARANTINED)
def quarantine_share(look: CheckInput) -> dg.AssetCheckResult:
    """Compute the share of the last hour's messages that the message contract rejected. Name the most frequent
    reason."""
    # A warning, since a requeue lands the waiting messages once the contract is fixed.
    lake, tables = look.lake, look.lake.of(look.user)
    found = read_quarantine_share(tables.heartbeats(), tables.quarantine(), look.now - RECENT)
    detail, mostly = printable(found.detail or ""), ""
    waiting = "".join(f"; {printable(said)}" for one in lake.watch().came.values() if (said := one.waiting.sentence()))
    if found.reason is not None:
        mostly = (
            f"; most of the newest as {found.reason}: {detail}. Fix [message] or the publisher; then "
            "`tidemark quarantine --requeue` lands what passes"
        )
    return verdict(
        passed=found.share <= look.lake.settings.checks.max_quarantine_share,
        description=(
            f"about {found.quarantined} of the {found.landed + found.quarantined} messages of the last hour "
            f"({percent(found.share)}) were quarantined{mostly}{waiting}"
        ),
        quarantined=found.quarantined,
        landed=found.landed,
        quarantine_share=found.share,
        most_frequent_reason=found.reason or "none",
        newest_detail=detail,
    )


@check_of(HEARTBEATS, is_due=lambda settings: bool(settings.message.fields) and not settings.pubsub.attach)
def fields_present(look: CheckInput) -> dg.AssetCheckResult:
    """Find the fields of `[message.fields]` that are null in every heartbeat of the last hour. A field is null if the
    payload lacks it, or if its value is not of the configured kind."""
    # A warning, since the heartbeats land anyway, with their payloads.
    names = look.lake.settings.message.kinds
    rows, fields = read_null_fields(look.lake.of(look.user).heartbeats(), names, look.now - RECENT)
    description = f"each of the {len(names)} compared fields has values in the {rows} rows of the last hour"
    if not rows:
        description = "nothing landed in the last hour"
    elif fields:
        description = (
            f"{'; '.join(field.sentence() for field in fields)}: absent, null, or not of the "
            "configured kind. Fix [message.fields] or the publisher; `tidemark try` shows the fields of samples"
        )
    return verdict(
        passed=not fields,
        description=description,
        null_fields=", ".join(field.name for field in fields) or "none",
        rows=rows,
        null_rows={field.name: field.rows for field in fields},
        null_since={field.name: iso(field.since) for field in fields},
    )


@check_of(HEARTBEATS, is_due=lambda _: True)
def subscriptions(look: CheckInput) -> dg.AssetCheckResult:
    """Check that both subscriptions receive the same messages and keep them long enough."""
    return subscriptions_result(look.pubsub.drift())


def subscriptions_result(drift: Drift) -> dg.AssetCheckResult:
    """Build the result of the check `subscriptions`: an error if the watermark can no longer be trusted, or a warning
    if messages will be lost later."""
    wrong = [*drift.breaks, *drift.dangers]
    return verdict(
        passed=not wrong,
        severity=ERROR if drift.breaks else WARN,
        description="; ".join(wrong) or "both subscriptions meet all requirements",
        breaks=dg.MetadataValue.md(listed(drift.breaks)),
        dangers=dg.MetadataValue.md(listed(drift.dangers)),
        differences=dg.MetadataValue.md(listed(drift.differences)),
    )


def seen_subscriptions(look: CheckInput) -> list[dg.AssetCheckResult]:
    """Evaluate the check `subscriptions`. If a permission is missing, the check only warns. Log any other
    PubSubError and return no result, because the landing and tracking ticks already report it."""
    try:
        return [subscriptions.evaluate(look)]
    except PermissionMissing as error:
        return [subscriptions_result(Drift(dangers=(f"changes to the subscriptions would go unnoticed: {error}",)))]
    except PubSubError as error:
        logger.warning("cannot tell whether the subscriptions have changed: %s", error)
        return []


@check_of(WATERMARK, is_due=lambda _: True)
def watermark_age(look: CheckInput) -> dg.AssetCheckResult:
    """Check that ticks still decide the watermark, and that it is at most `checks.max_watermark_age` behind the clock.
    Without a watermark, the age is the time since tracking began. Before the first message, there is no age."""
    # An error, since no window closes meanwhile.
    settings, watermark = look.lake.settings, look.state.watermark
    bound, behind = settings.checks.max_watermark_age, look.state.behind(look.now)
    age = max(behind or timedelta(0), timedelta(0))
    standing = read_ticks(look.lake.of(look.user), settings, look.state.decision, look.now).standing
    if watermark is None:
        stands = "there is no watermark yet" + ("" if behind is None else f", {rough(age)} after tracking began")
    else:
        stands = f"the watermark {iso(watermark)} is {rough(age)} behind the clock"
    description = f"{stands}; checks.max_watermark_age allows {rough(bound)}. `tidemark explain` says why"
    if standing:
        description = f"{standing}; {description}"
    return verdict(
        passed=age <= bound and standing is None,
        severity=ERROR,
        description=description,
        watermark="" if watermark is None else iso(watermark),
        age_seconds=age.total_seconds(),
        max_age_seconds=bound.total_seconds(),
    )


AUDITS = (lost_outside, quarantine_share, passed_over, fields_present)
"""The checks that the sensor `staleness` evaluates every AUDIT_EVERY, along with the check `subscriptions`."""

CHECKS = (missed, late, *AUDITS, subscriptions, watermark_age)


def by_hand(settings: Settings, clock: Clock) -> list[dg.AssetChecksDefinition]:
    """Define the checks that apply to these settings, so that users can run them by hand."""
    return [check.by_hand(settings, clock.now) for check in CHECKS if check.is_due(settings)]


def first_of(counts: Mapping[str, int]) -> dict[str, int]:
    """Return the first entries of `counts`, at most NAMED."""
    return dict(islice(counts.items(), NAMED))


def listed(sentences: Sequence[str]) -> str:
    """Format sentences as a Markdown list, at most NAMED of them. The last line gives the number of omitted sentences,
    if any."""
    lines = [f"- {sentence}" for sentence in sentences[:NAMED]]
    return "\n".join([*lines, *([f"- and {len(sentences) - NAMED} more"] if len(sentences) > NAMED else [])])
