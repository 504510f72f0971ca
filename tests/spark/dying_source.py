"""The source `pubsub`, whose workers are killed once at each step that a test names: the worker's own kill -9."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

from tidemark.pipeline.ingest.pubsub_source import Connections, PubSubDataSource
from tidemark.pipeline.lake.store.objects import ObjectStore

STEPS = ("before create .parquet", "before create .json", "after create .json", "before read .parquet")
"""Before anything is durable; before the manifest; before acknowledging; after it, and before a row was handed out."""


def deaths(lake: Path) -> Path:
    """The folder with a file for each death that is to come; one that came is called `… done`."""
    return lake.with_name(f"{lake.name}-deaths")


def ordain(lake: Path, *steps: str) -> None:
    deaths(lake).mkdir()
    for step in steps:
        (deaths(lake) / step).touch()


def maybe_die(lake: Path, step: str) -> None:
    """Be killed here, if it is ordained and has not come yet."""
    try:
        (deaths(lake) / step).rename(deaths(lake) / f"{step} done")  # one of any number of workers is first
    except FileNotFoundError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


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
