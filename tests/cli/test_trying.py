"""`tidemark try`: what it prints of samples that anybody may have written, and its exit code."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread

import pytest
from google.pubsub_v1 import PublisherClient, SubscriberClient

from tests.cli.test_cli import Place, place_in
from tests.contract.payloads.schemas import container
from tidemark.pipeline.cli.start.trying import NOT_ALL_PASS
from tidemark.pipeline.clock import SystemClock, iso

CONFIG = '[lake]\nuri = "file:{folder}/lake"\n[message.fields]\ntemperature = "number"\nstatus = "text"\n'
HOSTILE = "\x1b]0;owned\x07[bold]x[/bold]"
ATTRIBUTES = ("--attribute", "stream_id=a=b", "--attribute", "event_time=2026-11-21T05:22:10Z")
PUBLISHED = ("--published", "2026-11-21T05:22:11Z")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    (tmp_path / "tidemark.toml").write_text(CONFIG.format(folder=tmp_path))
    return Place(tmp_path)


def write(place: Place, *payloads: object) -> str:
    path = place.folder / "beats.ndjson"
    path.write_text("".join(json.dumps(payload) + "\n" for payload in payloads))
    return str(path)


def test_samples_that_all_pass_end_with_zero_and_leave_nothing_behind(place: Place) -> None:
    before = set(place.folder.iterdir())
    file = write(place, {"temperature": 1.5, "status": HOSTILE}, {"temperature": None})
    said = place.tidemark("try", file, *ATTRIBUTES, *PUBLISHED)
    assert (said.code, said.err) == (0, "")
    lines = said.out.splitlines()
    assert lines[1].split()[:4] == ["beats.ndjson:1", "a=b", "2026-11-21T05:22:10Z", "1.5"]
    assert "\\x1b]0;owned\\x07[bold]x[/bold]" in lines[1]
    assert lines[2].split()[-2:] == ["null", "null"]
    assert lines[-1] == "2 samples: 2 heartbeats, 0 rejected"
    assert set(place.folder.iterdir()) - before == {place.folder / "beats.ndjson"}


def test_a_rejected_sample_ends_with_its_own_exit_code_and_says_why(place: Place) -> None:
    said = place.tidemark("try", write(place, {"temperature": 1, "status": "ok"}), "--attribute", "stream_id=s")
    assert said.code == NOT_ALL_PASS
    assert said.out.splitlines()[0].startswith("NO_EVENT_TIME  beats.ndjson: attribute:event_time is absent")


def test_a_sample_of_the_topic_is_tried_like_a_file(
    tmp_path: Path, emulator_host: str, publisher: PublisherClient, subscriber: SubscriberClient
) -> None:
    place = place_in(tmp_path, emulator_host)
    pubsub = place.settings.pubsub
    publisher.create_topic(name=pubsub.topic_path)
    with publishing(publisher, pubsub.topic_path, {"stream_id": "s", "event_time": iso(SystemClock().now())}):
        said = place.tidemark("try", "--sample", "2", "--json")
    facts = json.loads(said.out)
    assert (said.code, facts["samples"], facts["heartbeats"]) == (0, 2, 2)
    said = place.tidemark("try", "--sample", "1", "--timeout", "100ms")
    assert said.code == NOT_ALL_PASS
    assert "only messages published from now on count" in said.out
    assert said.out.splitlines()[-1] == "0 samples: 0 heartbeats, 0 rejected"
    assert [found.name for found in subscriber.list_subscriptions(project=f"projects/{pubsub.project}")] == []
    assert place.tidemark("try", "--timeout", "1s").code == 2


@contextmanager
def publishing(client: PublisherClient, topic: str, attributes: dict[str, str]) -> Iterator[None]:
    """Publishes such a message again and again: a sample sees only what comes after it has begun."""
    done = Event()

    def publish() -> None:
        while not done.wait(0.05):
            client.publish(topic=topic, messages=[{"data": b"{}", "attributes": attributes}])

    publisher = Thread(target=publish)
    publisher.start()
    try:
        yield
    finally:
        done.set()
        publisher.join()


AVRO_CONFIG = """
[message]
payload = "avro"
schema = "beat.avsc"
event_time = "payload:at"
stream_id = "payload:device"
"""
BEAT = {
    "type": "record",
    "name": "Beat",
    "fields": [
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "device", "type": "string"},
    ],
}


@pytest.mark.parametrize(
    ("schema", "says", "counts"),
    [
        ("other", "its schema 'projects/p-1/schemas/other' is not accepted", "1 rejected"),
        ("beat", "UNDECIDED beat: Pub/Sub did not answer", "0 rejected, 1 undecided"),
    ],
)
def test_a_sample_is_rejected_for_its_schema_and_undecided_without_an_answer_about_it(
    tmp_path: Path, schema: str, says: str, counts: str
) -> None:
    config = AVRO_CONFIG.replace("beat.avsc", "projects/p-1/schemas/beat")
    (tmp_path / "tidemark.toml").write_text(f'{config}[pubsub]\nemulator_host = "127.0.0.1:9"\n')
    (tmp_path / "beat").write_bytes(b"")
    names = ("--attribute", f"googclient_schemaname=projects/p-1/schemas/{schema}")
    revision = ("--attribute", "googclient_schemarevisionid=1a2b3c4d")
    said = Place(tmp_path).tidemark("try", str(tmp_path / "beat"), *names, *revision)
    assert says in " ".join(said.out.split())
    assert "ticks" not in said.out
    assert (said.code, said.out.splitlines()[-1]) == (NOT_ALL_PASS, f"1 sample: 0 heartbeats, {counts}")


def test_each_record_of_an_avro_container_file_is_a_sample(tmp_path: Path) -> None:
    (tmp_path / "tidemark.toml").write_text(AVRO_CONFIG)
    (tmp_path / "beat.avsc").write_text(json.dumps(BEAT))
    place, file = Place(tmp_path), tmp_path / "beats.avro"
    at = datetime(2026, 11, 21, 5, 22, 10, tzinfo=UTC)
    file.write_bytes(container(BEAT, *({"at": at, "device": device} for device in ("a", "b")), codec="deflate"))
    said = place.tidemark("try", str(file), *PUBLISHED, "--json")
    facts = json.loads(said.out)
    assert (said.code, facts["heartbeats"]) == (0, 2)
    assert [(one["sample"], one["stream_id"]) for one in facts["verdicts"]] == [
        ("beats.avro#1", "a"),
        ("beats.avro#2", "b"),
    ]
    file.write_bytes(file.read_bytes()[:-20])
    said = place.tidemark("try", str(file), *PUBLISHED)
    assert said.code == NOT_ALL_PASS
    assert "MALFORMED  beats.avro: it starts like an Avro object container file, but is not a valid one" in said.out
