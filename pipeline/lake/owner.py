"""`owner.json`: which pipeline writes the lake, and by which process. For people, and to refuse another pipeline by
name; nothing's correctness depends on it."""

from dataclasses import dataclass
from datetime import timedelta

from tidemark.pipeline.lake.store.notes import JsonKind, Moment
from tidemark.pipeline.machine import ProcessName
from tidemark.pipeline.settings import Settings

HEARD_TICKS, HEARD_LEAST, LONGEST_TICK = 6, timedelta(minutes=1), timedelta(minutes=10)
"""An owner whose newest entry is younger than six of its ticks, and at least a minute, lives: a tick may fail or take
Dagster's whole minute now and then, and the code server is back within seconds. No tick is longer than the last."""


@dataclass(frozen=True, slots=True)
class PipelineName:
    """The identity of a pipeline: its name, its topic and both subscriptions."""

    pipeline: str
    topic: str
    base: str
    tracking: str

    def __str__(self) -> str:
        base, tracking = (path.rpartition("/")[2] for path in (self.base, self.tracking))
        return f"{self.pipeline} (topic {self.topic}, subscriptions {base} and {tracking})"


@dataclass(frozen=True, slots=True)
class Owner:
    """The writer of the lake. `folder` and `config` are of the `tidemark up` that started it, if one did: the place of
    the notes on its services, and its settings. `ended`: it has stopped, and the lake is free."""

    pipeline: PipelineName
    process: ProcessName
    since: Moment
    tick_seconds: float
    folder: str = ""
    config: str = ""
    ended: Moment | None = None

    @property
    def tick(self) -> timedelta:
        """The longest time between two of its writes. A damaged value is cut to what settings allow."""
        longest = LONGEST_TICK.total_seconds()
        return timedelta(seconds=min(max(self.tick_seconds, 1.0), longest))

    @property
    def heard_within(self) -> timedelta:
        """The greatest age of its newest entry."""
        return max(HEARD_TICKS * self.tick, HEARD_LEAST)


OWNER = JsonKind("", key="owner", holds=Owner, damaged="the next start of the pipeline writes it again")
NAME = OWNER.name(OWNER.key)


def pipeline_of(settings: Settings) -> PipelineName:
    """The pipeline that these settings describe."""
    pubsub = settings.pubsub
    return PipelineName(settings.pipeline_name, pubsub.topic_path, pubsub.base_path, pubsub.tracking_path)
