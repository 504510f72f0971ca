"""The check of the watermark's age: what no tick says that is not made, or that decides to hold."""

from datetime import timedelta

import dagster as dg

from tidemark.assets.catalog import WATERMARK
from tidemark.assets.declared_check import Look, check_of
from tidemark.pipeline.clock import iso
from tidemark.pipeline.durations import rough


@check_of(WATERMARK)
def watermark_age(look: Look) -> dg.AssetCheckResult:
    """Whether the watermark is behind the clock by no more than `checks.max_watermark_age`."""
    # An error, since no window closes meanwhile. Without a watermark there is no age.
    watermark, bound, age = look.watermark, look.lake.settings.checks.max_watermark_age, timedelta(0)
    if watermark is None:
        description = "there is no watermark yet"
    else:
        age = max(look.now - watermark, age)
        description = (
            f"the watermark {iso(watermark)} is {rough(age)} behind the clock; {rough(bound)} are allowed by "
            "checks.max_watermark_age. `tidemark explain` says what holds it"
        )
    return dg.AssetCheckResult(
        passed=age <= bound,
        severity=dg.AssetCheckSeverity.ERROR,
        description=description,
        metadata={"age_seconds": age.total_seconds(), "max_age_seconds": bound.total_seconds()},
    )
