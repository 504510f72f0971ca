"""The keys of a pipeline's Dagster resources, and access to the resources. The keys include `dagster.name`, so that
several pipelines can be in one code location."""

from typing import TYPE_CHECKING, Any, Protocol, cast

from tidemark.pipeline.orchestrator.names import name_of
from tidemark.pipeline.settings import Settings

if TYPE_CHECKING:  # imports Spark and Google's clients, which code that only names assets does not need
    from tidemark.pipeline.pubsub.readings import Subscriptions
    from tidemark.resources.lake import LakeResource
    from tidemark.resources.spark import SparkResource

PUBSUB, LAKE, SPARK = "pubsub", "lake", "spark"


class WithResources(Protocol):
    """The context of an op, an asset, a check or a sensor in Dagster."""

    @property
    def resources(self) -> Any: ...


def keys_of(settings: Settings, *names: str) -> set[str]:
    """Return the keys of the resources that a definition needs."""
    return {name_of(settings, name) for name in names}


def pubsub_of(context: WithResources, settings: Settings) -> "Subscriptions":
    """Return the Dagster resource of the pipeline's two subscriptions."""
    return cast("Subscriptions", getattr(context.resources, name_of(settings, PUBSUB)))


def lake_of(context: WithResources, settings: Settings) -> "LakeResource":
    """Return the Dagster resource of the pipeline's lake."""
    return cast("LakeResource", getattr(context.resources, name_of(settings, LAKE)))


def spark_of(context: WithResources, settings: Settings) -> "SparkResource":
    """Return the Dagster resource of the pipeline's Spark session."""
    return cast("SparkResource", getattr(context.resources, name_of(settings, SPARK)))
