"""Two pipelines and a foreign project in one instance."""

from pathlib import Path

import pytest

from tests.guests.play import NAMES, play


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_both_pipelines_are_right_and_every_foreign_event_is_there(tmp_path: Path) -> None:
    seen = play(tmp_path, print)
    wrong = {name: (found.differences, found.missed, found.late) for name, found in seen.compared.items()}
    assert wrong == dict.fromkeys(NAMES, (0, 0, 0))
    assert all(found.rows > 0 for found in seen.compared.values())
    assert seen.reported > 3
    assert seen.materializations >= seen.reported
    assert seen.evaluations >= seen.reported
    assert seen.ingests == ["STARTED"]
    assert seen.downstream > 0
