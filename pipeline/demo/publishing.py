"""The synthetic source in a thread of its own, as if it were somebody else's."""

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from threading import Event

from pipeline.clock import Clock
from pipeline.demo.synthetic import CALL_TIMEOUT, Published, publish
from pipeline.demo.synthetic_beats import SyntheticSource
from pipeline.pubsub.connection import publisher_client
from pipeline.settings import Settings


@dataclass
class Source:
    """Publishes from `begin` until it is stopped, for a day at most.

    `sent` messages are confirmed so far, up to the publication time `reached`.
    """

    beats: SyntheticSource
    settings: Settings
    truth: Path
    begin: datetime
    clock: Clock
    call_timeout: timedelta = CALL_TIMEOUT
    sent: int = 0
    _stop: Event = field(default_factory=Event)
    _published: Future[Published] | None = None

    def __post_init__(self) -> None:
        self.reached = self.begin

    def start(self) -> None:
        """Begin to publish."""
        self._published = ThreadPoolExecutor(1, thread_name_prefix="synthetic source").submit(
            publish,
            self.beats,
            publisher_client(self.settings.pubsub.emulator_host),
            self.settings.pubsub.topic_path,
            self.clock,
            self.begin,
            self.begin + timedelta(days=1),
            truth_path=self.truth,
            progress=self._progress,
            stop=self._stop.is_set,
            call_timeout=self.call_timeout,
        )

    def stop(self) -> Published | None:
        """Stop publishing, and return what was published. Raises what went wrong meanwhile."""
        self._stop.set()
        return None if self._published is None else self._published.result()

    def raise_failure(self) -> None:
        """Raise what went wrong while publishing, if anything did."""
        if self._published is not None and self._published.done():
            self._published.result()

    def _progress(self, sent: int, reached: datetime) -> None:
        self.sent, self.reached = sent, reached
