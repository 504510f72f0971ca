"""What a lake says: every kind of object that a later program reads back, read by the product, as plain values."""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.clock import ManualClock
from tests.watermark.builders import at
from tidemark.pipeline.clock import Clock, iso
from tidemark.pipeline.lake.landings import MANIFEST, PIECE, LandedBatches
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.log.notes import LogWitness
from tidemark.pipeline.lake.store.notes import Notes
from tidemark.pipeline.lake.tables.table import LakeTable
from tidemark.pipeline.quality.landings import LateHeartbeats
from tidemark.pipeline.quality.staleness import Staleness
from tidemark.pipeline.replay.replay import verify
from tidemark.pipeline.replay.sources import ParquetTrace, recorded_ticks
from tidemark.pipeline.replay.trace import extent_of
from tidemark.pipeline.settings import Settings, load_settings
from tidemark.pipeline.tuning.inputs import report_on_lake
from tidemark.pipeline.tuning.page import FIGURES
from tidemark.pipeline.tuning.report import Asked, facts_of
from tidemark.pipeline.version import without_marks
from tidemark.pipeline.watermark.state import Beginning, Compacted, DecisionRecord, Entry, Snapshot

LATER = at(3 * 3600.0 + 600)
"""A moment after all that is in the fixture."""

RUN = "fixture-run"
"""The name under which `format("pubsub")` has landed."""

TUNED = ("messages", "rejected", "streams", "ticks", "published_from", "published_until")
LANDED = ("stream_id", "event_time", "publisher_id", "message_id", "publish_time", "late", "load", "event_hour")
REJECTED = ("reason", "message_id", "publish_time", "rejected_on")
COMPARED = ("stream_id", "event_time", "previous_event_time", "gap_seconds", "load", "load_delta", "late", "window")
STATUS = ("stream_id", "kind", "last_event_time", "first_event_time", "missed_heartbeats", "window")


def settings_in(folder: Path) -> Settings:
    return load_settings(folder / "tidemark.toml")


def lake_in(folder: Path, clock: Clock | None = None) -> Lake:
    settings = settings_in(folder)
    return Lake(settings.lake, settings.message.kinds, clock or ManualClock(LATER))


def said_by(folder: Path) -> dict[str, Any]:
    """All that the lake in a folder says, with the files beside it. Later versions add what they have in addition."""
    settings, lake = settings_in(folder), lake_in(folder)
    log, windowing = lake.tracking_log(), settings.windowing
    state, ticks = recorded_ticks(log)
    verified = verify(ticks, state)
    missed = Staleness(lake, windowing)
    kept, checked = missed.checkpoint, missed.check()
    witness = LogWitness(lake.objects()).newest()
    trace = extent_of(ParquetTrace(folder / "trace.parquet"))
    said = {
        "log": [entry_facts(log.entry(number)) for number in log.numbers()],
        "archived": log.numbers()[-1] + 1 - len(log.live_numbers()),
        "restored": state_facts(lake),
        "verified": [verified.decisions, verified.compacted, verified.first_difference],
        "witness": [witness.number, witness.watermark],
        "heartbeats": rows_of(lake.table("heartbeats"), LANDED),
        "quarantine": rows_of(lake.table("quarantine"), REJECTED),
        "heartbeat_diffs": rows_of(lake.table("heartbeat_diffs"), COMPARED),
        "stream_status": rows_of(lake.table("stream_status"), STATUS),
        "streams": lake.streams().known().rows.to_pylist(),
        "computed_from": lake.diffs().versions(lake.diffs().computed()),
        "late": dict(LateHeartbeats(lake.heartbeats(), windowing).since(at(0)).by_stream),
        "kept_since": lake.kept_windows(windowing).since(),
        "checked_through": [kept.heartbeats_version, kept.diffs_version],
        "missed": [checked.total, [f"{stale.window}: {stale.why}" for stale in checked.stale]],
        "landings": landings(lake),
        "reports": [json.loads(report) for report in reports(lake)],
        "tuned": tuning_facts(lake, settings),
        "trace": [trace.messages, trace.rejected, trace.never_landed],
        "decisions": pq.read_table(
            folder / "decisions.parquet", columns=["tick_time", "watermark", "reason"]
        ).to_pylist(),
    }
    said["reports"] = [without_marks(report) for report in said["reports"]]
    return json.loads(json.dumps(said, default=_plain))


def entry_facts(entry: Entry) -> list[Any]:
    """An entry's kind, and what it says in short."""
    name = type(entry).__name__
    match entry:
        case Snapshot():
            return [name, entry.histogram.publish_bucket.tolist(), entry.histogram.count.tolist()]
        case DecisionRecord():
            return [name, entry.decision.at, str(entry.decision.reason), entry.decision.watermark]
        case Compacted():
            return [name, entry.state.number, entry.state.watermark, len(entry.state.histogram)]
        case Beginning():
            return [name, entry.complete_from]
        case _:
            return [name]


def state_facts(lake: Lake) -> list[Any]:
    """What a restart restores from the log."""
    state = lake.tracking_log().catch_up()
    return [state.number, state.watermark, state.complete_from, len(state.histogram), state.histogram.count.tolist()]


def rows_of(table: LakeTable, columns: Sequence[str]) -> list[dict[str, Any]]:
    """A table's rows, in an order of their own."""
    current = table.in_place()
    rows: list[dict[str, Any]] = current.to_pyarrow_table(columns=list(columns)).to_pylist()
    return sorted(rows, key=lambda row: [str(value) for value in row.values()])


def landings(lake: Lake) -> list[Any]:
    """What landed for Spark: rows by piece, and whether the batches are over."""
    objects = lake.objects()
    batches = LandedBatches(objects, RUN)
    found = Notes(objects, MANIFEST).find(batches.name(2, 0))
    pieces = [rows["message_id"].to_pylist() for rows in (Notes(objects, PIECE).read(piece) for piece in found.pieces)]
    return [sum(map(len, pieces)), pieces, batches.is_over(1), batches.is_over(2)]


def reports(lake: Lake) -> Iterable[bytes]:
    """The figures of every tuning report."""
    objects = lake.objects()
    return [objects.read(name) for name in objects.names(FIGURES.prefix) if name.endswith(".json")]


def tuning_facts(lake: Lake, settings: Settings) -> Mapping[str, Any]:
    """What a tuning report says of the lake, but for its sentences and where the lake is."""
    facts = facts_of(report_on_lake(lake, Asked(settings, LATER, target=0.01, bands=[timedelta(seconds=10)])))
    return {name: facts[name] for name in TUNED}


def _plain(value: object) -> object:
    return iso(value) if isinstance(value, datetime) else str(value)
