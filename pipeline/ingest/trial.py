"""A trial: judges sample messages by the contract as landing does, and lands nothing."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tidemark.pipeline.clock import from_us, to_us
from tidemark.pipeline.contract.heartbeat import Asking, HeartbeatReader
from tidemark.pipeline.contract.messages import Messages
from tidemark.pipeline.ingest.rows import judged_rows
from tidemark.pipeline.ingest.samples import Sample

UNDECIDED = "UNDECIDED"
"""The reason shown for a sample that cannot be judged now."""


@dataclass(frozen=True, slots=True)
class SampleVerdict:
    """A heartbeat with its compared fields, or a rejection with its reason. A field is null if it is absent, null, or
    `of_another_kind` than configured. If a message holds several heartbeats, `sample` ends with `#` and the element's
    number, like the heartbeat's id."""

    sample: str
    published: datetime
    stream_id: str | None = None
    event_time: datetime | None = None
    publisher_id: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    of_another_kind: Sequence[str] = ()
    reason: str | None = None
    detail: str | None = None

    @property
    def is_heartbeat(self) -> bool:
        """True if the sample would land in `heartbeats`."""
        return self.reason is None


@dataclass(frozen=True, slots=True)
class Trial:
    """The verdicts on sample messages, and a summary of them."""

    samples: int
    verdicts: Sequence[SampleVerdict]

    @property
    def heartbeats(self) -> Sequence[SampleVerdict]:
        """The verdicts of the heartbeats that would land."""
        return [verdict for verdict in self.verdicts if verdict.is_heartbeat]

    @property
    def rejected(self) -> Counter[str]:
        """The number of messages that would go to quarantine, keyed by reason."""
        return Counter(verdict.reason for verdict in self.verdicts if verdict.reason is not None)

    @property
    def absent(self) -> Sequence[str]:
        """The compared fields that no heartbeat has. Empty if there is no heartbeat."""
        return [name for name in self._null if not any(name in one.of_another_kind for one in self.heartbeats)]

    @property
    def of_another_kind(self) -> Sequence[str]:
        """The compared fields of which some values are of another kind than configured, and the others null."""
        return [name for name in self._null if any(name in one.of_another_kind for one in self.heartbeats)]

    @property
    def _null(self) -> Sequence[str]:
        names = dict.fromkeys(name for verdict in self.heartbeats for name in verdict.fields)
        return [name for name in names if all(verdict.fields[name] is None for verdict in self.heartbeats)]


def try_samples(samples: Sequence[Sample], reader: HeartbeatReader, now: datetime) -> Trial:
    """Judge each sample separately, with the function that landing uses."""
    return Trial(len(samples), [verdict for sample in samples for verdict in _verdicts(sample, reader, now)])


def _verdicts(sample: Sample, reader: HeartbeatReader, now: datetime) -> Iterator[SampleVerdict]:
    messages = Messages(sample.message)
    published, message_id = from_us(int(messages.published_us[0])), sample.message["message_id"][0].as_py()
    for judged in judged_rows(messages, reader, Asking(to_us(now)), None, now):
        others = {name: frozenset(rows) for name, rows in judged.rows_of_another_kind.items()}
        for number, row in enumerate(judged.heartbeats.to_pylist()):
            yield SampleVerdict(
                sample=sample.name + row["message_id"].removeprefix(message_id),
                published=published,
                stream_id=row["stream_id"],
                event_time=row["event_time"],
                publisher_id=row["publisher_id"],
                fields={name: row[name] for name in reader.contract.fields},
                of_another_kind=tuple(name for name, rows in others.items() if number in rows),
            )
        for row in judged.rejected.to_pylist():
            yield SampleVerdict(sample=sample.name, published=published, reason=row["reason"], detail=row["detail"])
        for undecided in judged.undecided.values():
            yield SampleVerdict(sample=sample.name, published=published, reason=UNDECIDED, detail=undecided.why)
