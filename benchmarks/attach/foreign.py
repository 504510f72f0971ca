"""Plays attach beside a reader that nobody here wrote: a client of Google's in Java or Go, which reads base by itself.

    python -m benchmarks.attach.foreign java official
    python -m benchmarks.attach.foreign go own benchmarks.attach.blind  # a planted fault: base always reads "now"

A backlog is published first, then nothing, then live traffic, with jitter within the band and some invalid messages.
The reader holds messages, gives some back, pauses, and is killed once. `tidemark attach` watches.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

from google.api_core import exceptions as api

from benchmarks.attach.checking import A_CELL, Checked, check, decisions_of, event_times_of, record_of
from tests.official_emulator import end, running_emulator, running_own_pubsub
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.pubsub.connection import publisher_client, subscriber_client
from tidemark.pipeline.settings import Settings, load_settings
from tidemark.pipeline.watermark.decision import Decision

CLIENTS = Path(__file__).parent.parent.parent / "examples" / "clients"
SERVERS = {"official": running_emulator, "own": running_own_pubsub}
COMMAND = "tidemark.pipeline.cli"
BAND = timedelta(seconds=10)
BUILT_WITHIN_SECONDS = 280
DONE_WITHIN_SECONDS = 400
CATCHES_UP_WITHIN_SECONDS = 60
"""The official emulator goes on to lease half of all messages to a stream whose process has crashed, so a backlog
halves every ack deadline only."""

CRASHED = 3
"""The exit code of a reader that crashed as it was asked to."""

SETTINGS = """
[pubsub]
project = "{project}"
topic = "events"
base_subscription = "theirs"
tracking_subscription = "events-tracking"
attach = true
emulator_host = "{address}"
[watermark]
band = "10s"
tick = "5s"

[lake]
uri = "file:lake"
"""

Say = Callable[[str], None]


def built(client: str, folder: Path) -> list[str]:
    """Build a client in this folder; the command that runs it. The libraries come from the registries, once."""
    source = folder / client
    shutil.copytree(CLIENTS / client, source, ignore=shutil.ignore_patterns("target"))
    build = {"java": ["mvn", "-q", "-B", "process-classes"], "go": ["go", "build", "-o", "reader", "."]}[client]
    done = subprocess.run(build, cwd=source, capture_output=True, text=True, timeout=BUILT_WITHIN_SECONDS, check=False)
    _require(done.returncode == 0, f"{' '.join(build)}:\n{done.stdout}\n{done.stderr}")
    if client == "go":
        return [str(source / "reader")]
    return [
        "java",
        "-cp",
        os.pathsep.join([str(source / "target/classes"), str(source / "target/dependency/*")]),
        "Reader",
    ]


def play(folder: Path, command: list[str], address: str, say: Say, *, module: str = COMMAND) -> Checked:
    """Play it in an empty folder; `module` is the command that watches. Raises AssertionError where it takes long."""
    config = folder / "tidemark.toml"
    config.write_text(SETTINGS.format(address=address, project=f"foreign-{uuid4().hex[:8]}"))
    settings = load_settings(config)
    _base(settings)
    truths = [folder / "backlog.parquet", folder / "live.parquet"]
    reader = [*command, "-project", settings.pubsub.project, "-subscription", settings.pubsub.base_subscription]
    reader += ["-record", str(folder / "record.tsv"), "-seconds", "600", "-hold-ms", "1500", "-nack", "0.02"]
    reader += ["-pause-every", "30", "-pause-for", "12"]
    with ExitStack() as running:
        watching = running.enter_context(_running("attach", folder, _tidemark(config, "attach", module=module)))
        _until(lambda: _has_decided(settings), "the first decision", watching)
        _publish(config, truths[0], "--since", "3m", "--for", "1s")
        say("the backlog is published")
        time.sleep(15)  # a mode that did not look at base would pass the backlog by now
        crashing = running.enter_context(_running("first", folder, [*reader, "-crash-after", "300"], address))
        _until(lambda: crashing.poll() is not None, "the crash")
        _require(crashing.returncode == CRASHED, (folder / "first.log").read_text())
        say("the reader has crashed")
        running.enter_context(_running("second", folder, reader, address))
        caught_up = time.monotonic() + CATCHES_UP_WITHIN_SECONDS
        _until(lambda: _unsent(truths[:1], folder) < 50 or time.monotonic() > caught_up, "almost all of the backlog")
        live = datetime.now(UTC)
        _publish(config, truths[1], "--for", "40s")
        say("the live traffic is published")
        _until(lambda: not _unsent(truths, folder), "all acknowledgements")
        say("all is acknowledged")

        def checked_now() -> Checked:
            record = record_of(folder / "record.tsv")
            return check(event_times_of(truths), record, _decisions(settings), since=live)

        # What the crashed process sent last may not have arrived, and comes again.
        _until(lambda: checked_now().short_of_the_end <= BAND + A_CELL, "a watermark past what was acknowledged")
        checked = checked_now()
    say(str(checked))
    return checked


def _base(settings: Settings) -> None:
    """The topic, and the subscription that is theirs."""
    with suppress(api.AlreadyExists):
        publisher_client(settings.pubsub.emulator_host).create_topic(name=settings.pubsub.topic_path)
    request = {"name": settings.pubsub.base_path, "topic": settings.pubsub.topic_path}
    subscriber_client(settings.pubsub.emulator_host).create_subscription(request=request)


def _tidemark(config: Path, *arguments: str, module: str = COMMAND) -> list[str]:
    return [sys.executable, "-m", module, "--config", str(config), *arguments]


def _publish(config: Path, truth: Path, *times: str) -> None:
    """30 streams, a message every 6 s each; returns when all is published."""
    options = ("--streams", "30", "--period", "6s", "--jitter", "6s", "--duplicates", "0", "--broken", "0.01")
    command = _tidemark(config, "publish", *times, *options, "--truth", str(truth))
    subprocess.run(command, check=True, capture_output=True, timeout=DONE_WITHIN_SECONDS)


def _decisions(settings: Settings) -> list[Decision]:
    return decisions_of(Lake(settings.lake, settings.message.kinds, SystemClock()).tracking_log())


def _has_decided(settings: Settings) -> bool:
    return bool(_decisions(settings))


def _unsent(truths: list[Path], folder: Path) -> int:
    return len(event_times_of(truths).keys() - record_of(folder / "record.tsv").keys())


@contextmanager
def _running(name: str, folder: Path, command: list[str], address: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """A process with its output in `<name>.log`; it is stopped after the block."""
    environment = {**os.environ, "PUBSUB_EMULATOR_HOST": address} if address else None
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
    try:
        yield process
    finally:
        end(process, signal.SIGINT)


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        sys.exit(otherwise)


def _until(done: Callable[[], bool], what: str, process: subprocess.Popen[bytes] | None = None) -> None:
    until = time.monotonic() + DONE_WITHIN_SECONDS
    while not done():
        _require(time.monotonic() < until, f"{what} did not come within {DONE_WITHIN_SECONDS} s")
        _require(process is None or process.poll() is None, f"{what}: the process ended")
        time.sleep(0.5)


if __name__ == "__main__":
    client, server = sys.argv[1:3]
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {text}", flush=True)

    folder = Path(tempfile.mkdtemp(prefix=f"foreign-{client}-{server}-"))
    (folder / "play").mkdir()
    command = built(client, folder)
    with SERVERS[server](folder / "server.log") as address:
        checked = play(folder / "play", command, address, say, module=sys.argv[3] if sys.argv[3:] else COMMAND)
    print("\n".join(checked.violations[:5]))
