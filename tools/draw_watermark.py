"""The pictures of docs/watermark.md, drawn from replays of small seeded traces: `make pictures`.

Each is a real replay: the estimator and the fold of production, over messages made here.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tidemark.pipeline.clock import from_us, to_us
from tidemark.pipeline.quantiles import quantile
from tidemark.pipeline.replay.replay import RULES_WITHOUT_ANCHOR, decide_again
from tidemark.pipeline.replay.trace import Batch, first_tick_at, late_in, ticks_of, watermarks_us
from tidemark.pipeline.watermark.decision import Decision
from tidemark.pipeline.watermark.histogram import Ints
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.rules import RULES, Rule

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "images"
START_US = to_us(datetime(2026, 11, 21, 12, tzinfo=UTC))
SECOND = 1_000_000
TICK = timedelta(seconds=10)
BAND, FRONTIER = Policy(rule="band"), Policy(rule="frontier")

INK, GREY, BLUE, GREEN, ORANGE, RED = "#1f2933", "#9aa5b1", "#2166c2", "#1b8a5a", "#d9730d", "#c62828"


@dataclass(frozen=True, slots=True)
class Messages:
    """A trace in memory, in seconds from the start; infinite where an acknowledgement never came."""

    publish: np.ndarray
    event: np.ndarray
    tracked: np.ndarray
    landed: np.ndarray

    def batches(self, *, streams: bool = False) -> Iterator[Batch]:
        """All in one."""
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
    """Messages with an event `delay` before they were published, tracked within 2 s, and landed within so many seconds
    of `landing` (by default, of their publication)."""
    base, count = publish if landing is None else np.maximum(publish, landing), len(publish)
    tracked, landed = publish + rng.uniform(0.2, 2, count), base + rng.uniform(0.5, landed_within, count)
    return Messages(publish, publish - delay, tracked, landed)


def replayed(
    messages: Messages, policy: Policy, tick: timedelta = TICK, rules: Sequence[Rule] = RULES
) -> list[Decision]:
    """Every decision of the trace."""
    ticks = ticks_of(messages, tick, policy.idle_timeout)
    return [decided.decision for decided in decide_again(ticks, policy, rules=rules)]


def since_start(moment: datetime) -> float:
    """Seconds from the start."""
    return (to_us(moment) - START_US) / SECOND


def main() -> None:
    """Draw all of them."""
    mpl.rcParams.update(
        {
            "svg.hashsalt": "tidemark",
            "font.family": "sans-serif",
            "font.size": 11,
            "text.color": INK,
            "axes.labelcolor": INK,
            "axes.edgecolor": GREY,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "xtick.color": INK,
            "ytick.color": INK,
            "legend.frameon": False,
            "figure.facecolor": "white",
        }
    )
    FOLDER.mkdir(parents=True, exist_ok=True)
    pictures: dict[str, Callable[[], Figure]] = {
        "one-decision": one_decision,
        "outage": outage,
        "anchor": anchor,
        "late-stream": late_stream,
    }
    for name, draw in pictures.items():
        figure = draw()
        figure.savefig(FOLDER / f"{name}.svg", bbox_inches="tight", metadata={"Date": None})
        plt.close(figure)
        print(f"docs/images/{name}.svg")


def one_decision() -> Figure:
    """The two time domains, and what one decision looks at."""
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
    figure, axes = plt.subplots(figsize=(9.5, 5.6))
    published = messages.publish <= at
    landed, tracked = messages.landed <= at, messages.tracked <= at
    axes.axvspan(since_start(band.bound.start), oldest_tracking, color=BLUE, alpha=0.08, lw=0)
    for chosen, label, style in (
        (landed, "landed", {"color": GREY}),
        (published & ~landed & tracked, "tracked, not landed: base's backlog", {"color": ORANGE}),
        (published & ~landed & ~tracked, "not tracked yet", {"facecolor": "none", "edgecolor": ORANGE}),
    ):
        axes.scatter(messages.publish[chosen], messages.event[chosen], s=34, label=label, zorder=3, **style)
    for moment, label in (
        (oldest_base, "B"),
        (oldest_tracking, "T"),
        (oldest_tracking - 10, "T − D"),
    ):
        axes.axvline(moment, color=INK, lw=1, ls=":" if "D" in label else "--")
        axes.annotate(label, (moment, 1.01), xycoords=("data", "axes fraction"), ha="center", va="bottom")
    for watermark, color, name in ((band.watermark, BLUE, "band"), (frontier.watermark, GREEN, "frontier")):
        axes.axhline(since_start(watermark), color=color, lw=1.6)
        axes.annotate(f"watermark by the {name}", (20.5, since_start(watermark) + 0.4), color=color, va="bottom")
    axes.set(xlabel="publish time (s)", ylabel="event time (s)", xlim=(20, 62), ylim=(12, 60))
    axes.legend(loc="upper left")
    figure.suptitle("Everything that may still land lies above the watermark", x=0.08, ha="left", y=1.0, weight="bold")
    return figure


def _at(decisions: list[Decision], seconds: float) -> Decision:
    return next(decision for decision in decisions if decision.at == from_us(START_US + round(seconds * SECOND)))


def outage() -> Figure:
    """Base is down for twenty minutes; tracking goes on."""
    rng = np.random.default_rng(7)
    publish = np.sort(rng.uniform(0, 3600, 36_000))
    down = (publish > 600) & (publish < 1800)
    landing = np.where(down, rng.uniform(1800, 1980, len(publish)), publish)
    messages = made(publish, rng.uniform(0.5, 8, len(publish)), rng, landing=landing)
    decisions = replayed(messages, BAND)
    figure, axes = plt.subplots(figsize=(9.5, 4.2))
    axes.axvspan(10, 30, color=ORANGE, alpha=0.1, lw=0)
    axes.annotate("base is down", (20, 0.93), xycoords=("data", "axes fraction"), ha="center", color=ORANGE)
    axes.axvspan(30, 33, color=GREEN, alpha=0.12, lw=0)
    axes.annotate("drained,\nin any order", (33.3, 0.86), xycoords=("data", "axes fraction"), color=GREEN)
    _lags(axes, decisions, BLUE, "watermark")
    axes.set(xlabel="minutes", ylabel="minutes behind now", xlim=(0, 60), ylim=(0, None))
    late = _late(messages, decisions)
    figure.suptitle(
        f"A backlog pins the watermark until all of it has landed: {late} of {len(publish):,} messages late",
        x=0.08, ha="left", weight="bold",
    )  # fmt: skip
    return figure


def anchor() -> Figure:
    """Two messages every 80 seconds, the second of which happened before the first: with the anchor and without."""
    rng = np.random.default_rng(11)
    first = np.arange(0, 1200, 80) + rng.uniform(0, 9, 15)
    publish = np.sort(np.concatenate([first, first + 8.5]))
    messages = made(publish, np.tile([3.0, 15.0], 15), rng, landed_within=3)
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4), sharey=True)
    for axes, rules, title in ((left, RULES, "with the anchor"), (right, RULES_WITHOUT_ANCHOR, "without")):
        decisions = replayed(messages, BAND, rules=rules)
        known = [(each.at, each.watermark) for each in decisions if each.watermark is not None]
        moments = ([since_start(moment) for moment in column] for column in zip(*known, strict=True))
        axes.step(*moments, where="post", color=BLUE, lw=1.6, label="watermark")
        is_late = _is_late(messages, decisions)
        axes.scatter(messages.landed[~is_late], messages.event[~is_late], s=26, color=GREY, label="landed in time")
        axes.scatter(messages.landed[is_late], messages.event[is_late], s=44, color=RED, label="late", zorder=3)
        axes.set(
            xlabel="landed (s)", title=f"{title}: {int(is_late.sum())} of 30 late", xlim=(200, 700), ylim=(150, 700)
        )
        axes.legend(loc="upper left")
    left.set(ylabel="event time (s)")
    figure.suptitle(
        "Few messages, disorder of 8.5 s, a band of 10 s: an empty band says nothing",
        x=0.08, ha="left", y=1.02, weight="bold",
    )  # fmt: skip
    return figure


def late_stream() -> Figure:
    """Some messages are a minute late, seldom or often: what the band and the frontier make of it."""
    figure, both = plt.subplots(1, 2, figsize=(11, 4.4), sharey=True)
    for axes, one_in in zip(both, (200, 20), strict=True):
        rng = np.random.default_rng(3)
        publish = np.sort(rng.uniform(0, 900, 18_000))
        delay = np.where(rng.random(len(publish)) < 1 / one_in, 60, 0) + rng.uniform(0.5, 8, len(publish))
        messages = made(publish, delay, rng, landed_within=3)
        for policy, color in ((BAND, BLUE), (FRONTIER, GREEN)):
            decisions = replayed(messages, policy)
            late = 100 * _late(messages, decisions) / len(publish)
            lags = [
                each.lag.total_seconds() for each in decisions if each.lag is not None and since_start(each.at) <= 900
            ]
            label = f'rule = "{policy.rule}": {late:.2f} % late, median {quantile(lags, 0.5):.0f} s behind'
            _lags(axes, decisions, color, label, seconds=1)
        axes.set(title=f"1 message in {one_in}", xlabel="seconds", xlim=(0, 900), ylim=(0, 125))
        axes.legend(loc="upper left")
    both[0].set(ylabel="seconds behind now")
    figure.suptitle("Some messages a minute late, a band of 10 s", x=0.08, ha="left", y=1.02, weight="bold")
    figure.tight_layout()
    return figure


def _lags(axes: Axes, decisions: list[Decision], color: str, label: str, seconds: float = 60) -> None:
    """The lag over time, in units of so many seconds."""
    known = [(since_start(each.at), each.lag.total_seconds()) for each in decisions if each.lag is not None]
    moments, lags = (np.array(column) / seconds for column in zip(*known, strict=True))
    axes.step(moments, lags, where="post", color=color, label=label)


def _is_late(messages: Messages, decisions: list[Decision]) -> np.ndarray:
    (batch,) = messages.batches()
    tick_us: Ints = np.array([to_us(decision.at) for decision in decisions], dtype=np.int64)
    before = np.concatenate([[np.iinfo(np.int64).min], watermarks_us([each.watermark for each in decisions])])
    return batch.event_us < before[first_tick_at(tick_us, batch.landed_us)]


def _late(messages: Messages, decisions: list[Decision]) -> int:
    (batch,) = messages.batches()
    tick_us = np.array([to_us(decision.at) for decision in decisions], dtype=np.int64)
    return int(late_in(batch, tick_us, watermarks_us([each.watermark for each in decisions])).sum())


if __name__ == "__main__":
    main()
