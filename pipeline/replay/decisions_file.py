"""Writes the decisions of a replay as a Parquet file, one row per tick."""

from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import TidemarkError
from pipeline.lake.tables.table import MOMENT
from pipeline.replay.outcome import Replayed
from pipeline.watermark.readings import EffectiveReading

DECISIONS = pa.schema(
    [
        pa.field("tick_time", MOMENT, nullable=False),
        pa.field("watermark", MOMENT),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("base_oldest_unacked", MOMENT),
        pa.field("tracking_oldest_unacked", MOMENT),
        pa.field("band_start", MOMENT),
        pa.field("band_end", MOMENT),
        pa.field("messages_in_band", pa.int64(), nullable=False),
        pa.field("late_total", pa.int64(), nullable=False),
    ]
)
"""`watermark` is null before the first one, a reading where it is unknown, and the band where no band was used (in a
hold, or by the idle rule). `late_total` counts all messages that landed by the tick."""


def write_decisions(path: Path, replayed: Replayed) -> None:
    """Write the file, replacing an existing one. Raises TidemarkError if it cannot be written."""
    decisions = replayed.decisions
    bounds = [decision.bound for decision in decisions]
    columns = {
        "tick_time": [decision.at for decision in decisions],
        "watermark": [decision.watermark for decision in decisions],
        "reason": [str(decision.reason) for decision in decisions],
        "base_oldest_unacked": [_oldest(decision.base) for decision in decisions],
        "tracking_oldest_unacked": [_oldest(decision.tracking) for decision in decisions],
        "band_start": [None if bound is None else bound.start for bound in bounds],
        "band_end": [None if bound is None else bound.end for bound in bounds],
        "messages_in_band": [0 if bound is None else bound.messages for bound in bounds],
        "late_total": replayed.late_total,
    }
    try:
        pq.write_table(pa.table(columns, schema=DECISIONS), path)
    except OSError as error:
        raise TidemarkError(
            f"the decisions cannot be written to {path} ({error}); name another file with --out"
        ) from error


def _oldest(reading: EffectiveReading | None) -> datetime | None:
    return None if reading is None else reading.oldest_unacked
