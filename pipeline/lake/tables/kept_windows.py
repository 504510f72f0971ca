"""The first window whose input the lake still keeps in full, noted before anything older is removed.

An earlier window is not computed any more: its new rows would lack what was removed, and would replace the right ones.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from tidemark.pipeline.errors import WindowExpired
from tidemark.pipeline.lake.store.notes import JsonKind, NoContent, Notes
from tidemark.pipeline.lake.store.objects import ObjectStore
from tidemark.pipeline.windows import Window, Windowing, start_of

KEPT_FROM = JsonKind("retention/windows-from-", holds=NoContent)
"""Its key is the window's."""


class KeptWindows:
    """The note of that window. If there are several, the latest window counts."""

    def __init__(self, objects: ObjectStore, windowing: Windowing) -> None:
        self._notes = Notes(objects, KEPT_FROM)
        self._windowing = windowing

    def since(self) -> datetime | None:
        """The start of the first window that is kept; None if all are. Raises LakeError."""
        if not (keys := self._notes.listed()):
            return None
        noted = start_of(keys[-1])  # by the length that windows had then
        window = self._windowing.containing(noted)
        return window.start if window.start == noted else window.end

    def closed(self, watermark: datetime | None) -> range:
        """The numbers of the kept windows that the watermark has passed, from `windows.first` on. Raises LakeError."""
        if watermark is None:
            return range(0)
        first = max(self._windowing.first, self.since() or self._windowing.first)
        return range(self._windowing.number_of(first), self._windowing.number_of(watermark))

    def raise_to(self, window: Window) -> None:
        """Note that this window is the first that is kept. Durable on return; never moves back. Raises LakeError."""
        self._notes.ensure(window.key, NoContent())
        self._notes.keep_newest(1)

    def refuse_expired(self, windows: Sequence[Window], further: timedelta = timedelta(0)) -> None:
        """Raise WindowExpired if one of the windows is no longer kept, or begins less than `further` after the first
        that is."""
        since = self.since()
        if since is not None:
            since += further
        expired = [window for window in windows if since is not None and window.start < since]
        if expired:
            raise WindowExpired(
                f"{len(expired)} of {len(windows)} windows are no longer kept, the first is {expired[0]}: housekeeping "
                f"has removed heartbeats that they are computed from. Nothing was written; ask for windows from "
                f"{since:%Y-%m-%dT%H:%MZ} on"
            )
