"""The check of the watermark's age: what no tick says that is not made, or that decides to hold."""

from datetime import datetime, timedelta

import dagster as dg

from tidemark.assets.catalog import WATERMARK, key_of
from tidemark.pipeline.clock import Clock, iso
from tidemark.pipeline.durations import rough
from tidemark.pipeline.settings import Settings
from tidemark.resources.keys import LAKE, keys_of, lake_of

WATERMARK_AGE = "watermark_age"


def watermark_age_check(settings: Settings, clock: Clock) -> dg.AssetChecksDefinition:
    """The check for running by hand."""

    @dg.asset_check(
        asset=key_of(settings, WATERMARK), name=WATERMARK_AGE, required_resource_keys=keys_of(settings, LAKE)
    )
    def watermark_age(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        """Whether the watermark is behind the clock by no more than `checks.max_watermark_age`."""
        lake = lake_of(context, settings)
        return watermark_age_result(settings, lake.tracking_log("checks").catch_up().watermark, clock.now())

    return watermark_age


def watermark_age_result(settings: Settings, watermark: datetime | None, now: datetime) -> dg.AssetCheckResult:
    """The check `watermark_age`: an error, since no window closes meanwhile. Without a watermark there is no age."""
    bound, age = settings.checks.max_watermark_age, timedelta(0)
    if watermark is None:
        description = "there is no watermark yet"
    else:
        age = max(now - watermark, age)
        description = (
            f"the watermark {iso(watermark)} is {rough(age)} behind the clock; {rough(bound)} are allowed by "
            "checks.max_watermark_age. `tidemark explain` says what holds it"
        )
    return dg.AssetCheckResult(
        asset_key=key_of(settings, WATERMARK),
        check_name=WATERMARK_AGE,
        passed=age <= bound,
        severity=dg.AssetCheckSeverity.ERROR,
        description=description,
        metadata={"age_seconds": age.total_seconds(), "max_age_seconds": bound.total_seconds()},
    )
