"""The asset `stream_status`: which streams stopped, started or missed heartbeats, by window."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby, islice
from operator import itemgetter
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc

from assets.catalog import HEARTBEAT_DIFFS, STREAM_STATUS, windowed_asset
from assets.events import failing_run
from pipeline.clock import iso
from pipeline.lake.tables.stream_status import STATUS, Kind
from pipeline.lake.tables.windowed import PARTITION
from pipeline.quality.silence import WindowSilence, silence_of
from pipeline.settings import Settings
from resources.lake import LakeResource

FEW_STOPPED = "few_streams_stopped"
USER = "silence"
NAMED = 5
"""Streams of each kind that a window's metadata names; `tidemark streams` names all."""


def stream_status_asset(settings: Settings) -> dg.AssetsDefinition:
    """The asset for these settings. A window's rows are committed with its diffs; materializing the asset brings the
    table `streams` up to date, reports, and checks."""
    few_stopped = dg.AssetCheckSpec(
        FEW_STOPPED,
        asset=STREAM_STATUS,
        description="No more than `checks.max_stopped_share` of the streams stopped in any window of the run.",
    )

    @windowed_asset(settings, STREAM_STATUS, STATUS, deps=[HEARTBEAT_DIFFS], check_specs=[few_stopped])
    def stream_status(context: dg.AssetExecutionContext, lake: LakeResource) -> Iterator[dg.MaterializeResult[None]]:
        """Which streams stopped, started or miss beats, by window: rows that the window's run commits beside its diffs.
        Materializing it alone brings `streams`, each stream's first and last heartbeat, up to date, and reports again
        what stands."""
        with failing_run():
            report = silence_report(lake, context.partition_keys)
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


def silence_report(lake: LakeResource, windows: Iterable[str]) -> SilenceReport:
    """Bring the table `streams` up to date, and report on these windows. Raises TidemarkError."""
    keys = sorted(windows)
    whole, diffs = lake.whole(), lake.diffs(USER)
    status, known = whole.stream_status(), whole.streams().save()
    found, rows = silence_of(diffs, status, known, lake.settings.windowing, keys)
    named = _named(rows)
    metadata = {window.window: _metadata(window, named[window.window]) for window in found}
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


def _metadata(window: WindowSilence, named: Sequence[dg.TableRecord]) -> dict[str, Any]:
    numbers: dict[str, Any] = asdict(window) | {"stopped_share": window.stopped_share}
    del numbers["window"]
    if named:
        columns = [dg.TableColumn(name) for name in ("stream", "kind", "last", "first")]
        columns.append(dg.TableColumn("missed_heartbeats", "int"))
        numbers["first_of_each_kind"] = dg.TableMetadataValue(records=named, schema=dg.TableSchema(columns))
    return numbers


def _named(rows: pa.Table) -> Mapping[str, list[dg.TableRecord]]:
    """The first streams of each kind, by window; those that missed heartbeats begin with the most missed."""
    kinds = pa.array([str(kind) for kind in Kind])
    ordered = rows.append_column("kind_number", pc.index_in(rows["kind"], kinds))
    ordered = ordered.append_column("rank", pc.negate(pc.fill_null(rows["missed_heartbeats"], 0))).sort_by(
        [(name, "ascending") for name in (PARTITION, "kind_number", "rank", "stream_id")]
    )
    named = defaultdict[str, list[dg.TableRecord]](list)
    for (window, kind), of_kind in groupby(ordered.to_pylist(), key=itemgetter(PARTITION, "kind")):
        named[window] += [
            dg.TableRecord(
                {
                    "stream": row["stream_id"],
                    "kind": kind,
                    "last": row["last_event_time"] and iso(row["last_event_time"]),
                    "first": row["first_event_time"] and iso(row["first_event_time"]),
                    "missed_heartbeats": row["missed_heartbeats"],
                }
            )
            for row in islice(of_kind, NAMED)
        ]
    return named
