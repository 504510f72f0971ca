"""Reads a decision's explanation from a lake and converts it to plain facts, which `tidemark explain --json` prints and
the page and the pictures show."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.pipeline.clock import from_us, iso, to_us
from tidemark.pipeline.errors import CorruptObject, LakeError
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.log.history import decision_in_force, first_decision, sampled, standing_before
from tidemark.pipeline.lake.log.tracking_log import TrackingLog
from tidemark.pipeline.lake.tables.heartbeats import Heartbeats
from tidemark.pipeline.lake.tables.quarantine import RejectedPayload, by_stream, rejected_payloads
from tidemark.pipeline.lake.tables.table import MOMENT
from tidemark.pipeline.observe.plane import HOURS, history_facts, plane_facts
from tidemark.pipeline.quality.recent import PassedOver, read_passed_over
from tidemark.pipeline.quality.status import LOST_WITHIN
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.watermark.decision import Decision
from tidemark.pipeline.watermark.explain.explanation import Alternative, Explanation
from tidemark.pipeline.watermark.explain.explanation import explain as explain_decision
from tidemark.pipeline.watermark.histogram import bucket_of, bucket_start
from tidemark.pipeline.watermark.state import DecisionRecord, WatermarkState

SECOND = timedelta(seconds=1)

NAMED_STREAMS = 20
"""The greatest number of streams listed for a cell: those with the most rows."""


@dataclass(frozen=True, slots=True)
class Explained:
    """An explanation from the log alone, with its facts; `problem` says why it is incomplete."""

    number: int
    explanation: Explanation
    problem: str | None
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ByStream:
    """What the tables add to an explanation: the streams that `max_lag` passes over, and the messages whose payload was
    rejected, all of them and those at the pin. `facts` has the same as plain facts."""

    over: PassedOver
    rejected: Sequence[RejectedPayload]
    pinning: Sequence[RejectedPayload]
    facts: Mapping[str, Any]


def read_decided(log: TrackingLog, at: datetime | None = None) -> tuple[int, DecisionRecord] | None:
    """Read the decision in force at a moment (None: the newest decision) and its entry number; None before the first
    decision. Raises LakeError, also if the log begins after that moment."""
    # Times are printed to the millisecond: a copied one must find a decision anywhere within that millisecond.
    found = decision_in_force(log, None if at is None else at.replace(microsecond=at.microsecond // 1000 * 1000 + 999))
    first = first_decision(log) if found is None and at is not None else None
    if at is not None and first is not None:
        raise LakeError(
            f"no decision was in force at {iso(at)}: the first in the log was made at {iso(first.decision.at)}"
        )
    return found


def read_explained(log: TrackingLog, number: int, decided: DecisionRecord, tick: timedelta) -> Explained:
    """Explain a decision from the log, as of its time. Raises LakeError."""
    now = decided.decision.at
    recent = sampled(log, number, now - HOURS)
    try:
        before = standing_before(log, number)
    except CorruptObject as error:
        explanation = Explanation(decided.decision)
        facts = {**explanation_facts(explanation), "plane": None, **history_facts(recent, tick, now)}
        return Explained(number, explanation, str(error), {**facts, "log_entry": number, "problem": str(error)})
    return explained(number, decided, before, recent, tick, now)


def explained(
    number: int,
    decided: DecisionRecord,
    before: WatermarkState,
    recent: Sequence[Decision],
    tick: timedelta,
    now: datetime,
) -> Explained:
    """Explain a decision from the state before it and the decisions of the last hours."""
    explanation, problem = explain_decision(decided, before), None
    if explanation.alternatives is None:
        problem = "the decision does not follow from the entries before it; `tidemark replay --from-lake` compares them"
    facts = {
        **explanation_facts(explanation),
        "log_entry": number,
        "problem": problem,
        "plane": plane_facts(before.histogram, decided),
        **history_facts(recent, tick, now),
    }
    return Explained(number, explanation, problem, facts)


def read_by_stream(lake: Lake, settings: Settings, decided: DecisionRecord) -> ByStream:
    """Read from the tables what is known of the messages that a decision considered. Raises LakeError."""
    decision, max_lag = decided.decision, decided.policy.max_lag
    at, pin, over = decision.at, decision.pin, PassedOver()
    if max_lag is not None:  # in the hour before the decision
        over = read_passed_over(lake.heartbeats(), max_lag, at - LOST_WITHIN, at)
    rejected, pinning, landed = _rejected(lake, decision, settings), list[RejectedPayload](), dict[str, int]()
    if pin is not None:
        times = pin.publish_bucket, to_us(pin.min_event_time)
        pinning = [one for one in rejected if (bucket_of(from_us(one.publish_us)), one.event_us) == times]
        second = bucket_start(bucket_of(pin.min_event_time))
        landed = landed_by_stream(lake.heartbeats(), pin.published_from, second, SECOND)
    facts = {
        "passed_over_by_stream": over.by_stream,
        "rejected_payloads_by_stream": by_stream(rejected),
        "rejected_payloads_that_pin": by_stream(pinning),
        "landed_at_pin_by_stream": landed,
    }
    return ByStream(over, rejected, pinning, facts)


def landed_by_stream(
    heartbeats: Heartbeats, published: datetime, happened: datetime, size: timedelta
) -> dict[str, int]:
    """Count the landed rows of a cell of the histogram per stream, in descending order, for at most NAMED_STREAMS
    streams. Raises LakeError."""
    when, event = pc.field("publish_time"), pc.field("event_time")
    wanted = (when >= pa.scalar(published, MOMENT)) & (when < pa.scalar(published + size, MOMENT))
    wanted &= event >= pa.scalar(happened, MOMENT)
    if happened + size <= published:  # otherwise this cell also counts event times beyond the publish time
        wanted &= event < pa.scalar(happened + size, MOMENT)
    found = Counter[str]()
    for rows in heartbeats.scanned(["stream_id"], wanted):
        found.update(rows["stream_id"].to_pylist())
    return dict(found.most_common(NAMED_STREAMS))


def _rejected(lake: Lake, decision: Decision, settings: Settings) -> list[RejectedPayload]:
    """Return the messages that the decision considered and that are in quarantine only because of their payload."""
    if decision.bound is None:
        return []
    start, requeued = decision.bound.start, lake.requeued().every_id()
    return rejected_payloads(lake.quarantine(), settings.contract, start, decision.at, requeued)


def explanation_facts(explanation: Explanation) -> dict[str, Any]:
    """Convert an explanation to plain facts: its sentences, and the numbers in them."""
    others, facts = explanation.alternatives, decision_facts(explanation.decision)
    pin = facts["pin"]
    return {
        **facts,
        "pin": None if pin is None else {**pin, "text": explanation.pin},
        "base_oldest_unacked": explanation.decision.base and explanation.decision.base.oldest_unacked,
        "tracking_oldest_unacked": explanation.decision.tracking and explanation.decision.tracking.oldest_unacked,
        "conditions": [asdict(condition) for condition in explanation.conditions],
        "messages_since_base": explanation.since_base,
        "messages_since_pin": explanation.since_pin,
        "moves": explanation.moves,
        "alternatives": None if others is None else [_alternative(other) for other in others],
        "explanation": explanation.sentences(),
    }


def decision_facts(decision: Decision) -> dict[str, Any]:
    """Convert a decision to plain facts, without its inputs."""
    pin = decision.pin
    return {
        "at": decision.at,
        "watermark": decision.watermark,
        "reason": decision.reason,
        "candidate": decision.candidate,
        "released_before": decision.released_before,
        "pin": None
        if pin is None
        else {"published_from": pin.published_from, "event_time": pin.min_event_time, "messages": pin.count},
    }


def _alternative(other: Alternative) -> dict[str, Any]:
    facts = asdict(other)
    further = facts.pop("further")
    return {**facts, "further_seconds": further}
