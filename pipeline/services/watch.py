"""What `tidemark up` repeats on its terminal while it runs: what fails, once, and when it is over."""

from collections.abc import Callable, Mapping
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


@dataclass(frozen=True, slots=True)
class InLake:
    """What a look at the lake found at a moment: the failures of runs, each by what it is about. If it stands in for a
    process that says nothing, also when the newest decision was made, and the notes of ticks."""

    at: datetime
    runs: Mapping[str, str]
    stands_in: bool = False
    decided_at: datetime | None = None
    noted: list[FailedTick] = field(default_factory=list)


class Watch:
    """Looks at what a pipeline's process says, and tells `say` what is new. No look waits for the lake."""

    def __init__(self, settings: Settings, clock: Clock, say: Callable[[str], None]) -> None:
        self._settings, self._clock, self._say = settings, clock, say
        self._mine = Running.this_process(settings)
        self._began = self._looked_at = clock.now()
        self._told: dict[str, datetime] = {}
        self._ticks: Mapping[str, str] = {}
        self._in_lake: InLake | None = None
        self._thread: Thread | None = None

    def look(self) -> None:
        """Say what fails now and did not before, and what is over."""
        now, running = self._clock.now(), read_running(self._settings)
        if running is not None and not running.process.runs():
            running = None  # of an earlier start; or it has ended, and `up` starts it again
        self._begin_to_look_at_lake(now, stands_in=running is None)
        found = {**self._failing_ticks(now, running), **(self._in_lake.runs if self._in_lake else {})}
        if stale := self._mine.stale_settings or (running and running.stale_settings):
            found["the settings file had changed"] = stale
        for about, said in found.items():
            if about not in self._told:
                self._told[about] = now
                self._say(said)
        for about in sorted(self._told.keys() - found.keys()):
            self._say(f"over after {rough(now - self._told.pop(about))}: {about}")

    def _failing_ticks(self, now: datetime, running: Running | None) -> Mapping[str, str]:
        """What fails of ticks, each by what it is about. What is known stands until somebody knows better."""
        look = self._in_lake
        if running is not None:
            moment, decided_at, noted = now, running.good.get(TRACKING), list[FailedTick]()
        elif look is not None and look.stands_in:
            moment, decided_at, noted = look.at, look.decided_at, look.noted
        else:
            return self._ticks
        due = max(decided_at or self._began, self._began) if moment >= self._began + BEGINS_WITHIN else None
        ticks = ticks_now(self._settings, due, running, noted, moment)
        said = (("waited" if one.waits else "failed", one) for one in ticks.failing)
        self._ticks = {
            **{f"ticks of the sensor {one.sensor} {verb}": one.sentence() for verb, one in said},
            **({"nobody decided": ticks.standing} if ticks.standing else {}),
        }
        return self._ticks

    def _begin_to_look_at_lake(self, now: datetime, *, stands_in: bool) -> None:
        """Begin a look, unless one is under way or the last is new."""
        if now - self._looked_at >= LAKE_EVERY and (self._thread is None or not self._thread.is_alive()):
            self._looked_at = now
            self._thread = Thread(target=self._look_at_lake, args=(now, stands_in), name="watch", daemon=True)
            self._thread.start()

    def _look_at_lake(self, now: datetime, stands_in: bool) -> None:
        """Look at the lake. If it does not answer, the ticks tell that, and what was found stands."""
        settings, runs, decided, noted = self._settings, dict[str, str](), None, list[FailedTick]()
        lake = Lake(settings.lake, settings.message.kinds, self._clock)
        with suppress(TidemarkError):
            if not settings.pubsub.attach:
                tables = read_failing_tables(lake, now)
                runs = {f"runs of the table {one.table} failed": one.sentence() for one in tables}
                if (failed := read_failing(lake, settings.windowing, now)) is not None:
                    runs["runs failed"] = failed.sentence()
            if stands_in:
                decided, noted = lake.tracking_log().newest_decision(), lake.failed_ticks().newest()
            self._in_lake = InLake(now, runs, stands_in, None if decided is None else decided.decision.at, noted)
