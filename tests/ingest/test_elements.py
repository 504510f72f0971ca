"""Messages that hold several heartbeats: each element is judged, landed, tracked and requeued as a message would be."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jmespath
import orjson
import pyarrow as pa
import pytest
from google.pubsub_v1 import PubsubMessage
from hypothesis import example, given
from hypothesis import strategies as st

from tests.ingest.fakes import CONTRACT, World, published_at, requeued_after_each_death
from tests.ingest.judged import LATER, histogram_of, judged, messages_of
from tests.watermark.builders import at
from tidemark.pipeline.clock import from_us, to_us
from tidemark.pipeline.contract import places as elements
from tidemark.pipeline.contract.heartbeat import FieldKind, Heartbeat, HeartbeatReader, MessageContract, read_field
from tidemark.pipeline.contract.judging import MOST_HOURS
from tidemark.pipeline.contract.places import Element, Place, PlaceKind, finder, id_of
from tidemark.pipeline.ingest.rows import JudgedRows, judged_rows
from tidemark.pipeline.watermark.histogram import COPY, NO_EVENT, NO_MINIMUM, Histogram, cells_of

NOW = to_us(at(1000))
READINGS = replace(
    CONTRACT,
    each=Place.of("payload:readings"),
    event_time=Place.of("each:ts"),
    stream_id=(Place.of("attribute:site"), Place.of("each:channel")),
    fields={"load": FieldKind.NUMBER, "unit": FieldKind.TEXT},
    paths={"unit": "payload:meta.unit"},
)
CONTRACTS = (
    READINGS,
    replace(READINGS, each=Place.of("payload:readings[]")),
    replace(READINGS, each=Place.of("payload:readings[?load]"), paths={"unit": "each:channel", "load": "each:load"}),
    replace(READINGS, publisher_id=Place.of("each:id")),
    replace(READINGS, publisher_id=Place.of("payload:meta.unit"), stream_id=(Place.of("payload:meta.unit"),)),
    replace(READINGS, event_time=Place.of("payload:meta.at"), paths={"load": "payload:meta.at || `1`", "unit": "@"}),
    replace(READINGS, each=Place.of("payload:[]"), stream_id=(Place.of("attribute:site"),), paths={}),
    replace(READINGS, each=Place.of("payload:@"), event_time=Place.of("each:@"), stream_id=(Place.of("each:@"),)),
)

numbers = st.sampled_from([NOW // 1000, NOW // 1000 - 5000, 7, 10**19, "soon", None])
readings = st.fixed_dictionaries(
    {},
    optional={
        "ts": numbers,
        "channel": st.sampled_from(["a", 2, "", None, [1]]),
        "id": st.sampled_from(["own", "", 5, None]),
        "load": st.sampled_from([1, 2.5, "high", None]),
    },
)
arrays = st.lists(readings | numbers | st.lists(readings, max_size=2), max_size=4)
meta = st.none() | st.fixed_dictionaries({}, optional={"unit": st.sampled_from(["C", "é" * 1025, 5]), "at": numbers})
payloads = st.one_of(
    st.fixed_dictionaries({"meta": meta, "readings": arrays}),
    arrays,
    st.sampled_from([{}, {"readings": None}, {"readings": {"ts": 1}}, 7, None]),
).map(orjson.dumps) | st.sampled_from([b"", b"{"])


@st.composite
def drawn_messages(draw: st.DrawFn) -> list[Any]:
    drawn = []
    for number in range(draw(st.integers(0, 4))):
        held = {"site": draw(st.sampled_from(["s", None])), "heartbeat_id": draw(st.sampled_from(["p", "", None]))}
        drawn.append(message(number, draw(payloads), **held))
    return drawn


def message(number: int, payload: bytes, **attributes: str | None) -> Any:
    return PubsubMessage(
        data=payload,
        attributes={name: value for name, value in attributes.items() if value is not None},
        message_id=f"m{number}",
        publish_time=from_us(NOW),
    )._pb


def as_messages(contract: MessageContract, one: Any) -> list[tuple[Heartbeat, str | None, list[Any]] | str]:
    """Each element's heartbeat, publisher's id and fields, or the reason against it, with the elements found by the
    library and each place by itself. A message without elements has the reason against it."""
    try:
        payload = json.loads(one.data)
    except ValueError:
        return ["UNREADABLE_PAYLOAD"]
    if not isinstance(payload, dict | list):
        return ["UNREADABLE_PAYLOAD"]
    found = jmespath.search(contract.each.name, payload)
    if not isinstance(found, list) or not found:
        return ["NO_ELEMENTS"]
    reader, judged = HeartbeatReader(contract), list[tuple[Heartbeat, str | None, list[Any]] | str]()
    for number, value in enumerate(found):
        element = Element(number, value, lambda path: finder(path)(payload))
        verdict = reader.read(one.attributes, element, to_us(published_at(one)))
        if not isinstance(verdict, Heartbeat):
            judged.append(verdict.reason.value)
            continue
        publisher = contract.publisher_id.find(one.attributes, element)
        publisher_id = publisher if contract.publisher_id.kind is PlaceKind.ATTRIBUTE else id_of(publisher)
        if publisher_id and contract.publisher_id.kind is not PlaceKind.EACH:
            publisher_id = f"{publisher_id}#{number}"
        fields = []
        for name, kind in contract.fields.items():
            place = contract.place_of(name)
            read = read_field(finder(place.name)(value if place.kind is PlaceKind.EACH else payload), kind)
            is_long = place.kind is PlaceKind.PAYLOAD and isinstance(read, str) and len(read) > 1024
            fields.append(None if is_long else read)
        judged.append((verdict, publisher_id or None, fields))
    return judged


@given(drawn_messages(), st.sampled_from(CONTRACTS), st.sampled_from([1, 3, 50_000]))
@example([message(0, b'{"readings": []}', site="s")], CONTRACTS[0], 1)
@example([message(0, orjson.dumps({"readings": [[{"ts": NOW // 1000, "channel": "a"}]]}), site="s")], CONTRACTS[1], 1)
def test_both_sides_take_the_same_elements(messages: list[Any], contract: MessageContract, rows_at_once: int) -> None:
    good, bad, cells = [], [], []
    for one in messages:
        verdicts = as_messages(contract, one)
        reasons = [verdict for verdict in verdicts if isinstance(verdict, str)]
        payload = one.data
        for number, verdict in enumerate(verdicts):
            if not isinstance(verdict, str):
                heartbeat, publisher_id, fields = verdict
                name = f"{one.message_id}#{number}"
                good.append((name, payload, heartbeat.stream_id, heartbeat.event_time_us, publisher_id, *fields))
                cells.append(heartbeat.event_time_us)
                payload = None
        if reasons:
            bad.append((one.message_id, reasons[0], one.data))
            cells.append(NO_MINIMUM)
    reader = HeartbeatReader(contract)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(elements, "ROWS_AT_ONCE", rows_at_once)
        found, histogram = judged(messages, reader, None), histogram_of(messages, reader)
    names = ("message_id", "payload", "stream_id", "event_time", "publisher_id", *contract.fields)
    assert rows_of(found.heartbeats, names) == good
    assert rows_of(found.rejected, ("message_id", "reason", "payload")) == bad
    assert found.messages == len(messages)
    expected = Histogram.of_cells(
        cells_of(*(pa.array(us, pa.int64()).to_numpy() for us in ([NOW] * len(cells), cells)))
    )
    assert histogram == expected


def rows_of(rows: pa.Table, names: Sequence[str]) -> list[Any]:
    held = [(rows[name].cast(pa.int64()) if name == "event_time" else rows[name]).to_pylist() for name in names]
    return list(zip(*held, strict=True))


# Bounds


def parts(messages: Sequence[Any], contract: MessageContract = READINGS) -> list[JudgedRows]:
    return list(judged_rows(messages_of(messages), HeartbeatReader(contract), LATER, None))


@pytest.mark.parametrize(
    ("more", "reason", "detail"),
    [
        (4_900_000, "UNREADABLE_PAYLOAD", "more than 1000000 values"),
        (
            900_000,
            "TOO_MANY_ELEMENTS",
            "payload:readings has 900001 elements; a message may have at most 10000: publish several messages",
        ),
    ],
)
def test_megabytes_of_elements_become_one_rejected_message(more: int, reason: str, detail: str) -> None:
    hostile = message(0, b'{"readings":[' + b"1," * more + b"1]}", site="s")
    for path in ("payload:readings", "payload:readings[]"):
        (part,) = parts([hostile], replace(READINGS, each=Place.of(path)))
        assert (len(part.heartbeats), part.rejected["reason"].to_pylist()) == (0, [reason])
        assert part.rejected.nbytes < 10 << 20
        assert part.rejected["detail"].to_pylist()[0].replace("[]", "") == detail
    assert len(histogram_of([hostile], READER)) == 1


@pytest.mark.parametrize(
    ("note", "more", "cut"),
    [(0, 0, [5, 2]), (1024, 0, [4, 3]), (1024, 9_000_000, [1] * 7)],
    ids=["rows", "attributes", "bytes"],
)
def test_parts_of_a_batch_are_bounded_in_rows_attributes_and_bytes(note: int, more: int, cut: list[int]) -> None:
    readings = [reading(n % 100) for n in range(elements.MOST_ELEMENTS)]
    data = orjson.dumps({"readings": readings, "meta": {"unit": "x" * 3000}, "more": "x" * more})
    assert len(data) < 10_000_000
    found = parts([message(number, data, site="s", note="n" * note) for number in range(7)])
    assert [(part.messages, len(part.heartbeats)) for part in found] == [(n, n * 10_000) for n in cut]
    for part, messages in zip(found, cut, strict=True):
        assert part.heartbeats.nbytes < messages * len(data) + len(part.heartbeats) * (1024 + 300)
    rows = len(found[0].heartbeats)
    assert found[0].heartbeats["unit"].null_count == rows, "what each would repeat is short, or null"
    assert found[0].rows_of_another_kind == {"unit": [*range(rows)]}


def test_a_message_of_too_many_event_hours_is_rejected_whole_and_those_beside_it_land() -> None:
    contract = replace(READINGS, first_event_time=at(-3600 * 2000))
    hours = [reading(-3600 * number) for number in range(MOST_HOURS + 1)]
    payloads = [orjson.dumps({"readings": [{}, *hours[:count], hours[0]]}) for count in (1000, 1001, 1000)]
    messages = [message(number, payload, site="s") for number, payload in enumerate(payloads)]
    (part,) = parts(messages, contract)
    ids = [f"m{number}#{element}" for number in (0, 2) for element in range(1, MOST_HOURS + 2)]
    assert part.heartbeats["message_id"].to_pylist() == ids
    assert part.rejected["reason"].to_pylist() == ["NO_EVENT_TIME", "TOO_MANY_ELEMENTS", "NO_EVENT_TIME"]
    said = "element #0 of 1003: the message has heartbeats of 1001 event hours; a message may have at most 1000"
    assert part.rejected["detail"][1].as_py().startswith(said)
    assert histogram_of(messages[1:2], HeartbeatReader(contract)) == histogram_of([message(1, b"", site="s")], READER)


# Ticks


def reading(seconds: float, channel: str = "a", **more: Any) -> dict[str, Any]:
    return {"ts": to_us(at(seconds)) // 1000, "channel": channel, **more}


READER = HeartbeatReader(READINGS)
WRONG = HeartbeatReader(replace(READINGS, event_time=Place.of("each:time")))


class ReadingsWorld(World):
    """A world whose messages hold several heartbeats."""

    def restart(self) -> None:
        super().restart()
        self.reader = READER

    def publish(self, *readings: Any, publisher_id: str | None = None) -> Any:
        held = {"site": "s", "heartbeat_id": publisher_id}
        return self.topic.publish_plain(json.dumps({"readings": readings}).encode(), held)

    def not_landed(self, messages: Sequence[Any]) -> list[str]:
        there = {*self.landed_ids(), *self.quarantined_ids()}
        return [name for one in messages for name in self.ids_of(one) if name not in there]

    def ids_of(self, one: Any) -> list[str]:
        """Each good element, and the message if it has a bad one."""
        verdicts = as_messages(self.reader.contract, one)
        good = [f"{one.message_id}#{number}" for number, of in enumerate(verdicts) if not isinstance(of, str)]
        return good if len(good) == len(verdicts) else [*good, one.message_id]

    def _is_in(self, histogram: Histogram, message: Any) -> bool:
        second = to_us(published_at(message)) // 1_000_000
        for verdict in as_messages(self.reader.contract, message):
            event = NO_EVENT if isinstance(verdict, str) else min(verdict[0].event_time_us // 1_000_000, second)
            cell = (histogram.publish_bucket == second) & (histogram.event_bucket == event)
            of_copies = (histogram.publish_bucket == second) & (histogram.event_bucket == COPY)
            if not (cell | of_copies).any():
                return False
        return True


def parked(folder: Path) -> ReadingsWorld:
    """Messages that went to quarantine by a wrong contract, whole, and some of which a part had landed before."""
    world = ReadingsWorld(folder)
    world.wait(10)
    world.reader = HeartbeatReader(replace(READINGS, publisher_id=Place.of("each:id"), max_future_skew=at(2) - at(0)))
    world.publish(reading(1), reading(14), reading(2))  # the one in the middle is too far ahead for that contract
    world.tick()
    world.reader = WRONG
    world.publish(reading(3), reading(4))
    world.publish(reading(5), {"channel": "a"}, reading(6))
    world.tick()
    world.reader = READER
    assert [row["reason"] for row in world.rows("quarantine")] == ["IN_THE_FUTURE", *["NO_EVENT_TIME"] * 2]
    return world


def expected(world: ReadingsWorld) -> list[str]:
    return sorted(name for one in world.topic.messages for name in world.ids_of(one) if "#" in name)


def test_a_requeue_of_several_that_dies_loses_and_doubles_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elements, "ROWS_AT_ONCE", 3)
    worlds = requeued_after_each_death(tmp_path, parked)
    for world in worlds:
        assert sorted(world.landed_ids()) == expected(world), world.folder
    assert len(worlds) > 4
