"""A bucket's objects as Arrow's files, and the demonstration's tables in a bucket."""

import os
import pickle
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.gcs.fault_proxy import FaultProxy
from tests.lake.builders import Beat, append_beats, columns_of, lake_of
from tidemark.local.demo.script import copy_tables, refuse_used
from tidemark.pipeline.errors import LakeError
from tidemark.pipeline.lake.store.address import arrow_files, open_objects
from tidemark.pipeline.lake.store.gcs import WHOLE_BYTES
from tidemark.pipeline.settings_sections import LakeSettings

pytestmark = pytest.mark.gcs


@pytest.fixture
def files(lake_apart: LakeSettings, proxy: FaultProxy) -> pafs.FileSystem:
    """The folder of a table, behind the proxy that counts."""
    return arrow_files(lake_apart.model_copy(update={"endpoint": proxy.endpoint}), "table")


def write(files: pafs.FileSystem, path: str, content: bytes) -> None:
    with files.open_output_stream(path) as out:
        out.write(content)


def test_a_file_is_found_listed_and_read_also_in_another_process_and_never_written_over(files: pafs.FileSystem) -> None:
    write(files, "a/one", b"content")
    write(files, "a/b/two", b"")
    found = files.get_file_info("a/one")
    assert (found.type, found.size) == (pafs.FileType.File, 7)
    assert abs(found.mtime - datetime.now(UTC)) < timedelta(hours=1)
    assert files.open_input_stream("a/one").read() == b"content"
    assert files.open_input_stream("a/b/two").read() == b""
    for recursive, paths in ((False, ["a/b", "a/one"]), (True, ["a/b/two", "a/one"])):
        listed = files.get_file_info(pafs.FileSelector("a", recursive=recursive))
        assert [info.path for info in listed] == paths
        assert [info.is_file for info in listed] == [recursive, True], "a common prefix is a folder"
    with pytest.raises(FileExistsError):
        write(files, "a/one", b"second")
    elsewhere = pickle.loads(pickle.dumps(files))  # noqa: S301 (our own)
    assert elsewhere.open_input_stream("a/one").read() == b"content"
    assert files.get_file_info("b").type == pafs.FileType.NotFound
    with pytest.raises(FileNotFoundError):
        files.open_input_file("b")


def test_files_of_rows_are_kept_if_asked_for_the_logs_never(lake_apart: LakeSettings, proxy: FaultProxy) -> None:
    behind_proxy = lake_apart.model_copy(update={"endpoint": proxy.endpoint})
    files = arrow_files(behind_proxy, "table", kept_bytes=10)
    for path, content in (("part=1/a", b"123456"), ("part=1/b", b"1234"), ("c", b"12345678901"), ("_log/d", b"1")):
        write(files, path, content)
        proxy.calls()
        assert [files.open_input_file(path).read() for _ in range(3)] == [content] * 3
        assert len(proxy.calls()) == (1 if path.startswith("part=1/") else 3)
    open_objects(behind_proxy).delete("table/part=1/a")
    assert files.open_input_file("part=1/a").read() == b"123456"
    write(files, "part=1/e", b"12345")
    assert files.open_input_file("part=1/e").read() == b"12345"
    open_objects(behind_proxy).delete("table/part=1/e")
    write(files, "part=1/e", b"54321")  # as a restored backup
    assert files.open_input_stream("part=1/e").read() == files.open_input_file("part=1/e").read() == b"54321"
    proxy.calls()
    files.open_input_file("part=1/b")  # the one that was not read for the longest time made room
    assert len(proxy.calls()) == 1


def test_a_large_parquet_file_is_read_range_by_range_and_comes_back_whole(files: pafs.FileSystem) -> None:
    noise = [os.urandom(1 << 20) for _ in range(2 * WHOLE_BYTES >> 20)]
    rows = pa.table({"number": range(len(noise)), "noise": noise})
    pq.write_table(rows, "large.parquet", filesystem=files, row_group_size=3)
    assert files.get_file_info("large.parquet").size > WHOLE_BYTES
    assert pq.read_table("large.parquet", filesystem=files) == rows
    assert pq.read_metadata("large.parquet", filesystem=files).num_rows == len(noise)


def test_its_tables_are_copied_whole_and_a_used_lake_is_refused(lake_apart: LakeSettings, tmp_path: Path) -> None:
    refuse_used(lake_apart)
    heartbeats = lake_of(lake_apart).heartbeats()
    for number in range(2):
        append_beats(heartbeats, columns_of([Beat("a", 30.0 * number)]))
    with pytest.raises(LakeError, match="name another prefix"):
        refuse_used(lake_apart)
    copy_tables(lake_apart, tmp_path / "copy")
    copied = pa.table(DeltaTable(tmp_path / "copy" / "heartbeats").to_pyarrow_table())
    assert copied["message_id"].to_pylist() == ["a@30.0", "a@0.0"]
