"""The stored form of a decision: one flat record, whatever its evidence."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from pipeline.watermark.decision import BandEvidence, Decision, FrontierEvidence, Reason, SilenceEvidence
from pipeline.watermark.histogram import Cell
from pipeline.watermark.policy import Policy
from pipeline.watermark.readings import EffectiveReading, Reading
from pipeline.watermark.state import DecisionRecord


@dataclass(frozen=True, slots=True)
class StoredDecision:
    """A decision's fields and those of its evidence, in the order in which they are written."""

    at: datetime
    watermark: datetime | None
    reason: Reason
    candidate: datetime | None = None
    base: EffectiveReading | None = None
    tracking: EffectiveReading | None = None
    band_start: datetime | None = None
    band_end: datetime | None = None
    anchor: datetime | None = None
    pin: Cell | None = None
    messages_in_band: int = 0
    newest_publish_time: datetime | None = None
    recent_lag: timedelta | None = None
    complete_from: datetime | None = None
    frontier: datetime | None = None
    released_before: datetime | None = None

    @classmethod
    def of(cls, decision: Decision) -> "StoredDecision":
        """The stored form of a decision."""
        evidence, bound = decision.evidence, decision.bound
        return cls(
            at=decision.at,
            watermark=decision.watermark,
            reason=decision.reason,
            candidate=decision.candidate,
            base=decision.base,
            tracking=decision.tracking,
            band_start=None if bound is None else bound.start,
            band_end=None if bound is None else bound.end,
            anchor=bound.anchor if isinstance(bound, BandEvidence) else None,
            pin=decision.pin,
            messages_in_band=0 if bound is None else bound.messages,
            newest_publish_time=decision.newest_publish_time,
            recent_lag=evidence.recent_lag if isinstance(evidence, SilenceEvidence) else None,
            complete_from=decision.complete_from,
            frontier=bound.frontier if isinstance(bound, FrontierEvidence) else None,
            released_before=decision.released_before,
        )

    def decision(self) -> Decision:
        """The decision that was stored. Raises ValueError for fields that no decision has together."""
        return Decision(
            at=self.at,
            watermark=self.watermark,
            reason=self.reason,
            base=self.base,
            tracking=self.tracking,
            newest_publish_time=self.newest_publish_time,
            complete_from=self.complete_from,
            released_before=self.released_before,
            evidence=self._evidence(),
        )

    def _evidence(self) -> SilenceEvidence | BandEvidence | FrontierEvidence | None:
        if self.candidate is None:
            return None
        if self.recent_lag is not None:
            return SilenceEvidence(self.candidate, self.recent_lag)
        if self.pin is None or self.band_start is None or self.band_end is None:
            raise ValueError("a decision with a candidate and without its evidence")
        if self.frontier is not None:
            return FrontierEvidence(self.pin, self.band_start, self.band_end, self.messages_in_band, self.frontier)
        return BandEvidence(self.pin, self.band_start, self.band_end, self.messages_in_band, self.anchor)


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A decision with what it was made from."""

    decision: StoredDecision
    base: Reading | None
    tracking: Reading | None
    policy: Policy

    @classmethod
    def of(cls, record: DecisionRecord) -> "StoredRecord":
        """The stored form of a record."""
        return cls(StoredDecision.of(record.decision), record.base, record.tracking, record.policy)

    def record(self) -> DecisionRecord:
        """The record that was stored."""
        return DecisionRecord(self.decision.decision(), self.base, self.tracking, self.policy)
