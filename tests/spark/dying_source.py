"""The source `pubsub`, whose workers are killed once at each step that a test names: the worker's own kill -9."""

from collections.abc import Iterator
from pathlib import Path

from tests.spark.deaths import maybe_die
from tidemark.pipeline.ingest.source.pubsub_source import Connections, PubSubDataSource
from tidemark.pipeline.lake.store.objects import ObjectStore

STEPS = ("before create .parquet", "before create .json", "after create .json", "before read .parquet")
"""Before anything is durable; before the manifest; before acknowledging; after it, and before a row was handed out."""


class DyingObjects:
    """Objects whose user dies where it is ordained."""

    def __init__(self, objects: ObjectStore, lake: Path) -> None:
        self._objects = objects
        self._lake = lake

    @property
    def uri(self) -> str:
        return self._objects.uri

    def create(self, name: str, content: bytes) -> None:
        self._maybe_die(f"before create {Path(name).suffix}")
        self._objects.create(name, content)
        self._maybe_die(f"after create {Path(name).suffix}")

    def read(self, name: str) -> bytes:
        self._maybe_die(f"before read {Path(name).suffix}")
        return self._objects.read(name)

    def names(self, prefix: str) -> Iterator[str]:
        return self._objects.names(prefix)

    def delete(self, name: str) -> None:
        self._objects.delete(name)

    def _maybe_die(self, step: str) -> None:
        maybe_die(self._lake, step)


class DyingConnections(Connections):
    def objects(self) -> ObjectStore:
        lake = self.options.place.folder
        assert lake is not None
        return DyingObjects(super().objects(), lake)


class DyingPubSubDataSource(PubSubDataSource):
    connections = DyingConnections

    @classmethod
    def name(cls) -> str:
        return "dying_pubsub"
