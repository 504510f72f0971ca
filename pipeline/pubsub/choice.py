"""Chooses between the two readings: a snapshot's where one can be had, else Cloud Monitoring's."""

import logging
from contextlib import suppress

from pipeline.clock import Clock
from pipeline.errors import PubSubError, SnapshotRefused
from pipeline.pubsub.backlog import LIFETIME, REFUSED_WITHIN, Backlog
from pipeline.pubsub.monitoring import LOOK_BACK, SAMPLE_PERIOD, MonitoringBacklog, Undelivered
from pipeline.watermark.readings import Reading

logger = logging.getLogger(__name__)


class AutoBacklog:
    """Readings by snapshot, unless one is refused or the backlog is larger than `snapshot_max_backlog` messages (None:
    any size will do). Keep the instance from tick to tick: it remembers a refusal and the size.

    The two sources may alternate: an older reading changes nothing until it is larger, and is no seek. While the size
    is unknown snapshots are taken, which may cost more but is never wrong.
    """

    def __init__(
        self, snapshot: Backlog, monitoring: MonitoringBacklog, clock: Clock, snapshot_max_backlog: int | None
    ) -> None:
        self._snapshot = snapshot
        self._monitoring = monitoring
        self._clock = clock
        self._max_backlog = snapshot_max_backlog
        self._is_refused = False
        self._size: Undelivered | None = None
        self._size_asked_at = clock.now() - SAMPLE_PERIOD
        self._problem = ""

    def read(self) -> Reading:
        """A reading, with its `source`. Raises SnapshotRefused, with both reasons, where neither can be had, and the
        errors of the source it takes."""
        if self._is_too_large():
            return self._monitoring.read()
        if self._is_refused:
            with suppress(PubSubError):
                reading = self._monitoring.read()
                if reading.no_later_than < self._clock.now() - (LIFETIME - REFUSED_WITHIN):
                    return reading  # a snapshot would be refused again
        try:
            reading = self._snapshot.read()
        except SnapshotRefused as refusal:
            self._is_refused = True
            try:
                return self._monitoring.read()
            except PubSubError as error:
                raise SnapshotRefused(f"{refusal}. Nor is there a reading by monitoring: {error}") from error
        self._is_refused = False
        return reading

    def _is_too_large(self) -> bool:
        """Whether the newest known size is beyond the limit. Asks for the size once in each sample period."""
        if self._max_backlog is None:
            return False
        now = self._clock.now()
        if now - self._size_asked_at >= SAMPLE_PERIOD:
            self._size_asked_at = now
            self._ask_size()
        size = self._size
        return size is not None and now - size.sampled_by < LOOK_BACK and size.messages > self._max_backlog

    def _ask_size(self) -> None:
        problem = ""
        try:
            self._size = self._monitoring.undelivered()
        except PubSubError as error:
            problem = str(error)
        if problem and problem != self._problem:
            logger.warning("the backlog's size is unknown, so snapshots are taken at any size: %s", problem)
        self._problem = problem
