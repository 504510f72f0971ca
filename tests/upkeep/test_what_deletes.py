"""The documents name every module that deletes something in the lake."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DELETES = re.compile(r"\.(delete|keep_newest|unlink|vacuum|rmtree|rmdir)\(|cleanup_metadata\(|def remove_orphans\(")
ELSEWHERE = {"services/processes.py", "doctor/measure/traffic.py", "doctor/measure/facts.py"}
"""They delete their own notes, topics and unfinished files, outside of the lake."""

STORES = {f"lake/store/{name}.py" for name in ("gcs", "admission", "notes")}
"""They delete what they are told to, and nothing by themselves."""


def test_every_module_that_deletes_a_file_is_in_the_table_of_what_deletes_one() -> None:
    text = (ROOT / "docs" / "how-to" / "housekeeping.md").read_text()
    deleting = {
        path.relative_to(room).as_posix()
        for room in (ROOT / "pipeline", ROOT / "local")
        for path in room.rglob("*.py")
        if DELETES.search(path.read_text())
    }
    assert {"lake/log/packing.py", "upkeep/orphans.py", "upkeep/housekeeping.py"} < deleting
    named = {module for module in deleting if module in text}
    assert deleting - named - ELSEWHERE - STORES == set()
