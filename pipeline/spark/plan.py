"""What both ways of computing diffs depend on. It imports no Spark: a task that computes in columns needs it too."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from tidemark.pipeline.contract.heartbeat import FieldKind

OF_MANY_VALUES = {"event_time", "previous_event_time", "gap_seconds", "publish_time", "message_id"}
"""Columns that Parquet writes without a dictionary: it would be begun, found too large, and given up."""


@dataclass(frozen=True, slots=True)
class DiffPlan:
    """The settings that a diff depends on."""

    fields: Mapping[str, FieldKind]
    lookback: timedelta
    period: timedelta
    window_length: timedelta
