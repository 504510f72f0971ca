"""Signals that report the watermark to other systems: the object `watermark.json`, and messages to the topic in
`signal.publish_to`."""

from dataclasses import asdict
from datetime import datetime, timedelta
from functools import cached_property

from google.pubsub_v1 import PublisherClient

from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.log.notes import SENT, ClosedWindows, Sent, WatermarkContent, WatermarkObject
from tidemark.pipeline.lake.store.objects import ObjectStore
from tidemark.pipeline.pubsub.connection import publisher_client, reported
from tidemark.pipeline.settings import Settings

SENT_WITHIN = timedelta(seconds=2)
"""Maximum time that a tick waits for Pub/Sub to accept a message. A tick tries once. If the attempt fails, a later tick
sends the message."""


class SignalTopic(WatermarkObject):
    """Publishes the watermark as a message to a topic, and then records the message in the lake. The record is a
    separate object, not `watermark.json`.

    Guarantee: the messages together cover every window, even with crashes or several trackers. Each message begins at
    the watermark where an earlier one ended. A message may be sent twice, and two messages may overlap.
    """

    kind = SENT

    def __init__(self, objects: ObjectStore, topic: str, settings: Settings) -> None:
        super().__init__(objects, settings.windowing, attach=settings.pubsub.attach)
        self.failed = f"the watermark was not sent to {topic}, or not recorded; a later tick sends it"
        self._topic, self._settings = topic, settings

    @cached_property
    def _client(self) -> PublisherClient:
        return publisher_client(*self._settings.pubsub.server)

    def _sent(self, there: WatermarkContent, now: WatermarkContent) -> WatermarkContent:
        windows, name = None, self._settings.pipeline_name
        if there.watermark is not None and now.watermark is not None:
            since, until = datetime.fromisoformat(there.watermark), datetime.fromisoformat(now.watermark)
            windows = ClosedWindows.between(since, until, self._settings.windowing)
        message = Sent(**asdict(now), pipeline=name, since=there.watermark, windows=windows)
        attributes = {"pipeline": name, "reason": now.reason, "promise": now.promise, "log_entry": str(now.log_entry)}
        attributes |= {} if now.watermark is None else {"watermark": now.watermark}
        sent = {"data": SENT.encode(message), "attributes": attributes, "ordering_key": name}
        with reported("publish to", self._topic, "pubsub.topics.publish on it"):
            request = {"topic": self._topic, "messages": [sent]}
            self._client.publish(request=request, retry=None, timeout=SENT_WITHIN.total_seconds())
        return message


def signals_of(settings: Settings, lake: Lake) -> tuple[WatermarkObject, ...]:
    """Return the signals that the settings configure."""
    written = WatermarkObject(lake.objects(), settings.windowing, attach=settings.pubsub.attach)
    topic = settings.signal_topic
    return (written,) if topic is None else (written, SignalTopic(lake.objects(), topic, settings))
