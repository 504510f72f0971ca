"""Objects that all processes of a lake share: the lake's owner, and the schema that the lake accepts.

`owner.json` names the pipeline and the process that write the lake, so that a process refuses the lake of another
pipeline. This check prevents mistakes; no guarantee depends on it. `schemas/accepted.json` names the Pub/Sub schema
that the lake accepts. This object is never replaced, so all processes accept the same schema.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta

from tidemark.pipeline.lake.store.notes import JsonKind, Moment, Notes
from tidemark.pipeline.lake.store.objects import ObjectStore
from tidemark.pipeline.machine import ProcessName
from tidemark.pipeline.settings import Settings

HEARD_TICKS, HEARD_LEAST, LONGEST_TICK = 6, timedelta(minutes=1), timedelta(minutes=10)
"""An owner counts as alive if its last sign of life is younger than HEARD_TICKS tick intervals, or younger than
HEARD_LEAST. This leaves time for failed ticks, and for ticks that take a whole minute, as Dagster allows. LONGEST_TICK
is the longest tick interval that settings allow."""


@dataclass(frozen=True, slots=True)
class PipelineName:
    """A pipeline, identified by its topic and subscriptions. The field `pipeline` is only a display name, because
    a caller of `td.pipeline` may pass a name that the settings file lacks."""

    pipeline: str = field(compare=False)
    topic: str
    base: str
    tracking: str

    def __str__(self) -> str:
        base, tracking = (path.rpartition("/")[2] for path in (self.base, self.tracking))
        return f"{self.pipeline} (topic {self.topic}, subscriptions {base} and {tracking})"


@dataclass(frozen=True, slots=True)
class Owner:
    """The pipeline and the process that write the lake, and since when. `ended` is the time at which the process
    stopped and freed the lake, or None until then.

    If `tidemark up` started the process, `folder` is where `up` records the processes that it runs, and `config` is the
    settings file. Otherwise both are empty.
    """

    pipeline: PipelineName
    process: ProcessName
    since: Moment
    tick_seconds: float
    folder: str = ""
    config: str = ""
    ended: Moment | None = None

    @property
    def tick(self) -> timedelta:
        """The owner's tick interval, limited to the range that settings allow, in case `owner.json` is wrong. A live
        owner writes to the log at least once per interval."""
        longest = LONGEST_TICK.total_seconds()
        return timedelta(seconds=min(max(self.tick_seconds, 1.0), longest))

    @property
    def heard_within(self) -> timedelta:
        """Maximum age of the last sign of life (a decision or a write of `owner.json`) that shows a live owner."""
        return max(HEARD_TICKS * self.tick, HEARD_LEAST)


OWNER = JsonKind("", key="owner", holds=Owner, damaged="the next start of the pipeline writes it again")
NAME = OWNER.name(OWNER.key)


def pipeline_of(settings: Settings) -> PipelineName:
    """Return the pipeline that these settings describe."""
    pubsub = settings.pubsub
    return PipelineName(settings.pipeline_name, pubsub.topic_path, pubsub.base_path, pubsub.tracking_path)


@dataclass(frozen=True, slots=True)
class AcceptedSchema:
    schema: str


ACCEPTED = JsonKind("schemas/", "restore a backup, or delete this object", key="accepted", holds=AcceptedSchema)


class AcceptedSchemas:
    """The Pub/Sub schemas that messages may have: those in the settings (`of_settings`) and, if the lake has accepted a
    schema, that one. If the settings name none, the lake accepts the first schema that a message names and that exists
    in Pub/Sub. The lake never accepts a second one, so an instance reads it only on first use and after `accept`."""

    def __init__(self, objects: ObjectStore, of_settings: Iterable[str] = ()) -> None:
        self._notes = Notes(objects, ACCEPTED)
        self._names = frozenset(of_settings)
        self._has_read = False

    def names(self) -> frozenset[str]:
        """Return the full names of the schemas that messages may have. Raises LakeError."""
        if not self._has_read:
            self._read()
        return self._names

    def accept(self, name: str) -> None:
        """Make the lake accept this schema, unless the lake already accepts another one. Raises LakeError."""
        self._notes.ensure(ACCEPTED.key, AcceptedSchema(name))
        self._read()

    def _read(self) -> None:
        if (accepted := self._notes.find(ACCEPTED.key)) is not None:
            self._names |= {accepted.schema}
        self._has_read = True
