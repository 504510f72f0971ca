"""Writes the decisions of a replay as a Parquet file, one row per tick."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import TidemarkError
from pipeline.lake.tables.table import MOMENT
from pipeline.replay.outcome import Replayed
from pipeline.watermark.decision import Decision

COLUMNS: tuple[tuple[pa.Field, Callable[[Decision], object]], ...] = (
    (pa.field("tick_time", MOMENT, nullable=False), lambda made: made.at),
    (pa.field("watermark", MOMENT), lambda made: made.watermark),
    (pa.field("reason", pa.string(), nullable=False), lambda made: str(made.reason)),
    (pa.field("base_oldest_unacked", MOMENT), lambda made: made.base and made.base.oldest_unacked),
    (pa.field("tracking_oldest_unacked", MOMENT), lambda made: made.tracking and made.tracking.oldest_unacked),
    (pa.field("band_start", MOMENT), lambda made: made.bound and made.bound.start),
    (pa.field("band_end", MOMENT), lambda made: made.bound and made.bound.end),
    (pa.field("messages_in_band", pa.int64(), nullable=False), lambda made: made.bound.messages if made.bound else 0),
)
"""The columns of a decision, and the value of each. `watermark` is null before the first one, a reading where it is
unknown, and the band where no band was used (in a hold, or by the idle rule)."""

LATE_TOTAL = pa.field("late_total", pa.int64(), nullable=False)
"""The last column: all late messages that landed by the tick."""


def write_decisions(path: Path, replayed: Replayed) -> None:
    """Write the file, replacing an existing one. Raises TidemarkError if it cannot be written."""
    values = [[value_of(decision) for decision in replayed.decisions] for _, value_of in COLUMNS]
    schema = pa.schema([*(column for column, _ in COLUMNS), LATE_TOTAL])
    try:
        pq.write_table(pa.table([*values, replayed.late_total], schema=schema), path)
    except OSError as error:
        raise TidemarkError(
            f"the decisions cannot be written to {path} ({error}); name another file with --out"
        ) from error
