"""A chaos run from an empty folder to a summary: backlog, pipeline, live traffic, faults, silence, comparison."""

import os
import re
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from unittest.mock import patch

import dagster as dg
import duckdb
from deltalake import DeltaTable

from benchmarks.watched import runs_of_drain, ticks_of
from tests.chaos.disk import let_go, small_disk
from tests.chaos.faults import BESIDE, Faults
from tests.chaos.house import ROOT, STARTED_WITHIN_SECONDS, House, is_provisioned, until, until_running, up
from tests.chaos.plan import Plan, Trouble, without
from tests.chaos.summary import Summary
from tests.official_emulator import free_port
from tidemark.local.demo import synthetic
from tidemark.local.demo.script import LakeWatch
from tidemark.local.demo.synthetic import Source
from tidemark.local.demo.synthetic_beats import SyntheticSource
from tidemark.local.services.processes import Supervisor
from tidemark.pipeline.clock import Clock, iso
from tidemark.pipeline.errors import ServiceFailed
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.observe.facts import LakeReport, read_losses
from tidemark.pipeline.quality.landings import MissedHeartbeats
from tidemark.pipeline.settings import load_settings

PATIENCE = timedelta(minutes=8)
"""For the faults as a whole, and then for everything to be computed."""

CALLS_TAKE = timedelta(seconds=60)
"""The deadline of the source's calls: longer than a pause of the emulator, since a retried call would publish twice."""

CONFIG = """\
pubsub.emulator_host = "127.0.0.1:{emulator}"
message.fields.temperature = "number"
message.fields.status = "text"
windows.length = "1m"
windows.first = "{first}"
watermark.band = "{band}"
watermark.tick = "{tick}"
watermark.idle_timeout = "{idle}"
ingest.readers = 3
ingest.mode = "continuous"
lake.uri = "file:lake"
spark.remote = "sc://localhost:{spark}"
spark.config."spark.driver.memory" = "1g"
dagster.storage = "state/dagster"
dagster.web_port = {web}
dagster.code_port = {code}
"""


DISORDER = """
select max(epoch_us(published) - epoch_us(before)) / 1e6 from (
    select published, min(published) over (
        order by event_time desc rows between unbounded preceding and 1 preceding) as before
    from (select event_time, min(publish_time) as published from read_parquet($files)
        group by stream_id, event_time, publisher_id))
"""


@dataclass(frozen=True, slots=True)
class Asked:
    """What is played: the faults, and the traffic, which is `live` while there are faults, or else a backlog alone.
    `disk_megabytes` is the size of the lake's own disk; none: it has none.

    While traffic is live, the band must be larger than a pause of the emulator and the source's jitter together.
    """

    plan: Plan
    folder: Path
    source: SyntheticSource
    backlog: timedelta
    band: str = "20s"
    tick: str = "3s"
    idle_timeout: str = "25s"
    disk_megabytes: int | None = None
    live: bool = True

    def first(self, clock: Clock) -> datetime:
        """The first event time."""
        return clock.now().replace(second=0, microsecond=0) - self.backlog


def house_of(asked: Asked, clock: Clock) -> House:
    """An empty folder with its settings, on ports that are free; what an earlier run left there is stopped first."""
    folder = asked.folder.resolve()
    for state in ("state", *BESIDE):
        Supervisor(folder / state, clock, print).take_over()
    let_go(folder / "lake")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    config = folder / "tidemark.toml"
    config.write_text(
        CONFIG.format(
            first=iso(asked.first(clock).replace(minute=0) - timedelta(hours=1)),
            band=asked.band,
            tick=asked.tick,
            idle=asked.idle_timeout,
            **{name: free_port() for name in ("emulator", "spark", "web", "code")},
        )
    )
    return House(folder, load_settings(config))


def play(asked: Asked, house: House, say: Callable[[str], None], clock: Clock) -> Summary:
    """Play it, and stop all that was started. Raises ServiceFailed where nothing came of waiting, AssertionError where
    `tidemark up` does not start."""
    began, settings, not_played = clock.monotonic(), house.settings, []
    source = Source(asked.source, settings, house.truth, asked.first(clock), clock)
    with ExitStack() as undone:
        undone.enter_context(patch.object(synthetic, "CALL_TIMEOUT", CALLS_TAKE))
        plan, disk = asked.plan, None
        if asked.disk_megabytes is not None:
            why_none = undone.enter_context(small_disk(house.lake, asked.disk_megabytes))
            disk = house.lake
            if why_none is not None:
                plan, disk = without(plan, Trouble.DISK_FULL), None
                not_played.append(f"{Trouble.DISK_FULL}: {why_none}")
        faults = Faults(house, plan, disk, clock, say)
        running = undone.enter_context(up(house))
        process = running.process
        undone.callback(source.stop)
        until("both subscriptions are there", lambda: is_provisioned(settings), STARTED_WITHIN_SECONDS, process)
        source.start()
        until_running(house, process)
        say(f"all of it runs; {source.sent:,} messages were published meanwhile; the faults begin")
        if not asked.live:
            source.stop()
        faults.start()
        undone.callback(faults.stop)

        def keep_up() -> None:
            if process.poll() is not None:
                raise ServiceFailed(f"`tidemark up` has ended:\n{house.output.read_text()[-2000:]}")

        watch = LakeWatch(settings, source, keep_up, clock, say, PATIENCE)
        watch.until(lambda _: faults.done())
        published = source.stop()
        if published is None or published.first_event_time is None or published.last_event_time is None:
            raise ServiceFailed("the source left no record of what it published")
        say("the faults are over and the sources silent; the idle rule closes what is left")
        windowing = settings.windowing
        first, last = map(windowing.containing, (published.first_event_time, published.last_event_time))
        wanted = {window.key for window in windowing.between(first.start, last.end)}
        lake = Lake(settings.lake, settings.message.kinds, clock)

        missed = list[MissedHeartbeats]()

        def is_whole(report: LakeReport) -> bool:
            if wanted <= set(report.computed):  # in the silence after them a window more closes every minute
                missed.append(read_losses(lake, settings, clock.now()).missed)
            return bool(missed) and not missed[-1].stale

        watch.until(is_whole)
        say("every window is computed and none is stale; comparing every row with the truth")
        comparison, disorder = house.compared(), disorder_of(house.lake)
    os.environ["TIDEMARK_DAGSTER_STORAGE"] = settings.dagster.storage
    return Summary(
        plan=plan,
        incidents=faults.incidents,
        restarts=restarts_in(house.output.read_text()),
        ticks=ticks_of(ROOT),
        runs=runs_of(ROOT),
        drains=runs_of_drain(ROOT),
        published=published,
        comparison=comparison,
        missed_and_mended=missed[-1].mended,
        disorder_seconds=disorder,
        band_seconds=settings.watermark.band.total_seconds(),
        not_played=not_played,
        left_over=running.left_over,
        exit_code=process.returncode,
        seconds=clock.monotonic() - began,
    )


def disorder_of(lake: Path) -> float:
    """By how much a heartbeat was published after one with a later event time, at most; copies do not count."""
    files = DeltaTable(lake / "heartbeats").file_uris()
    found = duckdb.connect().execute(DISORDER, {"files": files}).fetchone()
    return 0.0 if found is None or found[0] is None else max(0.0, float(found[0]))


def restarts_in(output: str) -> Counter[str]:
    """How often `tidemark up` has started each service again, by what it said."""
    return Counter(re.findall(r"tidemark (.+) ended with code", output))


def runs_of(root: Path) -> dict[str, Counter[str]]:
    """How many runs of each job ended how, from Dagster's storage."""
    found: dict[str, Counter[str]] = {}
    with dg.DagsterInstance.from_config(str(root)) as instance:
        for run in instance.get_runs():
            found.setdefault(run.job_name, Counter())[run.status.value.lower()] += 1
    return found
