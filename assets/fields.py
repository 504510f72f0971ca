"""The check of compared fields that are null in everything that lands."""

import dagster as dg

from tidemark.assets.catalog import HEARTBEATS
from tidemark.assets.declared_check import Look, check_of
from tidemark.pipeline.clock import iso
from tidemark.pipeline.quality.null_fields import read_null_fields
from tidemark.pipeline.quality.status import LOST_WITHIN


@check_of(HEARTBEATS)
def fields_present(look: Look) -> dg.AssetCheckResult:
    """Whether each compared field has a value in what landed within an hour: one that no payload has, or that is always
    of another kind, is null in every row."""
    # A warning, since the heartbeats land all the same, with their payloads.
    names = look.lake.settings.message.kinds
    found = read_null_fields(look.lake.staleness(look.user).heartbeats, names, look.now - LOST_WITHIN)
    description = f"each of the {len(names)} compared fields has values in the {found.rows} rows of the last hour"
    if not names or not found.rows:
        description = "no field is compared" if not names else "nothing landed in the last hour"
    elif found.fields:
        description = (
            f"{'; '.join(field.sentence() for field in found.fields)}: absent, null, or of another kind than "
            "configured. Mend [message.fields] or the publisher; `tidemark try` shows what samples have"
        )
    return dg.AssetCheckResult(
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
