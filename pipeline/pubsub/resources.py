"""Finds, creates, deletes and lists topics, subscriptions and snapshots by their kind and path."""

from contextlib import suppress
from datetime import timedelta
from typing import Any

from google.api_core import exceptions as api

from tidemark.pipeline.pubsub.connection import ONCE_MORE, TICKS_GO_ON, bounded, reported

LOOKS_WITHIN = timedelta(seconds=10)
"""Timeout of a request that only looks something up. The request is not urgent."""


class Resources:
    """Finds, creates, deletes and lists resources in Pub/Sub. `kind` is topic, subscription or snapshot.

    Google's errors are translated to tidemark's, whose messages say what to do. `needed` is the permission that a
    message tells the user to grant. With `look`, requests are not retried. It is no error to create an existing
    resource or to delete a missing one.
    """

    def __init__(self, subscriber: Any = None, publisher: Any = None, *, look: bool = False) -> None:
        self._clients = {"topic": publisher, "subscription": subscriber, "snapshot": subscriber}
        self._then = TICKS_GO_ON if look else ONCE_MORE
        self.bounds = {"retry": None, "timeout": LOOKS_WITHIN.total_seconds()} if look else bounded()

    def find(self, kind: str, path: str) -> Any | None:
        """Return the resource at the path, or None if there is none."""
        get = getattr(self._clients[kind], f"get_{kind}")
        with reported("look up", path, f"pubsub.{kind}s.get on it", then=self._then), suppress(api.NotFound):
            return get(**{kind: path}, **self.bounds)
        return None

    def create(self, kind: str, request: dict[str, Any], needed: str) -> bool:
        """Create a topic or subscription, and return True. Return False if it already exists."""
        create = getattr(self._clients[kind], f"create_{kind}")
        with reported("create", request["name"], needed, then=self._then), suppress(api.AlreadyExists):
            create(request=request, **self.bounds)
            return True
        return False

    def delete(self, kind: str, path: str, needed: str) -> None:
        """Delete the resource, if it exists."""
        delete = getattr(self._clients[kind], f"delete_{kind}")
        with reported("delete", path, needed, then=self._then), suppress(api.NotFound):
            delete(**{kind: path}, **self.bounds)

    def listed(self, kind: str, project: str) -> list[Any]:
        """Return all of the project's resources of this kind."""
        listing = getattr(self._clients[kind], f"list_{kind}s")
        with reported(f"list the {kind}s of", project, f"pubsub.{kind}s.list on it", then=self._then):
            return list(listing(project=project, **self.bounds))
