"""The job `compute_windows`: one run over windows, wherever they lie."""

from collections.abc import Generator, Iterator, Sequence

import dagster as dg
from dagster._core.events import AssetMaterializationPlannedData, DagsterEvent
from pydantic import Field

from tidemark.assets.catalog import HEARTBEAT_DIFFS, STREAM_STATUS, key_of
from tidemark.assets.checks import evaluation_of
from tidemark.assets.corrections import corrections_noted, diffs_followed
from tidemark.assets.events import failing_run
from tidemark.assets.lost_runs import beating
from tidemark.assets.requests import COMPUTE_OP
from tidemark.assets.runs import stretches_asked, tags_of
from tidemark.assets.windowed import compute_range, metadata_of, sentence_of, silence_report, stopped_result
from tidemark.pipeline.errors import ExecutorsUnable, WindowExpired, WindowNotClosed
from tidemark.pipeline.quality.silence import WindowSilence
from tidemark.pipeline.services.dagster_names import BACKLOG, COMPUTE_WINDOWS, RANGE_START, name_of
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.windows import Window
from tidemark.resources.keys import LAKE, SPARK, keys_of, lake_of, spark_of
from tidemark.resources.lake import LakeResource
from tidemark.resources.spark import SparkResource


class WindowsConfig(dg.Config):
    """The windows to compute: keys such as 2026-11-21T05-20Z, and stretches such as
    2026-11-21T05-20Z..2026-11-21T06-10Z. Without any, the range that Dagster's tags of the run name."""

    windows: list[str] = Field(default_factory=list)


def compute_windows_job(settings: Settings) -> dg.JobDefinition:
    windowing = settings.windowing

    @dg.op(
        name=name_of(settings, COMPUTE_OP),
        out=dg.Out(dg.Nothing),
        required_resource_keys=keys_of(settings, LAKE, SPARK),
    )
    def compute_these(
        context: dg.OpExecutionContext, config: WindowsConfig
    ) -> Iterator[dg.AssetMaterialization | dg.AssetCheckEvaluation | dg.Output[None]]:
        """Computes windows and commits them at once. The sensors ask for few enough that live windows need not wait."""
        lake, spark = lake_of(context, settings), spark_of(context, settings)
        with failing_run(ExecutorsUnable, WindowExpired, WindowNotClosed, ValueError), beating(context):
            stretches = stretches_asked(config.windows, context.run.tags, windowing)
            windows = [windowing.numbered(number) for number in sorted({one for each in stretches for one in each})]
            if not windows:
                raise ValueError(f"no window is named, neither in the op's config nor in the tag {RANGE_START}")
            if BACKLOG not in context.run.tags:
                _plan(context, settings, windows)
            count, silence = yield from compute_and_report(windows, lake, spark, context.run_id)
        if silence:
            yield evaluation_of(stopped_result(settings, silence))
        yield dg.Output(None, metadata={"windows": count})

    @dg.job(name=name_of(settings, COMPUTE_WINDOWS), executor_def=dg.in_process_executor, tags=tags_of(settings))
    def compute_windows() -> None:
        """Heartbeat diffs of closed windows, and who was silent in them, in one run. The sensors request it; so does
        `tidemark recompute`."""
        compute_these()

    return compute_windows


def _plan(context: dg.OpExecutionContext, settings: Settings, windows: Sequence[Window]) -> None:
    """Have the UI show these partitions as in progress, and as failed if the run fails, as it does for an asset's own
    runs. It costs an insertion each, so that runs over many older windows do without."""
    for key in (HEARTBEAT_DIFFS, STREAM_STATUS):
        for window in windows:
            planned = AssetMaterializationPlannedData(key_of(settings, key), partition=window.key)
            event = DagsterEvent.build_asset_materialization_planned_event(context.job_name, COMPUTE_OP, planned)
            context.instance.report_dagster_event(event, context.run_id)


def compute_and_report(
    windows: Sequence[Window], lake: LakeResource, spark: SparkResource, run_id: str
) -> Generator[dg.AssetMaterialization, None, tuple[int, Sequence[WindowSilence]]]:
    """Compute windows and report each of them as its partition; returns how many the run has, and their silence."""
    done = compute_range(windows, lake, spark, run_id)
    dg.get_dagster_logger().info(sentence_of(done))
    diffs, status = (key_of(lake.settings, key) for key in (HEARTBEAT_DIFFS, STREAM_STATUS))
    for key in done.rows:  # yielded at once: one that is only logged is lost if the run fails in the end
        yield dg.AssetMaterialization(diffs, partition=key, metadata=metadata_of(done, key))
    report = silence_report(lake, [window.key for window in windows])
    for key, said in report.metadata.items():
        yield dg.AssetMaterialization(status, partition=key, metadata=said)
    yield from corrections_noted(lake, [diffs_followed(lake)])
    return len(done.rows), report.windows
