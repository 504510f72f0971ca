"""The plane of publish time and event time, and the watermark's lag: as plain facts, and as charts of these facts."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from itertools import groupby, pairwise
from math import log
from typing import Any

import numpy as np

from tidemark.pipeline.charts import Area, Chart, Heat, Line, Mark, linear, moments, picture
from tidemark.pipeline.clock import EPOCH, iso, rough
from tidemark.pipeline.phrases import stands
from tidemark.pipeline.watermark.decision import BandEvidence, Decision
from tidemark.pipeline.watermark.histogram import COPY, Histogram, grouped
from tidemark.pipeline.watermark.situation import tracking_after_slack
from tidemark.pipeline.watermark.state import DecisionRecord

HOURS = timedelta(hours=3)
"""The time range of the lag chart."""

MOST_CELLS, MOST_POINTS, MOST_HOLDS = 1500, 240, 8
"""The greatest numbers of cells, points of the lag, and holds in the facts."""

SIZES = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 21_600, 86_400, 864_000, 8_640_000)
"""The possible widths and heights of the drawn cells, in seconds."""

HOLD_TICKS = 3
"""The number of ticks without a change after which the watermark counts as held."""

SHADES = 5


def plane_facts(histogram: Histogram, decided: DecisionRecord) -> dict[str, Any]:
    """Return the cells that a decision considered, merged to at most MOST_CELLS, and the decision's lines. A cell is
    its publish time, its event time (both in seconds since the epoch) and its count. Times are those that count for the
    watermark."""
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


def history_facts(decisions: Sequence[Decision], tick: timedelta, now: datetime) -> dict[str, Any]:
    """Return the lag over time, thinned to about MOST_POINTS, and the holds, newest first: stretches of at least
    HOLD_TICKS ticks without a change of the watermark or without a decision. A hold has the sentence of its last
    decision."""
    known = [one for one in decisions if now - one.at <= HOURS]
    step = 1 + len(known) // MOST_POINTS
    holds, least = list[dict[str, Any]](), HOLD_TICKS * tick
    for (_, has_watermark), group in groupby(known, lambda one: (one.watermark, one.watermark is not None)):
        stretch = list(group)
        first, last = stretch[0], stretch[-1]
        if has_watermark and last.at - first.at >= least:
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
    """Draw the cells as a heat map, with the readings, the band and the pin. Event times far below the others are drawn
    at the lower edge."""
    cells, size = plane["cells"], plane["cell_seconds"]
    lines = {name: None if plane[name] is None else _seconds(plane[name]) for name in LINES}
    at, watermark = _seconds(plane["at"]), None if plane["watermark"] is None else _seconds(plane["watermark"])
    across = [at, *(cell[0] for cell in cells), *(value for value in lines.values() if value is not None)]
    low, high = _bounds([cell[1] for cell in cells], size, at, watermark)
    below = sum(cell[2] for cell in cells if cell[1] + size <= low)
    most = max((cell[2] for cell in cells), default=1)
    shades: dict[int, list[tuple[float, float, int]]] = {}
    for cell in cells:
        shades.setdefault(min(int(SHADES * log(cell[2]) / log(most + 1)), SHADES - 1), []).append(cell)
    marks = [Mark(LINES[name], style, x=lines[name]) for name, style in STYLES.items() if lines[name] is not None]
    if watermark is not None:
        marks.append(Mark(f"watermark {_time(plane['watermark'])}", "watermark", y=watermark, text_at_left=True))
    areas = []
    if lines["band_edge"] is not None and lines["tracking"] is not None:
        areas.append(Area(lines["band_edge"], lines["tracking"], "band", "the band"))
    pin = plane["pin"]
    points = () if pin is None else ((_seconds(pin[0]) + 0.5, _seconds(pin[1]), f"the pin: {iso(pin[1])}"),)
    older = f" {below:,} with older event times lie at the lower edge." if below else ""
    return Chart(
        title=f"What it looks at: {plane['messages']:,} messages that tracking has counted",
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


LINES = {"base": "B", "tracking": "T", "band_edge": "T − D", "anchor": "anchor"}
STYLES = {"base": "reading", "tracking": "reading", "band_edge": "quantile", "anchor": "now"}
"""The vertical lines: their texts and their styles."""


def lag_chart(facts: Mapping[str, Any]) -> Chart:
    """Draw the watermark's lag at each decision, with the holds in the background."""
    points = [(_seconds(at), lag, f"{_time(at)}: {stands(lag)}") for at, lag in facts["lag"] if lag is not None]
    until = max((hold["since"] + hold["lasted"] for hold in facts["holds"]), default=None)
    ends = [point[0] for point in points] + ([] if until is None else [_seconds(until)])
    start, end = min(ends, default=0.0), max(ends, default=1.0)
    title = (
        "No watermark yet"
        if not points
        else f"The watermark was {stands(points[-1][1])} at {_time(facts['lag'][-1][0])}"
    )
    return Chart(
        title=title,
        note="At each decision. Shaded: the watermark stayed where it was, or there was no decision.",
        x=moments(start, end, "decided at (UTC)"),
        y=linear(
            min(0.0, *(point[1] for point in points), 0.0), 1.1 * max((p[1] for p in points), default=1.0), "behind"
        ),
        lines=[Line("", "band", points, has_dots=len(points) == 1)],
        areas=[
            Area(
                _seconds(hold["since"]),
                _seconds(hold["since"] + hold["lasted"]),
                "gap" if hold["reason"] == "NOBODY_DECIDED" else "hold",
                hold["text"],
            )
            for hold in facts["holds"]
        ],
        height=220,
    )


def drawn(facts: Mapping[str, Any]) -> str:
    """Draw both charts as one SVG file, from the facts of `tidemark explain --json`."""
    charts = [lag_chart(facts)] if facts["plane"] is None else [plane_chart(facts["plane"]), lag_chart(facts)]
    where = "no watermark" if facts["watermark"] is None else f"watermark {iso(facts['watermark'])}"
    return picture(charts, f"{facts['reason']}: {where}")


def _bounds(happened: Sequence[int], size: int, at: float, watermark: float | None) -> tuple[float, float]:
    """Return the range of event times to draw: all except a few far below the others, and the watermark if it is
    close."""
    if not happened:
        return (watermark or at) - 60, at
    low, high = float(np.quantile(happened, 0.02)), max(happened) + size
    reach = max(high - low, 10.0)
    shown = [*happened, *([] if watermark is None else [watermark])]
    return min(value for value in (low, *shown) if value >= low - reach), float(high)


def _counted(group: Sequence[tuple[float, float, int]]) -> str:
    counts = [cell[2] for cell in group]
    least, most = min(counts), max(counts)
    return f"{most:,} messages" if least == most else f"{least:,} to {most:,} messages"


def _seconds(moment: datetime) -> float:
    return (moment - EPOCH).total_seconds()


def _time(moment: datetime) -> str:
    return moment.strftime("%H:%M:%S")
