"""A lake's own mark: looked at once in a process's life, written before anything else, and never by who only reads."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lake.builders import Beat, append_beats, columns_of, lake_of
from tidemark.pipeline.errors import NewerFormat
from tidemark.pipeline.lake import layout
from tidemark.pipeline.lake.store.admission import FORMATS, Admission
from tidemark.pipeline.lake.store.disk import DiskObjects
from tidemark.pipeline.settings_sections import LakeSettings
from tidemark.pipeline.version import FORMAT, marks


class Counted(DiskObjects):
    """Objects that note what is asked of them."""

    def __init__(self, folder: Path, calls: list[str]) -> None:
        super().__init__(folder)
        self._calls = calls

    def create(self, name: str, content: bytes) -> None:
        self._calls.append(f"create {name}")
        super().create(name, content)

    def read(self, name: str) -> bytes:
        self._calls.append(f"read {name}")
        return super().read(name)

    def names(self, prefix: str) -> Iterator[str]:
        self._calls.append(f"list {prefix}")
        return super().names(prefix)


def test_all_parts_of_a_lake_ask_once_and_the_mark_is_there_before_the_first_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(layout, "open_objects", lambda settings: Counted(settings.folder, calls))
    settings = LakeSettings(uri=f"file:{tmp_path}/lake")
    for number in range(3):
        lake = lake_of(settings)
        append_beats(lake.heartbeats(), columns_of([Beat("a", number)]))
        lake.objects().create(f"folder/{number}", b"")
        assert lake.diffs().computed() == set()
        assert lake.tracking_log().newest().watermark is None
    counted = Counter(calls)
    mark = f"{FORMATS.prefix}{FORMAT:06d}.json"
    assert (counted[f"list {FORMATS.prefix}"], counted[f"create {mark}"], counted[f"read {mark}"]) == (1, 1, 0)
    assert calls[:2] == [f"list {FORMATS.prefix}", f"create {mark}"]
    assert json.loads((tmp_path / "lake" / mark).read_text()) == marks()


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"tidemark.format": "1"}'])
def test_a_later_mark_that_is_damaged_is_refused_by_its_name(content: bytes, tmp_path: Path) -> None:
    objects = DiskObjects(tmp_path)
    objects.create(f"{FORMATS.prefix}{FORMAT + 3:06d}.json", content)
    for refuses in (Admission(lambda: objects).admit, Admission(lambda: objects).claim):
        with pytest.raises(NewerFormat, match=f"is {FORMAT + 3}, and this version reads formats up to {FORMAT}"):
            refuses()
