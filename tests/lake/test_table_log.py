"""A table that is opened from copies of its log, beside the same table as the Delta library opens it in place."""

import json
import re
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pyarrow as pa
import pytest
from deltalake import DeltaTable, PostCommitHookProperties
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction

from tests.pubsub.builders import raising
from tidemark.pipeline.errors import CorruptObject, LakeError, TableConflict
from tidemark.pipeline.lake.store.disk import DiskObjects
from tidemark.pipeline.lake.tables import table_log
from tidemark.pipeline.lake.tables.delta_log import commits
from tidemark.pipeline.lake.tables.handed_commits import ACCEPTED
from tidemark.pipeline.lake.tables.table import LakeTable
from tidemark.pipeline.lake.tables.table_log import LAST_CHECKPOINT, TableLog, commit_name
from tidemark.pipeline.settings_sections import LakeSettings

SCHEMA = pa.schema({"stream_id": pa.string(), "event_hour": pa.string()})
EVERY = 5
"""Number of commits between two checkpoints."""


class Death(BaseException):
    """The process is gone."""


class Mortal(DiskObjects):
    """Objects of a process that dies after some of its writes."""

    writes_left = 1_000

    def _live(self) -> None:
        if self.writes_left == 0:
            raise Death
        self.writes_left -= 1

    def create(self, name: str, content: bytes) -> None:
        self._live()
        super().create(name, content)

    def replace(self, name: str, content: bytes, generation: int) -> int:
        self._live()
        return super().replace(name, content, generation)


class Stopping(DiskObjects):
    """Objects of a process that is stopped before one of its calls, while something happens to the table."""

    calls_left = 1_000

    def __init__(self, place: Path, meanwhile: Callable[[], object]) -> None:
        super().__init__(place)
        self._meanwhile = meanwhile

    def _stop(self) -> None:
        self.calls_left -= 1
        if self.calls_left == -1:
            self._meanwhile()

    def create(self, name: str, content: bytes) -> None:
        self._stop()
        super().create(name, content)

    def read(self, name: str) -> bytes:
        self._stop()
        return super().read(name)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty table."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return created(tmp_path / "table")


def created(place: Path) -> Path:
    configuration = {"delta.checkpointInterval": str(EVERY)}
    DeltaTable.create(place, SCHEMA, partition_by=["event_hour"], configuration=configuration)
    return place


def add(table: DeltaTable, path: str, hooks: PostCommitHookProperties | None = None) -> None:
    action = AddAction(path, 1, {"event_hour": "a"}, 0, data_change=True, stats='{"numRecords": 1}')
    made = {"partition_by": ["event_hour"], "post_commithook_properties": hooks}
    table.create_write_transaction([action], "append", table.schema(), **made)


def commit(log: TableLog, table: DeltaTable, path: str) -> None:
    with log.committing(table) as hooks:
        add(table, path, hooks)


def opened(place: Path, objects: DiskObjects | None = None) -> tuple[TableLog, DeltaTable]:
    log = TableLog(objects or DiskObjects(place), partial(DeltaTable, place), copies=True)
    return log, log.open()


def is_copied(table: DeltaTable, place: Path) -> bool:
    return str(place) not in table.table_uri


def content(table: DeltaTable) -> tuple[int, set[str]]:
    assert table.partitions() in ([], [{"event_hour": "a"}])
    return table.version(), set(table.get_add_actions()["path"].to_pylist())


def test_it_follows_commits_of_others_and_its_own_become_the_tables(place: Path, tmp_path: Path) -> None:
    log, table = opened(place)
    for number in range(8):
        add(DeltaTable(place), f"theirs-{number}")
        assert log.update(table)
        commit(log, table, f"ours-{number}")
        assert log.is_unchanged(table)
        assert content(table) == content(DeltaTable(place)) == content(opened(place)[1])
    assert is_copied(table, place)
    assert len(content(table)[1]) == 16
    assert json.loads((place / LAST_CHECKPOINT).read_bytes())["version"] == 14  # its own commit; it skipped none
    assert sorted(path.name[:20] for path in place.rglob("*.checkpoint.parquet")) == [f"{at:020}" for at in (4, 9, 14)]
    assert not list((tmp_path / "temporary").glob("tidemark-log-*"))


def test_a_commit_that_another_writer_was_first_with_is_a_conflict_and_nothing_of_it_stays(place: Path) -> None:
    log, table = opened(place)
    add(DeltaTable(place), "theirs")
    with pytest.raises(TableConflict):
        commit(log, table, "ours")
    assert log.update(table)
    assert content(table) == content(DeltaTable(place)) == (1, {"theirs"})


def clean_up_after_others(place: Path) -> None:
    """Days pass."""
    for number in range(EVERY):
        add(DeltaTable(place), f"theirs-{number}")
    for version in range(EVERY - 1):
        (place / commit_name(version)).unlink()  # a checkpoint contains it
    table_log.BELIEVED_FOR = timedelta(0)


@pytest.fixture
def stopping(place: Path, monkeypatch: pytest.MonkeyPatch) -> Stopping:
    monkeypatch.setattr(table_log, "BELIEVED_FOR", table_log.BELIEVED_FOR)
    return Stopping(place, partial(clean_up_after_others, place))


@pytest.mark.parametrize("is_about_to_upload", [False, True])
def test_a_writer_stopped_in_cleanup_is_too_late(place: Path, stopping: Stopping, *, is_about_to_upload: bool) -> None:
    log, table = opened(place, stopping)
    if is_about_to_upload:
        stopping.calls_left = 0
    else:
        clean_up_after_others(place)
    with pytest.raises(TableConflict, match="long ago" if is_about_to_upload else "another writer has committed to"):
        commit(log, table, "ours")
    assert not (place / commit_name(1)).exists()
    assert content(opened(place)[1]) == content(DeltaTable(place)) == (EVERY, {f"theirs-{n}" for n in range(EVERY)})


@pytest.mark.parametrize("calls", range(2))
def test_a_reader_stopped_between_reads_takes_no_old_version(place: Path, stopping: Stopping, calls: int) -> None:
    log, table = opened(place, stopping)
    stopping.calls_left = calls
    assert not log.update(table)


@pytest.mark.parametrize("known", [0, 2])
@pytest.mark.parametrize("calls", range(6))
def test_a_table_created_again_between_two_reads_is_not_mixed_with_it(place: Path, calls: int, known: int) -> None:
    def filled(name: str) -> list[bytes]:
        for number in range(3):
            add(DeltaTable(place), f"{name}-{number}")
        return [(place / commit_name(version)).read_bytes() for version in range(4)]

    def create_again() -> None:
        shutil.rmtree(place)
        created(place)
        tables.append(filled("later"))

    tables = [filled("earlier")]
    objects = Stopping(place, create_again)
    log = TableLog(objects, partial(DeltaTable, place), copies=True)
    log.between(0, known)
    objects.calls_left = calls
    assert log.since(0) in tables
    assert log.between(1, 3) in [table[1:] for table in tables]
    objects.calls_left = 0 if len(tables) == 1 else -1
    assert log.since(0) == tables[-1]


@pytest.mark.parametrize("stated", [10**18, "yesterday", [1], {"ms": 1}])
def test_a_commit_with_an_odd_time_is_damaged(place: Path, stated: object) -> None:
    add(DeltaTable(place), "theirs")
    newest = place / commit_name(1)
    newest.write_text(re.sub(r'"timestamp":\d+', f'"timestamp":{json.dumps(stated)}', newest.read_text()))
    with pytest.raises(CorruptObject, match="restore a backup"):
        opened(place)
    log = SimpleNamespace(between=lambda *_: [newest.read_bytes()])
    table = cast("LakeTable", SimpleNamespace(log=log, uri="table", partition_column="event_hour"))
    with pytest.raises(CorruptObject, match=f"{commit_name(1)} is damaged"):
        commits(table, 0, 1)


@pytest.mark.parametrize("writes", range(4))
def test_a_process_that_dies_in_a_commit_leaves_a_table_that_all_can_read_and_write(place: Path, writes: int) -> None:
    for number in range(8):
        add(DeltaTable(place), f"earlier-{number}")
    objects = Mortal(place)
    log, table = opened(place, objects)
    objects.writes_left = writes  # the commit, the checkpoint, and the pointer to it
    with suppress(Death):
        commit(log, table, "ours")
    assert ("ours" in content(DeltaTable(place))[1]) is (writes > 0)
    assert content(opened(place)[1]) == content(DeltaTable(place))
    for number in range(2 * EVERY):
        log, table = opened(place)
        commit(log, table, f"later-{number}")
        assert content(table) == content(DeltaTable(place)) == content(opened(place)[1])
    assert json.loads((place / LAST_CHECKPOINT).read_bytes())["version"] >= 14


def test_a_table_that_was_created_again_is_noticed(place: Path) -> None:
    log, table = opened(place)
    shutil.rmtree(place)
    assert not log.is_unchanged(table)
    add(DeltaTable(created(place)), "another")
    assert not log.is_unchanged(table)
    assert not log.update(table)


@pytest.mark.parametrize(
    "pointer", ["", "null", "[]", '{"version": null}', '{"version": 99}', '{"version": 3, "parts": 2}']
)
def test_a_pointer_of_another_tool_fails_no_commit_and_the_library_opens_the_table(place: Path, pointer: str) -> None:
    log, table = opened(place)
    (place / LAST_CHECKPOINT).write_text(pointer)
    for number in range(EVERY):  # of which one is to be followed by a checkpoint
        commit(log, table, f"ours-{number}")
    assert not list(place.rglob("*.checkpoint.parquet"))
    add(DeltaTable(place), "theirs")
    log, table = opened(place)
    assert not is_copied(table, place)
    assert content(table) == content(DeltaTable(place))
    assert len(content(table)[1]) == EVERY + 1


def test_a_commit_of_another_tool_without_its_time_leaves_the_question_to_the_library(place: Path) -> None:
    add(DeltaTable(place), "theirs")
    newest = place / commit_name(1)
    newest.write_text(re.sub(r'"timestamp":\d+', '"timestamp":null', newest.read_text()))
    log, table = opened(place)
    commit(log, table, "ours")
    assert content(table) == content(DeltaTable(place)) == (2, {"theirs", "ours"})


def test_copies_that_cannot_be_written_are_an_error_that_names_their_place(place: Path, tmp_path: Path) -> None:
    (tmp_path / "temporary").rmdir()
    (tmp_path / "temporary").write_text("a file")
    with pytest.raises(LakeError, match=r"temporary/tidemark-log-"):
        opened(place)


def test_only_copies_need_a_temporary_folder(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", raising(FileNotFoundError("No usable temporary directory found")))
    log = TableLog(DiskObjects(place), partial(DeltaTable, place), copies=False)
    commit(log, log.open(), "ours")
    assert content(DeltaTable(place)) == (1, {"ours"})
    with pytest.raises(LakeError, match="set TMPDIR"):
        opened(place)


def test_a_log_that_the_pointer_does_not_lead_through_is_left_to_the_library(place: Path) -> None:
    pointer, pointers = place / LAST_CHECKPOINT, []
    for number in range(9):
        add(DeltaTable(place), f"theirs-{number}")
        pointers += [pointer.read_bytes()] if pointer.exists() else []
    pointer.write_bytes(pointers[0])  # and commits were cleaned up after a checkpoint that it does not name
    for number in range(5, 9):
        (pointer.parent / f"{number:020}.json").unlink()
    old = pointer.parent / f"{4:020}.json"
    old.write_text(old.read_text().replace('"timestamp":1', '"timestamp":'))  # long ago
    log, table = opened(place)
    assert not is_copied(table, place)
    for number in range(3):  # and its commits are the library's
        commit(log, table, f"ours-{number}")
        assert content(table) == content(DeltaTable(place))


def test_a_table_that_is_created_while_it_is_opened_is_open_from_copies(tmp_path: Path) -> None:
    place = tmp_path / "table"
    assert is_copied(TableLog(DiskObjects(place), lambda: DeltaTable(created(place)), copies=True).open(), place)


def test_commits_of_this_process_are_not_read_again_by_those_who_follow_them(place: Path) -> None:
    log, table = opened(place)
    for number in range(3):  # before the first checkpoint
        commit(log, table, f"ours-{number}")
    contents = [log.read(version) for version in range(4)]
    for version in range(3):
        (place / commit_name(version)).unlink()
    assert TableLog(DiskObjects(place), partial(DeltaTable, place), copies=True).since(0) == contents


def damaged(_: Path, file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1] + b" ")


def open_to_all(_: Path, file: Path) -> None:
    file.parent.chmod(0o755)


def gone(_: Path, file: Path) -> None:
    file.unlink()


def of_the_table_before(place: Path, _: Path) -> None:
    shutil.rmtree(place)
    created(place)
    for number in range(8):
        add(DeltaTable(place), f"later-{number}")


def of_long_ago(place: Path, _: Path) -> None:
    for number in range(3 * EVERY):
        add(DeltaTable(place), f"later-{number}")


def in_another_process(monkeypatch: pytest.MonkeyPatch, *, accepts: bool) -> None:
    """What this process has read is only in the file that it handed on."""
    table_log._read.clear()
    monkeypatch.setattr(ACCEPTED, "is_set", lambda: accepts)


@pytest.mark.parametrize("happens", [None, damaged, open_to_all, gone, of_the_table_before, of_long_ago])
@pytest.mark.parametrize("accepts", [True, False])
def test_a_run_does_not_read_again_what_another_process_has_handed_on(
    place: Path, monkeypatch: pytest.MonkeyPatch, happens: Callable[[Path, Path], None] | None, *, accepts: bool
) -> None:
    log, table = opened(place)
    for number in range(8):
        commit(log, table, f"ours-{number}")
    in_another_process(monkeypatch, accepts=accepts)
    if happens is not None:
        (file,) = (place.parent / "temporary").glob("tidemark-commits-*/*")
        happens(place, file)
    objects = Stopping(place, lambda: None)
    assert content(opened(place, objects)[1]) == content(DeltaTable(place))
    # The pointer, the checkpoint, the commit that was handed on last, and none after it.
    assert (1_000 - objects.calls_left == 4) is (accepts and happens is None)


@pytest.mark.parametrize("broken", [b"{no json", b"\xff\n", b""])
def test_a_restored_commit_is_read_again_by_all(place: Path, monkeypatch: pytest.MonkeyPatch, broken: bytes) -> None:
    for number in range(3):
        add(DeltaTable(place), f"theirs-{number}")
    whole = (place / commit_name(2)).read_bytes()
    (place / commit_name(2)).write_bytes(broken)
    with pytest.raises((DeltaError, CorruptObject)):
        opened(place)
    in_another_process(monkeypatch, accepts=True)
    with pytest.raises((DeltaError, CorruptObject)):
        opened(place)
    (place / commit_name(2)).write_bytes(whole)
    assert content(opened(place)[1]) == content(DeltaTable(place))


@pytest.mark.parametrize("is_writer", [False, True])
def test_many_commits_open_a_table_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_writer: bool) -> None:
    monkeypatch.setattr(table_log, "FOLLOWED_AT_MOST", 3)
    opens = list[int]()

    class Counted(TableLog):
        def open(self) -> DeltaTable:
            table = super().open()
            opens.append(table.version())
            return table

    lake = LakeSettings(uri=f"file:{tmp_path}")
    place = tmp_path / "table"
    LakeTable(lake, "table", "event_hour").complete(SCHEMA)
    table = LakeTable(lake, "table", "event_hour")
    table.log = Counted(DiskObjects(place), partial(DeltaTable, place), copies=True)
    first = DeltaTable(place).version()
    for number in range(12):
        if is_writer:  # it updates the table by its commits alone
            commit(table.log, table.complete(SCHEMA, as_open=True), f"ours-{number}")
        else:
            add(DeltaTable(place), f"theirs-{number}")
            assert content(table.current() or DeltaTable(place)) == content(DeltaTable(place))
    assert content(DeltaTable(place))[0] == first + 12
    assert opens == ([first, first + 4, first + 8] if is_writer else [first + 1, first + 6, first + 11])
