"""The methods of google.pubsub.v1.Publisher that tidemark uses."""

from typing import Any

from google.protobuf.empty_pb2 import Empty
from google.pubsub_v1 import types

from pipeline.emulator import limits
from pipeline.emulator.shared import Service, page, warn_of_ignored

IGNORED = frozenset(
    {"message_retention_duration", "schema_settings", "message_transforms", "ingestion_data_source_settings"}
)
"""Settings of a topic that are stored and returned but have no effect."""

PublishResponse = types.PublishResponse.pb()
ListTopicsResponse = types.ListTopicsResponse.pb()
ListTopicSubscriptionsResponse = types.ListTopicSubscriptionsResponse.pb()
ListTopicSnapshotsResponse = types.ListTopicSnapshotsResponse.pb()


class PublisherService(Service):
    """Topics, and publishing to them."""

    def create_topic(self, topic: Any, _: Any) -> Any:
        limits.resource("topics", topic.name)
        warn_of_ignored(topic, IGNORED)
        self._model.create_topic(topic)
        return topic

    def get_topic(self, request: Any, _: Any) -> Any:
        return self._model.get_topic(limits.resource("topics", request.topic))

    def list_topics(self, request: Any, _: Any) -> Any:
        prefix = limits.project(request.project)
        found = [topic for topic in self._model.list_topics() if topic.name.startswith(prefix)]
        return page(ListTopicsResponse, "topics", found, request)

    def delete_topic(self, request: Any, _: Any) -> Any:
        self._model.delete_topic(limits.resource("topics", request.topic))
        return Empty()

    def list_topic_subscriptions(self, request: Any, _: Any) -> Any:
        topic = limits.resource("topics", request.topic)
        names = [one.name for one in self._model.list_subscriptions(topic)]
        return page(ListTopicSubscriptionsResponse, "subscriptions", names, request)

    def list_topic_snapshots(self, request: Any, _: Any) -> Any:
        topic = limits.resource("topics", request.topic)
        names = [one.name for one in self._model.list_snapshots(self._shared.now()) if one.topic == topic]
        return page(ListTopicSnapshotsResponse, "snapshots", names, request)

    def publish(self, request: Any, _: Any) -> Any:
        limits.resource("topics", request.topic)
        limits.publishable(request)
        try:
            ids = self._model.publish(request.topic, list(request.messages), self._shared.now())
        finally:  # also where the answer is lost
            self._shared.changed.notify_all()
        return PublishResponse(message_ids=ids)
