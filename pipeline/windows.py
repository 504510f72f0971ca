"""Event-time windows: half-open intervals `[start, end)` of one length, aligned to the epoch in UTC.

A window's key is its start, `2026-11-21T05-20Z`. Dagster's and Delta's partitions have the same keys, without colons,
because Spark escapes these in paths.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tidemark.pipeline.clock import EPOCH, iso
from tidemark.pipeline.durations import format_duration
from tidemark.pipeline.spans import Spans

KEY_FORMAT = "%Y-%m-%dT%H-%MZ"
WINDOWS_PER_RUN = 288
"""Windows that one run computes at most: a day of five minutes each. If it fails, no more than these start again."""

DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True, order=True)
class Window:
    """The event times `[start, end)`."""

    start: datetime
    end: datetime

    @property
    def key(self) -> str:
        """The window's name, from its start."""
        return self.start.strftime(KEY_FORMAT)

    def is_closed_at(self, watermark: datetime | None) -> bool:
        """Return true if the watermark has passed the whole window."""
        return watermark is not None and self.end <= watermark

    def __str__(self) -> str:
        return f"[{iso(self.start)}, {iso(self.end)})"


def start_of(key: str) -> datetime:
    """The start of a window of any length, by its key. Raises ValueError for another text."""
    try:
        return datetime.strptime(key, KEY_FORMAT).replace(tzinfo=UTC)
    except ValueError as error:
        raise ValueError(f"{key!r} is no window's key, which is its start, such as 2026-11-21T05-20Z") from error


@dataclass(frozen=True, slots=True)
class Windowing:
    """A division of event time into windows. Assumption, checked by the settings: `length` divides a day; `first` is a
    window's start."""

    length: timedelta
    first: datetime

    def containing(self, moment: datetime) -> Window:
        """The window that an event time belongs to."""
        start = moment - (moment - EPOCH) % self.length
        return Window(start, start + self.length)

    def named(self, key: str) -> Window:
        """The window with this key. Raises ValueError if the text is not a window's start."""
        start = start_of(key)
        window = self.containing(start)
        if window.start != start or window.key != key:  # strptime also reads unpadded numbers
            raise ValueError(f"{key} is not the start of a window of {format_duration(self.length)}")
        return window

    def number_of(self, moment: datetime) -> int:
        """The number of the window that an event time belongs to; neighbours have neighbouring numbers."""
        return (moment - EPOCH) // self.length

    def numbered(self, number: int) -> Window:
        """The window with this number."""
        start = EPOCH + number * self.length
        return Window(start, start + self.length)

    def between(self, start: datetime, end: datetime) -> Iterator[Window]:
        """The windows that lie wholly in `[start, end)`, in order."""
        window = self.containing(start)
        if window.start < start:
            window = self.containing(window.end)
        while window.end <= end:
            yield window
            window = Window(window.end, window.end + self.length)

    def closed_at(self, watermark: datetime | None, since: datetime | None) -> list[Window]:
        """The windows that the watermark has passed, in order, from the one that contains `since` on; none if either is
        not known."""
        if watermark is None or since is None:
            return []
        return list(self.between(self.containing(since).start, watermark))


def runs_of_neighbours(windows: Iterable[Window]) -> list[list[Window]]:
    """Group windows into contiguous stretches, in order: a Dagster run takes one contiguous range."""
    stretches: list[list[Window]] = []
    for window in sorted(windows):
        if stretches and stretches[-1][-1].end == window.start:
            stretches[-1].append(window)
        else:
            stretches.append([window])
    return stretches


def due(held: Spans, reached: Spans, computed: Spans, closed: range, live: int) -> Iterator[range]:
    """The closed windows that are still to be computed, by number: stretches without a gap, the newest first.

    `held` are the windows that may hold a heartbeat, `reached` these and the ones whose lookback may hold one: all of
    them are computed. Any other window has nothing to say, and is computed (with no rows) only as long as it is live:
    among the last `live` closed ones, and at most so many after one that holds a heartbeat. So one message whose clock
    is months off asks for its own windows, and not for every window since.

    The cost follows the stretches of `reached` that are walked through, not the windows.
    """
    near = range(max(closed.start, closed.stop - live), closed.stop)
    wanted = Spans(*reached.within(near))
    for stretch in held.within(range(near.start - live, near.stop)):
        wanted.add(range(max(stretch.start, near.start), min(stretch.stop + live, near.stop)))
    yield from wanted.without(computed, near)
    yield from reached.without(computed, range(closed.start, near.start))
