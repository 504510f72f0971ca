"""Publishing the synthetic source's heartbeats, each at its time, and writing down the truth."""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from google.pubsub_v1 import PublisherClient, PublishRequest

from pipeline.clock import Clock, from_us, to_us
from pipeline.demo.synthetic_beats import (
    DUPLICATE,
    FIRST_BROKEN,
    HEARTBEAT,
    REASONS,
    Rows,
    SyntheticSource,
    compose,
    expected_messages,
    messages,
)
from pipeline.demo.truth import TruthFile
from pipeline.pubsub.connection import reported, retrying

__all__ = ["Published", "SyntheticSource", "expected_messages", "publish"]

BATCH = 1000
"""Messages in one request: the service's limit. At under a kilobyte each they stay below its 10 MB."""

LIVE_PAUSE_SECONDS = 0.2
"""How long to wait, once everything that is due was sent, before looking again."""

CALL_TIMEOUT = timedelta(seconds=10)
GIVE_UP_AFTER = timedelta(seconds=60)
"""The longest that one request takes, and the longest that it is tried again."""

PUBLISH = "pubsub.topics.publish (roles/pubsub.publisher)"


@dataclass(frozen=True, slots=True)
class Published:
    """What was published: counts of messages, and the range of the heartbeats' event times (None without any)."""

    messages: int
    heartbeats: int
    duplicates: int
    broken: Mapping[str, int]
    first_event_time: datetime | None
    last_event_time: datetime | None
    seconds: float

    @property
    def messages_per_second(self) -> float:
        """The rate over the whole run, its waiting included."""
        return self.messages / self.seconds if self.seconds else 0.0


def publish(
    source: SyntheticSource,
    publisher: PublisherClient,
    topic_path: str,
    clock: Clock,
    start: datetime,
    end: datetime,
    *,
    truth_path: Path,
    speed_up: float | None = None,
    progress: Callable[[int, datetime], None] = lambda _sent, _reached: None,
    stop: Callable[[], bool] = lambda: False,
    call_timeout: timedelta = CALL_TIMEOUT,
) -> Published:
    """Publish every message about the event times in `[start, end)`, in the order of their publication times.

    None is sent before its publication time by the clock: what is past goes as fast as Pub/Sub takes it (at most
    `speed_up` times real time, where that is given), and then it goes on live until all is sent or `stop()` says so.
    `progress` is told the number of messages confirmed so far and the publication time that was reached.

    The truth is readable whatever ends the run, and holds every message that Pub/Sub confirmed (but for, perhaps, the
    last request where Ctrl-C ends it: `stop` has no such gap). A request that was tried again because its answer was
    lost may be on the topic twice, under other message ids: `call_timeout` is how long an answer is waited for. Raises
    PubSubUnreachable, SubscriptionMissing (no such topic), PermissionMissing, LakeUnwritable for the truth, and
    InvalidSettings.
    """
    began = clock.monotonic()
    tally = _Tally()

    def horizon_us() -> int:
        now_us = to_us(clock.now())
        if speed_up is None:
            return now_us
        return min(now_us, to_us(start) + int((clock.monotonic() - began) * 1e6 * speed_up))

    with (
        TruthFile(truth_path) as truth,
        _Sender(source, publisher, topic_path, clock, truth, tally, call_timeout) as sender,
    ):
        for batch in _when_due(messages(source, start, end), horizon_us, clock, stop):
            sender.send(batch)
            progress(tally.messages, from_us(batch["publish_us"][-1]))
    return tally.published(clock.monotonic() - began)


def _when_due(
    pieces: Iterator[Rows], horizon_us: Callable[[], int], clock: Clock, stop: Callable[[], bool]
) -> Iterator[Rows]:
    """Batches of what is due by the horizon, waiting where nothing is."""
    for rows in pieces:
        sent = 0
        while sent < len(rows):
            if stop():
                return
            due = int(np.searchsorted(rows["publish_us"], horizon_us(), side="right"))
            for first in range(sent, due, BATCH):
                yield rows[first : min(first + BATCH, due)]
                if stop():
                    return
            sent = max(sent, due)
            if sent < len(rows):
                clock.sleep(LIVE_PAUSE_SECONDS)


class _Tally:
    """Counts what was confirmed."""

    def __init__(self) -> None:
        self.messages = 0
        self._kinds = np.zeros(FIRST_BROKEN + len(REASONS), np.int64)
        self._first_ms: int | None = None
        self._last_ms: int | None = None

    def add(self, rows: Rows) -> None:
        self.messages += len(rows)
        self._kinds += np.bincount(rows["kind"], minlength=len(self._kinds))
        times = rows["event_ms"][rows["kind"] == HEARTBEAT]
        if len(times):
            first, last = int(times.min()), int(times.max())
            self._first_ms = first if self._first_ms is None else min(first, self._first_ms)
            self._last_ms = last if self._last_ms is None else max(last, self._last_ms)

    def published(self, seconds: float) -> Published:
        return Published(
            messages=self.messages,
            heartbeats=int(self._kinds[HEARTBEAT]),
            duplicates=int(self._kinds[DUPLICATE]),
            broken={reason.value: int(self._kinds[FIRST_BROKEN + at]) for at, reason in enumerate(REASONS)},
            first_event_time=None if self._first_ms is None else from_us(self._first_ms * 1000),
            last_event_time=None if self._last_ms is None else from_us(self._last_ms * 1000),
            seconds=seconds,
        )


@dataclass(frozen=True, slots=True)
class _Request:
    rows: Rows
    attributes: list[dict[str, str]]
    payloads: list[bytes]
    answer: "Future[tuple[list[str], datetime]]"


class _Sender:
    """Sends one request at a time, in order, while the next one is composed and the last one is written down.

    On leaving, whatever the reason, the request under way is waited for and written down.
    """

    def __init__(
        self,
        source: SyntheticSource,
        publisher: PublisherClient,
        topic_path: str,
        clock: Clock,
        truth: TruthFile,
        tally: _Tally,
        call_timeout: timedelta,
    ) -> None:
        self._source = source
        self._publisher = publisher
        self._topic = topic_path
        self._clock = clock
        self._truth = truth
        self._tally = tally
        self._call_timeout = call_timeout
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="publishing")
        self._under_way: _Request | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._thread:
            if (last := self._confirmed()) is not None:
                self._write_down(*last)

    def send(self, rows: Rows) -> None:
        """Send a batch once the one before is confirmed. Raises what that one raised."""
        attributes, payloads = compose(self._source, rows)
        request = PublishRequest.pb(PublishRequest())
        request.topic = self._topic
        for carried, payload in zip(attributes, payloads, strict=True):
            request.messages.add(data=payload, attributes=carried)
        before = self._confirmed()
        self._under_way = _Request(rows, attributes, payloads, self._thread.submit(self._call, request))
        if before is not None:
            self._write_down(*before)

    def _confirmed(self) -> tuple[_Request, list[str], datetime] | None:
        if (request := self._under_way) is None:
            return None
        try:
            message_ids, published_at = request.answer.result()
        except Exception:
            self._under_way = None
            raise
        self._under_way = None
        return request, message_ids, published_at

    def _write_down(self, request: _Request, message_ids: list[str], published_at: datetime) -> None:
        self._truth.add(request.rows, request.attributes, request.payloads, message_ids, published_at)
        self._tally.add(request.rows)

    def _call(self, request: Any) -> tuple[list[str], datetime]:
        published_at = self._clock.now()
        with reported("publish to", self._topic, PUBLISH):
            answer = self._publisher.publish(
                request=PublishRequest.wrap(request),
                retry=retrying(GIVE_UP_AFTER),
                timeout=self._call_timeout.total_seconds(),
            )
        return list(answer.message_ids), published_at
