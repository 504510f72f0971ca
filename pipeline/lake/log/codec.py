"""Encodes entries of the tracking log as Parquet, without loss, and decodes them.

A histogram is encoded as a table with a row per cell, and a decision as a table with one row. Any Parquet reader can
display these tables. The file's metadata has the kind of entry, all values without a column, and a digest of the whole
file.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime
from pathlib import PurePath
from typing import Any, Literal, get_type_hints

import numpy as np
import pyarrow as pa
from pydantic import TypeAdapter

from tidemark.pipeline.contract.messages import MOMENT, Column, described
from tidemark.pipeline.errors import CorruptObject
from tidemark.pipeline.lake.store.notes import parquet_bytes, parquet_rows
from tidemark.pipeline.version import marks, newer_format, refuse_newer
from tidemark.pipeline.watermark.decision import BandEvidence, Decision, FrontierEvidence, SilenceEvidence
from tidemark.pipeline.watermark.histogram import BUCKET_US, COPY, NO_EVENT, NO_MINIMUM, Histogram
from tidemark.pipeline.watermark.state import (
    Beginning,
    Compacted,
    DecisionRecord,
    Entry,
    Lost,
    Released,
    Snapshot,
    WatermarkState,
)
from tidemark.pipeline.watermark.usage import Usage

CELLS, CELL_COLUMNS = described(
    [
        Column("publish_bucket", MOMENT, "Start of the second in which the messages were published.", False),
        Column("event_bucket", MOMENT, "Start of the second of event time; null for rejections and copies."),
        Column("count", pa.int64(), "Upper bound on the messages in the cell: a redelivery may count twice.", False),
        Column("min_event_time", MOMENT, "The smallest event time in the cell, exact."),
        Column("first_publish_time", MOMENT, "The smallest publish time in the cell.", False),
        Column("last_publish_time", MOMENT, "The greatest publish time in the cell.", False),
        Column("published_in", pa.int64(), "A bit per 20 ms, set if a message was published then; 0: unknown.", False),
    ]
)
"""Schema of an encoded histogram, and the descriptions of its columns. The table has one row per cell. A bucket is
stored as the time at which it starts.

A cell without an event bucket counts rejected messages if `min_event_time` is null, and copies if it is the epoch.
"""

NOTES: Mapping[type[Beginning | Lost | Released], pa.Schema] = {
    Beginning: pa.schema({"complete_from": MOMENT}),
    Lost: pa.schema({"what": pa.string(), "watermark_at_least": MOMENT}),
    Released: pa.schema({"before": MOMENT, "at": MOMENT, "by": pa.string()}),
}
"""Schemas of the entries without a histogram or a decision, by class. Such an entry is one row. The columns are its
fields, and the kind in the file's metadata is the class name in lower case. Fields that later versions add to a class
are stored in the metadata, under FACTS."""

DECISIONS, DECISION_COLUMNS = described(
    [
        Column("at", MOMENT, "Time of the decision."),
        Column("watermark", MOMENT, "The watermark; null before the first one."),
        Column("reason", pa.string(), "The reason (docs/reference/reasons.md)."),
        Column("candidate", MOMENT, "The event time that the watermark may reach; null for a hold."),
        Column("band_start", MOMENT, "The publish time from which the rule looked at messages."),
        Column("band_end", MOMENT, "The publish time up to which tracking had read."),
        Column("anchor", MOMENT, "Publish time of the newest valid message published over a band before `band_end`."),
        Column("messages_in_band", pa.int64(), "Upper bound on the messages published from `band_start` on."),
        Column("newest_publish_time", MOMENT, "The newest publish time that tracking has seen."),
        Column("complete_from", MOMENT, "Tracking has seen every message published from this time on."),
        Column("frontier", MOMENT, "With the rule `frontier`: the greatest event time known to be complete."),
        Column("released_before", MOMENT, "An operator released messages published before this time."),
        Column("passed_over", pa.int64(), "Messages in the band that lag more than `watermark.max_lag`."),
        Column("base_oldest_unacked", MOMENT, "Base's reading: the publish time of its oldest unacknowledged message."),
        Column("tracking_oldest_unacked", MOMENT, "Tracking's reading."),
        Column("recent_lag_seconds", pa.float64(), "In a silence: the sources' recent lag, in seconds."),
    ]
)
"""Schema of an encoded decision, and the descriptions of its columns."""

KIND, FACTS, WRITER, SEAL = b"tidemark.kind", b"tidemark.facts", b"tidemark.writer", b"tidemark.seal"

SEALED = b"sha256:"
OPEN_SEAL = SEALED + b"0" * 64

DECISION = (
    *("at", "watermark", "reason", "candidate", "base", "tracking", "band_start", "band_end", "anchor", "pin"),
    *("messages_in_band", "newest_publish_time", "recent_lag", "complete_from", "frontier", "released_before"),
    "passed_over",
)
"""Names under which the fields of a decision and of its evidence are stored."""

STORED_AS = {"pruned_frontier": "passed", "start": "band_start", "end": "band_end", "messages": "messages_in_band"}
"""Names under which fields are stored, if they differ from the names in the code."""

_RECORD = TypeAdapter(DecisionRecord)
_DECISION = TypeAdapter(Decision)
_FACTS = TypeAdapter(dict[str, Any])
_USAGE, _MOMENT = TypeAdapter(Usage), TypeAdapter(datetime | None)

_STATE: Mapping[str, TypeAdapter[Any]] = {
    name: TypeAdapter(kind)
    for name, kind in get_type_hints(WatermarkState).items()
    if name not in ("number", "checkpoint", "histogram", "record")
}
"""The fields of a watermark state that are stored in a compacted entry's metadata. The histogram is not one of them,
because it is the entry's table. The newest decision is stored separately."""


def encode(entry: Entry, writer: str) -> bytes:
    """Encode a log entry. `writer` is part of the result, so that two writers never produce the same bytes."""
    match entry:
        case Snapshot():
            facts = _histogram_facts(entry.histogram)
            if entry.usage is not None:
                facts |= {"usage": _USAGE.dump_python(entry.usage), "at": _MOMENT.dump_python(entry.at, mode="json")}
            facts |= {"contract": entry.contract} if entry.contract else {}
            return _write(_cells(entry.histogram), "histogram", facts, writer)
        case Compacted():
            state = entry.state
            facts = _histogram_facts(state.histogram)
            facts["decided"] = None if state.record is None else _dumped(state.record)
            for name, kind in _STATE.items():
                facts[STORED_AS.get(name, name)] = kind.dump_python(getattr(state, name), mode="json")
            return _write(_cells(state.histogram), "compacted", facts, writer)
        case DecisionRecord():
            return _write(_decision_row(entry), "decision", {"decided": _dumped(entry)}, writer)
        case Beginning() | Lost() | Released():
            schema = NOTES[type(entry)]
            note = pa.table([[getattr(entry, name)] for name in schema.names], schema)
            facts = {"contract": entry.contract} if isinstance(entry, Lost) and entry.contract else {}
            return _write(note, type(entry).__name__.lower(), facts, writer)


def decode(content: bytes, name: str) -> Entry:
    """Decode a log entry. `name` is the name of the entry's object, for error messages. Raises NewerFormat if a
    later version of tidemark wrote the entry, and CorruptObject if the entry is damaged."""
    try:
        if _sealed(content) != content:
            raise ValueError("its digest does not match")
        table = parquet_rows(content)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptObject(
            f"{name} cannot be read as an entry of the tracking log ({error}); restore its earlier version or a "
            f"backup. Without a backup, run `tidemark repair --forget {PurePath(name).stem}`: the watermark then holds "
            "until base has landed every message that the entry may have counted"
        ) from error
    metadata = table.schema.metadata or {}
    refuse_newer(name, metadata)
    try:
        return _entry(metadata[KIND].decode(), table, _FACTS.validate_json(metadata[FACTS]))
    except (pa.ArrowException, KeyError, ValueError, TypeError) as error:  # the digest matches, so it is not damaged
        raise newer_format(name, metadata, str(error)) from error


def _entry(kind: str, table: pa.Table, facts: dict[str, Any]) -> Entry:
    match kind:
        case "histogram":
            usage = _USAGE.validate_python(facts["usage"]) if "usage" in facts else None
            at = _MOMENT.validate_python(facts.get("at"))
            return Snapshot(_histogram(table, facts), usage, at, facts.get("contract", ""))
        case "compacted":
            stored = {name: STORED_AS.get(name, name) for name in _STATE}
            # A field that an entry lacks takes its default.
            found = {name: _STATE[name].validate_python(facts[key]) for name, key in stored.items() if key in facts}
            record = None if facts["decided"] is None else _restored(facts["decided"])
            return Compacted(WatermarkState(histogram=_histogram(table, facts), record=record, **found))
        case "decision":
            return _restored(facts["decided"])
        case _:
            for note, schema in NOTES.items():
                if kind == note.__name__.lower():
                    return note(*(table[name][0].as_py() for name in schema.names), **facts)
            raise ValueError(f"an unknown kind of entry, {kind!r}")


def _dumped(record: DecisionRecord) -> Any:
    return _RECORD.dump_python(record, mode="json") | {"decision": flat(record.decision, "json")}


def flat(decision: Decision, mode: Literal["json", "python"] = "python") -> dict[str, Any]:
    """Return the fields of a decision and of its evidence in one dict, keyed by their names in the log."""
    found = _DECISION.dump_python(decision, mode=mode)
    evidence = {STORED_AS.get(name, name): value for name, value in (found["evidence"] or {}).items()}
    found |= {"messages_in_band": 0, "passed_over": 0} | evidence
    if "pin" in found:
        found["candidate"] = found["pin"]["min_event_time"]
    return {name: found.get(name) for name in DECISION}


def _restored(stored: Any) -> DecisionRecord:
    found, evidence = {"passed_over": 0} | stored["decision"], None
    if found.get("candidate") is not None:
        has_lag, has_frontier = (found.get(name) is not None for name in ("recent_lag", "frontier"))
        kind = SilenceEvidence if has_lag else FrontierEvidence if has_frontier else BandEvidence
        evidence = {field.name: found.get(STORED_AS.get(field.name, field.name)) for field in fields(kind)}
    return _RECORD.validate_python(stored | {"decision": found | {"evidence": evidence}})


def _cells(histogram: Histogram) -> pa.Table:
    valid, copies = histogram.event_bucket > COPY, histogram.event_bucket == COPY
    event_us = np.where(valid, histogram.event_bucket, 0) * BUCKET_US
    columns = [
        pa.array(histogram.publish_bucket * BUCKET_US, pa.int64()).cast(MOMENT),
        pa.array(event_us, pa.int64(), mask=~valid).cast(MOMENT),
        pa.array(histogram.count, pa.int64()),
        pa.array(np.where(valid, histogram.min_event_us, 0), pa.int64(), mask=~(valid | copies)).cast(MOMENT),
        pa.array(histogram.first_publish_us, pa.int64()).cast(MOMENT),
        pa.array(histogram.last_publish_us, pa.int64()).cast(MOMENT),
        pa.array(histogram.published_in, pa.int64()),
    ]
    return pa.table(columns, schema=CELLS)


def _histogram_facts(histogram: Histogram) -> dict[str, Any]:
    return {"newest_publish_us": histogram.newest_publish_us, "oldest_event_us": histogram.oldest_event_us}


def _histogram(table: pa.Table, facts: dict[str, Any]) -> Histogram:
    publish, event, count, minimum, first, last, published_in = (
        table[name].cast(pa.int64()).combine_chunks() for name in CELLS.names
    )
    valid = event.is_valid().to_numpy(zero_copy_only=False)
    untimed = np.where(minimum.is_valid().to_numpy(zero_copy_only=False), COPY, NO_EVENT)
    return Histogram(
        publish_bucket=publish.to_numpy() // BUCKET_US,
        event_bucket=np.where(valid, event.fill_null(0).to_numpy() // BUCKET_US, untimed),
        count=count.to_numpy().copy(),
        min_event_us=np.where(valid, minimum.fill_null(0).to_numpy(), NO_MINIMUM),
        first_publish_us=first.to_numpy().copy(),
        last_publish_us=last.to_numpy().copy(),
        published_in=published_in.to_numpy().copy(),
        newest_publish_us=facts["newest_publish_us"],
        oldest_event_us=facts["oldest_event_us"],
    )


def _decision_row(entry: DecisionRecord) -> pa.Table:
    row = flat(entry.decision)
    base, tracking, lag = (row[name] for name in ("base", "tracking", "recent_lag"))
    row["base_oldest_unacked"] = base and base["oldest_unacked"]
    row["tracking_oldest_unacked"] = tracking and tracking["oldest_unacked"]
    row["recent_lag_seconds"] = None if lag is None else lag.total_seconds()
    return pa.table({column.name: pa.array([row[column.name]], column.type) for column in DECISIONS})


def _write(table: pa.Table, kind: str, facts: dict[str, Any], writer: str) -> bytes:
    metadata: dict[Any, Any] = {KIND: kind, FACTS: _FACTS.dump_json(facts), WRITER: writer, **marks()}
    metadata[SEAL] = OPEN_SEAL
    return _sealed(parquet_bytes(table.replace_schema_metadata(metadata)))


def _sealed(content: bytes) -> bytes:
    """Return the content with its digest as the seal. The digest is that of the content with the placeholder OPEN_SEAL
    in the seal's place. Unlike Parquet's own checksums, the digest covers the metadata. Raises ValueError if the
    content has no place for a seal."""
    place = content.rindex(SEALED)
    before, after = content[:place], content[place + len(OPEN_SEAL) :]
    digest = hashlib.sha256(before + OPEN_SEAL + after).hexdigest()
    return before + SEALED + digest.encode() + after
