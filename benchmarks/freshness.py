"""How far the watermark is behind on live traffic, and how long after its end a window is ready: the whole pipeline, as
`tidemark up` starts it, by each rule and for two ticks."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.machine import Machine
from benchmarks.measures import Measure
from benchmarks.watched import JITTER, PERIOD, STREAMS, Pipeline, pipeline
from tidemark.local.demo.script import LakeWatch
from tidemark.local.demo.synthetic_beats import SyntheticSource
from tidemark.local.services.stack import start_stack
from tidemark.pipeline.clock import Clock, iso
from tidemark.pipeline.figures import quantile
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import EmulatorKind, LakeSettings
from tidemark.pipeline.watermark.state import DecisionRecord
from tidemark.pipeline.windows import Window, Windowing

SETTLES = timedelta(seconds=100)
"""Decisions and windows before that are not counted: the first run warms Spark up, and ticks move to where they are
aimed."""

LAG_GOALS = {"band": 19.0, "frontier": 13.0}
DISK, BUCKET_OF_THE_SERVICE = "disk", "gs"
READY_GOALS = {
    ("band", 10, DISK): 22.5,
    ("frontier", 10, DISK): 15.0,
    ("band", 5, DISK): 24.0,
    ("frontier", 5, DISK): 17.0,
    ("band", 10, BUCKET_OF_THE_SERVICE): 22.5,
}
WINDOWS = 5
PATIENCE = timedelta(minutes=30)
LATENCIES = {"get": 0.03, "list": 0.04, "create": 0.06}
"""Seconds until Cloud Storage answers a call, by kind, as measured from a machine of its region."""
LOOK_EVERY_SECONDS = {DISK: 1.0, BUCKET_OF_THE_SERVICE: 20.0}
"""In a bucket each look takes calls that the pipeline then waits for: the commits tell when windows were ready."""

Beside = Callable[[Settings], AbstractContextManager[None]]
"""What else is played while windows are counted."""

CONFIG = """\
length = "1m"

[watermark]
rule = "{rule}"
tick = "{tick}s"

[lake]
uri = "{lake}"
endpoint = "{endpoint}"
"""


@dataclass(frozen=True, slots=True)
class Played:
    """What is played."""

    rule: str
    tick: int
    windows: int
    emulator: EmulatorKind
    folder: Path
    first: timedelta = timedelta(hours=1)
    """How long before the start the first window begins."""
    lake: str = DISK
    """Where the lake is: `disk`, or `gs`, a bucket that answers each call as late as Cloud Storage does."""


@dataclass(frozen=True, slots=True)
class Fresh:
    """What came of it: seconds that the watermark is behind at a decision, from a window's end to its commit, and from
    decision to decision; and the watermark's longest standstill."""

    rule: str
    tick: int
    lags: list[float]
    ready: list[float]
    intervals: list[float]
    longest_standstill: float
    late: int
    calls_a_tick: dict[str, float]
    ready_by_window: dict[str, float]

    def sentence(self) -> str:
        """The medians."""
        on_time = sum(abs(interval - self.tick) <= 1 for interval in self.intervals) / max(1, len(self.intervals))
        return (
            f"{self.rule}, tick {self.tick}s: watermark {quantile(self.lags, 0.5):.1f} s behind, windows ready "
            f"{quantile(self.ready, 0.5):.1f} s after their end ({min(self.ready):.1f} to {max(self.ready):.1f}), "
            f"{on_time:.0%} of {len(self.intervals)} intervals within a second, longest standstill "
            f"{self.longest_standstill:.1f} s, {self.late} late"
            + "".join(f", {count:.1f} class {charge} calls a tick" for charge, count in self.calls_a_tick.items())
        )


def measure_freshness(machine: Machine, rounds: int, _scale: float) -> list[Measure]:
    """Both rules and both ticks, once each however many rounds: each of `rounds` is a window more."""
    found: list[Measure] = []
    for (rule, tick, lake), goal in READY_GOALS.items():
        name = f"{rule}_{tick}s" if lake == DISK else f"{rule}_{tick}s_{lake}"
        asked = Played(rule, tick, WINDOWS + rounds, machine.settings.pubsub.emulator, machine.folder / name, lake=lake)
        fresh = play(asked, Console(width=120), machine.clock)
        for what, values, bound in (("lag", fresh.lags, LAG_GOALS[rule]), ("ready", fresh.ready, goal)):
            found.append(
                Measure(
                    f"freshness_{what}_{name}",
                    values,
                    [1.0] * len(values),
                    bound,
                    "lower",
                    "s",
                    f"333 messages/s, jitter up to 8 s, 1 minute windows, rule {rule}, tick {tick}s, lake: {lake}, "
                    "beside one second",
                    fresh.sentence(),
                )
            )
    return found


@dataclass(frozen=True, slots=True)
class _Place:
    """The lake as the pipeline and as this benchmark ask for it, and the calls that the pipeline has made."""

    lake: LakeSettings
    past: LakeSettings
    calls: Callable[[], Sequence[Any]] = tuple


def play(asked: Played, console: Console, clock: Clock, beside: Beside = lambda _: nullcontext()) -> Fresh:
    """Live traffic from the start, and what is played `beside` it, until so many windows are counted. Stops what it
    started, whatever happens."""
    start = clock.now()
    source = SyntheticSource(streams=STREAMS, period=PERIOD, jitter=JITTER, duplicates=0, broken=0, silent=0)
    with _lake(asked) as place:
        lake = {"lake": place.lake.uri, "endpoint": place.lake.endpoint or ""}
        more, first = CONFIG.format(rule=asked.rule, tick=asked.tick, **lake), start - asked.first
        with pipeline(asked.folder, source, start, first, more, console, clock, emulator=asked.emulator) as played:
            start_stack(played.supervisor, played.settings, played.config)
            counted_from = clock.now() + SETTLES
            with beside(played.settings):
                return _watch(asked, place, played, counted_from, clock)


def _watch(asked: Played, place: _Place, played: Pipeline, counted_from: datetime, clock: Clock) -> Fresh:
    settings, windowing = played.settings, played.settings.windowing
    looked_at = settings.model_copy(update={"lake": place.past}) if asked.lake != DISK else settings
    keep_up, every_seconds = played.supervisor.restart_what_died, LOOK_EVERY_SECONDS[asked.lake]
    watch = LakeWatch(looked_at, played.source, keep_up, clock, played.say, PATIENCE, every_seconds)
    report = watch.until(lambda report: len(_ready(report.computed_at, windowing, counted_from)) >= asked.windows)
    lake = Lake(looked_at.lake, settings.message.kinds, clock)
    log = lake.tracking_log()
    entries = (log.entry(number) for number in log.numbers())
    decisions = [entry.decision for entry in entries if isinstance(entry, DecisionRecord)]
    counted = [decision for decision in decisions if decision.at >= counted_from]
    moved = [one.at for before, one in pairwise(decisions) if one.watermark != before.watermark]
    rows = lake.heartbeats().in_place()
    late = 0 if rows is None else sum(rows.to_pyarrow_table(columns=["late"])["late"].to_pylist())
    ready = _ready(report.computed_at, windowing, counted_from)
    fresh = Fresh(
        rule=asked.rule,
        tick=asked.tick,
        lags=[decision.lag.total_seconds() for decision in counted if decision.lag is not None],
        ready=list(ready.values()),
        intervals=_between([decision.at for decision in counted]),
        longest_standstill=max(_between([moment for moment in moved if moment >= counted_from]), default=0.0),
        late=late,
        calls_a_tick=_calls(place, counted_from, len(counted)),
        ready_by_window={iso(window.start): seconds for window, seconds in ready.items()},
    )
    played.say(fresh.sentence())
    return fresh


def _ready(computed_at: Mapping[str, datetime], windowing: Windowing, counted_from: datetime) -> dict[Window, float]:
    """Seconds from the end of each window that ends from then on to its commit."""
    windows = {windowing.named(key): at for key, at in computed_at.items()}
    return {window: (at - window.end).total_seconds() for window, at in windows.items() if window.end >= counted_from}


def _between(moments: Sequence[datetime]) -> list[float]:
    return [(later - earlier).total_seconds() for earlier, later in pairwise(moments)]


@contextmanager
def _lake(asked: Played) -> Iterator[_Place]:
    """The lake's place, for as long as the block runs. A bucket answers as late as Cloud Storage does."""
    if asked.lake == DISK:
        yield _Place(LakeSettings(uri="file:lake"), LakeSettings(uri="file:lake"))
        return
    from tests.gcs.apart import fresh_lake, server_apart  # they need Go
    from tests.gcs.fault_proxy import Fault, fault_proxy

    with server_apart() as endpoint, fault_proxy(endpoint) as proxy:
        past = fresh_lake(endpoint)
        late = [Fault(rf"\.{kind} ", delay=delay) for kind, delay in LATENCIES.items()]
        proxy.play(*late)
        yield _Place(past.model_copy(update={"endpoint": proxy.endpoint}), past, proxy.calls)


def _calls(place: _Place, since: datetime, ticks: int) -> dict[str, float]:
    """The calls of each class that the pipeline made for a tick, runs included; none of a lake on disk."""
    found = Counter(call.price_class for call in place.calls() if call.at >= since.timestamp())
    return {charge: round(found[charge] / max(1, ticks), 1) for charge in ("A", "B")} if found else {}
