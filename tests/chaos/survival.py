"""A short chaos run: what is asked, and what has to be right afterwards."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from tests.chaos.house import House, is_a_setting
from tests.chaos.plan import Target, Trouble, plan_of
from tests.chaos.play import Asked, play
from tests.chaos.summary import Summary
from tidemark.local.demo.synthetic_beats import SyntheticSource
from tidemark.pipeline.clock import Clock

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


@contextmanager
def logs_of_a_failure(house: House) -> Iterator[None]:
    """Print the end of each service's log if the block fails."""
    try:
        yield
    except BaseException:
        for log in (house.output, *sorted((house.state / "logs").glob("*.log"))):
            print(f"--- the end of {log.name}\n{log.read_text(errors='replace')[-LOG_END:]}")
        raise


def check_that_it_survives(asked: Asked, house: House, clock: Clock) -> Summary:
    """Play it, and compare every row with the truth."""
    with logs_of_a_failure(house):
        summary = play(asked, house, print, clock)
    assert summary.problems == []
    assert summary.comparison.rows > 0
    assert summary.published.duplicates > 0
    assert sum(summary.published.broken.values()) > 0
    return summary
