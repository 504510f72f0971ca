"""Landing and tracking agree on messages whose values are not in a JSON payload alone."""

from collections import Counter
from datetime import UTC, datetime
from typing import Any

from google.pubsub_v1 import PubsubMessage

from tests.ingest.judged import Judged, judged
from tidemark.pipeline.contract.heartbeat import HeartbeatReader
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
    return judged(messages, reader(settings), None)


def test_compared_fields_may_be_attributes_of_messages_without_a_payload() -> None:
    beat = {"stream_id": "s", "event_time": AT, "temp": "-2.5e1", "ok": "true", "mode": "IDLE", "spec": '{"b":1,"a":2}'}
    batch = landed(BARE, message(number=1, **beat), message(number=2, stream_id="s", event_time=AT))
    assert batch.heartbeats.select(["temp", "ok", "mode", "spec"]).to_pylist() == [
        {"temp": -25.0, "ok": True, "mode": "IDLE", "spec": '{"a":2,"b":1}'},
        {"temp": None, "ok": None, "mode": None, "spec": None},
    ]
    assert batch.of_another_kind == Counter()
