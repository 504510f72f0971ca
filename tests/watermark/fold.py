"""A tracking log by hand: entries are folded as they come back from the lake, and decisions follow from readings."""

from datetime import datetime

from tests.watermark.builders import at, published, reading
from tidemark.pipeline.lake.log.codec import decode, encode
from tidemark.pipeline.watermark.decision import Decision, Reason
from tidemark.pipeline.watermark.explain.explanation import Explanation, explain
from tidemark.pipeline.watermark.histogram import Histogram
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.readings import Reading
from tidemark.pipeline.watermark.state import Beginning, Entry, Released, Snapshot, WatermarkState


class Log:
    """The fold of a log, written to by hand."""

    def __init__(
        self, policy: Policy | None = None, known_from: float = -60, messages: Histogram | None = None
    ) -> None:
        self.policy = Policy() if policy is None else policy
        self.state = self.before = WatermarkState()
        self.write(Beginning(at(known_from)))
        if messages is not None:
            self.publish(messages)

    def write(self, entry: Entry) -> None:
        """Append an entry, as it comes back from the lake."""
        entry = decode(encode(entry, "writer"), "entry")
        self.state = self.state.after(self.state.number + 1, entry)

    def publish(self, histogram: Histogram) -> None:
        """Tracking saw these."""
        self.write(Snapshot(histogram))

    def release(self, before: float, now: float = 0) -> None:
        """An operator's word."""
        self.write(Released(before=at(before), at=at(now), by="an-operator@here"))

    def tick(self, now: float, base: float | None = None, tracking: float | None = None) -> Decision:
        """A decision; readings are the publish time of the oldest message, or None where nothing is outstanding."""
        return self.read(now, reading(now, base), reading(now, tracking))

    def read(self, now: float, base: Reading | None, tracking: Reading | None) -> Decision:
        """A decision with these readings."""
        self.before = self.state
        self.write(self.state.decide(base, tracking, self.policy, at(now)))
        return self.state.decision

    def explain(self) -> Explanation:
        """The newest decision, explained."""
        return explain(self.state.record, self.before)


EVERY_SECOND = published((second + 0.25, second - 0.75) for second in range(100))


def ticked(
    *ticks: tuple[float | None, ...],
    messages: Histogram = EVERY_SECOND,
    policy: Policy | None = None,
    known_from: float = -60,
) -> Log:
    """A log of these messages and of ticks, each with its time and the readings of base and of tracking."""
    log = Log(policy, known_from, messages=messages)
    for now, *read in ticks:
        log.tick(now, *read)
    return log


def outcome(decision: Decision) -> tuple[Reason, datetime | None]:
    return decision.reason, decision.watermark
