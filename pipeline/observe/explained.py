"""Explains a decision in two charts, and as plain facts (names with JSON values) for `tidemark explain --json`. The
plane chart shows the counted messages by publish time and event time. The lag chart shows the watermark's lag."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.pipeline.charts import Area, Chart, Heat, Line, Mark, linear, moments, picture
from tidemark.pipeline.clock import from_us, iso, rough, to_us
from tidemark.pipeline.errors import CorruptObject, LakeError
from tidemark.pipeline.figures import counted
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.log.history import decision_by, decision_in_force, first_decision, sampled, standing_before
from tidemark.pipeline.lake.log.tracking_log import TrackingLog
from tidemark.pipeline.lake.tables.heartbeats import Heartbeats
from tidemark.pipeline.lake.tables.quarantine import RejectedPayload, by_stream, rejected_payloads
from tidemark.pipeline.lake.tables.table import MOMENT
from tidemark.pipeline.phrases import lag_text
from tidemark.pipeline.quality.landings import Counts
from tidemark.pipeline.quality.recent import RECENT, read_passed_over
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.watermark.decision import BandEvidence, Decision
from tidemark.pipeline.watermark.explain.explanation import Explanation
from tidemark.pipeline.watermark.explain.explanation import explain as explain_decision
from tidemark.pipeline.watermark.histogram import COPY, Histogram, bucket_of, bucket_start, grouped
from tidemark.pipeline.watermark.situation import tracking_after_slack
from tidemark.pipeline.watermark.state import DecisionRecord, WatermarkState

SECOND = timedelta(seconds=1)

NAMED_STREAMS = 20
"""Maximum number of streams listed per cell. The streams with the most rows are listed."""


Facts = dict[str, Any]


def read_decided(log: TrackingLog, at: datetime | None = None) -> tuple[int, DecisionRecord] | None:
    """Return the number and the decision of a log entry: the decision in force at `at` or, if `at` is None, the newest
    one. Return None if there is no decision yet. Raises LakeError if the log cannot be read, or if the first
    decision was made after `at`."""
    if at is None:
        return decision_in_force(log)
    # Times are printed to the millisecond, so a copied time must find a decision anywhere within its millisecond.
    found = decision_by(log, at.replace(microsecond=at.microsecond // 1000 * 1000 + 999))
    if found is None and (first := first_decision(log)) is not None:
        raise LakeError(
            f"no decision was in force at {iso(at)}: the first in the log was made at {iso(first.decision.at)}. "
            "Choose this time or a later one"
        )
    return found


def read_explained(
    log: TrackingLog, number: int, decided: DecisionRecord, tick: timedelta
) -> tuple[Explanation, Facts]:
    """Explain the decision in log entry `number` from the entries before it. Return the explanation, and its content as
    plain facts. Parts that need a damaged entry are left out. Raises LakeError if the log cannot be read."""
    now, recent, before, problem = decided.decision.at, [decided.decision], None, None
    try:
        before = standing_before(log, number)
        recent = sampled(log, number, now - HOURS)
    except CorruptObject as error:
        problem = str(error)
    explanation, facts = explained(number, decided, before, problem)
    return explanation, {**facts, **history_facts(recent, tick, now)}


def explained(
    number: int, decided: DecisionRecord, before: WatermarkState | None, problem: str | None = None
) -> tuple[Explanation, Facts]:
    """Explain a decision from the state before it. Return the explanation, and its content as plain facts. If the state
    is lost, `before` is None, and `problem` is the cause. If the explanation is incomplete, the fact `problem` says
    why."""
    explanation = Explanation(decided.decision) if before is None else explain_decision(decided, before)
    if before is not None and explanation.alternatives is None:
        problem = "the decision does not follow from the entries before it; `tidemark replay --from-lake` compares them"
    decision, facts = decided.decision, decision_facts(decided.decision)
    pin = facts["pin"]
    return explanation, {
        **facts,
        "pin": pin and {**pin, "text": explanation.pin},
        "base_oldest_unacked": decision.base and decision.base.oldest_unacked,
        "tracking_oldest_unacked": decision.tracking and decision.tracking.oldest_unacked,
        "conditions": [asdict(condition) for condition in explanation.conditions],
        "messages_since_base": explanation.since_base,
        "messages_since_pin": explanation.since_pin,
        "moves": explanation.moves,
        "alternatives": explanation.alternatives,
        "explanation": explanation.sentences(),
        "log_entry": number,
        "problem": problem,
        "plane": before and plane_facts(before.histogram, decided),
    }


def read_by_stream(lake: Lake, settings: Settings, decided: DecisionRecord) -> tuple[Counts, Facts]:
    """Count the messages that concern a decision, per stream:
    - messages that lag more than `max_lag`, for which the watermark does not wait (also returned as `Counts`)
    - messages that the decision counted, although they were rejected for their payload
    - landed rows in the same cell of the histogram as the pin (the message that holds the watermark), and rejected
      payloads with the pin's publish second and event time

    Raises LakeError if the lake cannot be read.
    """
    decision, max_lag = decided.decision, decided.policy.max_lag
    at, pin, over = decision.at, decision.pin, Counts()
    if max_lag is not None:  # in the hour before the decision
        over = read_passed_over(lake.heartbeats(), max_lag, at - RECENT, at)
    rejected, pinning, landed = list[RejectedPayload](), list[RejectedPayload](), dict[str, int]()
    if decision.bound is not None:  # messages that the decision considered, rejected only for their payload
        start, requeued = decision.bound.start, lake.requeued().ids()
        rejected = rejected_payloads(lake.quarantine(), settings.contract, start, at, requeued)
    if pin is not None:
        times = pin.publish_bucket, to_us(pin.min_event_time)
        pinning = [one for one in rejected if (bucket_of(from_us(one.publish_us)), one.event_us) == times]
        second = bucket_start(bucket_of(pin.min_event_time))
        landed = landed_by_stream(lake.heartbeats(), pin.published_from, second, SECOND)
    return over, {
        "passed_over_by_stream": over.by_stream,
        "rejected_payloads_by_stream": by_stream(rejected),
        "rejected_payloads_that_pin": by_stream(pinning),
        "landed_at_pin_by_stream": landed,
    }


def landed_by_stream(
    heartbeats: Heartbeats, published: datetime, happened: datetime, size: timedelta
) -> dict[str, int]:
    """Count the landed rows of one cell of the histogram for each stream. Return the streams with the most rows, at
    most NAMED_STREAMS, in descending order. `published` and `happened` are the cell's first publish time and event
    time, and `size` is its width and height. Raises LakeError if a file cannot be read."""
    (wanted, partitions), event = heartbeats.published_in(published, published + size), pc.field("event_time")
    wanted &= event >= pa.scalar(happened, MOMENT)
    if happened + size <= published:  # otherwise the cell also counts event times after the publish time
        wanted &= event < pa.scalar(happened + size, MOMENT)
    found = Counter[str]()
    for rows in heartbeats.scanned(["stream_id"], wanted, partitions):
        found.update(rows["stream_id"].to_pylist())
    return dict(found.most_common(NAMED_STREAMS))


def decision_facts(decision: Decision) -> Facts:
    """Convert the outcome of a decision to plain facts."""
    pin = decision.pin
    return {
        "at": decision.at,
        "watermark": decision.watermark,
        "reason": decision.reason,
        "candidate": decision.candidate,
        "released_before": decision.released_before,
        "pin": pin and {"published_from": pin.published_from, "event_time": pin.min_event_time, "messages": pin.count},
    }


HOURS = timedelta(hours=3)
"""Length of the time range of the lag chart."""

MOST_CELLS, MOST_POINTS, MOST_HOLDS = 1500, 240, 8
"""Maximum numbers of drawn cells, of points in the lag chart, and of holds in the facts."""

SIZES = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 21_600, 86_400, 864_000, 8_640_000)

HOLD_TICKS = 3
"""Minimum length of a reported hold, in ticks without a change of the watermark."""

SHADES = 5


def plane_facts(histogram: Histogram, decided: DecisionRecord) -> dict[str, Any]:
    """Return the histogram's cells, merged into at most MOST_CELLS, and the times that the chart draws as lines, such
    as the readings of both subscriptions. A cell is a tuple of publish time, event time and count. The times are in
    seconds since the epoch."""
    decision, policy = decided.decision, decided.policy
    timed = histogram.event_bucket > COPY
    columns = histogram.publish_bucket[timed], histogram.event_bucket[timed], histogram.count[timed]
    for size in SIZES:
        cells = grouped([columns[0] // size, columns[1] // size, columns[2]], [np.add])
        if len(cells[0]) <= MOST_CELLS:
            break
    kept = [column[-MOST_CELLS:].tolist() for column in (cells[0] * size, cells[1] * size, cells[2])]
    edge = None if decision.tracking is None else tracking_after_slack(decision.tracking, policy) - policy.band
    return {
        "at": decision.at,
        "messages": int(columns[2].sum()),
        "without_event_time": histogram.messages - int(columns[2].sum()),
        "base": None if decision.base is None else decision.base.oldest_unacked,
        "tracking": None if decision.tracking is None else decision.tracking.oldest_unacked,
        "band_edge": edge,
        "anchor": decision.evidence.anchor if isinstance(decision.evidence, BandEvidence) else None,
        "watermark": decision.watermark,
        "pin": None if decision.pin is None else (decision.pin.published_from, decision.pin.min_event_time),
        "cell_seconds": size,
        "cells": list(zip(*kept, strict=True)),
    }


def in_order(decisions: Iterable[Decision]) -> list[Decision]:
    """Return the decisions of a log in order of time. Leave out a decision if a later one in the log has the same
    time or an earlier time, because the clock was set back."""
    found = list[Decision]()
    for one in decisions:
        while found and found[-1].at >= one.at:
            found.pop()
        found.append(one)
    return found


def history_facts(decisions: Sequence[Decision], tick: timedelta, now: datetime) -> dict[str, Any]:
    """Return the lag over time, as at most MOST_POINTS points, and the newest MOST_HOLDS holds, newest first.

    A hold is a period of at least HOLD_TICKS ticks without a change of the watermark, or without a decision. Its text
    is the sentence of its last decision, or says that there was none. No hold begins before the first of `decisions`.
    """
    every = in_order(decisions)
    known = [one for one in every if now - one.at <= HOURS] or every[-1:]
    now = max([now, *(one.at for one in known[-1:])])  # the clock may have been set back since
    step = 1 + len(known) // MOST_POINTS
    holds, least = list[dict[str, Any]](), HOLD_TICKS * tick
    for (_, has_watermark), group in groupby(every, lambda one: (one.watermark, one.watermark is not None)):
        stretch = list(group)
        first, last = stretch[0], stretch[-1]
        if has_watermark and last.at - first.at >= least and last.at >= known[0].at:
            until = None if last is known[-1] else last.at
            holds.append(_hold(first.at, until, now, str(last.reason), last.sentence()))
    ends = [*(one.at for one in known), now]
    for before, after in pairwise(ends):
        # Sampled decisions are further apart: only a much longer interval counts as a gap.
        if after - before > least + 3 * (ends[-2] - ends[0]) / max(len(ends) - 2, 1):
            said = f"no decision for {rough(after - before)}"
            holds.append(_hold(before, None if after is now else after, now, "NOBODY_DECIDED", said))
    holds.sort(key=lambda hold: hold["since"], reverse=True)
    return {
        "lag": [(one.at, None if one.lag is None else one.lag.total_seconds()) for one in known[::-step][::-1]],
        "holds": holds[:MOST_HOLDS],
    }


def _hold(since: datetime, until: datetime | None, now: datetime, reason: str, text: str) -> dict[str, Any]:
    return {"since": since, "until": until, "lasted": (until or now) - since, "reason": reason, "text": text}


def plane_chart(plane: Mapping[str, Any]) -> Chart:
    """Draw the result of `plane_facts`: the cells as a heat map, with the readings, the band and the pin. Event times
    far below the others are drawn at the lower edge."""
    cells, size = plane["cells"], plane["cell_seconds"]
    lines = {name: plane[name].timestamp() for name in LINES if plane[name] is not None}
    at, watermark = plane["at"].timestamp(), None if plane["watermark"] is None else plane["watermark"].timestamp()
    across = [at, *(cell[0] for cell in cells), *lines.values()]
    low, high = _bounds([cell[1] for cell in cells], size, at, watermark)
    below = sum(cell[2] for cell in cells if cell[1] + size <= low)
    most = max((cell[2] for cell in cells), default=1)
    shades: dict[int, list[tuple[float, float, int]]] = {}
    for cell in cells:
        shades.setdefault(min(int(SHADES * math.log(cell[2]) / math.log(most + 1)), SHADES - 1), []).append(cell)
    marks = [Mark(*LINES[name], x=x) for name, x in lines.items()]
    if watermark is not None:
        marks.append(Mark(f"watermark {plane['watermark']:%H:%M:%S}", "watermark", y=watermark, text_at_left=True))
    areas = [Area(lines["band_edge"], lines["tracking"], "band", "the band")] if "band_edge" in lines else []
    pin = plane["pin"]
    points = () if pin is None else ((pin[0].timestamp() + 0.5, pin[1].timestamp(), f"the pin: {iso(pin[1])}"),)
    older = f" {below:,} with older event times lie at the lower edge." if below else ""
    return Chart(
        title=f"What the decision is based on: {counted(plane['messages'], 'message')} that tracking has counted",
        note=f"A cell is {rough(timedelta(seconds=size))} wide and high, darker with more messages, {most:,} at most."
        f"{older} Not shown: {plane['without_event_time']:,} copies and rejected messages.",
        x=moments(min(across), max(across) + size, "publish time (UTC)"),
        y=moments(low, high, "event time (UTC)"),
        lines=[Line("the pin: the message that holds", "pin", points, is_joined=False)],
        marks=marks,
        areas=areas,
        heat=[
            Heat(f"c{shade}", size, [cell[:2] for cell in group], _counted(group))
            for shade, group in sorted(shades.items())
        ],
    )


LINES = {
    "base": ("B", "reading"),
    "tracking": ("T", "reading"),
    "band_edge": ("T − D", "quantile"),
    "anchor": ("anchor", "now"),
}
"""The labels and styles of the vertical lines that `plane_chart` draws."""


def lag_chart(facts: Mapping[str, Any]) -> Chart:
    """Draw the watermark's lag at each decision, with the holds in the background."""
    points = [(at.timestamp(), lag, f"{at:%H:%M:%S}: {lag_text(lag)}") for at, lag in facts["lag"] if lag is not None]
    lags = [lag for _, lag, _ in points]
    until = max((hold["since"] + hold["lasted"] for hold in facts["holds"]), default=None)
    ends = [point[0] for point in points] + ([] if until is None else [until.timestamp()])
    start, end = min(ends, default=0.0), max(ends, default=1.0)
    title = "No watermark yet"
    if points:
        title = f"The watermark was {lag_text(points[-1][1])} at {facts['lag'][-1][0]:%H:%M:%S}"
    return Chart(
        title=title,
        note="At each decision. Shaded: the watermark stayed where it was, or there was no decision.",
        x=moments(start, end, "decided at (UTC)"),
        y=linear(min([0.0, *lags]), 1.1 * max([0.0, *lags]), "behind"),
        lines=[Line("", "band", points, has_dots=len(points) == 1)],
        areas=[
            Area(
                hold["since"].timestamp(),
                (hold["since"] + hold["lasted"]).timestamp(),
                "gap" if hold["reason"] == "NOBODY_DECIDED" else "hold",
                hold["text"],
            )
            for hold in facts["holds"]
        ],
        height=220,
    )


def drawn(facts: Mapping[str, Any]) -> str:
    """Draw the facts of `tidemark explain --json` as one SVG: both charts, or the lag chart if `plane` is None."""
    charts = [lag_chart(facts)] if facts["plane"] is None else [plane_chart(facts["plane"]), lag_chart(facts)]
    where = "no watermark" if facts["watermark"] is None else f"watermark {iso(facts['watermark'])}"
    return picture(charts, f"{facts['reason']}: {where}")


def _bounds(happened: Sequence[int], size: int, at: float, watermark: float | None) -> tuple[float, float]:
    if not happened:
        return (watermark or at) - 60, at
    low, high = float(np.quantile(happened, 0.02)), max(happened) + size
    reach = max(high - low, 10.0)
    shown = [*happened, *([] if watermark is None else [watermark])]
    return min(value for value in (low, *shown) if value >= low - reach), float(high)


def _counted(group: Sequence[tuple[float, float, int]]) -> str:
    counts = [cell[2] for cell in group]
    return counted(max(counts), "message", min(counts))
