"""Sample messages from files: bare payloads, records of Avro, or messages as `gcloud pubsub subscriptions pull` prints
them.

A file is taken as messages only if all of it has that form. Everything else is payload, which the contract judges.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
from google.protobuf.json_format import ParseDict, ParseError
from google.pubsub_v1 import PubsubMessage

from tidemark.pipeline.contract.payloads.formats import CONTAINER
from tidemark.pipeline.contract.payloads.rejections import Unreadable
from tidemark.pipeline.errors import SampleUnusable
from tidemark.pipeline.pubsub.received import table_of

MOST_SAMPLES = 10_000
"""Messages of one trial, and files of a folder: a trial is a look, and each message is judged by itself."""

MOST_BYTES = 64 << 20
"""Bytes of all files together: they are held in memory. Pub/Sub takes messages of 10 MB."""

MESSAGE_KEYS = frozenset(
    ("data", "attributes", "messageId", "message_id", "publishTime", "publish_time", "orderingKey", "ordering_key")
)
ENVELOPE_KEYS = frozenset(("ackId", "message", "deliveryAttempt", "subscription"))
"""What surrounds the `message` that was pulled or pushed."""

TELLING_KEYS = frozenset(("messageId", "message_id", "publishTime", "publish_time", "attributes"))
"""A message has one of them: an object with `data` alone may be a payload."""

BASE64 = re.compile(r"[A-Za-z0-9+/_-]*={0,2}")


@dataclass(frozen=True, slots=True)
class Sample:
    """A message, in the columns of MESSAGE, and where it is from: a file's name and line, or the message's id."""

    name: str
    message: pa.Table


@dataclass(frozen=True, slots=True)
class Reading:
    """How samples are read. Bare payloads get the `attributes`. A message has the publish time `published`, else its
    own, else `now`. With `has_lines` a file may have one payload to a line. With `has_records` it may be an Avro object
    container file, each of whose records is a payload."""

    now: datetime
    attributes: Mapping[str, str]
    published: datetime | None
    has_lines: bool
    has_records: bool = False


def read_samples(paths: Sequence[Path], reading: Reading) -> list[Sample]:
    """The messages of files and folders, in order. A folder gives its files by name, without those whose name begins
    with a dot. Raises SampleUnusable."""
    found: list[Sample] = []
    left = MOST_BYTES
    for path in _files_of(paths):
        try:
            with path.open("rb") as opened:
                content = opened.read(left + 1)
        except OSError as error:
            raise SampleUnusable(
                f"{path} cannot be read: {error.strerror or error}; name a file or a folder"
            ) from error
        left -= len(content)
        if left < 0:
            raise SampleUnusable(
                f"with {path} the samples have more than {MOST_BYTES >> 20} MiB; name fewer or smaller"
            )
        for sample in _of_file(path, content, reading):
            if len(found) == MOST_SAMPLES:
                raise SampleUnusable(f"with {path} there are more than {MOST_SAMPLES} samples; name fewer")
            found.append(sample)
    if not found:
        raise SampleUnusable(f"there is no message in {', '.join(map(str, paths))}")
    return found


def _files_of(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        try:
            inside = sorted(one for one in path.iterdir() if one.is_file() and not one.name.startswith("."))
        except OSError as error:
            raise SampleUnusable(f"{path} cannot be listed: {error.strerror or error}") from error
        if len(inside) > MOST_SAMPLES:
            raise SampleUnusable(f"{path} has {len(inside)} files, and a trial takes {MOST_SAMPLES}; name some of them")
        yield from inside


def _of_file(path: Path, content: bytes, reading: Reading) -> Iterator[Sample]:
    """A file's messages: the whole is one payload, a message, or a list of messages; or each line or record is one."""
    if reading.has_records and content.startswith(CONTAINER):
        yield from _records(path, content, reading)
        return
    whole = _parsed(content)
    if whole is not None:
        messages = _messages_in(whole)
        if messages is None:
            yield Sample(path.name, _bare(content, reading))
            return
        for number, message in enumerate(messages, 1):
            yield Sample(f"{path.name}#{number}", _message(message, f"message {number} of {path}", reading))
        return
    lines = [(number, line) for number, line in enumerate(content.split(b"\n"), 1) if line.strip()]
    parsed = [_parsed(line) for _, line in lines[: MOST_SAMPLES + 1]]
    are_messages = bool(lines) and all(_messages_in(one) is not None for one in parsed)
    if not are_messages and not (reading.has_lines and len(lines) > 1 and isinstance(parsed[0], dict | list)):
        yield Sample(path.name, _bare(content, reading))
        return
    for (number, line), one in zip(lines, parsed, strict=False):
        name = f"{path.name}:{number}"
        if not are_messages:
            yield Sample(name, _bare(line, reading))
        for message in (_messages_in(one) or ()) if are_messages else ():
            yield Sample(name, _message(message, f"line {number} of {path}", reading))


def _records(path: Path, content: bytes, reading: Reading) -> Iterator[Sample]:
    from tidemark.pipeline.contract.payloads.avro import records_of  # loads what reads Avro

    try:
        for number, record in enumerate(records_of(content, path.name), 1):
            yield Sample(f"{path.name}#{number}", _bare(record, reading))
    except Unreadable as error:
        raise SampleUnusable(f"{path} begins as an Avro object container file does, and is none: {error}") from error


def _parsed(content: bytes) -> Any:
    """The content as JSON; None if it is not."""
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        return None


def _messages_in(value: Any) -> list[dict[str, Any]] | None:
    """The messages of a JSON value in one of the forms in which Google's API and its tools print them; None if it is
    something else."""
    if isinstance(value, dict) and value.keys() == {"receivedMessages"}:
        value = value["receivedMessages"]
    found = [_message_in(one) for one in (value if isinstance(value, list) else [value])]
    messages = [message for message in found if message is not None]
    return messages if messages and len(messages) == len(found) else None


def _message_in(value: Any) -> dict[str, Any] | None:
    """A message alone, or in the envelope of one that was pulled or pushed."""
    if not isinstance(value, dict):
        return None
    inner = value.get("message")
    if isinstance(inner, dict) and value.keys() <= ENVELOPE_KEYS:
        return inner if inner.keys() <= MESSAGE_KEYS else None
    return value if value.keys() <= MESSAGE_KEYS and value.keys() & TELLING_KEYS else None


def _message(fields: dict[str, Any], where: str, reading: Reading) -> pa.Table:
    data = fields.get("data", "")
    if not isinstance(data, str) or not BASE64.fullmatch(data):
        raise SampleUnusable(f"{where}: its data is not base64, as Pub/Sub's messages have it in JSON")
    # A pushed message has some fields under both names.
    twice = [name for name in ("message_id", "publish_time") if name in fields and _camel(name) in fields]
    try:
        message = ParseDict({key: value for key, value in fields.items() if key not in twice}, PubsubMessage.pb()())
    except (ParseError, ValueError) as error:
        raise SampleUnusable(f"{where} is not a Pub/Sub message: {error}") from error
    return _dated(message, reading)


def _camel(name: str) -> str:
    first, second = name.split("_")
    return first + second.capitalize()


def _bare(payload: bytes, reading: Reading) -> pa.Table:
    return _dated(PubsubMessage.pb()(data=payload, attributes=dict(reading.attributes)), reading)


def _dated(message: Any, reading: Reading) -> pa.Table:
    at = reading.published or (None if message.HasField("publish_time") else reading.now)
    if at is not None:
        message.publish_time.FromDatetime(at)
    return table_of([message])
