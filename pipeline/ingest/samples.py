"""Reads sample messages from files, and judges them by the contract, as landing does. Nothing lands.

A file contains bare payloads, Avro records, or messages as printed by `gcloud pubsub subscriptions pull`. A file that
is not wholly the output of `gcloud` is read as payloads or records.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
from google.protobuf.json_format import ParseDict, ParseError
from google.pubsub_v1 import PubsubMessage
from pydantic.alias_generators import to_camel

from tidemark.pipeline.clock import from_us, to_us
from tidemark.pipeline.contract.heartbeat import Asking, HeartbeatReader
from tidemark.pipeline.contract.messages import Messages
from tidemark.pipeline.contract.payloads.rejections import Unreadable
from tidemark.pipeline.contract.payloads.schemas import CONTAINER, Encoding
from tidemark.pipeline.errors import SampleUnusable
from tidemark.pipeline.ingest.rows import judged_rows
from tidemark.pipeline.pubsub.pulls import table_of

MOST_SAMPLES = 10_000
"""Maximum number of sample messages, and of files in a folder. Reason: each message is judged separately."""

MOST_BYTES = 64 << 20
"""Maximum size of all sample files together, in bytes. Reason: they are held in memory. A Pub/Sub message is at most
10 MB."""

MESSAGE_KEYS = frozenset(("data", "attributes", "messageId", "publishTime", "orderingKey"))
ENVELOPE_KEYS = frozenset(("ackId", "ackStatus", "message", "deliveryAttempt", "subscription"))
"""Keys of the object that contains a pulled or pushed message."""

TELLING_KEYS = frozenset(("messageId", "publishTime", "attributes"))
"""A JSON object counts as a message only if it has one of these keys, because an object that has only `data` may be a
payload. A message inside a pulled or pushed object needs none of these keys."""

BASE64 = re.compile(r"[A-Za-z0-9+/_-]*={0,2}")


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample message in the columns of MESSAGE, or the reason why it cannot be read. The `name` of a pulled sample is
    its message id. Otherwise it is the file's name, with the number of the line, message or record if there is one."""

    name: str
    message: pa.Table | str


@dataclass(frozen=True, slots=True)
class SampleReading:
    """Options for reading samples.

    - `attributes` are given to bare payloads.
    - `published` is the publish time of each message. If it is None, the publish time in the message is used, or else
      `now`.
    - `encoding` is the encoding of the payloads. With JSON, a file may have one payload per line. With Avro, a file may
      be an Avro object container file, in which each record is a payload.
    """

    now: datetime
    attributes: Mapping[str, str]
    published: datetime | None
    encoding: Encoding


def read_samples(paths: Sequence[Path], reading: SampleReading) -> list[Sample]:
    """Read the messages in files and folders, in order. A folder's files are read in the order of their names; hidden
    files are skipped. Raises SampleUnusable if a file is unreadable, the samples exceed a limit, or there are none."""
    found: list[Sample] = []
    left = MOST_BYTES
    for path in _files_of(paths):
        try:
            with path.open("rb") as opened:
                content = opened.read(left + 1)
        except OSError as error:
            raise SampleUnusable(f"{path} cannot be read: {error.strerror or error}; name a file or folder") from error
        left -= len(content)
        if left < 0:
            raise SampleUnusable(
                f"{path} brings the samples to more than {MOST_BYTES >> 20} MiB; name fewer or smaller files"
            )
        for sample in _of_file(path, content, reading):
            if len(found) == MOST_SAMPLES:
                raise SampleUnusable(f"{path} brings the total to more than {MOST_SAMPLES} samples; name fewer files")
            found.append(sample)
    if not found:
        raise SampleUnusable(f"no message in {', '.join(map(str, paths))}; name a file with a payload or a message")
    return found


def _files_of(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        try:
            inside = sorted(one for one in path.iterdir() if one.is_file() and not one.name.startswith("."))
        except OSError as error:
            raise SampleUnusable(
                f"{path} cannot be listed: {error.strerror or error}; make it readable, or name its files"
            ) from error
        if len(inside) > MOST_SAMPLES:
            raise SampleUnusable(
                f"{path} has {len(inside)} files, but a trial takes at most {MOST_SAMPLES}; name only some of them"
            )
        yield from inside


def _of_file(path: Path, content: bytes, reading: SampleReading) -> Iterator[Sample]:
    """Yield the messages of a file. A file has one payload, messages, lines of payloads or messages, or records."""
    whole, numbered = _parsed(content), enumerate(content.split(b"\n"), 1)
    lines = {f"{path.name}:{number}": line for number, line in numbered if line.strip()}
    has_lines = reading.encoding is Encoding.JSON and len(lines) > 1
    in_lines = [_messages_in(_parsed(line)) for line in islice(lines.values(), MOST_SAMPLES + 1)]
    if reading.encoding is Encoding.AVRO and content.startswith(CONTAINER):
        yield from _records(path, content, reading)
    elif (messages := _messages_in(whole)) is not None:
        for number, message in enumerate(messages, 1):
            yield _message(f"{path.name}#{number}", message, reading)
    elif whole is None and in_lines and None not in in_lines:
        for at, messages in zip(lines, in_lines, strict=False):
            for message in messages or ():
                yield _message(at, message, reading)
    elif whole is None and has_lines and isinstance(_parsed(next(iter(lines.values()))), dict | list):
        for at, line in lines.items():
            yield Sample(at, _bare(line, reading))
    else:
        yield Sample(path.name, _bare(content, reading))


def _records(path: Path, content: bytes, reading: SampleReading) -> Iterator[Sample]:
    from tidemark.pipeline.contract.payloads.avro import records_of  # imports fastavro

    try:
        for number, record in enumerate(records_of(content, path.name), 1):
            yield Sample(f"{path.name}#{number}", _bare(record, reading))
    except Unreadable as error:
        yield Sample(path.name, f"it starts like an Avro object container file, but is not a valid one: {error}")


def _parsed(content: bytes) -> Any:
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        return None


def _messages_in(value: Any) -> list[dict[str, Any]] | None:
    """Return the messages in a JSON value that Google's API or tools printed; None if the value has a different form.
    The list is empty if the value is the response to a pull that found no messages."""
    if isinstance(value, dict) and value.keys() == {"receivedMessages"}:
        value = value["receivedMessages"]
    found = [_message_in(one) for one in (value if isinstance(value, list) else [value])]
    messages = [message for message in found if message is not None]
    return messages if len(messages) == len(found) else None


def _message_in(value: Any) -> dict[str, Any] | None:
    """Return the message in a JSON value; None if there is none. The message may be wrapped in an object, as in a pull
    response or a push request. A pushed message has some fields under two names."""
    if not isinstance(value, dict):
        return None
    is_enveloped = isinstance(value.get("message"), dict) and value.keys() <= ENVELOPE_KEYS
    fields = {to_camel(name): one for name, one in (value["message"] if is_enveloped else value).items()}
    is_message = fields.keys() <= MESSAGE_KEYS and (is_enveloped or fields.keys() & TELLING_KEYS)
    return fields if is_message else None


def _message(name: str, fields: dict[str, Any], reading: SampleReading) -> Sample:
    data = fields.get("data", "")
    if not isinstance(data, str) or not BASE64.fullmatch(data):
        return Sample(name, "its data is not base64; the JSON form of a Pub/Sub message requires base64")
    try:
        message = ParseDict(fields, PubsubMessage.pb()())
    except (ParseError, ValueError) as error:
        return Sample(name, f"it is not a Pub/Sub message: {error}")
    return Sample(name, _dated(message, reading))


def _bare(payload: bytes, reading: SampleReading) -> pa.Table:
    return _dated(PubsubMessage.pb()(data=payload, attributes=dict(reading.attributes)), reading)


def _dated(message: Any, reading: SampleReading) -> pa.Table:
    at = reading.published or (None if message.HasField("publish_time") else reading.now)
    if at is not None:
        message.publish_time.FromDatetime(at)
    return table_of([message])


UNDECIDED, MALFORMED = "UNDECIDED", "MALFORMED"
"""Reasons that are shown for a sample that cannot be judged now, and for one that cannot be read as a message."""


@dataclass(frozen=True, slots=True)
class SampleVerdict:
    """The verdict on a sample: a heartbeat with its compared fields, or the reason why it is not one.

    A field is None if it is absent or null, or if its value does not have the configured type. In the last case,
    `of_another_kind` contains the field's name. If a message holds several heartbeats, the `sample` of each one ends
    with `#` and the number of the element.
    """

    sample: str
    published: datetime | None
    stream_id: str | None = None
    event_time: datetime | None = None
    publisher_id: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    of_another_kind: Sequence[str] = ()
    reason: str | None = None
    detail: str | None = None

    @property
    def is_heartbeat(self) -> bool:
        return self.reason is None

    @property
    def verdict(self) -> str:
        return {None: "heartbeat", UNDECIDED: "undecided"}.get(self.reason, "rejected")


@dataclass(frozen=True, slots=True)
class Trial:
    samples: int
    verdicts: Sequence[SampleVerdict]

    @property
    def heartbeats(self) -> Sequence[SampleVerdict]:
        return [verdict for verdict in self.verdicts if verdict.is_heartbeat]

    @property
    def rejected(self) -> Counter[str]:
        """Number of rejected and MALFORMED samples, by reason."""
        return Counter(verdict.reason for verdict in self.verdicts if verdict.reason and verdict.reason != UNDECIDED)

    @property
    def undecided(self) -> int:
        """Number of samples that cannot be judged now."""
        return sum(verdict.reason == UNDECIDED for verdict in self.verdicts)

    @property
    def absent(self) -> Sequence[str]:
        """Compared fields that are absent or null in every heartbeat. Empty if there is no heartbeat."""
        return [name for name in self._null if not any(name in one.of_another_kind for one in self.heartbeats)]

    @property
    def of_another_kind(self) -> Sequence[str]:
        """Compared fields that are null in every heartbeat, although some heartbeat has a value of another type."""
        return [name for name in self._null if any(name in one.of_another_kind for one in self.heartbeats)]

    @property
    def _null(self) -> Sequence[str]:
        names = dict.fromkeys(name for verdict in self.heartbeats for name in verdict.fields)
        return [name for name in names if all(verdict.fields[name] is None for verdict in self.heartbeats)]


def try_samples(samples: Sequence[Sample], reader: HeartbeatReader, now: datetime) -> Trial:
    """Judge each sample separately, with the function that landing uses."""
    return Trial(len(samples), [verdict for sample in samples for verdict in _verdicts(sample, reader, now)])


def _verdicts(sample: Sample, reader: HeartbeatReader, now: datetime) -> Iterator[SampleVerdict]:
    if isinstance(sample.message, str):
        yield SampleVerdict(sample=sample.name, published=None, reason=MALFORMED, detail=sample.message)
        return
    messages = Messages(sample.message)
    published, message_id = from_us(int(messages.published_us[0])), sample.message["message_id"][0].as_py()
    for judged in judged_rows(messages, reader, Asking(to_us(now)), None):
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
