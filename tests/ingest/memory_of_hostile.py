"""A process of its own that judges hostile messages of one kind, and prints by how much its memory has grown, in MB."""

import gzip
import resource
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from google.protobuf import descriptor_pb2

from tests.clock import ManualClock
from tests.ingest.judged import messages_of
from tests.ingest.law import OF_THE_PAYLOAD, message
from tests.watermark.builders import at
from tidemark.pipeline.clock import to_us
from tidemark.pipeline.contract.heartbeat import HeartbeatReader
from tidemark.pipeline.contract.payloads.schemas import Encoding, PayloadFormat
from tidemark.pipeline.ingest.take import Landing, take
from tidemark.pipeline.lake.tables.new_files import NewFile
from tidemark.pipeline.pubsub.subscription import PulledBatch

BEGINS = b'{"at":%d,"device":"a","many":[' % (to_us(at(0)) // 1000)
NESTED = "nested.proto"


def a_value_too_many() -> list[bytes]:
    """Valid JSON of 13 million empty objects, in 39 KB of gzip each."""
    return [gzip.compress(BEGINS + b"{}," * 13_000_000 + b"0]}", 9)] * 2


def many_values() -> list[bytes]:
    """JSON that is within every bound, and 24 times as large as objects."""
    return [BEGINS + b"{}," * 330_000 + b"0]}"] * 45


def submessages() -> list[bytes]:
    """Protobuf of five million empty submessages."""
    return [b"\x1a\x00" * 5_000_000]


KINDS: Mapping[str, Callable[[], list[bytes]]] = {
    "a value too many": a_value_too_many,
    "many values": many_values,
    "submessages": submessages,
}


class NoFiles:
    """Files that are gone at once."""

    def write(self, _: object) -> list[NewFile]:
        return []


class Given:
    """A subscription that is given nothing back."""

    path = "given"

    def give_back(self, *_: object) -> None: ...


def nested_schema(folder: Path) -> Path:
    """A compiled message type that holds itself."""
    file = descriptor_pb2.FileDescriptorProto(name=NESTED, syntax="proto3")
    made = file.message_type.add(name="Beat")
    for number, (name, kind) in enumerate({"at": 3, "device": 9}.items(), start=1):
        made.field.add(name=name, number=number, type=kind, label=1)
    made.field.add(name="many", number=3, type=11, type_name=".Beat", label=3)
    path = folder / "beat.binpb"
    path.write_bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())
    return path


def peak_mb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def main(kind: str, folder: Path) -> None:
    """Land them in one batch."""
    written = PayloadFormat()
    if kind == "submessages":
        written = PayloadFormat(Encoding.PROTOBUF, schema=str(nested_schema(folder)))
    messages = messages_of([message(number, data, {}, 1.0) for number, data in enumerate(KINDS[kind]())])
    clock, files = ManualClock(at(2)), NoFiles()
    keeper = Landing(files, files, HeartbeatReader(replace(OF_THE_PAYLOAD, payload=written)), lambda: None, clock)
    before = peak_mb()
    batch = PulledBatch(messages, [str(number) for number in range(len(messages))], 1)
    taken = take([batch], Given(), keeper, clock.monotonic() + timedelta(hours=1).total_seconds())  # type: ignore[arg-type]
    print(peak_mb() - before, taken.ingested.heartbeats, taken.ingested.rejected.total())


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
