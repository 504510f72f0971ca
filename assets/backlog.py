"""The job `compute_backlog`: older and stale windows, in parts, between two of which it makes way for live windows."""

from collections.abc import Generator, Iterator, Sequence
from datetime import timedelta

import dagster as dg

from tidemark.assets.attempts import TO, stretch_named
from tidemark.assets.catalog import HEARTBEAT_DIFFS, STREAM_STATUS, key_of
from tidemark.assets.checks import evaluation_of
from tidemark.assets.corrections import corrections_noted, diffs_followed
from tidemark.assets.events import failing_run
from tidemark.assets.live_first import Front, Parts
from tidemark.assets.lost_runs import beating
from tidemark.assets.requests import BACKLOG_OP, front_of
from tidemark.assets.runs import tags_of
from tidemark.assets.windowed import compute_range, metadata_of, silence_report, stopped_result
from tidemark.pipeline.clock import Clock
from tidemark.pipeline.errors import ExecutorsUnable, WindowExpired, WindowNotClosed
from tidemark.pipeline.quality.silence import WindowSilence
from tidemark.pipeline.services.dagster_names import COMPUTE_BACKLOG, TRIED, name_of
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.windows import Window
from tidemark.resources.keys import LAKE, SPARK, keys_of, lake_of, spark_of
from tidemark.resources.lake import LakeResource
from tidemark.resources.spark import SparkResource


class BacklogConfig(dg.Config):
    """The windows to compute, in this order: keys such as 2026-11-21T05-20Z, and stretches such as
    2026-11-21T05-20Z..2026-11-21T06-10Z, whose last window is computed first."""

    windows: list[str]


def backlog_job(settings: Settings, clock: Clock) -> dg.JobDefinition:
    windowing = settings.windowing

    @dg.op(
        name=name_of(settings, BACKLOG_OP),
        out=dg.Out(dg.Nothing),
        required_resource_keys=keys_of(settings, LAKE, SPARK),
    )
    def compute_older(
        context: dg.OpExecutionContext, config: BacklogConfig
    ) -> Iterator[dg.AssetMaterialization | dg.AssetCheckEvaluation | dg.Output[None]]:
        """Computes windows in parts of some seconds, each of which is committed when it is done. It ends before a live
        window closes, and after a minute; the sensors ask again for what is left."""
        lake, spark = lake_of(context, settings), spark_of(context, settings)
        silence = list[WindowSilence]()
        left = [number for text in config.windows for number in reversed(stretch_named(text, windowing))]
        total, computed = len(left), 0
        with failing_run(ExecutorsUnable, WindowExpired, WindowNotClosed, ValueError), beating(context):
            front = _front(lake, clock)
            is_alone = settings.windows.runs_at_once == 1
            parts = Parts(clock.monotonic(), 0 if front is None else front.first_open, makes_way=is_alone)
            while left:
                part = left[: parts.size()]
                if front is not None and parts.ends(len(part), clock.monotonic(), front):
                    break
                began, windows = clock.monotonic(), sorted(windowing.numbered(number) for number in part)
                context.instance.add_run_tags(context.run_id, {TRIED: f"{windows[0].key}{TO}{windows[-1].key}"})
                _, report = yield from compute_and_report(windows, lake, spark, context.run_id)
                silence += report
                parts.took(len(part), clock.monotonic() - began)
                left, computed = left[len(part) :], computed + len(part)
                front = _front(lake, clock)
        if silence:
            yield evaluation_of(stopped_result(settings, silence))
        context.log.info(f"computed {computed} of {total} windows; the sensors ask again for the other {len(left)}")
        yield dg.Output(None, metadata={"windows": computed, "left": len(left)})

    @dg.job(name=name_of(settings, COMPUTE_BACKLOG), executor_def=dg.in_process_executor, tags=tags_of(settings))
    def compute_backlog() -> None:
        """Older windows that are due, and stale ones, wherever they lie. It makes way for live windows."""
        compute_older()

    return compute_backlog


def compute_and_report(
    windows: Sequence[Window], lake: LakeResource, spark: SparkResource, run_id: str
) -> Generator[dg.AssetMaterialization, None, tuple[int, Sequence[WindowSilence]]]:
    """Compute windows and report each of them as its partition; returns how many the run has, and their silence."""
    done = compute_range(windows, lake, spark, run_id)
    diffs, status = (key_of(lake.settings, key) for key in (HEARTBEAT_DIFFS, STREAM_STATUS))
    for key in done.rows:  # yielded at once: one that is only logged is lost if the run fails in the end
        yield dg.AssetMaterialization(diffs, partition=key, metadata=metadata_of(done, key))
    report = silence_report(lake, [window.key for window in windows])
    for key, said in report.metadata.items():
        yield dg.AssetMaterialization(status, partition=key, metadata=said)
    yield from corrections_noted(lake, [diffs_followed(lake)])
    return len(done.rows), report.windows


def _front(lake: LakeResource, clock: Clock) -> Front | None:
    """Where the newest decision's watermark is by now, as the clock goes on; None if there is none."""
    decided = lake.tracking_log("run").newest_decision()
    if decided is None or decided.decision.watermark is None:
        return None
    now, since = clock.now(), decided.decision.at
    return front_of(lake, decided.decision.watermark + max(now - since, timedelta(0)), now)
