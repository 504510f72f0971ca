"""The assets that runs compute by window: `heartbeat_diffs` and `stream_status`."""

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import Any

import dagster as dg
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.assets.catalog import HEARTBEAT_DIFFS, HEARTBEATS, STREAM_STATUS, WATERMARK, key_of
from tidemark.assets.checks import evaluation_of, verdict
from tidemark.assets.jobs.by_window import (
    Event,
    LostEvents,
    WindowsAsset,
    batch_parts,
    corrections_noted,
    window_keys,
    windows_job,
)
from tidemark.assets.jobs.job import Context
from tidemark.assets.partitions import Partitions, stretch_ends
from tidemark.assets.scheduler.requests import CHOICE, NothingDue
from tidemark.assets.scheduler.runs import LOOKED_AT, Runs
from tidemark.pipeline.clock import iso
from tidemark.pipeline.compute.columns import DiffPlan
from tidemark.pipeline.compute.micro_batch import MicroBatch, ReplacedWindows, compute_windows
from tidemark.pipeline.contract.messages import described
from tidemark.pipeline.errors import UNREADABLE, LakeFull, LakeUnreachable, TidemarkError
from tidemark.pipeline.figures import counted
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.tables.diffs import STATUS, STATUS_COLUMNS, StatusKind, diff_columns
from tidemark.pipeline.lake.tables.streams import KnownStreams
from tidemark.pipeline.lake.tables.table import by_partition
from tidemark.pipeline.lake.tables.windowed import PARTITION, DiffRun, WindowedTable
from tidemark.pipeline.orchestrator.names import COMPUTE_WINDOWS, REPORTED, compute_job, name_of
from tidemark.pipeline.phrases import percent
from tidemark.pipeline.quality.corrected import DIFFS_KEY, FollowedTable
from tidemark.pipeline.quality.silence import WindowSilence, silence_of
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.windows import Window
from tidemark.resources.keys import LAKE, SPARK, lake_of, spark_of
from tidemark.resources.lake import LakeResource
from tidemark.resources.spark import SparkResource

MADE, PLANNED = dg.DagsterEventType.ASSET_MATERIALIZATION, dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED
UNSUCCESSFUL = (dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)

FEW_STOPPED = "few_streams_stopped"
NAMED = 5
"""Maximum number of streams per `StatusKind` that a partition's metadata lists. `tidemark streams` lists all
streams."""

SILENT_NAMED = 10
"""Maximum number of silent streams that a partition's metadata lists."""

NAMED_COLUMNS = dict.fromkeys(("stream", "kind", "last", "first"), "string") | {"missed_heartbeats": "int"}


def heartbeat_diffs_asset(settings: Settings, partitions: Partitions) -> dg.AssetsDefinition:
    """Define the asset `heartbeat_diffs`, whose runs also write `stream_status`."""
    return WindowsAsset(settings, HEARTBEAT_DIFFS, partitions).defined(
        partial(_compute, settings, partitions),
        LAKE,
        SPARK,
        deps=[HEARTBEATS, WATERMARK],
        columns=described(diff_columns(settings.message.kinds)),
        description=(
            "Each heartbeat compared with its stream's previous one: gap, missed heartbeats, and how the compared "
            "fields changed. Once the watermark has passed a window's end, the sensor "
            f"`{name_of(settings, 'tracking')}` requests a run of the job "
            f"`{name_of(settings, COMPUTE_WINDOWS)}` for the window. Any window can be recomputed, alone or in a "
            "range, and gives the same rows. Materializing a partition computes all of its windows; a run of the job "
            "computes the windows in its config."
        ),
    )


def compute_windows_job(settings: Settings, partitions: Partitions) -> dg.JobDefinition:
    """Define the job that computes `heartbeat_diffs` and `stream_status` for any closed windows."""
    assets = [WindowsAsset(settings, key, partitions) for key in (HEARTBEAT_DIFFS, STREAM_STATUS)]
    about = (
        "Computes the heartbeat diffs of closed windows, and which streams were silent in them. The sensors and "
        "`tidemark repair` request its runs."
    )
    return windows_job(COMPUTE_WINDOWS, assets, partial(_compute, settings, partitions), about)


def _compute(
    settings: Settings, partitions: Partitions, context: Context, windows: Sequence[Window]
) -> Iterator[Event]:
    if silence := (yield from compute_and_report(settings, partitions, context, windows)):
        yield evaluation_of(stopped_result(settings, silence))


def compute_and_report(
    settings: Settings, partitions: Partitions, context: Context, windows: Sequence[Window]
) -> Generator[dg.AssetMaterialization | dg.AssetObservation, None, Sequence[WindowSilence]]:
    """Compute windows, and yield an event for each partition that contains some of them. Return the counts of silent
    streams per window."""
    if not windows:
        return []
    lake = lake_of(context, settings)
    done = compute_range(windows, lake, spark_of(context, settings), context.run.run_id)
    context.log.info(sentence_of(done))
    diffs, status = (WindowsAsset(settings, key, partitions) for key in (HEARTBEAT_DIFFS, STREAM_STATUS))
    # Yielded at once: an event that is only logged is lost if the run fails later.
    rows = lake.of("run").stream_status().rows(done.rows)
    yield from diffs.reports(lake, context.instance, done, partial(diffs_metadata, done, rows))
    _, silence = silence_in(lake, done.rows, rows)
    yield from status.reports(lake, context.instance, done, partial(status_metadata, silence, rows))
    followed = FollowedTable(HEARTBEAT_DIFFS.to_user_string(), lake.of("run").diffs(), DIFFS_KEY)
    yield from corrections_noted(lake, followed)
    return silence


def report_lost(runs: Runs, partitions: Partitions, lake: LakeResource, tables: Mapping[str, LostEvents]) -> None:
    """Materialize the complete partitions of failed and canceled runs that ended between their commit and their events.
    A partition is left out if the run reported it, or if it was materialized after the newest run over it began. The
    search is repeated every LOOK_EVERY, and checks each run once. `tables` has each custom table's name and LostEvents.
    A table is read only if one of its runs failed, and is left out if it cannot be read."""
    now, checked, instance = lake.clock.now(), lake.kept.get((CHOICE, REPORTED), NothingDue), runs.instance
    if checked.holds(None, now):
        return
    lost, most = list[dg.DagsterRun](), LOOKED_AT
    while len(more := _unreported(runs, most)) > len(lost):
        lost, most = more, 2 * most
    if lost:
        diffs = key_of(lake.settings, HEARTBEAT_DIFFS)
        _report(lost, diffs, lake.of(CHOICE).diffs(), partial(_lost_events, partitions), lake, instance)
    for name, events in tables.items():
        job, asset = name_of(lake.settings, compute_job(name)), key_of(lake.settings, dg.AssetKey(name))
        own = [run for run in lost if run.job_name == job or asset in (run.asset_selection or ())]
        try:
            if own:
                _report(own, asset, lake.of(CHOICE).own_table(name), events, lake, instance)
        except (LakeUnreachable, LakeFull):  # the next look may get an answer
            raise
        except (TidemarkError, ValueError):  # ValueError: its windows have another length
            continue
    for run in reversed(lost):  # oldest first, because a look ends at runs that are tagged
        instance.add_run_tags(run.run_id, {REPORTED: run.run_id})
    checked.note(None, now, is_due=False)


def _unreported(runs: Runs, most: int) -> list[dg.DagsterRun]:
    ended = (record.dagster_run for record in runs.ended(UNSUCCESSFUL, most))
    return [run for run in ended if run.tags.get(REPORTED) != run.run_id]


def _report(
    lost: Iterable[dg.DagsterRun],
    asset: dg.AssetKey,
    table: WindowedTable,
    events: LostEvents,
    lake: LakeResource,
    instance: dg.DagsterInstance,
) -> None:
    def newest(kind: dg.DagsterEventType, assets: Iterable[dg.AssetKey], partition: str) -> int:
        ids = (instance.get_latest_storage_id_by_partition(one, kind, {partition}) for one in assets)
        return max((each for found in ids for each in found.values()), default=0)

    committed = table.runs()
    for run in lost:
        if not (names := {key: name for key, name in committed.items() if name.startswith(run.run_id)}):
            continue
        own = instance.get_records_for_run(run.run_id, of_type=MADE).records
        known = {(record.asset_key, record.partition_key) for record in own}
        rows = {key: sum(file.rows for file in files) for key, files in by_partition(table.table.files(names)).items()}
        with suppress(*UNREADABLE):  # without its manifest, the run's input is unknown
            for event in events(table.manifest(min(names.values())), rows, lake, instance):
                if not isinstance(event, dg.AssetMaterialization) or not event.metadata:
                    continue
                # A run of the UI may plan the table's asset alone. It commits the stream status as well.
                looks = ((MADE, {event.asset_key}), (PLANNED, {event.asset_key, asset}))
                made, planned = (newest(kind, assets, str(event.partition)) for kind, assets in looks)
                if made < planned and (event.asset_key, event.partition) not in known:
                    instance.report_runless_asset_event(event)


def _lost_events(
    partitions: Partitions, manifest: DiffRun, rows: Mapping[str, int], lake: LakeResource, instance: dg.DagsterInstance
) -> Iterator[Event]:
    """Yield the events that a lost run over `heartbeat_diffs` did not report. LostEvents describes the arguments."""
    settings, done = lake.settings, ReplacedWindows(manifest.heartbeats_version, manifest.watermark, rows, ())
    status = Lake(settings.lake, settings.message.kinds, lake.clock).stream_status().rows(rows)  # closed afterwards
    for key, extra in ((HEARTBEAT_DIFFS, partial(diffs_metadata, done, status)), (STREAM_STATUS, lambda _: {})):
        asset = WindowsAsset(settings, key, partitions, lambda lake: lake.window_index(CHOICE))
        yield from asset.reports(lake, instance, done, extra)


def compute_range(windows: Sequence[Window], lake: LakeResource, spark: SparkResource, run: str) -> ReplacedWindows:
    """Compute windows, which may have gaps between them, and replace their rows in the lake. A failure is recorded in
    the lake. Raises WindowNotClosed (before Spark is used), ExecutorsUnable, WindowExpired and other TidemarkErrors."""
    windowing, settings = lake.settings.windows, lake.settings
    plan = DiffPlan(settings.message.kinds, windowing.lookback, windowing.heartbeat_period, windowing.length)
    with lake.of("run").failed_runs().noting(run, stretch_ends(windows), lake.clock):
        diffs, status = lake.of("run").diffs(), lake.of("run").stream_status()
        parts = batch_parts(lake, spark, run, windows, [status, diffs])
        return compute_windows(MicroBatch(*parts, (status, diffs), plan), windows)


def sentence_of(computed: ReplacedWindows) -> str:
    """Describe a run's result in a sentence: the computed windows and their input. Also name the windows that were left
    alone, because another run had computed them from the same or newer input."""
    said = (
        f"computed {counted(len(computed.rows), 'window')}, {counted(sum(computed.rows.values()), 'row')}, from "
        f"version {computed.heartbeats_version} of heartbeats ({counted(computed.input_rows, 'row')} in its files)"
    )
    if not (superseded := computed.superseded[-1]):
        return said
    return f"{said}; another run has computed these windows from the same or newer input: {', '.join(superseded)}"


def diffs_metadata(computed: ReplacedWindows, status: pa.Table, windows: Sequence[Window]) -> dict[str, Any]:
    """Return the metadata of a partition with these computed windows. It has the number of streams that stopped in the
    last window, and names some of them. `status` has the rows of `stream_status` for the windows."""
    stopped = (pc.field(PARTITION) == windows[-1].key) & (pc.field("kind") == str(StatusKind.STOPPED))
    silent = status.filter(stopped)["stream_id"].to_pylist()
    return {
        "rows": sum(computed.rows[window.key] for window in windows),
        "silent_streams": len(silent),
        "silent_streams_first": ", ".join(silent[:SILENT_NAMED]),
        "heartbeats_version": computed.heartbeats_version,
        "watermark_when_computed": "none" if computed.watermark is None else iso(computed.watermark),
    }


def stream_status_asset(settings: Settings, partitions: Partitions) -> dg.AssetsDefinition:
    """Define the asset `stream_status`. Materializing it computes no window, but reports the stored status again."""
    asset = WindowsAsset(settings, STREAM_STATUS, partitions)

    def report_again(context: Context, windows: Sequence[Window]) -> Iterator[Event]:
        lake, keys = lake_of(context, settings), [window.key for window in windows]
        stored = lake.of("run").stream_status()
        rows = stored.rows(keys)
        known, silence = silence_in(lake, keys, rows)
        for partition, held in partitions.holding(windows).items():
            said = window_keys(held) | status_metadata(silence, rows, held)
            yield dg.AssetMaterialization(asset.key, partition=partition, metadata=said)
        if behind := stored.behind(lake.of("run").diffs(), keys):
            context.log.warning(
                f"{counted(len(behind), 'window')} without an up-to-date stream_status: {', '.join(behind[:NAMED])}. "
                "Materialize heartbeat_diffs for these windows to recompute them"
            )
        stops = sum(window.stopped for window in silence)
        context.log.info(f"known streams: {len(known.rows)}; stops in these windows: {stops}")
        yield evaluation_of(stopped_result(settings, silence))

    few_stopped = dg.AssetCheckSpec(
        FEW_STOPPED,
        asset=asset.key,
        description="No more than `checks.max_stopped_share` of the streams stopped in any window of the run.",
    )
    return asset.defined(
        report_again,
        LAKE,
        deps=[HEARTBEAT_DIFFS],
        columns=(STATUS, STATUS_COLUMNS),
        check_specs=[few_stopped],
        description=(
            "Which streams stopped, started or missed heartbeats, by window: rows that a run commits together with the "
            "diffs. Materializing this asset alone updates the table `streams` (each stream's first and last "
            "heartbeat) and reports the stored status again."
        ),
    )


def silence_in(
    lake: LakeResource, windows: Iterable[str], status: pa.Table
) -> tuple[KnownStreams, Sequence[WindowSilence]]:
    """Update the table `streams`. Return all known streams, and the counts of silent streams in each of these windows.
    `status` has the rows of `stream_status` for the windows. Raises TidemarkError."""
    known = lake.of("run").streams().save()
    return known, silence_of(lake.of("run").diffs(), status, known, lake.settings.windowing, sorted(windows))


def stopped_result(settings: Settings, windows: Sequence[WindowSilence]) -> dg.AssetCheckResult:
    """Build the result of the check `few_streams_stopped`. A failed check is only a warning, because the data is
    complete even if sources fail."""
    most = settings.checks.max_stopped_share
    beyond = [window for window in windows if window.stopped_share > most]
    worst = max(windows, key=lambda window: window.stopped_share, default=WindowSilence(""))
    said = "no window has been computed"
    if windows:
        said = (
            f"the largest share of streams that stopped in one window: {percent(worst.stopped_share)} ({worst.stopped} "
            f"in {worst.window}); windows above max_stopped_share ({percent(most)}): {len(beyond)} of {len(windows)}"
        )
    result = verdict(
        passed=not beyond,
        description=f"{said}. `tidemark streams --silent` names them" if beyond else said,
        worst_stopped_share=worst.stopped_share,
        worst_window=worst.window,
        windows_beyond=len(beyond),
        stopped=sum(window.stopped for window in windows),
    )
    return result._replace(asset_key=key_of(settings, STREAM_STATUS), check_name=FEW_STOPPED)


def status_metadata(silence: Sequence[WindowSilence], status: pa.Table, windows: Sequence[Window]) -> dict[str, Any]:
    """Return the metadata of a partition: the counts and some of the streams of its newest window in `silence`.
    `status` has the rows of `stream_status`. If `silence` has none of the windows, return nothing."""
    held = {window.key for window in windows}
    last = max((found for found in silence if found.window in held), key=lambda one: one.window, default=None)
    if last is None:
        return {}
    figures = asdict(last)
    metadata = {"of_window": figures.pop("window"), **figures, "stopped_share": last.stopped_share}
    if records := _named(status.filter(pc.field(PARTITION) == last.window)):
        columns = [dg.TableColumn(name, kind) for name, kind in NAMED_COLUMNS.items()]
        metadata["first_of_each_kind"] = dg.TableMetadataValue(records, dg.TableSchema(columns))
    return metadata


def _named(status: pa.Table) -> Sequence[dg.TableRecord]:
    """Return at most NAMED streams of a window for each `StatusKind`. Streams that missed the most heartbeats come
    first."""
    most_missed, kind = -pl.col("missed_heartbeats").fill_null(0), pl.col("kind").cast(pl.Enum(map(str, StatusKind)))
    first = pl.DataFrame(status).sort(kind, most_missed, "stream_id").group_by("kind", maintain_order=True).head(NAMED)
    records = []
    for row in first.iter_rows(named=True):
        times = (row[name] and iso(row[name]) for name in ("last_event_time", "first_event_time"))
        values = (row["stream_id"], row["kind"], *times, row["missed_heartbeats"])
        records.append(dg.TableRecord(dict(zip(NAMED_COLUMNS, values, strict=True))))
    return records
