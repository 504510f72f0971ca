"""Two cohorts, one of which is late, live: `python -m benchmarks.cohorts --minutes 10` prints how far each watermark is
behind.

Real processes: tidemark's own Pub/Sub, `tidemark init` and `provision`, and the Dagster of the project that `init`
wrote, whose sensors track and land for each cohort, for the rest, and for one pipeline over all messages.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from google.pubsub_v1 import PublisherClient

from tests.cli.command import TIDEMARK, said_by_the_program
from tests.official_emulator import HOST, free_port, running_own_pubsub
from tidemark.pipeline.clock import SystemClock, to_us
from tidemark.pipeline.errors import ServiceFailed
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.pubsub.connection import publisher_client
from tidemark.pipeline.replay.sources import recorded_ticks
from tidemark.pipeline.settings import load_settings

CLOCK = SystemClock()
DAGSTER = str(Path(TIDEMARK).parent / "dagster")
STREAMS = 5
"""Number of streams in each cohort. Each stream publishes a heartbeat per second."""

COHORTS = ("punctual", "late")
ALL = "all"
STARTS_WITHIN_SECONDS, STOPS_WITHIN_SECONDS = 120.0, 30.0


@dataclass(frozen=True, slots=True)
class Followed:
    """The decisions of a pipeline that have a watermark: the time of each, and its watermark."""

    decisions: Sequence[tuple[datetime, datetime]]

    @property
    def lags(self) -> list[float]:
        """The lag of the watermark at each decision, in seconds."""
        return [(at - watermark).total_seconds() for at, watermark in self.decisions]


def play(folder: Path, lasting: timedelta, late_by: timedelta) -> dict[str, Followed]:
    """Play for `lasting`. Return each pipeline's decisions in the second half, by its name. Raises ServiceFailed."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "DAGSTER_HOME": str(folder)}
    cohorts = [part for name in COHORTS for part in ("--cohort", f'{name}=attributes.fleet = "{name}"')]
    _run(folder, ("init", ".", *cohorts), environment)
    _add_one_over_all(folder)
    names = (*COHORTS, "rest", ALL)
    with running_own_pubsub(folder / "pubsub.log") as address:
        environment["PUBSUB_EMULATOR_HOST"] = address
        for name in names:
            _run(folder, ("--config", f"{name}.toml", "provision"), environment)
        with _dagster(folder, environment):
            publisher, topic = publisher_client(address), load_settings(folder / "rest.toml").pubsub.topic_path
            began = CLOCK.now()
            for moment in _seconds(began, lasting):
                _publish(publisher, topic, moment, late_by)
    return {name: _followed(folder, name, began + lasting / 2) for name in names}


def _run(folder: Path, arguments: tuple[str, ...], environment: Mapping[str, str]) -> None:
    """Run a command in the folder. Raises ServiceFailed."""
    said = said_by_the_program(folder, arguments, environment)
    if said.code != 0:
        raise ServiceFailed(f"tidemark {' '.join(arguments)}: {said.err}")


def _add_one_over_all(folder: Path) -> None:
    """Add a pipeline without a filter. Give all pipelines windows of a day, so that no run is requested."""
    rest = (folder / "rest.toml").read_text()
    kept = [line for line in rest.replace("rest", ALL).splitlines() if not line.startswith("filter =")]
    (folder / f"{ALL}.toml").write_text("\n".join(kept))
    for name in (*COHORTS, "rest", ALL):
        with (folder / f"{name}.toml").open("a") as file:
            file.write('\n[windows]\nlength = "1d"\nlookback = "0s"\n')
    definitions = folder / "definitions.py"
    definitions.write_text(definitions.read_text().replace('"rest"', f'"rest", "{ALL}"'))


@contextmanager
def _dagster(folder: Path, environment: Mapping[str, str]) -> Iterator[None]:
    """Run Dagster on the project during the block, which begins after each pipeline's first entry in its log."""
    command = [DAGSTER, "dev", "-f", "definitions.py", "-h", HOST, "-p", str(free_port())]
    with (folder / "dagster.log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        until = CLOCK.monotonic() + STARTS_WITHIN_SECONDS
        while not all((folder / "lakes" / name / "tracking" / "log").exists() for name in (*COHORTS, "rest", ALL)):
            if process.poll() is not None or CLOCK.monotonic() > until:
                raise ServiceFailed(f"not every pipeline ticks:\n{(folder / 'dagster.log').read_text()}")
            CLOCK.sleep(1)
        yield
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(STOPS_WITHIN_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _seconds(began: datetime, lasting: timedelta) -> Iterator[datetime]:
    """Yield each second of the play when it begins."""
    for number in range(int(lasting.total_seconds())):
        moment = began + timedelta(seconds=number)
        CLOCK.sleep(max(0.0, (moment - CLOCK.now()).total_seconds()))
        yield moment


def _publish(publisher: PublisherClient, topic: str, moment: datetime, late_by: timedelta) -> None:
    """Publish a heartbeat of each stream. Event times of the late cohort are earlier by `late_by`."""
    messages = [
        {
            "data": b"{}",
            "attributes": {
                "fleet": cohort,
                "stream_id": f"{cohort}-{stream}",
                "event_time": str(to_us(moment - behind) // 1000),
            },
        }
        for cohort, behind in zip(COHORTS, (timedelta(0), late_by), strict=True)
        for stream in range(STREAMS)
    ]
    publisher.publish(topic=topic, messages=messages, timeout=10)


def _followed(folder: Path, name: str, since: datetime) -> Followed:
    settings = load_settings(folder / f"{name}.toml")
    _, ticks = recorded_ticks(Lake(settings.lake, settings.message.kinds, CLOCK).tracking_log())
    made = [tick.recorded.decision for tick in ticks if tick.recorded is not None]
    return Followed([(one.at, one.watermark) for one in made if one.watermark is not None and one.at >= since])


def main() -> None:
    """Play, and print the median and the largest lag of each pipeline."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cohorts", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--late-by", type=float, default=300.0, help="in seconds")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = play(Path(folder), timedelta(minutes=options.minutes), timedelta(seconds=options.late_by))
    print(f"{'pipeline':10} {'decisions':>10} {'median lag':>11} {'largest':>9}")
    for name, followed in found.items():
        lags = followed.lags
        shown = f"{statistics.median(lags):10.1f}s {max(lags):8.1f}s" if lags else f"{'no watermark':>11}"
        print(f"{name:10} {len(lags):>10} {shown}", file=sys.stdout, flush=True)


if __name__ == "__main__":
    main()
