"""What `tidemark up` repeats on its terminal while it runs: what fails, once, and when it is over."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from threading import Thread

from tidemark.pipeline.clock import Clock
from tidemark.pipeline.durations import rough
from tidemark.pipeline.errors import TidemarkError
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.tables.failures import FailedTick
from tidemark.pipeline.quality.failing import TRACKING, read_failing, read_failing_tables, ticks_now
from tidemark.pipeline.quality.running import Running, read_running
from tidemark.pipeline.settings import Settings

BEGINS_WITHIN = timedelta(minutes=1)
"""How long after the start the first decision may take."""

LAKE_EVERY = timedelta(minutes=1)
"""How often the lake's notes of failed runs are looked at: in a bucket that costs two calls."""

NOTHING: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class InLake:
    """What a look at the lake found: the failures of runs, each by what it is about; and, where no process on this
    machine says so, when the newest decision was made and which ticks fail."""

    runs: Mapping[str, str] = field(default_factory=dict)
    decided_at: datetime | None = None
    ticks: Sequence[FailedTick] = ()


@dataclass(slots=True)
class Watch:
    """Looks at what a pipeline's process says, and tells `say` what is new. No look waits for the lake."""

    settings: Settings
    clock: Clock
    say: Callable[[str], None]
    _told: dict[str, datetime] = field(default_factory=dict)
    _ticks: Mapping[str, str] = field(default_factory=dict)
    _decided_at: datetime = field(init=False)
    _begins_until: datetime = field(init=False)
    _mine: Running = field(init=False)
    _in_lake: InLake = field(default_factory=InLake)
    _looked_at: datetime = field(init=False)
    _thread: Thread | None = None

    def __post_init__(self) -> None:
        self._decided_at = self._looked_at = self.clock.now()
        self._begins_until = self._decided_at + BEGINS_WITHIN
        self._mine = Running.this_process(self.settings)

    def look(self) -> None:
        """Say what fails now and did not before, and what is over."""
        now, running = self.clock.now(), read_running(self.settings)
        if running is not None and not running.is_alive:
            running = None  # of an earlier start; or it has ended, and `up` starts it again
        self._begin_to_look_at_lake(now, running)
        found = {**self._failing_ticks(now, running), **self._in_lake.runs}
        if stale := self._mine.stale_settings or (running and running.stale_settings):
            found["the settings file had changed"] = stale
        for about, said in found.items():
            if about not in self._told:
                self._told[about] = now
                self.say(said)
        for about in sorted(self._told.keys() - found.keys()):
            self.say(f"over after {rough(now - self._told.pop(about))}: {about}")

    def _failing_ticks(self, now: datetime, running: Running | None) -> Mapping[str, str]:
        """What fails of ticks, each by what it is about. While a process is started again, what it said last stands."""
        good = () if running is None else (running.good[one] for one in running.good if one == TRACKING)
        self._decided_at = max(self._decided_at, self._in_lake.decided_at or self._decided_at, *good)
        decided_at = None if now < self._begins_until else self._decided_at
        ticks = ticks_now(self.settings, decided_at, running, self._in_lake.ticks, now)
        if running is not None or self._in_lake.decided_at is not None:
            said = (("waited" if one.waits else "failed", one) for one in ticks.failing)
            self._ticks = {f"ticks of the sensor {one.sensor} {verb}": one.sentence() for verb, one in said}
        return {**self._ticks, **({"nobody decided": ticks.standing} if ticks.standing else NOTHING)}

    def _begin_to_look_at_lake(self, now: datetime, running: Running | None) -> None:
        """Begin a look, unless one is under way or the last is new."""
        if now - self._looked_at >= LAKE_EVERY and (self._thread is None or not self._thread.is_alive()):
            self._looked_at = now
            self._thread = Thread(target=self._look_at_lake, args=(now, running is not None), name="watch", daemon=True)
            self._thread.start()

    def _look_at_lake(self, now: datetime, has_word: bool) -> None:
        """Look at the lake. One that does not answer is told by the ticks."""
        settings = self.settings
        lake, decided_at, ticks = Lake(settings.lake, settings.message.kinds, self.clock), None, list[FailedTick]()
        with suppress(TidemarkError):
            runs = {}
            if not settings.pubsub.attach:
                failed = read_failing(lake, settings.windowing, now)
                runs = {
                    f"runs of the table {one.table} failed": one.sentence() for one in read_failing_tables(lake, now)
                }
                runs |= {} if failed is None else {"runs failed": failed.sentence()}
            if not has_word and (record := lake.tracking_log().newest_decision()):
                decided_at, ticks = record.decision.at, lake.failed_ticks().newest()
            self._in_lake = InLake(runs, decided_at, ticks)
