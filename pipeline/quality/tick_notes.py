"""What the ticks of a process leave behind for people: in memory, in the file outside of the lake, and in the lake."""

import logging
from dataclasses import replace
from threading import Lock

from tidemark.pipeline.clock import Clock
from tidemark.pipeline.errors import LakeOwned, NewerFormat
from tidemark.pipeline.lake.failures import FailedTick, FailedTicks, reason_of
from tidemark.pipeline.quality.running import Running, SensorTicks, ever_smaller, file_of, read_word
from tidemark.pipeline.settings import Settings

logger = logging.getLogger(__name__)


class TickNotes:
    """The sensors of one process. No call raises, and nothing is decided by what is noted. Safe from several threads.

    The file is for this machine, and is written first: a full lake takes no note. The lake's notes are for others.
    """

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._clock = clock
        self._lock = Lock()
        self._file = file_of(settings)
        self._said = Running.this_process(settings)
        self._cleared = set[str]()
        self._warned = False

    def failed(self, sensor: str, error: BaseException, lake: FailedTicks | None) -> FailedTick:
        """A tick has failed. Nothing is written into another pipeline's lake, or into one of a later version."""
        noted_in = None if isinstance(error, LakeOwned | NewerFormat) else lake
        return self._not_good(sensor, reason_of(error), noted_in, waits=False)

    def good(self, sensor: str, lake: FailedTicks, waits: str = "") -> None:
        """A tick has succeeded, except for what `waits` says. The first one of a process deletes what an earlier
        process may have left in the lake."""
        if waits:
            self._not_good(sensor, waits, lake, waits=True)
            return
        self._tell(sensor, None)
        if sensor not in self._cleared:
            lake.clear(sensor)
            self._cleared.add(sensor)

    def _not_good(self, sensor: str, reason: str, lake: FailedTicks | None, *, waits: bool) -> FailedTick:
        now = self._clock.now()
        self._cleared.discard(sensor)
        failed = FailedTick(sensor, 1, now, now, reason, waits)
        failed = self._tell(sensor, failed) or failed
        return failed if lake is None else lake.note(failed)

    def _tell(self, sensor: str, failed: FailedTick | None) -> FailedTick | None:
        """Note it, after what other processes said meanwhile. Returns the failure with what is known of it before."""
        with self._lock:
            said = self._said.joined(None if self._file is None else read_word(self._file))
            before = said.sensors.get(sensor, SensorTicks())
            failed = failed and failed.after(before.failed)
            good = before.good if failed and not failed.waits else self._clock.now()
            self._said = replace(said, sensors={**said.sensors, sensor: SensorTicks(good, failed)})
            if self._file is None:
                return failed
            try:
                self._file.write(*ever_smaller(self._said), sync=(before.failed is None) != (failed is None))
            except OSError as error:
                if not self._warned:
                    logger.warning("%s cannot be written: %s. What fails is told by the lake", self._file.path, error)
                self._warned = True
            return failed
