"""An open, explained event-time watermark for Google Pub/Sub, with Dagster and PySpark."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidemark.assets.embedded import PipelineComponent as Pipeline

__all__ = ["Pipeline"]


def __getattr__(name: str) -> Any:
    """`tidemark.Pipeline`, the Dagster component. It is imported when somebody asks for it: Spark's workers and the
    commands import this package too, and need no Dagster."""
    if name == "Pipeline":
        from tidemark.assets.embedded import PipelineComponent

        return PipelineComponent
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
