"""The command with a planted fault: base's reading is always "now", as if its reader were never behind."""

from tidemark.pipeline.cli.app import main
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.pubsub.backlog import ReadingTimes
from tidemark.pipeline.pubsub.readings import Subscriptions
from tidemark.pipeline.watermark.readings import Reading


class Blind:
    """A backlog that is always empty."""

    def read(self) -> Reading:
        """What a reading of nothing outstanding would say."""
        times = ReadingTimes(SystemClock())
        asked = times.ask()
        return times.reading(asked, asked[0])


if __name__ == "__main__":
    Subscriptions.base_backlog = lambda *_: Blind()  # type: ignore[method-assign]
    main()
