"""The whole of it on real parts, started as a person starts it: a short chaos run, and then started anew.

The same, but for two of the kills, is played with the built wheel: `tests/wheel`.
"""

from pathlib import Path

import pytest

from tests.chaos.house import House
from tests.chaos.plan import Target
from tests.chaos.play import house_of
from tests.chaos.survival import asked_of, check_that_it_survives, without_settings
from tidemark.pipeline.clock import SystemClock

KILLED = (Target.CODE_SERVER, Target.DAEMON, Target.RUN, Target.SPARK)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_after_a_short_chaos_run_and_a_start_without_its_storage_every_row_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_settings(monkeypatch)
    clock = SystemClock()
    asked = asked_of(tmp_path / "house", KILLED)
    house: House = house_of(asked, clock)
    check_that_it_survives(asked, house, clock)
