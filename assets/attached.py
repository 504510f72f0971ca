"""Definitions for Dagster where somebody else reads base: the watermark, and the hours of windows that it completes."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import dagster as dg

from tidemark.assets import checks
from tidemark.assets.catalog import (
    COMPLETE_WINDOWS,
    WATERMARK,
    key_of,
    observed_assets,
    spec,
    ticking_sensor,
    within,
)
from tidemark.assets.checks import Look
from tidemark.assets.jobs.housekeeping import housekeeping_job, housekeeping_schedule
from tidemark.assets.jobs.tuning import tuning_asset, tuning_schedule
from tidemark.assets.partitions import Partitions
from tidemark.assets.scheduler.requests import Request
from tidemark.assets.sensors.staleness import AUDIT_EVERY, CHECK_EVERY, Memory
from tidemark.assets.sensors.ticks import tracking_sensor
from tidemark.assets.sensors.watching import keep_observer
from tidemark.pipeline.clock import Clock
from tidemark.pipeline.ingest.pace import Pace
from tidemark.pipeline.kept import Kept
from tidemark.pipeline.orchestrator.names import name_of
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.watermark.state import WatermarkState
from tidemark.resources.keys import LAKE, PUBSUB, keys_of, lake_of, pubsub_of
from tidemark.resources.lake import LakeResource
from tidemark.resources.pubsub import PubSubResource

AT_ONCE = 50
"""The most partitions that a tick materializes: each takes Dagster some milliseconds. The next tick goes on."""

CHECKS = (replace(checks.subscriptions, asset=WATERMARK), checks.watermark_age)
"""Those that need no tables."""


def pubsub_and_lake(settings: Settings, clock: Clock, kept: Kept) -> dict[str, Any]:
    """The two resources that every pipeline has, by their keys."""
    return {
        name_of(settings, PUBSUB): PubSubResource(settings=settings, kept=kept, clock=clock),
        name_of(settings, LAKE): LakeResource(settings=settings, kept=kept, clock=clock),
    }


def attached_definitions(settings: Settings, clock: Clock, topic: dg.AssetKey | None = None) -> dg.Definitions:
    """Assets, sensors, jobs and resources with `pubsub.attach`: nothing lands, and nothing is computed."""
    partitions, kept = Partitions(settings.windowing, clock.now()), Kept()
    complete, housekeeping = CompleteWindows(settings, partitions), housekeeping_job(settings)
    pace = Pace(settings.watermark.tick, clock)
    sensors = [tracking_sensor(settings, clock, pace, complete.closed), staleness_sensor(settings, clock)]
    keep_observer(settings, kept, sensors, [housekeeping], clock)
    described = spec(
        settings,
        COMPLETE_WINDOWS,
        "An hour of windows, or a longer window, is materialized once the watermark has passed all of it, in order.",
        uri=within(settings, "watermark.json"),
        deps=[WATERMARK],
        partitions_def=partitions.definition(),
    )
    return dg.Definitions(
        assets=[*observed_assets(settings, topic), described, tuning_asset(settings)],
        jobs=[housekeeping],
        asset_checks=checks.by_hand(settings, CHECKS, clock),
        sensors=sensors,
        schedules=[tuning_schedule(settings), housekeeping_schedule(settings, housekeeping)],
        resources=pubsub_and_lake(settings, clock, kept),
    )


def staleness_sensor(settings: Settings, clock: Clock) -> dg.SensorDefinition:
    """The sensor that evaluates these checks."""
    memory, (subscriptions, watermark_age) = Memory(), CHECKS

    @ticking_sensor(
        settings,
        "staleness",
        at_least=CHECK_EVERY,
        required_resource_keys=keys_of(settings, LAKE, PUBSUB),
        asset_selection=[key_of(settings, WATERMARK)],
        description="Looks at the watermark's age, and at both subscriptions, which anybody may have changed.",
    )
    def staleness(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        look = Look(lake_of(context, settings), pubsub_of(context, settings), "staleness", clock.now())
        results = [watermark_age.reported(look)]
        if look.now - memory.audited_at >= AUDIT_EVERY:
            results += [subscriptions.reported(look, seen) for seen in checks.seen_subscriptions(look)]
            memory.audited_at = look.now
        said = "; ".join(str(result.description) for result in results)
        return dg.SensorResult(skip_reason=dg.SkipReason(said), asset_events=memory.news(results))

    return staleness


@dataclass
class CompleteWindows:
    """Which partitions are complete, and not materialized yet. Dagster's own storage says what is: a tick's report may
    be lost after the tick. While nothing further closes, it is not asked again."""

    settings: Settings
    partitions: Partitions
    _reached: int | None = None

    def closed(
        self, context: dg.SensorEvaluationContext, lake: LakeResource, state: WatermarkState
    ) -> tuple[Request, Sequence[dg.AssetMaterialization]]:
        """Report the next ones; no run is requested."""
        reported = self.next_of(context.instance, state, lake.clock.now())
        said = f"{len(reported)} partitions of complete_windows became complete"
        return Request((), said if reported else "no further partition of complete_windows is complete"), reported

    def next_of(
        self, instance: dg.DagsterInstance, state: WatermarkState, now: datetime
    ) -> list[dg.AssetMaterialization]:
        """The next ones in order, from the partition on in which tracking began. Once a partition is materialized, all
        that follow are. One that ends in the future by this machine's clock waits."""
        watermark, since, listed = state.watermark, state.complete_from, self.partitions.listed
        if watermark is None or since is None:
            return []
        reached, begins = listed.number_of(min(watermark, now)), listed.number_of(since)
        if self._reached == reached:
            return []
        key = key_of(self.settings, COMPLETE_WINDOWS)
        there = instance.get_materialized_partitions(key)
        for newest in sorted(there, reverse=True):
            with suppress(ValueError):  # of windows of another length
                begins = min(begins, listed.number_of(listed.named(newest).end))
                break
        numbers = range(max(begins, listed.number_of(listed.first)), reached)
        missing = [one for one in map(listed.numbered, numbers) if one.key not in there]
        if not missing:
            self._reached = reached
        return [
            dg.AssetMaterialization(key, partition=one.key, metadata=self._metadata(one.key, state))
            for one in missing[:AT_ONCE]
        ]

    def _metadata(self, key: str, state: WatermarkState) -> dict[str, dg.MetadataValue | int | str]:
        (numbers,) = self.partitions.windows_in([key])
        first, last = (self.settings.windowing.numbered(number).key for number in (numbers[0], numbers[-1]))
        moments = {"watermark": state.watermark, "decided_at": state.decision and state.decision.at}
        return {
            "windows": len(numbers),
            "first_window": first,
            "last_window": last,
            "log_entry": state.number,
            **{name: dg.MetadataValue.timestamp(moment) for name, moment in moments.items() if moment is not None},
        }
