"""A lake that housekeeping and repair look at: its tables are made once for each kind of test, and copied."""

import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.clock import ManualClock
from tests.lake.builders import Beat, lake_in
from tests.quality.staleness_history import LENGTH, LOOKBACK, History, new_history
from tests.watermark.builders import START, at, reading
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import HousekeepingSettings, LakeSettings, WindowSettings
from tidemark.pipeline.watermark.decision import Decision, Reason
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.readings import follow
from tidemark.pipeline.watermark.state import Beginning, DecisionRecord

Moments = Sequence[Sequence[float]]
"""The event times, in seconds from the start, of the streams `a` and `b` in each batch that lands."""


class House:
    """A lake in which batches have landed, and runs have computed windows since; and a watermark."""

    def __init__(
        self, folder: Path, batches: Moments, runs: Sequence[tuple[int, int]], now: float, watermark: float = 600
    ) -> None:
        made, history = _made(tuple(map(tuple, batches)), tuple(runs))
        self.folder = Path(shutil.copytree(f"{made.name}/lake", folder / "lake"))
        landed, computed = [*history.landed], dict(history.computed)
        self.history = replace(history, lake=lake_in(folder), folder=folder, landed=landed, computed=computed)
        self.lake, self.clock = self.history.lake, ManualClock(at(now))
        self.log = self.lake.tracking_log()
        self.log.begin(Beginning(START))
        self.decide(watermark)

    def settings(self, **keep: object) -> Settings:
        return Settings(
            windows=WindowSettings(length=LENGTH, lookback=LOOKBACK, first=START),
            lake=LakeSettings(uri=f"file:{self.folder}"),
            housekeeping=HousekeepingSettings.model_validate(keep),
        )

    def decide(self, watermark: float, read: float | None = None) -> None:
        tracking = None if read is None else follow(None, reading(read), timedelta(0))
        decision = Decision(at=at(watermark), watermark=at(watermark), reason=Reason.ADVANCED, tracking=tracking)
        self.log.append(DecisionRecord(decision, None, None, Policy()))

    def age(self, by: timedelta) -> None:
        """Make every file older, except one that was just written."""
        for path in filter(Path.is_file, self.folder.rglob("*")):
            stamp = path.stat().st_mtime - by.total_seconds()
            os.utime(path, (stamp, stamp))
        (self.folder / "just-written").touch()

    def everything(self) -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in self.folder.rglob("*") if path.is_file()}


@cache
def _made(
    batches: tuple[tuple[float, ...], ...], runs: tuple[tuple[int, int], ...]
) -> tuple[TemporaryDirectory[str], History]:
    folder = TemporaryDirectory(prefix="tidemark-house-")
    history = new_history(Path(folder.name))
    for moments in batches:
        history.land([Beat(stream, moment) for stream, moment in zip("ab", moments, strict=True)])
    for first, last in runs:
        history.compute(first, last)
    return folder, history
