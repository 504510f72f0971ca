"""Taking: what is not looked at in time, or would be too many files, is given back, and nothing is rejected for it."""

import gzip
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import orjson
import pyarrow as pa
import pytest
from google.pubsub_v1 import PubsubMessage

from tests.clock import ManualClock
from tests.ingest.fakes import CONTRACT
from tests.ingest.judged import messages_of
from tests.ingest.model_subscription import Unasked
from tests.watermark.builders import at
from tidemark.pipeline.clock import to_us
from tidemark.pipeline.contract.heartbeat import HeartbeatReader, MessageContract
from tidemark.pipeline.contract.messages import Messages
from tidemark.pipeline.contract.payloads.decoder import PART_BYTES, Decoded, PayloadDecoder
from tidemark.pipeline.contract.payloads.rejections import Undecided
from tidemark.pipeline.contract.payloads.schemas import Asking
from tidemark.pipeline.contract.places import MOST_ELEMENTS, Place
from tidemark.pipeline.errors import LakeFull
from tidemark.pipeline.ingest.counting import Counted, RememberedCopies
from tidemark.pipeline.ingest.outcome import Side, Taken, Waiting
from tidemark.pipeline.ingest.take import HOURS_AT_ONCE, Keeper, Landing, Tracking, take
from tidemark.pipeline.lake.tables.new_files import NewFile
from tidemark.pipeline.pubsub.pulls import GIVEN_BACK_SECONDS
from tidemark.pipeline.pubsub.subscription import PulledBatch
from tidemark.pipeline.watermark.histogram import NO_EVENT

NOW, HOUR = at(10_000_000), timedelta(hours=1)
OF_ELEMENTS = replace(CONTRACT, each=Place.of("payload:readings"), event_time=Place.of("each:ts"), fields={})
OLD = replace(CONTRACT, first_event_time=NOW - 3000 * HOUR, fields={})
OF_OLD_ELEMENTS = replace(OF_ELEMENTS, first_event_time=OLD.first_event_time)
MOST_HOURS = 200
"""Fewer than one message may have."""


@dataclass
class Leased(Unasked):
    """A subscription that has handed out its messages: it notes those that are given back, by the seconds."""

    back: dict[int, list[str]] = field(default_factory=dict)

    def give_back(self, ack_ids: Sequence[str], seconds: int = GIVEN_BACK_SECONDS) -> None:
        if ack_ids:
            self.back.setdefault(seconds, []).extend(ack_ids)


@dataclass
class Files:
    """Files in memory, one for each hour of what is written together; or no room for any."""

    is_full: bool = False
    hours: Counter[str] = field(default_factory=Counter)

    def write(self, rows: pa.Table) -> list[NewFile]:
        if self.is_full:
            raise LakeFull("no space is left")
        written = Counter(rows["event_hour"].to_pylist()) if "event_hour" in rows.column_names else Counter({"": 0})
        self.hours += Counter(written.keys())
        return [NewFile(hour, hour, count, 0, {}) for hour, count in written.items()]


class SlowDecoder(PayloadDecoder):
    """Decodes a part of a batch in three seconds."""

    def __init__(self, contract: MessageContract, clock: ManualClock) -> None:
        super().__init__(contract.payload, may_be_array=contract.each is not None)
        self._clock = clock

    def decode(self, messages: Messages, asking: Asking) -> Iterator[Decoded]:
        for part in super().decode(messages, asking):
            self._clock.advance(timedelta(seconds=3))
            yield part


def slow_reader(contract: MessageContract, clock: ManualClock) -> HeartbeatReader:
    reader = HeartbeatReader(contract)
    reader.decoder = SlowDecoder(contract, clock)
    return reader


def message(number: int, data: bytes, attributes: dict[str, str], published: datetime = NOW) -> Any:
    return PubsubMessage(data=data, attributes=attributes, message_id=f"m{number}", publish_time=published)._pb


def batch_of(messages: Sequence[Any]) -> PulledBatch:
    return PulledBatch(messages_of(messages), [f"ack {one.message_id}" for one in messages], 100 * len(messages))


def keeper_of(side: Side, reader: HeartbeatReader, clock: ManualClock, files: Files | None = None) -> Keeper:
    if side is Side.TRACKING:
        return Tracking(reader, RememberedCopies(), timedelta(0), clock)
    return Landing(files or Files(), Files(), reader, lambda: None, clock)


# Time


def dense(number: int) -> Any:
    """A message of a few kilobytes with as many elements as one may have, which fill a part once they are unpacked."""
    one = {"ts": to_us(NOW) // 1000, "pad": "x" * (PART_BYTES // MOST_ELEMENTS)}
    data = gzip.compress(orjson.dumps({"readings": [one] * MOST_ELEMENTS}))
    assert len(data) < 100_000
    return message(number, data, {"stream_id": "a"})


@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize(("seconds", "looked_at"), [(5, 2), (0, 1), (60, 3)])
def test_messages_are_taken_until_time_is_up_and_the_rest_given_back(side: Side, seconds: int, looked_at: int) -> None:
    clock, subscription = ManualClock(NOW), Leased()
    batch, until = batch_of([dense(number) for number in range(3)]), clock.monotonic() + seconds
    taken = take([batch], subscription, keeper_of(side, slow_reader(OF_ELEMENTS, clock), clock), until)
    assert taken.ack_ids == batch.ack_ids[:looked_at]
    assert taken.used.landed_bytes + taken.used.tracked_bytes == 100 * looked_at, "not those that come again"
    assert subscription.back == ({GIVEN_BACK_SECONDS: batch.ack_ids[looked_at:]} if looked_at < 3 else {})
    if side is Side.BASE:
        assert (taken.ingested.heartbeats, taken.ingested.rejected.total()) == (looked_at * MOST_ELEMENTS, 0)
    else:
        assert int(taken.histogram.count.sum()) == looked_at * MOST_ELEMENTS
        assert NO_EVENT not in taken.histogram.event_bucket


def test_no_batch_is_asked_for_once_the_time_is_over() -> None:
    clock, subscription = ManualClock(NOW), Leased()
    batches = (batch_of([message(number, b"{}", {"stream_id": "a"})]) for number in range(3))
    reader = slow_reader(replace(OLD, event_time=Place.of("publish_time")), clock)
    taken = take(batches, subscription, keeper_of(Side.BASE, reader, clock), clock.monotonic() + 5)
    assert (taken.ingested.heartbeats, subscription.back) == (2, {})
    assert [batch.ack_ids for batch in batches] == [["ack m2"]]


class Doubting(Tracking):
    """Cannot judge the second message of a batch yet."""

    def keep(self, messages: Messages) -> Iterator[Counted]:
        for counted in super().keep(messages):
            self._parts[-1] = replace(counted, undecided={1: Undecided("its schema")})
            yield self._parts[-1]


def test_a_message_that_cannot_be_judged_yet_is_given_back_ever_longer_until_its_time_is_up() -> None:
    for waited, seconds in ((0, 5), (20, 20), (50, 10), (65, 5), (66, 60), (30, 30)):
        clock, subscription = ManualClock(NOW + timedelta(seconds=waited)), Leased()
        keeper = Doubting(HeartbeatReader(OLD), RememberedCopies(), None, clock, timedelta(minutes=1))
        taken = take([of_hours([0, 1])], subscription, keeper, clock.monotonic() + 60)
        assert (taken.ack_ids, subscription.back) == (["ack m0"], {seconds: ["ack m1"]})
        assert taken.ingested.waiting == Waiting(1, "its schema", clock.now() + timedelta(seconds=seconds))


# Event hours


def of_hours(hours: Sequence[int]) -> PulledBatch:
    """A message for each of these hours before now."""
    return batch_of([of_hour(number, hour) for number, hour in enumerate(hours)])


def of_hour(number: int, hour: int) -> Any:
    return message(number, b"{}", {"stream_id": "a", "event_time": written(hour)})


def written(hour: int) -> str:
    return str(to_us(NOW - hour * HOUR) // 1000)


def landed(batches: list[PulledBatch], contract: MessageContract = OLD, **most: int) -> tuple[Taken, Files, list[str]]:
    clock, subscription, files = ManualClock(NOW), Leased(), Files()
    keeper = Landing(files, Files(), HeartbeatReader(contract), lambda: None, clock, **most)
    taken = take(batches, subscription, keeper, clock.monotonic() + 60)
    assert taken.ingested.rejected.total() == 0
    return taken, files, subscription.back.get(GIVEN_BACK_SECONDS, [])


def test_messages_of_many_hours_are_taken_a_few_hours_at_a_time_newest_and_first_published() -> None:
    hours = {f"ack m{number}": number * 7 % 2000 for number in range(2000)}
    left = {f"ack m{number}": of_hour(number, hours[f"ack m{number}"]) for number in range(2000)}
    while left:
        taken, files, back = landed([batch_of(list(left.values()))])
        assert len(files.hours) == HOURS_AT_ONCE
        assert set(files.hours.values()) == {1}, "one file an hour"
        assert sorted([*taken.ack_ids, *back]) == sorted(left)
        for order in (list(left), sorted(left, key=lambda ack_id: hours[ack_id])):
            assert {*order[: HOURS_AT_ONCE // 2]} <= {*taken.ack_ids}
        left = {ack_id: left[ack_id] for ack_id in back}


@pytest.mark.parametrize("first", [[900], range(900, 1200)], ids=["one hour", "many hours"])
def test_the_message_that_was_published_first_is_taken_whatever_newer_hours_are_beside_it(first: Sequence[int]) -> None:
    """Otherwise base, and with it the watermark, would stand still for as long as newer hours keep coming."""
    sent = [range(MOST_HOURS + 100), *([hour] for hour in range(MOST_HOURS + 100)), first]
    data = [orjson.dumps({"readings": [{"ts": written(hour)} for hour in hours]}) for hours in sent]
    batch = batch_of([message(n, one, {"stream_id": "a"}, NOW - timedelta(seconds=n)) for n, one in enumerate(data)])
    taken, _, _ = landed([batch], OF_OLD_ELEMENTS, most_hours=MOST_HOURS)
    assert batch.ack_ids[-1] in taken.ack_ids


def test_the_hours_of_all_batches_of_a_taking_count_together() -> None:
    enough, more = range(HOURS_AT_ONCE - 50), [*range(100), *range(HOURS_AT_ONCE, HOURS_AT_ONCE + 101)]
    batches = [of_hours([*enough, 0]), of_hours(more), of_hours([0])]
    taken, files, back = landed(batches)
    assert len(files.hours) == HOURS_AT_ONCE
    kept = [*range(100), 100, *range(101, 150)]
    assert taken.ack_ids == [*batches[0].ack_ids, *(batches[1].ack_ids[number] for number in kept)]
    assert back == [batches[1].ack_ids[number] for number in range(150, 201)], "and the third was not asked for"


def test_a_message_of_more_hours_than_a_taking_may_have_is_taken_whole() -> None:
    hours = [{"ts": written(hour)} for hour in range(MOST_HOURS + 100)]
    whole, one = (orjson.dumps({"readings": readings}) for readings in (hours, hours[:1]))
    for first, landed_beside in ((whole, 0), (one, 1)):
        batch = batch_of([message(n, data, {"stream_id": "a"}) for n, data in enumerate((first, whole, whole))])
        taken, files, back = landed([batch], OF_OLD_ELEMENTS, most_hours=MOST_HOURS)
        assert (taken.ack_ids, back) == (batch.ack_ids[: landed_beside + 1], batch.ack_ids[landed_beside + 1 :])
        assert (taken.ingested.heartbeats, len(files.hours)) == (len(hours) + landed_beside, len(hours))


# Failure


def test_where_what_was_taken_cannot_be_kept_all_of_it_is_given_back() -> None:
    clock, subscription = ManualClock(NOW), Leased()
    keeper = keeper_of(Side.BASE, HeartbeatReader(OLD), clock, Files(is_full=True))
    batches = [of_hours([0, 1]), of_hours([2])]
    with pytest.raises(LakeFull):
        take(batches, subscription, keeper, clock.monotonic() + 60)
    assert subscription.back == {GIVEN_BACK_SECONDS: [*batches[0].ack_ids, *batches[1].ack_ids]}
