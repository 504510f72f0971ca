"""The asset `stream_status`: which streams stopped, started or missed heartbeats, by window."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc

from assets.observed import GROUP, HEARTBEAT_DIFFS, column_schema
from assets.partitions import window_partitions
from pipeline.clock import iso
from pipeline.errors import TidemarkError
from pipeline.lake.tables.stream_status import STATUS, Kind
from pipeline.lake.tables.windowed import PARTITION
from pipeline.quality.silence import WindowSilence, silence_of
from pipeline.settings import Settings
from pipeline.windows import Windowing
from resources.lake import LakeResource

STREAM_STATUS = dg.AssetKey("stream_status")
FEW_STOPPED = "few_streams_stopped"
USER = "silence"
NAMED = 5
"""Streams of each kind that a window's metadata names; `tidemark streams` names all."""


def stream_status_asset(settings: Settings) -> dg.AssetsDefinition:
    """The asset for these settings. A window's rows are committed with its diffs; materializing the asset brings the
    table `streams` up to date, reports, and checks."""
    windowing = settings.windowing

    @dg.asset(
        key=STREAM_STATUS,
        deps=[HEARTBEAT_DIFFS],
        partitions_def=window_partitions(settings),
        backfill_policy=dg.BackfillPolicy.single_run(),
        group_name=GROUP,
        kinds={"pyspark", "deltalake"},
        owners=settings.dagster.owners,
        metadata={"dagster/column_schema": column_schema(STATUS), "lake": settings.lake.uri},
        description=(
            "Which streams stopped, started or miss beats, by window: rows that the window's run commits beside its "
            "diffs. Materializing it alone brings `streams`, each stream's first and last heartbeat, up to date, and "
            "reports again what stands."
        ),
        check_specs=[
            dg.AssetCheckSpec(
                FEW_STOPPED,
                asset=STREAM_STATUS,
                description="No more than `checks.max_stopped_share` of the streams stopped in any window of the run.",
            )
        ],
    )
    def stream_status(context: dg.AssetExecutionContext, lake: LakeResource) -> Iterator[dg.MaterializeResult[None]]:
        try:
            report = silence_report(lake, windowing, context.partition_keys)
        except TidemarkError as error:
            raise dg.Failure(description=str(error)) from error
        for key, metadata in report.metadata.items():
            context.add_asset_metadata(metadata, asset_key=STREAM_STATUS, partition_key=key)
        if report.behind:
            context.log.warning(
                f"{len(report.behind)} windows have a status of older input than their diffs, or none: "
                f"{', '.join(report.behind[:NAMED])}; compute them again"
            )
        stops = sum(window.stopped for window in report.windows)
        context.log.info(f"{report.streams} streams known, {stops} stops in this run")
        yield dg.MaterializeResult(check_results=[stopped_result(report.windows, settings.checks.max_stopped_share)])

    return stream_status


@dataclass(frozen=True, slots=True)
class SilenceReport:
    """The computed windows and their metadata; `behind`, the windows whose status is missing or was made from older
    input than their diffs; and how many streams are known."""

    windows: Sequence[WindowSilence]
    metadata: Mapping[str, dict[str, Any]]
    behind: Sequence[str]
    streams: int


def silence_report(lake: LakeResource, windowing: Windowing, windows: Iterable[str]) -> SilenceReport:
    """Bring the table `streams` up to date, and report on these windows. Raises TidemarkError."""
    keys = sorted(windows)
    whole, diffs = lake.whole(), lake.diffs(USER)
    status, known = whole.stream_status(), whole.streams().save()
    found, rows = silence_of(diffs, status, known, windowing, keys)
    tables = _tables(rows)
    metadata = {window.window: _metadata(window, tables.get(window.window, [])) for window in found}
    return SilenceReport(found, metadata, status.behind(diffs, keys), known.rows.num_rows)


def stopped_result(windows: Sequence[WindowSilence], most: float) -> dg.AssetCheckResult:
    """The check `few_streams_stopped`: a warning, since sources may fail while the data about it is complete."""
    beyond = [window for window in windows if window.stopped_share > most]
    worst = max(windows, key=lambda window: window.stopped_share, default=WindowSilence(""))
    said = "no window has been computed"
    if windows:
        said = (
            f"at most {worst.stopped_share:.2%} of the streams stopped in one window ({worst.stopped} in "
            f"{worst.window}); {len(beyond)} of {len(windows)} windows are beyond the limit of {most:.2%}"
        )
    return dg.AssetCheckResult(
        asset_key=STREAM_STATUS,
        check_name=FEW_STOPPED,
        passed=not beyond,
        severity=dg.AssetCheckSeverity.WARN,
        description=f"{said}. `tidemark streams --silent` names them" if beyond else said,
        metadata={
            "worst_stopped_share": worst.stopped_share,
            "worst_window": worst.window,
            "windows_beyond": len(beyond),
            "stopped": sum(window.stopped for window in windows),
        },
    )


def _metadata(window: WindowSilence, named: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    records = [dg.TableRecord(dict(row)) for row in named]
    numbers: dict[str, Any] = asdict(window) | {"stopped_share": window.stopped_share}
    del numbers["window"]
    if records:
        columns = [dg.TableColumn(name) for name in ("stream", "kind", "last", "first")]
        columns.append(dg.TableColumn("missed_heartbeats", "int"))
        numbers["first_of_each_kind"] = dg.TableMetadataValue(records=records, schema=dg.TableSchema(columns))
    return numbers


def _tables(rows: pa.Table) -> dict[str, list[dict[str, Any]]]:
    """The first streams of each kind, by window; those that missed heartbeats begin with the most missed."""
    most_first = rows.append_column("rank", pc.negate(pc.fill_null(rows["missed_heartbeats"], 0))).sort_by(
        [(name, "ascending") for name in (PARTITION, "kind", "rank", "stream_id")]
    )
    found: dict[str, dict[Kind, list[dict[str, Any]]]] = {}
    for row in most_first.to_pylist():
        of_kind = found.setdefault(row[PARTITION], {}).setdefault(Kind(row["kind"]), [])
        if len(of_kind) < NAMED:
            of_kind.append(
                {
                    "stream": row["stream_id"],
                    "kind": row["kind"],
                    "last": row["last_event_time"] and iso(row["last_event_time"]),
                    "first": row["first_event_time"] and iso(row["first_event_time"]),
                    "missed_heartbeats": row["missed_heartbeats"],
                }
            )
    return {key: [row for kind in Kind for row in kinds.get(kind, [])] for key, kinds in found.items()}
