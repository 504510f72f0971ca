"""The topic that is told of the watermark: what a message says, and that no window is left out, whatever crashes."""

import json
import random
import runpy
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from google.api_core import exceptions as api
from google.pubsub_v1 import PubsubMessage
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures_emulator import unique_pubsub
from tests.ingest.fakes import World
from tests.lake.test_notes import Memory, state
from tests.watermark.builders import at
from tidemark.local.emulator.model import PubSubModel
from tidemark.local.emulator.server import served
from tidemark.pipeline.clock import SystemClock, iso
from tidemark.pipeline.errors import LakeUnreachable
from tidemark.pipeline.ingest.signals import SignalTopic, signals_of
from tidemark.pipeline.lake.log.notes import NAME, SENT
from tidemark.pipeline.pubsub.connection import subscriber_client
from tidemark.pipeline.pubsub.provision import provision_here
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import SignalSettings
from tidemark.pipeline.windows import Windowing

ROOT = Path(__file__).resolve().parents[2]
MINUTE = timedelta(minutes=1)
WINDOWING = Windowing(5 * MINUTE, at(0))
NOTE = SENT.name(SENT.key)


@dataclass
class Published:
    """A publisher of which some calls fail."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    fails: Exception | None = None
    bounds: list[tuple[Any, float]] = field(default_factory=list)

    def publish(self, *, request: dict[str, Any], retry: Any, timeout: float) -> None:
        self.bounds.append((retry, timeout))
        if self.fails is not None:
            raise self.fails
        self.messages += [
            PubsubMessage.to_dict(PubsubMessage(one)) | {"data": one["data"]} for one in request["messages"]
        ]

    def said(self) -> list[dict[str, Any]]:
        return [json.loads(message["data"]) for message in self.messages]


def topic_of(memory: Any, published: Any, **settings: Any) -> SignalTopic:
    """One tracker's."""
    made = SignalTopic(memory, "projects/p/topics/signal", Settings(**settings))
    made.__dict__["_client"] = published
    return made


@dataclass
class Subscriber:
    """Somebody who does what the page says: drops what is not above the last entry, and counts windows as closed."""

    entry: int = -1
    closed: set[int] = field(default_factory=set)

    def take(self, said: dict[str, Any]) -> None:
        if said["log_entry"] <= self.entry:
            return
        self.entry = said["log_entry"]
        if said["watermark"] is None:
            return
        end = WINDOWING.number_of(datetime.fromisoformat(said["watermark"]))
        if said["windows"] is None:
            self.closed |= set(range(WINDOWING.number_of(at(0)), end))
        elif said["windows"]["count"]:
            first, last = (
                WINDOWING.number_of(WINDOWING.named(said["windows"][one]).start) for one in ("first", "last")
            )
            assert last - first + 1 == said["windows"]["count"]
            self.closed |= set(range(first, last + 1))


# What a message says


def test_a_message_has_the_decision_the_windows_that_closed_and_attributes_for_filters() -> None:
    memory, published = Memory(), Published()
    told = topic_of(memory, published, dagster={"name": "orders"})
    assert told.tell(state(7, 299, 300)) is None
    assert told.tell(state(9, 905, 910)) is None
    first, second = published.said()
    assert (first["since"], first["windows"]) == (None, None)
    windows = {"first": WINDOWING.containing(at(0)).key, "last": WINDOWING.containing(at(600)).key, "count": 3}
    assert (second["since"], second["windows"], second["decided_at"]) == (iso(at(299)), windows, iso(at(910)))
    attributes = {"watermark": iso(at(905)), "reason": "ADVANCED", "log_entry": "9", "promise": "landed"}
    assert published.messages[1]["attributes"] == attributes | {"pipeline": "orders"}
    assert {name: str(second[name]) for name in attributes} == attributes
    assert {message["ordering_key"] for message in published.messages} == {"orders"}
    assert set(published.bounds) == {(None, 2.0)}, "one try, of two seconds"
    assert memory.content == published.messages[1]["data"], "the note is the message"


# No window is left out


def test_what_could_not_be_sent_is_a_sentence_and_is_in_the_next_message() -> None:
    memory, published = Memory(), Published()
    told = topic_of(memory, published)
    told.tell(state(1, 0, 10))
    published.fails = api.PermissionDenied("no")
    sentence = told.tell(state(2, 300, 310)) or ""
    assert "not sent to projects/p/topics/signal, or not recorded; a later tick sends it" in sentence
    assert "grant pubsub.topics.publish on it" in sentence
    published.fails = api.NotFound("no topic")
    assert "run `tidemark provision`" in (told.tell(state(3, 600, 610)) or "")
    published.fails = None
    assert told.tell(state(4, 900, 910)) is None
    assert published.said()[-1]["windows"]["count"] == 3


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.integers(0, 3),
            st.sampled_from(["", "restarts", "unsent", "unnoted"]),
            st.lists(st.integers(0, 2), max_size=2),
        ),
        max_size=30,
    )
)
def test_a_subscriber_knows_each_closed_window_come_what_may(turns: list[tuple[int, int, str, list[int]]]) -> None:
    """A turn: who tells, how far its fold is behind the log's end, what goes wrong, and who tells between its message
    and its note."""
    memory, published, subscriber = Memory(), Published(), Subscriber()
    trackers = [topic_of(memory, published) for _ in range(3)]

    def told(entry: int) -> Any:
        return state(entry, entry * 200, entry * 200 + 10)

    for end, (who, behind, wrong, between) in enumerate(turns):
        if wrong == "restarts":
            trackers[who] = topic_of(memory, published)

        def others(between: list[int] = between, end: int = end) -> None:
            memory.fails, published.fails = None, None
            for other in between:
                assert trackers[other].tell(told(end)) is None

        memory.before_write = others if between else lambda: None
        published.fails = api.ServiceUnavailable("down") if wrong == "unsent" else None
        memory.fails = LakeUnreachable("down") if wrong == "unnoted" else None
        trackers[who].tell(told(max(end - behind, 0)))
    memory.fails, published.fails, memory.before_write = None, None, lambda: None
    assert topic_of(memory, published).tell(told(len(turns) + 1)) is None
    for said in published.said():
        subscriber.take(said)
    whole = range(WINDOWING.number_of(at(0)), WINDOWING.number_of(at((len(turns) + 1) * 200)))
    assert subscriber.closed == set(whole)
    assert subscriber.entry == len(turns) + 1


# On a server


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    """A pipeline on tidemark's own Pub/Sub that tells a topic there."""
    with served(PubSubModel(rng=random.Random(0)), clock=SystemClock()) as address:
        signal = SignalSettings(publish_to="signal")
        yield Settings(pubsub=unique_pubsub(address), signal=signal, lake={"uri": f"file:{tmp_path}/lake"})


def test_provision_creates_the_topic_and_a_tick_tells_it_what_it_writes(settings: Settings, tmp_path: Path) -> None:
    world, topic = World(tmp_path), str(settings.signal_topic)
    world.signals = list(signals_of(settings, world.lake()))
    world.topic.publish(5)
    (problem,) = world.track().problems
    assert f"{topic} does not exist" in problem
    assert "run `tidemark provision`" in problem

    assert topic in provision_here(settings, SystemClock()).created
    assert topic in provision_here(settings, SystemClock()).found
    theirs = f"projects/{settings.pubsub.project}/subscriptions/theirs"
    with subscriber_client(*settings.pubsub.server) as subscriber:
        subscriber.create_subscription(request={"name": theirs, "topic": topic, "enable_message_ordering": True})
        world.clock.advance(20 * timedelta(seconds=1))
        tracked = world.track()
        (received,) = subscriber.pull(subscription=theirs, max_messages=100, timeout=5).received_messages
    assert tracked.problems == ()
    said, written = json.loads(received.message.data), json.loads((world.folder / NAME).read_bytes())
    assert {name: said[name] for name in written} == written
    assert said["log_entry"] == tracked.state.number
    assert dict(received.message.attributes)["log_entry"] == str(said["log_entry"])
    assert received.message.ordering_key == "tidemark"
    assert (world.folder / NOTE).read_bytes() == received.message.data


def test_the_example_of_a_subscriber_goes_by_the_highest_watermark_in_any_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    take = runpy.run_path(str(ROOT / "examples" / "attach" / "subscriber.py"))["take"]
    for seconds, closed in ((50, 0), (40, 2)):
        take({"watermark": iso(at(seconds)), "windows": {"count": closed}})
    assert capsys.readouterr().out == f"all windows that end at or below {iso(at(50))} are closed\n"
