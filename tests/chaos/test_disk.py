"""The lake's own disk in a chaos run: real where it may be mounted, and otherwise said to be missing."""

from pathlib import Path

import pytest

from tests.chaos.disk import small_disk, why_none


@pytest.mark.skipif(why_none() is not None, reason="a tmpfs cannot be mounted here")
def test_a_small_disk_gets_full_and_what_was_on_it_is_there_afterwards(tmp_path: Path) -> None:
    with small_disk(tmp_path / "lake", 1) as reason:
        if reason is not None:
            pytest.skip(reason)
        (tmp_path / "lake" / "name").write_text("content")
        with pytest.raises(OSError, match="No space left"), (tmp_path / "lake" / "filler").open("wb") as filler:
            filler.write(bytes(2 << 20))
        (tmp_path / "lake" / "filler").unlink()
    assert not (tmp_path / "lake").is_mount()
    assert [path.name for path in tmp_path.rglob("*")] == ["lake", "name"]
