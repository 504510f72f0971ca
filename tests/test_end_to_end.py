"""The whole of it on real parts, started as a person starts it: killed in the middle, and started anew."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest
from google.api_core import exceptions as api

from pipeline.clock import SystemClock
from pipeline.demo.comparison import Comparison, compare
from pipeline.errors import LakeError
from pipeline.lake.layout import Lake
from pipeline.lake.report import LakeReport, read_report
from pipeline.pubsub.connection import publisher_client
from pipeline.settings import Settings, load_settings
from tests.emulator import free_port

ROOT = Path(__file__).resolve().parent.parent
TIDEMARK = str(Path(sys.executable).parent / "tidemark")
LOOK_EVERY_SECONDS = 0.2
STARTED_WITHIN_SECONDS = 120
COMPUTED_WITHIN_SECONDS = 180
STOPPED_WITHIN_SECONDS = 60
CODE_SERVER, DAEMON = "Dagster code server", "Dagster daemon"

CONFIG = """\
[pubsub]
emulator_host = "127.0.0.1:{emulator}"
ack_deadline = "20s"
pull_wait = "1s"

[message.fields]
temperature = "number"
status = "text"

[windows]
length = "1m"

[watermark]
band = "2s"
tick = "2s"
near_real_time = "5s"
idle_timeout = "12s"
max_idle_lag = "1s"

[lake]
uri = "file:lake"
checkpoint_every = 20

[spark]
remote = "sc://localhost:{spark}"
driver_memory = "1g"

[dagster]
storage = "state/dagster"
web_port = {web}
code_port = {code}
"""


@dataclass(frozen=True, slots=True)
class House:
    """A folder with its own settings, and the commands run in it."""

    folder: Path
    settings: Settings

    @property
    def config(self) -> Path:
        return self.folder / "tidemark.toml"

    @property
    def truth(self) -> Path:
        return self.folder / "truth.parquet"

    @property
    def state(self) -> Path:
        return self.folder / "state"

    def command(self, *arguments: str) -> list[str]:
        return [TIDEMARK, "--config", str(self.config), *arguments]

    def report(self) -> LakeReport | None:
        """Where the lake stands; None in the instant in which a table is being made."""
        try:
            return read_report(
                Lake(self.settings.lake, self.settings.message.fields, SystemClock()), self.settings.windowing
            )
        except LakeError:
            return None

    def services(self) -> dict[str, psutil.Process]:
        """What `tidemark up` has noted as running."""
        noted = json.loads((self.state / "services.json").read_text())
        found = {name: psutil.Process(pid) for name, pid, _ in noted if psutil.pid_exists(pid)}
        return {name: process for name, process in found.items() if process.status() != psutil.STATUS_ZOMBIE}


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> House:
    for name in list(os.environ):
        if name.startswith("TIDEMARK_") or name == "PUBSUB_EMULATOR_HOST":
            monkeypatch.delenv(name)
    ports = {name: free_port() for name in ("emulator", "spark", "web", "code")}
    config = tmp_path / "tidemark.toml"
    config.write_text(CONFIG.format(**ports))
    return House(tmp_path, load_settings(config))


@contextmanager
def up(house: House, output: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """`tidemark up` while the block runs, asked to end as Ctrl-C asks; nothing it started is there afterwards."""
    with output.open("wb") as file:
        process = subprocess.Popen(
            house.command("up"), cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
    family: set[psutil.Process] = set()
    try:
        yield process
        family = {psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)}
        process.send_signal(signal.SIGINT)
        process.wait(STOPPED_WITHIN_SECONDS)
    finally:
        left = [one for one in family if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
        if process.poll() is None:
            left += [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
        names = [one.name() for one in left]
        for one in left:
            one.kill()
    assert names == []
    assert process.returncode == 0, output.read_text()


def until(what: str, reached: Callable[[], bool], seconds: float, process: "subprocess.Popen[bytes]") -> None:
    """Return once it is so. Fails where it does not become so, or where the process has ended."""
    limit = time.monotonic() + seconds
    while not reached():
        assert process.poll() is None, f"the process ended while waiting until {what}"
        assert time.monotonic() < limit, f"not within {seconds} s: {what}"
        time.sleep(LOOK_EVERY_SECONDS)


def until_running(output: Path, process: "subprocess.Popen[bytes]") -> None:
    try:
        until("it runs", lambda: "Ctrl-C stops it all" in output.read_text(), STARTED_WITHIN_SECONDS, process)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{output.read_text()}") from error


def is_provisioned(settings: Settings) -> bool:
    client = publisher_client(settings.pubsub.emulator_host)
    try:
        names = list(client.list_topic_subscriptions(topic=settings.pubsub.topic_path, retry=None, timeout=2))
    except api.GoogleAPICallError:
        return False
    finally:
        client.transport.close()
    return len(names) == 2


def publishing(house: House, output: Path) -> "subprocess.Popen[bytes]":
    """Four minutes of heartbeats as a backlog; some copies come a minute after."""
    options = ["--streams", "60", "--since", "4m", "--for", "0s", "--jitter", "1s", "--duplicates", "0.05"]
    with output.open("wb") as file:
        return subprocess.Popen(
            house.command("publish", *options, "--broken", "0.01", "--truth", str(house.truth), "--json"),
            cwd=ROOT,
            stdout=file,
            stderr=subprocess.DEVNULL,
        )


def windows_of(house: House) -> set[str]:
    """Every window from the first heartbeat's to the last one's."""
    truth = pq.read_table(house.truth, columns=["event_time", "kind"]).to_pylist()
    times: list[datetime] = [row["event_time"] for row in truth if row["kind"] in ("heartbeat", "duplicate")]
    windowing = house.settings.windowing
    last = windowing.containing(max(times))
    return {window.key for window in windowing.between(windowing.containing(min(times)).start, last.end)}


def compared(house: House) -> Comparison:
    windows = house.settings.windows
    return compare(
        house.truth,
        house.folder / "lake",
        lookback_seconds=windows.lookback.total_seconds(),
        period_seconds=windows.heartbeat_period.total_seconds(),
        window_seconds=windows.length.total_seconds(),
    )


def is_killed_and_back(house: House, killed: list[psutil.Process]) -> bool:
    running = house.services()
    return {CODE_SERVER, DAEMON} <= set(running) and not {process.pid for process in killed} & {
        process.pid for process in running.values()
    }


def rows_of(report: LakeReport | None) -> int:
    assert report is not None
    return sum(report.computed.values())


@pytest.mark.timeout(600)
def test_killed_in_the_middle_and_started_anew_without_its_storage_every_row_is_right(
    house: House, tmp_path: Path
) -> None:
    with up(house, tmp_path / "up-1.txt") as process:
        until("both subscriptions are there", lambda: is_provisioned(house.settings), STARTED_WITHIN_SECONDS, process)
        source = publishing(house, tmp_path / "published.json")
        until_running(tmp_path / "up-1.txt", process)
        manifests = house.folder / "lake" / "diff_runs"
        until("a run is computing", lambda: any(manifests.glob("*.json")), COMPUTED_WITHIN_SECONDS, process)

        killed = [house.services()[name] for name in (CODE_SERVER, DAEMON)]
        runs = killed[0].children(recursive=True)
        for one in killed:
            one.kill()
        until("they are started again", lambda: is_killed_and_back(house, killed), 60, process)

        assert source.wait(120) == 0
        wanted = windows_of(house)
        until(
            "every window is computed",
            lambda: bool((r := house.report()) and wanted <= set(r.computed)),
            COMPUTED_WITHIN_SECONDS,
            process,
        )

    assert runs
    assert [one.pid for one in runs if one.is_running() and one.status() != psutil.STATUS_ZOMBIE] == []
    published = json.loads((tmp_path / "published.json").read_text())
    comparison, first = compared(house), house.report()
    assert first is not None
    assert first.standing.watermark is not None
    assert comparison.rows == comparison.expected_rows == published["heartbeats"] > 0
    assert (comparison.differences, comparison.missed, comparison.examples) == (0, 0, [])
    assert comparison.quarantine_differences == 0
    assert comparison.quarantined == {reason: count for reason, count in published["broken"].items() if count}
    assert published["duplicates"] > 0

    shutil.rmtree(house.settings.dagster.storage)
    with up(house, tmp_path / "up-2.txt") as process:
        until_running(tmp_path / "up-2.txt", process)
        decided = first.standing.number + 3
        until(
            "it has decided again",
            lambda: bool((r := house.report()) and r.standing.number >= decided and not r.waiting),
            COMPUTED_WITHIN_SECONDS,
            process,
        )
    second = house.report()
    assert second is not None
    assert second.standing.watermark is not None
    assert second.standing.watermark >= first.standing.watermark
    assert {key: second.computed[key] for key in wanted} == {key: first.computed[key] for key in wanted}
    again = compared(house)
    assert (again.rows, again.differences, again.missed) == (comparison.rows, 0, 0)
