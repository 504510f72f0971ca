"""The check of compared fields that are null in everything that lands."""

from datetime import datetime

import dagster as dg

from tidemark.assets.catalog import HEARTBEATS, key_of
from tidemark.pipeline.clock import Clock, iso
from tidemark.pipeline.quality.null_fields import read_null_fields
from tidemark.pipeline.quality.status import LOST_WITHIN
from tidemark.pipeline.settings import Settings
from tidemark.resources.keys import LAKE, keys_of, lake_of
from tidemark.resources.lake import LakeResource

FIELDS_PRESENT = "fields_present"


def fields_check(settings: Settings, clock: Clock) -> dg.AssetChecksDefinition:
    """The check for running by hand."""

    @dg.asset_check(
        asset=key_of(settings, HEARTBEATS), name=FIELDS_PRESENT, required_resource_keys=keys_of(settings, LAKE)
    )
    def fields_present(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        """Whether each compared field has a value in what landed within an hour: one that no payload has, or that is
        always of another kind, is null in every row."""
        return fields_result(lake_of(context, settings), "checks", clock.now())

    return fields_present


def fields_result(lake: LakeResource, user: str, now: datetime) -> dg.AssetCheckResult:
    """The check `fields_present`: a warning, since the heartbeats land all the same, with their payloads."""
    names = lake.settings.message.kinds
    found = read_null_fields(lake.staleness(user).heartbeats, names, now - LOST_WITHIN)
    description = f"each of the {len(names)} compared fields has values in the {found.rows} rows of the last hour"
    if not names or not found.rows:
        description = "no field is compared" if not names else "nothing landed in the last hour"
    elif found.fields:
        description = (
            f"{'; '.join(field.sentence() for field in found.fields)}: absent, null, or of another kind than "
            "configured. Mend [message.fields] or the publisher; `tidemark try` shows what samples have"
        )
    return dg.AssetCheckResult(
        asset_key=key_of(lake.settings, HEARTBEATS),
        check_name=FIELDS_PRESENT,
        passed=not found.fields,
        severity=dg.AssetCheckSeverity.WARN,
        description=description,
        metadata={
            "null_fields": found.names,
            "rows": found.rows,
            "null_rows": dg.MetadataValue.json({field.name: field.rows for field in found.fields}),
            "null_since": dg.MetadataValue.json({field.name: iso(field.since) for field in found.fields}),
        },
    )
