"""What tells a requeue what has landed, and what a check reads of the newest files: on disk and in a bucket."""

import pyarrow as pa
import pytest

from tests.lake.builders import LATER, Beat, append_beats, append_rejected, columns_of, lake_of
from tests.watermark.builders import at
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.tables.quarantine import JUDGED_BY, UNREADABLE, touching
from tidemark.pipeline.quality.recent import NEWEST_FILES, QuarantineShare, read_quarantine_share, read_reasons
from tidemark.pipeline.settings_sections import LakeSettings


@pytest.fixture
def lake(lake_settings: LakeSettings) -> Lake:
    return lake_of(lake_settings)


def reject(lake: Lake, name: str, landed_at: float, reason: str = "NO_STREAM_ID") -> None:
    moments = {"publish_time": at(landed_at), "landed_at": at(landed_at)}
    append_rejected(lake.quarantine(), {"message_id": name, "reason": reason, "detail": f"why {name}", **moments})


def test_notes_are_found_by_their_day_and_name_what_was_requeued(lake: Lake) -> None:
    for name, landed_at in (("1", 10), ("2", 20), ("3", 86_400)):
        reject(lake, name, landed_at)
    requeued = lake.requeued()
    assert (requeued.between(), len(requeued.every_id())) == ([], 0)
    early, late = (
        requeued.note("2026-11-21", (9, 10), pa.array(["1"])),
        requeued.note("2026-11-22", (7, 8), pa.array(["3"])),
    )
    assert requeued.between() == [early, late]
    assert requeued.between("2026-11-21", "2026-11-21") == [early]
    assert requeued.between(since="2026-11-22") == [late]
    assert requeued.every_id().to_pylist() == ["1", "3"]
    assert [touching([early, late], *seconds) for seconds in ((0, 8), (10, 11), (0, 6))] == [[late], [early], []]
    counts = read_reasons(lake)
    assert (counts.waiting, counts.requeued) == ({"NO_STREAM_ID": 1}, {"NO_STREAM_ID": 2})
    assert [requeued.forget_before("2026-11-22", dry_run=dry_run) for dry_run in (True, False, False)] == [1, 1, 0]
    assert requeued.between() == [late]


def test_the_note_of_the_contract_is_replaced_and_a_damaged_one_is_no_contract(lake: Lake) -> None:
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


def test_what_has_landed_is_told_by_id_among_what_was_published_then(lake: Lake) -> None:
    assert lake.heartbeats().landed_of(pa.array(["1"]), at(0), at(100)).to_pylist() == []
    append_beats(lake.heartbeats(), columns_of([Beat("a", 10, "1"), Beat("a", 20, "2")]))
    append_beats(lake.heartbeats(), columns_of([Beat("a", 7200, "3")]))
    heartbeats, sought = lake.heartbeats(), pa.array(["1", "3", "4"])
    assert heartbeats.landed_of(sought, at(0), at(100)).to_pylist() == ["1"]
    assert sorted(heartbeats.landed_of(sought, at(0), at(9000)).to_pylist()) == ["1", "3"]


def test_the_share_counts_by_statistics_and_names_what_the_newest_files_say(lake: Lake) -> None:
    def share(since: float) -> QuarantineShare:
        return read_quarantine_share(lake.heartbeats(), lake.quarantine(), at(since))

    assert share(0) == QuarantineShare()
    append_beats(lake.heartbeats(), columns_of([Beat("a", number) for number in range(30)]))  # landed at LATER
    assert share(LATER - 1) == QuarantineShare(landed=30)
    reject(lake, "long ago", LATER - 100, "TOO_OLD")
    for number in range(NEWEST_FILES):
        reject(lake, str(number), LATER + number, "TOO_OLD" if number == NEWEST_FILES - 1 else "NO_STREAM_ID")
    assert share(LATER - 1) == QuarantineShare(30, NEWEST_FILES, "NO_STREAM_ID", f"why {NEWEST_FILES - 2}")
    assert share(LATER - 1).share == NEWEST_FILES / (NEWEST_FILES + 30)
    assert share(LATER + 100) == QuarantineShare()


def test_rows_of_a_file_that_holds_earlier_ones_count_evenly_over_its_time(lake: Lake) -> None:
    landed_at = [at(number) for number in range(100)]
    append_beats(lake.heartbeats(), columns_of([Beat("a", 1, str(n)) for n in range(100)]) | {"landed_at": landed_at})
    rows, _ = lake.heartbeats().landed_since(at(75))
    assert 23 <= rows <= 26
