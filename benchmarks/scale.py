"""A model of what traffic asks of the lake, the log, Pub/Sub and the driver, by ticks and by rounds.

Arithmetic over constants, which `python -m benchmarks.scale_constants`, `tests/gcs` and the pages measured.
`python -m benchmarks.scale_picture` prints the tables of `docs/concepts/costs-and-scale.md`. Computing windows is not
part of it.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from tidemark.pipeline.ingest.outcome import Side
from tidemark.pipeline.ingest.rounds import PLAN, ROUND_MESSAGES
from tidemark.pipeline.ingest.take import BATCH_MESSAGES
from tidemark.pipeline.settings_sections import WatermarkSettings
from tidemark.pipeline.upkeep.table_chores import sorted_bytes, target_bytes
from tools import costs

Mode = Literal["ticks", "continuous"]
MODES: tuple[Mode, ...] = ("ticks", "continuous")
RATES = (333, 3_300, 33_000, 333_000)
"""Messages a second: the live rate of the benchmarks, and ten, a hundred and a thousand times that."""

DAY_SECONDS = 86_400
TICK_SECONDS = WatermarkSettings().tick.total_seconds()
ROUND_SECONDS = PLAN.round.total_seconds()
LAND_BATCH, TRACK_BATCH = BATCH_MESSAGES[Side.BASE], BATCH_MESSAGES[Side.TRACKING]
"""Messages that a tick settles together."""

TICKS_AT_MOST = 10_000
"""Messages a second that ticks land, track and compute: 30 times the live rate, by `catch_up_tracked` of the bench."""

LANDER_RATE, TRACKER_RATE = 20_000, 40_000
"""Messages a second of a task on a core of its own: half of what four readers took from tidemark's own Pub/Sub on two
cores (docs/concepts/ingest.md). Not measured on the service."""

ROW_BYTES, MESSAGE_BYTES = 40.0, 182.0
"""A heartbeat in a file of 1,700 to 17,000 rows (32 in one of 165,000), and as it is delivered."""

LOG_ENTRY_BYTES = 4_100
"""A round's entry of the tracking log: the same at 333, 3,300 and 33,000 messages a second, with jitter of 3 s."""

COMPACTION_BYTES, COMPACTION_BYTES_A_SORTED, COMPACTION_SECONDS_A_ROW = 730e6, 3.15, 2.6e-6
"""Memory of a process that compacts, with the share of each byte that it sorts together (1.15 GB for 128 MiB, 1.63 GB
for 256 MiB, 2.4 GB for 512 MiB), and time (10.5 s for four million rows)."""

COMMIT_SECONDS, COMMIT_SECONDS_A_FILE = 0.004, 5e-6
"""A commit to an empty table, and more for each file that the table lists: 0.10 s beside 20,000 files."""

ID_BYTES, ROUNDS_IN_MEMORY = 461, 2
"""An acknowledgement id of 200 bytes in the driver's process. One round is settled while the next is collected."""

ROUND_CLASS_A, ROUND_CLASS_B = 5, 15
"""The most calls to Cloud Storage of a round, beside one of class A for each file, derived from those of a tick:
quarantine has a commit of its own, and a round tracks and lands at once."""

DECISION_CLASS_A, DECISION_CLASS_B = 3, 6
"""Calls of a tick that only decides. `tests/gcs/test_calls.py` counts those of class A; B is half of a tick's."""

DAYS_KEPT = 30
"""Retention of heartbeats in the model."""

OUTSTANDING_ROUNDS = 1.5
"""Rounds of a subscription's traffic that a snapshot keeps: a whole one, and half of the next."""


@dataclass(frozen=True, slots=True)
class Load:
    """The traffic of a pipeline: messages a second, in one mode."""

    mode: Mode
    rate: float

    @property
    def keeps_up(self) -> bool:
        """True if this rate was measured, or follows from readers side by side."""
        return self.mode == "continuous" or self.rate <= TICKS_AT_MOST

    @property
    def cycle_seconds(self) -> float:
        """Time from one settling to the next: a tick, or a round, which ends early when its readers are full."""
        return TICK_SECONDS if self.mode == "ticks" else min(ROUND_SECONDS, ROUND_MESSAGES / (2 * self.rate))

    @property
    def landers(self) -> int:
        """Tasks that read base. The sensor is one."""
        return 1 if self.mode == "ticks" else max(1, math.ceil(self.rate / LANDER_RATE))

    @property
    def trackers(self) -> int:
        return 1 if self.mode == "ticks" else max(1, math.ceil(self.rate / TRACKER_RATE))

    @property
    def files_a_cycle(self) -> int:
        """Files of `heartbeats`, where all messages are of one event hour."""
        return math.ceil(self.rate * TICK_SECONDS / LAND_BATCH) if self.mode == "ticks" else self.landers

    @property
    def commits_a_minute(self) -> float:
        """Commits to `heartbeats`."""
        return 60 / self.cycle_seconds * (self.files_a_cycle if self.mode == "ticks" else 1)

    @property
    def entries_a_minute(self) -> float:
        """Entries of the tracking log: histograms, and decisions."""
        histograms = math.ceil(self.rate * TICK_SECONDS / TRACK_BATCH) if self.mode == "ticks" else 1
        return 60 / self.cycle_seconds * histograms + 60 / TICK_SECONDS

    @property
    def class_a_a_minute(self) -> float:
        if self.mode == "ticks":
            further = (self.files_a_cycle - 1) * 2 + (math.ceil(self.rate * TICK_SECONDS / TRACK_BATCH) - 1) * 2
            return 60 / TICK_SECONDS * (costs.CLASS_A_A_TICK + further)
        return 60 / self.cycle_seconds * (ROUND_CLASS_A + self.files_a_cycle) + 60 / TICK_SECONDS * DECISION_CLASS_A

    @property
    def class_b_a_minute(self) -> float:
        if self.mode == "ticks":
            return 60 / TICK_SECONDS * (costs.CLASS_B_A_TICK + (self.files_a_cycle - 1))
        return 60 / self.cycle_seconds * ROUND_CLASS_B + 60 / TICK_SECONDS * DECISION_CLASS_B

    @property
    def files_a_day(self) -> float:
        """Files of `heartbeats` before compaction."""
        return DAY_SECONDS / self.cycle_seconds * self.files_a_cycle

    @property
    def bytes_a_day(self) -> float:
        """Growth of `heartbeats`."""
        return self.rate * DAY_SECONDS * ROW_BYTES

    @property
    def log_bytes_a_day(self) -> float:
        """Growth of the tracking log."""
        return self.entries_a_minute * 60 * 24 * LOG_ENTRY_BYTES

    @property
    def files_listed(self) -> float:
        """Files that the table lists: two hours before compaction, and the days that are kept."""
        hour = self.bytes_a_day / 24
        return self.files_a_day / 12 + math.ceil(hour / target_bytes(int(hour))) * 24 * DAYS_KEPT

    @property
    def commit_seconds(self) -> float:
        return COMMIT_SECONDS + COMMIT_SECONDS_A_FILE * self.files_listed

    @property
    def compaction_bytes(self) -> float:
        """Memory of housekeeping while it compacts an hour."""
        target = target_bytes(int(self.bytes_a_day / 24))
        return COMPACTION_BYTES + COMPACTION_BYTES_A_SORTED * sorted_bytes(target)

    @property
    def compaction_seconds(self) -> float:
        """Time of an hour's compaction; housekeeping takes ten minutes at most."""
        return COMPACTION_SECONDS_A_ROW * self.rate * 3600

    @property
    def ids_bytes(self) -> float:
        """Ids in the memory of the driver; of ticks, those of a batch of each subscription."""
        if self.mode == "ticks":
            return min(self.rate * TICK_SECONDS * 2, LAND_BATCH + TRACK_BATCH) * ID_BYTES
        return ROUNDS_IN_MEMORY * 2 * self.rate * self.cycle_seconds * ID_BYTES

    @property
    def snapshot_bytes_a_tick(self) -> float:
        """Bytes that the readings of a tick keep, if all of them are taken."""
        if self.mode == "ticks":
            return costs.SNAPSHOT_BYTES_A_TICK * self.rate / 333
        return 2 * self.rate * OUTSTANDING_ROUNDS * self.cycle_seconds * MESSAGE_BYTES

    @property
    def reading_seconds(self) -> float:
        """Time between readings of base within the default budget of snapshots."""
        return TICK_SECONDS * max(1.0, self.snapshot_bytes_a_tick * DAY_SECONDS / TICK_SECONDS / costs.BUDGET)

    @property
    def traffic(self) -> costs.Traffic:
        return costs.Traffic(sources=round(self.rate), period_seconds=1.0, message_bytes=MESSAGE_BYTES)

    @property
    def dollars_a_day(self) -> float:
        """Cost by list prices: publishing, two deliveries, snapshots, calls, and `DAYS_KEPT` days of heartbeats."""
        kept = min(self.snapshot_bytes_a_tick * DAY_SECONDS / TICK_SECONDS, costs.BUDGET)
        calls = self.class_a_a_minute * costs.CLASS_A_1000 + self.class_b_a_minute * costs.CLASS_B_1000
        stored = self.bytes_a_day / costs.GIB * costs.STORED_GIB_MONTH
        pubsub = costs.publishing(self.traffic) + 2 * costs.delivery(self.traffic) + costs.snapshots(kept)
        return pubsub + calls * 60 * 24 / 1000 + stored


def loads() -> list[Load]:
    """Return the columns of the tables: each rate in each mode that keeps up with it."""
    return [load for load in (Load(mode, rate) for mode in MODES for rate in RATES) if load.keeps_up]


def size_of(amount: float) -> str:
    """Format bytes for people."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:.3g} TB"


def number_of(amount: float) -> str:
    return f"{amount:,.0f}" if amount >= 10 else f"{amount:.2g}"


def table_of(rows: Sequence[tuple[str, Sequence[str]]]) -> str:
    head = ["", *(f"{load.mode}, {load.rate:,.0f}/s" for load in loads())]
    return costs.table(head, iter([[name, *cells] for name, cells in rows]))


def tables() -> list[str]:
    """Return the tables of the page, in order."""
    every = loads()
    asked = [
        ("tasks that read base and tracking", [f"{load.landers} + {load.trackers}" for load in every]),
        ("commits to `heartbeats` a minute", [number_of(load.commits_a_minute) for load in every]),
        ("calls of class A a minute", [number_of(load.class_a_a_minute) for load in every]),
        ("`heartbeats` a day", [size_of(load.bytes_a_day) for load in every]),
        ("tracking log a day", [size_of(load.log_bytes_a_day) for load in every]),
        (f"files that the table lists, {DAYS_KEPT} days", [number_of(load.files_listed) for load in every]),
        ("seconds of a commit", [f"{load.commit_seconds:.2g}" for load in every]),
        ("seconds of an hour's compaction", [f"{load.compaction_seconds:,.0f}" for load in every]),
        ("its memory", [size_of(load.compaction_bytes) for load in every]),
        ("ids in the driver's memory", [size_of(load.ids_bytes) for load in every]),
        ("base is read every", [f"{load.reading_seconds:,.0f} s" for load in every]),
        ("dollars a day, without machines", [f"{load.dollars_a_day:,.2f}" for load in every]),
    ]
    return [limits(), table_of(asked)]


LIMITS: tuple[tuple[str, Callable[[Load], float], float], ...] = (
    ("base is read less than at each tick, by the default budget", lambda load: load.reading_seconds, TICK_SECONDS),
    ("base is read less than once a minute", lambda load: load.reading_seconds, 60),
    ("an hour's compaction takes its ten minutes", lambda load: load.compaction_seconds, 600),
    (
        f"a commit takes half of the time between two, with {DAYS_KEPT} days kept",
        lambda load: load.commit_seconds / load.cycle_seconds,
        0.5,
    ),
)
"""Candidates for the first limit: a figure, and the largest value that it may have."""

MOST_RATE = 10_000_000


def limit_of(mode: Mode, figure: Callable[[Load], float], most: float) -> str:
    """Find the least traffic at which the figure exceeds `most`, to two digits. All figures grow with the traffic."""
    at_most = MOST_RATE if mode == "continuous" else TICKS_AT_MOST
    beyond = bisect_right(range(at_most), most, key=lambda rate: figure(Load(mode, rate)))
    return "beyond what ticks land" if beyond == TICKS_AT_MOST else f"{float(f'{beyond:.2g}'):,.0f}/s"


def limits() -> str:
    """Return the table of limits."""
    rows = [(name, *(limit_of(mode, figure, most) for mode in MODES)) for name, figure, most in LIMITS]
    rows.append(("the landing itself", f"{TICKS_AT_MOST:,}/s, in one process", "tasks are added"))
    return costs.table(["from this traffic on", *MODES], iter(rows))
