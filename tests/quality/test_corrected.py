"""Following a table's log: each replaced window is noted once, whoever follows, dies, or has lost what it needs."""

import errno
import json
import re
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.clock import ManualClock
from tests.lake.builders import lake_of, put
from tests.pubsub.builders import raising
from tests.watermark.builders import at
from tidemark.pipeline.contract.heartbeat import FieldKind
from tidemark.pipeline.errors import LakeError, LakeUnreachable
from tidemark.pipeline.lake.layout import CORRECTIONS, HEARTBEAT_DIFFS, Lake
from tidemark.pipeline.lake.store.notes import Notes
from tidemark.pipeline.lake.tables.corrections import FOLLOWED, Corrections, Position, Sought
from tidemark.pipeline.quality import corrected
from tidemark.pipeline.quality.corrected import DIFFS_KEY, FollowedTable, follow
from tidemark.pipeline.settings_sections import LakeSettings
from tidemark.pipeline.upkeep.orphans import find_orphans
from tidemark.pipeline.upkeep.table_chores import compact, trim

FIRST, SECOND = "2026-11-21T05-20Z", "2026-11-21T05-25Z"
NOTICED = ManualClock(at(2000))
EVERY = 10_000

Rows = Mapping[str, float]
"""The load of each stream in a window."""


class Killed(BaseException):
    """As if the process had been killed there."""


class Place:
    """A lake in a folder, and runs that replace windows of its diffs."""

    def __init__(self, folder: Path, settings: LakeSettings | None = None) -> None:
        self.folder = folder / "lake"
        self.settings = settings or LakeSettings(uri=f"file:{self.folder}")
        self.lake: Lake = lake_of(self.settings, {"load": FieldKind.NUMBER})
        self.runs = 0

    def compute(self, windows: Mapping[str, Rows]) -> str:
        """A run over windows, with these rows; returns its name."""
        self.runs += 1
        name = f"run{self.runs}"
        rows = {
            key: [
                {"stream_id": stream, "event_time": at(5), "message_id": f"m-{stream}", "load": load}
                for stream, load in of_window.items()
            ]
            for key, of_window in windows.items()
        }
        assert set(put(self.lake.diffs(), name, rows, self.runs * 10)) == set(windows)
        return name

    def follow(self, corrections: Corrections | None = None) -> int:
        followed = FollowedTable(HEARTBEAT_DIFFS, self.lake.diffs(), DIFFS_KEY)
        return follow(corrections or self.lake.corrections(), followed, NOTICED)

    def noted(self) -> list[dict[str, Any]]:
        return list(self.lake.corrections().newest(Sought(), EVERY))

    def said(self) -> Counter[tuple[Any, ...]]:
        """Each correction's version, window, change and stream, and the load before and after."""
        return Counter(
            (row["table_version"], row["window"], row["change"], *(_value(row[name]) for name in ROWS))
            for row in self.noted()
        )

    def version(self, name: str = CORRECTIONS) -> int | None:
        table = self.lake.table(name).current()
        return None if table is None else table.version()

    def files(self, name: str) -> set[str]:
        table = self.lake.table(name).current()
        return set() if table is None else set(table.file_uris())

    def dying(self, kind: type[Corrections]) -> Corrections:
        return kind(self.lake.corrections().table, self.lake.objects(), NOTICED)


ROWS = ("old_row", "new_row")


def _value(text: str | None) -> Any:
    return None if text is None else (json.loads(text)["stream_id"], json.loads(text)["load"])


def changed(version: int, window: str, stream: str, before: float, after: float) -> tuple[Any, ...]:
    return (version, window, "changed", (stream, before), (stream, after))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_each_row_that_changed_came_or_went_is_noted_with_both_runs_and_what_they_read(place: Place) -> None:
    old = place.compute({FIRST: {"a": 1, "b": 2, "c": 3}, SECOND: {"a": 1}})
    new = place.compute({FIRST: {"a": 1, "b": 2.5, "d": 4}, SECOND: {"a": 1}})
    assert place.follow() == 3
    assert set(place.said()) == {
        changed(2, FIRST, "b", 2, 2.5),
        (2, FIRST, "removed", ("c", 3), None),
        (2, FIRST, "added", None, ("d", 4)),
    }
    row = next(row for row in place.noted() if row["change"] == "changed")
    assert json.loads(row["key"]) == {
        "stream_id": "b",
        "event_time": at(5).isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "message_id": "m-b",
    }
    assert "window" not in json.loads(row["new_row"])
    names = ("table", "old_run", "new_run", "old_heartbeats_version", "new_heartbeats_version", "detail")
    assert [row[name] for name in names] == [HEARTBEAT_DIFFS, old, new, 10, 20, None]
    log = (place.folder / HEARTBEAT_DIFFS / "_delta_log" / f"{2:020d}.json").read_text()
    (stamp,) = re.findall(r'"timestamp":(\d+)', log)
    assert row["corrected_at"] == datetime.fromtimestamp(int(stamp) / 1000, UTC)
    (file,) = place.files(CORRECTIONS)
    assert "/noticed_on=2026-11-21/" in file


# How far it has looked


def test_a_look_that_takes_long_ends_and_the_next_one_goes_on(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corrected, "VERSIONS_AT_ONCE", 1)
    monkeypatch.setattr(corrected, "LONGEST", timedelta(0))
    for load in range(3):
        place.compute({FIRST: {"a": load}})
    assert [place.follow() for _ in range(6)] == [0, 0, 1, 1, 0, 0]  # created, computed, and replaced twice
    assert len(place.said()) == 2


def test_a_table_that_was_begun_anew_is_followed_from_its_beginning(place: Place) -> None:
    place.compute({FIRST: {"a": 1}})
    place.compute({FIRST: {"a": 2}})
    assert place.follow() == 1
    (place.folder / HEARTBEAT_DIFFS).rename(place.folder.parent / "aside")
    place.compute({FIRST: {"a": 5}})
    assert place.follow() == 0
    place.compute({FIRST: {"a": 6}})
    assert place.follow() == 1
    assert place.said()[changed(2, FIRST, "a", 5, 6)] == 1


# Kills, lost answers, and others at the same time


class OwnCommit(Corrections):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.commits, self.table.transact = self.table.transact, self.commit  # type: ignore[method-assign]


class DiesBeforeCommit(OwnCommit):
    def commit(self, *_: object, **__: object) -> None:
        raise Killed


class DiesAfterCommit(OwnCommit):
    raises: BaseException = Killed()

    def commit(self, *args: Any, **more: Any) -> None:
        self.commits(*args, **more)
        raise self.raises


class DiesBeforeKeeping(Corrections):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.followed = Unkept(args[1], FOLLOWED)


class Unkept(Notes[Position]):
    def offer(self, *_: object) -> None:
        raise Killed


class LosesTheAnswer(DiesAfterCommit):
    raises = LakeUnreachable("no answer")


@pytest.mark.parametrize("kind", [DiesBeforeCommit, DiesAfterCommit, DiesBeforeKeeping, LosesTheAnswer])
def test_a_follower_that_dies_anywhere_leaves_each_correction_noted_once(kind: type[Corrections], place: Place) -> None:
    place.compute({FIRST: {"a": 1}, SECOND: {"b": 1}})
    for load in (2, 3):
        place.compute({FIRST: {"a": load}, SECOND: {"b": load}})
        with pytest.raises((Killed, LakeUnreachable)):
            place.follow(place.dying(kind))
        place.follow()
        assert place.follow() == 0
    assert place.said() == Counter(
        changed(load, window, stream, load - 1, load)
        for load in (2, 3)
        for window, stream in ((FIRST, "a"), (SECOND, "b"))
    )


def test_the_file_that_a_killed_follower_left_is_an_orphan(place: Place) -> None:
    place.compute({FIRST: {"a": 1}})
    place.compute({FIRST: {"a": 2}})
    with pytest.raises(Killed):
        place.follow(place.dying(DiesBeforeCommit))
    place.follow()
    far = at(timedelta(days=4000).total_seconds())
    orphans = [orphan.name for orphan in find_orphans(place.lake, place.settings, far, timedelta(0))]
    assert [name.split("/")[0] for name in orphans] == [CORRECTIONS]
    assert not any(file.endswith(orphans[0]) for file in place.files(CORRECTIONS))


def test_a_follower_that_is_overtaken_notes_nothing_again(place: Place) -> None:
    place.compute({FIRST: {"a": 1}})
    place.compute({FIRST: {"a": 2}})

    class Overtaken(OwnCommit):
        def commit(self, *args: Any, **more: Any) -> None:
            place.follow()  # another follower, which notes everything
            self.commits(*args, **more)

    assert place.follow(place.dying(Overtaken)) == 0
    assert place.said() == Counter([changed(2, FIRST, "a", 1, 2)])


def test_what_was_noted_stays_known_when_the_table_is_compacted_or_the_position_is_lost(place: Place) -> None:
    for load in range(10):
        place.compute({FIRST: {"a": load}})
        place.follow()
    before = place.said()
    table = place.lake.table(CORRECTIONS)
    assert [done["files_after"] for _, done in compact(table, "9", "corrected_at")] == [1]
    trim(table, timedelta(days=1))
    kept = place.folder / "corrections_followed" / "heartbeat_diffs.json"
    kept.write_text("{")
    for commit in sorted((place.folder / CORRECTIONS / "_delta_log").glob("0*0[0-4].json")):
        commit.unlink()  # as a cleaned log
    for damage in (lambda: None, kept.unlink):
        damage()
        assert place.follow() == 0
    assert place.said() == before


# What is gone


def test_a_window_whose_old_or_new_file_is_gone_or_damaged_is_unknown_and_the_others_go_on(place: Place) -> None:
    place.compute({FIRST: {"a": 1}, SECOND: {"b": 1}})
    for file in place.folder.glob(f"{HEARTBEAT_DIFFS}/runs/run1/window={FIRST}/*.parquet"):
        file.unlink()
    for file in place.folder.glob(f"{HEARTBEAT_DIFFS}/runs/run1/window={SECOND}/*.parquet"):
        file.write_bytes(b"no Parquet")
    place.compute({FIRST: {"a": 2}, SECOND: {"b": 2}})
    place.compute({FIRST: {"a": 3}})
    assert place.follow() == 3
    unknown = [row for row in place.noted() if row["change"] == "unknown"]
    assert [(row["window"], row["table_version"], row["old_row"]) for row in unknown] == [
        (FIRST, 2, None),
        (SECOND, 2, None),
    ]
    assert "lacks a file" in unknown[0]["detail"]
    assert unknown[1]["detail"].startswith("the rows cannot be compared")
    assert place.said()[changed(3, FIRST, "a", 2, 3)] == 1
    place.lake.diffs().forget([FIRST])
    place.compute({FIRST: {"a": 4}})
    assert place.follow() == 1
    (forgotten,) = [row for row in place.noted() if row["table_version"] == 4]
    assert (forgotten["change"], forgotten["window"], forgotten["new_run"]) == ("unknown", FIRST, None)


@pytest.mark.parametrize("damage", [None, b"", b"{"])
def test_commits_that_are_gone_or_damaged_in_a_row_are_one_row_and_the_rest_is_noted(
    place: Place, damage: bytes | None
) -> None:
    place.compute({FIRST: {"a": -1}})
    place.follow()
    for load in range(5):
        place.compute({FIRST: {"a": load}})
    lose_commits(place, 1, 2, 3, 5)
    for version in (1, 2, 3, 5) if damage is not None else ():
        (place.folder / HEARTBEAT_DIFFS / "_delta_log" / f"{version:020d}.json").write_bytes(damage)
    assert [place.follow(), place.follow()] == [4, 0]
    later, unknown = [row for row in place.noted() if row["change"] == "unknown"]
    assert [(row["window"], row["table_version"]) for row in (later, unknown)] == [(None, 5), (None, 3)]
    assert place.noted()[:2] == [later, unknown], "when it was is not known, so it comes first"
    assert unknown in place.lake.corrections().newest(Sought(since=at(2000)), EVERY)
    assert "versions 2 to 3 are gone or damaged" in unknown["detail"]
    place.compute({FIRST: {"a": 5}})
    followed = FollowedTable(HEARTBEAT_DIFFS, place.lake.diffs(), DIFFS_KEY)
    assert follow(place.lake.corrections(), followed, ManualClock(at(0).replace(year=2100))) == 1
    assert place.lake.corrections().newest(Sought(since=at(0).replace(year=2099)), EVERY) == [], (
        "it was replaced before"
    )
    assert [place.said()[changed(load + 2, FIRST, "a", load - 1, load)] for load in range(6)] == [0, 0, 1, 0, 1, 1]


def test_a_silent_lake_leaves_the_corrections_to_the_next_look(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.compute({FIRST: {"a": 1}})
    place.compute({FIRST: {"a": 2}})
    for module, name, fault in (
        (corrected, "_read", LakeUnreachable("no answer")),
        (pq, "read_table", OSError(errno.EMFILE, "Too many open files")),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(module, name, raising(fault))
            with pytest.raises(LakeError, match=str(fault.args[-1])):
                place.follow()
    assert place.noted() == []
    assert place.follow() == 1


def lose_commits(place: Place, *versions: int) -> None:
    """As housekeeping leaves a log: a checkpoint, and commits before it are gone."""
    place.lake.diffs().table.current().create_checkpoint()
    for version in (0, *versions):
        (place.folder / HEARTBEAT_DIFFS / "_delta_log" / f"{version:020d}.json").unlink()
