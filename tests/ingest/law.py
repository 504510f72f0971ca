"""The law of verdicts, played: hostile and honest messages, cut and ordered at random, judged at random moments."""

import gzip
import io
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from google.pubsub_v1 import PubsubMessage

from tests.clock import ManualClock
from tests.ingest.fakes import CONTRACT
from tests.ingest.judged import messages_of
from tests.watermark.builders import at
from tidemark.pipeline.clock import to_us
from tidemark.pipeline.contract import places as elements
from tidemark.pipeline.contract.heartbeat import PATIENCE, HeartbeatReader, MessageContract
from tidemark.pipeline.contract.payloads import avro as avro_payloads
from tidemark.pipeline.contract.payloads import decoder, parsing
from tidemark.pipeline.contract.payloads.rejections import Unreadable
from tidemark.pipeline.contract.payloads.schemas import SCHEMA_REVISION, Definition, Encoding, PayloadFormat
from tidemark.pipeline.contract.places import Place
from tidemark.pipeline.ingest.counting import RememberedCopies
from tidemark.pipeline.ingest.outcome import Side, Taken
from tidemark.pipeline.ingest.take import Landing, Tracking, take
from tidemark.pipeline.lake.tables.new_files import NewFile
from tidemark.pipeline.pubsub.subscription import PulledBatch
from tidemark.pipeline.watermark.histogram import BUCKET_US, Histogram

SMALL = {
    (parsing, "LARGEST"): 20_000,
    (decoder, "PART_BYTES"): 6_000,
    (parsing, "MOST_VALUES"): 400,
    (avro_payloads, "MOST_VALUES"): 400,
    (elements, "MOST_ELEMENTS"): 50,
    (elements, "ROWS_AT_ONCE"): 60,
}
"""Bounds small enough for a message to reach them in microseconds, each in its module."""

OF_THE_PAYLOAD = replace(
    CONTRACT,
    event_time=Place.of("payload:at"),
    stream_id=(Place.of("payload:device"),),
    publisher_id=Place.of("payload:id"),
)
OF_ELEMENTS = replace(
    OF_THE_PAYLOAD,
    event_time=Place.of("each:at"),
    stream_id=(Place.of("payload:device"),),
    publisher_id=Place.of("each:id"),
    each=Place.of("payload:beats[]"),
)
BY_REVISION = replace(OF_THE_PAYLOAD, payload=PayloadFormat(Encoding.AVRO))
OF_ATTRIBUTES = replace(
    OF_THE_PAYLOAD,
    event_time=Place.of("attribute:at"),
    stream_id=(Place.of("attribute:device"),),
    publisher_id=Place.of("attribute:id"),
)
CONTRACTS = {"payload": OF_THE_PAYLOAD, "elements": OF_ELEMENTS, "schema": BY_REVISION, "attributes": OF_ATTRIBUTES}

SCHEMA = {
    "type": "record",
    "name": "Beat",
    "fields": [
        {"name": "at", "type": "long"},
        {"name": "device", "type": "string"},
        {"name": "id", "type": ["null", "string"]},
        {"name": "loads", "type": {"type": "array", "items": "boolean"}},
    ],
}
NEVER, REFUSED = "never", "refused"
"""A revision that does not come to exist, and one of a schema that is not accepted."""

OVER_AFTER = 200
"""Seconds after which all is decided: the last revision, and the longest patience, and the longest wait between two
looks."""


@dataclass
class Appearing:
    """Schemas whose revisions appear at moments of their own."""

    appears_us: Mapping[str, int]

    def name(self, attributes: Mapping[str, str]) -> str:
        revision = attributes.get(SCHEMA_REVISION, REFUSED)
        if revision == REFUSED:
            raise Unreadable("its schema is not accepted")
        return revision

    def find(self, name: str, at_us: int) -> tuple[Definition | None, int]:
        there = self.appears_us.get(name, at_us + 1) <= at_us
        return (Definition(name, Encoding.AVRO, json.dumps(SCHEMA).encode()) if there else None), at_us


@dataclass
class Held:
    """A table's files, in memory."""

    rows: list[dict[str, Any]] = field(default_factory=list)

    def write(self, rows: pa.Table) -> list[NewFile]:
        self.rows += rows.to_pylist()
        return []


class Queue:
    """A subscription that delivers each message again until it is taken, in any order, in batches of any size."""

    path = "queue"

    def __init__(self, messages: Sequence[Any], rng: random.Random) -> None:
        self._rng = rng
        self.left = {str(number): message for number, message in enumerate(messages)}

    def batches(self) -> Iterator[PulledBatch]:
        ids = self._rng.sample(list(self.left), self._rng.randint(1, len(self.left)))
        while ids:
            size = self._rng.choice([1, 2, 5, len(ids)])
            some, ids = ids[:size], ids[size:]
            yield PulledBatch(messages_of([self.left[one] for one in some]), some, 1)

    def give_back(self, ack_ids: Sequence[str], seconds: int = 1) -> None: ...


@dataclass(frozen=True)
class Verdicts:
    """What one side made of all messages in the end: rows that landed and rejected ones, or what tracking counts."""

    landed: Counter[tuple[Any, ...]]
    rejected: Counter[tuple[Any, ...]]
    histogram: Histogram


def judged(
    messages: Sequence[Any],
    contract: MessageContract,
    schemas: Mapping[str, int],
    side: Side,
    rng: random.Random,
    begins: float | None = None,
) -> Verdicts:
    """Take all messages from one side, in random batches, at random moments from `begins` on; by default from a random
    one on."""
    clock = ManualClock(at(rng.uniform(0, OVER_AFTER) if begins is None else begins))
    reader, queue = HeartbeatReader(contract, Appearing(schemas)), Queue(messages, rng)
    good, bad, histogram = Held(), Held(), Histogram.empty()
    while queue.left:
        if side is Side.BASE:
            taken = taken_of(Landing(good, bad, reader, lambda: None, clock), queue, clock, rng)
        else:
            taken = taken_of(Tracking(reader, RememberedCopies(), timedelta(seconds=10), clock), queue, clock, rng)
            histogram += taken.histogram
        for ack_id in taken.ack_ids:
            del queue.left[ack_id]
        clock.advance(timedelta(seconds=rng.choice([0.1, 1.0, 20.0])))
    return Verdicts(
        Counter((one["message_id"], one["stream_id"], one["publisher_id"], one["event_time"]) for one in good.rows),
        Counter((one["message_id"], one["reason"], one["detail"]) for one in bad.rows),
        histogram,
    )


def taken_of(keeper: Any, queue: Any, clock: ManualClock, rng: random.Random) -> Taken:
    """One taking, which is over at once, or after all batches."""
    return take(queue.batches(), queue, keeper, clock.monotonic() + rng.choice([0.0, 1.0]))


def message(number: int, data: bytes, attributes: Mapping[str, str], published: float) -> Any:
    return PubsubMessage(data=data, attributes=attributes, message_id=f"m{number}", publish_time=at(published))._pb


def a_payload(rng: random.Random, event: float, device: str, each: bool) -> bytes:
    """JSON of one of many kinds, honest and hostile."""
    beat = {"at": to_us(at(event)) // 1000, "id": str(rng.randint(0, 9)), "load": 1.5}
    honest: dict[str, Any] = {"device": device, **beat}
    if each:
        honest = {
            "device": device,
            "beats": [{**beat, "at": beat["at"] + one} for one in range(rng.choice([1, 3, 30]))],
        }
    kinds: list[Callable[[], bytes]] = [
        *[lambda: json.dumps(honest).encode()] * 4,
        *[lambda: gzip.compress(json.dumps(honest).encode())] * 3,
        lambda: json.dumps({**honest, "many": [{}] * rng.choice([100, 500])}).encode(),
        lambda: gzip.compress(json.dumps({**honest, "many": [0] * rng.choice([100, 390, 500])}).encode()),
        lambda: gzip.compress(json.dumps({**honest, "text": " " * rng.choice([5_000, 19_000, 30_000])}).encode()),
        lambda: gzip.compress(b"x" * 30_000),
        lambda: gzip.compress(json.dumps(honest).encode())[:-5],
        lambda: json.dumps({**honest, "beats": [{}] * 60, "device": ""}).encode(),
        lambda: b"{",
        lambda: b"",
    ]
    return rng.choice(kinds)()


def an_avro_payload(rng: random.Random, event: float, device: str) -> bytes:
    """A record, honest or hostile."""
    data = avro(event, device, rng.choice([None, "7"]), rng.choice([0, 0, 0, 300, 500, 5_000]))
    return rng.choice([*[data] * 5, data[:-1], b"\xff" * 9])


def avro(event: float, device: str, publisher_id: str | None = None, loads: int = 0) -> bytes:
    """A record of SCHEMA."""
    out = io.BytesIO()
    record = {"at": to_us(at(event)) // 1000, "device": device, "id": publisher_id, "loads": [True] * loads}
    fastavro.schemaless_writer(out, SCHEMA, record)
    return out.getvalue()


def some_messages(rng: random.Random, name: str) -> tuple[list[Any], dict[str, int]]:
    """Messages of one topic, published within a minute, and when each revision of its schema appears."""
    revisions = [f"r{number}" for number in range(3)]
    found, appears_us = [], dict[str, int]()
    patience = PATIENCE.total_seconds()
    for number in range(rng.randint(1, 12)):
        published = rng.uniform(0, 60)
        event, device = published - rng.choice([0.0, 2.0, 30.0]), rng.choice(["a", "b"])
        attributes = {}
        if name == "schema":
            revision = rng.choice([*revisions, NEVER, REFUSED])
            attributes[SCHEMA_REVISION] = revision
            latest = min(appears_us.get(revision, 1 << 62), to_us(at(published + rng.uniform(-60, patience))))
            if revision in revisions:
                appears_us[revision] = latest
            data = an_avro_payload(rng, event, device)
        else:
            if name == "attributes":
                attributes = {"at": str(to_us(at(event)) // 1000), "device": device, "id": str(rng.randint(0, 3))}
            data = a_payload(rng, event, device, name == "elements")
        found.append(message(number, data, attributes, published))
    return found, appears_us


@contextmanager
def small_bounds() -> Iterator[None]:
    """The bounds of a message and of a part, as SMALL has them."""
    with pytest.MonkeyPatch.context() as patch:
        for (module, name), value in SMALL.items():
            patch.setattr(module, name, value)
        yield


def check(seed: int, cuts: int) -> int:
    """Judge messages one by one, and in so many random cuts, from random moments on. The verdicts are the same, and
    tracking counts all that base lands. Gives how many heartbeats landed."""
    rng = random.Random(seed)
    name = rng.choice(list(CONTRACTS))
    contract = CONTRACTS[name]
    messages, schemas = some_messages(rng, name)
    alone = [[judged([one], contract, schemas, side, rng, OVER_AFTER) for one in messages] for side in Side]
    tracked, landed = alone
    of_all = Verdicts(
        sum((one.landed for one in landed), Counter()),
        sum((one.rejected for one in landed), Counter()),
        sum((one.histogram for one in tracked), Histogram.empty()),
    )
    assert len(landed) == len(messages)
    for one, of_base, of_tracking in zip(messages, landed, tracked, strict=True):
        published_us = one.publish_time.seconds * 1_000_000 + one.publish_time.nanos // 1000
        for _, _, _, event in of_base.landed:
            counted_us = min(to_us(event), published_us)
            assert is_counted(of_tracking.histogram, counted_us), f"seed {seed}: base lands what tracking rejects"
    for _ in range(cuts):
        of_base = judged(messages, contract, schemas, Side.BASE, rng)
        assert (of_base.landed, of_base.rejected) == (of_all.landed, of_all.rejected), f"seed {seed}: another verdict"
        of_tracking = judged(messages, contract, schemas, Side.TRACKING, rng)
        assert of_tracking.histogram == of_all.histogram, f"seed {seed}: tracking counts something else"
    return of_all.landed.total()


def is_counted(histogram: Histogram, counted_us: int) -> bool:
    """Whether a histogram has a cell of that time, whose least time is no later."""
    is_of_it = histogram.event_bucket == counted_us // BUCKET_US
    return bool((is_of_it & (histogram.min_event_us <= counted_us)).any())
