"""What the demonstration does where its lake is in a bucket: it takes no used one, and compares what is there."""

from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.gcs.counting import Class, calls_in
from tests.gcs.demo import BUCKET, counting_server
from tests.lake.builders import Beat, append_beats, columns_of, lake_of
from tidemark.local.demo.script import copy_tables, refuse_used
from tidemark.pipeline.errors import LakeError
from tidemark.pipeline.settings_sections import LakeSettings

pytestmark = pytest.mark.gcs


def test_its_tables_are_copied_whole_its_calls_are_counted_and_a_used_lake_is_refused(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    with counting_server(calls) as endpoint:
        settings = LakeSettings(uri=f"gs://{BUCKET}/lake", endpoint=endpoint)
        refuse_used(settings)
        heartbeats = lake_of(settings).heartbeats()
        for number in range(2):
            append_beats(heartbeats, columns_of([Beat("a", 30.0 * number)]))
        with pytest.raises(LakeError, match="name another prefix"):
            refuse_used(settings)
        copy_tables(settings, tmp_path / "copy")
    copied = pa.table(DeltaTable(tmp_path / "copy" / "heartbeats").to_pyarrow_table())
    assert copied["message_id"].to_pylist() == ["a@30.0", "a@0.0"]
    written = [call for call in calls_in(calls) if call.kind == "create" and call.charge is Class.A]
    commits = [f"lake/heartbeats/_delta_log/{version:020}.json" for version in range(3)]  # the first makes the table
    assert [call.name for call in written if call.name.endswith(".json")] == ["lake/format/000001.json", *commits]
    assert len(written) == 6  # with a file of each append
    assert {call.process for call in written} == {" ".join(psutil.Process().cmdline())}
