"""Landing and tracking agree on messages whose values are not in a JSON payload alone."""

import gzip
import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from google.pubsub_v1 import PubsubMessage

from tests.contract.payloads.schemas import AVRO, BEAT, avro
from tests.ingest.judged import LATER, Judged, counted, histogram_of, judged
from tidemark.pipeline.contract.heartbeat import HeartbeatReader
from tidemark.pipeline.contract.messages import MESSAGE, Messages
from tidemark.pipeline.ingest.copies import RememberedCopies
from tidemark.pipeline.ingest.rows import judged_rows
from tidemark.pipeline.settings_message import MessageSettings

FIRST, NOW = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 11, 21, 5, 20, 10, tzinfo=UTC)
AT = "2026-11-21T05:20:00Z"
EVENTS = MessageSettings(
    envelope="cloudevents",
    event_time="attribute:ce-time",
    stream_id="attribute:ce-source",
    publisher_id="attribute:ce-id",
    fields={"temp": "number"},
)
CONTEXT = {"specversion": "1.0", "id": "e1", "source": "/rack", "type": "beat", "time": AT}
BARE = MessageSettings(
    payload="none",
    fields={
        "temp": {"path": "attribute:temp", "kind": "number"},
        "ok": {"path": "attribute:ok", "kind": "boolean"},
        "mode": {"path": "attribute:mode", "kind": "text"},
        "spec": {"path": "attribute:spec", "kind": "json"},
    },
)


def message(data: bytes = b"", number: int = 0, **attributes: str) -> Any:
    named = {name.replace("__", "-"): value for name, value in attributes.items()}
    return PubsubMessage(data=data, attributes=named, message_id=f"m{number}", publish_time=NOW)._pb


def reader(settings: MessageSettings) -> HeartbeatReader:
    return HeartbeatReader(settings.contract_from(FIRST))


def landed(settings: MessageSettings, *messages: Any) -> Judged:
    return judged(messages, reader(settings), None, NOW)


def test_an_event_is_landed_and_tracked_alike_in_both_modes() -> None:
    in_attributes = {f"ce__{name}": value for name, value in CONTEXT.items()}
    binary = message(b'{"temp": 21.5}', 1, **in_attributes)
    whole = json.dumps({**CONTEXT, "data": {"temp": 21.5}}).encode()
    structured = message(whole, 2, content__type="application/cloudevents+json")
    batch = landed(EVENTS, binary, structured)
    columns = ("stream_id", "event_time", "publisher_id", "temp")
    rows = batch.heartbeats.select(columns).to_pylist()
    assert (
        rows[0]
        == rows[1]
        == {
            "stream_id": "/rack",
            "event_time": NOW - timedelta(seconds=10),
            "publisher_id": "e1",
            "temp": 21.5,
        }
    )
    assert dict(batch.heartbeats["attributes"].to_pylist()[1]) == {"content-type": "application/cloudevents+json"}
    assert batch.heartbeats["payload"].to_pylist() == [binary.data, whole]
    assert histogram_of([binary], reader(EVENTS)) == histogram_of([structured], reader(EVENTS))
    copies = counted([binary, structured], reader(EVENTS), RememberedCopies(timedelta(minutes=1)))
    assert len(set(copies.keys.tolist())) == 2  # two payloads are two contents, however alike they are


def test_compared_fields_may_be_attributes_of_messages_without_a_payload() -> None:
    beat = {"stream_id": "s", "event_time": AT, "temp": "-2.5e1", "ok": "true", "mode": "IDLE", "spec": '{"b":1,"a":2}'}
    batch = landed(BARE, message(number=1, **beat), message(number=2, stream_id="s", event_time=AT))
    assert batch.heartbeats.select(["temp", "ok", "mode", "spec"]).to_pylist() == [
        {"temp": -25.0, "ok": True, "mode": "IDLE", "spec": '{"a":2,"b":1}'},
        {"temp": None, "ok": None, "mode": None, "spec": None},
    ]
    assert batch.of_another_kind == Counter()


def test_avro_in_a_file_is_landed_tracked_and_judged_again(tmp_path: Path) -> None:
    (tmp_path / "beat.avsc").write_text(json.dumps(AVRO))
    settings = MessageSettings(
        payload="avro",
        schema=str(tmp_path / "beat.avsc"),
        event_time="payload:at",
        stream_id="payload:device",
        fields={"temp": "number", "price": "number", "mode": "text"},
    )
    good = message(avro(AVRO, BEAT), 1)
    bad = message(avro(AVRO, BEAT)[:-3], 2)
    zipped = message(gzip.compress(avro(AVRO, BEAT)), 3, content__encoding="gzip")
    batch = landed(settings, good, bad, zipped)
    assert (
        batch.heartbeats.select(["stream_id", "event_time", "temp", "price", "mode"]).to_pylist()
        == [{"stream_id": "d1", "event_time": BEAT["at"], "temp": 21.5, "price": 12.34, "mode": "BUSY"}] * 2
    )
    assert batch.rejected["reason"].to_pylist() == ["UNREADABLE_PAYLOAD"]
    assert batch.rejected["payload"].to_pylist() == [bad.data]
    rows = Messages(batch.rejected.select(MESSAGE.names).cast(MESSAGE))
    (again,) = judged_rows(rows, reader(settings), LATER, None, NOW)
    assert (len(again.heartbeats), len(again.rejected)) == (0, 1)
    assert histogram_of([good, bad, zipped], reader(settings)).oldest_event_us is not None
