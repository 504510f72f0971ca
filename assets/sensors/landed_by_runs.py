"""Metrics of messages that runs have landed and tracked. The code server reports them: it is scraped, and runs end."""

from collections import Counter
from typing import Any

import dagster as dg

from tidemark.assets.catalog import HEARTBEATS, QUARANTINED, TRACKING_HISTOGRAM, key_of
from tidemark.assets.events import ACCEPTED, REASON
from tidemark.assets.scheduler.runs import Runs
from tidemark.assets.sensors.watching import observer_of
from tidemark.pipeline.contract.heartbeat import RejectionReason
from tidemark.pipeline.ingest.outcome import Ingested
from tidemark.resources.lake import LakeResource

EVENTS_AT_ONCE = 500
"""Materializations of an asset that one call counts at most; the next call continues."""


def tell_landed(lake: LakeResource, runs: Runs) -> None:
    """Report to the pipeline's observer what runs have landed and tracked since its last report."""
    observer = observer_of(lake)
    if observer.is_on:
        seen = lake.kept.get("landed by runs", dict[dg.AssetKey, int])
        observer.by_runs(lambda: landed_by_runs(runs, seen))


def landed_by_runs(runs: Runs, seen: dict[dg.AssetKey, int]) -> tuple[Ingested, int]:
    """Return what runs have landed since the last call, and the number of messages they tracked. `seen` holds how far
    the materializations of each asset were counted. Those before the process' first call are not counted."""
    landed = Ingested()
    for metadata in _told(runs, HEARTBEATS, seen):
        rows, late, accepted = (int(metadata.get(name, 0)) for name in ("rows", "late", ACCEPTED))
        landed += Ingested(heartbeats=rows, late=late, messages=accepted)
    for metadata in _told(runs, QUARANTINED, seen):
        reasons = {name: int(count) for name, count in metadata.items() if name.startswith(REASON)}
        rejected = Counter({RejectionReason(name.removeprefix(REASON)): count for name, count in reasons.items()})
        landed += Ingested(rejected=rejected, messages=rejected.total())
    return landed, sum(int(metadata["messages"]) for metadata in _told(runs, TRACKING_HISTOGRAM, seen))


def _told(runs: Runs, key: dg.AssetKey, seen: dict[dg.AssetKey, int]) -> list[dict[str, Any]]:
    """Return the metadata of an asset's materializations by runs since the last call."""
    asset, since = key_of(runs.settings, key), seen.get(key)
    wanted, is_first = dg.AssetRecordsFilter(asset_key=asset, after_storage_id=since), since is None
    found = runs.instance.fetch_materializations(wanted, 1 if is_first else EVENTS_AT_ONCE, ascending=not is_first)
    seen[key] = max([since or 0, *(record.storage_id for record in found.records)])
    if is_first:
        return []
    materialized = [record.asset_materialization for record in found.records if record.run_id]
    return [{name: value.value for name, value in one.metadata.items()} for one in materialized if one is not None]
