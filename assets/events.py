"""Reports the results of ticks and runs as Dagster materializations. The UI shows and plots their metadata."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import dagster as dg

from tidemark.assets.catalog import HEARTBEATS, QUARANTINED, TRACKING_HISTOGRAM, WATERMARK, key_of
from tidemark.pipeline.figures import counted
from tidemark.pipeline.ingest.outcome import Ingested
from tidemark.pipeline.ingest.ticks import Tracked
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.watermark.readings import EffectiveReading

REASON = "reason/"
"""Prefix of the metadata that counts rejected messages by reason. The reason follows the prefix."""

ACCEPTED = "accepted_messages"
"""Name of the metadata that counts the messages landed in heartbeats. Quarantined messages do not count. The events of
a requeue lack this metadata, because a requeue pulls no messages."""


def tracking_events(settings: Settings, tracked: Tracked) -> list[dg.AssetMaterialization]:
    """Return a materialization of the watermark and, if messages were tracked, one of the histogram."""
    state = tracked.state
    added = histogram_events(settings, tracked.persisted, cells=len(state.histogram), log_entry=state.number)
    return [*added, dg.AssetMaterialization(key_of(settings, WATERMARK), metadata=watermark_metadata(tracked))]


def histogram_events(settings: Settings, persisted: Ingested, **further: int) -> list[dg.AssetMaterialization]:
    """Return a materialization of the histogram, or nothing if no message was tracked. `further` is more metadata."""
    if not persisted.messages:
        return []
    metadata = {
        "messages": persisted.messages,
        "snapshots": persisted.snapshots,
        "acknowledged": persisted.acknowledged.count,
        "acknowledgements_failed": persisted.acknowledged.failed,
        **further,
    }
    return [dg.AssetMaterialization(key_of(settings, TRACKING_HISTOGRAM), metadata=metadata)]


def watermark_metadata(tracked: Tracked) -> dict[str, Any]:
    """Return the decision, and the figures that led to it, as metadata. Figures of one group share a prefix, such as
    `band/`. Ages and lags are in seconds, so that the UI can plot them. Unknown figures are left out."""
    decision, bound, state = tracked.decision, tracked.decision.bound, tracked.state
    lag, watermark, pin = decision.lag, decision.watermark, decision.pin
    pinned_by = None
    if pin is not None:
        pinned_by = (
            f"{counted(pin.count, 'message')} published at {pin.published_from.isoformat()}; smallest event time: "
            f"{pin.min_event_time.isoformat()}"
        )
    metadata: dict[str, Any] = {
        **moments(watermark=watermark),
        "reason": str(decision.reason),
        "decision": decision.sentence(),
        "log_entry": state.number,
        "lag_seconds": None if lag is None else lag.total_seconds(),
        "watermark_epoch_seconds": None if watermark is None else watermark.timestamp(),
        "pinned_by": pinned_by,
        "problems": "; ".join(tracked.problems) or None,
        "band/messages": 0 if bound is None else bound.messages,
        "band/passed_over": 0 if bound is None else bound.passed_over,
        **moments(**{f"band/{name}": getattr(bound, name, None) for name in ("start", "end", "anchor")}),
        **_reading_metadata("base", decision.base),
        **_reading_metadata("tracking", decision.tracking),
        "histogram/cells": len(state.histogram),
        "histogram/rejected": state.rejected,
        **moments(**{"histogram/newest_publish_time": decision.newest_publish_time}),
        **moments(**{"histogram/complete_from": decision.complete_from}),
        "readings/violations": state.reading_violations,
        "readings/snapshot_bytes_last_day": state.account.last_day(decision.at).snapshot_bytes,
    }
    return {name: value for name, value in metadata.items() if value is not None}


def _reading_metadata(name: str, reading: EffectiveReading | None) -> dict[str, Any]:
    if reading is None:
        return {}
    return {
        f"{name}/backlog_age_seconds": reading.newest.age.total_seconds(),
        f"{name}/read_by": reading.newest.source,
        **moments(**{f"{name}/oldest_unacked": reading.oldest_unacked}),
    }


def landing_events(settings: Settings, landed: Ingested) -> list[dg.AssetMaterialization]:
    """Return materializations of heartbeats and quarantine, each only if something landed in its table."""
    events = []
    if landed.heartbeats:
        metadata: dict[str, Any] = {
            "rows": landed.heartbeats,
            "late": landed.late,
            ACCEPTED: landed.messages - landed.rejected.total(),
            "acknowledged": landed.acknowledged.count,
            "acknowledgements_failed": landed.acknowledged.failed,
            **moments(oldest_event_time=landed.oldest_event_time, newest_event_time=landed.newest_event_time),
            **{f"of_another_kind/{name}": count for name, count in landed.of_another_kind.items()},
        }
        events.append(dg.AssetMaterialization(key_of(settings, HEARTBEATS), metadata=metadata))
    if landed.rejected:
        reasons: Mapping[str, Any] = {f"{REASON}{reason}": count for reason, count in landed.rejected.items()}
        metadata = {"rows": landed.rejected.total(), **reasons}
        events.append(dg.AssetMaterialization(key_of(settings, QUARANTINED), metadata=metadata))
    return events


def landing_sentence(landed: Ingested) -> str:
    """Describe the result of a landing tick in a sentence."""
    if not landed.messages:
        return "nothing to land"
    sentence = f"landed {counted(landed.heartbeats, 'heartbeat')}, {landed.late} of them late"
    if landed.rejected:
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(landed.rejected.items()))
        sentence += f"; quarantined {landed.rejected.total()} ({reasons})"
    if landed.acknowledged.failed:
        failed = counted(landed.acknowledged.failed, "acknowledgement")
        sentence += f"; {failed} failed, so those messages will be redelivered"
    return sentence


def moments(**moments: datetime | None) -> dict[str, Any]:
    """Convert moments to Dagster's timestamps. Unknown moments (None) are left out."""
    return {name: dg.MetadataValue.timestamp(moment) for name, moment in moments.items() if moment is not None}
