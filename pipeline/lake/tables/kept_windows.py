"""From which window on the lake keeps what a window is computed from: noted before anything older is removed.

A window before that is neither computed nor asked for any more: it would come out without the heartbeats that were
removed, and take the place of the right one.
"""

import re
from collections.abc import Sequence
from datetime import datetime

from pipeline.errors import ObjectExists, WindowExpired
from pipeline.lake.store.objects import ObjectStore
from pipeline.windows import Window, Windowing

FOLDER = "retention/"
NAME = re.compile(rf"{FOLDER}windows-from-(.+)\.json")


class KeptWindows:
    """The note, of which the highest counts."""

    def __init__(self, objects: ObjectStore, windowing: Windowing) -> None:
        self._objects = objects
        self._windowing = windowing

    def since(self) -> datetime | None:
        """The start of the first window that is kept; None where all are. Raises LakeError."""
        return max(self._noted(), default=None)

    def begin(self, oldest: datetime | None) -> datetime | None:
        """From when on windows are to be computed, given the oldest event time that has landed. Raises LakeError."""
        since = self.since()
        return oldest if oldest is None or since is None else max(oldest, since)

    def raise_to(self, window: Window) -> None:
        """Note that this is the first that is kept. Durable on return; it never goes back. Raises LakeError."""
        try:
            self._objects.create(_name(window.key), b"{}")
        except ObjectExists:
            return
        highest = self.since()
        for moment in self._noted():
            if highest is not None and moment < highest:
                self._objects.delete(_name(self._windowing.containing(moment).key))

    def refuse_expired(self, windows: Sequence[Window]) -> None:
        """Raise WindowExpired if one of the windows is no longer kept."""
        since = self.since()
        expired = [window for window in windows if since is not None and window.start < since]
        if expired:
            raise WindowExpired(
                f"{len(expired)} of {len(windows)} windows are no longer kept, the first is {expired[0]}: what they "
                f"are computed from was removed, as [housekeeping] says; windows from {since:%Y-%m-%dT%H:%MZ} on can "
                "be computed. Nothing was written"
            )

    def _noted(self) -> list[datetime]:
        found = (NAME.fullmatch(name) for name in self._objects.names(FOLDER))
        return [self._windowing.named(match[1]).start for match in found if match]


def _name(key: str) -> str:
    return f"{FOLDER}windows-from-{key}.json"
