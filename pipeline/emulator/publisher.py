"""google.pubsub.v1.Publisher, as far as tidemark uses it, over the model."""

from typing import Any

from google.protobuf.empty_pb2 import Empty
from google.pubsub_v1 import types

from pipeline.emulator import limits
from pipeline.emulator.shared import Shared, page, warn_of_ignored

IGNORED = frozenset(
    {"message_retention_duration", "schema_settings", "message_transforms", "ingestion_data_source_settings"}
)
"""Settings of a topic that are kept and given back, and have no effect."""

PublishResponse = types.PublishResponse.pb()
ListTopicsResponse = types.ListTopicsResponse.pb()
ListTopicSubscriptionsResponse = types.ListTopicSubscriptionsResponse.pb()
ListTopicSnapshotsResponse = types.ListTopicSnapshotsResponse.pb()


class PublisherService:
    """Each method is one of the API's, from its plain protobuf request to its answer. Raises ModelErrors."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._model = shared.model

    def create_topic(self, topic: Any, _: Any) -> Any:
        limits.resource("topics", topic.name)
        warn_of_ignored(topic, IGNORED)
        with self._shared.changed:
            self._model.create_topic(topic.name, topic)
        return topic

    def get_topic(self, request: Any, _: Any) -> Any:
        limits.resource("topics", request.topic)
        with self._shared.changed:
            return self._model.get_topic(request.topic)

    def list_topics(self, request: Any, _: Any) -> Any:
        prefix = limits.project(request.project)
        with self._shared.changed:
            found = [config for name, config in self._model.list_topics().items() if name.startswith(prefix)]
            found, token = page(found, request)
            return ListTopicsResponse(topics=found, next_page_token=token)

    def delete_topic(self, request: Any, _: Any) -> Any:
        limits.resource("topics", request.topic)
        with self._shared.changed:
            self._model.delete_topic(request.topic)
        return Empty()

    def list_topic_subscriptions(self, request: Any, _: Any) -> Any:
        limits.resource("topics", request.topic)
        with self._shared.changed:
            names = [told.name for told in self._model.list_subscriptions(request.topic)]
        names, token = page(names, request)
        return ListTopicSubscriptionsResponse(subscriptions=names, next_page_token=token)

    def list_topic_snapshots(self, request: Any, _: Any) -> Any:
        limits.resource("topics", request.topic)
        with self._shared.changed:
            snapshots = self._model.list_snapshots(self._shared.now())
        names, token = page([one.name for one in snapshots if one.topic == request.topic], request)
        return ListTopicSnapshotsResponse(snapshots=names, next_page_token=token)

    def publish(self, request: Any, _: Any) -> Any:
        limits.resource("topics", request.topic)
        limits.publishable(request)
        with self._shared.changed:
            try:
                ids = self._model.publish(request.topic, list(request.messages), self._shared.now())
            finally:  # also where the answer is lost
                self._shared.changed.notify_all()
        return PublishResponse(message_ids=ids)
