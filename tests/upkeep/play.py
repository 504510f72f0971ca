"""Runs, backfills, repair, retention and landing, played against each other on one lake, each of them killed anywhere.

Every activity is a thread, and one of them goes on at a time: wherever it looks at a table, writes an object or
commits, a seed chooses who is next, and who dies. What must hold, whatever the order: a computed window has the rows of
all that had landed when its run listed its input, or it is gone by rule; it is never emptied.
"""

import json
import random
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.table import TableOptimizer
from pyspark.sql import SparkSession

from tests.clock import ManualClock
from tidemark.pipeline.compute import micro_batch, slices
from tidemark.pipeline.compute.columns import DiffPlan
from tidemark.pipeline.errors import TidemarkError
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.store.disk import DiskObjects
from tidemark.pipeline.lake.tables.heartbeats import HeartbeatFiles, heartbeat_rows
from tidemark.pipeline.lake.tables.new_files import NewFile, NewFiles
from tidemark.pipeline.lake.tables.table import LakeTable
from tidemark.pipeline.lake.tables.windowed import PARTITION
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import HousekeepingSettings, LakeSettings, WindowSettings
from tidemark.pipeline.upkeep.housekeeping import Housekeeper
from tidemark.pipeline.upkeep.survey import Surveyor
from tidemark.pipeline.watermark.decision import Decision, Reason
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.state import Beginning, DecisionRecord
from tidemark.pipeline.windows import Window, runs_of_neighbours

BEGIN = datetime(2026, 11, 21, tzinfo=UTC)
HOUR = timedelta(hours=1)
LENGTH, LOOKBACK, PERIOD = HOUR, timedelta(minutes=90), timedelta(seconds=30)
BEHIND = timedelta(minutes=20)
"""How far the watermark is behind the newest event."""

KEPT_HOURS = 24
"""The hours that retention keeps. They are there when the play begins."""

HOURS = KEPT_HOURS + 12
"""The hours of traffic."""

OLDEST = 0.7
"""The share of backfills that are of the windows that expire next."""

SLOW, MISSED = 0.3, 3
"""The share of backfills that wait after their first check, and the number of retention runs that they wait for."""

AT_ONCE = 4
KILLED = 0.01
"""The chance of a death at each step."""

SAYS = "tests.batch"


class Killed(BaseException):
    """The end of a process, as far as one thread can play it."""


class Wrong(AssertionError):
    """What must hold does not."""


@dataclass
class Activity:
    """Something that is under way, in a thread of its own."""

    name: str
    do: Callable[[], None]
    may_go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    is_over: bool = False
    failed: BaseException | None = None
    waits_for: int = 0
    """The number of retention runs that must have ended before it goes on."""


@dataclass(frozen=True, slots=True)
class InSteps(micro_batch.MicroBatch):
    """A micro-batch whose slices are computed here, each a step."""

    step: Callable[[str], None]

    def write(self, windows: Sequence[Window], files: HeartbeatFiles, run: str) -> micro_batch.WrittenFiles:
        status, diffs = self.tables
        work = slices.Work(run, self.plan, [], self.heartbeats.storage_options, diffs.files, status.files)
        by_table = defaultdict[str, list[NewFile]](list)
        for stretch in runs_of_neighbours(windows):
            for one in slices.cut(stretch, files, LOOKBACK, 1):
                self.step(f"reads for {len(one.windows)} windows")
                for answer in work.answers(one):
                    by_table[answer["table"]].append(slices.new_file(answer))
        return by_table[slices.STATUSES], by_table[slices.DIFFS]


@dataclass
class Play:
    """One seed."""

    seed: int
    folder: Path
    kill: float = KILLED
    trace: list[str] = field(default_factory=list)
    landed: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    started: int = 0
    died: int = 0
    _right: set[tuple[str, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.clock = ManualClock(BEGIN + timedelta(hours=2))
        windows = self.random.choice(["", "", "1d", "2d"])
        self.settings = Settings(
            windows=WindowSettings(length=LENGTH, lookback=LOOKBACK, first=BEGIN),
            lake=LakeSettings(uri=f"file:{self.folder}"),
            housekeeping=HousekeepingSettings.model_validate({"heartbeats": f"{KEPT_HOURS}h", "windows": windows}),
        )
        self.windowing = self.settings.windowing
        self._here = threading.local()
        self._back = threading.Semaphore(0)
        self._live: list[Activity] = []
        self._last: Activity | None = None
        self._stays = self.random.choice([0.0, 0.8, 0.95])  # the share of steps at which the same one goes on
        self._hour = 0
        self._retained = 0

    def lake(self) -> Lake:
        """The lake as a new process sees it."""
        return Lake(self.settings.lake, {}, self.clock)

    # Who goes on.

    def step(self, what: str) -> None:
        """An activity is about to do something that others see, or has done it."""
        activity: Activity | None = getattr(self._here, "activity", None)
        if activity is None:  # a thread of a pool, or the play itself
            return
        self._back.release()
        activity.may_go.acquire()
        self.trace.append(f"{activity.name}: {what}")
        if self.random.random() < self.kill:
            self.trace.append(f"{activity.name}: killed")
            self.died += 1
            raise Killed

    def _begin(self, kind: str, do: Callable[[], None]) -> None:
        self.started += 1
        activity = Activity(f"{kind}-{self.started}", do)
        self._live.append(activity)

        def run() -> None:
            self._here.activity = activity
            activity.may_go.acquire()
            try:
                activity.do()
            except (Killed, TidemarkError) as error:
                self.trace.append(f"{activity.name}: ended by {type(error).__name__} {error}")
            except BaseException as error:
                activity.failed = error
            activity.is_over = True
            self._back.release()

        threading.Thread(target=run, daemon=True).start()

    def _go_on(self) -> None:
        able = [one for one in self._live if one.waits_for <= self._retained] or self._live
        if self._last not in able or self.random.random() > self._stays:
            self._last = self.random.choice(able)
        activity = self._last
        activity.may_go.release()
        self._back.acquire()
        if activity.is_over:
            self._live.remove(activity)
            if activity.failed is not None:
                raise activity.failed
            self.check()

    def run(self) -> None:
        """Play it. Raises Wrong."""
        self.lake().tracking_log().begin(Beginning(BEGIN))
        kinds: dict[str, Callable[[], None]] = {
            "land": self.land,
            "compute": self.compute_due,
            "backfill": self.backfill,
            "retention": self.housekeeping,
            "repair": self.repair,
        }
        weights = [3, 2, 4, 4, 1]
        with self._watched():
            self.land(KEPT_HOURS)
            self.compute_due()
            while self._hour < HOURS:
                if len(self._live) < AT_ONCE:
                    (kind,) = self.random.choices(list(kinds), weights)
                    if kind != "land" or not any(one.name.startswith("land") for one in self._live):
                        self._begin(kind, kinds[kind])
                if self._live:
                    self._go_on()
            self.kill = 0.0
            while self._live:
                self._go_on()
            for kind in ("retention", "compute", "repair"):
                self._begin(kind, kinds[kind])
                while self._live:
                    self._go_on()
        self.check_the_end()

    # What is under way.

    def land(self, hours: int = 1) -> None:
        """Some hours of heartbeats, and some that are older; then the watermark goes on."""
        name, end = f"batch-{self._hour}", BEGIN + (self._hour + hours) * HOUR
        events = [end - hours * HOUR * self.random.random() for _ in range(6 * hours)]
        events += [end - timedelta(hours=30) * self.random.random() for _ in range(self.random.choice([0, 0, 1, 3]))]
        rows = [
            {
                "stream_id": self.random.choice("abc"),
                "event_time": event,
                "message_id": f"{self._hour}-{number}",
                "publish_time": end,
            }
            for number, event in enumerate(events)
            if event >= BEGIN
        ]
        self.landed[name] = rows
        self._hour += hours
        self.clock.advance(hours * HOUR)
        lake = self.lake()
        files = NewFiles(lake.heartbeats(), self.clock)
        files.add(files.write(_as_rows(rows)), {SAYS: name})
        decision = Decision(at=self.clock.now(), watermark=end - BEHIND, reason=Reason.ADVANCED)
        lake.tracking_log().append(DecisionRecord(decision, None, None, Policy()))

    def compute_due(self) -> None:
        """What the sensor asks for: windows that are due, the newest first."""
        lake, watermark = self.lake(), self.lake().tracking_log().newest().watermark
        index = lake.window_index(self.windowing).update()
        due = list(index.due(lake.kept_windows(self.windowing).closed(watermark)))
        for part in due:
            for number in range(part.start, part.stop, 3):
                self._compute(lake, [self.windowing.numbered(one) for one in part[number - part.start :][:3]])

    def backfill(self) -> None:
        """Windows that somebody chose, with gaps: often among the oldest that are kept, some of them expired."""
        lake, watermark = self.lake(), self.lake().tracking_log().newest().watermark
        kept = lake.kept_windows(self.windowing).since() or BEGIN
        closed = list(self.windowing.between(max(BEGIN, kept - HOUR), watermark or BEGIN))
        if closed:
            wanted = closed[:4] if self.random.random() < OLDEST else closed
            self._compute(lake, sorted(self.random.sample(wanted, self.random.randint(1, min(4, len(wanted))))))

    def repair(self) -> None:
        """Look at the whole lake, and compute what is broken."""
        surveyor = Surveyor(self.settings, self.clock)
        if (reached := surveyor.range_of(None, None)) is not None:
            for windows in surveyor.look(*reached).runs(5):
                self._compute(self.lake(), windows)

    def housekeeping(self) -> None:
        """The hourly job, all of it."""
        try:
            for chore in Housekeeper(self.settings, self.clock).chores():
                self.trace.append(f"{chore.name} {chore.about}: {chore.sentence}")
        finally:
            self._retained += 1

    def _compute(self, lake: Lake, windows: Sequence[Window]) -> None:
        kept, diffs, status = lake.kept_windows(self.windowing), lake.diffs(), lake.stream_status()
        watermark = lake.tracking_log().newest().watermark
        kept.refuse_expired(windows)
        micro_batch.refuse_open(windows, watermark)
        activity: Activity | None = getattr(self._here, "activity", None)
        if activity and activity.name.startswith("backfill") and self.random.random() < SLOW:
            activity.waits_for = self._retained + MISSED
        self.trace.append(f"computes {' '.join(window.key for window in windows)}")
        spark = cast(SparkSession, None)  # what its tasks would do is done here
        parts = spark, lake.heartbeats(), watermark, f"run-{self.started}", self.clock, kept.refuse_expired
        plan = DiffPlan({}, LOOKBACK, PERIOD, LENGTH)
        micro_batch.compute_windows(InSteps(*parts, (status, diffs), plan, self.step), windows)

    # What must hold.

    def check(self) -> None:
        """Each computed window has the rows of what its run had listed; and only windows that are no longer kept go."""
        lake = self.lake()
        runs = lake.diffs().runs()
        new = {key for key, run in runs.items() if (key, run) not in self._right}
        if new:
            versions, landed = lake.diffs().versions(new), self._versions()
            found = defaultdict[str, list[tuple[Any, ...]]](list)
            for row in lake.diffs().read(new).to_pylist():
                found[row[PARTITION]].append(tuple(row[name] for name in COLUMNS))
            for key in sorted(new):
                rows = [
                    row for name, version in landed.items() if version <= versions[key] for row in self.landed[name]
                ]
                expected = _diffs(rows, self.windowing.named(key))
                if sorted(found[key]) != expected:
                    raise Wrong(f"{key} of {runs[key]} has {sorted(found[key])} and not {expected}")
        kept = lake.kept_windows(self.windowing).since() or BEGIN
        gone = {key for key, _ in self._right} - runs.keys()
        if wrongly := [key for key in sorted(gone) if self.windowing.named(key).start >= kept]:
            raise Wrong(f"{wrongly} were computed, are kept, and are gone; windows are kept from {kept}")
        self._right = {*runs.items()}

    def check_the_end(self) -> None:
        """Every closed window that is kept and holds a heartbeat is computed, and its status is as new."""
        lake = self.lake()
        watermark = lake.tracking_log().newest().watermark
        landed = [row["event_time"] for name in self._versions() for row in self.landed[name]]
        closed = lake.kept_windows(self.windowing).closed(watermark)
        holding = {
            self.windowing.numbered(number).key
            for moment in landed
            if (number := self.windowing.number_of(moment)) in closed
        }
        computed = lake.diffs().runs()
        if lacking := sorted(holding - computed.keys()):
            raise Wrong(f"{lacking} were never computed")
        if behind := lake.stream_status().behind(lake.diffs(), [key for key in computed if key in holding]):
            raise Wrong(f"the status of {behind} is older than its diffs")

    def _versions(self) -> dict[str, int]:
        """The version of `heartbeats` in which each batch landed. One whose process was killed before has none."""
        found = {}
        for commit in sorted((self.folder / "heartbeats" / "_delta_log").glob("*.json")):
            for line in commit.read_text().splitlines():
                if (said := json.loads(line).get("commitInfo", {}).get(SAYS)) is not None:
                    found[said] = int(commit.stem)
        return found

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Have the activities stop before and after each look, object and commit."""
        at: dict[type, dict[str, str]] = {
            LakeTable: {"current": "looks at a table"},
            DeltaTable: {"create_write_transaction": "commits", "delete": "takes rows out"},
            TableOptimizer: {"z_order": "compacts"},
            DiskObjects: {"create": "creates", "replace": "replaces", "delete": "deletes"},
        }
        with ExitStack() as patched:
            patched.enter_context(patch.object(micro_batch, "require_able"))
            patched.enter_context(patch.object(micro_batch, "read_ahead", _one_by_one))
            for owner, methods in at.items():
                for name, what in methods.items():
                    patched.enter_context(patch.object(owner, name, self._stopping(getattr(owner, name), what)))
            yield

    def _stopping(self, method: Callable[..., Any], what: str) -> Callable[..., Any]:
        def stopping(owner: Any, *args: Any, **kwargs: Any) -> Any:
            about = args[0] if args and isinstance(args[0], str) else getattr(owner, "uri", "")
            self.step(f"{what} {about}")
            done = method(owner, *args, **kwargs)
            self.step(f"{what} {about}: done")
            return done

        return stopping


def _one_by_one(read: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """`read_ahead` without a pool, whose threads would not stop."""
    return ((item, read(item)) for item in items)


COLUMNS = ("stream_id", "event_time", "previous_event_time", "message_id")


def _as_rows(rows: Sequence[dict[str, Any]]) -> pa.Table:
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    columns |= {name: [None] * len(rows) for name in ("publisher_id", "ordering_key")}
    columns |= {"attributes": [[]] * len(rows), "payload": [b"{}"] * len(rows), "late": [False] * len(rows)}
    return heartbeat_rows(columns | {"landed_at": columns["publish_time"]}, {})


def _diffs(rows: Sequence[dict[str, Any]], window: Window) -> list[tuple[Any, ...]]:
    """The rows of a window, worked out in plain Python. Every message here is a heartbeat of its own."""
    found, last = [], dict[str, datetime]()
    for row in sorted(rows, key=lambda row: (row["event_time"], row["message_id"])):
        stream, event = row["stream_id"], row["event_time"]
        if window.start - LOOKBACK <= event < window.end:
            before = last.get(stream)
            last[stream] = event
            if event >= window.start:
                reached = before is not None and event - before <= LOOKBACK
                found.append((stream, event, before if reached else None, row["message_id"]))
    return sorted(found)


def play(seed: int) -> Play:
    """Play a seed in a new folder. Raises Wrong, with the last steps."""
    with tempfile.TemporaryDirectory(prefix="tidemark-play-") as folder:
        played = Play(seed, Path(folder) / "lake")
        try:
            played.run()
        except Wrong as error:
            raise Wrong(f"seed {seed}: {error}\n" + "\n".join(played.trace[-60:])) from error
    return played
