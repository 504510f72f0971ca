"""The two ticks on a lake behind the fault proxy; what checks them sees the same lake past the proxy."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path

from tests.gcs.fault_proxy import FaultProxy
from tests.ingest.fakes import CONTRACT, FIELDS, World
from tests.lake.builders import put
from tests.watermark.builders import START
from tidemark.pipeline.ingest.settle import new_files
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.log.notes import WatermarkObject
from tidemark.pipeline.settings_sections import LakeSettings
from tidemark.pipeline.watermark.state import Snapshot
from tidemark.pipeline.windows import Windowing

WINDOWING = Windowing(timedelta(minutes=1), CONTRACT.first_event_time, lookback=timedelta(minutes=5))
STREAMS = 5


class TickingOnABucket(World):
    """A world whose process has the parts that the code server keeps; each tick has a log of its own."""

    def __init__(self, folder: Path, lake: LakeSettings, proxy: FaultProxy) -> None:
        self.through_proxy = lake.model_copy(update={"endpoint": proxy.endpoint})
        self.published: list[str] = []
        self.rejected: list[str] = []
        super().__init__(folder, lake=lake)

    def restart(self) -> None:
        super().restart()
        self.behind_proxy = Lake(self.through_proxy, FIELDS, self.clock)
        self.log, self.landing_log = self.behind_proxy.tracking_log(), self.behind_proxy.tracking_log()
        self.signals = [WatermarkObject(self.behind_proxy.objects(), WINDOWING)]
        self.heartbeats, self.quarantine = new_files(self.behind_proxy, self.clock)  # type: ignore[assignment]
        self.index = self.behind_proxy.window_index(WINDOWING)
        self.diffs = self.behind_proxy.diffs()

    def publish(self) -> None:
        """A heartbeat of each stream, and a message that is rejected."""
        self.wait(10)
        for number in range(STREAMS):
            message = self.topic.publish((self.clock.now() - START).total_seconds() - 1, stream=f"stream-{number}")
            self.published.append(message.message_id)
        self.rejected.append(self.topic.publish("yesterday").message_id)

    def tick(self) -> list[range]:
        """Land, track, and look which windows are due, as the sensors do."""
        self.land()
        return self.due(self.track().decision.watermark)

    def due(self, watermark: datetime | None) -> list[range]:
        """The closed windows that are not computed."""
        first, end = WINDOWING.first, WINDOWING.first if watermark is None else watermark
        closed = range(WINDOWING.number_of(first), WINDOWING.number_of(end))
        return list(self.index.update().due(closed))  # of older windows alone the sensors ask what retention has kept

    def compute(self, name: str) -> Mapping[str, int]:
        """Commit an empty first window, by a run of this name."""
        return put(self.diffs, name, [WINDOWING.containing(START).key], now=self.clock.now())

    def check_that_all_is_there_once(self) -> None:
        """Every message is in its table once, and was counted once by the log."""
        assert sorted(self.landed_ids(), key=int) == self.published
        assert sorted(self.quarantined_ids(), key=int) == self.rejected
        log = self.lake().tracking_log()
        entries = map(log.entry, log.numbers())
        counted = sum(int(entry.histogram.count.sum()) for entry in entries if isinstance(entry, Snapshot))
        assert counted == len(self.published + self.rejected)
