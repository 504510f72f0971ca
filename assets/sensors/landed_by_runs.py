"""The messages that runs have landed and tracked, as metrics: runs end, and the code server is scraped."""

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
"""The most materializations of an asset that one look counts; the next one goes on."""


def tell_landed(lake: LakeResource, runs: Runs) -> None:
    """Tell the pipeline's observer what runs have landed and tracked since the last tick that told it."""
    observer = observer_of(lake)
    if observer.is_on:
        seen = lake.kept.get("landed by runs", dict[dg.AssetKey, int])
        observer.by_runs(lambda: landed_by_runs(runs, seen))


def landed_by_runs(runs: Runs, seen: dict[dg.AssetKey, int]) -> tuple[Ingested, int]:
    """The outcome of landing by runs since the last look, and their tracked messages: a drain reports after
    each round, and a run that lands continuously at each tick. `seen` notes how far the materializations of each asset
    were counted. Those before the process' first look are not."""
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
    """The metadata of the materializations of an asset by runs, since the last look."""
    asset, since = key_of(runs.settings, key), seen.get(key)
    wanted, is_first = dg.AssetRecordsFilter(asset_key=asset, after_storage_id=since), since is None
    found = runs.instance.fetch_materializations(wanted, 1 if is_first else EVENTS_AT_ONCE, ascending=not is_first)
    seen[key] = max([since or 0, *(record.storage_id for record in found.records)])
    if is_first:
        return []
    materialized = [record.asset_materialization for record in found.records if record.run_id]
    return [{name: value.value for name, value in one.metadata.items()} for one in materialized if one is not None]
