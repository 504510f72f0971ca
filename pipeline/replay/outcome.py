"""The outcome of a replay: its decisions, the late messages at each, and a summary."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby, pairwise

import numpy as np

from pipeline.clock import to_us
from pipeline.quantiles import quantile
from pipeline.replay.trace import Trace, landed_in, late_in, watermarks_us
from pipeline.watermark.decision import Decision
from pipeline.watermark.histogram import Ints


@dataclass(frozen=True, slots=True)
class Hold:
    """A stretch of ticks that held the watermark: from its first tick to the first one after it, or to the end."""

    begin: datetime
    end: datetime
    reason: str

    @property
    def lasted(self) -> timedelta:
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class Replayed:
    """At least one decision, in order; how many messages were late by each; and how many had landed by the last one,
    rejected messages excluded."""

    decisions: Sequence[Decision]
    late_total: Ints
    landed: int

    @property
    def watermark(self) -> datetime | None:
        """The last decision's watermark."""
        return self.decisions[-1].watermark

    @property
    def late(self) -> int:
        """How many of the landed messages were late."""
        return int(self.late_total[-1])

    @property
    def late_share(self) -> float:
        """The late share of the landed messages; 0 if none landed."""
        return self.late / self.landed if self.landed else 0.0

    @property
    def reasons(self) -> Mapping[str, int]:
        """The number of decisions by reason, the most frequent first."""
        return dict(Counter(str(decision.reason) for decision in self.decisions).most_common())

    def lag(self, share: float) -> timedelta | None:
        """The lag that this share of the ticks with a watermark does not exceed; None if none had one."""
        lags = [decision.lag.total_seconds() for decision in self.decisions if decision.lag is not None]
        return timedelta(seconds=quantile(lags, share)) if lags else None

    def longest_hold(self) -> Hold | None:
        """The longest stretch of holds; its reason is the most frequent one in it."""
        stretches = [list(each) for _, each in groupby(self.decisions, lambda decision: decision.reason.is_hold)]
        holds = []
        for stretch, after in pairwise([*stretches, stretches[-1][-1:]]):
            if stretch[0].reason.is_hold:
                reasons = Counter(str(decision.reason) for decision in stretch)
                holds.append(Hold(stretch[0].at, after[0].at, reasons.most_common(1)[0][0]))
        return max(holds, key=lambda hold: hold.lasted, default=None)


def replayed(decisions: Sequence[Decision], trace: Trace) -> Replayed:
    """Count the late messages, in one more pass.

    A message is late if its event time is below the watermark of the last decision strictly before it landed. Where two
    trackers' clocks disagree, a decision counts from the latest moment of the decisions up to it.
    """
    at_us = np.maximum.accumulate(np.array([to_us(decision.at) for decision in decisions], dtype=np.int64))
    watermark_us = watermarks_us([decision.watermark for decision in decisions])
    late, landed = np.zeros(len(at_us), dtype=np.int64), 0
    for batch in trace.batches():
        late += late_in(batch, at_us, watermark_us)
        landed += landed_in(batch, at_us)
    return Replayed(decisions, np.cumsum(late), landed)
