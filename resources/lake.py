"""The lake as a Dagster resource. What the sensors hold of it is a cache, restored from the lake itself."""

from datetime import timedelta
from functools import lru_cache
from typing import Any

import dagster as dg

from pipeline.clock import SystemClock
from pipeline.heartbeat import FieldKind
from pipeline.lake.layout import Lake
from pipeline.lake.log.tracking_log import TrackingLog
from pipeline.lake.tables.diffs import HeartbeatDiffs
from pipeline.lake.tables.heartbeats import Heartbeats
from pipeline.lake.tables.kept_windows import KeptWindows
from pipeline.lake.tables.quarantine import Quarantine
from pipeline.quality.late import LateHeartbeats
from pipeline.quality.staleness import Staleness
from pipeline.settings import LakeSettings
from pipeline.windows import Windowing


class LakeResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """A folder or a bucket. `user` names who asks: each gets its own, and keeps it between ticks."""

    uri: str
    endpoint: str | None = None
    checkpoint_every: int = 200
    fields: dict[str, str] = {}  # noqa: RUF012 (pydantic copies it)

    def whole(self) -> Lake:
        """The lake as one thing, for who asks for it rarely and keeps nothing of it."""
        return _lake(self._key())

    def tracking_log(self, user: str) -> TrackingLog:
        """The numbered log of snapshots and decisions, with its live histogram."""
        return _tracking_log(self._key(), user)

    def heartbeats(self, user: str) -> Heartbeats:
        """Landed messages."""
        return _heartbeats(self._key(), user)

    def quarantine(self, user: str) -> Quarantine:
        """Rejected messages."""
        return _quarantine(self._key(), user)

    def diffs(self, user: str) -> HeartbeatDiffs:
        """Computed windows."""
        return _diffs(self._key(), user)

    def staleness(self, user: str, windowing: Windowing, lookback: timedelta) -> Staleness:
        """The check of missed heartbeats, which goes on from the checkpoint that the lake keeps."""
        return _staleness(self._key(), user, windowing, lookback)

    def late(self, user: str, windowing: Windowing) -> LateHeartbeats:
        """What first landed below the watermark."""
        return _late(self._key(), user, windowing)

    def kept_windows(self, windowing: Windowing) -> KeptWindows:
        """From which window on the lake keeps what a window is computed from."""
        return self.whole().kept_windows(windowing)

    def _key(self) -> tuple[Any, ...]:
        return self.uri, self.endpoint, self.checkpoint_every, tuple(self.fields.items())


def _lake(key: tuple[Any, ...]) -> Lake:
    uri, endpoint, checkpoint_every, fields = key
    settings = LakeSettings(uri=uri, endpoint=endpoint, checkpoint_every=checkpoint_every)
    return Lake(settings, {name: FieldKind(kind) for name, kind in fields}, SystemClock())


@lru_cache(maxsize=16)
def _tracking_log(key: tuple[Any, ...], _user: str) -> TrackingLog:
    return _lake(key).tracking_log()


@lru_cache(maxsize=16)
def _heartbeats(key: tuple[Any, ...], _user: str) -> Heartbeats:
    return _lake(key).heartbeats()


@lru_cache(maxsize=16)
def _quarantine(key: tuple[Any, ...], _user: str) -> Quarantine:
    return _lake(key).quarantine()


@lru_cache(maxsize=16)
def _diffs(key: tuple[Any, ...], _user: str) -> HeartbeatDiffs:
    return _lake(key).diffs()


@lru_cache(maxsize=16)
def _staleness(key: tuple[Any, ...], _user: str, windowing: Windowing, lookback: timedelta) -> Staleness:
    return Staleness.restored(_lake(key), windowing, lookback)


@lru_cache(maxsize=16)
def _late(key: tuple[Any, ...], _user: str, windowing: Windowing) -> LateHeartbeats:
    return LateHeartbeats.of(_lake(key), windowing)
