"""What the ticks of a process leave behind for people: in memory, in the file outside of the lake, and in the lake."""

import logging
from dataclasses import replace
from threading import Lock

from tidemark.pipeline.clock import Clock
from tidemark.pipeline.lake.tables.failures import FailedTick, FailedTicks, reason_of
from tidemark.pipeline.quality.running import Running, ever_smaller, file_of, read_word
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

    def failed(self, sensor: str, error: BaseException | str, lake: FailedTicks | None) -> FailedTick:
        """A tick has failed, or waits for what a text says. Without a lake none is written: it is a later version's."""
        now, waits = self._clock.now(), isinstance(error, str)
        reason = error if isinstance(error, str) else reason_of(error)
        self._cleared.discard(sensor)
        failed = FailedTick(sensor, 1, now, now, reason, waits)
        failed = self._tell(sensor, failed) or failed
        return failed if lake is None else lake.note(failed)

    def good(self, sensor: str, lake: FailedTicks) -> None:
        """A tick has succeeded. The first one of a process deletes what an earlier process may have left in the
        lake."""
        self._tell(sensor, None)
        if sensor not in self._cleared:
            lake.clear(sensor)
            self._cleared.add(sensor)

    def _tell(self, sensor: str, failed: FailedTick | None) -> FailedTick | None:
        """Note it, after what other processes said meanwhile. Returns the failure with what is known of it before."""
        with self._lock:
            there = None if self._file is None else read_word(self._file)
            said = self._said if there is None else self._said.joined(there)
            known = next((one for one in said.failing if one.sensor == sensor), None)
            failed = failed and failed.after(known)
            good = said.good if failed and not failed.waits else {**said.good, sensor: self._clock.now()}
            failing = [one for one in (*said.failing, failed) if one and (one is failed or one.sensor != sensor)]
            self._said = replace(said, good=good, failing=failing)
            if self._file is None:
                return failed
            try:
                self._file.write(*ever_smaller(self._said), sync=(known is None) != (failed is None))
            except OSError as error:
                if not self._warned:
                    logger.warning("%s cannot be written: %s. What fails is told by the lake", self._file.path, error)
                self._warned = True
            return failed
