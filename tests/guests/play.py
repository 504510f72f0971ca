"""Plays it: publishes to both topics, waits until every window is computed, and compares every row with the truth."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import dagster as dg

from tests.clock import until
from tests.guests import their_project
from tests.official_emulator import HOST, free_port, running_own_pubsub
from tidemark.local.demo.verification import TruthComparison, compare
from tidemark.local.services.processes import ServiceSpec, Supervisor, listens
from tidemark.local.services.stack import CODE_SERVER, spark_server, token_environment
from tidemark.pipeline.clock import Clock, SystemClock, iso
from tidemark.pipeline.errors import LakeError
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.observe.facts import read_report, read_waiting
from tidemark.pipeline.pubsub.provision import provision_here
from tidemark.pipeline.settings import Settings, load_settings

PROGRAMS = Path(sys.executable).parent
NAMES = ("heartbeats", "orders")
BACKLOG, LIVE = timedelta(minutes=62), timedelta(seconds=30)
"""An hour ends in the backlog: their asset is asked for it."""
WITHIN_SECONDS = 480.0
LOOK_EVERY_SECONDS = 3.0
DOWNSTREAM, DOWNSTREAM_SECONDS = dg.AssetKey("rows_of_orders"), 90.0
"""Their asset, and the longest time until it is materialized: their automation is evaluated every 30 s, and its run may
wait for a place."""


@dataclass(frozen=True, slots=True)
class Played:
    """The rows of each pipeline against the truth, and what of the foreign project is in the instance."""

    compared: dict[str, TruthComparison]
    reported: int
    """The number of reports that the foreign sensor counts in its cursor."""
    materializations: int
    evaluations: int
    ingests: list[str]
    """The states of the foreign job `ingest`'s runs."""
    downstream: int
    """Partitions of the project's own asset over the windows of `orders`."""


def play(folder: Path, say: Callable[[str], None]) -> Played:
    """Play it in an empty folder."""
    clock = SystemClock()
    ports = {name: free_port() for name in ("spark", "code")}
    with running_own_pubsub(folder / "pubsub.log") as emulator:
        pipelines = _written(folder, emulator, ports, clock)
        supervisor = Supervisor(folder / "state", clock, say)
        try:
            _start(supervisor, folder, ports["code"], pipelines)
            publishing = [_publish(folder, name) for name in NAMES]
            assert [one.wait(600) for one in publishing] == [0, 0]
            _until_computed(pipelines, supervisor, clock, say)
            with _instance(folder) as instance:
                until(
                    "their asset is materialized",
                    lambda: bool(instance.get_materialized_partitions(DOWNSTREAM)),
                    DOWNSTREAM_SECONDS,
                )
                found = {
                    name: compare(folder / f"{name}.parquet", folder / f"{name}-lake", each.windows)
                    for name, each in pipelines.items()
                }
                return _seen(instance, found)
        finally:
            supervisor.stop()


def _written(folder: Path, emulator: str, ports: dict[str, int], clock: Clock) -> dict[str, Settings]:
    """The project's files; the settings of its pipelines."""
    (folder / "assets").mkdir()
    (folder / "assets" / "__init__.py").write_text(their_project.ASSETS)
    (folder / "their_definitions.py").write_text(their_project.DEFINITIONS)
    (folder / "workspace.yaml").write_text(their_project.WORKSPACE.format(**ports))
    (folder / "dagster.yaml").write_text(their_project.INSTANCE)
    first = iso(clock.now().replace(minute=0, second=0, microsecond=0) - timedelta(hours=2))
    for name in NAMES:
        text = their_project.SETTINGS.format(name=name, emulator=emulator, first=first, **ports)
        (folder / f"{name}.toml").write_text(text)
    settings = {name: load_settings(folder / f"{name}.toml") for name in NAMES}
    for each in settings.values():
        provision_here(each, clock)
    return settings


def _environment(folder: Path) -> dict[str, str]:
    return {"DAGSTER_HOME": str(folder), "GRPC_ENABLE_FORK_SUPPORT": "0"}


def _start(supervisor: Supervisor, folder: Path, code: int, pipelines: dict[str, Settings]) -> None:
    token = token_environment()
    environment = {**_environment(folder), **token}
    supervisor.state_folder.mkdir()
    supervisor.start(spark_server(pipelines["orders"], supervisor.state_folder, token))
    subprocess.run(
        [str(PROGRAMS / "dagster"), "instance", "info"],
        cwd=folder,
        env={**os.environ, **environment},
        check=True,
        capture_output=True,
        timeout=120,
    )
    server = [sys.executable, "-m", CODE_SERVER, "-m", "their_definitions", "-h", HOST, "-p", str(code)]
    supervisor.start(
        ServiceSpec("code", [*server, "--max-workers", "24"], folder, environment, lambda: listens(HOST, code), 120)
    )
    supervisor.start(ServiceSpec("daemon", [str(PROGRAMS / "dagster-daemon"), "run"], folder, environment))


def _publish(folder: Path, name: str) -> "subprocess.Popen[bytes]":
    """Publish in the background: what lasts is the live part."""
    command = [str(PROGRAMS / "tidemark"), "--config", f"{name}.toml", "publish", "--streams", "40"]
    times = ["--since", f"{BACKLOG.total_seconds():g}s", "--for", f"{LIVE.total_seconds():g}s", "--jitter", "2s"]
    more = ["--duplicates", "0.05", "--truth", f"{name}.parquet"]
    return subprocess.Popen([*command, *times, *more], cwd=folder, stdout=subprocess.DEVNULL)


def _until_computed(
    pipelines: dict[str, Settings], supervisor: Supervisor, clock: Clock, say: Callable[[str], None]
) -> None:
    """Return once each pipeline has computed every window with a heartbeat. Raises AssertionError if it takes long."""
    limit = clock.monotonic() + WITHIN_SECONDS
    while not all(_is_computed(name, each, clock, say) for name, each in pipelines.items()):
        assert clock.monotonic() < limit, f"not computed within {WITHIN_SECONDS:g} s"
        supervisor.restart_what_died()
        clock.sleep(LOOK_EVERY_SECONDS)


def _is_computed(name: str, settings: Settings, clock: Clock, say: Callable[[str], None]) -> bool:
    lake = Lake(settings.lake, settings.message.kinds, clock)
    try:
        report = read_report(lake)
        waiting = read_waiting(lake, settings.windowing, report.state.watermark)
        heartbeats = lake.heartbeats().in_place()
    except LakeError:
        return False
    watermark = report.state.watermark
    if heartbeats is None or watermark is None:
        return False
    newest = heartbeats.to_pyarrow_dataset().to_table(columns=["event_time"])["event_time"].to_pylist()
    say(f"{name}: {len(newest)} landed, {len(report.computed)} windows computed, {len(waiting)} wait")
    return not waiting and bool(report.computed) and watermark > max(newest) + settings.windows.length


@contextmanager
def _instance(folder: Path) -> Iterator[dg.DagsterInstance]:
    before = dict(os.environ)
    os.environ.update(_environment(folder))
    try:
        with dg.DagsterInstance.get() as instance:
            yield instance
    finally:
        os.environ.clear()
        os.environ.update(before)


def _seen(instance: dg.DagsterInstance, compared: dict[str, TruthComparison]) -> Played:
    theirs = dg.AssetKey("watermark")
    states = [state for state in instance.all_instigator_state() if state.instigator_name == "tracking"]
    cursor = getattr(states[0].instigator_data, "cursor", None) or "0"
    check = dg.AssetCheckKey(theirs, "late")
    return Played(
        compared=compared,
        reported=int(cursor),
        materializations=len(instance.fetch_materializations(theirs, limit=10_000).records),
        evaluations=len(instance.event_log_storage.get_asset_check_execution_history(check, limit=10_000)),
        ingests=[run.status.value for run in instance.get_runs(dg.RunsFilter(job_name="ingest"))],
        downstream=len(instance.get_materialized_partitions(DOWNSTREAM)),
    )
