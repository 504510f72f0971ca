"""An event-time watermark for Google Pub/Sub, with Dagster and PySpark. It explains its decisions."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidemark.assets.embedded import PipelineComponent as Pipeline
    from tidemark.pipeline.compute.table_definition import Windows, windowed

__all__ = ["Pipeline", "Windows", "windowed"]


def __getattr__(name: str) -> Any:
    """Import `Pipeline` (the Dagster component), `Windows` or `windowed` (the decorator of custom tables) on first use,
    because Spark's workers and the commands import this package without Dagster."""
    if name == "Pipeline":
        from tidemark.assets.embedded import PipelineComponent

        return PipelineComponent
    if name in ("Windows", "windowed"):
        from tidemark.pipeline.compute import table_definition

        return getattr(table_definition, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
