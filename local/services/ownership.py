"""The ownership of a lake. A process records in `owner.json` that its pipeline writes to the lake; other pipelines are
then refused.

A process that tracks or lands writes the record once, before its first write to the lake, unless a living `tidemark up`
has written it. Later, the newest entry of the tracking log shows that the owner is alive. Ownership is only advisory:
two simultaneous starts or a changed clock may cause a wrong refusal or two writing pipelines, but never the loss of a
message. A lake whose log has entries is never taken over by a pipeline of another topic, because these entries count
messages that only the old topic had.
"""

import logging
import shlex
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from enum import Enum
from functools import cached_property
from pathlib import Path
from threading import Lock

from tidemark.local.services.processes import noted_in
from tidemark.pipeline.clock import Clock, format_duration, iso, rough
from tidemark.pipeline.errors import AlreadyRunning, LakeError, LakeOwned, NewerFormat, ObjectReplaced, ServiceFailed
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.log.tracking_log import TrackingLog
from tidemark.pipeline.lake.owner import NAME, OWNER, Owner, pipeline_of
from tidemark.pipeline.lake.store.notes import Notes
from tidemark.pipeline.machine import own_process
from tidemark.pipeline.phrases import printable
from tidemark.pipeline.settings import Settings

logger = logging.getLogger(__name__)

ATTEMPTS, PAUSE_SECONDS = 10, 0.1
"""Maximum number of attempts to write `owner.json` against concurrent writers, and the pause between attempts."""


class Life(Enum):
    """The liveness of a lake's owner. UNCLEAR means that the owner's last sign of life is old, but its clock may be
    wrong. If an UNCLEAR owner then writes nothing for one of its tick intervals, it counts as DEAD."""

    LIVES = "lives"
    UNCLEAR = "unclear"
    DEAD = "dead"


class Ownership:
    """The ownership of a lake, as one process sees it. Thread-safe.

    `up` is the settings file if the process is a `tidemark up`. `say` receives messages for the user, such as which
    pipeline owned the lake before.
    """

    def __init__(
        self, settings: Settings, clock: Clock, *, up: Path | None = None, say: Callable[[str], None] = logger.warning
    ) -> None:
        self._lake = Lake(settings.lake, settings.message.kinds, clock)
        self._pipeline, self._tick = pipeline_of(settings), settings.watermark.tick
        self._clock, self._say = clock, say
        self._folder, self._config = ("", "") if up is None else (str(settings.dagster.state_folder), str(up))
        self._lock, self._process = Lock(), own_process()
        self._is_allowed = self._is_stated = False
        self._looked: tuple[int, float] | None = None
        """The number of the newest log entry, and the monotonic time at which this process first saw the
        entry. None until an owner on another machine seems silent."""

    @cached_property
    def _notes(self) -> Notes[Owner]:
        return Notes(self._lake.objects(), OWNER)

    @cached_property
    def _log(self) -> TrackingLog:
        return self._lake.tracking_log()

    def allow(self) -> None:
        """Raise LakeError, such as LakeOwned if another pipeline writes to the lake. In a `tidemark up`, raise
        AlreadyRunning if another `tidemark up` of this pipeline runs or left services. After a success, do nothing."""
        with self._lock:
            if not (self._is_allowed or self._is_stated):
                self._stands(self._notes.found(OWNER.key)[0])
                self._is_allowed = True

    def state(self) -> None:
        """Record that this process's pipeline writes to the lake. If a `tidemark up` of the pipeline runs, its record
        is kept instead. After a success, do nothing. Raises the errors of `allow`."""
        with self._lock:
            attempts = 0
            while not self._is_stated:
                there, generation = self._notes.found(OWNER.key)
                if not self._stands(there):
                    self._log.newest()  # raises if this version cannot read the log, before anything is written
                    try:
                        self._notes.replace(OWNER.key, self._own(), generation)
                    except ObjectReplaced:
                        if (attempts := attempts + 1) == ATTEMPTS:
                            raise
                        self._clock.sleep(PAUSE_SECONDS)
                        continue
                    self._tell(there, generation)
                self._is_allowed = self._is_stated = True

    def wait_until_known(self) -> None:
        """Call `allow`. If it refuses while the owner's Life is UNCLEAR, wait for one tick interval of the owner, and
        call it again."""
        while True:
            try:
                self.allow()
                return
            except (AlreadyRunning, LakeOwned):
                there, life, _ = self.look()
                if there is None or life is not Life.UNCLEAR:
                    raise
                self._say(
                    f"a silent pipeline owns this lake: {self.sentence(there)}. If it writes nothing within "
                    f"{rough(there.tick)}, this pipeline takes over the lake"
                )
                self._clock.sleep(there.tick.total_seconds())

    def end(self) -> None:
        """Record in `owner.json` that the recorded `tidemark up` has ended. Do nothing if its folder differs from
        this process's, or if it is a different process that may be alive. Raises LakeError."""
        there, generation = self._notes.found(OWNER.key)
        if there is None or there.ended is not None or not self._folder or there.folder != self._folder:
            return
        if there.process == self._process or there.process.has_ended():
            self._notes.replace(OWNER.key, replace(there, ended=self._clock.now()), generation)

    def look(self) -> tuple[Owner | None, Life, bool]:
        """Return the owner recorded in `owner.json` (None if absent or damaged), its Life (DEAD if None), and whether
        the record is damaged. Raises LakeError."""
        there, generation = self._notes.found(OWNER.key)
        return there, Life.DEAD if there is None else self._life(there), there is None and generation != 0

    def is_other(self, owner: Owner) -> bool:
        """Return True if the owner is not this pipeline."""
        return owner.pipeline != self._pipeline

    def is_of_another_topic(self, owner: Owner) -> bool:
        """Return True if the owner has a different topic, and the tracking log has entries. Raises LakeError."""
        return owner.pipeline.topic != self._pipeline.topic and self._log.newest().number >= 0

    def sentence(self, owner: Owner) -> str:
        """Describe an owner: its pipeline, its process, and its last sign of life."""
        return f"{owner.pipeline}, {self._whose(owner)}"

    def _stands(self, there: Owner | None) -> bool:
        """Return True if the owner `there` is this pipeline's living `tidemark up`, whose record must be kept. Raises
        LakeOwned and AlreadyRunning."""
        if there is None:
            return False
        is_up = there.folder != "" and there.process != self._process
        if not (self.is_other(there) or is_up):
            return False
        life = self._life(there)
        if life is Life.DEAD and not self.is_of_another_topic(there):
            return False
        if self.is_other(there):
            raise LakeOwned(printable(self.refusal(there)))
        if self._folder:
            raise AlreadyRunning(printable(self._second(there)))
        return life is Life.LIVES

    def _life(self, owner: Owner) -> Life:
        if owner.ended is not None:
            return Life.DEAD
        if owner.process.is_near():
            return Life.LIVES if owner.process.runs() or _has_left_services(owner) else Life.DEAD
        if abs(self._clock.now() - self._heard(owner)) < owner.heard_within:
            return Life.LIVES
        newest, now = self._log.newest().number, self._clock.monotonic()
        if self._looked is None or self._looked[0] != newest:
            is_first, self._looked = self._looked is None, (newest, now)
            return Life.UNCLEAR if is_first else Life.LIVES
        return Life.DEAD if now - self._looked[1] >= owner.tick.total_seconds() else Life.UNCLEAR

    def _heard(self, owner: Owner) -> datetime:
        """Return the time of the owner's last sign of life: its newest decision or the time in `owner.json`, whichever
        is later."""
        record = self._log.newest().record
        return owner.since if record is None else max(owner.since, record.decision.at)

    def _own(self) -> Owner:
        tick = self._tick.total_seconds()
        return Owner(self._pipeline, self._process, self._clock.now(), tick, self._folder, self._config)

    def _tell(self, there: Owner | None, generation: int) -> None:
        if there is None and generation:
            self._say(f"{self._notes.place(OWNER.key)} was damaged: writing it again")
        elif there is not None and self.is_other(there):
            self._say(printable(f"taking over the lake from another pipeline: {self.sentence(there)}"))

    def refusal(self, there: Owner) -> str:
        """Return a message that says why this pipeline is refused, and what to do."""
        lake, writes = self._notes.place(OWNER.key).removesuffix(f"/{NAME}"), "wrote" if there.ended else "writes"
        instead = ": a lake is for one topic" if self.is_of_another_topic(there) else f", or {self._how_to_stop(there)}"
        return (
            f"another pipeline {writes} {lake}: {self.sentence(there)}. This pipeline is {self._pipeline}. Give it "
            f"another lake (lake.uri){instead}"
        )

    def _second(self, there: Owner) -> str:
        whose, how = self._whose(there), self._how_to_stop(there)
        if there.process.has_ended():
            return f"a `tidemark up` on this lake has left services running, {whose}. To end them, {how}"
        return f"already running as {whose}, on this lake. To stop it, {how}"

    def _how_to_stop(self, there: Owner) -> str:
        process, is_up = there.process, there.folder != ""
        if process.is_near():
            stop = f"run `tidemark --config {shlex.quote(there.config)} up --stop`"
            return stop if is_up else f"end process {process.process}"
        first = "run `tidemark up --stop`" if is_up else "end its processes"
        free = f"the lake is free {format_duration(there.heard_within)} after that pipeline's last sign of life"
        return f"{first} on {process.host}; {free}"

    def _whose(self, owner: Owner) -> str:
        said = str(owner.process)
        if owner.folder:
            said += f", by `tidemark up` in {owner.folder}"
        if owner.ended is not None:
            return f"{said}, ended {iso(owner.ended.replace(microsecond=0))}"
        with suppress(LakeError):
            ago = self._clock.now() - self._heard(owner)
            said += f", last heard {rough(max(ago, -ago))} {'ago' if ago >= -ago else 'ahead of this clock'}"
        return said


def _has_left_services(owner: Owner) -> bool:
    """Return True if the owner is a `tidemark up` on this machine, and services that it started are still running."""
    with suppress(NewerFormat, ServiceFailed):
        return bool(owner.folder) and bool(noted_in(Path(owner.folder)).alive())
    return False
