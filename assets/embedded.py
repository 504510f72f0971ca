"""A pipeline inside your Dagster project, along with other pipelines and definitions."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import pyarrow as pa

from tidemark.assets.catalog import COMPLETE_WINDOWS, HEARTBEAT_DIFFS, HEARTBEATS, WATERMARK, key_of, on_computed
from tidemark.assets.partitions import Partitions, windows_of
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.compute.table_definition import TableDefinition
from tidemark.pipeline.errors import InvalidSettings
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.settings import DEFAULT_NAME, Settings, load_settings


@dataclass(frozen=True)
class Pipeline:
    """A pipeline: its Dagster definitions, and the keys and partitions that your own assets need to read its
    windows."""

    settings: Settings
    tables: Sequence[TableDefinition] = ()
    topic: dg.AssetKey | None = None

    def definitions(self) -> dg.Definitions:
        """Return the pipeline's assets, checks, jobs, sensors, schedules and resources. Use
        `dg.Definitions.merge` to combine them with your definitions.

        All names begin with the pipeline's name. Sensors and schedules are on by default. Each job has its own
        executor, and your project's executor is not changed. Call this method only once, because each call creates
        new caches.
        """
        from tidemark.assets.definitions import build_definitions  # imports Spark and Polars: a second or two

        return build_definitions(self.settings, tables=self.tables, topic=self.topic)

    @property
    def name(self) -> str:
        """The prefix of the names of assets, jobs, sensors, schedules and resources."""
        return self.settings.pipeline_name

    @property
    def diffs(self) -> dg.AssetKey:
        """The key of `heartbeat_diffs`. A partition is an hour of windows, or a single window of an hour or longer. It
        is materialized once it has closed and all of its windows with heartbeats are computed."""
        return key_of(self.settings, HEARTBEAT_DIFFS)

    @property
    def heartbeats(self) -> dg.AssetKey:
        """The key of the asset `heartbeats`. Each tick or run that lands heartbeats materializes the asset."""
        return key_of(self.settings, HEARTBEATS)

    @property
    def watermark(self) -> dg.AssetKey:
        """The key of the asset `watermark`. Each tracking tick materializes the asset."""
        return key_of(self.settings, WATERMARK)

    @property
    def complete_windows(self) -> dg.AssetKey:
        """The key of `complete_windows`. With `pubsub.attach`, this asset replaces `heartbeat_diffs` and `heartbeats`.
        A partition is materialized once the watermark has passed it."""
        return key_of(self.settings, COMPLETE_WINDOWS)

    @property
    def windows(self) -> dg.TimeWindowPartitionsDefinition:
        """The partitions of `heartbeat_diffs` and `complete_windows`, for your own assets with the same partitions."""
        return self._partitions.definition()

    @property
    def on_computed(self) -> dg.AutomationCondition[dg.AssetKey]:
        """An automation condition for your assets over `windows`. It requests a partition once all of its windows with
        heartbeats are computed, and again whenever one of these windows is recomputed. With `pubsub.attach`, the
        windows must be complete instead of computed. Of your asset's dependencies, only this pipeline's `diffs`,
        `complete_windows`, `stream_status` and custom tables count."""
        return on_computed(self.settings, (table.name for table in self.tables))

    def read_diffs(self, partition_keys: Iterable[str]) -> pa.Table:
        """Read the current rows of `heartbeat_diffs` in these partitions, with the columns of `diff_schema`. A window
        that is not computed has no rows. Raises LakeError, and ValueError if a key is not the key of a partition."""
        lake = Lake(self.settings.lake, self.settings.message.kinds, SystemClock())
        windows = windows_of(self._partitions.windows_in(partition_keys), self.settings.windowing)
        return lake.diffs().read(window.key for window in windows)

    @property
    def _partitions(self) -> Partitions:
        return Partitions(self.settings.windowing, SystemClock().now())


def pipeline(
    config: str | Path,
    *,
    name: str | None = None,
    tables: Sequence[TableDefinition] = (),
    topic: dg.AssetKey | None = None,
) -> Pipeline:
    """Read a settings file and return its pipeline. A relative path is relative to the current folder.

    `tables` are functions decorated with `tidemark.windowed`; their tables are added to those of `[tables]`. `topic` is
    the key of your own asset that stands for the topic; pipelines that read the same topic share it.

    The pipeline's name is `name`, else `dagster.name` in the file, else `tidemark`. With `name="orders"`, the variables
    that override the file begin with `ORDERS_TIDEMARK_` instead of `TIDEMARK_`. Commands cannot see `name`: to use
    them, set `dagster.name` instead. Each pipeline needs its own subscriptions and lake. Raises InvalidSettings.
    """
    from tidemark.resources.json_logs import log_as  # imports structlog: a tenth of a second

    settings = load_settings(Path(config), name=name)
    log_as(settings.logs)
    if undecorated := [table for table in tables if not isinstance(table, TableDefinition)]:
        raise InvalidSettings(f"{undecorated[0]!r} is not a table; decorate the function with @tidemark.windowed")
    if settings.dagster.name is None:
        settings = settings.model_copy(update={"dagster": settings.dagster.model_copy(update={"name": DEFAULT_NAME})})
    return Pipeline(settings, tuple(tables), topic)


class PipelineComponent(dg.Component, dg.Model, dg.Resolvable):
    """A tidemark pipeline as a Dagster component.

    `config` is the settings file, relative to the component's folder. `name` and `topic` have the same meaning as in
    `tidemark.dagster.pipeline`. `topic` is a string, such as `kafka/orders`.
    """

    config: str = "tidemark.toml"
    name: str | None = None
    topic: str | None = None

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the definitions of the pipeline."""
        topic = None if self.topic is None else dg.AssetKey.from_user_string(self.topic)
        return pipeline(context.path / self.config, name=self.name, topic=topic).definitions()
