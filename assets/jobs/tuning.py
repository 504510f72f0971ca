"""The asset `watermark_tuning`: a daily report on recent data, for choosing the watermark's settings."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import dagster as dg

from tidemark.assets.catalog import HEARTBEATS, WATERMARK, WATERMARK_TUNING, key_of, spec, within
from tidemark.assets.jobs.job import schedule_of, tags_of, working
from tidemark.pipeline.clock import SystemClock, format_duration
from tidemark.pipeline.errors import NothingToTune
from tidemark.pipeline.orchestrator.names import name_of
from tidemark.pipeline.phrases import printable
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.tuning.inputs import report_on_lake
from tidemark.pipeline.tuning.report import SINCE, Asked, TuningReport, facts_of, sentences
from tidemark.resources.keys import LAKE, keys_of, lake_of

TUNE_WATERMARK = "tune_watermark"

EVERY_DAY = "15 4 * * *"


def tuning_asset(settings: Settings) -> dg.AssetsDefinition:
    described = spec(
        settings,
        WATERMARK_TUNING,
        "A daily report that helps to choose `watermark.band` and `watermark.rule`. It is computed from the last "
        f"{format_duration(SINCE)}. It lists the share of late heartbeats and the watermark's lag for each possible "
        "band, the band that is enough for the target share, and the streams that are most out of order. A page with "
        "charts is in the lake.",
        uri=within(settings, "reports/tuning"),
        kinds={"python"},
        deps=[WATERMARK] if settings.pubsub.attach else [WATERMARK, HEARTBEATS],
    )

    @dg.multi_asset(
        name=name_of(settings, WATERMARK_TUNING.to_python_identifier()),
        specs=[described.replace_attributes(skippable=True)],
        required_resource_keys=keys_of(settings, LAKE),
    )
    def watermark_tuning(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult[None]]:
        from tidemark.pipeline.tuning.page import page_of, write_report  # loads templates: a tenth of a second

        made_at, lake = SystemClock().now(), lake_of(context, settings).of("run")
        with working(context):
            try:
                report = report_on_lake(lake, Asked(settings, made_at))
            except NothingToTune as nothing:
                context.log.info(str(nothing))
                return
            stored = write_report(lake.objects(), made_at, page_of(report), facts_of(report))
        for sentence in sentences(report):
            context.log.info(sentence)
        yield dg.MaterializeResult(asset_key=described.key, metadata=tuning_metadata(report, stored))

    return watermark_tuning


def tuning_schedule(settings: Settings) -> dg.ScheduleDefinition:
    """Define the daily schedule of the report. The schedule is on by default."""
    job = dg.define_asset_job(
        name_of(settings, TUNE_WATERMARK),
        selection=[key_of(settings, WATERMARK_TUNING)],
        executor_def=dg.in_process_executor,
        description="Writes the report of the asset `watermark_tuning`: how recent data would have fared with other "
        "watermark settings.",
        tags=tags_of(settings),
    )
    return schedule_of(settings, "daily_tuning", EVERY_DAY, job)


def tuning_metadata(report: TuningReport, page: str) -> dict[str, Any]:
    """Return the main figures as numbers to plot, the sentences as text, and the page's path."""
    disorder = report.disorder
    metadata: dict[str, Any] = {
        "says": dg.MetadataValue.md("\n".join(f"- {_plain(sentence)}" for sentence in sentences(report))),
        "report": dg.MetadataValue.path(page),
        "messages": disorder.messages,
        "late_share": report.now.late_share,
        "late_messages": report.now.late,
        "band_seconds": report.band.total_seconds(),
        "disorder_p99_seconds": disorder.disorder.quantile(0.99),
        "disorder_max_seconds": disorder.disorder.quantile(1.0),
        "disorder_beyond_band_share": disorder.beyond_band / disorder.messages,
        **{f"{side}_streams": found.streams for side, found in disorder.sides.items()},
    }
    for variant in report.rules:
        here = report.tuning.at(variant, report.band)
        metadata[f"{variant.rule}/late_share"] = here.late_share
        for name, lag in (("p50", here.lag_p50), ("p99", here.lag_p99)):
            if lag is not None:
                metadata[f"{variant.rule}/lag_{name}_seconds"] = lag
    for each in report.tuning.recommendations:
        if each.variant in report.rules and each.outcome is not None:
            name = f"{each.variant.rule}/band_seconds_for_late_{each.target:g}"
            metadata[name] = each.outcome.band.total_seconds()
    for side, found in disorder.sides.items():
        if found.worst:
            metadata[f"{side}est"] = dg.MetadataValue.table([dg.TableRecord(asdict(stream)) for stream in found.worst])
    return metadata


def _plain(text: str) -> str:
    shown = printable(" ".join(text.split()))
    return "".join(f"\\{sign}" if sign in "\\`*_{}[]<>()#|!~&" else sign for sign in shown)
