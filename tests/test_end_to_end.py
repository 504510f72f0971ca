"""The whole of it on real parts, started as a person starts it: a short chaos run, and then started anew.

The chaos run, with two of the kills, is also played with the built wheel: `tests/wheel`.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.chaos.house import House, until, until_running, up
from tests.chaos.plan import Target
from tests.chaos.play import house_of
from tests.chaos.survival import asked_of, check_that_it_survives, logs_of_a_failure, without_settings
from tidemark.pipeline.clock import SystemClock

KILLED = (Target.CODE_SERVER, Target.DAEMON, Target.RUN, Target.SPARK)
COMPUTED_WITHIN_SECONDS = 180
REPORT_EVERY_SECONDS = 2.0


@dataclass
class GoesOn:
    """Whether a decision of this number is made, and the windows that wait then are computed. Windows that close later
    do not count: a slow machine always has one more."""

    house: House
    decided: int
    awaited: set[str] | None = None

    def __call__(self) -> bool:
        report = self.house.report()
        if report is None or report.state.number < self.decided:
            return False
        if self.awaited is None:
            self.awaited = {window.key for window in self.house.waiting(report.state.watermark)}
        return self.awaited <= report.computed.keys()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_row_is_right_after_chaos_and_without_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_settings(monkeypatch)
    clock = SystemClock()
    asked = asked_of(tmp_path / "house", KILLED)
    house: House = house_of(asked, clock)
    summary = check_that_it_survives(asked, house, clock)
    first = house.report()
    shutil.rmtree(house.settings.dagster.storage)
    with logs_of_a_failure(house), up(house) as running:
        until_running(house, running.process)
        goes_on = GoesOn(house, first.state.number + 3)
        what = "it has decided again and computed what waited"
        until(what, goes_on, COMPUTED_WITHIN_SECONDS, running.process, REPORT_EVERY_SECONDS)
    assert (running.process.returncode, running.left_over) == (0, [])
    second = house.report()
    assert second.state.watermark >= first.state.watermark
    assert {key: second.computed[key] for key in first.computed} == dict(first.computed)
    again = house.compared()
    assert (again.rows, again.differences, again.missed) == (summary.comparison.rows, 0, 0)
