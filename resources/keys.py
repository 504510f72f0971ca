"""Under which keys a pipeline's resources stand in Dagster, and how its functions get them: no other pipeline's, and
not another resource called `spark`."""

from typing import TYPE_CHECKING, Any, Protocol, cast

from tidemark.pipeline.orchestrator.names import name_of
from tidemark.pipeline.settings import Settings

if TYPE_CHECKING:  # Spark and Google's clients: who only names a pipeline's assets needs none of them
    from tidemark.resources.lake import LakeResource
    from tidemark.resources.pubsub import PubSubResource
    from tidemark.resources.spark import SparkResource

PUBSUB, LAKE, SPARK = "pubsub", "lake", "spark"


class WithResources(Protocol):
    """A context of Dagster's: of an op, an asset, a check or a sensor."""

    @property
    def resources(self) -> Any: ...


def keys_of(settings: Settings, *names: str) -> set[str]:
    """The keys that a definition requires."""
    return {name_of(settings, name) for name in names}


def pubsub_of(context: WithResources, settings: Settings) -> "PubSubResource":
    """The pipeline's two subscriptions."""
    return cast("PubSubResource", getattr(context.resources, name_of(settings, PUBSUB)))


def lake_of(context: WithResources, settings: Settings) -> "LakeResource":
    """The pipeline's lake."""
    return cast("LakeResource", getattr(context.resources, name_of(settings, LAKE)))


def spark_of(context: WithResources, settings: Settings) -> "SparkResource":
    """The pipeline's Spark."""
    return cast("SparkResource", getattr(context.resources, name_of(settings, SPARK)))
