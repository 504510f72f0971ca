"""Waiting for the lake while the pipeline runs. It reads the lake alone and never asks the pipeline."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

from pipeline.clock import Clock, iso
from pipeline.demo.synthetic import Source
from pipeline.durations import format_duration
from pipeline.errors import LakeError, ServiceFailed
from pipeline.lake.layout import Lake
from pipeline.quality.status import LakeReport, read_report
from pipeline.services.processes import Supervisor
from pipeline.settings import Settings

LOOK_EVERY_SECONDS = 2.0
SAY_EVERY_SECONDS = 10.0
PATIENCE = timedelta(minutes=8)
"""The longest that one wait may take before something is wrong."""


@dataclass
class Watch:
    """Waits for what the lake should come to hold, and prints what it sees meanwhile."""

    settings: Settings
    source: Source
    supervisor: Supervisor
    clock: Clock
    say: Callable[[str], None]
    _said: float = 0.0

    def __post_init__(self) -> None:
        self._lake = Lake(self.settings.lake, self.settings.message.fields, self.clock)
        self._log = self._lake.tracking_log()

    def until_landed(self, messages: int) -> None:
        """Wait until this many rows have landed."""
        self._until(lambda report: report.landed_rows >= messages)

    def for_a_while(self, duration: timedelta) -> None:
        """Let live traffic go on."""
        until = self.clock.monotonic() + duration.total_seconds()
        self._until(lambda _: self.clock.monotonic() >= until)

    def until_computed(self, windows: set[str]) -> LakeReport:
        """Wait until all of these windows are computed."""
        return self._until(lambda report: windows <= set(report.computed))

    def _until(self, reached: Callable[[LakeReport], bool]) -> LakeReport:
        began = self.clock.monotonic()
        while self.clock.monotonic() - began < PATIENCE.total_seconds():
            self.supervisor.restart_what_died()
            self.source.raise_failure()
            with suppress(LakeError):  # a table that is being created cannot be read yet
                report = read_report(self._lake, self.settings.windowing, self._log)
                self._show(report)
                if reached(report):
                    return report
            self.clock.sleep(LOOK_EVERY_SECONDS)
        raise ServiceFailed(
            f"nothing came of waiting {format_duration(PATIENCE)}; the logs are in "
            f"{self.supervisor.state_folder}/logs, and `tidemark explain` says what holds the watermark"
        )

    def _show(self, report: LakeReport) -> None:
        if self.clock.monotonic() - self._said < SAY_EVERY_SECONDS:
            return
        self._said = self.clock.monotonic()
        decision = report.state.decision
        where = "no decision yet"
        if decision is not None:
            watermark = "none yet" if decision.watermark is None else iso(decision.watermark.replace(microsecond=0))
            where = f"watermark {watermark} {decision.reason}"
        self.say(
            f"sent {self.source.sent:>9,}   landed {report.landed_rows:>9,}   windows {len(report.computed):>3} "
            f"computed, {len(report.waiting)} waiting   {where}"
        )
