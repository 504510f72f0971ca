"""The stored form of a decision: one flat record, whatever its evidence."""

from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any

from pipeline.watermark.decision import BandEvidence, Decision, FrontierEvidence, Reason, SilenceEvidence
from pipeline.watermark.histogram import Cell
from pipeline.watermark.policy import Policy
from pipeline.watermark.readings import EffectiveReading, Reading
from pipeline.watermark.state import DecisionRecord

AS_THEY_ARE = [field.name for field in fields(Decision) if field.name != "evidence"]
"""The fields that a decision and its stored form share."""


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
        values: dict[str, Any] = {name: getattr(decision, name) for name in (*AS_THEY_ARE, "candidate", "pin")}
        if (bound := decision.bound) is not None:
            values |= {"band_start": bound.start, "band_end": bound.end, "messages_in_band": bound.messages}
        for name in ("anchor", "frontier", "recent_lag"):
            values[name] = getattr(decision.evidence, name, None)
        return cls(**values)

    def decision(self) -> Decision:
        """The decision that was stored. Raises ValueError for fields that no decision has together."""
        values: dict[str, Any] = {name: getattr(self, name) for name in AS_THEY_ARE}
        return Decision(**values, evidence=self._evidence())

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
