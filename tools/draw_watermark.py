"""Draw the pictures of docs/concepts/watermark.md from replays of small seeded traces: `make pictures`.

Each picture shows a real replay: the code of production decides over messages that are made here.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from tidemark.pipeline.charts import Area, Chart, Line, Mark, linear, picture, stairs
from tidemark.pipeline.clock import from_us, to_us
from tidemark.pipeline.figures import quantile
from tidemark.pipeline.replay.replay import RULES_WITHOUT_ANCHOR, decide_again
from tidemark.pipeline.replay.trace import Batch, first_tick_at, late_landings, ticks_of, watermarks_us
from tidemark.pipeline.watermark.decision import Decision
from tidemark.pipeline.watermark.histogram import Ints
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.rules import RULES, Rule

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "images"
START_US = to_us(datetime(2026, 11, 21, 12, tzinfo=UTC))
SECOND = 1_000_000
TICK = timedelta(seconds=10)
BAND, FRONTIER = Policy(rule="band"), Policy(rule="frontier")


@dataclass(frozen=True, slots=True)
class Messages:
    """A trace in memory. Times are seconds from the start; the time of an acknowledgement that never came is
    infinite."""

    publish: np.ndarray
    event: np.ndarray
    tracked: np.ndarray
    landed: np.ndarray

    def batches(self, *, streams: bool = False) -> Iterator[Batch]:
        """Yield all messages as one batch."""
        if streams:
            raise ValueError("these messages have no streams")
        yield Batch(*(START_US + np.round(each * SECOND).astype(np.int64) for each in self._columns))

    @property
    def _columns(self) -> tuple[np.ndarray, ...]:
        return self.publish, self.event, self.tracked, self.landed


def made(
    publish: np.ndarray,
    delay: np.ndarray,
    rng: np.random.Generator,
    landing: np.ndarray | None = None,
    landed_within: float = 8,
) -> Messages:
    """Make messages that are published `delay` seconds after their event, tracked within 2 s, and landed within
    `landed_within` seconds of `landing` (by default, of their publication)."""
    base, count = publish if landing is None else np.maximum(publish, landing), len(publish)
    tracked, landed = publish + rng.uniform(0.2, 2, count), base + rng.uniform(0.5, landed_within, count)
    return Messages(publish, publish - delay, tracked, landed)


def replayed(
    messages: Messages, policy: Policy, tick: timedelta = TICK, rules: Sequence[Rule] = RULES
) -> list[Decision]:
    """Return every decision over a trace."""
    ticks = ticks_of(messages, tick, policy.idle_timeout)
    return [decided.decision for decided in decide_again(ticks, policy, rules=rules)]


def since_start(moment: datetime) -> float:
    """Return a time in seconds from the start."""
    return (to_us(moment) - START_US) / SECOND


def main() -> None:
    """Draw all pictures."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    pictures = {"one-decision": one_decision, "outage": outage, "anchor": anchor, "late-stream": late_stream}
    for name, draw in pictures.items():
        (FOLDER / f"{name}.svg").write_text(draw(), encoding="utf-8")
        print(f"docs/images/{name}.svg")


def one_decision() -> str:
    """Draw messages by publish time and event time, with the readings, band and watermark of one decision."""
    rng = np.random.default_rng(5)
    publish = np.sort(rng.uniform(0, 62, 120))
    delay = rng.uniform(2, 6, 120)
    delay[np.argmax(publish > 49)] = 12  # one that was late within the band, and has landed
    messages, at = made(publish, delay, rng, landed_within=10), 60.0
    decisions = {name: _at(replayed(messages, policy), at) for name, policy in (("band", BAND), ("frontier", FRONTIER))}
    band, frontier = decisions["band"], decisions["frontier"]
    if not (band.base and band.tracking and band.bound and band.watermark and frontier.watermark):
        raise ValueError("the decision at the end of this trace is not held")
    oldest_base, oldest_tracking = since_start(band.base.oldest_unacked), since_start(band.tracking.oldest_unacked)
    published, shown = messages.publish <= at, messages.publish >= 20
    landed, tracked = messages.landed <= at, messages.tracked <= at
    chart = Chart(
        title="Everything that may still land lies above the watermark",
        note="",
        x=linear(20, 62, "publish time"),
        y=linear(12, 60, "event time"),
        areas=[Area(since_start(band.bound.start), oldest_tracking, "band")],
        marks=[
            Mark("T", "reading", x=oldest_tracking),
            Mark("B", "reading", x=oldest_base),
            Mark("T − D", "quantile", x=oldest_tracking - 10, text_at_left=True),
            Mark("watermark by the frontier", "frontier", y=since_start(frontier.watermark), text_at_left=True),
            Mark("watermark by the band", "band", y=since_start(band.watermark), text_at_left=True),
        ],
        lines=[
            _dots("landed", "now", messages.publish, messages.event, landed & shown),
            _dots("tracked, not landed: base's backlog", "bad", messages.publish, messages.event, tracked & ~landed),
            _dots("not tracked yet", "pin", messages.publish, messages.event, published & ~landed & ~tracked),
        ],
        height=420,
    )
    return picture([chart])


def _dots(name: str, style: str, across: np.ndarray, up: np.ndarray, chosen: np.ndarray) -> Line:
    points = [(x, y, "") for x, y in zip(across[chosen].tolist(), up[chosen].tolist(), strict=True)]
    return Line(name, style, points, is_joined=False, shape="m-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z")


def _at(decisions: list[Decision], seconds: float) -> Decision:
    return next(decision for decision in decisions if decision.at == from_us(START_US + round(seconds * SECOND)))


def outage() -> str:
    """Draw the watermark's lag while base is down for twenty minutes and tracking continues."""
    rng = np.random.default_rng(7)
    publish = np.sort(rng.uniform(0, 3600, 36_000))
    down = (publish > 600) & (publish < 1800)
    landing = np.where(down, rng.uniform(1800, 1980, len(publish)), publish)
    messages = made(publish, rng.uniform(0.5, 8, len(publish)), rng, landing=landing)
    decisions = replayed(messages, BAND)
    chart = Chart(
        title=f"{_late(messages, decisions)} of {len(publish):,} messages late",
        note="",
        x=linear(0, 3600, "time"),
        y=linear(0, 25 * 60, "watermark behind now"),
        areas=[Area(600, 1800, "hold"), Area(1800, 1980, "band")],
        marks=[Mark("base is down", "quantile", x=600), Mark("drained, in any order", "quantile", x=1980)],
        lines=[_lags("", "band", decisions, 3600)],
        height=280,
    )
    return picture([chart], "A backlog pins the watermark until all of it has landed")


def anchor() -> str:
    """Draw the watermark with and without the anchor. Every 80 seconds two messages come; the second has the earlier
    event time."""
    rng = np.random.default_rng(11)
    first = np.arange(0, 1200, 80) + rng.uniform(0, 9, 15)
    publish = np.sort(np.concatenate([first, first + 8.5]))
    messages = made(publish, np.tile([3.0, 15.0], 15), rng, landed_within=3)
    charts, low, high = [], 200.0, 700.0
    shown = (messages.landed > low) & (messages.landed < high)
    for rules, title in ((RULES, "with the anchor"), (RULES_WITHOUT_ANCHOR, "without")):
        decisions = replayed(messages, BAND, rules=rules)
        known = [(since_start(each.at), since_start(each.watermark)) for each in decisions if each.watermark]
        late = _is_late(messages, decisions)
        lines = [
            Line("watermark", "band", stairs([each for each in known if low <= each[0] <= high]), has_dots=False),
            _dots("landed in time", "now", messages.landed, messages.event, shown & ~late),
            _dots("late", "bad", messages.landed, messages.event, shown & late),
        ]
        axes = linear(low, high, "landed"), linear(150, 700, "event time")
        charts.append(Chart(f"{title}: {int(late.sum())} of 30 late", "", *axes, lines, height=320, width=430, left=76))
    return picture(charts, "Few messages, disorder of 8.5 s, a band of 10 s: an empty band says nothing", columns=2)


def late_stream() -> str:
    """Draw the lag under the rules `band` and `frontier` if few or many messages are a minute late."""
    charts = []
    for one_in in (200, 20):
        rng = np.random.default_rng(3)
        publish = np.sort(rng.uniform(0, 900, 18_000))
        delay = np.where(rng.random(len(publish)) < 1 / one_in, 60, 0) + rng.uniform(0.5, 8, len(publish))
        messages, lines = made(publish, delay, rng, landed_within=3), []
        for policy in (BAND, FRONTIER):
            decisions = replayed(messages, policy)
            late = _late(messages, decisions) / len(publish)
            lags = [
                each.lag.total_seconds() for each in decisions if each.lag is not None and since_start(each.at) <= 900
            ]
            name = f"{policy.rule}: {late:.2%} late, median {quantile(lags, 0.5):.0f} s"
            lines.append(_lags(name, policy.rule, decisions, 900))
        axes = linear(0, 900, "time"), linear(0, 90, "watermark behind now")
        charts.append(Chart(f"1 message in {one_in}", "", *axes, lines, height=300, width=430, left=76))
    return picture(charts, "Some messages a minute late, a band of 10 s", columns=2)


def _lags(name: str, style: str, decisions: list[Decision], until: float) -> Line:
    """Return the lag over time as a line."""
    known = [(since_start(each.at), each.lag.total_seconds()) for each in decisions if each.lag is not None]
    return Line(name, style, stairs([each for each in known if each[0] <= until]), has_dots=False)


def _is_late(messages: Messages, decisions: list[Decision]) -> np.ndarray:
    (batch,) = messages.batches()
    tick_us: Ints = np.array([to_us(decision.at) for decision in decisions], dtype=np.int64)
    before = np.concatenate([[np.iinfo(np.int64).min], watermarks_us([each.watermark for each in decisions])])
    return batch.event_us < before[first_tick_at(tick_us, batch.landed_us)]


def _late(messages: Messages, decisions: list[Decision]) -> int:
    tick_us = np.array([to_us(decision.at) for decision in decisions], dtype=np.int64)
    watermarks = np.array([watermarks_us([each.watermark for each in decisions])])
    late, _ = late_landings(messages, tick_us, watermarks)
    return int(late.sum())


if __name__ == "__main__":
    main()
