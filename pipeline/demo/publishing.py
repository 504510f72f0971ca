"""The synthetic source in a thread of its own, as if it were somebody else's."""

from datetime import datetime, timedelta
from pathlib import Path
from threading import Event, Thread

from pipeline.clock import Clock
from pipeline.demo.synthetic import CALL_TIMEOUT, Published, publish
from pipeline.demo.synthetic_beats import SyntheticSource
from pipeline.errors import TidemarkError
from pipeline.pubsub.connection import publisher_client
from pipeline.settings import Settings


class Source:
    """Publishes from `start` until it is stopped, for a day at most."""

    def __init__(
        self,
        beats: SyntheticSource,
        settings: Settings,
        truth: Path,
        start: datetime,
        clock: Clock,
        call_timeout: timedelta = CALL_TIMEOUT,
    ) -> None:
        self.sent = 0
        self.reached = start
        self._published: Published | None = None
        self._failure: TidemarkError | None = None
        self._stop = Event()

        def progress(sent: int, reached: datetime) -> None:
            self.sent, self.reached = sent, reached

        def run() -> None:
            try:
                self._published = publish(
                    beats,
                    publisher_client(settings.pubsub.emulator_host),
                    settings.pubsub.topic_path,
                    clock,
                    start,
                    start + timedelta(days=1),
                    truth_path=truth,
                    progress=progress,
                    stop=self._stop.is_set,
                    call_timeout=call_timeout,
                )
            except TidemarkError as error:
                self._failure = error

        self._thread = Thread(target=run, name="synthetic source", daemon=True)

    def start(self) -> None:
        """Begin to publish."""
        self._thread.start()

    def stop(self) -> Published | None:
        """Stop publishing, and return what was published. Raises what went wrong meanwhile."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        self.raise_failure()
        return self._published

    def raise_failure(self) -> None:
        """Raise what went wrong while publishing, if anything did; once."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
