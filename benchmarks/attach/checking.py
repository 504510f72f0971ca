"""Checks the watermark of a foreign reader's subscription against what that reader itself recorded.

The guarantee: at each decision, no message with an event time below the watermark is still to be acknowledged for the
first time. Three parties say what happened, each by this machine's clock: the publisher (which event times there are),
the reader (when it sent its acknowledgements), and the lake's log (what was decided, on which readings).
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from statistics import median

import pyarrow.parquet as pq

from tidemark.pipeline.lake.log.tracking_log import TrackingLog
from tidemark.pipeline.watermark.decision import Decision
from tidemark.pipeline.watermark.state import DecisionRecord

VALID = ("heartbeat", "duplicate")
A_CELL = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """What the reader's record says of one message. A message that was acknowledged again keeps the first moments."""

    sending: datetime
    """Before the first acknowledgement was sent."""
    publish_time: datetime


@dataclass(frozen=True, slots=True)
class Checked:
    """The three parties' accounts, and what they give together."""

    event_times: Mapping[str, datetime | None]
    record: Mapping[str, Acknowledged]
    made: Sequence[Decision]
    violations: list[str]
    """A sentence for each decision with a message below its watermark that was still to be acknowledged."""
    falls: int
    """Decisions whose watermark is below the one before."""
    disorder: timedelta
    """Of what was acknowledged: what the band must be at least."""
    lags: list[timedelta]
    """How far the watermark was behind the moment of each decision that has one."""
    short_of_the_end: timedelta
    """How much of the greatest acknowledged event time the last watermark has not passed."""

    def __str__(self) -> str:
        seconds = [lag.total_seconds() for lag in self.lags] or [float("nan")]
        return (
            f"{len(self.event_times):,} messages, {len(self.record):,} acknowledged, {len(self.made)} decisions, "
            f"{len(self.violations)} violations, {self.falls} steps back; the watermark was behind by "
            f"{median(seconds):.1f} s (median), {max(seconds):.1f} s (max); disorder "
            f"{self.disorder.total_seconds():.1f} s; it ended {self.short_of_the_end.total_seconds():.1f} s before the "
            "greatest acknowledged event time"
        )


def check(
    event_times: Mapping[str, datetime | None],
    record: Mapping[str, Acknowledged],
    decisions: Sequence[Decision],
    *,
    since: datetime | None = None,
) -> Checked:
    """Check decisions, in their order. `event_times` are the publisher's, by message id; None: it is rejected, and
    outside of the promise. Lags count `since` that moment.

    The bound is exact on the safe side. A reading is what was outstanding at some moment after its request and before
    its answer. An acknowledgement whose *sending began after the answer* cannot have been counted by it, whatever the
    network did: its message was outstanding, and must not lie below the watermark. One that was sent before may have
    arrived in time, so nothing follows from it. (The moment of the request would be too early: an acknowledgement sent
    a millisecond later may be there first. The moment of confirmation would be too late by an unknown time.) Messages
    that were acknowledged again count by their first sending, for the same reason.
    """
    valid = sorted((at, its_id) for its_id, at in event_times.items() if at is not None)
    times = [at for at, _ in valid]
    violations, falls, before = [], 0, None
    for decision in decisions:
        if decision.watermark is None or decision.base is None:
            continue
        falls += before is not None and decision.watermark < before
        before = decision.watermark
        answered = decision.base.newest.answered_at or decision.at
        below = [its_id for _, its_id in valid[: bisect_left(times, decision.watermark)]]
        still = [one for one in below if one not in record or record[one].sending > answered]
        if still:
            violations.append(
                f"decided at {decision.at}: {len(still)} messages below {decision.watermark} were outstanding when "
                f"base was read ({answered}), such as {still[0]} ({event_times[still[0]]}): {record.get(still[0])}"
            )
    seen = [(record[its_id].publish_time, at) for at, its_id in valid if its_id in record]
    return Checked(
        event_times=event_times,
        record=record,
        made=decisions,
        violations=violations,
        falls=falls,
        disorder=disorder_of(seen),
        lags=[one.lag for one in decisions if one.lag is not None and (since is None or one.at >= since)],
        short_of_the_end=max(at for _, at in seen) - before if before and seen else timedelta.max,
    )


def disorder_of(published: Iterable[tuple[datetime, datetime]]) -> timedelta:
    """The least D such that an earlier event is published at most D later, of pairs (publish time, event time)."""
    worst, by_event = timedelta(0), sorted((min(at, when), when) for when, at in published)
    latest_after = None  # the least publish time of all later events
    for _, when in reversed(by_event):
        if latest_after is not None:
            worst = max(worst, when - latest_after)
        latest_after = when if latest_after is None else min(latest_after, when)
    return worst


def decisions_of(log: TrackingLog) -> list[Decision]:
    """Every decision in the log, in order."""
    entries = (log.entry(number) for number in log.numbers())
    return [entry.decision for entry in entries if isinstance(entry, DecisionRecord)]


def event_times_of(truths: Iterable[Path]) -> dict[str, datetime | None]:
    """The event time of each published message by its id, from the synthetic source's truth; None where it is not
    valid."""
    columns = ["message_id", "event_time", "kind"]
    return {
        row["message_id"]: row["event_time"] if row["kind"] in VALID else None
        for path in truths
        for row in pq.read_table(path, columns=columns).to_pylist()
    }


def record_of(path: Path) -> dict[str, Acknowledged]:
    """What a reader's record says that it began to acknowledge, by message id; a crash may have cut off a line."""
    found: dict[str, Acknowledged] = {}
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    for moment, what, its_id, published, _ in (line.split("\t") for line in lines):
        if what == "sending":
            found.setdefault(its_id, Acknowledged(*map(datetime.fromisoformat, (moment, published))))
    return found
