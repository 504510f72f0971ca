"""The tuning report: for each tried band, how many messages are late and how far the watermark lags, as figures and as
sentences."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from itertools import accumulate
from typing import Any

from tidemark.pipeline.clock import format_duration, from_us, iso
from tidemark.pipeline.lake.tables.quarantine import RejectedPayload, by_stream
from tidemark.pipeline.phrases import at_most, lag_text, percent, words
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.tuning.disorder import MAX_LAGS, Disorder, Distribution, LagBound, Side, lag_bound
from tidemark.pipeline.tuning.sweep import BANDS, TARGETS, BandOutcome, Recommendation, Tuning, Variant, Workload, tune
from tidemark.pipeline.watermark.policy import Policy

SINCE = timedelta(hours=24)
"""Default length of the time that a report on a lake covers. A day has the traffic of every hour, and takes about four
minutes to replay."""

TARGET_LATE_SHARE = 0.0001
"""Default target for the fraction of late messages: one in ten thousand."""

SHOWN_QUANTILE = 0.05
"""Value of `watermark.quantile` that a report tries in addition if the settings have no quantile."""

AS_FRESH_SECONDS = 0.2
"""Two median lags count as equal if they differ by at most this number of seconds."""

BLAME = ("beyond_band", "max_seconds", "streams")
QUANTILES = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0))


@dataclass(frozen=True, slots=True)
class Asked:
    """The parameters of a report.

    `made_at`: the time at which the report is made.
    `since`: for a report on a lake, the length of the time before `made_at` that the report covers.
    `target`: the target for the late share.
    `bands`: the bands to try.
    `targets`: further targets for the late share. The report names the smallest band that meets each of them.
    """

    settings: Settings
    made_at: datetime
    since: timedelta = SINCE
    target: float = TARGET_LATE_SHARE
    bands: Sequence[timedelta] = BANDS
    targets: Sequence[float] = TARGETS

    @property
    def begins(self) -> datetime:
        """The start of the time that a report on a lake covers."""
        return self.made_at - self.since

    def without_slack(self) -> "Asked":
        """Return the same parameters without the slack of readings, for a trace whose times are exact."""
        exact = self.settings.watermark.model_copy(update={"slack": timedelta(0)})
        return replace(self, settings=self.settings.model_copy(update={"watermark": exact}))


@dataclass(frozen=True, slots=True)
class TuningReport:
    """The tuning report on one source. `present` and `band` are the variant and the band in the settings. `target` is
    the target for the late share. `rejected_payloads` are rejected messages with readable times, which `disorder`
    leaves out."""

    source: str
    made_at: datetime
    present: Variant
    band: timedelta
    target: float
    tuning: Tuning
    disorder: Disorder
    rejected_payloads: Sequence[RejectedPayload] = ()

    @property
    def now(self) -> BandOutcome:
        """The outcome with the present settings."""
        return self.tuning.at(self.present, self.band)

    @property
    def rules(self) -> tuple[Variant, Variant]:
        """The rules `band` and `frontier`, both with the quantile in the settings."""
        return self.tuning.variants[0], self.tuning.variants[1]

    @property
    def lag_bound(self) -> LagBound | None:
        """The smallest tried `max_lag` of at least twice the band, such that at most the target share of the messages
        lag more. None if no tried value is large enough."""
        return lag_bound(self.disorder.lag, self.band, self.target)

    def recommended(self, variant: Variant) -> Recommendation:
        """Return the recommendation for a variant: the smallest band that meets the target."""
        return self.tuning.recommended(variant, self.target)


def make_report(
    workload: Workload, disorder: Disorder, source: str, asked: Asked, *, with_quantiles: bool = True
) -> TuningReport:
    """Make the report: replay the same ticks with each band, under the rules `band` and `frontier`, with the quantile
    in the settings. If the settings have no quantile, `with_quantiles` also tries SHOWN_QUANTILE. If the settings
    derive the slack from the band, the slack is derived again for each band."""
    settings = asked.settings

    def policy_of(variant: Variant, band: timedelta) -> Policy:
        watermark = settings.watermark.model_copy(update={**asdict(variant), "band": band})
        return settings.model_copy(update={"watermark": watermark}).policy

    present = settings.policy
    quantiles = [0.0, SHOWN_QUANTILE] if with_quantiles and not present.quantile else [present.quantile]
    variants = [variant for each in quantiles for variant in (Variant("band", each), Variant("frontier", each))]
    bands, targets = {*asked.bands, present.band}, {*asked.targets, asked.target}
    tuning = tune(workload, variants, policy_of, bands, targets)
    own = variants[1 if present.rule == "frontier" else 0]
    return TuningReport(source, asked.made_at, own, present.band, asked.target, tuning, disorder)


def sentences(report: TuningReport) -> list[str]:
    """Return the report as sentences, the most important one first."""
    now, disorder = report.now, report.disorder
    said = [
        f"With the present band of {format_duration(report.band)} and the rule {report.present.name}, "
        f"{percent(now.late_share)} of {now.landed:,} messages are late; the watermark is {behind(now)}.",
        recommendation_sentence(report),
        *_comparison(report),
    ]
    half, most, worst = (disorder.disorder.quantile(share) for share in (0.5, 0.99, 1.0))
    said.append(
        f"Half of the messages are out of order by at most {words(half)}, 99 % by at most {words(most)}, the worst by "
        f"{words(worst)}; {percent(disorder.beyond_band / disorder.messages)} by more than the band."
    )
    said.append(lag_bound_sentence(disorder.lag, report.lag_bound))
    blamed = [blame_sentence(disorder, side) for side in disorder.sides]
    return [*said, *filter(None, [*blamed, rejected_sentence(report.rejected_payloads, disorder)])]


def recommendation_sentence(report: TuningReport) -> str:
    """Return a sentence with the recommended bands, such as `For at most 0.01 % late: 14s under the rule band (the
    watermark 18.2s behind), 12s under …`"""
    parts = []
    for variant in report.rules:
        found = report.recommended(variant)
        place = ""
        if found.outcome is not None and (lag := found.outcome.lag_p50) is not None:
            free = _as_fresh(report.tuning, found.outcome)
            besides = "" if free == found.outcome.band else f", and no further with bands up to {format_duration(free)}"
            place = f" (the watermark {lag_text(lag)}{besides})"
        parts.append(f"{found} under the rule {variant.name}{place}")
    return f"For {at_most(report.target)}: {', '.join(parts)}."


def _as_fresh(tuning: Tuning, outcome: BandOutcome) -> timedelta:
    """Return the widest tried band with which the watermark lags no more than in this outcome. A wider band does not
    add lag if something other than the band limits the watermark."""
    widest = outcome.band
    for other in tuning.of(outcome.variant):
        if other.band > widest and other.lag_p50 is not None and outcome.lag_p50 is not None:
            if other.lag_p50 > outcome.lag_p50 + AS_FRESH_SECONDS:
                break
            widest = other.band
    return widest


def _comparison(report: TuningReport) -> list[str]:
    band, frontier = report.rules
    here, there = report.tuning.at(band, report.band), report.tuning.at(frontier, report.band)
    said = []
    if here.lag_p50 is not None and there.lag_p50 is not None:
        ours, theirs = percent(here.late_share), percent(there.late_share)
        price = "as many messages late" if ours == theirs else f"{theirs} of the messages late instead of {ours}"
        said.append(
            f"At the same band of {format_duration(report.band)} the rule frontier is "
            f"{_fresher(here.lag_p50 - there.lag_p50)} at the median, with {price}."
        )
    enough, frontier_enough = report.recommended(band).outcome, report.recommended(frontier).outcome
    if enough and frontier_enough and enough.lag_p50 is not None and frontier_enough.lag_p50 is not None:
        said.append(
            f"If each rule has the band that it needs for {at_most(report.target)}, the rule frontier is "
            f"{_fresher(enough.lag_p50 - frontier_enough.lag_p50)}."
        )
    return said


def lag_bound_sentence(lag: Distribution, found: LagBound | None) -> str:
    """Return a sentence about the recommended `max_lag`, such as `With max_lag = 5m, a slow clock would hold the
    watermark …`"""
    worst = words(max(lag.seconds[-1], 0.0))
    if found is None:
        most = format_duration(MAX_LAGS[-1])
        return f"No max_lag up to {most} is large enough: the worst message is published {worst} after its event."
    passed = percent(found.passed_over_share)
    return (
        f"With max_lag = {format_duration(found.max_lag)}, a slow clock would hold the watermark back by at most "
        f"max_lag plus the band; {passed} of the messages would be passed over (the worst is published {worst} after "
        "its event)."
    )


def _fresher(seconds: float) -> str:
    said = words(abs(seconds))
    return "just as fresh" if said == "0s" else f"{said} {'fresher' if seconds > 0 else 'staler'}"


def facts_of(report: TuningReport) -> dict[str, Any]:
    """Return the report as plain values for JSON: durations in seconds, shares as fractions, times as text."""
    disorder, bound = report.disorder, report.lag_bound
    return {
        "source": report.source,
        "made_at": iso(report.made_at),
        "published_from": iso(from_us(disorder.first_publish_us)),
        "published_until": iso(from_us(disorder.last_publish_us)),
        "messages": disorder.messages,
        "rejected": disorder.rejected,
        "streams": disorder.streams,
        "ticks": report.tuning.ticks,
        "says": sentences(report),
        "present": _outcome(report.now),
        "target_late_share": report.target,
        "max_lag_seconds": None if bound is None else bound.max_lag.total_seconds(),
        "passed_over_share": None if bound is None else bound.passed_over_share,
        "recommended": [_recommendation(each) for each in report.tuning.recommendations],
        "outcomes": [_outcome(each) for each in report.tuning.outcomes],
        "publish_less_event_seconds": {"min": disorder.lag.seconds[0], **quantiles_of(disorder.lag)},
        "disorder_seconds": quantiles_of(disorder.disorder),
        "disorder_beyond_band": disorder.beyond_band,
        "rejected_payloads": by_stream(report.rejected_payloads),
        "rejected_payloads_that_delay": by_stream(those_that_delay(report.rejected_payloads, disorder)),
        **{f"{side}_{name}": getattr(found, name) for name in BLAME for side, found in disorder.sides.items()},
        **{f"{side}est": [asdict(each) for each in found.worst] for side, found in disorder.sides.items()},
    }


def quantiles_of(distribution: Distribution) -> dict[str, float]:
    """Return the reported quantiles of a distribution, in seconds, keyed by name."""
    return {name: distribution.quantile(share) for name, share in QUANTILES}


def _outcome(outcome: BandOutcome) -> dict[str, Any]:
    return {
        **asdict(outcome.variant),
        "band_seconds": outcome.band.total_seconds(),
        "landed": outcome.landed,
        "late": outcome.late,
        "late_share": outcome.late_share,
        "lag_p50_seconds": outcome.lag_p50,
        "lag_p99_seconds": outcome.lag_p99,
    }


def _recommendation(recommendation: Recommendation) -> dict[str, Any]:
    found = {} if recommendation.outcome is None else _outcome(recommendation.outcome)
    return {
        **asdict(recommendation.variant),
        "target_late_share": recommendation.target,
        **{name: found.get(name) for name in ("band_seconds", "late_share", "lag_p50_seconds")},
        "largest_band_tried_seconds": recommendation.largest.band.total_seconds(),
    }


def behind(outcome: BandOutcome) -> str:
    """Return a phrase for the watermark's lag, at the median and at the 99th percentile of the ticks."""
    if outcome.lag_p50 is None or outcome.lag_p99 is None:
        return "not set yet"
    most = words(outcome.lag_p99) if outcome.lag_p50 >= 0 else lag_text(outcome.lag_p99)
    return f"{lag_text(outcome.lag_p50)} at the median, {most} at the 99th percentile"


SECOND_US = 1_000_000

FEW_STREAMS = 0.1
"""Maximum fraction of all streams that counts as "a few streams"."""

MOST_STREAMS = 0.5
"""Maximum fraction of streams that a sentence lists by name: of all streams, or of the slow (or fast) ones."""

NEARLY_ALL = 0.8
"""A few streams are named as the cause of slow (or fast) messages if they sent at least this fraction of them."""

MOST_LAG_LESS = 0.99
"""A rejected message counts as delaying the watermark if this fraction of the landed messages lag less."""

STREAMS_NAMED = 5
"""Maximum number of streams named in the sentence about rejected messages."""


def those_that_delay(rejected: Sequence[RejectedPayload], disorder: Disorder) -> list[RejectedPayload]:
    """Return the rejected messages that lag more than nearly all landed messages (MOST_LAG_LESS)."""
    usual_us = disorder.lag.quantile(MOST_LAG_LESS) * SECOND_US
    return [message for message in rejected if message.lag_us > usual_us]


def rejected_sentence(rejected: Sequence[RejectedPayload], disorder: Disorder) -> str | None:
    """Return a sentence about rejected messages that may delay the watermark, with their streams; None if there are no
    such messages."""
    if not (delaying := those_that_delay(rejected, disorder)):
        return None
    streams = by_stream(delaying)
    named = [f"{count:,} of {stream}" for stream, count in streams.items()]
    if len(named) > STREAMS_NAMED:
        others = sum(list(streams.values())[STREAMS_NAMED:])
        named = [*named[:STREAMS_NAMED], f"{others:,} of {len(named) - STREAMS_NAMED:,} other streams"]
    worst = words(max(message.lag_us for message in delaying) / SECOND_US)
    return (
        "Some messages whose payload was rejected have readable times, and lag more than 99 % of the landed messages, "
        f"up to {worst}: {_listed(named)}. Although rejected, such a message holds the watermark if it lags no more "
        "than the band, or if tracking does not receive its payload."
    )


def blame_sentence(disorder: Disorder, side: Side) -> str | None:
    """Return a sentence about the slow streams, or about the fast ones; None if the messages have no streams."""
    if not disorder.streams:
        return None
    found = disorder.sides[side]
    worst, messages, streams = found.worst, found.beyond_band, found.streams
    if not messages:
        return f"No stream is {side}: no message is {side} by more than the band of {format_duration(disorder.band)}."
    share = percent(messages / disorder.messages)
    if not streams:
        return f"No stream is {side} by more than the band; {share} of the messages are, but these have no stream."
    head = (
        f"{streams:,} of {disorder.streams:,} streams {'is' if streams == 1 else 'are'} {side} by more than the band: "
        f"{share} of the messages, by up to {words(found.max_seconds)}"
    )
    names = [each.stream for each in worst]
    if streams <= len(worst) and streams <= max(1, disorder.streams * MOST_STREAMS):
        return f"{head}. {'It is' if streams == 1 else 'They are'} {_listed(names[:streams])}."
    few = max(1, min(disorder.streams * FEW_STREAMS, streams * MOST_STREAMS))
    blamed = list(accumulate(each.blame(side)[0] for each in worst))
    needed = next((number for number, theirs in enumerate(blamed, 1) if theirs >= NEARLY_ALL * messages), None)
    if needed is not None and needed <= few:
        return f"{head}; {percent(blamed[needed - 1] / messages)} of these are from {_listed(names[:needed])}."
    if streams > disorder.streams * FEW_STREAMS:
        return f"{head}; they are from too many streams to name a few as the cause."
    return f"{head}; the worst are {_listed(names[:3])}."


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
