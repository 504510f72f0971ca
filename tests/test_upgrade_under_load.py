"""An upgrade and a rollback while sources publish."""

from pathlib import Path

import pytest

from tests.upgrade_under_load import play


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_upgrade_and_a_rollback_under_load_lose_nothing_and_count_nothing_twice(tmp_path: Path) -> None:
    figures = play(tmp_path / "place")
    assert (figures["lost"], figures["wrong"], figures["formats"]) == (0, 0, ["000001.json", "000002.json"])
    assert figures["published"] > 0
