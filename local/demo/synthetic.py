"""Publishes the heartbeats of a synthetic source, each at its planned time, and records them in a truth file."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from threading import Event
from typing import Self

import numpy as np
from google.pubsub_v1 import PublisherClient, PublishRequest

from tidemark.local.demo.shapes.shape import REASONS, Message
from tidemark.local.demo.synthetic_beats import DUPLICATE, HEARTBEAT, KINDS, Rows, SyntheticSource, compose, messages
from tidemark.local.demo.truth import TruthFile, truth_of
from tidemark.pipeline.clock import Clock, from_us, to_us
from tidemark.pipeline.pubsub.connection import ONCE_MORE, publisher_client, reported, retrying
from tidemark.pipeline.settings import Settings

BATCH = 1000
"""Number of messages per request: Google's maximum. A message is under a kilobyte, so a request is under the maximum
size of 10 MB."""

LIVE_PAUSE_SECONDS = 0.2
"""Pause between two checks for messages that are due."""

CALL_TIMEOUT = timedelta(seconds=10)
GIVE_UP_AFTER = timedelta(seconds=60)
"""Time limits of a request: CALL_TIMEOUT for one attempt, GIVE_UP_AFTER for all attempts."""

PUBLISH = "pubsub.topics.publish (roles/pubsub.publisher) on it"


@dataclass(frozen=True, slots=True)
class Published:
    """Counts of published messages (an array counts once per heartbeat), and the heartbeats' range of event times."""

    messages: int
    heartbeats: int
    duplicates: int
    broken: Mapping[str, int]
    first_event_time: datetime | None
    last_event_time: datetime | None
    seconds: float

    @property
    def messages_per_second(self) -> float:
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
) -> Published:
    """Publish every message that `messages` yields for `[start, end)`, in the order of publication times.

    No message is sent before its publication time. Messages of the past are sent as fast as Pub/Sub accepts them or,
    with `speed_up`, at that multiple of real time. Publishing ends when all messages are sent, or when `stop()` is
    true. `progress` is called with the values of `Source.sent` and `Source.reached`.

    However the run ends, the truth file is readable and has every confirmed message (after Ctrl-C, the last request may
    be missing). If an answer was lost, the request is retried. Its messages may then be on the topic twice, under two
    message ids. Raises PermissionMissing, SubscriptionMissing if the topic does not exist, PubSubUnreachable,
    LakeUnwritable if the truth file cannot be written, and InvalidSettings if `end` is not after `start`.
    """
    began = clock.monotonic()

    def horizon_us() -> int:
        now_us = to_us(clock.now())
        if speed_up is None:
            return now_us
        return int(min(now_us, to_us(start) + (clock.monotonic() - began) * 1e6 * speed_up))

    with TruthFile(truth_path) as truth, _Sender(source, publisher, topic_path, clock, truth) as sender:
        for batch in _when_due(messages(source, start, end), horizon_us, clock, stop):
            sender.send(batch)
            progress(sender.kinds.total(), from_us(batch["publish_us"][-1]))
    return sender.published(clock.monotonic() - began)


def _when_due(
    pieces: Iterator[Rows], horizon_us: Callable[[], int], clock: Clock, stop: Callable[[], bool]
) -> Iterator[Rows]:
    """Yield batches of at most BATCH messages, once `horizon_us()` has reached their publication times."""
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


Sent = tuple[Sequence[Message], Sequence[str], datetime]
"""A confirmed request: its messages, their ids, and the time of sending."""


@dataclass(slots=True)
class _Sender:
    """Sends one request at a time, in order. While a request is in flight, the calling thread records the previous
    request, and composes the next one.

    On exit, it waits for the request in flight and records it.
    """

    source: SyntheticSource
    publisher: PublisherClient
    topic: str
    clock: Clock
    truth: TruthFile
    kinds: Counter[str] = field(default_factory=Counter)  # of the confirmed messages
    _range_ms: list[int] = field(default_factory=list)  # the first and the last event time of the heartbeats
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="publishing"))
    _under_way: Future[Sent] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._thread:
            self._record(self._confirmed())

    def send(self, rows: Rows) -> None:
        """Send a batch, once the previous batch is confirmed. Raises the error of the previous batch."""
        composed = compose(self.source, rows)
        request = PublishRequest.pb(PublishRequest())
        request.topic = self.topic
        for message in composed:
            request.messages.add(data=message.payload, attributes=message.attributes)

        def call() -> Sent:
            published_at = self.clock.now()
            with reported("publish to", self.topic, PUBLISH, then=ONCE_MORE):
                answer = self.publisher.publish(
                    request=PublishRequest.wrap(request),
                    retry=retrying(GIVE_UP_AFTER),
                    timeout=CALL_TIMEOUT.total_seconds(),
                )
            return composed, list(answer.message_ids), published_at

        before = self._confirmed()
        self._under_way = self._thread.submit(call)
        self._record(before)

    def published(self, seconds: float) -> Published:
        """Return the counts of the confirmed messages. `seconds` is the duration of the run."""
        first, last = [from_us(ms * 1000) for ms in self._range_ms] or (None, None)
        return Published(
            messages=self.kinds.total(),
            heartbeats=self.kinds[KINDS[HEARTBEAT]],
            duplicates=self.kinds[KINDS[DUPLICATE]],
            broken={reason.value: self.kinds[reason] for reason in REASONS},
            first_event_time=first,
            last_event_time=last,
            seconds=seconds,
        )

    def _confirmed(self) -> Sent | None:
        under_way, self._under_way = self._under_way, None
        return None if under_way is None else under_way.result()

    def _record(self, sent: Sent | None) -> None:
        if sent is None:
            return
        beats = [beat for message in sent[0] for beat in message.beats]
        self.truth.add(truth_of(*sent))
        self.kinds.update(beat.kind for beat in beats)
        times = [*self._range_ms, *(beat.event_ms for beat in beats if beat.kind == KINDS[HEARTBEAT])]
        self._range_ms = [min(times), max(times)] if times else []


@dataclass
class Source:
    """Publishes heartbeats in a thread, from the event time `begin` on, until it is stopped or a day has passed since
    its start.

    `sent` is the number of messages that Pub/Sub has confirmed (an array counts as its number of heartbeats). `reached`
    is the planned publication time of the last message sent, which may not be confirmed yet.
    """

    beats: SyntheticSource
    settings: Settings
    truth: Path
    begin: datetime
    clock: Clock
    sent: int = 0
    _stop: Event = field(default_factory=Event)
    _published: Future[Published] | None = None

    def __post_init__(self) -> None:
        self.reached = self.begin

    def start(self) -> None:
        self._published = ThreadPoolExecutor(1, thread_name_prefix="synthetic source").submit(
            publish,
            self.beats,
            publisher_client(*self.settings.pubsub.server),
            self.settings.pubsub.topic_path,
            self.clock,
            self.begin,
            self.clock.now() + timedelta(days=1),
            truth_path=self.truth,
            progress=self._progress,
            stop=self._stop.is_set,
        )

    def stop(self) -> Published | None:
        """Stop publishing, and return the counts (None if never started). Raises the error that ended publishing."""
        self._stop.set()
        return None if self._published is None else self._published.result()

    def raise_failure(self) -> None:
        """Raise the error that ended publishing, if there is one."""
        if self._published is not None and self._published.done():
            self._published.result()

    def _progress(self, sent: int, reached: datetime) -> None:
        self.sent, self.reached = sent, reached
