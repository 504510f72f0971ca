"""How a run replaces windows in its tables: fence, input, retention's boundary, manifest, files, commit, in this order.

Each table by window is replaced like this: `heartbeat_diffs` and `stream_status` together, each table of your own
alone.
"""

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from tidemark.pipeline.clock import Clock, iso
from tidemark.pipeline.errors import WindowNotClosed
from tidemark.pipeline.lake.tables.heartbeats import HeartbeatFiles, Heartbeats
from tidemark.pipeline.lake.tables.windowed import DiffRun, WindowedTable, Written
from tidemark.pipeline.windows import Window, runs_of_neighbours

WrittenFiles = Sequence[Sequence[Written] | None]
"""The files that a run wrote, for each of its tables; None: all files in the run's folder of that table."""

Write = Callable[[Sequence[Window], HeartbeatFiles, str], WrittenFiles]
"""Computes windows from their input and writes the files of a run, by its name. Nothing of it is visible yet."""


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables that a run replaces, in the order of their commits. A window counts as computed once the last one has
    it. `refuse_expired` raises WindowExpired for windows whose input is no longer kept in full. `note` gives what a
    run's manifest says of its windows, beside their keys and its input."""

    tables: Sequence[WindowedTable]
    heartbeats: Heartbeats
    lookback: timedelta
    watermark: datetime | None
    run: str
    clock: Clock
    refuse_expired: Callable[[Sequence[Window]], None]
    note: Callable[[Sequence[Window]], Mapping[str, Any]] = lambda _: {}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run replaced: the rows of each window in the last table, and by table the windows that another run has
    replaced meanwhile, from input at least as new."""

    run: str
    heartbeats_version: int
    rows: Mapping[str, int]
    superseded: Sequence[Sequence[str]]
    input_rows: int = 0


def refuse_open(windows: Sequence[Window], watermark: datetime | None) -> None:
    """Raise WindowNotClosed if the watermark has not passed every window."""
    still_open = [window for window in windows if not window.is_closed_at(watermark)]
    if still_open:
        where = "there is no watermark yet" if watermark is None else f"the watermark is at {iso(watermark)}"
        raise WindowNotClosed(
            f"{len(still_open)} of {len(windows)} windows cannot be trusted yet, the first is {still_open[0]}: {where}"
            ". Nothing was written. Wait until the watermark has passed the window's end; `tidemark explain` says "
            "what holds it"
        )


def replace_windows(tables: Tables, windows: Sequence[Window], write: Write) -> Outcome:
    """Compute windows in order, which may have gaps between them, and replace them in each table.

    Guarantee: readers see each window of each table whole, before or after. Assumption: the watermark has passed them.
    Raises what `write` raises, WindowExpired, and LakeError; then nothing is visible, or only what the earlier tables
    got, or a stretch of windows before.
    """
    done = _attempt(tables, windows, write)
    # Another run that was first may have read less than we did: then what it wrote is replaced in its turn.
    for stretch in runs_of_neighbours(_of_older_input(tables, done, windows)):
        again = _attempt(tables, stretch, write)
        done = replace(
            done,
            rows={**done.rows, **again.rows},
            superseded=[[key for key in keys if key not in again.rows] for keys in done.superseded],
        )
    return done


def _attempt(tables: Tables, windows: Sequence[Window], write: Write) -> Outcome:
    keys = [window.key for window in windows]
    # Before the input is listed, or a newer computation could be undone by an older one.
    fences = [table.fence(keys) for table in tables.tables]
    files = tables.heartbeats.files_between(windows[0].start - tables.lookback, windows[-1].end)
    # After the input is listed: retention raises its boundary before it takes out a row. So what was listed is whole.
    tables.refuse_expired(windows)
    attempt = DiffRun(
        name=f"{tables.run}-{uuid.uuid4().hex[:8]}",
        windows=keys,
        heartbeats_version=files.version,
        watermark=tables.watermark or windows[-1].end,
        started_at=tables.clock.now(),
        **tables.note(windows),
    )
    tables.tables[-1].leave_manifest(attempt)
    written = write(windows, files, attempt.name)
    replaced = [
        table.replace(attempt, fence, of_table)
        for table, fence, of_table in zip(tables.tables, fences, written, strict=True)
    ]
    return Outcome(
        run=attempt.name,
        heartbeats_version=files.version,
        rows=replaced[-1].rows,
        superseded=[of_table.superseded for of_table in replaced],
        input_rows=files.rows,
    )


def _of_older_input(tables: Tables, done: Outcome, windows: Sequence[Window]) -> list[Window]:
    """The windows of which another run's rows stand in a table, made from less than this run has read."""
    found = (table.versions(keys) for table, keys in zip(tables.tables, done.superseded, strict=True))
    older = {key for versions in found for key, version in versions.items() if version < done.heartbeats_version}
    return [window for window in windows if window.key in older]
