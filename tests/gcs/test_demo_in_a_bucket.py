"""The demonstration with its lake in a bucket: it refuses a used lake, and copies its tables for the comparison."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.lake.builders import Beat, append_beats, columns_of, lake_of
from tidemark.local.demo.script import copy_tables, refuse_used
from tidemark.pipeline.errors import LakeError
from tidemark.pipeline.settings_sections import LakeSettings

pytestmark = pytest.mark.gcs


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
