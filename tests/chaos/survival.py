"""A short chaos run, and then a start without Dagster's storage: what has to be right afterwards."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from tests.chaos.house import House, is_a_setting, until, until_running, up
from tests.chaos.plan import Target, Trouble, plan_of
from tests.chaos.play import Asked, play
from tidemark.local.demo.synthetic_beats import SyntheticSource
from tidemark.pipeline.clock import Clock

COMPUTED_WITHIN_SECONDS = 180
REPORT_EVERY_SECONDS = 2.0
LOG_END = 3000
"""Characters of each service's log that a failure shows."""

SEED = 3


def asked_of(folder: Path, killed: tuple[Target, ...]) -> Asked:
    """These kills, and an emulator paused until deadlines expire, while some minutes of backlog are computed."""
    return Asked(
        plan=plan_of(SEED, len(killed), (Trouble.PAUSED,), killed, gap_seconds=(4.0, 8.0)),
        folder=folder,
        source=SyntheticSource(streams=60, jitter=timedelta(seconds=1), duplicates=0.05, broken=0.01),
        backlog=timedelta(minutes=4),
        band="2s",
        tick="2s",
        idle_timeout="12s",
        live=False,
    )


def without_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings in the environment; Dagster's storage, which playing puts there, is put back as it was."""
    for name in filter(is_a_setting, list(os.environ)):
        monkeypatch.delenv(name)
    monkeypatch.setenv("TIDEMARK_DAGSTER_STORAGE", "to be put back as it was")
    monkeypatch.delenv("TIDEMARK_DAGSTER_STORAGE")


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


@contextmanager
def logs_of_a_failure(house: House) -> Iterator[None]:
    """Print the end of each service's log if the block fails."""
    try:
        yield
    except BaseException:
        for log in (house.output, *sorted((house.state / "logs").glob("*.log"))):
            print(f"--- the end of {log.name}\n{log.read_text(errors='replace')[-LOG_END:]}")
        raise


def check_that_it_survives(asked: Asked, house: House, clock: Clock) -> None:
    """Play it, start it again without Dagster's storage, and compare every row with the truth both times."""
    with logs_of_a_failure(house):
        summary = play(asked, house, print, clock)
    assert summary.problems == []
    assert summary.comparison.rows > 0
    assert summary.published.duplicates > 0
    assert sum(summary.published.broken.values()) > 0

    first = house.report()
    assert first is not None
    shutil.rmtree(house.settings.dagster.storage)
    with logs_of_a_failure(house), up(house) as running:
        until_running(house, running.process)
        goes_on = GoesOn(house, first.state.number + 3)
        what = "it has decided again and computed what waited"
        until(what, goes_on, COMPUTED_WITHIN_SECONDS, running.process, REPORT_EVERY_SECONDS)
    assert (running.process.returncode, running.left_over) == (0, [])
    second = house.report()
    assert second is not None
    assert first.state.watermark is not None
    assert second.state.watermark is not None
    assert second.state.watermark >= first.state.watermark
    assert {key: second.computed[key] for key in first.computed} == dict(first.computed)
    again = house.compared()
    assert (again.rows, again.differences, again.missed) == (summary.comparison.rows, 0, 0)
