"""The asset `corrections`: runs record there what changed in recomputed windows."""

from collections.abc import Iterable, Iterator, Sequence

import dagster as dg

from tidemark.assets.catalog import CORRECTIONS, HEARTBEAT_DIFFS, key_of, spec, within
from tidemark.pipeline.lake.tables.corrections import CORRECTION_COLUMNS
from tidemark.pipeline.lake.tables.corrections import CORRECTIONS as SCHEMA
from tidemark.pipeline.quality.corrected import FollowedTable, follow
from tidemark.pipeline.settings import Settings
from tidemark.resources.lake import LakeResource


def corrections_asset(settings: Settings, tables: Iterable[str] = ()) -> Sequence[dg.AssetSpec]:
    """Return the asset's spec, downstream of `heartbeat_diffs` and these custom tables; empty unless
    `windows.corrections` is set."""
    if not settings.windows.corrections:
        return []
    about = (
        "What changed in recomputed windows: one row for each row that was added, removed or changed, with "
        "its old and new values. Materialized by the run that records a change."
    )
    deps = [HEARTBEAT_DIFFS, *map(dg.AssetKey, tables)]
    uri, columns = within(settings, CORRECTIONS.path[-1]), (SCHEMA, CORRECTION_COLUMNS)
    return [spec(settings, CORRECTIONS, about, uri=uri, kinds={"deltalake"}, columns=columns, deps=deps)]


def corrections_noted(lake: LakeResource, table: FollowedTable) -> Iterator[dg.AssetMaterialization]:
    """Record what changed in a table since the last call, if `windows.corrections` is set, and materialize the asset if
    anything did. A failure is logged, not raised: the windows are committed, and the next run tries again."""
    if not lake.settings.windows.corrections:
        return
    try:
        rows = follow(lake.whole().corrections(), table, lake.clock)
    except Exception as error:
        log = dg.get_dagster_logger()
        log.warning(f"the corrections of {table.name} were not recorded; the next run tries again: {error!r}")
        return
    if rows:
        metadata = {"rows": rows, f"rows/{table.name}": rows}
        yield dg.AssetMaterialization(key_of(lake.settings, CORRECTIONS), metadata=metadata)
