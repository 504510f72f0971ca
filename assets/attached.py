"""The asset `complete_windows`, which exists with `pubsub.attach`. A partition is materialized once the watermark has
passed its windows."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import dagster as dg

from tidemark.assets.catalog import COMPLETE_WINDOWS, WATERMARK, key_of, spec, within
from tidemark.assets.events import moments
from tidemark.assets.partitions import Partitions
from tidemark.assets.scheduler.requests import Request
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.watermark.state import WatermarkState
from tidemark.pipeline.windows import Window
from tidemark.resources.lake import LakeResource

AT_ONCE = 50
"""Maximum number of partitions materialized per tick. It keeps a tick short, because Dagster takes a few milliseconds
per partition. Later ticks materialize the others."""


@dataclass
class CompleteWindows:
    """Finds complete partitions of `complete_windows` that are not materialized yet. Asks Dagster's storage which are
    materialized, because a tick can fail after its events were returned. Asks again once another partition is complete,
    or if the last search found a missing one."""

    settings: Settings
    partitions: Partitions
    _reached: int | None = None

    def described(self) -> dg.AssetSpec:
        """Return the spec of the asset `complete_windows`."""
        return spec(
            self.settings,
            COMPLETE_WINDOWS,
            "A partition is an hour of windows, or one longer window. Partitions are materialized in order, each once "
            "the watermark has passed all of it.",
            uri=within(self.settings, "watermark.json"),
            deps=[WATERMARK],
            partitions_def=self.partitions.definition(),
        )

    def after_decision(
        self, context: dg.SensorEvaluationContext, lake: LakeResource, state: WatermarkState
    ) -> tuple[Request, Sequence[dg.AssetMaterialization]]:
        """Return a request and the materializations of the next complete partitions. The request has no windows,
        because no run has to compute these partitions."""
        reported = self._next(context.instance, state, lake.clock.now())
        said = f"newly complete partitions of complete_windows: {len(reported)}"
        return Request((), said if reported else "no further partition of complete_windows is complete"), reported

    def _next(
        self, instance: dg.DagsterInstance, state: WatermarkState, now: datetime
    ) -> list[dg.AssetMaterialization]:
        """Return materializations of the next missing partitions in order, at most AT_ONCE. So that no partition is
        skipped, the search begins at the earlier of two points: the partition that contains `state.complete_from`, and
        the end of the newest materialized partition. A partition that ends in the future by this machine's clock is
        left for later."""
        watermark, since, listed = state.watermark, state.complete_from, self.partitions.listed
        if watermark is None or since is None:
            return []
        reached, begins = listed.number_of(min(watermark, now)), listed.number_of(since)
        if self._reached == reached:
            return []
        key = key_of(self.settings, COMPLETE_WINDOWS)
        there = instance.get_materialized_partitions(key)
        for newest in sorted(there, reverse=True):
            with suppress(ValueError):  # the key of a window of another length
                last = listed.named(newest)
                begins = min(begins, listed.number_of(last.end))
                if self._is_of_a_shorter(instance, key, last):
                    there = there - {newest}
                break
        numbers = range(max(begins, listed.number_of(listed.first)), reached)
        if not (missing := [one for one in map(listed.numbered, numbers) if one.key not in there]):
            self._reached = reached
        return [
            dg.AssetMaterialization(key, partition=one.key, metadata=self._metadata(one.key, state))
            for one in missing[:AT_ONCE]
        ]

    def _is_of_a_shorter(self, instance: dg.DagsterInstance, asset: dg.AssetKey, partition: Window) -> bool:
        """Return True if a partition was last materialized before the watermark had passed its end. This happens if the
        window length has changed: the materialized partition had the same key, but was shorter."""
        wanted = dg.AssetRecordsFilter(asset, asset_partitions=[partition.key])
        found = instance.fetch_materializations(wanted, limit=1).records
        metadata: Any = found[0].asset_materialization.metadata if found and found[0].asset_materialization else {}
        return "watermark" in metadata and metadata["watermark"].value < partition.end.timestamp()

    def _metadata(self, key: str, state: WatermarkState) -> dict[str, Any]:
        (numbers,) = self.partitions.windows_in([key])
        first, last = (self.settings.windowing.numbered(number).key for number in (numbers[0], numbers[-1]))
        return {
            "windows": len(numbers),
            "first_window": first,
            "last_window": last,
            "log_entry": state.number,
            **moments(watermark=state.watermark, decided_at=None if state.decision is None else state.decision.at),
        }
