"""Which messages in quarantine count by their times, and by which contract it was judged."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from tests.ingest.fakes import CONTRACT, to_written
from tests.lake.builders import append_rejected, lake_in, lake_of
from tests.watermark.builders import START_US, at
from tidemark.pipeline.contract.places import Place
from tidemark.pipeline.lake.tables import quarantine as module
from tidemark.pipeline.lake.tables.quarantine import (
    JUDGED_BY,
    UNREADABLE,
    RejectedPayload,
    by_stream,
    rejected_payloads,
)
from tidemark.pipeline.settings_sections import LakeSettings

SECOND_US = 1_000_000


def test_only_rejected_payloads_with_readable_times_count_each_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quarantine = lake_in(tmp_path).quarantine()
    assert rejected_payloads(quarantine, CONTRACT, at(0), at(100)) == []
    messages = [("a", 20, 10), ("fast", 30, 35), ("a", 20, 10), ("before", -1, -2), ("other reason", 40, 39)]
    append_rejected(
        quarantine,
        *(
            {
                "reason": "TOO_OLD" if stream == "other reason" else "UNREADABLE_PAYLOAD",
                "message_id": stream,
                "publish_time": at(publish),
                "attributes": [("stream_id", stream), ("event_time", to_written(event))],
            }
            for stream, publish, event in messages
        ),
    )
    found = rejected_payloads(quarantine, CONTRACT, at(0), at(100))
    first = RejectedPayload("a", START_US + 20 * SECOND_US, START_US + 10 * SECOND_US)
    assert found == [first, RejectedPayload("fast", START_US + 30 * SECOND_US, START_US + 30 * SECOND_US)]
    assert (first.lag_us, by_stream(found)) == (10 * SECOND_US, {"a": 1, "fast": 1})
    assert rejected_payloads(quarantine, CONTRACT, at(0), at(100), pa.array(["fast"])) == [first], "requeued"
    assert rejected_payloads(quarantine, replace(CONTRACT, event_time=Place.of("payload:t")), at(0), at(100)) == []
    monkeypatch.setattr(module, "MOST_PAYLOADS", 1)
    assert rejected_payloads(quarantine, CONTRACT, at(0), at(100)) == [first]


def test_the_note_of_the_contract_is_replaced_and_a_damaged_one_is_no_contract(lake_settings: LakeSettings) -> None:
    lake = lake_of(lake_settings)
    judged_by, other = lake.judged_by(), lake.judged_by()
    assert judged_by.digest() is None
    for digest in ("a", "a", "b"):
        judged_by.note(digest, at(0))
        assert (judged_by.digest(), other.digest()) == (digest, digest)
    objects = lake.objects()
    name = JUDGED_BY.name(JUDGED_BY.key)
    objects.replace(name, b"{", objects.read_generation(name)[1])
    assert judged_by.digest() == UNREADABLE
    judged_by.note("c", at(0))
    assert (judged_by.digest(), lake.requeued().between()) == ("c", [])
