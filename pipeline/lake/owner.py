"""Notes that all processes of a lake share: its owner, and the first schema that it accepted.

`owner.json` names the pipeline and the process that write the lake. It informs people, and lets a process refuse the
lake of another pipeline; correctness does not depend on it. `schemas/accepted.json` is create-only; all processes use
it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

from tidemark.pipeline.lake.store.notes import JsonKind, Moment, Notes
from tidemark.pipeline.lake.store.objects import ObjectStore
from tidemark.pipeline.machine import ProcessName
from tidemark.pipeline.settings import Settings

HEARD_TICKS, HEARD_LEAST, LONGEST_TICK = 6, timedelta(minutes=1), timedelta(minutes=10)
"""An owner counts as alive while its newest log entry is younger than HEARD_TICKS tick intervals, or than HEARD_LEAST
if that is longer. A tick may occasionally fail or take Dagster's whole minute, and the code server restarts within
seconds. No tick interval is longer than LONGEST_TICK."""


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
    """The writer of the lake. If `tidemark up` started it, `folder` holds the notes on its services and `config` is its
    settings file. `ended` is the time at which it stopped and freed the lake."""

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
        """The maximum age of a live owner's newest log entry."""
        return max(HEARD_TICKS * self.tick, HEARD_LEAST)


OWNER = JsonKind("", key="owner", holds=Owner, damaged="the next start of the pipeline writes it again")
NAME = OWNER.name(OWNER.key)


def pipeline_of(settings: Settings) -> PipelineName:
    """Return the pipeline that these settings describe."""
    pubsub = settings.pubsub
    return PipelineName(settings.pipeline_name, pubsub.topic_path, pubsub.base_path, pubsub.tracking_path)


@dataclass(frozen=True, slots=True)
class AcceptedSchema:
    """The full name of the accepted schema."""

    schema: str


ACCEPTED = JsonKind("schemas/", "restore a copy, or delete it", key="accepted", holds=AcceptedSchema)


class AcceptedSchemas:
    """The schemas that messages may name: those in the settings, and the first existing schema that a message named.
    The note is read once and never replaced."""

    def __init__(self, objects: ObjectStore, of_settings: Iterable[str] = ()) -> None:
        self._notes = Notes(objects, ACCEPTED)
        self._names = frozenset(of_settings)
        self._has_read = False

    def names(self) -> frozenset[str]:
        """Return the full names. Raises DamagedNote, NewerFormat, LakeError."""
        if not self._has_read:
            self._read()
        return self._names

    def accept(self, name: str) -> None:
        """Note the first schema, unless one is noted already. Raises LakeError."""
        self._notes.ensure(ACCEPTED.key, AcceptedSchema(name))
        self._read()

    def _read(self) -> None:
        if (accepted := self._notes.find(ACCEPTED.key)) is not None:
            self._names |= {accepted.schema}
        self._has_read = True
