"""`owner.json`: the pipeline and the process that write the lake. It serves people, and the refusal of another pipeline
by name; correctness does not depend on it."""

from dataclasses import dataclass
from datetime import timedelta

from tidemark.pipeline.lake.store.notes import JsonKind, Moment
from tidemark.pipeline.machine import ProcessName
from tidemark.pipeline.settings import Settings

HEARD_TICKS, HEARD_LEAST, LONGEST_TICK = 6, timedelta(minutes=1), timedelta(minutes=10)
"""An owner is alive while its newest entry is younger than HEARD_TICKS of its ticks, or HEARD_LEAST if that is longer:
a tick may occasionally fail or take Dagster's whole minute, and the code server restarts within seconds. No tick is
longer than LONGEST_TICK."""


@dataclass(frozen=True, slots=True)
class PipelineName:
    """The identity of a pipeline: its name, topic and both subscriptions."""

    pipeline: str
    topic: str
    base: str
    tracking: str

    def __str__(self) -> str:
        base, tracking = (path.rpartition("/")[2] for path in (self.base, self.tracking))
        return f"{self.pipeline} (topic {self.topic}, subscriptions {base} and {tracking})"


@dataclass(frozen=True, slots=True)
class Owner:
    """The writer of the lake. If `tidemark up` started it, `folder` holds the notes on its services and `config` is
    its settings file. `ended`: when it stopped; the lake is free from then."""

    pipeline: PipelineName
    process: ProcessName
    since: Moment
    tick_seconds: float
    folder: str = ""
    config: str = ""
    ended: Moment | None = None

    @property
    def tick(self) -> timedelta:
        """The longest time between two of the owner's writes. A damaged value is clipped to the range that settings
        allow."""
        longest = LONGEST_TICK.total_seconds()
        return timedelta(seconds=min(max(self.tick_seconds, 1.0), longest))

    @property
    def heard_within(self) -> timedelta:
        """The maximum age of the newest entry of a live owner."""
        return max(HEARD_TICKS * self.tick, HEARD_LEAST)


OWNER = JsonKind("", key="owner", holds=Owner, damaged="the next start of the pipeline writes it again")
NAME = OWNER.name(OWNER.key)


def pipeline_of(settings: Settings) -> PipelineName:
    """Return the pipeline that these settings describe."""
    pubsub = settings.pubsub
    return PipelineName(settings.pipeline_name, pubsub.topic_path, pubsub.base_path, pubsub.tracking_path)
