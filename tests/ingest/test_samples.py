"""Which files are messages and which are payloads, and what a trial makes of them."""

import base64
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.pubsub_v1 import PubsubMessage

from tidemark.pipeline.clock import iso
from tidemark.pipeline.contract.heartbeat import HeartbeatReader
from tidemark.pipeline.contract.payloads.schemas import Encoding
from tidemark.pipeline.errors import SampleUnusable
from tidemark.pipeline.ingest import samples
from tidemark.pipeline.ingest.samples import Sample, SampleReading, Trial, read_samples, try_samples
from tidemark.pipeline.pubsub.pulls import table_of
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_message import MessageSettings

NOW = datetime(2026, 11, 21, 5, 30, tzinfo=UTC)
READING = SampleReading(now=NOW, attributes={"stream_id": "bare"}, published=None, encoding=Encoding.JSON)
PULLED = {
    "data": base64.b64encode(b'{"temperature": 2}').decode(),
    "attributes": {"stream_id": "pulled", "event_time": "2026-11-21T05:22:10Z"},
    "messageId": "17",
    "publishTime": "2026-11-21T05:22:11.500Z",
    "orderingKey": "k",
}
PUSHED = {**PULLED, "message_id": "17", "publish_time": "2026-11-21T05:22:11.500Z"}


def read(folder: Path, content: bytes | object, **others: Any) -> list[Sample]:
    path = folder / "sample"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return read_samples(
        [path], SampleReading(**{**{name: getattr(READING, name) for name in READING.__slots__}, **others})
    )


def row_of(sample: Sample) -> dict[str, Any]:
    (row,) = sample.message.to_pylist()
    return dict(row)


@pytest.mark.parametrize(
    "form",
    [
        PULLED,
        [{"ackId": "a", "message": PULLED}],
        [{"ackId": "a", "ackStatus": "SUCCESS", "message": PULLED}],
        {"receivedMessages": [{"ackId": "a", "message": PULLED}]},
        {"message": PUSHED, "subscription": "projects/p/subscriptions/s", "deliveryAttempt": 5},
    ],
)
def test_each_form_in_which_google_prints_a_message_is_that_message(tmp_path: Path, form: object) -> None:
    for content in (form, json.dumps(form, indent=2).encode()):
        (sample,) = read(tmp_path, content)
        row = row_of(sample)
        assert (row["payload"], row["message_id"], row["ordering_key"]) == (b'{"temperature": 2}', "17", "k")
        assert dict(row["attributes"]) == PULLED["attributes"], "those of bare payloads are not added"
        assert iso(row["publish_time"]) == "2026-11-21T05:22:11.500Z"


def test_everything_else_is_a_payload_byte_for_byte(tmp_path: Path) -> None:
    for payload in (b'{"data": "aGk="}', b'{"message": "hello"}', b'[{"temperature": 2}]', b"7", b"\x00\xff\n\xfe"):
        (sample,) = read(tmp_path, payload)
        row = row_of(sample)
        assert (row["payload"], dict(row["attributes"])) == (payload, {"stream_id": "bare"})
        assert row["publish_time"] == NOW


def test_lines_are_payloads_or_messages_and_one_payload_where_payloads_are_not_json(tmp_path: Path) -> None:
    lines = b'{"temperature": 1}\n\nnot JSON\n{"temperature": 2}\n'
    found = read(tmp_path, lines)
    assert [(one.name, row_of(one)["payload"]) for one in found] == [
        ("sample:1", b'{"temperature": 1}'),
        ("sample:3", b"not JSON"),
        ("sample:4", b'{"temperature": 2}'),
    ]
    assert [row_of(one)["payload"] for one in read(tmp_path, lines, encoding=Encoding.BYTES)] == [lines]
    both = "\n".join(json.dumps(PULLED) for _ in range(2)).encode()
    assert [row_of(one)["message_id"] for one in read(tmp_path, both, encoding=Encoding.BYTES)] == ["17", "17"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({**PULLED, "data": "!!"}, "its data is not base64"),
        ({**PULLED, "publishTime": "yesterday"}, "is not a Pub/Sub message: Failed to parse publishTime"),
        ({**PULLED, "attributes": {"n": 1}}, "is not a Pub/Sub message: Failed to parse attributes"),
    ],
)
def test_a_message_that_pubsub_would_not_print_is_named(tmp_path: Path, content: object, said: str) -> None:
    trial = try_samples(read(tmp_path, [content, PULLED]), HeartbeatReader(Settings().contract), NOW)
    assert [(one.sample, one.reason) for one in trial.verdicts] == [("sample#1", "MALFORMED"), ("sample#2", None)]
    assert said in str(trial.verdicts[0].detail)


def test_files_are_bounded_in_number_and_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SampleUnusable, match=r"nothing-here cannot be read: No such file"):
        read_samples([tmp_path / "nothing-here"], READING)
    with pytest.raises(SampleUnusable, match="no message in"):
        read_samples([tmp_path], READING)
    for empty in ([], {"receivedMessages": []}):
        with pytest.raises(SampleUnusable, match="no message in"):
            read(tmp_path, empty)
    monkeypatch.setattr(samples, "MOST_SAMPLES", 2)
    with pytest.raises(SampleUnusable, match="more than 2 samples"):
        read(tmp_path, b"{}\n{}\n{}")
    monkeypatch.setattr(samples, "MOST_BYTES", 3)
    with pytest.raises(SampleUnusable, match="more than 0 MiB"):
        read(tmp_path, b"{}\n{}")


def tried(*payloads: bytes, **more: Any) -> Trial:
    fields = {"temperature": "number", "status": {"path": "metrics.status", "kind": "text"}}
    contract = Settings(message=MessageSettings(event_time="publish_time", fields=fields, **more)).contract  # type: ignore[arg-type]
    bare = [(number, payload) for number, payload in enumerate(payloads)]
    found = [Sample(str(number), message_of(payload)) for number, payload in bare]
    return try_samples(found, HeartbeatReader(contract), NOW)


def message_of(payload: bytes) -> pa.Table:
    message = PubsubMessage.pb()(data=payload, attributes={"stream_id": "s"})
    message.publish_time.FromDatetime(NOW)
    return table_of([message])


def test_a_field_is_absent_only_if_no_heartbeat_has_it() -> None:
    trial = tried(b'{"temperature": null}', b'{"status": "ok"}', b"[]")
    assert (trial.samples, len(trial.heartbeats), trial.rejected) == (3, 2, {"UNREADABLE_PAYLOAD": 1})
    assert (trial.absent, trial.of_another_kind) == (["temperature", "status"], [])
    assert tried(b'{"temperature": 1}', b'{"metrics": {"status": "ok"}}').absent == []
    assert tried(b"[]").absent == [], "without a heartbeat nothing is known"
