"""Who owns a lake: over a folder and over a bucket, with processes that live, have died, or are elsewhere."""

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from threading import Barrier

import psutil
import pytest

from tests.clock import ManualClock
from tests.lake.test_tracking_log import deciding
from tests.watermark.builders import at
from tidemark.local.services.ownership import Life, Ownership
from tidemark.local.services.processes import STATE_FILE, Noted, noted_file
from tidemark.pipeline.errors import AlreadyRunning, LakeOwned
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.owner import HEARD_LEAST, NAME, OWNER, Owner, pipeline_of
from tidemark.pipeline.lake.store.notes import Notes
from tidemark.pipeline.machine import ProcessName, own_process, process_of
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import DagsterSettings, LakeSettings, PubSubSettings
from tidemark.pipeline.watermark.state import Beginning

BEGIN, TICK = 10_000.0, 10.0
FAR = ProcessName("elsewhere", "another start", 7, 1.0, at(0))


class Place:
    """A lake, its clock, and the pipelines that would write it."""

    def __init__(self, lake: LakeSettings) -> None:
        self.lake, self.clock, self.said = lake, ManualClock(at(BEGIN)), list[str]()
        self.notes = Notes(Lake(lake, {}, self.clock).objects(), OWNER)
        self.log = Lake(lake, {}, self.clock).tracking_log()

    def settings(self, topic: str = "heartbeats", base: str = "heartbeats-base", state: Path = Path()) -> Settings:
        dagster = DagsterSettings(storage=str(state / "dagster"))
        return Settings(lake=self.lake, pubsub=PubSubSettings(topic=topic, base_subscription=base), dagster=dagster)

    def process(self, topic: str = "heartbeats", up: Path | None = None, base: str = "heartbeats-base") -> Ownership:
        """A process of a pipeline that begins now."""
        settings, config = self.settings(topic, base, up or Path()), None if up is None else up / "tidemark.toml"
        return Ownership(settings, self.clock, up=config, say=self.said.append)

    def owned_by(self, process: ProcessName, up: str = "", ago: float = 0.0) -> Owner:
        """Have the lake say so, since so many seconds ago by this clock."""
        since = self.clock.now() - timedelta(seconds=ago)
        owner = Owner(pipeline_of(self.settings("heartbeats")), process, since, TICK, up)
        self.notes.replace(OWNER.key, owner, self.notes.found(OWNER.key)[1])
        return owner

    def owner(self) -> Owner:
        owner, _ = self.notes.found(OWNER.key)
        return owner

    def decide(self, ahead: float = 0.0) -> None:
        """A decision of the owner, whose clock is so many seconds ahead of ours."""
        self.log.begin(Beginning(at(0)))
        self.log.decide(deciding((self.clock.now() - at(0)).total_seconds() + ahead))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(LakeSettings(uri=f"file:{tmp_path}/lake"))


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"]) as process:
        yield process
        process.kill()


def of_one(pipelines: list[Ownership]) -> int:
    """How many of the pipelines that begin at once own the lake."""
    together = Barrier(len(pipelines))

    def begin(one: Ownership) -> bool:
        together.wait()
        try:
            one.state()
        except LakeOwned:
            return False
        return True

    with ThreadPoolExecutor(len(pipelines)) as pool:
        return sum(pool.map(begin, pipelines))


@pytest.mark.gcs
def test_of_pipelines_that_begin_at_once_one_owns_the_bucket(gcs_lake_settings: LakeSettings) -> None:
    place = Place(gcs_lake_settings)
    assert of_one([place.process(f"topic-{number}") for number in range(4)]) == 1
    place.process(place.owner().pipeline.topic.rpartition("/")[2]).state()
    with pytest.raises(LakeOwned):
        place.process("another").state()


def test_who_is_overtaken_between_look_and_write_is_refused(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    first, faster, own = place.process("orders"), place.process("heartbeats"), Ownership._own

    def overtaken(of: Ownership) -> Owner:
        if of is first:
            faster.state()
        return own(of)

    monkeypatch.setattr(Ownership, "_own", overtaken)
    with pytest.raises(LakeOwned, match="another pipeline writes file:"):
        first.state()
    assert place.owner().pipeline == pipeline_of(place.settings("heartbeats"))


def test_another_pipeline_is_refused_with_the_owners_name_and_what_to_do(place: Place) -> None:
    place.owned_by(FAR, ago=30)
    place.decide()
    place.clock.advance(timedelta(seconds=3))
    with pytest.raises(LakeOwned) as refused:
        place.process(base="another").state()
    named = place.settings().model_copy(update={"dagster": DagsterSettings(name="orders")})
    assert not Ownership(named, place.clock).is_other(place.owner()), "a name is only shown"
    said = str(refused.value)
    for part in (
        f"another pipeline writes {place.lake.uri}: tidemark (topic projects/tidemark-local/topics/heartbeats, ",
        "subscriptions heartbeats-base and heartbeats-tracking), process 7 on elsewhere since ",
        "last heard 3s ago",
        "This pipeline is tidemark (topic projects/tidemark-local/topics/heartbeats, subscriptions another and ",
        "lake.uri",
        "or end its processes on elsewhere; the lake is free 1m after that pipeline's last sign of life",
    ):
        assert part in said
    with pytest.raises(LakeOwned):
        place.process("orders").allow()
    assert place.owner().process == FAR


@pytest.mark.parametrize("ahead", [-7200.0, -59.0, 59.0, 7200.0])
def test_an_owner_elsewhere_that_writes_is_never_taken_over_whatever_its_clock(place: Place, ahead: float) -> None:
    place.owned_by(FAR, ago=7200)
    other = place.process(base="another")
    for _ in range(12):
        place.decide(ahead)
        place.clock.advance(timedelta(seconds=TICK))
        with pytest.raises(LakeOwned):
            other.state()


@pytest.mark.parametrize("ahead", [-7200.0, -30.0, 0.0, 30.0, 7200.0])
def test_an_owner_elsewhere_that_has_died_is_taken_over_within_two_minutes(place: Place, ahead: float) -> None:
    place.owned_by(FAR, ago=7200)
    place.decide(ahead)
    other, seconds = place.process(base="another"), 0.0
    while True:
        try:
            other.state()
            break
        except LakeOwned:
            place.clock.advance(timedelta(seconds=TICK))
            seconds += TICK
    # Its last entry is young for a minute, from that of its clock on; then nothing comes for a tick.
    assert TICK <= seconds <= 2 * HEARD_LEAST.total_seconds()
    (said,) = place.said
    assert said.startswith("taking over the lake from another pipeline: tidemark (topic ")
    assert place.owner().process == own_process()


def test_an_owner_on_this_machine_is_known_by_its_process(place: Place, sleeper: "subprocess.Popen[bytes]") -> None:
    place.owned_by(process_of(sleeper.pid), ago=7200)
    with pytest.raises(LakeOwned):
        place.process(base="another").state()
    sleeper.kill()  # and nobody waits for it: it is a zombie
    psutil.wait_procs([psutil.Process(sleeper.pid)], timeout=0.2)
    place.decide()
    with pytest.raises(LakeOwned, match=r"another lake \(lake.uri\): a lake is for one topic$"):
        place.process("orders").state()  # its log would seem to know messages of the other topic
    place.process(base="another").state()
    assert len(place.said) == 1
    assert place.owner().pipeline.base.endswith("/another")


def test_processes_that_an_up_has_started_leave_its_note(place: Place, sleeper: "subprocess.Popen[bytes]") -> None:
    owner = place.owned_by(process_of(sleeper.pid), up="/srv/one")
    place.process().state()
    assert place.owner() == owner
    sleeper.kill()
    sleeper.wait()
    place.process().state()
    assert place.owner().process == own_process(), "after a kill -9 the note names who goes on"
    place.owned_by(FAR, up="/srv/one", ago=7200)
    place.process().state()
    assert place.owner().process == own_process(), "a rolling update replaces an `up` elsewhere that has ended"


def test_a_second_up_is_refused_beside_one(place: Place, sleeper: "subprocess.Popen[bytes]", tmp_path: Path) -> None:
    place.owned_by(process_of(sleeper.pid), up="/srv/one")
    second = place.process(up=tmp_path / "two")
    for refused in (second.wait_until_known, second.state):
        with pytest.raises(AlreadyRunning, match=rf"^already running as process {sleeper.pid} on .* since 20"):
            refused()
    sleeper.kill()
    sleeper.wait()
    second.wait_until_known()
    second.state()
    assert place.owner().folder == str(tmp_path / "two")
    assert place.clock.now() == at(BEGIN), "at once"


def test_a_second_up_is_refused_while_what_a_killed_one_started_runs_on(
    place: Place, sleeper: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    noted_file(tmp_path).write(Noted(None, {"Dagster daemon": process_of(sleeper.pid)}))
    dead = replace(own_process(), started=-1.0)
    place.owned_by(dead, up=str(tmp_path))
    with pytest.raises(AlreadyRunning, match=r"^a `tidemark up` on this lake has left services running, "):
        place.process(up=tmp_path / "two").wait_until_known()
    with pytest.raises(LakeOwned):
        place.process("orders").state()
    (tmp_path / STATE_FILE).unlink()
    place.process(up=tmp_path / "two").wait_until_known()


def test_an_up_elsewhere_is_waited_for_until_it_is_known_whether_it_lives(place: Place, tmp_path: Path) -> None:
    place.owned_by(FAR, up="/srv/one", ago=7200)
    second = place.process(up=tmp_path)
    place.decide()
    with pytest.raises(AlreadyRunning, match="`tidemark up --stop` on elsewhere"):
        second.wait_until_known()
    place.clock.advance(timedelta(hours=1))
    second.wait_until_known()
    assert place.clock.now() == at(BEGIN + 3600 + TICK)
    (said,) = place.said
    assert said.startswith("a silent pipeline owns this lake: tidemark (topic ")
    assert said.endswith("If it writes nothing within 10s, this pipeline takes over the lake")


def test_an_up_that_ends_says_so_and_only_of_itself(place: Place, tmp_path: Path) -> None:
    first = place.process(up=tmp_path / "one")
    first.state()
    place.process(up=tmp_path / "two").end()
    assert place.owner().ended is None, "that one is not in its folder"
    first.end()
    assert place.owner().ended == place.clock.now()
    place.process("orders").state()
    first.end()
    assert place.owner().ended is None, "another pipeline owns the lake by now"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b'{"process": 1}', b"\xff\x00"])
def test_a_damaged_note_is_said_and_written_again(place: Place, content: bytes) -> None:
    place.notes._objects.replace(NAME, content, 0)
    assert place.process().look() == (None, Life.DEAD, True)
    place.process("orders").allow()
    place.process().state()
    (said,) = place.said
    assert said == f"{place.lake.uri}/{NAME} was damaged: writing it again"
    assert place.owner().process == own_process()
